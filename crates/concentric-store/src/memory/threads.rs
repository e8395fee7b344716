use super::{Kept, MemoryStore, turns::Turns};
use crate::{
    Options,
    limits::State as _,
    rules::{may_append, read_suspended, window, write_slot, write_suspended},
};
use concentric_core::{
    Outcome, Str, ThreadId, Turn,
    state::{SlotPlace, StoredSlot},
    store::{
        BudgetState, RunClaim, RunKey, StoreError, StoreFuture, StoredScope, StoredThread, Tenant,
        ThreadChange, ThreadStore, ThreadSummary,
    },
};
use std::{cmp::Reverse, time::SystemTime};

/// A stored conversation.
#[derive(Clone)]
pub(super) struct Thread {
    version: u64,
    at: SystemTime,
    session: ThreadId,
    turns: Turns,
    slots: Vec<StoredSlot>,
    suspended: Option<Suspended>,
    change: Option<Str>,
}

/// A suspended turn as JSON.
#[derive(Clone)]
struct Suspended {
    shared: usize,
    state: String,
    slots: Vec<StoredSlot>,
}

type Key = (Tenant, ThreadId);

impl ThreadStore for MemoryStore {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        let options = self.options.clone();
        self.work(move |kept| {
            let found = kept.threads.get(&(tenant, thread.clone()));
            found.map(|found| found.read(&thread, &options)).transpose()
        })
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        self.work(move |kept| {
            let found = kept.threads.get(&(tenant, thread.clone()));
            Ok(found.map(|found| {
                let history = &found.turns.list;
                let window = window(history.len(), start, limit);
                let turns = history.prefix(window.end).turns_after(window.start);
                (found.summary(thread), turns)
            }))
        })
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let options = self.options.clone();
        self.work(move |kept| kept.append((tenant, thread), version, change, &options))
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let options = self.options.clone();
        self.work(move |kept| kept.fork(&(tenant, thread), version, to, change, &options))
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.work(move |kept| {
            let is_before = |version| before.is_none_or(|before| version < before);
            let threads = kept.threads.iter();
            let found = threads.filter(|((of, _), it)| *of == tenant && is_before(it.version));
            let mut found: Vec<_> = found
                .map(|((_, thread), found)| found.summary(thread.clone()))
                .collect();
            found.sort_by_key(|it| Reverse(it.version));
            found.truncate(limit);
            Ok(found)
        })
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        let options = self.options.clone();
        self.work(move |kept| {
            let is_in = |key: &RunKey| key.tenant == tenant && key.thread == thread;
            kept.delete_runs(options.now(), is_in);
            let effects = &mut kept.effects;
            effects.retain(|_, entry| !entry.run.as_ref().is_some_and(is_in));
            kept.decisions.retain(|decision| {
                let of = match &decision.span {
                    StoredScope::Run { thread, .. } => thread.as_ref(),
                    StoredScope::Thread(thread) => Some(thread),
                    _ => None,
                };
                decision.tenant != tenant || of != Some(&thread)
            });
            kept.cache
                .retain(|key, _| key.tenant != tenant || key.thread.as_ref() != Some(&thread));
            let now = options.now();
            kept.remove_logs(&tenant, Some(&thread), now, now);
            Ok(kept.threads.remove(&(tenant, thread)).is_some())
        })
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            kept.delete_runs(now, |key| key.tenant == tenant);
            kept.remove_logs(&tenant, None, now, now);
            // All fields are named, so that none is forgotten.
            let Kept {
                count: _,
                runs: _,
                effects,
                once,
                used: _,
                decisions,
                threads,
                memories,
                cache,
                limits,
                // They outlive the tenant.
                deleted: _,
                // Removed above.
                logs: _,
                removed_logs: _,
            } = kept;
            effects.retain(|key, _| key.tenant != tenant);
            once.retain(|(of, _), _| *of != tenant);
            decisions.retain(|decision| decision.tenant != tenant);
            memories.retain(|(of, _), _| *of != tenant);
            cache.retain(|key, _| key.tenant != tenant);
            limits.remove(&(BudgetState::KIND, tenant.0.to_string()));
            let before = threads.len();
            threads.retain(|(of, _), _| *of != tenant);
            Ok(u64::try_from(before - threads.len()).unwrap_or(u64::MAX))
        })
    }
}

