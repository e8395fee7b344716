use concentric_core::{
    BoxError, Interrupt, Reply, ReplyStatus, Str,
    agent::{BeforeStep, StepGate, StepView},
    state::{Durable, Scope, Slot},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// The [reason](Interrupt::reason) of a question whether a run may make more steps.
pub const MORE_STEPS: Str = Str::from_static("more_steps");

/// Asks somebody whether the run may go on, when it has made so many steps.
///
/// The run is interrupted by an [`Interrupt`] whose reason is [`MORE_STEPS`]. A reply's payload is
///
/// | payload | the run |
/// |---|---|
/// | `{"approved": true}` | makes [as many](Self::steps) more steps, and asks again |
/// | `{"approved": true, "steps": 3}` | makes 3 more steps, and asks again |
/// | any other, or none, as of [`Reply::cancel`] | is halted ([`Halted`](concentric_core::Outcome::Halted)): it did not come to an end of its own |
///
/// Only the agent's own limit on steps ([`AgentLayer::step_limit`], 32 by default) can't be raised by
/// a reply: set it to the most that may be allowed.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::StepApproval;
/// use std::time::Duration;
///
/// let agent = AgentLayer::new(NoTools)
///     .step_limit(100)
///     .gate(StepApproval::after(10).steps(5).within(Duration::from_secs(3600)));
/// # let _ = agent;
/// ```
///
/// # Too late
///
/// A question that [expires](Self::within) can only be cancelled after that, which stops the run. Whoever
/// keeps runs that wait is the one to do so: nothing happens by itself.
///
/// # What is kept
///
/// How many steps were allowed stands in the run's state, so that nobody is asked twice for the same.
///
/// [`AgentLayer::step_limit`]: concentric_core::AgentLayer::step_limit
#[derive(Clone, Debug)]
pub struct StepApproval {
    name: Str,
    first: u32,
    more: u32,
    within: Option<Duration>,
}

/// How many steps were allowed in addition, by the name of the gate.
struct Allowed;

impl Slot for Allowed {
    type Value = BTreeMap<Str, u32>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/stop/allowed";
    const SCOPE: Scope = Scope::Run;
}

impl StepApproval {
    /// Creates a gate that asks after `steps` steps, and, where a reply does not say how many more
    /// there may be, after as many again; the least is 1. The gate's name is `step_approval`.
    pub const fn after(steps: u32) -> Self {
        let steps = if steps == 0 { 1 } else { steps };
        Self {
            name: Str::from_static("step_approval"),
            first: steps,
            more: steps,
            within: None,
        }
    }

    /// Sets how many more steps an approval allows that does not say; the least is 1.
    #[must_use]
    pub fn steps(mut self, more: u32) -> Self {
        self.more = more.max(1);
        self
    }

    /// Sets how long the question can be answered; for ever by default.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Names the gate, if an agent has several.
    #[must_use]
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }

    fn question(&self, step: &StepView) -> Interrupt {
        let made = step.step;
        let schema = json!({
            "type": "object",
            "properties": {
                "approved": { "type": "boolean" },
                "steps": { "type": "integer", "minimum": 1, "default": self.more },
            },
            "required": ["approved"],
        });
        let question = Interrupt::new(step.interrupt_id(&self.name), MORE_STEPS)
            .with_message(format!("{made} steps were made. May there be more?"))
            .with_response_schema(schema)
            .with_metadata("steps_made", made);
        let until = |time| step.context.now().checked_add(time);
        match self.within.and_then(until) {
            Some(until) => question.until(until),
            None => question,
        }
    }

    /// How many more steps `reply` allows.
    fn allowed_by(&self, reply: &Reply) -> Option<u32> {
        let payload = reply.payload.as_ref()?;
        let is_approved = reply.status == ReplyStatus::Resolved
            && payload.get("approved").and_then(Value::as_bool) == Some(true);
        if !is_approved {
            return None;
        }
        let steps = match payload.get("steps") {
            None | Some(Value::Null) => self.more,
            Some(steps) => u32::try_from(steps.as_u64()?).ok()?,
        };
        (steps > 0).then_some(steps)
    }
}

impl StepGate for StepApproval {
    fn name(&self) -> &str {
        &self.name
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        let allowed = step.context.state::<Allowed>()?;
        let more = allowed.get(&self.name).copied().unwrap_or(0);
        if step.step < self.first.saturating_add(more) {
            return Ok(BeforeStep::Continue);
        }
        let Some(reply) = step.reply(&step.interrupt_id(&self.name)) else {
            return Ok(BeforeStep::ask(self.question(step)));
        };
        let Some(more) = self.allowed_by(reply) else {
            return Ok(BeforeStep::halt("nobody approved more steps"));
        };
        step.context.update_state::<Allowed>(|allowed| {
            let mut allowed = allowed.clone();
            let of_gate = allowed.entry(self.name.clone()).or_default();
            *of_gate = of_gate.saturating_add(more);
            allowed
        })?;
        Ok(BeforeStep::Continue)
    }
}
