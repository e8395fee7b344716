//! Gates between the steps of a loop.

use crate::{
    Answered, BoxError, Context, Error, ErrorKind, FinishReason, Interrupt, InterruptId, Message,
    Pending, Phase, Reply, Str, Transcript, Turn, Usage,
    method::{Panic, caught, is_set, unset},
};
use std::{collections::HashSet, fmt, future::Future, pin::Pin, sync::Arc};

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
/// Before the end it is otherwise: the first that says to [go on](BeforeFinish::Continue) is the last
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

/// What a [`StepGate`] says before a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeStep {
    /// The model is called.
    Continue,
    /// It is called after this was said.
    Say(Vec<Turn>),
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// The run comes to its own end here ([`Outcome::Completed`](crate::Outcome::Completed)).
    Finish,
    /// The run is stopped ([`Outcome::Halted`](crate::Outcome::Halted)).
    Halt(Str),
}

/// What a [`StepGate`] says before a round of tool calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeRound {
    /// The calls go to their gates.
    Continue,
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// No call is run; the model is told that each was denied, and why.
    Skip(Str),
    /// No call is run, and the run is stopped.
    Halt(Str),
}

/// What a [`StepGate`] says before the run ends.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeFinish {
    /// It ends.
    Finish,
    /// This is said, and the model is called again, if the run may make another step. The gates after
    /// this one are not asked, unless there are [replies](StepView::replies).
    Continue(Vec<Turn>),
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// It is stopped.
    Halt(Str),
}

impl BeforeStep {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

impl BeforeRound {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Runs no call of the round.
    pub fn skip(reason: impl Into<Str>) -> Self {
        Self::Skip(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

impl BeforeFinish {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

/// What a [`StepGate`] goes by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepView {
    /// The step: how many model calls were finished before the one that is decided about, or that
    /// has just been made.
    pub step: u32,
    /// The conversation so far; every round in it is closed.
    pub transcript: Transcript,
    /// The message whose calls are to be run; `None` before the model is called and before the end.
    pub message: Option<Message>,
    /// What the run has used so far.
    pub usage: Usage,
    /// Why the model stopped when it was called last; `None` before the first call.
    pub finish_reason: Option<FinishReason>,
    /// The run.
    pub context: Context,
    /// What was asked here, and replied.
    answered: Option<Box<Answered>>,
    moment: &'static str,
}

impl StepView {
    /// What was replied to a question that was asked here, whoever asked it.
    pub fn reply(&self, id: &InterruptId) -> Option<&Reply> {
        self.replies()
            .iter()
            .find(|reply| reply.interrupt_id == *id)
    }

    /// All that was replied to what was asked here.
    pub fn replies(&self) -> &[Reply] {
        self.answered
            .as_deref()
            .map_or(&[], |answered| &answered.replies)
    }

    /// The id of what a gate asks here: the same when it is asked again with the replies, in
    /// whichever run that is. What it asks then is another question, and gets another id.
    pub fn interrupt_id(&self, gate: &str) -> InterruptId {
        let here = format!("/{}/{}/{gate}", self.step, self.moment);
        let is_here = |id: &InterruptId| {
            let id = id.as_str();
            id.ends_with(&here)
                || id
                    .rsplit_once('#')
                    .is_some_and(|(id, _)| id.ends_with(&here))
        };
        match self.asked().find(|asked| is_here(&asked.id)) {
            Some(asked) => asked.id.clone(),
            None => InterruptId::new(format!("{}{here}", self.context.run_id())),
        }
    }

    /// What was asked here, and was replied to.
    fn asked(&self) -> impl Iterator<Item = &Interrupt> {
        let pending = self
            .answered
            .as_ref()
            .and_then(|answered| answered.pending.as_ref());
        pending.into_iter().flat_map(|pending| &pending.interrupts)
    }

    /// Gives a question another id if it has that of one that was replied to: a reply that comes
    /// twice is not one to both.
    fn anew(&self, mut interrupt: Interrupt) -> Interrupt {
        if self.asked().any(|asked| asked.id == interrupt.id) {
            let id = interrupt.id.as_str();
            let (base, times) = match id.rsplit_once('#') {
                Some((base, times)) => (base, times.parse().unwrap_or(1)),
                None => (id, 1_u32),
            };
            interrupt.id = InterruptId::new(format!("{base}#{}", times.saturating_add(1)));
        }
        interrupt
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
    pub(super) fn of_run(&self, context: &mut Context) -> Option<Self> {
        match context.own_mut().remove::<Self>() {
            Some(own) => {
                let all = own.0.iter().chain(&*self.0).cloned().collect();
                Some(Self(Arc::new(all)))
            }
            None => Some(self.clone()),
        }
        .filter(|all| !all.0.is_empty())
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

    /// What they say at `moment`; `None`, if none has something to say then.
    pub(super) fn decide(
        &self,
        moment: Moment,
        view: impl FnOnce() -> StepView,
    ) -> Option<Deciding> {
        let is_asked = |gate: &&Arc<dyn Erased>| match moment {
            Moment::Step => gate.has().before_step,
            Moment::Round => gate.has().before_round,
            Moment::Finish => gate.has().before_finish,
        };
        let asked: Vec<_> = self.0.iter().filter(is_asked).cloned().collect();
        if asked.is_empty() {
            return None;
        }
        let view = Arc::new(view());
        Some(match moment {
            Moment::Step => Deciding::Step(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_step(Arc::clone(&view)).await?);
                }
                step(&asked, said, &view)
            })),
            Moment::Round => Deciding::Round(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_round(Arc::clone(&view)).await?);
                }
                round(&asked, said, &view)
            })),
            Moment::Finish => Deciding::Finish(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_finish(Arc::clone(&view)).await?);
                    // What was replied is for all to hear.
                    let goes_on = matches!(said.last(), Some(BeforeFinish::Continue(_)));
                    if goes_on && view.answered.is_none() {
                        break;
                    }
                }
                finish(&asked, said, &view)
            })),
        })
    }
}

