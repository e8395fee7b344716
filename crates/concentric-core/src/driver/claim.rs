//! The claim of a driver on its run.

use super::run::Run;
use crate::context::{Context, Release};
use concentric_proto::{CancelReason, Event, Outcome};

/// Marks a run as driven until it has its outcome or is dropped, and entitles its driver to the
/// events that are emitted into the run.
pub(super) struct Claim {
    // How the run is released if it is dropped now; `None` once it was released.
    release: Option<Release>,
    // The number of emitted events that precede the start of the first step.
    before_step: Option<u16>,
}

impl Claim {
    pub(super) fn new(context: &Context) -> Self {
        context.claim();
        Self {
            release: Some(Release::Attempt),
            before_step: None,
        }
    }
}

impl<M, R> Run<M, R> {
    /// Records that a step starts now. The first one is yielded later, by the body, and precedes the
    /// events that its model call emits.
    pub(super) fn mark_step(&mut self) {
        let outbox = self.context.outbox();
        if let Some(claim) = &mut self.claim
            && claim.release == Some(Release::Attempt)
            && outbox.is_filled()
        {
            claim.before_step = u16::try_from(outbox.len()).ok();
        }
    }

    /// Takes the next emitted event, if it precedes the next action of the machine. Only the
    /// outermost of nested loops yields emitted events.
    pub(super) fn emitted(&mut self) -> Option<Event> {
        let claim = self.claim.as_mut()?;
        let outbox = self.context.outbox();
        if !outbox.is_filled() {
            return None;
        }
        let before = claim.before_step.take();
        claim.before_step = before.and_then(|before| before.checked_sub(1));
        match before {
            Some(0) => None,
            _ => outbox.pop(),
        }
    }

    /// Marks the run as committed: from now on its outcome is reported by the body.
    pub(super) const fn commit(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.release = Some(Release::Dropped);
        }
    }

    /// Keeps the conversation of a run that ends without a finish, if a layer has requested it.
    pub(super) fn keep_closed_transcript(&self) {
        if self.claim.is_some() && self.context.keeps_closed_transcript() {
            self.context
                .set_closed_transcript(self.machine.transcript());
        }
    }

    /// Releases the run after its outcome.
    pub(super) fn end(&mut self) {
        self.stops = None;
        self.record_usage();
        if let Some(claim) = &mut self.claim
            && claim.release.take().is_some()
        {
            self.context.release(Release::Outcome);
        }
    }
}

impl<M, R> Drop for Run<M, R> {
    fn drop(&mut self) {
        let release = self.claim.as_ref().map(|claim| claim.release);
        if release != Some(None) {
            self.record_usage();
        }
        if let Some(Some(how)) = release {
            if how == Release::Dropped && self.context.keeps_closed_transcript() {
                let reason = CancelReason::Disconnected;
                self.machine.finish_with(None, Outcome::Aborted { reason });
                self.keep_closed_transcript();
            }
            self.context.release(how);
        }
    }
}