impl Kept {
    fn append(
        &mut self,
        key: Key,
        version: u64,
        change: ThreadChange,
        options: &Options,
    ) -> Result<u64, StoreError> {
        let ends = change.ends.clone();
        if let Some((RunClaim { key, fence, .. }, _)) = &ends {
            match self.runs.get(key) {
                Some(run) => run.standing.check_end(*fence)?,
                None if self.deleted.contains_key(key) => return Err(StoreError::NotFound),
                // It is in another store.
                None => {}
            }
        }
        let version = self.append_turns(key, version, change, options)?;
        if let Some((RunClaim { key, fence, .. }, outcome)) = ends
            && outcome != Ok(Outcome::Interrupted)
            && self.runs.contains_key(&key)
        {
            self.end(&key, fence, options.now(), outcome)?;
        }
        Ok(version)
    }

    fn append_turns(
        &mut self,
        key: Key,
        version: u64,
        change: ThreadChange,
        options: &Options,
    ) -> Result<u64, StoreError> {
        let found = self.threads.get(&key);
        let stored = found.map(|found| (found.version, found.change.as_deref()));
        if let Some(version) = may_append(stored, version, change.id.as_deref())? {
            return Ok(version);
        }
        let base = found.cloned();
        let base = base.unwrap_or_else(|| {
            let session = change.session.clone().unwrap_or_else(|| key.1.clone());
            Thread::new(session)
        });
        let next = base.changed(change, options)?;
        Ok(self.put(key, next, options.now()))
    }

    fn fork(
        &mut self,
        from: &Key,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
        options: &Options,
    ) -> Result<u64, StoreError> {
        let key = (from.0.clone(), to);
        let target = self.threads.get(&key);
        let target = target.map(|found| (found.version, found.change.as_deref()));
        if let Some(version) = may_append(target, 0, change.id.as_deref())? {
            return Ok(version);
        }
        let source = self.threads.get(from);
        let found = source.map(|source| source.version);
        may_append(found.map(|found| (found, None)), version, None)?;
        let mut base = source.cloned().ok_or(StoreError::NotFound)?;
        if let Some(session) = &change.session {
            base.session = session.clone();
        }
        let next = base.changed(change, options)?;
        Ok(self.put(key, next, options.now()))
    }

    fn put(&mut self, key: Key, thread: Thread, at: SystemTime) -> u64 {
        let version = self.count();
        let thread = Thread {
            version,
            at,
            ..thread
        };
        self.threads.insert(key, thread);
        version
    }
}

impl Thread {
    fn new(session: ThreadId) -> Self {
        Self {
            version: 0,
            at: SystemTime::UNIX_EPOCH,
            session,
            turns: Turns::default(),
            slots: Vec::new(),
            suspended: None,
            change: None,
        }
    }

    fn summary(&self, thread: ThreadId) -> ThreadSummary {
        let (session, turns) = (self.session.clone(), self.turns.list.len());
        ThreadSummary::new(thread, session, self.version, turns, self.at)
    }

    fn read(&self, thread: &ThreadId, options: &Options) -> Result<StoredThread, StoreError> {
        let history = self.turns.list.clone();
        let mut read = StoredThread::new(self.version, history, self.slots.clone());
        read.session = Some(self.session.clone());
        if let Some(Suspended {
            shared,
            state,
            slots,
        }) = &self.suspended
        {
            let suspended =
                read_suspended(thread, *shared, state.as_bytes(), slots.clone(), options)?;
            let slots = suspended.slots.clone();
            read.suspended = Some((suspended.into_state(&read.history), slots));
        }
        Ok(read)
    }

    fn changed(mut self, change: ThreadChange, options: &Options) -> Result<Self, StoreError> {
        let max = options.max_state_bytes;
        self.turns.replace(change.keep, change.turns, max)?;
        if change.clear_slots {
            self.slots.clear();
        }
        for slot in change.slots {
            write_slot(&slot, max)?;
            let at = |slot: &StoredSlot| (slot.slot.clone(), place(&slot.place));
            let place = self.slots.binary_search_by(|old| at(old).cmp(&at(&slot)));
            match place {
                Ok(found) => {
                    if let Some(old) = self.slots.get_mut(found) {
                        *old = slot;
                    }
                }
                Err(at) => self.slots.insert(at, slot),
            }
        }
        self.suspended = match change.suspended {
            None => None,
            Some(suspended) => Some(Suspended {
                shared: suspended.shared,
                state: write_suspended(&suspended, max)?.0,
                slots: suspended.slots,
            }),
        };
        self.change = change.id;
        Ok(self)
    }
}

fn place(place: &SlotPlace) -> String {
    serde_json::to_string(place).unwrap_or_default()
}
