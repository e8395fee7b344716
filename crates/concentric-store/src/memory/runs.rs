use super::{Kept, MemoryStore, turns::Turns};
use crate::{
    Options,
    rules::{
        Standing, WITHDRAWN, check_total, check_waiting, end_of, merge_replies, read_run, readable,
        renewed, write_head, write_replies,
    },
};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{
        Renewed, RunChange, RunKey, RunRecord, RunStatus, RunStore, RunSummary, StoreError,
        StoreFuture, Tenant,
    },
};
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, SystemTime},
};

pub(super) struct Row {
    pub(super) standing: Standing,
    client_id: RunId,
    begun: u64,
    // Whether the run was ever suspended.
    waited: bool,
    // Whether its cancellation was requested.
    cancel: bool,
    state: State,
    replies: Vec<Reply>,
    replied_at: Option<SystemTime>,
    asked: Vec<InterruptId>,
    outcome: Option<Result<Outcome, ErrorKind>>,
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

    /// Sets the state that the owner of the run has written.
    fn set_written(&mut self, state: (State, Vec<InterruptId>)) {
        self.set_state(state);
        self.standing.takeovers = 0;
        self.replies.clear();
        self.replied_at = None;
    }

    fn record(&self, key: RunKey, options: &Options) -> Result<RunRecord, StoreError> {
        let State { head, turns, .. } = &self.state;
        let turns = turns.list.iter().cloned();
        let state = read_run(&key, head.as_bytes(), turns, options.max_state_bytes)?;
        let mut record = RunRecord::new(key, self.client_id.clone(), state);
        self.standing.show(options.now(), &mut record);
        record.replies.clone_from(&self.replies);
        record.replied_at = self.replied_at;
        record.asked.clone_from(&self.asked);
        record.outcome.clone_from(&self.outcome);
        Ok(record)
    }

    fn summary(&self, key: RunKey, now: SystemTime) -> RunSummary {
        let (status, until) = (self.standing.status_at(now), self.standing.lease_until);
        let mut summary = RunSummary::new(key, self.client_id.clone(), status, until);
        summary.outcome.clone_from(&self.outcome);
        summary
    }

    fn set_ended(&mut self, version: u64, now: SystemTime, outcome: Result<Outcome, ErrorKind>) {
        self.standing.version = version;
        self.standing.status = RunStatus::Ended;
        self.standing.since = Some(now);
        self.outcome = Some(outcome);
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

    /// Ends a run, unless this claim has already ended it.
    pub(super) fn end(
        &mut self,
        key: &RunKey,
        fence: u64,
        now: SystemTime,
        outcome: Result<Outcome, ErrorKind>,
    ) -> Result<(), StoreError> {
        let standing = self.row(key)?.standing;
        standing.check_end(fence)?;
        if standing.status != RunStatus::Ended {
            let version = self.count();
            self.row(key)?.set_ended(version, now, outcome);
        }
        Ok(())
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
        outcome: &Outcome,
        is_meant: impl Fn(&RunKey, &Row) -> bool,
    ) -> usize {
        let rows = self.runs.iter_mut();
        let rows = rows.filter(|(key, row)| is_meant(key, row));
        let mut rows: Vec<&mut Row> = rows.map(|(_, row)| row).collect();
        rows.sort_by_key(|row| row.begun);
        for row in &mut rows {
            self.count += 1;
            row.set_ended(self.count, now, Ok(outcome.clone()));
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
        lease: Duration,
    ) -> StoreFuture<u64> {
        let options = self.options.clone();
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
                standing: Standing::begun(fence, end_of(options.now(), lease)),
                client_id,
                begun: fence,
                waited: false,
                cancel: false,
                state: State::default(),
                replies: Vec::new(),
                replied_at: None,
                asked: Vec::new(),
                outcome: None,
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
        let options = self.options.clone();
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.record(key, &options)
        })
    }

