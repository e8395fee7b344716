mod cache;
mod decisions;
mod effects;
mod events;
mod limits;
mod memories;
mod runs;
mod threads;
mod turns;

use self::{
    cache::Cache,
    effects::Entry,
    events::{Log, Removed},
    limits::Limit,
    runs::Row,
    threads::Thread,
};
use crate::{
    Options,
    limits::since_1970,
    rules::{EXPIRED, REMEMBER_DELETED, is_over, may_still_append},
};
use concentric_core::{
    Str, ThreadId,
    store::{
        EffectKey, EventKey, Memory, RunKey, RunStatus, StoreError, StoreFuture, StoredDecision,
        StoredScope, Tenant,
    },
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// An in-memory store, for tests and for single-process programs whose runs need not survive them.
///
/// It behaves like [`SqliteStore`](crate::SqliteStore) and serializes states in the same format.
/// Clones share their contents. The futures resolve at the first poll.
///
/// ```
/// use concentric_core::{Str, store::{Once, Tenant}};
/// use concentric_store::MemoryStore;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), concentric_core::store::StoreError> {
/// let store = MemoryStore::new();
/// let minute = Duration::from_secs(60);
/// let once = || store.once(Tenant::default(), Str::from("token 1"), minute);
/// assert!(once().await?);
/// assert!(!once().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<Kept>>,
    options: Options,
}

#[derive(Default)]
struct Kept {
    // The number of writes, the source of versions and fences.
    count: u64,
    runs: HashMap<RunKey, Row>,
    effects: HashMap<EffectKey, Entry>,
    // The expiry of each key, and its number in the order of use.
    once: HashMap<(Tenant, Str), (SystemTime, u64)>,
    // The number of keys used so far.
    used: u64,
    // In the order of insertion.
    decisions: Vec<StoredDecision>,
    threads: HashMap<(Tenant, ThreadId), Thread>,
    // Runs that were deleted with their conversations, and the time of that.
    deleted: HashMap<RunKey, SystemTime>,
    // By tenant and owner.
    memories: HashMap<(Tenant, Str), Vec<Memory>>,
    cache: Cache,
    logs: HashMap<EventKey, Log>,
    removed_logs: Removed,
    // By kind and name.
    limits: HashMap<(&'static str, String), Limit>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty store with these options.
    pub fn with_options(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Kept) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let kept = Arc::clone(&self.kept);
        Box::pin(async move {
            let mut kept: MutexGuard<'_, Kept> =
                kept.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut kept)
        })
    }
}

impl Kept {
    fn count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Deletes runs with their conversations. Those whose processes may still append a turn are remembered.
    fn delete_runs(&mut self, now: SystemTime, is_gone: impl Fn(&RunKey) -> bool) {
        for (key, row) in self.runs.extract_if(|key, _| is_gone(key)) {
            if may_still_append(&row.standing, now) {
                self.deleted.insert(key, now);
            }
        }
    }

    fn purge(&mut self, options: &Options, now: SystemTime) {
        self.end_all(now, &EXPIRED, |_, row| {
            row.standing.is_overdue(options, now)
        });
        let mut gone = HashSet::new();
        self.runs.retain(|key, row| {
            let ended = row.standing.status == RunStatus::Ended;
            let gone_by = |since| is_over(since, options.keep_ended, now);
            let keep = !(ended && row.standing.since.is_some_and(gone_by));
            if !keep {
                gone.insert(key.clone());
            }
            keep
        });
        self.effects.retain(|_, entry| match &entry.run {
            Some(run) => !gone.contains(run),
            None => {
                let seen = *entry.seen.get_or_insert(now);
                !is_over(seen, options.keep_effects, now)
            }
        });
        self.decisions.retain(|decision| match &decision.span {
            StoredScope::Run { thread, run } => {
                let thread = thread.clone().unwrap_or_else(|| ThreadId::new(""));
                !gone.contains(&RunKey::new(decision.tenant.clone(), thread, run.clone()))
            }
            _ => true,
        });
        let kept = u64::try_from(options.keep_used_keys).unwrap_or(u64::MAX);
        let old = self.used.saturating_sub(kept);
        self.once.retain(|_, (until, n)| *until > now || *n > old);
        self.cache.retain(|_, entry| entry.until > now);
        self.expire_logs(now);
        let at = since_1970(now);
        self.limits
            .retain(|_, limit| limit.until.is_none_or(|until| until > at));
        self.deleted
            .retain(|_, at| !is_over(*at, REMEMBER_DELETED, now));
    }
}

concentric_core::opaque_debug!(MemoryStore);
