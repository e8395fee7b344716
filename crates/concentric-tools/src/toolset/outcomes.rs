use super::{
    Toolset,
    running::{Ended, Running, RunningSet, Started},
    stack::{Stack, StackFuture},
};
use crate::{
    error::for_model,
    is_fatal,
    layers::Observation,
    lifecycle::{
        Entry, Gated, LiveCall, ProtocolEntry, ProtocolStep, Replied, find_outcome, gate_round,
        is_recovered, suspend_tool, unknown_at_best,
    },
    panic::{self, Caught},
};
use concentric_core::{
    Attempts, Context, Error, ErrorKind, Permit, Phase, Refusal, RoundCall, RoundEvent, ToolCall,
    ToolOutcome, ToolRound, ToolStatus, Transcript,
    method::{Panic, catch},
};
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};
use tower_service::Service;

/// What a round comes to, call by call: the response of a [`Toolset`].
///
/// The gates are asked first, about all calls. Those that may run start in order and while it is
/// polled, in the task that polls it. No call runs after an outcome that halts the run, or once the
/// run is cancelled: those that are left are settled as cancelled.
///
/// # Errors
///
/// A call failed in a way that ends the run; this is the last item, and the other calls are dropped.
///
/// # Cancel safety
///
/// Dropping it drops the functions that run, at once.
#[must_use = "streams do nothing unless polled"]
pub struct Outcomes {
    // Boxed, so that a run that waits for its model is not as large as one that runs tools.
    round: Box<Round>,
}

struct Round {
    toolset: Toolset,
    context: Context,
    transcript: Transcript,
    /// The gates decide.
    gating: Option<Gating>,
    /// What is to be said before more is done.
    said: VecDeque<RoundEvent>,
    /// The calls that have not started.
    waiting: VecDeque<Entry>,
    /// The calls that wait for somebody while the run stays open.
    live: Option<FuturesUnordered<LiveCall>>,
    /// The same calls.
    asking: Vec<(usize, RoundCall)>,
    /// What the next call is made of; each call takes a readiness of its own.
    stack: Option<Stack>,
    running: RunningSet,
    /// The call that runs is not to have others beside it.
    alone: bool,
    /// No further call starts.
    stopped: bool,
    calls: usize,
}

impl Outcomes {
    pub(super) fn new(toolset: Toolset, round: ToolRound) -> Self {
        let mut outcomes = Self {
            round: Box::new(Round {
                context: round.context.clone(),
                transcript: round.transcript.clone(),
                gating: None,
                said: VecDeque::new(),
                waiting: VecDeque::new(),
                live: None,
                asking: Vec::new(),
                stack: None,
                running: RunningSet::None,
                alone: false,
                stopped: false,
                calls: round.calls.len(),
                toolset,
            }),
        };
        let of = &mut *outcomes.round;
        if of.toolset.decides(&round) {
            of.gating = Some(Box::pin(gate_round(of.toolset.clone(), round)));
        } else {
            let calls = round.calls.into_iter().enumerate();
            let tools = &of.toolset;
            of.waiting = calls
                .map(|(index, call)| enter(tools, index, call))
                .collect();
        }
        outcomes
    }
}

/// A call that no gate decides about.
fn enter(tools: &Toolset, index: usize, call: RoundCall) -> Entry {
    let settled = |refusal: &Refusal| Permit::Settled(Arc::new(refusal.outcome(&call.call)));
    let permit = match &call.refusal {
        Some(refusal) => settled(refusal),
        None if tools.find(&call.call.name).is_none() => {
            settled(&Refusal::NotOffered(tools.names()))
        }
        None => Permit::Any,
    };
    Entry {
        index,
        call,
        permit,
    }
}

type Gating = Pin<Box<dyn Future<Output = Result<Gated, Error>> + Send>>;

/// How a stack fails before it is called.
enum Failure {
    Error(Error),
    Panic(Panic),
}

