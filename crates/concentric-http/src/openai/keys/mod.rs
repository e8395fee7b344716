//! Virtual keys: keys of a gateway's callers, which no provider knows.

mod cache;
mod key;
mod service;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use concentric_core::{
    Environment, Error, ErrorKind, Str, ThreadId, Transcript,
    run_state::{SlotPlace, StoredSlot},
    store::{StoreError, StoredThread, Tenant, ThreadStore},
};
use serde::{Deserialize, Serialize};
use tower_layer::Layer;

use self::{cache::Cache, key::Presented};

pub use self::{key::NewKey, service::CheckKey};

/// The owner of the stored keys.
const OWNER: &str = "concentric:keys";

/// The slot with a key, and its version.
const SLOT: (&str, u32) = ("virtual_key", 1);

/// The number of keys that are read at once.
const PAGE: usize = 500;

/// The number of attempts to write a key that another process writes, too.
const ATTEMPTS: usize = 8;

/// The keys of a gateway's callers, and the layer that checks them.
///
/// A key is `sk-cc-{id}_{secret}`, with a secret of 32 random bytes. The store has the id and the SHA-256
/// digest of the secret, so the key is shown once, when it is created.
///
/// ```no_run
/// use axum::Router;
/// use concentric_core::{Error, store::Tenant};
/// use concentric_http::openai::{OpenAi, VirtualKeys};
/// use concentric_store::SqliteStore;
///
/// async fn app(api: OpenAi, store: SqliteStore) -> Result<Router, Error> {
///     let keys = VirtualKeys::new(store);
///     let key = keys.create(Tenant("ann".into()), "laptop").await?;
///     println!("{}", key.expose());
///     Ok(Router::new().nest_service("/v1", api).layer(keys))
/// }
/// # let _ = app;
/// ```
///
/// # The layer
///
/// A request with the key in the header `authorization`, as OpenAI's clients send it, gets the
/// [`Tenant`] and the [`VirtualKey`] of the key as extensions, and loses the header. Layers inside read the
/// [`VirtualKey`], for example to choose a budget.
///
/// | request | response |
/// |---|---|
/// | has no key, or one that does not exist, has another secret, is revoked or was replaced | `401`, `invalid_api_key`, always with the same body |
/// | the store fails, or does not answer within 10 seconds | `503`, `keys_unavailable` |
///
/// The layer does the same work for an unknown id as for a wrong secret.
///
/// # Caching
///
/// An accepted key is accepted without the store for 30 seconds, and a refused one is refused without it
/// for 2 seconds, each for up to 10,000 keys. A key that another process revokes or rotates is therefore
/// valid for up to 30 seconds longer; in this process, the change applies at once. Clones share the cache.
///
/// # Storage
///
/// Keys are conversations without turns, of the tenant `concentric:keys`, which no caller may have. Two
/// processes that change a key at the same time do not lose a change.
#[derive(Clone)]
pub struct VirtualKeys {
    store: Arc<dyn ThreadStore>,
    environment: Environment,
    cache: Arc<Mutex<Cache>>,
}

/// The data of a key of [`VirtualKeys`], without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VirtualKey {
    /// The id, which is the part of the key before its secret.
    pub id: Str,
    /// The owner of the requests with this key.
    pub tenant: Tenant,
    /// The name that the key was given.
    pub name: Str,
    /// The time at which the key was created.
    pub created: SystemTime,
}

/// The stored form of a key.
#[derive(Clone, Serialize, Deserialize)]
struct Record {
    tenant: Str,
    name: Str,
    // In seconds since 1970, as all times.
    created: u64,
    secrets: Vec<Secret>,
}

/// A secret that is accepted.
#[derive(Clone, Serialize, Deserialize)]
struct Secret {
    sha256: [u8; 32],
    /// The end of its time, if a newer one has replaced it.
    until: Option<u64>,
}

impl VirtualKeys {
    /// Creates a layer that checks the keys in `store`.
    pub fn new(store: impl ThreadStore) -> Self {
        Self {
            store: Arc::new(store),
            environment: Environment::system(),
            cache: Arc::default(),
        }
    }

    /// Sets the source of time; the default is the system.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Creates a key for the requests of `tenant`, and returns it. Its secret is not stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for the tenant of the keys themselves; that of the store, and then the
    /// key may exist.
    pub async fn create(&self, tenant: Tenant, name: impl Into<Str>) -> Result<NewKey, Error> {
        if tenant.0 == OWNER {
            let message = "this tenant owns the keys and can have none";
            return Err(Error::new(ErrorKind::InvalidRequest, message));
        }
        let (new, sha256) = key::generate(&key::new_id()?)?;
        let record = Record {
            tenant: tenant.0,
            name: name.into(),
            created: self.now(),
            secrets: vec![Secret::new(sha256)],
        };
        self.write(new.id(), &StoredThread::default(), &record)
            .await?;
        Ok(new)
    }

    /// Returns all keys that are not revoked, those that were changed last first.
    ///
    /// # Errors
    ///
    /// That of the store.
    pub async fn list(&self) -> Result<Vec<VirtualKey>, Error> {
        let (mut keys, mut before) = (Vec::new(), None);
        loop {
            let page = self.store.list_threads(owner(), before, PAGE).await?;
            let is_last = page.len() < PAGE;
            before = page.last().map(|last| last.version);
            for summary in page {
                let id = Str::from(summary.thread.as_str());
                if let Some((_, record)) = self.read(&id).await? {
                    keys.push(record.key(id));
                }
            }
            if is_last {
                return Ok(keys);
            }
        }
    }

