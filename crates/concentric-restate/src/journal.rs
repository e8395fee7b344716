//! The journal of a run: a channel to the handler, which alone may use Restate's context.

use concentric_core::{
    Error, ErrorKind, Str,
    durable::{Journal, Recorded, RecordedError, StepName, StepWork},
    service::BoxFuture,
};
use serde::{Deserialize, Serialize};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};
use tokio::sync::{mpsc, oneshot};

/// The first record of an invocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The attempt that made the record.
    pub(crate) by: u64,
    /// When it was made, in milliseconds since 1970.
    pub(crate) at: u64,
    /// The version of the code.
    pub(crate) version: Str,
    pub(crate) seed: [u8; 16],
}

/// The record of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) by: u64,
    pub(crate) at: u64,
    pub(crate) result: EntryResult,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EntryResult {
    Done(Recorded),
    /// The step failed outside of its work: it passed its time limit, or its record is too large.
    Failed(RecordedError),
    /// The run was cancelled.
    Cancelled,
    /// The run did not wait for the step any more, which may have recorded what the run has seen of it.
    Left(Option<Recorded>),
}

pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// A step that the run requests.
pub(crate) struct Step {
    pub(crate) name: StepName,
    pub(crate) work: StepWork,
    pub(crate) reply: oneshot::Sender<Result<Recorded, Error>>,
    /// Resolves when the run does not wait any more.
    pub(crate) left: oneshot::Receiver<()>,
}

/// The run's end of the channel.
pub(crate) struct Steps(mpsc::UnboundedSender<Step>);

impl Steps {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Step>) {
        let (send, steps) = mpsc::unbounded_channel();
        (Self(send), steps)
    }
}

impl Journal for Steps {
    fn step(&self, name: StepName, work: StepWork) -> BoxFuture<Recorded> {
        let ((reply, result), (leave, left)) = (oneshot::channel(), oneshot::channel());
        let step = Step {
            name,
            work,
            reply,
            left,
        };
        // If the handler is gone, so is `reply`.
        let _ = self.0.send(step);
        Box::pin(Wait {
            result,
            _leave: leave,
        })
    }
}

struct Wait {
    result: oneshot::Receiver<Result<Recorded, Error>>,
    // Dropped with the future.
    _leave: oneshot::Sender<()>,
}

impl Future for Wait {
    type Output = Result<Recorded, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.result).poll(cx);
        result.map(|result| result.unwrap_or_else(|_| Err(gone())))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the invocation of the run has ended")
}