impl Stream for Outcomes {
    type Item = Result<RoundEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let round = &mut *self.round;
        if let Some(gating) = &mut round.gating {
            let gated = ready!(gating.as_mut().poll(cx));
            round.gating = None;
            let gated = match gated {
                Ok(gated) => gated,
                Err(error) => return Poll::Ready(Some(Err(error.with_phase(Phase::Call)))),
            };
            round.waiting = gated.entries.into();
            round.said = gated.waiting.into();
            round.live = (!gated.live.is_empty()).then(|| gated.live.into_iter().collect());
            round.asking = gated.asking;
        }
        loop {
            if let Some(said) = round.said.pop_front() {
                return Poll::Ready(Some(Ok(said)));
            }
            // Before the next call starts, what runs is asked, so that a call that halts or cancels
            // the run when it is first polled is the last one.
            if let Poll::Ready(ended) = round.running.poll_ended(cx) {
                if let Some(item) = round.ended(ended) {
                    return Poll::Ready(Some(item));
                }
                continue;
            }
            if round.stopped {
                round.stop_asking();
            }
            if let Some(live) = &mut round.live {
                match Pin::new(live).poll_next(cx) {
                    Poll::Ready(Some(Replied::Enter(entry))) => {
                        round.asking.retain(|(index, _)| *index != entry.index);
                        round.waiting.push_back(*entry);
                    }
                    Poll::Ready(Some(Replied::Wait(at, pending))) => {
                        round.asking.retain(|(index, _)| *index != at);
                        return Poll::Ready(Some(Ok(RoundEvent::waiting(at, *pending))));
                    }
                    Poll::Ready(None) => round.live = None,
                    Poll::Pending => {}
                }
            }
            if round.waiting.is_empty() {
                return match round.running.len() + round.asked() {
                    0 => Poll::Ready(None),
                    _ => Poll::Pending,
                };
            }
            if round.context.is_cancelled() {
                return Poll::Ready(round.give_next_up(cx));
            }
            if round.stopped
                && let Some(next) = round.waiting.front_mut()
            {
                next.give_up();
            }
            if !round.may_start() {
                return Poll::Pending;
            }
            if round.next_is_settled() {
                match round.settle_next() {
                    Some(item) => return Poll::Ready(Some(item)),
                    None => continue,
                }
            }
            if let Err(Some(item)) = ready!(round.poll_start(cx)) {
                return Poll::Ready(Some(item));
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let round = &*self.round;
        let left = match &round.gating {
            Some(_) => round.calls,
            None => round.said.len() + round.waiting.len() + round.asked() + round.running.len(),
        };
        // An error is the last item.
        (left.min(1), Some(left))
    }
}

impl Round {
    /// Whether no other call is to start.
    fn is_last(&self) -> bool {
        self.waiting.is_empty() && self.asked() == 0
    }

