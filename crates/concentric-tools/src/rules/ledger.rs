use crate::{fatal, panic::stored};
use concentric_core::{
    Context, Error, ToolOutcome,
    store::{EffectKey, Intent, Ledger, LedgerEntry, StoreError, StoreFuture},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

/// The ledger of a toolset.
#[derive(Clone)]
pub(crate) struct LedgerHandle(Arc<dyn Ledger>);

impl LedgerHandle {
    pub(crate) fn new(ledger: impl Ledger) -> Self {
        Self(Arc::new(ledger))
    }

    /// Creates the entry of a call before its effect, and returns the one that existed.
    pub(crate) async fn begin(
        &self,
        context: &Context,
        key: EffectKey,
        intent: Intent,
    ) -> Result<LedgerEntry, Error> {
        Begin::new(context, self, key, intent).await.map_err(failed)
    }

    /// Records the outcome of a call. If that fails, its entry stays started, and a run that resumes
    /// elsewhere requests the outcome.
    pub(crate) async fn finish(&self, key: EffectKey, outcome: ToolOutcome) {
        if let Err(error) = stored(|| self.0.finish(key, outcome)).await {
            tracing::error!(%error, "recording the outcome of a call in the ledger failed");
        }
    }

    /// Returns the ledger entry of `key`.
    pub(crate) async fn known(&self, key: EffectKey) -> Result<LedgerEntry, Error> {
        stored(|| self.0.known(key)).await.map_err(failed)
    }

    /// Records the outcome that an operator reported, and returns the recorded one.
    pub(crate) async fn resolve(&self, key: EffectKey, outcome: ToolOutcome) -> ToolOutcome {
        match self.settle(key, outcome.clone()).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, "recording the outcome of a call in the ledger failed");
                outcome
            }
        }
    }

    /// Records the outcome of a started call, and returns the recorded one: a slow process that was
    /// considered dead may have recorded its outcome first.
    pub(crate) async fn settle(
        &self,
        key: EffectKey,
        outcome: ToolOutcome,
    ) -> Result<ToolOutcome, Error> {
        stored(|| self.0.finish(key.clone(), outcome.clone()))
            .await
            .map_err(failed)?;
        Ok(match self.known(key).await? {
            LedgerEntry::Finished(first) => *first,
            // The ledger has lost the outcome.
            _ => outcome,
        })
    }
}

impl fmt::Debug for LedgerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerHandle").finish_non_exhaustive()
    }
}

/// The creation of a ledger entry before an effect.
///
/// If the future is dropped before it resolves, the call never starts, and the entry is retracted
/// after it was created.
struct Begin<'a> {
    context: &'a Context,
    ledger: &'a LedgerHandle,
    key: EffectKey,
    // Taken when the future resolves.
    record: Option<StoreFuture<LedgerEntry>>,
}

impl<'a> Begin<'a> {
    fn new(context: &'a Context, ledger: &'a LedgerHandle, key: EffectKey, intent: Intent) -> Self {
        let (store, name) = (Arc::clone(&ledger.0), key.clone());
        let record = async move { stored(|| store.begin(name, intent)).await };
        Self {
            context,
            ledger,
            key,
            record: Some(Box::pin(record)),
        }
    }
}

impl Future for Begin<'_> {
    type Output = Result<LedgerEntry, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let Some(record) = &mut self.record else {
            return Poll::Pending;
        };
        let recorded = ready!(record.as_mut().poll(cx));
        self.record = None;
        Poll::Ready(recorded)
    }
}

impl Drop for Begin<'_> {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else {
            return;
        };
        let (ledger, key) = (Arc::clone(&self.ledger.0), self.key.clone());
        self.context.defer(async move {
            // Another attempt may have created the entry.
            if let Ok(LedgerEntry::New) = record.await
                && let Err(error) = stored(|| ledger.retract(key)).await
            {
                tracing::warn!(%error, "retracting the ledger entry of a call that never started failed");
            }
        });
    }
}

/// A call without a ledger entry must not run.
fn failed(error: StoreError) -> Error {
    fatal(Error::from(error))
}
