use crate::{
    Options,
    rules::{
        Standing, Written, check_text, check_waiting, merge_replies, read_state, readable,
        replaces, same_arguments, write_replies, write_state,
    },
};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    machine::MachineState,
    store::{
        Decisions, Effect, EffectKey, Intent, Ledger, Once, Remembered, RunKey, RunRecord,
        RunStatus, RunStore, RunSummary, Span, StoreError, StoreFuture, Tenant,
    },
};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

/// A store in memory: for tests, and for a program of one process whose runs may be lost with it.
///
/// It keeps to what [`SqliteStore`](crate::SqliteStore) does, the form that states are written in
/// included. Clones share what is kept. A store's futures are done when they are first polled.
///
/// ```
/// use concentric_core::{Str, store::{Once, Tenant}};
/// use concentric_store::MemoryStore;
/// use std::time::{Duration, SystemTime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), concentric_core::store::StoreError> {
/// let store = MemoryStore::new();
/// let until = SystemTime::now() + Duration::from_secs(60);
/// let once = || store.once(Tenant::default(), Str::from("token 1"), until);
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
    // Counts the writes; versions and fences are taken from it.
    count: u64,
    runs: HashMap<RunKey, Row>,
    effects: HashMap<EffectKey, Entry>,
    // Until when each key is kept, and which it was in the order of use.
    once: HashMap<(Tenant, Str), (SystemTime, u64)>,
    // How many keys were used.
    used: u64,
    // The newest is the last.
    decisions: Vec<Remembered>,
}

struct Row {
    standing: Standing,
    client_id: RunId,
    begun: u64,
    // Since when it waits, or is over.
    since: Option<SystemTime>,
    // Whether it waits, or has waited.
    waited: bool,
    // Of its open round.
    message: Option<MessageId>,
    state: String,
    replies: Vec<Reply>,
    replied_at: Option<SystemTime>,
    asked: Vec<InterruptId>,
}

struct Entry {
    run: Option<RunKey>,
    // When it was first seen by `purge`, if it has no run.
    seen: Option<SystemTime>,
    tool: Str,
    arguments: Str,
    repeatable: bool,
    outcome: Option<ToolOutcome>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Forgets what need not be kept any longer, as the end of each run does.
    pub fn purge(&self, now: SystemTime) -> StoreFuture<()> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            kept.purge(&options, now);
            Ok(())
        })
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

    fn effect(&self, key: &EffectKey) -> Effect {
        match self.effects.get(key).map(|entry| &entry.outcome) {
            None => Effect::New,
            Some(None) => Effect::Begun,
            Some(Some(outcome)) => Effect::Done(Box::new(outcome.clone())),
        }
    }

    fn row(&mut self, key: &RunKey) -> Result<&mut Row, StoreError> {
        self.runs.get_mut(key).ok_or(StoreError::NotFound)
    }

    /// The row, for whoever holds `fence`; it has its next version.
    fn held(&mut self, key: &RunKey, fence: u64) -> Result<&mut Row, StoreError> {
        self.row(key)?.standing.check_fence(fence)?;
        let version = self.count();
        let row = self.row(key)?;
        row.standing.version = version;
        Ok(row)
    }

    fn records<'a>(
        rows: impl Iterator<Item = (&'a RunKey, &'a Row)>,
        options: &Options,
        limit: usize,
    ) -> Result<Vec<RunRecord>, StoreError> {
        let records = rows.map(|(key, row)| row.record(key.clone(), options));
        let found = records.filter_map(|record| readable(record).transpose());
        found.take(limit).collect()
    }

    /// Fails if as many other runs wait as may.
    fn check_waiting(&self, options: &Options, key: &RunKey) -> Result<(), StoreError> {
        let (mut thread, mut tenant) = (0, 0);
        for (other, row) in &self.runs {
            let waits = row.waited && row.standing.status != RunStatus::Ended;
            if waits && other.tenant == key.tenant && other != key {
                tenant += 1;
                thread += usize::from(other.thread == key.thread);
            }
        }
        check_waiting(options, thread, tenant)
    }

    fn purge(&mut self, options: &Options, now: SystemTime) {
        let is_over = |time: SystemTime, keep: Duration| {
            now.checked_sub(keep).is_some_and(|before| time <= before)
        };
        let waited = |row: &Row| {
            let since = match row.standing.status {
                RunStatus::Suspended => row.since,
                RunStatus::Running => Some(row.standing.lease_until),
                RunStatus::Ended => None,
            };
            since.is_some_and(|since| is_over(since, options.keep_waiting))
        };
        let rows = self.runs.values_mut();
        let mut waited: Vec<&mut Row> = rows.filter(|row| waited(row)).collect();
        waited.sort_by_key(|row| row.begun);
        for row in waited {
            self.count += 1;
            row.standing.version = self.count;
            row.standing.status = RunStatus::Ended;
            row.since = Some(now);
        }
        let mut gone = HashSet::new();
        self.runs.retain(|key, row| {
            let ended = row.standing.status == RunStatus::Ended;
            let gone_by = |since| is_over(since, options.keep_ended);
            let keep = !(ended && row.since.is_some_and(gone_by));
            if !keep {
                gone.insert(key.clone());
            }
            keep
        });
        self.effects.retain(|_, entry| match &entry.run {
            Some(run) => !gone.contains(run),
            None => {
                let seen = *entry.seen.get_or_insert(now);
                !is_over(seen, options.keep_effects)
            }
        });
        self.decisions.retain(|decision| match &decision.span {
            Span::Run { thread, run } => {
                let thread = thread.clone().unwrap_or_else(|| ThreadId::new(""));
                !gone.contains(&RunKey::new(decision.tenant.clone(), thread, run.clone()))
            }
            _ => true,
        });
        let kept = u64::try_from(options.keep_used_keys).unwrap_or(u64::MAX);
        let old = self.used.saturating_sub(kept);
        self.once.retain(|_, (until, n)| *until > now || *n > old);
    }
}