    /// How many calls wait for somebody while the run stays open.
    fn asked(&self) -> usize {
        self.live.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Whether the next call may run beside those that do.
    fn may_start(&self) -> bool {
        match self.running.len() {
            0 => true,
            running => {
                !self.alone
                    && running < self.toolset.inner.max_parallel
                    && !self.waiting.front().is_some_and(|e| self.is_exclusive(e))
            }
        }
    }

    fn is_exclusive(&self, entry: &Entry) -> bool {
        !matches!(entry.permit, Permit::Settled(_))
            && self
                .toolset
                .find(&entry.call.call.name)
                .is_some_and(crate::Tool::is_exclusive)
    }

    /// Starts the next call, when the stack is ready for it.
    ///
    /// # Errors
    ///
    /// The stack failed before the call was made; this is what there is to be said of it.
    fn poll_start(
        &mut self,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), Option<Result<RoundEvent, Error>>>> {
        let stack = ready!(self.poll_stack(cx));
        let Some(entry) = self.waiting.pop_front() else {
            return Poll::Ready(Err(None));
        };
        self.alone = self.is_exclusive(&entry);
        match self.start(entry, stack) {
            Ok(running) => {
                let more = !self.alone && !self.is_last();
                self.running.push(running, more);
            }
            Err(ended) => return Poll::Ready(Err(self.ended(*ended))),
        }
        if self.is_last()
            && let Some(stack) = self.stack.take()
        {
            self.toolset.put_back(stack, &self.context);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the stack when it is ready for a call.
    fn poll_stack(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Stack, Failure>> {
        let stack = self.stack.take();
        let taken = stack.map_or_else(|| catch(|| self.toolset.take_stack(&self.context)), Ok);
        let mut stack = match taken {
            Ok(stack) => stack,
            Err(panic) => return Poll::Ready(Err(Failure::Panic(panic))),
        };
        // A service that failed before it was called is of no more use.
        Poll::Ready(match catch(|| stack.poll_ready(cx)) {
            Ok(Poll::Ready(Ok(()))) => Ok(stack),
            Ok(Poll::Ready(Err(error))) => Err(Failure::Error(error)),
            Ok(Poll::Pending) => {
                self.stack = Some(stack);
                return Poll::Pending;
            }
            Err(panic) => Err(Failure::Panic(panic)),
        })
    }

    /// Makes a call, if the stack was ready.
    ///
    /// # Errors
    ///
    /// The stack failed; this came of the call.
    fn start(
        &mut self,
        entry: Entry,
        stack: Result<Stack, Failure>,
    ) -> Result<Running, Box<Ended>> {
        let Entry {
            index,
            mut call,
            permit,
        } = entry;
        // Layers see the tool that is here.
        let tool = self.toolset.find(&call.call.name);
        if let Some(tool) = tool {
            call.spec = Some(tool.spec().clone());
        }
        let has_layers =
            matches!(stack, Ok(Stack::Layered(_))) || tool.is_some_and(crate::Tool::has_layers);
        // A layer may have effects of its own.
        if has_layers && !tool.is_some_and(|tool| tool.spec().annotations.read_only) {
            self.context.count_effect();
        }
        let attempts = has_layers.then(Attempts::new);
        let mut started = Started {
            index,
            call: call.clone(),
            permit: permit.clone(),
            attempts: attempts.clone(),
            is_recovered: false,
            has_panicked: false,
        };
        let mut request = ToolCall::of_round(call, permit, self.transcript.clone(), &self.context)
            .sealed(self.toolset.seal());
        if let Some(attempts) = attempts {
            request = request.with_attempts(attempts);
        }
        let made = stack.and_then(|mut stack| {
            let future = catch(|| stack.call(request)).map_err(Failure::Panic)?;
            self.stack = Some(stack);
            Ok(future)
        });
        match made {
            Ok(future) => Ok(Running::new(started, future)),
            Err(Failure::Error(error)) => Err(Box::new((started, Err(error)))),
            Err(Failure::Panic(panic)) => {
                let outcome = started.panicked(&panic);
                Err(Box::new((started, Ok(outcome))))
            }
        }
    }

    /// Whether the next call has its outcome already.
    fn next_is_settled(&self) -> bool {
        let next = self.waiting.front();
        next.is_some_and(|next| matches!(next.permit, Permit::Settled(_)))
    }

    /// Settles the next call, which has its outcome already: no layer sees it. `None` if hooks
    /// observe it first.
    fn settle_next(&mut self) -> Option<Result<RoundEvent, Error>> {
        let entry = self.waiting.pop_front()?;
        let (started, outcome) = self.enter_settled(entry);
        if self.is_last()
            && let Some(stack) = self.stack.take()
        {
            self.toolset.put_back(stack, &self.context);
        }
        match self.observe(&started) {
            Some(observation) => {
                let observed = StackFuture::Observed(observation, Some(outcome));
                let more = !self.is_last();
                self.running.push(Running::new(started, observed), more);
                None
            }
            None => self.ended((started, Ok(outcome))),
        }
    }

    fn enter_settled(&self, entry: Entry) -> (Started, ToolOutcome) {
        let Entry {
            index,
            mut call,
            permit,
        } = entry;
        if let Some(tool) = self.toolset.find(&call.call.name) {
            call.spec = Some(tool.spec().clone());
        }
        let mut outcome = match &permit {
            Permit::Settled(outcome) => ToolOutcome::clone(outcome),
            _ => ToolOutcome::cancelled("The call was not run."),
        };
        if let Some(Refusal::NotOffered(_)) = call.refusal
            && let Some(hint) = self.toolset.hint_about(|| self.view(&call, permit.clone()))
        {
            outcome.content = hint.into();
        }
        let permit = Permit::Settled(Arc::new(outcome.clone()));
        let started = Started {
            index,
            call,
            permit,
            attempts: None,
            is_recovered: true,
            has_panicked: false,
        };
        (started, outcome)
    }

    /// Calls the hooks that observe a settled call.
    fn observe(&self, started: &Started) -> Option<Observation> {
        let view = || self.view(&started.call, started.permit.clone());
        self.toolset.observe(&self.context, view)
    }

    fn view(&self, call: &RoundCall, permit: Permit) -> ToolCall {
        ToolCall::of_round(call.clone(), permit, self.transcript.clone(), &self.context)
    }

    /// Settles the next call, which is not started any more. Hooks that observe it are called, and
    /// are not waited for.
    fn give_next_up(&mut self, cx: &mut task::Context<'_>) -> Option<Result<RoundEvent, Error>> {
        let mut entry = self.waiting.pop_front()?;
        entry.give_up();
        let (started, outcome) = self.enter_settled(entry);
        if let Some(observation) = self.observe(&started) {
            let mut observation = Caught::new(observation);
            let _ = Pin::new(&mut observation).poll(cx);
        }
        self.ended((started, Ok(outcome)))
    }

    /// Waits for nobody any more.
    fn stop_asking(&mut self) {
        self.live = None;
        let asking = self.asking.drain(..).map(|(index, call)| Entry {
            index,
            call,
            permit: Permit::Any,
        });
        self.waiting.extend(asking);
    }

    /// The event of a call that ended; `None` if it was given up, and its outcome is looked for.
    fn ended(&mut self, (started, result): Ended) -> Option<Result<RoundEvent, Error>> {
        self.alone = false;
        let may_have_executed = self.may_have_executed(&started, &result);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == ErrorKind::Halted => {
                ToolOutcome::failed(error.message()).and_halt(error.message())
            }
            Err(error) => match error.pending() {
                Some(pending) => {
                    self.record(&started, ProtocolStep::Suspended);
                    let tool = self.toolset.find(&started.call.call.name);
                    let arguments = &started.call.call.arguments;
                    let rules = self.toolset.rules();
                    let pending = suspend_tool(
                        rules,
                        &self.context,
                        tool,
                        arguments,
                        &started.permit,
                        pending,
                    );
                    return Some(Ok(RoundEvent::waiting(started.index, pending)));
                }
                None if self.toolset.inner.errors_are_fatal || is_fatal(&error) => {
                    self.waiting.clear();
                    self.live = None;
                    self.stack = None;
                    self.running = RunningSet::None;
                    return Some(Err(match error.phase() {
                        Some(_) => error,
                        None => error.with_phase(Phase::Call),
                    }));
                }
                None => {
                    let tool = started.call.call.name.as_str();
                    let error_text = panic::text(&format_args!("{error:#}"));
                    tracing::warn!(tool, error = error_text, "a layer on a tool failed");
                    ToolOutcome::failed(for_model(&error))
                }
            },
        };
        // It was not run now, and may have been before.
        let is_in_doubt = is_recovered(&started.call)
            && matches!(outcome.status, ToolStatus::Denied | ToolStatus::Cancelled);
        let outcome = match may_have_executed || is_in_doubt {
            true => unknown_at_best(outcome),
            false => outcome,
        };
        if may_have_executed && let Some(recovering) = self.look_for(&started, &outcome) {
            let started = Started {
                is_recovered: true,
                ..started
            };
            self.running.push(Running::new(started, recovering), true);
            return None;
        }
        self.record(&started, ProtocolStep::Settled(outcome.status));
        self.stopped |= outcome.halt.is_some();
        Some(Ok(RoundEvent::settled(started.index, outcome)))
    }

    /// Whether a call has no known outcome, and must not run again.
    fn may_have_executed(&self, started: &Started, result: &Result<ToolOutcome, Error>) -> bool {
        let tool = self.toolset.find(&started.call.call.name);
        !started.is_recovered
            && tool.is_some_and(|tool| !tool.may_run_again())
            && started.may_have_executed(result)
    }

    /// Looks for the outcome of a call that was given up, as after a crash; `None` if the ledger,
    /// the tool and people have nothing to say of it.
    fn look_for(&self, started: &Started, unknown: &ToolOutcome) -> Option<StackFuture> {
        let tool = self.toolset.find(&started.call.call.name)?;
        let rules = self.toolset.rules();
        let is_over = self.stopped || unknown.halt.is_some() || self.context.is_cancelled();
        if is_over || (rules.effects.is_none() && !tool.has_reconcile()) {
            return None;
        }
        let call = self.view(&started.call, started.permit.clone());
        let found = find_outcome(Arc::clone(rules), tool.clone(), call, unknown.clone());
        Some(StackFuture::Recovered(Box::pin(found)))
    }

    fn record(&self, started: &Started, step: ProtocolStep) {
        self.toolset.record(|| ProtocolEntry {
            call_id: started.call.call.id.clone(),
            tool: started.call.call.name.clone(),
            origin: started.call.origin(),
            step,
        });
    }
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcomes")
            .field("waiting", &self.round.waiting.len())
            .field("running", &self.round.running.len())
            .finish_non_exhaustive()
    }
}
