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
        is_recovered, suspend_tool,
    },
    panic::{self, Caught},
};
use concentric_core::{
    Attempts, Context, Error, ErrorKind, Permit, Phase, Refusal, RoundCall, RoundEvent, ToolCall,
    ToolOutcome, ToolRound, ToolStatus, Transcript,
    panic::{CaughtPanic, catch},
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

/// The outcomes of a round's calls: the response of a [`Toolset`].
///
/// The gates decide about all calls first. Those that may run start in order, in the task that
/// polls this stream. After an outcome that halts the run, or once the run is cancelled, no further
/// call starts: the remaining calls are settled as cancelled.
///
/// # Errors
///
/// Yields an error as the last item if a call failed in a way that ends the run; the other calls
/// are dropped.
///
/// # Cancel safety
///
/// Dropping the stream drops the running functions at once.
#[must_use = "streams do nothing unless polled"]
pub struct Outcomes {
    // Boxed to keep a run that waits for its model small.
    round: Box<Round>,
}

struct Round {
    toolset: Toolset,
    context: Context,
    transcript: Transcript,
    /// The gates are deciding.
    gating: Option<Gating>,
    /// Events to emit before further work.
    said: VecDeque<RoundEvent>,
    /// Calls that have not started.
    waiting: VecDeque<Entry>,
    /// Calls that wait for a reply while the run stays open.
    live: Option<FuturesUnordered<LiveCall>>,
    /// The indexes and states of the calls in `live`.
    asking: Vec<(usize, RoundCall)>,
    /// The stack for the next call; each call needs its own readiness.
    stack: Option<Stack>,
    running: RunningSet,
    /// The running call is exclusive.
    alone: bool,
    /// No further call may start.
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

/// Returns the entry of a call that no gate decides about.
fn enter(tools: &Toolset, index: usize, call: RoundCall) -> Entry {
    let settled = |refusal: &Refusal| Permit::Settled(Arc::new(refusal.outcome(&call.call)));
    let permit = match call.refusal() {
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

/// A failure of the stack before it is called.
enum Failure {
    Error(Error),
    Panic(CaughtPanic),
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
            // Running calls are polled before the next one starts, so that a call that halts or
            // cancels the run at its first poll is the last one.
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
    /// Whether no other call can start later.
    fn is_last(&self) -> bool {
        self.waiting.is_empty() && self.asked() == 0
    }

    /// The number of calls that wait for a reply while the run stays open.
    fn asked(&self) -> usize {
        self.live.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Whether the next call may run concurrently with the running ones.
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

    /// Starts the next call once the stack is ready. Returns the event of the call if the stack
    /// failed before the call was made.
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

    /// Takes the stack once it is ready for a call.
    fn poll_stack(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Stack, Failure>> {
        let stack = self.stack.take();
        let taken = stack.map_or_else(|| catch(|| self.toolset.take_stack(&self.context)), Ok);
        let mut stack = match taken {
            Ok(stack) => stack,
            Err(panic) => return Poll::Ready(Err(Failure::Panic(panic))),
        };
        // A service that failed in `poll_ready` is dropped.
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

    /// Makes a call if the stack is ready. Returns the ended call if the stack failed.
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
        // Layers receive the spec of the tool in this toolset.
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

    /// Whether the next call already has an outcome.
    fn next_is_settled(&self) -> bool {
        let next = self.waiting.front();
        next.is_some_and(|next| matches!(next.permit, Permit::Settled(_)))
    }

    /// Settles the next call, which already has an outcome and skips the layers. Returns `None` if
    /// hooks observe it first.
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
        if let Some(Refusal::NotOffered(_)) = call.refusal()
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

    fn observe(&self, started: &Started) -> Option<Observation> {
        let view = || self.view(&started.call, started.permit.clone());
        self.toolset.observe(&self.context, view)
    }

    fn view(&self, call: &RoundCall, permit: Permit) -> ToolCall {
        ToolCall::of_round(call.clone(), permit, self.transcript.clone(), &self.context)
    }

    /// Settles the next call, which will not start. Its hooks are called, but not awaited.
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

    /// Stops waiting for replies.
    fn stop_asking(&mut self) {
        self.live = None;
        let asking = self.asking.drain(..).map(|(index, call)| Entry {
            index,
            call,
            permit: Permit::Any,
        });
        self.waiting.extend(asking);
    }

    /// Returns the event of a call that ended; `None` if it was abandoned and its outcome is being
    /// recovered.
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
        // The call did not run now, but may have run earlier.
        let is_in_doubt = is_recovered(&started.call)
            && matches!(outcome.status, ToolStatus::Denied | ToolStatus::Cancelled);
        let outcome = match may_have_executed || is_in_doubt {
            true => outcome.into_indeterminate(),
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

    /// Whether a call has no known outcome and must not run again.
    fn may_have_executed(&self, started: &Started, result: &Result<ToolOutcome, Error>) -> bool {
        let tool = self.toolset.find(&started.call.call.name);
        !started.is_recovered
            && tool.is_some_and(|tool| !tool.may_run_again())
            && started.may_have_executed(result)
    }

    /// Recovers the outcome of an abandoned call, as after a crash; `None` if neither the ledger
    /// nor the tool nor an interrupt can provide it.
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
