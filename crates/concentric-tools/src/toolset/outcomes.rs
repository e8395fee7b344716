use super::{
    Toolset,
    running::{Ended, Running, RunningSet, Started},
    stack::Stack,
};
use crate::{
    is_fatal,
    lifecycle::{
        Entry, Gated, LiveCall, ProtocolEntry, ProtocolStep, Replied, gate_round, is_recovered,
        suspend_tool, unknown_at_best,
    },
};
use concentric_core::{
    Context, Error, ErrorKind, Permit, Phase, RoundCall, RoundEvent, ToolCall, ToolOutcome,
    ToolRound, ToolStatus, Transcript,
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
            of.waiting = calls.map(|(index, call)| enter(index, call)).collect();
        }
        outcomes
    }
}

/// A call that nobody has to decide about.
fn enter(index: usize, call: concentric_core::RoundCall) -> Entry {
    let permit = match &call.refusal {
        Some(refusal) => Permit::Settled(Arc::new(refusal.outcome(&call.call))),
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
                return Poll::Ready(Some(round.ended(ended)));
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
            if let Err(item) = ready!(round.poll_start(cx)) {
                return Poll::Ready(item);
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
            Err(ended) => return Poll::Ready(Err(Some(self.ended(*ended)))),
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
        let mut stack = stack.unwrap_or_else(|| self.toolset.take_stack(&self.context));
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
        // What a layer is told of is the tool that is here.
        if let Some(tool) = self.toolset.find(&call.call.name) {
            call.spec = Some(tool.spec().clone());
        }
        let started = Started {
            index,
            call: call.call.clone(),
            origin: call.origin(),
            permit: permit.clone(),
            in_doubt: is_recovered(&call),
        };
        let request = ToolCall::of_round(call, permit, self.transcript.clone(), &self.context)
            .sealed(self.toolset.seal());
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

    /// Settles the next call, which does not run any more. Its layers are told, if they are ready,
    /// and are not waited for.
    fn give_next_up(&mut self, cx: &mut task::Context<'_>) -> Option<Result<RoundEvent, Error>> {
        let mut entry = self.waiting.pop_front()?;
        let index = entry.index;
        let outcome = entry.give_up();
        if let Poll::Ready(stack) = self.poll_stack(cx)
            && let Ok(mut running) = self.start(entry, stack)
            && let Poll::Ready(ended @ (_, Ok(_))) = Pin::new(&mut running).poll(cx)
        {
            return Some(self.ended(ended));
        }
        Some(Ok(RoundEvent::settled(
            index,
            Arc::unwrap_or_clone(outcome),
        )))
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

    /// What there is to be said of a call that ended.
    fn ended(&mut self, (started, result): Ended) -> Result<RoundEvent, Error> {
        self.alone = false;
        let outcome = match result {
            // It was not run, and may have been before.
            Ok(outcome)
                if started.in_doubt
                    && matches!(outcome.status, ToolStatus::Denied | ToolStatus::Cancelled) =>
            {
                unknown_at_best(outcome)
            }
            Ok(outcome) => outcome,
            Err(error) if error.kind() == ErrorKind::Halted => {
                let outcome = started.settled().cloned();
                outcome
                    .unwrap_or_else(|| ToolOutcome::failed(error.message()))
                    .and_halt(error.message())
            }
            Err(error) if started.settled().is_some() && !is_fatal(&error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "a layer on a settled call failed"
                );
                let settled = started.settled().cloned();
                settled.unwrap_or_else(|| ToolOutcome::failed(error.message()))
            }
            Err(error) => match error.pending() {
                Some(pending) => {
                    self.record(&started, ProtocolStep::Suspended);
                    let tool = self.toolset.find(&started.call.name);
                    let arguments = &started.call.arguments;
                    let rules = self.toolset.rules();
                    let pending = suspend_tool(
                        rules,
                        &self.context,
                        tool,
                        arguments,
                        &started.permit,
                        pending,
                    );
                    return Ok(RoundEvent::waiting(started.index, pending));
                }
                None if self.toolset.inner.errors_are_fatal || is_fatal(&error) => {
                    self.waiting.clear();
                    self.live = None;
                    self.stack = None;
                    self.running = RunningSet::None;
                    return Err(match error.phase() {
                        Some(_) => error,
                        None => error.with_phase(Phase::Call),
                    });
                }
                None => {
                    tracing::debug!(error = format!("{error:#}"), "a layer on a tool failed");
                    ToolOutcome::failed(error.message())
                }
            },
        };
        self.record(&started, ProtocolStep::Settled(outcome.status));
        self.stopped |= outcome.halt.is_some();
        Ok(RoundEvent::settled(started.index, outcome))
    }

    fn record(&self, started: &Started, step: ProtocolStep) {
        self.toolset.record(|| ProtocolEntry {
            call_id: started.call.id.clone(),
            tool: started.call.name.clone(),
            origin: started.origin,
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