impl Row {
    fn set_state(&mut self, state: Written) {
        self.state = state.json;
        self.message = state.message;
        self.replies.clear();
        self.replied_at = None;
        for id in state.asks {
            if let Err(at) = self.asked.binary_search(&id) {
                self.asked.insert(at, id);
            }
        }
    }

    fn record(&self, key: RunKey, options: &Options) -> Result<RunRecord, StoreError> {
        let state = read_state(&key, &self.state, options.max_state_bytes)?;
        let mut record = RunRecord::new(key, self.client_id.clone(), state);
        record.status = self.standing.status;
        record.version = self.standing.version;
        record.fence = self.standing.fence;
        record.lease_until = self.standing.lease_until;
        record.replies.clone_from(&self.replies);
        record.replied_at = self.replied_at;
        record.asked.clone_from(&self.asked);
        Ok(record)
    }

    fn summary(&self, key: RunKey) -> RunSummary {
        let Standing {
            status,
            lease_until,
            ..
        } = self.standing;
        RunSummary::new(key, self.client_id.clone(), status, lease_until)
    }
}

/// Whether a run that `client_id` began in a conversation is live.
fn is_live(
    runs: &HashMap<RunKey, Row>,
    tenant: &Tenant,
    thread: &ThreadId,
    client_id: &RunId,
) -> bool {
    runs.iter().any(|(key, row)| {
        row.standing.status == RunStatus::Running
            && row.client_id == *client_id
            && key.tenant == *tenant
            && key.thread == *thread
    })
}

impl RunStore for MemoryStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<u64> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let state = write_state(&state, options.max_state_bytes)?;
            if kept.runs.contains_key(&key) {
                return Err(StoreError::Exists);
            }
            if is_live(&kept.runs, &key.tenant, &key.thread, &client_id) {
                return Err(StoreError::Live);
            }
            let fence = kept.count();
            let mut row = Row {
                standing: Standing {
                    status: RunStatus::Running,
                    version: fence,
                    fence,
                    lease_until,
                },
                client_id,
                begun: fence,
                since: None,
                waited: false,
                message: None,
                state: String::new(),
                replies: Vec::new(),
                replied_at: None,
                asked: Vec::new(),
            };
            row.set_state(state);
            kept.runs.insert(key, row);
            Ok(fence)
        })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.work(move |kept| Ok(is_live(&kept.runs, &tenant, &thread, &client_id)))
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.record(key, &options)
        })
    }

    fn claim(
        &self,
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_claim(version, now)?;
            let replies = merge_replies(&row.replies, replies);
            write_replies(&replies, options.max_state_bytes)?;
            // A state that cannot be read is not claimed.
            row.record(key.clone(), &options)?;
            let fence = kept.count();
            let row = kept.row(&key)?;
            row.standing = Standing {
                status: RunStatus::Running,
                version: fence,
                fence,
                lease_until,
            };
            if !replies.is_empty() {
                row.replies = replies;
                row.replied_at.get_or_insert(now);
            }
            row.record(key, &options)
        })
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<()> {
        let max = self.options.max_state_bytes;
        self.work(move |kept| {
            let state = write_state(&state, max)?;
            let row = kept.held(&key, fence)?;
            row.standing.lease_until = lease_until;
            row.set_state(state);
            Ok(())
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()> {
        self.work(move |kept| {
            kept.held(&key, fence)?.standing.lease_until = lease_until;
            Ok(())
        })
    }

    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let state = write_state(&state, options.max_state_bytes)?;
            let row = kept.row(&key)?;
            row.standing.check_fence(fence)?;
            let has_waited = row.waited;
            if !has_waited {
                kept.check_waiting(&options, &key)?;
            }
            let row = kept.held(&key, fence)?;
            row.standing.status = RunStatus::Suspended;
            row.since = Some(now);
            row.waited = true;
            row.set_state(state);
            Ok(())
        })
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let standing = kept.row(&key)?.standing;
            standing.check_end(fence)?;
            if standing.status != RunStatus::Ended {
                let row = kept.held(&key, fence)?;
                row.standing.status = RunStatus::Ended;
                row.since = Some(now);
            }
            kept.purge(&options, now);
            Ok(())
        })
    }

    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let questions: HashSet<_> = questions.into_iter().collect();
            let asking = kept.runs.iter().filter(|(key, row)| {
                key.tenant == tenant
                    && key.thread == thread
                    && row.asked.iter().any(|id| questions.contains(id))
            });
            let newest = asking.max_by_key(|(_, row)| row.begun);
            let (key, row) = newest.ok_or(StoreError::NotFound)?;
            row.record(key.clone(), &options)
        })
    }

    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        self.work(move |kept| {
            let mut rows: Vec<_> = kept
                .runs
                .iter()
                .filter(|(key, row)| {
                    let over = row.standing.status == RunStatus::Ended;
                    let meant = message.is_none() || row.message == message;
                    key.tenant == tenant && key.thread == thread && !over && meant
                })
                .collect();
            rows.sort_by_key(|(_, row)| {
                let runs = row.standing.status == RunStatus::Running;
                (runs.then_some(row.standing.lease_until), row.begun)
            });
            let rows = rows.into_iter().take(limit);
            Ok(rows.map(|(key, row)| row.summary(key.clone())).collect())
        })
    }

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let mut rows: Vec<_> = kept
                .runs
                .iter()
                .filter(|(_, row)| {
                    let standing = &row.standing;
                    standing.status == RunStatus::Running && standing.lease_until <= now
                })
                .collect();
            rows.sort_by_key(|(_, row)| (row.standing.lease_until, row.begun));
            Kept::records(rows.into_iter(), &options, limit)
        })
    }
}

