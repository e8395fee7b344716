#[cfg(any(feature = "postgres", feature = "redis"))]
use concentric_core::Str;
use concentric_core::context::Clock;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Limits and retention times of a store.
///
/// ```no_run
/// use concentric_store::{Options, SqliteStore};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), concentric_store::Fault> {
/// let options = Options::new()
///     .max_state_bytes(8 << 20)
///     .keep_ended(Duration::from_secs(24 * 60 * 60));
/// let store = SqliteStore::open_with("runs.db", options)?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) max_state_bytes: usize,
    pub(crate) keep_waiting: Duration,
    pub(crate) keep_ended: Duration,
    pub(crate) keep_effects: Duration,
    pub(crate) keep_used_keys: usize,
    pub(crate) max_waiting_per_thread: usize,
    pub(crate) max_waiting_per_tenant: usize,
    pub(crate) max_cache_entries: usize,
    pub(crate) max_cache_bytes: usize,
    pub(crate) max_cached_value_bytes: usize,
    pub(crate) max_log_events: usize,
    pub(crate) max_log_bytes: usize,
    pub(crate) keep_logs: Duration,
    #[cfg(feature = "sqlite")]
    pub(crate) busy_timeout: Duration,
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) schema: Str,
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) pool_size: usize,
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) pool_wait: Duration,
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) statement_timeout: Duration,
    #[cfg(feature = "postgres")]
    pub(crate) prepared: bool,
    #[cfg(any(feature = "postgres-rustls", feature = "redis-rustls"))]
    pub(crate) root_certificates: Option<Str>,
    #[cfg(feature = "redis")]
    pub(crate) accept_loss: bool,
    clock: StoreClock,
}

/// The clock of a store; the default one if it is `None`.
#[derive(Clone, Default)]
struct StoreClock(Option<Arc<dyn Clock>>);

concentric_core::opaque_debug!(StoreClock);

