use super::turns;
use concentric_core::{FinishReason, Message, Str, Turn, Usage, agent::StepView, state::SlotError};
use std::sync::Arc;

/// A condition on the progress of a run, for [`StopWhen`](super::StopWhen); cheap to clone.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct Condition(Arc<Holds>);

type Holds = dyn Fn(&StepView) -> Result<bool, SlotError> + Send + Sync;

impl Condition {
    fn new(holds: impl Fn(&StepView) -> Result<bool, SlotError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    /// Combines two conditions: holds when both hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(move |step| Ok(self.holds(step)? && other.holds(step)?))
    }

    /// Combines two conditions: holds when at least one holds.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::new(move |step| Ok(self.holds(step)? || other.holds(step)?))
    }

    pub(super) fn holds(&self, step: &StepView) -> Result<bool, SlotError> {
        (self.0)(step)
    }
}

/// Holds when the run has made at least `n` steps.
pub fn steps(n: u32) -> Condition {
    holds(move |step| step.step >= n)
}

/// Holds when the run has called the tool `name`, whatever the outcome.
pub fn called(name: impl Into<Str>) -> Condition {
    called_times(name, 1)
}

/// Holds when the run has called the tool `name` at least `times` times, whatever the outcome.
///
/// Calls that the provider or the client executes count too. A call that was suspended counts once.
/// Calls are not identified by their ids, because a provider may reuse ids in each answer.
pub fn called_times(name: impl Into<Str>, times: usize) -> Condition {
    let name = name.into();
    Condition::new(move |step| {
        let messages = turns::of_run(step)?.map(Turn::as_message);
        let calls = messages.flat_map(Message::tool_calls);
        Ok(calls.filter(|call| call.name == name).count() >= times)
    })
}

/// Holds when the finish reason of the last model call is `reason`.
///
/// This is useful only for answers that contain tool calls: any other answer ends the run.
pub fn finish_reason(reason: FinishReason) -> Condition {
    holds(move |step| step.finish_reason.as_ref() == Some(&reason))
}

/// Holds when the run has used at least `limit` input tokens, in total over its model calls.
pub fn input_tokens(limit: u64) -> Condition {
    holds(move |step| step.usage.input_tokens().unwrap_or(0) >= limit)
}

/// Holds when the run has used at least `limit` output tokens, in total over its model calls.
pub fn output_tokens(limit: u64) -> Condition {
    holds(move |step| step.usage.output_tokens().unwrap_or(0) >= limit)
}

/// Holds when the run has used at least `limit` tokens: the provider's total, or else the sum of
/// input and output tokens.
pub fn total_tokens(limit: u64) -> Condition {
    holds(move |step| total(&step.usage) >= limit)
}

fn total(usage: &Usage) -> u64 {
    let sum = |usage: &Usage| {
        let input = usage.input_tokens().unwrap_or(0);
        input.saturating_add(usage.output_tokens().unwrap_or(0))
    };
    usage.total_tokens().unwrap_or_else(|| sum(usage))
}

/// Holds when the usage of the run costs at least `limit`, in the unit of `price`.
///
/// ```
/// use concentric_core::Usage;
/// use concentric_layers::stop::{StopWhen, cost};
///
/// /// In millionths of a dollar, at $2 and $8 per million tokens.
/// fn price(usage: &Usage) -> u64 {
///     2 * usage.input_tokens().unwrap_or(0) + 8 * usage.output_tokens().unwrap_or(0)
/// }
///
/// let gate = StopWhen::halt("the run has cost half a dollar", cost(500_000, price));
/// # let _ = gate;
/// ```
pub fn cost<C>(limit: C, price: impl Fn(&Usage) -> C + Send + Sync + 'static) -> Condition
where
    C: PartialOrd + Send + Sync + 'static,
{
    holds(move |step| price(&step.usage) >= limit)
}

/// Holds when `is_so` returns true.
///
/// The [`StepView`] contains the whole conversation, including the turns before the run.
pub fn holds(is_so: impl Fn(&StepView) -> bool + Send + Sync + 'static) -> Condition {
    Condition::new(move |step| Ok(is_so(step)))
}

concentric_core::opaque_debug!(Condition);
