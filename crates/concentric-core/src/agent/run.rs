use super::{
    gate::{Deciding, FinishVerdict, Moment, RoundVerdict, Said, StepGates, StepVerdict, StepView},
    take_up,
};
use crate::{
    context::{Context, Release, cancelled},
    environment::Sleep,
    method::{Panic, catch},
    model_layers::{ModelLayers, not_applied},
    request::ChatRequest,
    resume::Resume,
    service::BoxFuture,
    store::Checkpoint,
    tool_call::ToolRound,
};
use concentric_proto::{
    CancelReason, Error, ErrorKind, Event, Finish, Head, MessageId, Phase, RoundCall, Str,
    ToolNameTaken, ToolSpecs, Turn,
    interrupt::StepResume,
    machine::{Input, Machine, ModelResume, ModelStart, Rules},
    run_state::MachineState,
};
use std::{
    collections::HashSet,
    future::ready,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{self, Poll},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::util::Oneshot;
use tower_service::Service;

/// The state of a run, passed from its future to its body; boxed, since it is large.
pub(super) struct Run<M, R> {
    pub(super) machine: Machine,
    model: M,
    rounds: R,
    // The template of each model call, without the transcript and the context.
    request: ChatRequest,
    client_tools: Arc<[Str]>,
    message_id: Option<MessageId>,
    // Cancellation and deadline; created when the run first waits.
    stops: Option<Box<Stops>>,
    claim: Option<Claim>,
    // Persists the run's state. Not in the context, since nested runs have their own states.
    checkpoint: Option<Checkpoint>,
    // Receives the states of an agent in the model's position, to persist them in this run's state.
    within: Option<mpsc::UnboundedReceiver<Within>>,
    // Calls were taken from the machine, and the round service was not called yet.
    saving: bool,
    // The number of effects of the next round, and how many its service counts.
    uncounted: Option<(u64, Arc<AtomicU64>)>,
    // The gates of the agent and of this run.
    gates: Option<StepGates>,
    // The run's own layers around the most recent model call.
    layers: Option<ModelLayers>,
    polls: u32,
}

/// The state of an agent in the model's position, and the sender for the future that persists it.
type Within = (MachineState, oneshot::Sender<BoxFuture<()>>);

impl<M, R> Run<M, R> {
    pub(super) fn new(
        model: M,
        rounds: R,
        specs: &ToolSpecs,
        mut rules: Arc<Rules>,
        gates: &StepGates,
        mut request: ChatRequest,
    ) -> Result<Box<Self>, Error> {
        let gates = gates.of_run(&mut request.context)?;
        let to_finish = gates.as_ref().is_some_and(StepGates::ask_to_finish);
        let before_round = gates.as_ref().is_some_and(StepGates::ask_before_round);
        if (to_finish && !rules.asks_to_finish) || (before_round && !rules.asks_before_round) {
            let rules = Arc::make_mut(&mut rules);
            rules.asks_to_finish |= to_finish;
            rules.asks_before_round |= before_round;
        }
        let client_tools = offer(&mut request, specs)?;
        let checkpoint = request.context.take_own::<Checkpoint>();
        let machine = match request.resume.take() {
            None => Machine::new(std::mem::take(&mut request.transcript), rules),
            Some(resume) => take_up(&mut request, &resume, rules)?,
        };
        Ok(Box::new(Self {
            machine,
            model,
            rounds,
            client_tools,
            message_id: None,
            stops: None,
            // Inside another loop's model call, the claim belongs to that loop.
            claim: (request.context.phase() == Phase::Run)
                .then(|| Claim::new(request.context.clone())),
            checkpoint,
            within: None,
            saving: false,
            uncounted: None,
            gates,
            layers: None,
            polls: 0,
            request,
        }))
    }

    pub(super) fn context(&self) -> &Context {
        &self.request.context
    }

    /// Creates the call of the model for `step`.
    ///
    /// # Errors
    ///
    /// The model, or a value in the run's context, panicked when it was cloned.
    pub(super) fn model_call(
        &mut self,
        step: u32,
        resume: Option<Box<ModelResume>>,
    ) -> Result<Oneshot<M, ChatRequest>, Error>
    where
        M: Service<ChatRequest> + Clone,
    {
        let message_id = MessageId::new(self.context().new_id("msg_"));
        let cloned = attempt(Foreign::Model, || {
            (self.model.clone(), self.request.clone())
        });
        let (model, mut request) = cloned.map_err(|error| at(error, Phase::Model))?;
        request.transcript = self.machine.transcript().clone();
        request.resume = resume.map(|resume| Resume::from(*resume));
        request.context = request.context.at_step(step, message_id.clone());
        self.message_id = Some(message_id);
        self.context().forget_expectations();
        let layers = request.context.own().get::<ModelLayers>();
        self.layers = layers.map(ModelLayers::for_call);
        // A channel for each call, so that remaining states of an earlier call are not persisted.
        let channel = self.checkpoint.is_some().then(mpsc::unbounded_channel);
        let states = channel.map(|(states, within)| {
            self.within = Some(within);
            states
        });
        let inserted = attempt(Foreign::Context, || {
            if let Some(layers) = &self.layers {
                request.context.own_mut().insert(layers.clone());
            }
            if let Some(states) = states {
                request.context.own_mut().insert(through(states));
            }
        });
        inserted.map_err(|error| at(error, Phase::Model))?;
        Ok(Oneshot::new(model, request))
    }

    /// Checks that the layers inside the agent satisfy the layers outside it, for models that have
    /// not [checked](Context::check_stack) this themselves.
    ///
    /// # Errors
    ///
    /// No layer of the stack has applied the run's own layers, or an expected layer was not called.
    pub(super) fn check_layers(&mut self) -> Result<(), Error> {
        match self.layers.take() {
            Some(layers) if !layers.are_applied() => Err(not_applied(&layers)),
            _ => self.context().check_expectations(),
        }
    }

    /// Creates the call of the model for `step` in a run that already has a body, and emits the
    /// start of the step before the call. An error fails the run and returns `None`.
    pub(super) fn shown_model_call(
        &mut self,
        step: u32,
        resume: Option<Box<ModelResume>>,
    ) -> Option<Oneshot<M, ChatRequest>>
    where
        M: Service<ChatRequest> + Clone,
    {
        // A `Oneshot` does nothing before its first poll.
        match self.model_call(step, resume) {
            Ok(call) => {
                if let Some(id) = &self.message_id {
                    self.machine.input(Input::StepStarted(id.clone()));
                }
                Some(call)
            }
            Err(error) => {
                self.machine.input(Input::ModelFailed(error));
                None
            }
        }
    }

    /// Passes the head of the model's answer to the machine.
    pub(super) fn model_started(&mut self, head: &Head) {
        if let Some(message_id) = self.message_id.take() {
            let mut start = ModelStart::new(message_id);
            start.head = head.clone();
            start.tools = self.request.tools.clone();
            start.client_tools = self.client_tools.clone();
            self.machine.input(Input::ModelStarted(start));
        }
    }

    /// Passes an item of the model's answer to the machine, and returns the event to yield, if any.
    pub(super) fn take_in(&mut self, item: Option<Result<Event, Error>>) -> Option<Event> {
        match item {
            Some(Ok(event)) => return self.machine.model_event(event),
            Some(Err(error)) => {
                let error = at(error, Phase::Model);
                self.machine.input(Input::ModelFailed(error));
            }
            None => self.machine.input(Input::ModelEnded),
        }
        None
    }

    /// Starts the evaluation of the gates for the machine's next action; `None` if no gate applies.
    pub(super) fn decide(&mut self, moment: Moment, step: u32) -> Option<Deciding> {
        let is_here = |gate: &str| self.gates.as_ref().is_some_and(|gates| gates.has(gate));
        let all_here = asking(self.machine.answers()).all(is_here);
        let deciding = match all_here {
            true => self.decided(moment, step),
            false => None,
        };
        // An action that waited for replies requires the gate that raised the interrupt.
        if deciding.is_none() && self.machine.take_answers().is_some() {
            let why = "no gate has the name of the gate that raised the answered interrupt; add that gate again";
            let error = Error::new(ErrorKind::Configuration, why);
            self.saving |= moment == Moment::Round;
            return Some(match moment {
                Moment::Round => Deciding::Round(Box::pin(ready(Err(error)))),
                Moment::Step => Deciding::Step(Box::pin(ready(Err(error)))),
                Moment::Finish => Deciding::Finish(Box::pin(ready(Err(error)))),
            });
        }
        deciding
    }

    fn decided(&mut self, moment: Moment, step: u32) -> Option<Deciding> {
        let gates = self.gates.as_ref()?;
        let machine = &mut self.machine;
        // A round that was already started keeps its decision.
        if moment == Moment::Round && !machine.is_round_new() {
            return None;
        }
        let deciding = gates.decide(moment, || {
            let context = self.request.context.clone();
            let transcript = machine.transcript().clone();
            StepView::new(moment, step, transcript, machine.usage(), context)
                .of_message(machine.open_message().cloned())
                .finished_by(machine.last_reason().cloned())
                .answered(machine.take_answers())
        });
        self.saving |= moment == Moment::Round && deciding.is_some();
        deciding
    }

    /// Applies the decision of the gates before a step, and returns whether to make the step.
    pub(super) fn before_step(&mut self, said: Result<Said<StepVerdict>, Error>) -> bool {
        let verdict = said.map(|said| {
            self.say(said.turns);
            said.verdict
        });
        self.machine.input(match verdict {
            Ok(StepVerdict::Continue) => return true,
            Ok(StepVerdict::Ask(pending)) => Input::Ask(Box::new(pending)),
            Ok(StepVerdict::Finish) => Input::Finish,
            Ok(StepVerdict::Halt(reason)) => Input::Halt(reason),
            Err(error) => Input::ModelFailed(error),
        });
        false
    }

    fn say(&mut self, turns: Vec<Turn>) {
        for turn in turns {
            self.machine.push(turn);
        }
    }

    /// Applies the decision of the gates before a round, and returns whether to run its calls.
    pub(super) fn before_round(&mut self, said: Result<RoundVerdict, Error>) -> bool {
        match said {
            Ok(RoundVerdict::Continue) => return true,
            Ok(RoundVerdict::Ask(pending)) => self.machine.input(Input::Ask(Box::new(pending))),
            Ok(RoundVerdict::Skip(reason)) => self.machine.input(Input::SkipRound(reason)),
            Ok(RoundVerdict::Halt(reason)) => {
                self.machine.input(Input::TakeBack);
                self.machine.input(Input::Halt(reason));
            }
            Err(error) => self.machine.input(Input::RoundRefused(error)),
        }
        false
    }

    /// Applies the decision of the gates before the end of the run.
    pub(super) fn before_finish(&mut self, said: Result<Said<FinishVerdict>, Error>) {
        let verdict = said.map(|said| {
            self.say(said.turns);
            said.verdict
        });
        self.machine.input(match verdict {
            Ok(FinishVerdict::Finish) => Input::Finish,
            Ok(FinishVerdict::Continue) => Input::Continue,
            Ok(FinishVerdict::Reject) => Input::Reject,
            Ok(FinishVerdict::Ask(pending)) => Input::Ask(Box::new(pending)),
            Ok(FinishVerdict::Halt(reason)) => Input::Halt(reason),
            Err(error) => Input::Failed(error),
        });
    }

    /// Adds the values of the run's durable slots to its state.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    fn with_slots(&self, state: MachineState) -> Result<MachineState, Error> {
        // Inside another loop's model call, that loop stores the slots.
        match self.context().slots_of_run() {
            Some(slots) if self.claim.is_some() => Ok(state.with_slots(slots.snapshot()?)),
            _ => Ok(state),
        }
    }

    /// Adds the values of durable slots to the state of an interrupted run.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    pub(super) fn keep_slots(&self, finish: &mut Finish) -> Result<(), Error> {
        if let Some(state) = finish.state.take() {
            finish.state = Some(Box::new(self.with_slots(*state)?));
        }
        Ok(())
    }

    /// Creates the round with the `calls` of `step`.
    pub(super) fn round(
        &self,
        step: u32,
        message_id: Option<MessageId>,
        mut calls: Vec<RoundCall>,
    ) -> ToolRound {
        for call in &mut calls {
            call.spec = self.request.tools.get(&call.call.name).cloned();
        }
        ToolRound::new(calls, self.context().at_round(step, message_id))
            .after(self.machine.transcript().clone())
    }

    /// Persists the run's state, if the run has a checkpoint.
    pub(super) fn checkpoint(&mut self) -> Option<BoxFuture<()>> {
        self.checkpoint.as_ref()?;
        let saved = self.save(self.machine.state()?);
        self.saving = true;
        saved
    }

    fn save(&self, state: MachineState) -> Option<BoxFuture<()>> {
        let checkpoint = self.checkpoint.as_ref()?;
        Some(match self.with_slots(state) {
            Ok(state) => checkpoint.save(state),
            Err(error) => Box::pin(ready(Err(error))),
        })
    }

    /// Persists the states of an agent in the model's position as part of this run's state.
    fn poll_within(&mut self, cx: &mut task::Context<'_>) {
        while let Some(within) = &mut self.within
            && let Poll::Ready(Some((inner, save))) = within.poll_recv(cx)
        {
            if let Some(state) = self.machine.state_around(inner)
                && let Some(saved) = self.save(state)
            {
                // The inner run may have been dropped.
                let _ = save.send(saved);
            }
        }
    }

    /// Creates the call of the round service. If the service panics when it is cloned, the round is
    /// refused and this returns `None`.
    pub(super) fn round_call(&mut self, mut round: ToolRound) -> Option<Oneshot<R, ToolRound>>
    where
        R: Service<ToolRound> + Clone,
    {
        let rounds = match attempt(Foreign::Tools, || self.rounds.clone()) {
            Ok(rounds) => rounds,
            Err(error) => {
                let error = at(error, Phase::Round);
                self.machine.input(Input::RoundRefused(error));
                return None;
            }
        };
        self.saving = false;
        let effects = round.effects();
        if effects > 0 {
            self.uncounted = Some((effects, round.share_count()));
        }
        Some(Oneshot::new(rounds, round))
    }

    /// Counts the effects of a round whose call was polled, without those that its service counts.
    pub(super) fn count_effects(&mut self) {
        if let Some((effects, own)) = self.uncounted.take() {
            let own = own.load(Ordering::Acquire);
            self.context().count_effects(effects.saturating_sub(own));
        }
    }

    /// Whether to check for more than the model's next event: once in 64 events, and when an event
    /// was emitted or the run was cancelled through this context.
    #[inline]
    pub(super) fn is_called(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(64) || self.context().outbox().is_filled()
    }

    /// Takes the next emitted event. Only the outermost of nested loops yields emitted events.
    pub(super) fn emitted(&self) -> Option<Event> {
        let outbox = self.context().outbox();
        match outbox.is_filled() && self.claim.is_some() {
            true => outbox.pop(),
            false => None,
        }
    }

    /// Returns whether the run must stop.
    ///
    /// A cancellation of the parent run and the deadline are checked when the run waits, and
    /// otherwise once in 64 events, because the check takes a lock and reads the clock.
    pub(super) fn stops(&self) -> Option<Stop> {
        match self.context().is_cancelled() {
            true => Some(Stop::Cancelled),
            false => self.is_late(),
        }
    }

    /// Counts an event that the body yields.
    #[inline]
    pub(super) fn count_event(&self) {
        if self.claim.is_some() {
            self.context().count_event();
        }
    }

    /// Resolves if the run must stop now; otherwise registers `cx` to be woken when it must.
    pub(super) fn poll_stop(&mut self, cx: &mut task::Context<'_>) -> Poll<Stop> {
        let context = &self.request.context;
        let stops = self
            .stops
            .get_or_insert_with(|| Box::new(Stops::new(context)));
        if let Poll::Ready(stop) = stops.poll(cx) {
            return Poll::Ready(stop);
        }
        self.poll_within(cx);
        Poll::Pending
    }

    /// Takes an emitted event, or registers `cx` to be woken when there is one.
    ///
    /// A loop inside another loop's model call never waits here: the outer loop takes the events,
    /// so such a wait would end only when the outer loop is polled.
    pub(super) fn poll_emitted(&self, cx: &task::Context<'_>) -> Poll<Event> {
        match self.claim {
            Some(_) => self.context().outbox().poll_pop(cx.waker()),
            None => Poll::Pending,
        }
    }

    /// Returns whether the run is cancelled, and stops the machine if it is.
    #[inline]
    pub(super) fn check_cancelled(&mut self) -> bool {
        let cancelled = self.context().is_cancelled();
        if cancelled {
            self.stop(Stop::Cancelled);
        }
        cancelled
    }

    /// Stops the machine.
    pub(super) fn stop(&mut self, stop: Stop) {
        if std::mem::take(&mut self.saving) {
            self.machine.input(Input::TakeBack);
        }
        let reason = self.context().cancel_reason();
        self.machine.input(match stop {
            Stop::Late => Input::Deadline,
            // Another loop of the run has cancelled its tools.
            Stop::Cancelled if reason == Some(LATE) && self.is_late().is_some() => Input::Deadline,
            Stop::Cancelled => Input::Cancel(reason.unwrap_or(CancelReason::User)),
        });
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_late(&self) -> Option<Stop> {
        self.context().is_late().then_some(Stop::Late)
    }

    /// Cancels running tools with [`LATE`] when the deadline has passed.
    pub(super) fn cancel_tools(&self, stop: Stop) {
        if let (Stop::Late, true) = (stop, self.machine.has_running()) {
            self.context().cancel(LATE);
        }
    }

    /// Marks the run as committed: from now on its outcome is reported by the body.
    pub(super) const fn commit(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.leaves = Release::Dropped;
        }
    }

    /// Releases the run after its outcome.
    pub(super) fn end(&mut self) {
        self.stops = None;
        if let Some(claim) = &mut self.claim {
            claim.leaves = Release::Outcome;
            claim.release();
        }
    }
}

