//! The claim of a driver on its run.

use crate::context::{Context, Release};

/// Marks a run as driven until it has its outcome or is dropped.
pub(super) struct Claim {
    context: Option<Context>,
    // How the run is released if it is dropped now.
    release: Release,
}

impl Claim {
    pub(super) fn new(context: Context) -> Self {
        context.claim();
        Self {
            context: Some(context),
            release: Release::Attempt,
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
