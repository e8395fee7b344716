//! Gates between the steps of a loop.

mod answers;
mod decide;
mod view;

pub use self::{
    answers::{BeforeFinish, BeforeRound, BeforeStep, GateOrder},
    view::StepView,
};

pub(super) use self::decide::{Deciding, FinishVerdict, Moment, RoundVerdict, Said, StepVerdict};

use self::decide::Decision;
use crate::{
    context::Context,
    method::{Panic, caught, is_set, unset},
};
use concentric_proto::{Error, ErrorKind, Phase};
use std::{fmt, future::Future, sync::Arc};
use tower::BoxError;

/// Decides whether, and how, a loop goes on: before it makes a step, before it runs a round of tool
/// calls, and before it ends.
///
/// It is for what no layer can do, since a layer is inside one call: to end the run before the next
/// step, to have it make another one, to put a message in, to ask somebody. Gates are attached to an
/// [`AgentLayer`](crate::AgentLayer::gate), or to one run as [`StepGates`]. All of them are asked, in
/// the order in which they were added, those of the run first; and the strictest answer counts: to
/// halt, to finish, to ask, to go on; before the end: to halt, to go on, to ask, to finish. What one
/// of them says is said whatever the others answer; but where the answer is to ask, nothing is said
/// or done until that is answered, and then all of them decide again. What they ask at one moment is
/// one batch: it is answered as a whole, and each gate sees all answers, once.
///
/// Before the end it is otherwise: the first that says to [continue](BeforeFinish::Continue), or
/// [rejects](BeforeFinish::Reject) the answer, is the last
/// that is asked, since this is not the end that the gates after it decide about. Only where they are
/// to hear answers are they all asked, and to halt is stricter than to go on, and that than to ask.
///
/// ```
/// use concentric_core::{
///     AgentLayer, BoxError, NoTools,
///     agent::{BeforeStep, StepGate, StepView},
/// };
///
/// /// Ends a run that has used its tokens up.
/// struct Tokens(u64);
///
/// impl StepGate for Tokens {
///     fn name(&self) -> &str {
///         "tokens"
///     }
///
///     async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
///         Ok(match step.usage.total_tokens {
///             Some(used) if used >= self.0 => BeforeStep::halt("the tokens are used up"),
///             _ => BeforeStep::Continue,
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
/// An error of a gate, or its panic, is the run's: what could not be decided is not done.
///
/// # Cost
///
/// A method that a gate does not have costs nothing. One that it has is a boxed future, and a copy
/// of handles to the conversation and the run, per step.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a gate between steps",
    label = "not a `StepGate`",
    note = "implement `StepGate`, of which only `name` is required"
)]
pub trait StepGate: Send + Sync + 'static {
    /// Names the gate; no other that asks has the name.
    fn name(&self) -> &str;

    /// Returns where the gate stands among those that are asked before the end; by default anywhere.
    ///
    /// Gates in another order fail every run with
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration), before its first model call.
    fn order(&self) -> GateOrder {
        GateOrder::Any
    }

    /// Decides whether, and how, the loop makes its next step.
    ///
    /// # When
    ///
    /// Before the loop calls its model, the first time included. What was asked here is decided about
    /// anew when it is replied to. An agent in the model's place that goes on is not a new step.
    ///
    /// # Errors
    ///
    /// They fail the run.
    fn before_step(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeStep, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeStep::Continue))
    }

    /// Decides whether a round of tool calls is run.
    ///
    /// # When
    ///
    /// Before its first call begins, and before anybody is asked about one; not when it goes on after
    /// it waited. What was asked here is decided about anew when it is replied to.
    ///
    /// # Errors
    ///
    /// They fail the run.
    fn before_round(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeRound, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeRound::Continue))
    }

    /// Decides whether the run may come to its own end.
    ///
    /// # When
    ///
    /// When its model has answered without a call; not where the run is stopped, or comes to a limit.
    /// What was asked here is decided about anew when it is replied to.
    ///
    /// # Errors
    ///
    /// They fail the run.
    fn before_finish(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeFinish, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeFinish::Finish))
    }
}

