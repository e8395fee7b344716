//! Cancellation and deadline of a run.

use super::run::Run;
use crate::{context::Context, environment::Sleep};
use concentric_proto::{CancelReason, Error, Phase, Str, machine::Input};
use pin_project_lite::pin_project;
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
pub(super) enum Stop {
    Cancelled,
    Late,
}

pin_project! {
    /// Cancellation and deadline of a run. Boxed, since a run that never waits does not need it.
    pub(super) struct Stops {
        #[pin]
        cancelled: WaitForCancellationFutureOwned,
        late: Option<Sleep>,
    }
}

impl Stops {
    fn new(context: &Context) -> Self {
        Self {
            cancelled: context.cancelled_owned(),
            late: context
                .remaining()
                .map(|left| context.environment().clock().sleep(left)),
        }
    }

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Stop> {
        let this = self.project();
        if this.cancelled.poll(cx).is_ready() {
            return Poll::Ready(Stop::Cancelled);
        }
        match this.late {
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
        match self.context.is_cancelled() {
            true => Some(Stop::Cancelled),
            false => self.is_late(),
        }
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_late(&self) -> Option<Stop> {
        self.context.is_late().then_some(Stop::Late)
    }

    /// Resolves if the run must stop now; otherwise registers `cx` to be woken when it must.
    pub(super) fn poll_stop(&mut self, cx: &mut task::Context<'_>) -> Poll<Stop> {
        let context = &self.context;
        let stops = self
            .stops
            .get_or_insert_with(|| Box::pin(Stops::new(context)));
        if let Poll::Ready(stop) = stops.as_mut().poll(cx) {
            return Poll::Ready(stop);
        }
        self.poll_inner_states(cx);
        Poll::Pending
    }

    /// Stops the machine, whose work is in `phase`.
    pub(super) fn stop(&mut self, stop: Stop, phase: Phase) {
        if std::mem::take(&mut self.takes_back) {
            self.machine.input(Input::TakeBack);
        }
        let reason = self.context.cancel_reason();
        // Another loop of the run may have cancelled its tools at the deadline.
        let is_late = || reason == Some(LATE) && self.is_late().is_some();
        self.machine.input(match stop {
            Stop::Cancelled if !is_late() => Input::Cancel(reason.unwrap_or(CancelReason::User)),
            _ => Input::Failed(Error::deadline().with_phase(phase)),
        });
    }

    /// Cancels running tools with [`LATE`] when the deadline has passed.
    pub(super) fn cancel_tools(&self, stop: Stop) {
        if let (Stop::Late, true) = (stop, self.machine.has_running()) {
            self.context.cancel(LATE);
        }
    }
}
