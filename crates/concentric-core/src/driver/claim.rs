//! The claim of a driver on its run.

use crate::context::{Context, Release};
use concentric_proto::Event;

/// Marks a run as driven until it has its outcome or is dropped, and takes its emitted events.
pub(super) struct Claim {
    context: Option<Context>,
    // How the run is released if it is dropped now.
    release: Release,
    // The number of emitted events that precede the start of the first step.
    before_step: Option<usize>,
}

impl Claim {
    pub(super) fn new(context: Context) -> Self {
        context.claim();
        Self {
            context: Some(context),
            release: Release::Attempt,
            before_step: None,
        }
    }

    /// Records that a step starts now. The first one is yielded later, by the body, and precedes the
    /// events that its model call emits.
    pub(super) fn step_started(&mut self) {
        if let (Release::Attempt, Some(context)) = (self.release, &self.context)
            && context.outbox().is_filled()
        {
            self.before_step = Some(context.outbox().len());
        }
    }

    /// Takes the next emitted event, if it precedes the next action of the machine.
    pub(super) fn emitted(&mut self) -> Option<Event> {
        let outbox = self.context.as_ref()?.outbox();
        if !outbox.is_filled() {
            return None;
        }
        let before = self.before_step.take();
        self.before_step = before.and_then(|before| before.checked_sub(1));
        match before {
            Some(0) => None,
            _ => outbox.pop(),
        }
    }

    /// Marks the run as committed: from now on its outcome is reported by the body.
    pub(super) const fn commit(&mut self) {
        self.release = Release::Dropped;
    }

    /// Releases the run after its outcome.
    pub(super) fn end(&mut self) {
        self.release = Release::Outcome;
        self.release();
    }

    fn release(&mut self) {
        if let Some(context) = self.context.take() {
            context.release(self.release);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
