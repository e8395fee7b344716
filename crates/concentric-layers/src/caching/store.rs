//! A store that processes share, behind the cache of the process.

use super::Owner;
use concentric_core::{
    Environment, Error, Str, ThreadId,
    digest::Digest,
    panic::caught,
    store::{CacheKey, CacheStore, StoreError, Tenant},
};
use std::{
    fmt::Display,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{runtime::Handle, sync::Semaphore};

/// The version of stored values. A release that reads them in another way has another one.
const VERSION: u8 = 1;

/// The maximum number of writes of a layer in progress, each of which holds a value.
const MAX_WRITES: usize = 64;

/// The time after which a write is given up.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// A store of the results of a layer.
pub(crate) struct SharedStore {
    store: Arc<dyn CacheStore>,
    space: Str,
    writes: Arc<Semaphore>,
}

impl SharedStore {
    pub(crate) fn new(store: impl CacheStore, space: Str) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            space,
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
        })
    }

    /// The key of the result with this digest.
    pub(crate) fn key(&self, owner: &Owner, digest: &Digest) -> CacheKey {
        let (kind, tenant, thread, run) = match owner {
            Owner::Run(tenant, thread, run) => {
                let kind = if thread.is_some() { "run" } else { "run alone" };
                (kind, tenant.clone(), thread.clone(), run.as_str())
            }
            Owner::Thread(tenant, thread) => ("thread", tenant.clone(), Some(thread.clone()), ""),
            Owner::Tenant(tenant) => ("tenant", tenant.clone(), None, ""),
            Owner::Shared => ("shared", Tenant::default(), None, ""),
        };
        let parts = [kind.as_bytes(), run.as_bytes(), digest.as_bytes()];
        let digest = Digest::of_fields("concentric/cache-key/1", &parts);
        CacheKey::new(tenant, thread, self.space.clone(), *digest.as_bytes())
    }

    /// Returns what `read` makes of the value with this key, and the age of the value. One that is not what a
    /// layer has written, or of which `read` makes nothing, is a miss.
    ///
    /// # Errors
    ///
    /// The store failed, or did not respond within `wait`.
    pub(crate) async fn get<T>(
        &self,
        key: CacheKey,
        wait: Duration,
        environment: &Environment,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<(T, Duration)>, Error> {
        let get = || self.store.get_entry(key.clone());
        let Some(entry) = within(wait, environment, get).await? else {
            return Ok(None);
        };
        let value = unsealed(&key, &entry.value).and_then(read);
        if value.is_none() {
            tracing::warn!(target: "concentric::cache", "a stored result cannot be used, and is made again");
        }
        Ok(value.map(|value| (value, entry.age)))
    }

    /// Writes a result in a task of its own, so that the run does not wait for it. It is not written if too many
    /// writes are in progress.
    pub(crate) fn put(
        self: &Arc<Self>,
        key: CacheKey,
        keep: Duration,
        environment: &Environment,
        value: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) {
        if keep.is_zero() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() else {
            return not_written("too many writes are in progress");
        };
        let Ok(runtime) = Handle::try_current() else {
            return not_written("there is no runtime");
        };
        let (store, environment) = (Arc::clone(&self.store), environment.clone());
        runtime.spawn(async move {
            let _permit = permit;
            let Some(value) = value() else {
                return not_written("it is not serializable");
            };
            let value = sealed(&key, &value);
            let put = || store.put_entry(key, value, keep);
            if let Err(error) = within(WRITTEN_WITHIN, &environment, put).await {
                not_written(error.code());
            }
        });
    }
}

fn not_written(code: impl Display) {
    tracing::warn!(target: "concentric::cache", %code, "a result was not written to the store");
}

/// Calls a method of the store, for at most `limit`.
async fn within<T, F>(
    limit: Duration,
    environment: &Environment,
    method: impl FnOnce() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut limit_passed = environment.clock().sleep(limit);
    let mut done = pin!(caught(method));
    poll_fn(|cx| match done.as_mut().poll(cx) {
        Poll::Ready(Ok(result)) => Poll::Ready(result),
        Poll::Ready(Err(panic)) => Poll::Ready(Err(StoreError::failed(panic.error()))),
        Poll::Pending => limit_passed.as_mut().poll(cx).map(|()| {
            let late = format!("the store did not respond within {limit:?}");
            Err(StoreError::failed(late))
        }),
    })
    .await
}

/// The checksum of a value, and of the key for which it was written.
fn checksum(key: &CacheKey, value: &[u8]) -> Digest {
    let thread = key.thread.as_ref().map_or("", ThreadId::as_str);
    let names = [key.tenant.0.as_str(), thread, key.space.as_str()];
    let [tenant, thread, space] = names.map(str::as_bytes);
    let parts = [tenant, thread, space, &key.digest, value];
    Digest::of_fields("concentric/cached/1", &parts)
}

fn sealed(key: &CacheKey, value: &[u8]) -> Vec<u8> {
    let sum = checksum(key, value);
    [&[VERSION], sum.as_bytes().as_slice(), value].concat()
}

/// The value that was sealed; `None` if it has another version, or was changed.
fn unsealed<'a>(key: &CacheKey, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (&version, rest) = sealed.split_first()?;
    let (sum, value) = rest.split_at_checked(size_of::<[u8; 32]>())?;
    let is_same = version == VERSION && checksum(key, value).as_bytes().as_slice() == sum;
    is_same.then_some(value)
}
