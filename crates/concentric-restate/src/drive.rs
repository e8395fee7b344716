//! Drives a run within an invocation: polls the agent, and serves its steps with Restate's context.

use crate::{
    events::Publisher,
    journal::{Begin, Entry, EntryResult, Step, Steps, millis, time},
    live::LiveRun,
    shared::{Limits, Shared},
};
use concentric_core::{
    BoxModel, CancelReason, ChatRequest, Context as RunContext, Error, ErrorKind, Event, Finish,
    Str,
    durable::{
        JournalHandle, Recorded, RecordedError, ReplayEnvironment, StepAttempt, StepName, StepWork,
    },
    panic::catch,
};
use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use restate_sdk::{
    context::{RunFuture, RunRetryPolicy},
    endpoint::ContextInternal,
    errors::{HandlerError, HandlerResult, TerminalError},
    serde::Json,
};
use std::{
    error::Error as StdError,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::SystemTime,
};
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt;

/// The [code](Error::code) of a record or a state that exceeds its size limit.
pub const UNWRITABLE: &str = "unwritable";

/// Restate's limit of a journal entry, which the frame of a record shares.
const MAX_RECORD: usize = (32 << 20) - (64 << 10);

/// The end of a run in an invocation.
pub(crate) enum Ended {
    Finished(Box<Finish>),
    Failed {
        error: Error,
        /// Whether the run was cancelled meanwhile: the invocation does not see the cancellation again.
        was_cancelled: bool,
    },
}

/// The attempt at an invocation that drives a run.
pub(crate) struct Attempt<'a> {
    pub(crate) ctx: &'a ContextInternal,
    pub(crate) shared: &'a Shared,
    pub(crate) events: &'a Publisher,
    pub(crate) live: &'a LiveRun,
    /// The id of this attempt.
    pub(crate) me: u64,
    pub(crate) begin: &'a Begin,
    /// Whether the first step may have been executed by another invocation.
    pub(crate) is_repeated: bool,
    pub(crate) environment: &'a ReplayEnvironment,
}

impl Attempt<'_> {
    /// Drives the run of `request` until it has ended.
    ///
    /// # Errors
    ///
    /// The attempt must be repeated from the journal.
    pub(crate) async fn drive(
        &self,
        agent: BoxModel,
        mut request: ChatRequest,
    ) -> Result<Ended, HandlerError> {
        let (steps, requested) = Steps::new();
        request.context.provide(JournalHandle::new(steps));
        let context = request.context.clone();
        let answer = stream::once(agent.oneshot(request));
        let events = answer.map_ok(|answer| answer.body).try_flatten();
        let mut drive = Drive {
            attempt: self,
            context,
            requested,
            events: Some(events.boxed()),
            current: None,
            unanswered: Vec::new(),
            last_by: match self.is_repeated {
                true => None,
                false => Some(self.begin.by),
            },
            is_live: self.begin.by == self.me,
            was_cancelled: false,
            ended: None,
        };
        poll_fn(|cx| drive.poll(cx)).await
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<Event, Error>> + Send>>;

type Run<'a> = Pin<Box<dyn Future<Output = Result<Json<Entry>, TerminalError>> + Send + 'a>>;

struct Drive<'a> {
    attempt: &'a Attempt<'a>,
    context: RunContext,
    requested: mpsc::UnboundedReceiver<Step>,
    // `None` once the run has ended.
    events: Option<Events>,
    current: Option<Current<'a>>,
    // The run has stopped waiting for these steps, or will, as it did before.
    unanswered: Vec<oneshot::Sender<Result<Recorded, Error>>>,
    // The attempt that made the last record; `None` if that was another invocation.
    last_by: Option<u64>,
    // Whether events are published: not in a replay.
    is_live: bool,
    was_cancelled: bool,
    ended: Option<Result<Box<Finish>, Error>>,
}

struct Current<'a> {
    run: Run<'a>,
    reply: oneshot::Sender<Result<Recorded, Error>>,
    /// Whether the step is executed, and not replayed.
    is_executed: Arc<AtomicBool>,
}

