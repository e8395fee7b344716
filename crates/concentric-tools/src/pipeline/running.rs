use crate::{panic::Caught, toolset::StackFuture};
use concentric_core::{Error, ToolCall, ToolOutcome, ToolStatus, panic::CaughtPanic};
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// A running call of a round.
pub(super) struct Running {
    // Taken when the call ends.
    started: Option<Started>,
    future: Caught<StackFuture>,
}

/// A call that entered the stack.
pub(super) struct Started {
    pub(super) index: usize,
    /// The call as it entered the stack, with the attempts at it if layers may drop one.
    pub(super) call: ToolCall,
    /// Whether repeating the call is harmless.
    pub(super) can_repeat: bool,
    /// Whether the outcome needs no recovery: it was recovered, or the call did not run.
    pub(super) is_recovered: bool,
    /// Whether a layer panicked, so that the tool's outcome is lost.
    pub(super) has_panicked: bool,
}

impl Started {
    pub(super) const fn new(index: usize, call: ToolCall) -> Self {
        Self {
            index,
            call,
            can_repeat: true,
            is_recovered: false,
            has_panicked: false,
        }
    }

    /// Records that a layer panicked, and returns the outcome.
    pub(super) fn panicked(&mut self, panic: &CaughtPanic) -> ToolOutcome {
        self.has_panicked = true;
        match self.call.settled() {
            Some(outcome) => outcome.clone(),
            None => panic.outcome(self.call.name()),
        }
    }

    /// Whether an earlier process started the call and ended.
    pub(super) fn was_lost(&self) -> bool {
        self.call.is_recovered() && !self.call.state().read_only
    }

    /// Whether the tool may have executed the call although `result` is not its outcome, so that the
    /// call must not be repeated: an attempt was dropped, or one ended but `result` is an error or a
    /// layer panicked.
    pub(super) fn is_abandoned(&self, result: &Result<ToolOutcome, Error>) -> bool {
        let attempts = self.call.attempts();
        let may_have_executed = match result {
            Ok(outcome) => match outcome.status {
                ToolStatus::Unknown => true,
                ToolStatus::Done => false,
                _ => attempts.is_some_and(|it| it.is_open() || self.has_panicked && it.is_done()),
            },
            Err(_) => attempts.is_some_and(|it| it.is_open() || it.is_done()),
        };
        !self.is_recovered && !self.can_repeat && may_have_executed
    }
}

/// A call that ended, and its result.
pub(super) type Ended = (Started, Result<ToolOutcome, Error>);

impl Running {
    pub(super) const fn new(started: Started, future: StackFuture) -> Self {
        Self {
            started: Some(started),
            future: Caught::new(future),
        }
    }
}

impl Future for Running {
    type Output = Ended;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let Poll::Ready(ended) = Pin::new(&mut self.future).poll(cx) else {
            return Poll::Pending;
        };
        match self.started.take() {
            Some(mut started) => {
                let ended = ended.unwrap_or_else(|panic| Ok(started.panicked(&panic)));
                Poll::Ready((started, ended))
            }
            // Polled after completion.
            None => Poll::Pending,
        }
    }
}

/// The running calls of a round.
#[allow(
    clippy::large_enum_variant,
    reason = "a round has one of it, and a box for `One` would be an allocation for most rounds"
)]
pub(super) enum RunningSet {
    None,
    /// A single call, which needs no list: most rounds have one.
    One(Running),
    Many(FuturesUnordered<Running>),
}

impl RunningSet {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }

    /// Adds a call; `more` is whether further calls may run concurrently.
    pub(super) fn push(&mut self, call: Running, more: bool) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None if !more => Self::One(call),
            Self::None => Self::Many(FuturesUnordered::from_iter([call])),
            Self::One(other) => Self::Many(FuturesUnordered::from_iter([other, call])),
            Self::Many(many) => {
                many.push(call);
                Self::Many(many)
            }
        };
    }

    /// Polls for the next call that ends; pending if none runs.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let ended = match self {
            Self::None => return Poll::Pending,
            Self::One(call) => Pin::new(call).poll(cx).map(Some),
            Self::Many(many) => Pin::new(many).poll_next(cx),
        };
        match ended {
            Poll::Ready(Some(ended)) => {
                if let Self::One(_) = self {
                    *self = Self::None;
                }
                Poll::Ready(ended)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
