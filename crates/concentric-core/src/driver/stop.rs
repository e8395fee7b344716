//! Cancellation and deadline of a run.

use super::run::Run;
use crate::{context::Context, environment::Sleep};
use concentric_proto::{CancelReason, Str, machine::Input};
use std::{
    future::Future,
    pin::Pin,
    task::{self, Poll},
};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// The reason with which running tools are cancelled when the deadline passes.
const LATE: CancelReason = CancelReason::Other(Str::from_static("deadline"));

/// The reason why a driver stops its run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Cancelled,
    Late,
}

/// Cancellation and deadline of a run. Boxed, since a run that never waits does not need it.
pub(super) struct Stops {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    late: Option<Sleep>,
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

impl<M, R> Run<M, R> {
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

    /// Returns whether the deadline has passed.
    pub(super) fn is_late(&self) -> Option<Stop> {
        self.context().is_late().then_some(Stop::Late)
    }

    /// Resolves if the run must stop now; otherwise registers `cx` to be woken when it must.
    pub(crate) fn poll_stop(&mut self, cx: &mut task::Context<'_>) -> Poll<Stop> {
        let context = &self.request.context;
        let stops = self
            .stops
            .get_or_insert_with(|| Box::new(Stops::new(context)));
        if let Poll::Ready(stop) = stops.poll(cx) {
            return Poll::Ready(stop);
        }
        self.poll_inner_states(cx);
        Poll::Pending
    }

    /// Returns whether the run is cancelled, and stops the machine if it is.
    #[inline]
    pub(crate) fn check_cancelled(&mut self) -> bool {
        let cancelled = self.context().is_cancelled();
        if cancelled {
            self.stop(Stop::Cancelled);
        }
        cancelled
    }

    /// Stops the machine.
    pub(crate) fn stop(&mut self, stop: Stop) {
        if std::mem::take(&mut self.takes_back) {
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

    /// Cancels running tools with [`LATE`] when the deadline has passed.
    pub(super) fn cancel_tools(&self, stop: Stop) {
        if let (Stop::Late, true) = (stop, self.machine.has_running()) {
            self.context().cancel(LATE);
        }
    }
}