impl<'a> Drive<'a> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Ended, HandlerError>> {
        // A future of Restate's context that has failed ends the handler when it is polled next, and must not be polled
        // before that: each is polled once per poll of the handler.
        let mut is_polled = false;
        loop {
            if let Some(current) = &mut self.current
                && !is_polled
            {
                is_polled = true;
                let result = current.run.as_mut().poll(cx);
                if !self.is_live && current.is_executed.load(Ordering::Acquire) {
                    // What the last attempt has published of this step is void.
                    self.is_live = true;
                    self.attempt.events.resume();
                    self.attempt.events.publish(Event::Reset);
                }
                if let Poll::Ready(result) = result {
                    self.reply(result)?;
                }
            }
            if self.current.is_none()
                && self.events.is_some()
                && let Poll::Ready(Some(step)) = self.requested.poll_recv(cx)
            {
                self.current = Some(self.begin(step));
                is_polled = false;
                continue;
            }
            let Some(events) = &mut self.events else {
                return match (&self.current, self.ended.take()) {
                    (None, Some(Ok(finish))) => Poll::Ready(Ok(Ended::Finished(finish))),
                    (None, Some(Err(error))) => {
                        let was_cancelled = self.was_cancelled;
                        Poll::Ready(Ok(Ended::Failed {
                            error,
                            was_cancelled,
                        }))
                    }
                    // The step that the run has left ends before the invocation.
                    (_, ended) => {
                        self.ended = ended;
                        Poll::Pending
                    }
                };
            };
            let item = ready!(events.as_mut().poll_next(cx));
            self.event(item);
        }
    }

    /// Takes the next item of the agent's body.
    fn event(&mut self, item: Option<Result<Event, Error>>) {
        let ended = match item {
            // Published by the handler, once it has kept what the next invocations need.
            Some(Ok(Event::Finish(finish))) => Ok(finish),
            Some(Ok(event)) => {
                if self.is_live {
                    self.attempt.events.publish(event);
                }
                return;
            }
            Some(Err(error)) => Err(error),
            None => Err(Error::truncated()),
        };
        self.ended = Some(ended);
        self.events = None;
    }

    /// Passes the result of the current step to the run.
    fn reply(&mut self, result: Result<Json<Entry>, TerminalError>) -> Result<(), HandlerError> {
        let Some(Current { reply, .. }) = self.current.take() else {
            return Ok(());
        };
        let Ok(Json(entry)) = result else {
            // Restate cancels the invocation.
            self.cancel(reply);
            return Ok(());
        };
        self.attempt.environment.advance(time(entry.at));
        self.last_by = Some(entry.by);
        let result = match entry.result {
            EntryResult::Done(recorded) => Ok(recorded),
            EntryResult::Failed(error) => Err(error.to_error()),
            EntryResult::Cancelled => {
                self.cancel(reply);
                return Ok(());
            }
            EntryResult::Left(seen) => {
                match seen {
                    // In a replay, the run leaves the step because of what it sees of it.
                    Some(seen) => drop(reply.send(Ok(seen))),
                    None => self.unanswered.push(reply),
                }
                return Ok(());
            }
        };
        // The journal has a result that the run did not wait for: it is driven again, with the result.
        reply.send(result).map_err(|_| HandlerError::from(Raced))
    }

    fn cancel(&mut self, reply: oneshot::Sender<Result<Recorded, Error>>) {
        self.was_cancelled = true;
        self.context.cancel(CancelReason::User);
        let _ = reply.send(Err(cancelled()));
    }

    fn begin(&self, step: Step) -> Current<'a> {
        let Step {
            name,
            work,
            reply,
            left,
        } = step;
        let attempt = self.attempt;
        let is_executed = Arc::new(AtomicBool::new(false));
        let executed = Execute {
            attempt: match self.last_by == Some(attempt.me) {
                true => StepAttempt::first(),
                false => StepAttempt::repeated(),
            },
            by: attempt.me,
            limits: attempt.shared.limits,
            deadline: time(attempt.begin.at) + attempt.shared.limits.deadline,
            live: attempt.live.clone(),
            is_executed: Arc::clone(&is_executed),
            name,
            context: self.context.clone(),
        };
        let run = attempt.ctx.run(move || executed.execute(work, left));
        // Retries are those of the stack, inside the step.
        let once = RunRetryPolicy::new().max_attempts(1);
        Current {
            run: Box::pin(run.name(name.to_string()).retry_policy(once)),
            reply,
            is_executed,
        }
    }
}