/// The reason with which running tools are cancelled when the deadline passes.
const LATE: CancelReason = CancelReason::Other(Str::from_static("deadline"));

/// A part of the stack with foreign code, which may panic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Foreign {
    Model,
    Tools,
    Store,
    Context,
}

/// Calls code of a part of the stack and converts a panic into an error. The text of the panic is
/// logged but not part of the error, which may be shown to clients.
#[inline]
pub(super) fn attempt<T>(part: Foreign, work: impl FnOnce() -> T) -> Result<T, Error> {
    catch(work).map_err(|panic| panicked(part, &panic))
}

/// Polls a part of the stack: see [`attempt`].
#[inline]
pub(super) fn guarded<T>(
    part: Foreign,
    poll: impl FnOnce() -> Poll<T>,
    fail: impl FnOnce(Error) -> T,
) -> Poll<T> {
    attempt(part, poll).unwrap_or_else(|error| Poll::Ready(fail(error)))
}

#[cold]
fn panicked(part: Foreign, panic: &Panic) -> Error {
    let message = match part {
        Foreign::Model => "the model or a layer around it panicked",
        Foreign::Tools => "the tools or a layer around them panicked",
        Foreign::Store => "the store of the run's state panicked",
        Foreign::Context => "a gate of the run or a value in its context panicked",
    };
    tracing::error!(panic = panic.text(), "{message}");
    Error::new(ErrorKind::Other, message)
}

