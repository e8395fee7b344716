use concentric_core::{
    BoxError, Interrupt, Reply, ReplyStatus, Str,
    agent::{StepDecision, StepDraft, StepGate, StepView},
    hooks::Interest,
    state::{Durable, Scope, Slot},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// The [reason](Interrupt::reason) of an interrupt that requests more steps.
pub const MORE_STEPS: Str = Str::from_static("more_steps");

/// Interrupts a run after a number of steps, until more steps are approved.
///
/// The [`Interrupt`] has the reason [`MORE_STEPS`]. The payload of the reply decides:
///
/// | payload | the run |
/// |---|---|
/// | `{"approved": true}` | makes the [configured number](Self::steps) of further steps, then is interrupted again |
/// | `{"approved": true, "steps": 3}` | makes 3 further steps, then is interrupted again |
/// | any other, or none, as in [`Reply::cancel`] | ends with [`Halted`](concentric_core::Outcome::Halted) |
///
/// A reply cannot raise the agent's own limit ([`AgentLayer::step_limit`], 32 by default): set that
/// limit to the largest number of steps that an approver may allow.
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
/// # Expiry
///
/// An interrupt that has [expired](Self::within) can only be cancelled, which halts the run. The
/// application that stores the suspended run must do this; an expired interrupt is not cancelled
/// automatically.
///
/// # State
///
/// The number of approved steps is part of the run's durable state, so a resumed run does not
/// request the same approval twice.
///
/// [`AgentLayer::step_limit`]: concentric_core::AgentLayer::step_limit
#[derive(Clone, Debug)]
pub struct StepApproval {
    name: Str,
    first: u32,
    more: u32,
    within: Option<Duration>,
}

/// The number of additional steps that were approved, by gate name.
struct Allowed;

impl Slot for Allowed {
    type Value = BTreeMap<Str, u32>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/stop/allowed";
    const SCOPE: Scope = Scope::Run;
}

impl StepApproval {
    /// Creates a gate, named `step_approval`, that interrupts the run after `steps` steps (at least
    /// 1).
    ///
    /// An approval that contains no number allows the same number of further steps.
    pub const fn after(steps: u32) -> Self {
        let steps = if steps == 0 { 1 } else { steps };
        Self {
            name: Str::from_static("step_approval"),
            first: steps,
            more: steps,
            within: None,
        }
    }

    /// Sets the number of steps that an approval without a number allows (at least 1).
    #[must_use]
    pub fn steps(mut self, more: u32) -> Self {
        self.more = more.max(1);
        self
    }

    /// Sets the time after which the interrupt expires; by default it does not expire.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Sets the name of the gate, which must be unique within an agent.
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
            .with_message(format!("The run has made {made} steps. Allow more?"))
            .with_response_schema(schema)
            .with_metadata("steps_made", made);
        let until = |time| step.context.now().checked_add(time);
        match self.within.and_then(until) {
            Some(until) => question.until(until),
            None => question,
        }
    }

    /// Returns the number of further steps that `reply` approves.
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

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let step: &StepView = draft;
        let allowed = step.context.state::<Allowed>()?;
        let more = allowed.get(&self.name).copied().unwrap_or(0);
        if step.step < self.first.saturating_add(more) {
            return Ok(StepDecision::Continue);
        }
        let Some(reply) = step.reply(&step.interrupt_id(&self.name)) else {
            return Ok(StepDecision::ask(self.question(step)));
        };
        let Some(more) = self.allowed_by(reply) else {
            return Ok(StepDecision::halt("more steps were not approved"));
        };
        step.context.update_state::<Allowed>(|allowed| {
            let mut allowed = allowed.clone();
            let of_gate = allowed.entry(self.name.clone()).or_default();
            *of_gate = of_gate.saturating_add(more);
            allowed
        })?;
        Ok(StepDecision::Continue)
    }
}
