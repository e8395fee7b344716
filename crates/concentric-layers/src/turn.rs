//! What the layers that store runs and turns know of each other.

#[cfg(feature = "conversation")]
use concentric_core::Context;
use concentric_core::Str;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The reason for the cancellation of a run whose lease is lost: another process continues it.
pub(crate) const LEASE_LOST: Str = Str::from_static("lease lost");

/// An extension of the context of a stored run: whether the store failed to write the turn of the run. The run
/// must not end without it.
#[derive(Clone, Default)]
pub(crate) struct UnstoredTurn(Arc<AtomicBool>);

impl UnstoredTurn {
    #[cfg(feature = "conversation")]
    pub(crate) fn report(context: &Context) {
        if let Some(Self(is_reported)) = context.extensions().get() {
            is_reported.store(true, Relaxed);
        }
    }

    #[cfg(feature = "suspend")]
    pub(crate) fn is_reported(&self) -> bool {
        self.0.load(Relaxed)
    }
}
