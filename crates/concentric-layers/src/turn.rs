//! What the layers that store runs and turns know of each other.

use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Outcome, Str,
    machine::RunState,
    store::{RunClaim, StoreFuture},
};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The reason for the cancellation of a run whose lease is lost: another process continues it.
pub(crate) const LEASE_LOST: Str = Str::from_static("lease lost");

/// The outcome of a run that has failed with `error`, or was dropped.
pub(crate) fn failed(context: &Context, error: Option<&Error>) -> Result<Outcome, ErrorKind> {
    let cancelled = context.cancel_reason();
    match error.map(Error::kind) {
        Some(ErrorKind::Cancelled) if let Some(reason) = cancelled => {
            Ok(Outcome::Aborted { reason })
        }
        Some(kind) => Err(kind),
        None => Ok(Outcome::Aborted {
            reason: cancelled.unwrap_or(CancelReason::Disconnected),
        }),
    }
}

/// An extension of the context of a run that a layer stores.
#[derive(Clone, Default)]
pub(crate) struct TurnOfRun(Arc<Flags>);

#[derive(Default)]
struct Flags {
    is_refused: AtomicBool,
    is_unstored: AtomicBool,
    begin: OnceLock<Begin>,
    pending: OnceLock<Pending>,
}

/// Stores a run, unless it is stored.
type Begin = Box<dyn Fn(RunState) -> StoreFuture<RunClaim> + Send + Sync>;

/// The claim of a run that is stored, or is being stored; `None` if neither.
type Pending = Box<dyn Fn() -> Option<StoreFuture<Option<RunClaim>>> + Send + Sync>;

#[cfg(feature = "suspend")]
impl TurnOfRun {
    /// Reports that the store did not accept the run or its new state. Another process continues a run that
    /// is stored, and stores its turn.
    pub(crate) fn refuse(&self) {
        self.0.is_refused.store(true, Relaxed);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.0.is_refused.load(Relaxed)
    }

    /// Sets how the run is stored before a turn of it is. `begin` must not own this value.
    pub(crate) fn begin_with(
        &self,
        begin: impl Fn(RunState) -> StoreFuture<RunClaim> + Send + Sync + 'static,
    ) {
        let _ = self.0.begin.set(Box::new(begin));
    }

    /// Sets how to wait for a write that stores the run. `pending` must not own this value.
    pub(crate) fn pending_with(
        &self,
        pending: impl Fn() -> Option<StoreFuture<Option<RunClaim>>> + Send + Sync + 'static,
    ) {
        let _ = self.0.pending.set(Box::new(pending));
    }

    /// Whether the store failed to write the turn. The run must not end without it.
    pub(crate) fn is_unstored(&self) -> bool {
        self.0.is_unstored.load(Relaxed)
    }
}

#[cfg(feature = "conversation")]
impl TurnOfRun {
    pub(crate) fn report_unstored(context: &Context) {
        if let Some(Self(flags)) = context.extensions().get() {
            flags.is_unstored.store(true, Relaxed);
        }
    }

    /// Stores a run that waits in `state`, unless it is stored; `None` if no layer stores it.
    ///
    /// A turn without its run would remain if the process dies, and the client would send the message again.
    pub(crate) fn begin(context: &Context, state: RunState) -> Option<StoreFuture<RunClaim>> {
        let Self(flags) = context.extensions().get()?;
        flags.begin.get().map(|begin| begin(state))
    }

    /// The claim of a run that is stored, or is being stored; `None` if neither.
    ///
    /// A turn of a run that is stored later would stay without its end, and the run would be resumed.
    pub(crate) fn pending(context: &Context) -> Option<StoreFuture<Option<RunClaim>>> {
        let Self(flags) = context.extensions().get()?;
        flags.pending.get().and_then(|pending| pending())
    }

    /// Whether the run is not that of this process, so that it stores no turn.
    pub(crate) fn is_elsewhere(context: &Context) -> bool {
        let flags = context.extensions().get();
        let is_refused = flags.is_some_and(|Self(flags)| flags.is_refused.load(Relaxed));
        let lost = CancelReason::Other(LEASE_LOST);
        is_refused || context.cancel_reason() == Some(lost)
    }
}
