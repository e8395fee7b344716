use super::{Amounts, Budget, layer::Prices};
use concentric_core::{
    BoxError, ChatRequest, Error, Interrupt, Reply, Str,
    agent::{BeforeStep, StepGate, StepView},
    interrupt::ReplyStatus,
    state::{Durable, Scope, Slot},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The [reason](Interrupt::reason) of a question whether a run may spend more.
pub const BUDGET: Str = Str::from_static("budget");

/// Ends a run before a model call that its budget does not allow, or has somebody asked.
pub(super) struct BudgetGate {
    prices: Prices,
}

impl BudgetGate {
    pub(super) const fn new(prices: Prices) -> Self {
        Self { prices }
    }

    /// What the next model call is thought to want: what the last one did, and what was said since.
    ///
    /// Only the layer around the model sees what is sent, with the tools and without what was left
    /// out.
    fn next_call(&self, step: &StepView) -> Result<Amounts, BoxError> {
        let said = ChatRequest::new(step.transcript.clone());
        let said = self.prices.cost(&self.prices.estimate(&said));
        let last = step.context.update_state::<LastCall>(|last| Last {
            said: Some(said),
            ..*last
        })?;
        let more = last.heard.map(|heard| said.minus(heard).plus(ROUNDED));
        Ok(last.wanted.plus(more.unwrap_or_default()).max(LEAST))
    }
}

/// What may be lost where estimates are added up.
const ROUNDED: Amounts = Amounts::new().input_tokens(1).total_tokens(1);

/// What any model call wants at the least.
pub(super) const LEAST: Amounts = Amounts::new()
    .money(1)
    .input_tokens(1)
    .output_tokens(1)
    .total_tokens(1)
    .cached_input_tokens(1)
    .model_calls(1)
    .time_ms(1);

impl StepGate for BudgetGate {
    fn name(&self) -> &str {
        "budget"
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        let Some(budget) = step.context.capability::<Budget>() else {
            return Ok(BeforeStep::Continue);
        };
        budget.check_kept().map_err(Error::from)?;
        let wanted = self.next_call(step)?;
        let Some((whose, over)) = budget.over(wanted) else {
            return Ok(BeforeStep::Continue);
        };
        if let Some(asked) = whose.asks() {
            let id = step.interrupt_id(self.name());
            let Some(reply) = step.reply(&id) else {
                let question = Interrupt::new(id, BUDGET)
                    .with_message(over.to_string())
                    .with_response_schema(schema())
                    .with_metadata("extend", serde_json::to_value(asked)?);
                return Ok(BeforeStep::ask(question));
            };
            whose.extend(approved(asked, reply))?;
        }
        Ok(match budget.check(wanted) {
            Ok(()) => BeforeStep::Continue,
            Err(over) => BeforeStep::halt(over.to_string()),
        })
    }
}

/// What `reply` adds to the limits, of what was asked for.
fn approved(asked: Amounts, reply: &Reply) -> Amounts {
    let approval = match &reply.payload {
        Some(payload) if reply.status == ReplyStatus::Resolved => Approval::deserialize(payload),
        _ => return Amounts::new(),
    };
    match approval {
        Ok(Approval {
            approved: true,
            extend,
        }) => extend.unwrap_or(asked).min(asked),
        _ => Amounts::new(),
    }
}

/// What is replied to the question.
#[derive(Deserialize)]
struct Approval {
    approved: bool,
    extend: Option<Amounts>,
}

fn schema() -> serde_json::Value {
    json!({
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "extend": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
        },
        "required": ["approved"],
    })
}

/// The last model call of a run, whosever budget it is charged to.
pub(super) struct LastCall;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Last {
    /// What it wanted.
    wanted: Amounts,
    /// What the conversation alone would have wanted then.
    heard: Option<Amounts>,
    /// The same, when a gate last looked.
    said: Option<Amounts>,
}

impl Last {
    /// A model call is made.
    pub(super) const fn call(self, wanted: Amounts) -> Self {
        Self {
            wanted,
            heard: self.said,
            said: self.said,
        }
    }
}

impl Slot for LastCall {
    type Value = Last;
    type Keep = Durable;
    const NAME: &'static str = "concentric/budget/last_call";
    const SCOPE: Scope = Scope::Run;
}