/// When gates are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Step,
    Round,
    Finish,
}

impl Moment {
    const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Round => "round",
            Self::Finish => "finish",
        }
    }
}

/// Gates that decide.
pub(super) enum Deciding {
    Step(Decision<Said<StepVerdict>>),
    Round(Decision<RoundVerdict>),
    Finish(Decision<Said<FinishVerdict>>),
}

/// What all gates together say before a step, or before the end.
pub(super) struct Said<V> {
    /// It is said whatever the verdict is.
    pub(super) turns: Vec<Turn>,
    pub(super) verdict: V,
}

pub(super) enum StepVerdict {
    Continue,
    Ask(Pending),
    Finish,
    Halt(Str),
}

/// What all gates together say before a round.
pub(super) enum RoundVerdict {
    Continue,
    Ask(Pending),
    Skip(Str),
    Halt(Str),
}

pub(super) enum FinishVerdict {
    Finish,
    Continue,
    Ask(Pending),
    Halt(Str),
}

fn step(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeStep>,
    view: &StepView,
) -> Result<Said<StepVerdict>, Error> {
    let (mut turns, mut asked, mut finish, mut halt) = (Vec::new(), Vec::new(), false, None);
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeStep::Continue => {}
            BeforeStep::Say(more) => turns.extend(more),
            BeforeStep::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeStep::Finish => finish = true,
            BeforeStep::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let verdict = match (halt, finish, asked.is_empty()) {
        (Some(reason), ..) => StepVerdict::Halt(reason),
        (None, true, _) => StepVerdict::Finish,
        (None, false, false) => {
            // All are asked again when that is answered.
            turns.clear();
            StepVerdict::Ask(batch(asked, view)?)
        }
        (None, false, true) => StepVerdict::Continue,
    };
    Ok(Said { turns, verdict })
}

fn round(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeRound>,
    view: &StepView,
) -> Result<RoundVerdict, Error> {
    let (mut asked, mut skip, mut halt) = (Vec::new(), None, None);
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeRound::Continue => {}
            BeforeRound::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeRound::Skip(reason) => skip = skip.or(Some(reason)),
            BeforeRound::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    Ok(match (halt, skip, asked.is_empty()) {
        (Some(reason), ..) => RoundVerdict::Halt(reason),
        (None, Some(reason), _) => RoundVerdict::Skip(reason),
        (None, None, false) => RoundVerdict::Ask(batch(asked, view)?),
        (None, None, true) => RoundVerdict::Continue,
    })
}

fn finish(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeFinish>,
    view: &StepView,
) -> Result<Said<FinishVerdict>, Error> {
    let (mut turns, mut asked, mut goes_on, mut halt) = (Vec::new(), Vec::new(), false, None);
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeFinish::Finish => {}
            BeforeFinish::Continue(more) => {
                turns.extend(more);
                goes_on = true;
            }
            BeforeFinish::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeFinish::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let verdict = match (halt, goes_on, asked.is_empty()) {
        (Some(reason), ..) => FinishVerdict::Halt(reason),
        // Who asks whether it may end is asked again when it would.
        (None, true, _) => FinishVerdict::Continue,
        (None, false, false) => FinishVerdict::Ask(batch(asked, view)?),
        (None, false, true) => FinishVerdict::Finish,
    };
    Ok(Said { turns, verdict })
}

/// What gates ask, with their names: they are to hear the answers.
///
/// # Errors
///
/// Two of them have one name.
fn batch(asked: Vec<(&str, Interrupt)>, view: &StepView) -> Result<Pending, Error> {
    let asked = asked.into_iter();
    let asked = asked.map(|(name, interrupt)| (name, view.anew(interrupt)));
    let (names, interrupts): (Vec<_>, Vec<_>) = asked.unzip();
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
        let why = format!("two gates that ask are named `{twice}`");
        return Err(Error::new(ErrorKind::Configuration, why).with_phase(Phase::Run));
    }
    Ok(Pending::asking(interrupts)
        .with_state(serde_json::Value::from(names))
        .together())
}

impl StepView {
    pub(super) fn new(
        moment: Moment,
        step: u32,
        transcript: Transcript,
        usage: Usage,
        context: Context,
    ) -> Self {
        Self {
            step,
            transcript,
            message: None,
            usage,
            finish_reason: None,
            context,
            answered: None,
            moment: moment.name(),
        }
    }

    pub(super) fn of_message(mut self, message: Option<Message>) -> Self {
        self.message = message;
        self
    }

    pub(super) fn finished_by(mut self, reason: Option<FinishReason>) -> Self {
        self.finish_reason = reason;
        self
    }

    pub(super) fn answered(mut self, answered: Option<Box<Answered>>) -> Self {
        self.answered = answered;
        self
    }
}

/// Which methods a gate has.
#[derive(Clone, Copy)]
pub(super) struct Has {
    before_step: bool,
    before_round: bool,
    before_finish: bool,
}

/// What a gate, or all together, decide.
pub(super) type Decision<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A gate whose type is not known.
trait Erased: Send + Sync {
    fn id(&self) -> &str;
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
