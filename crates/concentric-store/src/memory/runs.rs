use super::{Kept, MemoryStore, turns::Turns};
use crate::{
    Options,
    rules::{
        Standing, check_total, check_waiting, merge_replies, read_run, readable, write_head,
        write_replies,
    },
};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, ThreadId,
    store::{
        RunChange, RunKey, RunRecord, RunStatus, RunStore, RunSummary, StoreError, StoreFuture,
        Tenant,
    },
};
use std::{
    collections::{HashMap, HashSet},
    time::SystemTime,
};

pub(super) struct Row {
    pub(super) standing: Standing,
    client_id: RunId,
    begun: u64,
    // Whether the run was ever suspended.
    waited: bool,
    state: State,
    replies: Vec<Reply>,
    replied_at: Option<SystemTime>,
    asked: Vec<InterruptId>,
}

#[derive(Clone, Default)]
struct State {
    // The state without its turns, as JSON.
    head: String,
    turns: Turns,
    // The message of the open round.
    message: Option<MessageId>,
}

impl State {
    /// Applies `change`, and returns the interrupts that the run waits on then.
    fn change(&mut self, change: RunChange, max: usize) -> Result<Vec<InterruptId>, StoreError> {
        let head = write_head(&change.head)?;
        self.turns.replace(change.keep, change.turns, max)?;
        check_total(self.turns.bytes.saturating_add(head.head.len()), max)?;
        self.head = head.head;
        self.message = head.message;
        Ok(head.asks)
    }
}

impl Row {
    /// The state with `change` applied, and the interrupts that the run waits on then.
    fn changed(
        &self,
        change: RunChange,
        max: usize,
    ) -> Result<(State, Vec<InterruptId>), StoreError> {
        let mut state = self.state.clone();
        let asks = state.change(change, max)?;
        Ok((state, asks))
    }

    fn set_state(&mut self, (state, asks): (State, Vec<InterruptId>)) {
        self.state = state;
        for id in asks {
            if let Err(at) = self.asked.binary_search(&id) {
                self.asked.insert(at, id);
            }
        }
    }

    fn forget_replies(&mut self) {
        self.replies.clear();
        self.replied_at = None;
    }

    fn record(&self, key: RunKey, options: &Options) -> Result<RunRecord, StoreError> {
        let State { head, turns, .. } = &self.state;
        let turns = turns.list.iter().cloned();
        let state = read_run(&key, head, turns, options.max_state_bytes)?;
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

impl Kept {
    fn row(&mut self, key: &RunKey) -> Result<&mut Row, StoreError> {
        self.runs.get_mut(key).ok_or(StoreError::NotFound)
    }

    /// Returns the row if `fence` is its current fence, and advances its version.
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

    /// Fails if the conversation or the tenant has reached its limit of waiting runs.
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

    /// Ends the runs for which `is_meant` is true, oldest first; returns their number.
    pub(super) fn end_all(
        &mut self,
        now: SystemTime,
        is_meant: impl Fn(&RunKey, &Row) -> bool,
    ) -> usize {
        let rows = self.runs.iter_mut();
        let rows = rows.filter(|(key, row)| is_meant(key, row));
        let mut rows: Vec<&mut Row> = rows.map(|(_, row)| row).collect();
        rows.sort_by_key(|row| row.begun);
        for row in &mut rows {
            self.count += 1;
            row.standing.version = self.count;
            row.standing.status = RunStatus::Ended;
            row.standing.since = Some(now);
        }
        rows.len()
    }
}

/// Returns whether a run begun with `client_id` in the conversation is running.
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
        change: RunChange,
        lease_until: SystemTime,
    ) -> StoreFuture<u64> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let mut state = State::default();
            let asks = state.change(change, options.max_state_bytes)?;
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
                    since: None,
                },
                client_id,
                begun: fence,
                waited: false,
                state: State::default(),
                replies: Vec::new(),
                replied_at: None,
                asked: Vec::new(),
            };
            row.set_state((state, asks));
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
            row.standing.check_claim(version, &options, now)?;
            let replies = merge_replies(&row.replies, replies);
            write_replies(&replies, options.max_state_bytes)?;
            // A run whose state cannot be read must not be claimed.
            row.record(key.clone(), &options)?;
            let fence = kept.count();
            let row = kept.row(&key)?;
            row.standing = Standing {
                status: RunStatus::Running,
                version: fence,
                fence,
                lease_until,
                ..row.standing
            };
            if !replies.is_empty() {
                row.replies = replies;
                row.replied_at.get_or_insert(now);
            }
            row.record(key, &options)
        })
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_claim(version, &options, now)?;
            let state = row.changed(change, options.max_state_bytes)?;
            let version = kept.count();
            let row = kept.row(&key)?;
            row.standing.version = version;
            row.set_state(state);
            Ok(version)
        })
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        change: RunChange,
        lease_until: SystemTime,
    ) -> StoreFuture<()> {
        let max = self.options.max_state_bytes;
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_fence(fence)?;
            let state = row.changed(change, max)?;
            let row = kept.held(&key, fence)?;
            row.standing.lease_until = lease_until;
            row.set_state(state);
            row.forget_replies();
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
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<()> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_fence(fence)?;
            let state = row.changed(change, options.max_state_bytes)?;
            let has_waited = row.waited;
            if !has_waited && kept.check_waiting(&options, &key).is_err() {
                // Some may be overdue.
                kept.purge(&options, now);
                kept.check_waiting(&options, &key)?;
            }
            let row = kept.held(&key, fence)?;
            row.standing.status = RunStatus::Suspended;
            row.standing.since = Some(now);
            row.waited = true;
            row.set_state(state);
            row.forget_replies();
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
                row.standing.since = Some(now);
            }
            kept.purge(&options, now);
            Ok(())
        })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        let Self { options, .. } = *self;
        self.work(move |kept| {
            let waiting = kept.end_all(now, |key, row| {
                row.standing.status == RunStatus::Suspended
                    && key.tenant == tenant
                    && key.thread == thread
            });
            kept.purge(&options, now);
            Ok(waiting)
        })
    }

    fn find_by_interrupt(
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

    fn list_by_thread(
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
                    let meant = message.is_none() || row.state.message == message;
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
