use super::{Amounts, Budget, layer::Prices};
use concentric_core::{
    BoxError, Error, Interrupt, Reply, Str,
    agent::{StepDecision, StepDraft, StepGate, StepView},
    hooks::Interest,
    interrupt::ReplyStatus,
    state::{Durable, Scope, Slot},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The [reason](Interrupt::reason) of an interrupt that requests an extension of the budget.
pub const BUDGET: Str = Str::from_static("budget");

/// Halts or interrupts a run before a model call that does not fit its budget.
pub(super) struct BudgetGate {
    prices: Prices,
}

impl BudgetGate {
    pub(super) const fn new(prices: Prices) -> Self {
        Self { prices }
    }

    /// Estimates the next model call: the estimate of the last call plus that of the turns added
    /// since.
    ///
    /// The exact request, with its tools and without omitted turns, is known only to the layer
    /// around the model.
    fn next_call(&self, step: &StepView) -> Result<Amounts, BoxError> {
        let estimate = self.prices.estimate_turns(&step.transcript);
        let said = self.prices.cost(&estimate);
        let last = step.context.update_state::<LastCall>(|last| Last {
            said: Some(said),
            ..*last
        })?;
        let more = last.heard.map(|heard| said.minus(heard).plus(ROUNDED));
        Ok(last.wanted.plus(more.unwrap_or_default()).max(LEAST))
    }
}

/// The largest rounding error of a difference of two estimates.
const ROUNDED: Amounts = Amounts::new().input_tokens(1).total_tokens(1);

/// The minimum estimate of a model call.
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

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let step: &StepView = draft;
        let Some(budget) = step.context.capability::<Budget>() else {
            return Ok(StepDecision::Continue);
        };
        budget.check_kept().map_err(Error::from)?;
        let wanted = self.next_call(step)?;
        let Some((whose, over)) = budget.over(wanted) else {
            return Ok(StepDecision::Continue);
        };
        if let Some(asked) = whose.asks() {
            let id = step.interrupt_id(self.name());
            let Some(reply) = step.reply(&id) else {
                let question = Interrupt::new(id, BUDGET)
                    .with_message(over.to_string())
                    .with_response_schema(schema())
                    .with_metadata("extend", serde_json::to_value(asked)?);
                return Ok(StepDecision::ask(question));
            };
            whose.extend(approved(asked, reply))?;
        }
        Ok(match budget.check(wanted) {
            Ok(()) => StepDecision::Continue,
            Err(over) => StepDecision::halt(over.to_string()),
        })
    }
}

/// Returns the extension that `reply` approves, limited to the requested one.
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

/// The payload of a reply to the interrupt.
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

/// The last model call of a run, whichever budget it is charged to.
pub(super) struct LastCall;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Last {
    /// The estimate of the call.
    wanted: Amounts,
    /// The estimate of the conversation alone, at the time of the call.
    heard: Option<Amounts>,
    /// The estimate of the conversation alone, when a gate last checked it.
    said: Option<Amounts>,
}

impl Last {
    /// Records a model call.
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
