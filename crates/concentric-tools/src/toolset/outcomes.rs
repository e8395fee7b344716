use super::{
    Toolset,
    running::{Ended, Running, RunningSet},
    stack::Stack,
};
use crate::{is_fatal, panic::catch};
use concentric_core::{
    Context, Error, Phase, RoundCall, Settled, Str, ToolCall, ToolOutcome, ToolRound,
};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{self, Poll, ready},
};
use tower_service::Service;

/// The outcomes of a round, each as it becomes known: the response of a [`Toolset`].
///
/// Calls start in order and while it is polled, in the task that polls it. No call starts after an
/// outcome that halts the run, or once the run is cancelled: those that are left are settled as
/// cancelled.
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
    /// The calls that have not started, and the index of the first of them.
    waiting: VecDeque<RoundCall>,
    next: usize,
    /// What the next call is made of; each call takes a readiness of its own.
    stack: Option<Stack>,
    running: RunningSet,
    /// The call that runs is not to have others beside it.
    alone: bool,
    /// No further call starts.
    stopped: bool,
}

impl Outcomes {
    pub(super) fn new(toolset: Toolset, round: ToolRound) -> Self {
        Self {
            round: Box::new(Round {
                toolset,
                context: round.context,
                waiting: round.calls.into(),
                next: 0,
                stack: None,
                running: RunningSet::None,
                alone: false,
                stopped: false,
            }),
        }
    }
}

impl Stream for Outcomes {
    type Item = Result<Settled, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let round = &mut *self.round;
        loop {
            // Before the next call starts, what runs is asked, so that a call that halts or cancels
            // the run when it is first polled is the last one.
            if let Poll::Ready(ended) = round.running.poll_ended(cx) {
                return Poll::Ready(Some(round.ended(ended)));
            }
            if round.waiting.is_empty() {
                return match round.running.len() {
                    0 => Poll::Ready(None),
                    _ => Poll::Pending,
                };
            }
            if round.stopped || round.context.is_cancelled() {
                return Poll::Ready(round.settle_next(ToolOutcome::cancelled(Str::from_static(
                    "The run was stopped before the call was started.",
                ))));
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
        let left = self.round.waiting.len() + self.round.running.len();
        // An error is the last item.
        (left.min(1), Some(left))
    }
}

impl Round {
    /// Whether the next call may run beside those that do.
    fn may_start(&self) -> bool {
        match self.running.len() {
            0 => true,
            running => {
                !self.alone
                    && running < self.toolset.inner.max_parallel
                    && !self
                        .waiting
                        .front()
                        .is_some_and(|call| self.is_exclusive(call))
            }
        }
    }

    fn is_exclusive(&self, call: &RoundCall) -> bool {
        let tool = self.toolset.built().table.get(&call.call.name);
        call.refusal.is_none() && tool.is_some_and(crate::Tool::is_exclusive)
    }

    /// Starts the next call, when the stack is ready for it.
    ///
    /// # Errors
    ///
    /// The stack failed before the call was made; this is what there is to be said of it.
    fn poll_start(
        &mut self,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), Option<Result<Settled, Error>>>> {
        let stack = self
            .stack
            .get_or_insert_with(|| self.toolset.built().take_stack());
        let failure = match catch(|| stack.poll_ready(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => None,
            Ok(Poll::Ready(Err(error))) => Some(Err(error)),
            Err(panic) => Some(Ok(panic.outcome(self.next_name()))),
        };
        let Some((index, round_call)) = self.take_next() else {
            return Poll::Ready(Err(None));
        };
        if let Some(failure) = failure {
            // A service that failed before it was called is of no more use.
            self.stack = None;
            return Poll::Ready(Err(Some(self.ended((index, failure)))));
        }

        let context = self.context.at_call(&round_call);
        let RoundCall { call, refusal, .. } = round_call;
        let tool = self.toolset.built().table.get(&call.name);
        self.alone = refusal.is_none() && tool.is_some_and(crate::Tool::is_exclusive);
        let name = call.name.clone();
        let mut request = ToolCall::new(call, context);
        request.spec = tool.map(|tool| tool.spec().clone());
        request.refusal = refusal;
        let Some(stack) = &mut self.stack else {
            return Poll::Ready(Err(None));
        };
        match catch(|| stack.call(request)) {
            Ok(future) => {
                let more = !self.alone && !self.waiting.is_empty();
                let call = Running::new(index, name, future);
                self.running.push(call, more);
            }
            Err(panic) => {
                self.stack = None;
                return Poll::Ready(Err(Some(self.ended((index, Ok(panic.outcome(&name)))))));
            }
        }
        if self.waiting.is_empty()
            && let Some(stack) = self.stack.take()
        {
            self.toolset.built().put_back(stack);
        }
        Poll::Ready(Ok(()))
    }

    fn next_name(&self) -> &str {
        self.waiting.front().map_or("", |call| &call.call.name)
    }

    fn take_next(&mut self) -> Option<(usize, RoundCall)> {
        let call = self.waiting.pop_front()?;
        let index = self.next;
        self.next += 1;
        Some((index, call))
    }

    /// Settles the next call without starting it.
    fn settle_next(&mut self, outcome: ToolOutcome) -> Option<Result<Settled, Error>> {
        let (index, _) = self.take_next()?;
        Some(Ok(Settled::new(index, outcome)))
    }

    /// What there is to be said of a call that ended.
    fn ended(&mut self, (index, result): Ended) -> Result<Settled, Error> {
        self.alone = false;
        match result {
            Ok(outcome) => {
                self.stopped |= outcome.halt.is_some();
                Ok(Settled::new(index, outcome))
            }
            Err(error) if self.toolset.inner.errors_are_fatal || is_fatal(&error) => {
                self.waiting.clear();
                self.stack = None;
                self.running = RunningSet::None;
                Err(match error.phase() {
                    Some(_) => error,
                    None => error.with_phase(Phase::Call),
                })
            }
            Err(error) => {
                tracing::debug!(%error, "a layer on a tool failed");
                Ok(Settled::new(index, ToolOutcome::failed(error.message())))
            }
        }
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