/// The gates of one run, outside of its agent's own; they stand in what its context has of its
/// [own](Context::own_mut).
#[derive(Clone, Default)]
pub struct StepGates(Arc<Vec<Arc<dyn Erased>>>);

impl StepGates {
    /// Creates no gates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate.
    #[must_use]
    pub fn gate(mut self, gate: impl StepGate) -> Self {
        Arc::make_mut(&mut self.0).push(Arc::new(gate));
        self
    }

    /// Those of a run: its own, and those of its agent.
    ///
    /// Nothing inside the run has the run's own any more: they are not those of an agent in it.
    ///
    /// # Errors
    ///
    /// Together they are in a wrong [order](Self::check).
    pub(super) fn of_run(&self, context: &mut Context) -> Result<Option<Self>, Error> {
        let all = match context.take_own::<Self>() {
            Some(own) => {
                let all = own.0.iter().chain(&*self.0).cloned().collect();
                let all = Self(Arc::new(all));
                all.check()?;
                all
            }
            None => self.clone(),
        };
        Ok((!all.0.is_empty()).then_some(all))
    }

    /// Checks that each is asked before the gates that must come after it.
    ///
    /// # Errors
    ///
    /// One is not.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut last: Option<(&dyn Erased, GateOrder)> = None;
        for gate in self.0.iter() {
            let order = gate.order();
            if order == GateOrder::Any {
                continue;
            }
            if let Some((before, latest)) = last
                && order < latest
            {
                let why = format!(
                    "the gate `{}` is asked after the gate `{}`, and must be asked before it: add it \
                     first",
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

    /// Whether one of them has that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|gate| gate.id() == name)
    }

    /// Whether one of them has something to say before the run ends.
    pub(super) fn ask_to_finish(&self) -> bool {
        self.0.iter().any(|gate| gate.has().before_finish)
    }

    /// Whether one of them has something to say before a round.
    pub(super) fn ask_before_round(&self) -> bool {
        self.0.iter().any(|gate| gate.has().before_round)
    }
}

/// Which methods a gate has.
#[derive(Clone, Copy)]
pub(super) struct Has {
    before_step: bool,
    before_round: bool,
    before_finish: bool,
}

/// A gate whose type is not known.
trait Erased: Send + Sync {
    fn id(&self) -> &str;
    fn order(&self) -> GateOrder;
    fn has(&self) -> Has;
    fn before_step(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeStep>;
    fn before_round(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeRound>;
    fn before_finish(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeFinish>;
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

    fn has(&self) -> Has {
        fn returns<'a, G: 'a, F>(_: fn(&'a G, &'a StepView) -> F) -> bool {
            is_set::<F>()
        }
        Has {
            before_step: returns(G::before_step),
            before_round: returns(G::before_round),
            before_finish: returns(G::before_finish),
        }
    }

    fn before_step(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeStep> {
        Box::pin(async move {
            let said = caught(|| G::before_step(&self, &view)).await;
            heard(self.name(), said)
        })
    }

    fn before_round(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeRound> {
        Box::pin(async move {
            let said = caught(|| G::before_round(&self, &view)).await;
            heard(self.name(), said)
        })
    }

    fn before_finish(self: Arc<Self>, view: Arc<StepView>) -> Decision<BeforeFinish> {
        Box::pin(async move {
            let said = caught(|| G::before_finish(&self, &view)).await;
            heard(self.name(), said)
        })
    }
}

/// What a gate said; one that panics has failed.
fn heard<T>(gate: &str, said: Result<Result<T, BoxError>, Panic>) -> Result<T, Error> {
    match said {
        Ok(said) => said.map_err(|error| failed(gate, error)),
        Err(panic) => {
            tracing::error!(gate, panic = panic.text(), "a gate between steps panicked");
            Err(failed(gate, "it panicked".into()))
        }
    }
}

fn failed(gate: &str, error: BoxError) -> Error {
    let error = Error::from(error);
    match error.kind() {
        // It says no more than that.
        ErrorKind::Other => {
            let said = format!("the gate `{gate}` failed: {}", error.message());
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