    fn claim(
        &self,
        mut record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            let row = kept.row(&record.key)?;
            row.standing.check_claim(record.version, &options, now)?;
            let replies = merge_replies(&row.replies, replies);
            write_replies(&replies, options.max_state_bytes)?;
            let fence = kept.count();
            let row = kept.row(&record.key)?;
            row.standing = row.standing.claimed(fence, now, end_of(now, lease));
            if !replies.is_empty() {
                row.replies = replies;
                row.replied_at.get_or_insert(now);
            }
            row.standing.show(now, &mut record);
            record.replies.clone_from(&row.replies);
            record.replied_at = row.replied_at;
            Ok(record)
        })
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            let rows = kept.runs.iter_mut();
            let mut rows: Vec<_> = rows
                .filter(|(_, row)| {
                    let standing = &row.standing;
                    let is_overdue = standing.is_overdue(&options, now);
                    standing.status_at(now) == RunStatus::Abandoned && !is_overdue
                })
                .collect();
            rows.sort_by_key(|(_, row)| (row.standing.lease_until, row.begun));
            let mut claimed = Vec::new();
            for (key, row) in rows {
                if claimed.len() == limit {
                    break;
                }
                kept.count += 1;
                row.standing = row.standing.claimed(kept.count, now, end_of(now, lease));
                claimed.extend(readable(row.record(key.clone(), &options))?);
            }
            Ok(claimed)
        })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        let options = self.options.clone();
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_claim(version, &options, options.now())?;
            let state = row.changed(change, options.max_state_bytes)?;
            let version = kept.count();
            let row = kept.row(&key)?;
            row.standing.version = version;
            row.set_state(state);
            Ok(version)
        })
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            let row = kept.row(&key)?;
            row.standing.check_fence(fence)?;
            let state = row.changed(change, options.max_state_bytes)?;
            let row = kept.held(&key, fence)?;
            row.standing.lease_until = end_of(options.now(), lease);
            row.set_written(state);
            Ok(())
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        let options = self.options.clone();
        self.work(move |kept| {
            let row = kept.held(&key, fence)?;
            row.standing.lease_until = end_of(options.now(), lease);
            if lease.is_zero() {
                row.standing.takeovers = 0;
            }
            Ok(renewed(row.cancel))
        })
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.work(move |kept| {
            let row = kept.runs.get_mut(&key);
            let row = row.filter(|row| row.standing.status == RunStatus::Running);
            Ok(row.is_some_and(|row| {
                row.cancel = true;
                true
            }))
        })
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
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
            row.cancel = false;
            row.set_written(state);
            Ok(())
        })
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            kept.end(&key, fence, now, outcome)?;
            kept.purge(&options, now);
            Ok(())
        })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            let waiting = kept.end_all(now, &WITHDRAWN, |key, row| {
                row.standing.status == RunStatus::Suspended
                    && key.tenant == tenant
                    && key.thread == thread
            });
            kept.purge(&options, now);
            Ok(waiting)
        })
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        let options = self.options.clone();
        self.work(move |kept| {
            let row = kept.runs.get_mut(&key);
            let row =
                row.filter(|row| row.standing.status_at(options.now()) == RunStatus::Quarantined);
            Ok(row.is_some_and(|row| {
                row.standing.takeovers = 0;
                true
            }))
        })
    }

    fn purge(&self) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            kept.purge(&options, options.now());
            Ok(())
        })
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let options = self.options.clone();
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

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        let options = self.options.clone();
        self.work(move |kept| {
            let found = kept.runs.iter().filter(|(key, row)| {
                key.tenant == tenant && key.thread == thread && row.client_id == client_id
            });
            let found =
                found.max_by_key(|(_, row)| (row.standing.status == RunStatus::Running, row.begun));
            let (key, row) = found.ok_or(StoreError::NotFound)?;
            Ok(row.summary(key.clone(), options.now()))
        })
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let options = self.options.clone();
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
            let summary = |(key, row): (&RunKey, &Row)| row.summary(key.clone(), options.now());
            Ok(rows.map(summary).collect())
        })
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        let options = self.options.clone();
        self.work(move |kept| {
            let mut rows: Vec<_> = kept
                .runs
                .iter()
                .filter(|(key, row)| {
                    key.tenant == tenant && row.standing.status == RunStatus::Suspended
                })
                .collect();
            rows.sort_by_key(|(_, row)| (row.standing.since, row.begun));
            let rows = rows.into_iter().take(limit);
            let summary = |(key, row): (&RunKey, &Row)| row.summary(key.clone(), options.now());
            Ok(rows.map(summary).collect())
        })
    }
}
