use super::stack::StackFuture;
use crate::panic::{self, Caught};
use concentric_core::{Attempts, Error, Permit, RoundCall, ToolOutcome, ToolStatus, method::Panic};
use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// One call that runs, and which of its round.
pub(super) struct Running {
    // Taken when it ends.
    started: Option<Started>,
    future: Caught<StackFuture>,
}

/// A call that entered the stack.
pub(super) struct Started {
    pub(super) index: usize,
    pub(super) call: RoundCall,
    /// What it may run with.
    pub(super) permit: Permit,
    /// The attempts at it, if layers may drop one.
    pub(super) attempts: Option<Attempts>,
    /// Its outcome was looked for after it had been given up.
    pub(super) is_recovered: bool,
    /// A layer panicked, so what the tool returned to it is lost.
    pub(super) has_panicked: bool,
}

impl Started {
    /// Its outcome, if a layer panicked.
    pub(super) fn panicked(&mut self, panic: &Panic) -> ToolOutcome {
        self.has_panicked = true;
        match &self.permit {
            Permit::Settled(outcome) => ToolOutcome::clone(outcome),
            _ => panic::outcome(panic, &self.call.call.name),
        }
    }

    /// Whether the tool may have executed the call, whatever the layers return: an attempt was
    /// dropped, or `result` is an error, or a layer's panic, although one was done.
    pub(super) fn may_have_executed(&self, result: &Result<ToolOutcome, Error>) -> bool {
        let attempts = self.attempts.as_ref();
        match result {
            Ok(outcome) => match outcome.status {
                ToolStatus::Unknown => true,
                ToolStatus::Done => false,
                _ => attempts.is_some_and(|it| it.is_open() || self.has_panicked && it.is_done()),
            },
            Err(_) => attempts.is_some_and(|it| it.is_open() || it.is_done()),
        }
    }
}

/// What came of one call.
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
            // Polled after it ended.
            None => Poll::Pending,
        }
    }
}

/// The calls of a round that run.
#[allow(
    clippy::large_enum_variant,
    reason = "a round has one of it, and a box for `One` would be an allocation for most rounds"
)]
pub(super) enum RunningSet {
    None,
    /// One, which needs no list: most rounds are one call.
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

    /// Adds a call; `more` says whether others may come beside it.
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

    /// The next call that ends; pending, too, if none runs.
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