/// The execution of a step.
struct Execute {
    attempt: StepAttempt,
    by: u64,
    limits: Limits,
    deadline: SystemTime,
    live: LiveRun,
    is_executed: Arc<AtomicBool>,
    name: StepName,
    /// The context of the run.
    context: RunContext,
}

impl Execute {
    async fn execute(
        self,
        work: StepWork,
        left: oneshot::Receiver<()>,
    ) -> HandlerResult<Json<Entry>> {
        self.is_executed.store(true, Ordering::Release);
        let of_run = self.deadline.duration_since(SystemTime::now());
        let of_run = of_run.unwrap_or_default();
        if of_run.is_zero() {
            // A timer of no time is ready at its second poll, after the work has begun.
            let result = match self.live.cancelled().now_or_never() {
                Some(()) => EntryResult::Cancelled,
                None => EntryResult::Failed(RecordedError::new(&Error::deadline())),
            };
            return Ok(self.entry(result));
        }
        let attempt = self.attempt;
        let mut work = pin!(caught(move || work(attempt)));
        let result = tokio::select! {
            biased;
            () = self.live.cancelled() => EntryResult::Cancelled,
            _ = left => match self.name {
                // Its work may have cancelled the run, which a replay does not execute.
                _ if self.context.is_cancelled() => EntryResult::Cancelled,
                StepName::Model(_) => match work.as_mut().now_or_never() {
                    Some(EntryResult::Done(seen)) => EntryResult::Left(Some(seen)),
                    _ => EntryResult::Left(None),
                },
                _ => EntryResult::Left(None),
            },
            () = tokio::time::sleep(of_run.min(self.limits.step)) => {
                let error = match of_run <= self.limits.step {
                    true => Error::deadline(),
                    false => Error::new(ErrorKind::Timeout, "a step has passed its time limit"),
                };
                EntryResult::Failed(RecordedError::new(&error))
            }
            result = &mut work => result,
        };
        Ok(self.entry(result))
    }

    fn entry(&self, result: EntryResult) -> Json<Entry> {
        Json(Entry {
            by: self.by,
            at: millis(SystemTime::now()),
            result,
        })
    }
}

/// Executes the work of a step; a panic fails the step and not the process's connection to Restate.
async fn caught(
    work: impl FnOnce() -> Pin<Box<dyn Future<Output = Recorded> + Send>>,
) -> EntryResult {
    let failed = |error: &Error| EntryResult::Failed(RecordedError::new(error));
    let panicked = || failed(&Error::new(ErrorKind::Other, "a step of the run panicked"));
    let Ok(mut work) = catch(work) else {
        return panicked();
    };
    let recorded = poll_fn(|cx| match catch(|| work.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    match recorded.await {
        Ok(recorded) if recorded.size() <= MAX_RECORD => EntryResult::Done(recorded),
        Ok(recorded) => failed(&unwritable(
            "the record of a step",
            recorded.size(),
            MAX_RECORD,
        )),
        Err(panic) => {
            tracing::error!(parent: None, panic = panic.text(), "a step of a run panicked");
            panicked()
        }
    }
}

pub(crate) fn unwritable(what: &str, bytes: usize, limit: usize) -> Error {
    let why = format!("{what} has {bytes} bytes, more than {limit}");
    Error::new(ErrorKind::TooLarge, Str::from(why)).with_code(UNWRITABLE)
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was cancelled")
}

// The SDK writes the `Debug` of an error into the journal.
/// The reason to repeat an attempt: the run stopped waiting for a step at the moment it was recorded.
struct Raced;

impl fmt::Display for Raced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the run left a step while it was recorded; it is driven again from the journal",
        )
    }
}

impl fmt::Debug for Raced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Raced {}