/// Checks that the name of a schema is a plain one.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn check_schema(schema: &str) -> Result<(), crate::Fault> {
    let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_plain = schema.starts_with(is_first)
        && schema.len() <= 63
        && schema.chars().all(|c| is_first(c) || c.is_ascii_digit())
        // These belong to a PostgreSQL server.
        && !schema.starts_with("pg_");
    match is_plain {
        true => Ok(()),
        false => Err(crate::Fault::Database(
            "the name of the schema is none of [a-z_][a-z0-9_]{0,62}, or begins with `pg_`".into(),
        )),
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Options {
    fn default() -> Self {
        Self {
            max_state_bytes: 64 << 20,
            keep_waiting: DAY.saturating_mul(90),
            keep_ended: DAY.saturating_mul(7),
            keep_effects: DAY.saturating_mul(30),
            keep_used_keys: 100_000,
            max_waiting_per_thread: 32,
            max_waiting_per_tenant: 10_000,
            max_cache_entries: 10_000,
            max_cache_bytes: 256 << 20,
            max_cached_value_bytes: 4 << 20,
            max_log_events: 4096,
            max_log_bytes: 1 << 20,
            keep_logs: Duration::from_secs(60 * 60),
            #[cfg(feature = "sqlite")]
            busy_timeout: Duration::from_secs(5),
            #[cfg(any(feature = "postgres", feature = "redis"))]
            schema: Str::from_static("concentric"),
            #[cfg(any(feature = "postgres", feature = "redis"))]
            pool_size: 16,
            #[cfg(any(feature = "postgres", feature = "redis"))]
            pool_wait: Duration::from_secs(5),
            #[cfg(any(feature = "postgres", feature = "redis"))]
            statement_timeout: Duration::from_secs(10),
            #[cfg(feature = "postgres")]
            prepared: true,
            #[cfg(any(feature = "postgres-rustls", feature = "redis-rustls"))]
            root_certificates: None,
            #[cfg(feature = "redis")]
            accept_loss: false,
            clock: StoreClock::default(),
        }
    }
}

impl Options {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the clock, for example a manual one for tests; by default the wall clock, or that of the
    /// PostgreSQL or Redis server.
    ///
    /// Leases, and the times after which entries expire, are measured on it.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = StoreClock(Some(Arc::new(clock)));
        self
    }

    /// The time of the clock that was set, if there is one.
    pub(crate) fn own_now(&self) -> Option<SystemTime> {
        let StoreClock(clock) = &self.clock;
        clock.as_ref().map(|it| it.now())
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.own_now().unwrap_or_else(SystemTime::now)
    }

    /// Sets the maximum size of a state, and of all turns of a conversation, in bytes of JSON; 64 MiB
    /// by default.
    ///
    /// A larger state or conversation is neither written nor read. With 0, none is.
    #[must_use]
    pub const fn max_state_bytes(mut self, bytes: usize) -> Self {
        self.max_state_bytes = bytes;
        self
    }

    /// Sets how long a run may wait for replies, or for a process to resume it; 90 days by default,
    /// without limit for [`Duration::MAX`].
    ///
    /// Then the run ends, and a late reply fails with
    /// [`StoreError::Ended`](concentric_core::store::StoreError::Ended).
    ///
    /// A closed browser tab leaves a run that never receives a reply, so most long waits are in
    /// vain; an approver may still be away for weeks.
    #[must_use]
    pub const fn keep_waiting(mut self, time: Duration) -> Self {
        self.keep_waiting = time;
        self
    }

    /// Sets how long an ended run is kept, with its tool effects and its run-scoped decisions; 7
    /// days by default, without limit for [`Duration::MAX`].
    ///
    /// Until then a late reply fails with
    /// [`StoreError::Ended`](concentric_core::store::StoreError::Ended). With zero, a run is
    /// removed when it ends.
    #[must_use]
    pub const fn keep_ended(mut self, time: Duration) -> Self {
        self.keep_ended = time;
        self
    }

    /// Sets how long tool effects of runs that are in no store are kept; 30 days by default,
    /// without limit for [`Duration::MAX`].
    ///
    /// The time starts at the first purge after the effect. With zero, that purge removes the
    /// effect, and its call is no longer protected from running twice.
    #[must_use]
    pub const fn keep_effects(mut self, time: Duration) -> Self {
        self.keep_effects = time;
        self
    }

    /// Sets how many of the most recently used keys ([`Once`](concentric_core::store::Once), such
    /// as those of approval tokens) are kept after their time has passed; 100,000 by default.
    ///
    /// These keys still count as used after a clock was set ahead for a while and back again. With
    /// 0, a key is removed after its time; with [`usize::MAX`], no key is ever removed.
    #[must_use]
    pub const fn keep_used_keys(mut self, keys: usize) -> Self {
        self.keep_used_keys = keys;
        self
    }

    /// Sets how many runs of one conversation may wait for replies; 32 by default.
    ///
    /// A run counts from its first suspension until it ends. A suspension beyond the limit fails
    /// with [`StoreError::TooManyWaiting`](concentric_core::store::StoreError::TooManyWaiting).
    /// With 0, no run may wait; with [`usize::MAX`], there is no limit.
    ///
    /// Runs stop counting when a reply lets them end, or when
    /// [`RunStore::withdraw`](concentric_core::store::RunStore::withdraw) ends them, as it does for
    /// a new message of an AG-UI client.
    #[must_use]
    pub const fn max_waiting_per_thread(mut self, runs: usize) -> Self {
        self.max_waiting_per_thread = runs;
        self
    }

    /// Sets how many runs of one tenant may wait for replies, over all its conversations; 10,000 by
    /// default.
    ///
    /// Otherwise like [`max_waiting_per_thread`](Self::max_waiting_per_thread). All runs of an
    /// application without tenants belong to one tenant.
    #[must_use]
    pub const fn max_waiting_per_tenant(mut self, runs: usize) -> Self {
        self.max_waiting_per_tenant = runs;
        self
    }

    /// Sets the maximum number of entries of the cache
    /// ([`CacheStore`](concentric_core::store::CacheStore)), of all tenants (in Redis, of each); 10,000 by default.
    ///
    /// Beyond it, the entries that expire first are removed. With 0, none is stored.
    #[must_use]
    pub const fn max_cache_entries(mut self, entries: usize) -> Self {
        self.max_cache_entries = entries;
        self
    }

    /// Sets the maximum size of the cache in bytes of keys and values, of all tenants (in Redis, of each); 256 MiB by
    /// default.
    ///
    /// Beyond it, the entries that expire first are removed. With 0, none is stored.
    #[must_use]
    pub const fn max_cache_bytes(mut self, bytes: usize) -> Self {
        self.max_cache_bytes = bytes;
        self
    }

    /// Sets the maximum size of a cached value in bytes; 4 MiB by default.
    ///
    /// A larger one is not stored ([`StoreError::Unwritable`](concentric_core::store::StoreError::Unwritable)).
    #[must_use]
    pub const fn max_cached_value_bytes(mut self, bytes: usize) -> Self {
        self.max_cached_value_bytes = bytes;
        self
    }

    /// Sets how many events of a run are kept ([`EventStore`](concentric_core::store::EventStore)); 4,096 by default.
    ///
    /// Beyond it, the oldest ones are removed, with those that were written together with them. The newest ones that
    /// were written together are kept, whatever the limits, and those of the last 2 seconds, for readers that are behind,
    /// up to 8 times this number and 3 times the [size](Self::max_log_bytes).
    #[must_use]
    pub const fn max_log_events(mut self, events: usize) -> Self {
        self.max_log_events = events;
        self
    }

    /// Sets the size of the events of a run that are kept, in bytes; 1 MiB by default.
    ///
    /// Otherwise like [`max_log_events`](Self::max_log_events).
    #[must_use]
    pub const fn max_log_bytes(mut self, bytes: usize) -> Self {
        self.max_log_bytes = bytes;
        self
    }

    /// Sets how long the events of a run are kept after the last of them was written; an hour by default, at most a
    /// hundred years.
    #[must_use]
    pub const fn keep_logs(mut self, time: Duration) -> Self {
        self.keep_logs = time;
        self
    }

    /// Sets how long a write waits for another process that is writing; 5 seconds by default.
    ///
    /// With zero, a write fails at once while another process is writing. The maximum is `i32::MAX`
    /// milliseconds (24 days); longer times are reduced to it.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub const fn busy_timeout(mut self, time: Duration) -> Self {
        self.busy_timeout = time;
        self
    }

    /// Sets the schema of a PostgreSQL database, or the first part of all keys in Redis; `concentric` by
    /// default.
    ///
    /// Opening a store fails unless the name is one of `[a-z_][a-z0-9_]{0,62}` that does not begin with
    /// `pg_`. Several stores may share a database, each with its own schema.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[must_use]
    pub fn schema(mut self, name: impl Into<Str>) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets the maximum number of connections to a PostgreSQL database, or to each node of Redis; 16 by
    /// default, at least 1.
    ///
    /// A further connection renews leases, so that a renewal does not wait for other statements. A
    /// connection to Redis has up to 64 requests under way; another one is made when all are in use.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[must_use]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Sets how long a statement waits for a free connection, and for a new one to be made; 5 seconds by
    /// default.
    ///
    /// Then it fails with [`Fault::Busy`](crate::Fault::Busy). A statement that fails because the connection is
    /// lost is repeated within this time only, so it should be longer than a restart of the server takes.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[must_use]
    pub fn pool_wait(mut self, time: Duration) -> Self {
        self.pool_wait = time;
        self
    }

    /// Sets how long a statement may take in PostgreSQL, or a script in Redis; 10 seconds by default.
    ///
    /// Then it fails, and its connection is closed; PostgreSQL receives a request to cancel it. It may have
    /// been applied nevertheless.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[must_use]
    pub fn statement_timeout(mut self, time: Duration) -> Self {
        self.statement_timeout = time;
        self
    }

    /// Sets the certificates of the authorities (PEM) that a PostgreSQL or Redis server must have its certificate
    /// from; by default those that Mozilla trusts.
    ///
    /// Connections are encrypted if the URL contains `sslmode=require`, or begins with `rediss:`. The certificate
    /// must then be valid for the host in the URL, and those of the other nodes of a Redis cluster for the hosts
    /// that the cluster names, or opening a store fails with [`Fault::Untrusted`](crate::Fault::Untrusted).
    #[cfg(any(feature = "postgres-rustls", feature = "redis-rustls"))]
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Str>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Sets whether statements are prepared once for each connection; `true` by default.
    ///
    /// Behind a pooler that gives each transaction another connection (pgbouncer with
    /// `pool_mode = transaction`), this must be `false`.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn prepared(mut self, prepared: bool) -> Self {
        self.prepared = prepared;
        self
    }

    /// Sets whether a Redis server is used that loses acknowledged writes when it crashes, or that evicts
    /// keys; `false` by default.
    ///
    /// Otherwise opening the store fails with [`Fault::Volatile`](crate::Fault::Volatile) unless the server
    /// has `appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no` and
    /// `maxmemory-policy noeviction`. After a loss, a tool that is not idempotent may run again, and two
    /// processes may hold the same fence.
    #[cfg(feature = "redis")]
    #[must_use]
    pub const fn accept_loss(mut self, accept: bool) -> Self {
        self.accept_loss = accept;
        self
    }
}
