//! Gates between the steps of a run.

mod answers;
mod decide;
mod draft;
mod view;

pub use self::{
    answers::{FinishDecision, GateOrder, RoundDecision, StepDecision},
    draft::StepDraft,
    view::StepView,
};

pub(crate) use self::{
    decide::{Decided, Moment, PendingDecision},
    draft::RequestParts,
};

use crate::{
    interest::Interest,
    panic::{CaughtPanic, caught},
};
use concentric_proto::{Error, ErrorKind, Phase};
use std::{
    fmt,
    future::{Future, ready},
    sync::Arc,
};
use tower::BoxError;

/// Decides whether and how a loop continues: before a step, before a round of tool calls, and
/// before the end of the run.
///
/// A layer sees a single call, so it cannot end the run before the next step, request another step,
/// raise an interrupt between steps, or [edit](StepDraft) what all later steps have: messages, the
/// system text, options, tools. A step gate can. Gates are attached to an
/// [`AgentLayer`](crate::AgentLayer::gate), or to [one run](crate::RunOverrides::step_gate).
///
/// # Several gates
///
/// All gates are evaluated in the order in which they were added, the run's own gates first, and
/// the strictest decision applies: halt, finish, ask, continue; before a round: halt, answer, skip,
/// ask, continue. Before the end of the run the order is: halt, retry, ask, finish. Messages and edits of one gate apply whatever the other gates
/// decide, unless the decision is to ask: then nothing is added or executed until the interrupts
/// are answered, and all gates are evaluated again. The interrupts raised at one moment form one
/// batch. The batch is answered as a whole, and each gate sees all replies, once.
///
/// Before the end of the run, a gate that [retries](FinishDecision::Retry) ends the evaluation,
/// because the run is not ending and there is nothing to decide for the gates after it. The
/// exception is an evaluation with replies: then all gates are evaluated, and the strictest decision
/// applies: halt, retry, ask.
///
/// ```
/// use concentric_core::{
///     AgentLayer, BoxError, NoTools,
///     agent::{StepDecision, StepDraft, StepGate},
///     hooks::Interest,
/// };
///
/// /// Ends a run at a limit of tokens.
/// struct Tokens(u64);
///
/// impl StepGate for Tokens {
///     fn name(&self) -> &str {
///         "tokens"
///     }
///
///     fn interest(&self) -> Interest {
///         Interest::BEFORE_STEP
///     }
///
///     async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
///         Ok(match draft.usage.total_tokens() {
///             Some(used) if used >= self.0 => StepDecision::halt("token limit reached"),
///             _ => StepDecision::Continue,
///         })
///     }
/// }
///
/// let agent = AgentLayer::new(NoTools).gate(Tokens(100_000));
/// # let _ = agent;
/// ```
///
/// # When a gate fails
///
/// An error or a panic of a gate fails the run, and the undecided action is not executed.
///
/// # Cost
///
/// A moment outside of the gate's [interest](Self::interest) costs nothing. The others cost, per
/// step, a boxed future and a copy of handles to the conversation and the run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a step gate",
    label = "not a `StepGate`",
    note = "implement `StepGate`; only `name` is required"
)]
pub trait StepGate: Send + Sync + 'static {
    /// Returns the name of the gate. Gates that ask must have different names.
    fn name(&self) -> &str;

    /// Returns the position of the gate among those before the end of the run; by default any.
    ///
    /// Gates in the wrong order fail every run with
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration), before its first model call.
    fn order(&self) -> GateOrder {
        GateOrder::Any
    }

    /// Returns the moments that the gate decides about; asked once, when the gate is added.
    fn interest(&self) -> Interest {
        Interest::ALL
    }

    /// Decides whether and how the loop makes its next step.
    ///
    /// # When
    ///
    /// Before the loop calls its model, including the first time, and again when the interrupts
    /// raised here have replies. Resuming an agent in the model's position is not a new step.
    ///
    /// # Errors
    ///
    /// An error fails the run.
    fn before_step(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<StepDecision, BoxError>> + Send {
        let _ = draft;
        ready(Ok(StepDecision::Continue))
    }

    /// Decides whether a round of tool calls runs.
    ///
    /// # When
    ///
    /// Before the first call of the round starts and before the gates of its calls are evaluated,
    /// and again when the interrupts raised here have replies. Not when the round resumes after its
    /// calls waited for replies.
    ///
    /// # Errors
    ///
    /// An error fails the run.
    fn before_round(
        &self,
        view: &StepView,
    ) -> impl Future<Output = Result<RoundDecision, BoxError>> + Send {
        let _ = view;
        ready(Ok(RoundDecision::Continue))
    }

    /// Decides whether the run may finish.
    ///
    /// # When
    ///
    /// When the model has answered without a tool call, and again when the interrupts raised here
    /// have replies. Not when the run is stopped or reaches a limit.
    ///
    /// # Errors
    ///
    /// An error fails the run.
    fn before_finish(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<FinishDecision, BoxError>> + Send {
        let _ = draft;
        ready(Ok(FinishDecision::Finish))
    }
}

/// The step gates of a run or an agent.
#[derive(Clone, Default)]
pub(crate) struct StepGates(Arc<Vec<Entry>>);

/// A gate, and the moments that it decides about.
#[derive(Clone)]
struct Entry {
    gate: Arc<dyn Erased>,
    interest: Interest,
}

impl StepGates {
    pub(crate) fn push(&mut self, gate: impl StepGate) {
        let interest = gate.interest();
        let gate = Arc::new(gate);
        Arc::make_mut(&mut self.0).push(Entry { gate, interest });
    }

    /// Adds the gates of `after`.
    pub(crate) fn extend(&mut self, after: &Self) {
        if self.is_empty() {
            self.0 = Arc::clone(&after.0);
        } else {
            Arc::make_mut(&mut self.0).extend(after.0.iter().cloned());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks the gates against their [`GateOrder`].
    ///
    /// # Errors
    ///
    /// A gate comes after one that it must precede.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut last: Option<(&dyn Erased, GateOrder)> = None;
        for Entry { gate, .. } in self.0.iter() {
            let order = gate.order();
            if order == GateOrder::Any {
                continue;
            }
            if let Some((before, latest)) = last
                && order < latest
            {
                let why = format!(
                    "the gate `{}` comes after the gate `{}` but must precede it: add it first",
                    gate.id(),
                    before.id()
                );
                return Err(Error::new(ErrorKind::Configuration, why)
                    .with_code("gate_order")
                    .with_phase(Phase::Run));
            }
            last = Some((&**gate, order));
        }
        Ok(())
    }

    /// Returns whether a gate has that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|entry| entry.gate.id() == name)
    }

    /// Returns whether a gate decides before the end of the run.
    pub(crate) fn ask_to_finish(&self) -> bool {
        let decides = |entry: &Entry| entry.interest.contains(Interest::BEFORE_FINISH);
        self.0.iter().any(decides)
    }

    /// Returns whether a gate decides before a round.
    pub(crate) fn ask_before_round(&self) -> bool {
        let decides = |entry: &Entry| entry.interest.contains(Interest::BEFORE_ROUND);
        self.0.iter().any(decides)
    }
}

/// A gate with its type erased.
trait Erased: Send + Sync {
    fn id(&self) -> &str;
    fn order(&self) -> GateOrder;
    fn before_step<'a>(&'a self, draft: &'a mut StepDraft) -> PendingDecision<'a, StepDecision>;
    fn before_round<'a>(&'a self, view: &'a StepView) -> PendingDecision<'a, RoundDecision>;
    fn before_finish<'a>(&'a self, draft: &'a mut StepDraft)
    -> PendingDecision<'a, FinishDecision>;
}

impl<G> Erased for G
where
    G: StepGate,
{
    fn id(&self) -> &str {
        self.name()
    }

    fn order(&self) -> GateOrder {
        StepGate::order(self)
    }

    fn before_step<'a>(&'a self, draft: &'a mut StepDraft) -> PendingDecision<'a, StepDecision> {
        Box::pin(async {
            let decided = caught(|| G::before_step(self, draft)).await;
            checked(self.name(), decided)
        })
    }

    fn before_round<'a>(&'a self, view: &'a StepView) -> PendingDecision<'a, RoundDecision> {
        Box::pin(async {
            let decided = caught(|| G::before_round(self, view)).await;
            checked(self.name(), decided)
        })
    }

    fn before_finish<'a>(
        &'a self,
        draft: &'a mut StepDraft,
    ) -> PendingDecision<'a, FinishDecision> {
        Box::pin(async {
            let decided = caught(|| G::before_finish(self, draft)).await;
            checked(self.name(), decided)
        })
    }
}

/// Converts the result of a gate; a panic becomes an error.
fn checked<T>(gate: &str, decided: Result<Result<T, BoxError>, CaughtPanic>) -> Result<T, Error> {
    match decided {
        Ok(decided) => decided.map_err(|error| failed(gate, error)),
        Err(panic) => {
            // Not within the current span, into which its exporter would copy the text.
            tracing::error!(parent: None, gate, panic = panic.text(), "step gate panicked");
            Err(failed(gate, "it panicked".into()))
        }
    }
}

fn failed(gate: &str, error: BoxError) -> Error {
    let error = Error::from(error);
    match error.kind() {
        // This kind carries no information of its own, so the gate is named.
        ErrorKind::Other => {
            let said = format!("the step gate `{gate}` failed: {}", error.message());
            Error::new(ErrorKind::Other, said).with_source(error)
        }
        _ => error,
    }
    .with_phase(Phase::Run)
}

impl fmt::Debug for StepGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepGates")
            .field("gates", &self.0.len())
            .finish()
    }
}
