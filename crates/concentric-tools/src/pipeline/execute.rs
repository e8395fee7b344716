//! Execute: runs the calls of a round through the stack.

use super::{
    Entry, Pipeline,
    gate::{Gated, enter, gate_round, needs_decisions},
    live::{LiveCall, Replied},
    running::{Running, RunningSet, Started},
    settle::{End, classify, suspend_started},
};
use crate::{
    Tool,
    call::effect::find_outcome,
    panic::Caught,
    toolset::{Observation, Stack, StackFuture, Toolset},
};
use concentric_core::{
    Attempts, Clearance, Error, Phase, Refusal, RoundCall, RoundEvent, ToolOutcome, ToolRound,
    interrupt::SuspendedBy,
    panic::{CaughtPanic, catch},
    trace::{TraceEntry, TraceStep},
};
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    ops::ControlFlow,
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
    pipeline: Pipeline,
    /// The gates are deciding.
    gating: Option<Gating>,
    /// Events to emit before further work.
    events: VecDeque<RoundEvent>,
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
        let is_gated = needs_decisions(&toolset, &round);
        let pipeline = Pipeline {
            toolset,
            context: round.context,
            transcript: round.transcript,
        };
        let (calls, mut waiting, mut gating): (_, _, Option<Gating>) =
            (round.calls.len(), VecDeque::new(), None);
        if is_gated {
            gating = Some(Box::pin(gate_round(pipeline.clone(), round.calls)));
        } else {
            let round = round.calls.into_iter().enumerate();
            waiting = round
                .map(|(index, call)| enter(&pipeline.toolset, index, call))
                .collect();
        }
        let round = Box::new(Round {
            gating,
            events: VecDeque::new(),
            waiting,
            live: None,
            asking: Vec::new(),
            stack: None,
            running: RunningSet::None,
            alone: false,
            stopped: false,
            calls,
            pipeline,
        });
        Self { round }
    }
}

type Gating = Pin<Box<dyn Future<Output = Result<Gated, Error>> + Send>>;

type Item = Result<RoundEvent, Error>;

/// A failure of the stack before it is called.
enum Failure {
    Error(Error),
    Panic(CaughtPanic),
}

impl Stream for Outcomes {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Item>> {
        let round = &mut *self.round;
        if let Some(gating) = &mut round.gating {
            let gated = ready!(gating.as_mut().poll(cx));
            round.gating = None;
            match gated {
                Ok(gated) => round.begin(gated),
                Err(error) => return Poll::Ready(Some(Err(error.with_phase(Phase::Call)))),
            }
        }
        loop {
            if let ControlFlow::Break(next) = round.step(cx) {
                return next;
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let round = &*self.round;
        let left = match &round.gating {
            Some(_) => round.calls,
            None => round.events.len() + round.waiting.len() + round.asked() + round.running.len(),
        };
        // An error is the last item.
        (left.min(1), Some(left))
    }
}

impl Round {
    fn begin(&mut self, gated: Gated) {
        self.waiting = gated.entries.into();
        self.events = gated.suspended.into();
        self.live = (!gated.live.is_empty()).then(|| gated.live.into_iter().collect());
        self.asking = gated.asking;
    }

    /// Makes one step; breaks with the result of the poll.
    fn step(&mut self, cx: &mut task::Context<'_>) -> ControlFlow<Poll<Option<Item>>> {
        let next = |item: Option<Item>| match item {
            Some(item) => ControlFlow::Break(Poll::Ready(Some(item))),
            None => ControlFlow::Continue(()),
        };
        if let Some(event) = self.events.pop_front() {
            return next(Some(Ok(event)));
        }
        // Running calls are polled before the next one starts, so that a call that halts or
        // cancels the run at its first poll is the last one.
        if let Poll::Ready((started, result)) = self.running.poll_ended(cx) {
            return next(self.settle(started, result));
        }
        if self.stopped {
            self.stop_asking();
        }
        if let Some(item) = self.poll_live(cx) {
            return next(Some(item));
        }
        if self.waiting.is_empty() {
            return ControlFlow::Break(match self.running.len() + self.asked() {
                0 => Poll::Ready(None),
                _ => Poll::Pending,
            });
        }
        if self.pipeline.context.is_cancelled() {
            return ControlFlow::Break(Poll::Ready(self.give_next_up(cx)));
        }
        if self.stopped
            && let Some(next) = self.waiting.front_mut()
        {
            next.give_up();
        }
        if !self.may_start() {
            return ControlFlow::Break(Poll::Pending);
        }
        if self.next_is_settled() {
            return next(self.settle_next());
        }
        match self.poll_start(cx) {
            Poll::Ready(item) => next(item),
            Poll::Pending => ControlFlow::Break(Poll::Pending),
        }
    }