    /// Replaces the secret of a key, and returns the new key; `None` if no key has this id. The one before
    /// is accepted for the time `overlap`, and older ones are not.
    ///
    /// # Errors
    ///
    /// That of the store, and then the key may have been replaced. [`ErrorKind::Conflict`] if other
    /// processes change the key all the time.
    pub async fn rotate(&self, id: &str, overlap: Duration) -> Result<Option<NewKey>, Error> {
        let mut attempts = 0;
        loop {
            let Some((stored, mut record)) = self.read(id).await? else {
                return Ok(None);
            };
            let (new, sha256) = key::generate(id)?;
            let now = self.now();
            // Only the newest secret has no end.
            record.secrets.retain(|secret| secret.until.is_none());
            for secret in &mut record.secrets {
                secret.until = Some(now.saturating_add(overlap.as_secs()));
            }
            record.secrets.push(Secret::new(sha256));
            attempts += 1;
            let written = self.write(id, &stored, &record).await;
            // Also after an error, since the key may have been replaced.
            self.cache().forget(id);
            match written {
                Ok(()) => return Ok(Some(new)),
                Err(StoreError::Moved { .. }) if attempts < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Revokes a key, and returns whether it existed.
    ///
    /// # Errors
    ///
    /// That of the store, and then the key may have been revoked.
    pub async fn revoke(&self, id: &str) -> Result<bool, Error> {
        if !key::is_id(id) {
            return Ok(false);
        }
        let existed = self.store.delete(owner(), ThreadId::new(id)).await;
        // Also after an error, since the key may have been revoked.
        self.cache().forget(id);
        Ok(existed?)
    }

    /// Checks the value of a header; `None` if its key is not valid.
    async fn check(&self, header: &[u8]) -> Result<Option<VirtualKey>, StoreError> {
        let Some(presented) = Presented::parse(header) else {
            return Ok(None);
        };
        let clock = self.environment.clock();
        // The time before the store is read, since the entry is as old as that.
        let (at, now) = (clock.monotonic(), self.now());
        if self.cache().is_refused(&presented, at) {
            return Ok(None);
        }
        let accepted = self.cache().record(&presented.id, at);
        if let Some(record) = accepted.filter(|record| record.accepts(&presented, now)) {
            return Ok(Some(record.key(presented.id)));
        }
        let generation = self.cache().generation();
        let record = self.read(&presented.id).await?.map(|(_, record)| record);
        // An unknown key is compared with one that nothing equals.
        let record = record.unwrap_or_else(Record::none);
        let is_accepted = record.accepts(&presented, now);
        if !is_accepted {
            self.cache().refuse(presented, at);
            return Ok(None);
        }
        let key = record.key(presented.id.clone());
        self.cache().accept(presented.id, record, at, generation);
        Ok(Some(key))
    }

    async fn read(&self, id: &str) -> Result<Option<(StoredThread, Record)>, StoreError> {
        if !key::is_id(id) {
            return Ok(None);
        }
        let stored = self.store.load(owner(), ThreadId::new(id)).await?;
        Ok(stored.and_then(|stored| {
            let slot = stored.slots.iter().find(|slot| slot.slot == SLOT.0)?;
            let record = Record::deserialize(&slot.value).ok()?;
            Some((stored, record))
        }))
    }

    async fn write(
        &self,
        id: &str,
        stored: &StoredThread,
        record: &Record,
    ) -> Result<(), StoreError> {
        let value = serde_json::to_value(record);
        let value = value.map_err(|error| StoreError::Unwritable(Arc::new(error)))?;
        let slots = [StoredSlot::new(SLOT.0, SLOT.1, value, SlotPlace::Whole)];
        let change = stored.change_to(&Transcript::new(), &slots);
        let written = self
            .store
            .append(owner(), ThreadId::new(id), stored.version, change);
        written.await.map(drop)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        super::service::seconds(&self.environment)
    }
}

fn owner() -> Tenant {
    Tenant(OWNER.into())
}

impl Record {
    const fn none() -> Self {
        Self {
            tenant: Str::from_static(""),
            name: Str::from_static(""),
            created: 0,
            secrets: Vec::new(),
        }
    }

    /// Whether a secret of this key is valid. The time does not depend on the secrets' bytes.
    fn accepts(&self, presented: &Presented, now: u64) -> bool {
        let is_valid = |secret: &&Secret| secret.until.is_none_or(|until| now < until);
        let secrets = self.secrets.iter().filter(is_valid);
        secrets.fold(false, |found, secret| found | presented.is(&secret.sha256))
    }

    fn key(&self, id: Str) -> VirtualKey {
        VirtualKey {
            id,
            tenant: Tenant(self.tenant.clone()),
            name: self.name.clone(),
            created: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_secs(self.created))
                .unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

impl Secret {
    const fn new(sha256: [u8; 32]) -> Self {
        Self {
            sha256,
            until: None,
        }
    }
}

impl<S> Layer<S> for VirtualKeys {
    type Service = CheckKey<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CheckKey::new(self.clone(), inner)
    }
}

impl fmt::Debug for VirtualKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualKeys").finish_non_exhaustive()
    }
}