/// Runs a drop, and logs a panic: the dropped value's run has ended.
pub(super) fn discard(drops: impl FnOnce()) {
    if let Err(panic) = catch(drops) {
        tracing::error!(
            panic = panic.text(),
            "a model or tool panicked while being dropped"
        );
    }
}

/// Creates a checkpoint that passes states to an outer run and waits until they are persisted.
fn through(states: mpsc::UnboundedSender<Within>) -> Checkpoint {
    Checkpoint::new(move |state| {
        let (save, saved) = oneshot::channel();
        let _ = states.send((state, save));
        Box::pin(async move {
            match saved.await {
                Ok(saved) => saved.await,
                // The outer run has dropped its model call.
                Err(_) => Err(cancelled()),
            }
        })
    })
}

/// Returns the names of the gates that raised the answered interrupts.
fn asking(answered: Option<&StepResume>) -> impl Iterator<Item = &str> {
    let names = answered.and_then(|answered| answered.on.state.as_ref()?.as_array());
    names.into_iter().flatten().filter_map(|name| name.as_str())
}

/// Sets the phase of `error` unless it has one.
pub(super) fn at(error: Error, phase: Phase) -> Error {
    match error.phase() {
        Some(_) => error,
        None => error.with_phase(phase),
    }
}

/// Adds the agent's tools to those of the client, and returns the names of the client's tools.
fn offer(request: &mut ChatRequest, specs: &ToolSpecs) -> Result<Arc<[Str]>, Error> {
    if request.tools.is_empty() {
        request.tools = specs.clone();
        return Ok(Arc::default());
    }
    let names: Arc<[Str]> = request.tools.iter().map(|t| t.name.clone()).collect();
    // Within another loop the request's tools belong to that loop, so the host must fix a
    // collision.
    if request.context.phase() == Phase::Run {
        let of_request: HashSet<&str> = names.iter().map(Str::as_str).collect();
        let mut own = specs.iter().map(|spec| &spec.name);
        if let Some(name) = own.find(|name| of_request.contains(name.as_str())) {
            let taken = ToolNameTaken::new(name.clone());
            return Err(Error::new(ErrorKind::InvalidRequest, taken.to_string())
                .with_source(taken)
                .with_phase(Phase::Run));
        }
    }
    for spec in specs {
        request.tools.push(spec.clone());
    }
    request
        .tools
        .check()
        .map_err(|error| error.with_phase(Phase::Run))?;
    Ok(names)
}

/// Cancellation and deadline of a run. Boxed, since a run that never waits does not need it.
struct Stops {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    late: Option<Sleep>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    Cancelled,
    Late,
}

impl Stops {
    fn new(context: &Context) -> Self {
        Self {
            cancelled: Box::pin(context.cancelled_owned()),
            late: context
                .remaining()
                .map(|left| context.environment().clock().sleep(left)),
        }
    }

    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Stop> {
        if self.cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Stop::Cancelled);
        }
        match &mut self.late {
            Some(late) => late.as_mut().poll(cx).map(|()| Stop::Late),
            None => Poll::Pending,
        }
    }
}

/// Marks a run as driven until it has its outcome or is dropped.
struct Claim {
    context: Option<Context>,
    // How the run is released if it is dropped now.
    leaves: Release,
}

impl Claim {
    fn new(context: Context) -> Self {
        context.claim();
        Self {
            context: Some(context),
            leaves: Release::Attempt,
        }
    }

    fn release(&mut self) {
        if let Some(context) = self.context.take() {
            context.release(self.leaves);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