    /// Polls for a reply while the run stays open. Returns the event of a call that is suspended.
    fn poll_live(&mut self, cx: &mut task::Context<'_>) -> Option<Item> {
        match Pin::new(self.live.as_mut()?).poll_next(cx) {
            Poll::Ready(Some(Replied::Enter(entry))) => {
                self.asking.retain(|(index, _)| *index != entry.index);
                self.waiting.push_back(*entry);
            }
            Poll::Ready(Some(Replied::Suspend(at, on))) => {
                self.asking.retain(|(index, _)| *index != at);
                return Some(Ok(RoundEvent::suspended(at, on, SuspendedBy::Gate)));
            }
            Poll::Ready(None) => self.live = None,
            Poll::Pending => {}
        }
        None
    }

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
                    && running < self.tools().parallel_calls()
                    && !self.waiting.front().is_some_and(|e| self.is_exclusive(e))
            }
        }
    }

    fn is_exclusive(&self, entry: &Entry) -> bool {
        !matches!(entry.clearance, Clearance::Settled(_))
            && self
                .tools()
                .find(&entry.call.call.name)
                .is_some_and(Tool::is_exclusive)
    }

    fn tools(&self) -> &Toolset {
        &self.pipeline.toolset
    }

    /// Starts the next call once the stack is ready. Returns the event of the call if the stack
    /// failed before the call was made.
    fn poll_start(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Item>> {
        let stack = ready!(self.poll_stack(cx));
        let Some(entry) = self.waiting.pop_front() else {
            return Poll::Ready(None);
        };
        let mut started = self.request(entry, &stack);
        let request = started.call.clone();
        let made = stack.and_then(|mut stack| {
            let future = catch(|| stack.call(request)).map_err(Failure::Panic)?;
            self.stack = Some(stack);
            Ok(future)
        });
        match made {
            Ok(future) => {
                let more = !self.alone && !self.is_last();
                self.running.push(Running::new(started, future), more);
            }
            Err(Failure::Error(error)) => return Poll::Ready(self.settle(started, Err(error))),
            Err(Failure::Panic(panic)) => {
                let outcome = started.panicked(&panic);
                return Poll::Ready(self.settle(started, Ok(outcome)));
            }
        }
        self.return_last_stack();
        Poll::Ready(None)
    }

    /// Returns the stack to the toolset if no other call can start later.
    fn return_last_stack(&mut self) {
        if self.is_last()
            && let Some(stack) = self.stack.take()
        {
            self.tools().put_back(stack, &self.pipeline.context);
        }
    }

    /// Takes the stack once it is ready for a call.
    fn poll_stack(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Stack, Failure>> {
        let stack = self.stack.take();
        let taken = stack.map_or_else(
            || catch(|| self.tools().take_stack(&self.pipeline.context)),
            Ok,
        );
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

    /// The request of a call that enters the stack.
    fn request(&mut self, entry: Entry, stack: &Result<Stack, Failure>) -> Started {
        let Entry {
            index,
            mut call,
            clearance,
        } = entry;
        // Layers receive the spec of the tool in this toolset.
        let tool = self.pipeline.find(&mut call);
        let has_layers =
            matches!(stack, Ok(Stack::Layered(_))) || tool.is_some_and(Tool::has_layers);
        // A layer may have effects of its own.
        if has_layers && !tool.is_some_and(|tool| tool.spec().annotations.read_only) {
            self.pipeline.context.count_effect();
        }
        let can_repeat = tool.is_none_or(Tool::may_run_again);
        self.alone = tool.is_some_and(Tool::is_exclusive);
        let mut call = self.pipeline.request(call, clearance);
        call = call.sealed(self.tools().seal());
        if has_layers {
            call = call.with_attempts(Attempts::new());
        }
        let mut started = Started::new(index, call);
        started.can_repeat = can_repeat;
        started
    }

    /// Whether the next call already has an outcome.
    fn next_is_settled(&self) -> bool {
        let next = self.waiting.front();
        next.is_some_and(|next| matches!(next.clearance, Clearance::Settled(_)))
    }

    /// Settles the next call, which already has an outcome and skips the layers. Returns `None` if
    /// hooks observe it first.
    fn settle_next(&mut self) -> Option<Item> {
        let entry = self.waiting.pop_front()?;
        let (started, outcome) = self.enter_settled(entry);
        self.return_last_stack();
        match self.observe(&started) {
            Some(observation) => {
                let observed = StackFuture::Observed(observation, Some(outcome));
                let more = !self.is_last();
                self.running.push(Running::new(started, observed), more);
                None
            }
            None => self.settle(started, Ok(outcome)),
        }
    }

    fn enter_settled(&self, entry: Entry) -> (Started, ToolOutcome) {
        let Entry {
            index,
            mut call,
            clearance,
        } = entry;
        self.pipeline.find(&mut call);
        let mut outcome = match &clearance {
            Clearance::Settled(outcome) => ToolOutcome::clone(outcome),
            _ => ToolOutcome::cancelled("The call was not run."),
        };
        if let Some(Refusal::NotOffered(_)) = call.refusal()
            && let Some(hint) = self
                .tools()
                .hint_about(|| self.pipeline.view(&call, clearance.clone()))
        {
            outcome.content = hint.into();
        }
        let clearance = Clearance::Settled(Arc::new(outcome.clone()));
        let mut started = Started::new(index, self.pipeline.request(call, clearance));
        started.is_recovered = true;
        (started, outcome)
    }

    fn observe(&self, started: &Started) -> Option<Observation> {
        let call = || started.call.clone();
        self.tools().observe(&self.pipeline.context, call)
    }

    /// Settles the next call, which will not start. Its hooks are called, but not awaited.
    fn give_next_up(&mut self, cx: &mut task::Context<'_>) -> Option<Item> {
        let mut entry = self.waiting.pop_front()?;
        entry.give_up();
        let (started, outcome) = self.enter_settled(entry);
        if let Some(observation) = self.observe(&started) {
            let mut observation = Caught::new(observation);
            let _ = Pin::new(&mut observation).poll(cx);
        }
        self.settle(started, Ok(outcome))
    }

    /// Stops waiting for replies.
    fn stop_asking(&mut self) {
        self.live = None;
        let asking = self.asking.drain(..).map(|(index, call)| Entry {
            index,
            call,
            clearance: Clearance::Ungated,
        });
        self.waiting.extend(asking);
    }

    /// Returns the event of a call that ended; `None` if it was abandoned and its outcome is being
    /// recovered.
    fn settle(&mut self, mut started: Started, result: Result<ToolOutcome, Error>) -> Option<Item> {
        self.alone = false;
        let outcome = match classify(result, &started, self.tools()) {
            End::Settled(outcome) => outcome,
            End::Abandoned(outcome) => {
                if let Some(recovering) = self.find_outcome(&started, &outcome) {
                    started.is_recovered = true;
                    self.running.push(Running::new(started, recovering), true);
                    return None;
                }
                outcome
            }
            End::Suspended(on, by) => {
                self.record(&started, TraceStep::Suspended);
                let tool = self.tools().find(started.call.name());
                let (rules, context) = (self.pipeline.rules(), &self.pipeline.context);
                let on = suspend_started(rules, context, tool, &started, on, by);
                return Some(Ok(RoundEvent::suspended(started.index, on, by)));
            }
            End::Fatal(error) => {
                self.waiting.clear();
                self.live = None;
                self.stack = None;
                self.running = RunningSet::None;
                return Some(Err(error));
            }
        };
        self.record(&started, TraceStep::Settled(outcome.status));
        self.stopped |= outcome.halt.is_some();
        Some(Ok(RoundEvent::settled(started.index, outcome)))
    }

    fn record(&self, started: &Started, step: TraceStep) {
        let call = &started.call;
        let context = &self.pipeline.context;
        self.pipeline.rules().record(context, || {
            TraceEntry::new(context, step)
                .for_call(call.id().clone(), call.name().clone())
                .with_delivery(call.delivery())
        });
    }

    /// Recovers the outcome of an abandoned call, as after a crash; `None` if neither the ledger
    /// nor the tool nor an interrupt can provide it.
    fn find_outcome(&self, started: &Started, unknown: &ToolOutcome) -> Option<StackFuture> {
        let tool = self.tools().find(started.call.name())?;
        let rules = self.tools().rules();
        let is_over =
            self.stopped || unknown.halt.is_some() || self.pipeline.context.is_cancelled();
        if is_over || (rules.ledger.is_none() && !tool.has_reconcile()) {
            return None;
        }
        let call = started.call.clone();
        let found = find_outcome(Arc::clone(rules), tool.clone(), call, unknown.clone());
        Some(StackFuture::Recovered(Box::pin(found)))
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