impl Ledger for MemoryStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<Effect> {
        self.work(move |kept| {
            if let Some(claim) = &intent.claim {
                let row = kept.runs.get(&claim.key).ok_or(StoreError::Stale)?;
                let checked = row.standing.check_fence(claim.fence);
                checked.map_err(|_| StoreError::Stale)?;
            }
            match kept.effects.get_mut(&key) {
                Some(entry)
                    if entry.tool != intent.tool
                        || !same_arguments(&entry.arguments, &intent.arguments) =>
                {
                    return Err(StoreError::Mismatch);
                }
                Some(entry) => entry.repeatable = intent.repeatable,
                None => {
                    let entry = Entry {
                        run: intent.claim.map(|claim| claim.key),
                        seen: None,
                        tool: intent.tool,
                        arguments: intent.arguments,
                        repeatable: intent.repeatable,
                        outcome: None,
                    };
                    kept.effects.insert(key, entry);
                    return Ok(Effect::New);
                }
            }
            Ok(kept.effect(&key))
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.work(move |kept| {
            let json = serde_json::to_string(&outcome).map_err(StoreError::unwritable)?;
            check_text(&json, usize::MAX)?;
            let entry = kept.effects.get_mut(&key).ok_or(StoreError::NotFound)?;
            match &entry.outcome {
                Some(first) if !replaces(first, &outcome, entry.repeatable) => {}
                _ => entry.outcome = Some(outcome),
            }
            Ok(())
        })
    }

    fn known(&self, key: EffectKey) -> StoreFuture<Effect> {
        self.work(move |kept| Ok(kept.effect(&key)))
    }
}

impl Once for MemoryStore {
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool> {
        self.work(move |kept| {
            let key = (tenant, key);
            let first = !kept.once.contains_key(&key);
            if first {
                kept.used += 1;
                kept.once.insert(key, (until, kept.used));
            }
            Ok(first)
        })
    }
}

impl Decisions for MemoryStore {
    fn remember(&self, decision: Remembered) -> StoreFuture<()> {
        self.work(move |kept| {
            kept.decisions
                .retain(|d| (&d.tenant, &d.id) != (&decision.tenant, &decision.id));
            kept.decisions.push(decision);
            Ok(())
        })
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
    ) -> StoreFuture<Vec<Remembered>> {
        self.work(move |kept| {
            let holds = |decision: &&Remembered| {
                let here = match &decision.span {
                    Span::Run {
                        thread: within,
                        run: of,
                    } => (within, of) == (&thread, &run),
                    Span::Thread(of) => thread.as_ref() == Some(of),
                    Span::Always => true,
                    _ => false,
                };
                here && decision.tenant == tenant && decision.tool == tool
            };
            let found = kept.decisions.iter().rev().filter(holds);
            Ok(found.cloned().collect())
        })
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<Remembered>> {
        self.work(move |kept| {
            let all = kept.decisions.iter().rev();
            Ok(all.filter(|d| d.tenant == tenant).cloned().collect())
        })
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.work(move |kept| {
            let before = kept.decisions.len();
            kept.decisions.retain(|d| d.tenant != tenant || d.id != id);
            Ok(kept.decisions.len() < before)
        })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}
