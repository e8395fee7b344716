//! The connection of a process to the store: it takes time, breaks, and loses requests and answers.

use super::{
    agent::{Script, Settings},
    history::{End, What},
    limits,
    time::{Act, ProcessId, Time, lock},
    world::Hosts,
};
use crate::dice::Dice;
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, Role, RunId, Str, ThreadId, ToolOutcome,
    Turn,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, Once, Renewed, RunChange, RunKey, RunRecord,
        RunStatus, RunStore, RunSummary, SharedBudget, StoreError, StoreFuture, StoredThread,
        Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use concentric_store::MemoryStore;
use futures_util::FutureExt;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;

// ---- the database ----

/// The store, and the status of its runs for the clients that watch it.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) time: Time,
    pub(super) store: MemoryStore,
    // By the tags of their requests.
    rows: Arc<Mutex<BTreeMap<String, Row>>>,
    // The milliseconds that each request takes at the most.
    pub(super) slow: Arc<Mutex<u64>>,
    /// Those of each tenant, if processes share limits.
    pub(super) budgets: Vec<SharedBudget>,
    has_poison: bool,
    /// Ends one in eight processes that have stored the history of a run that asks, until the last fault.
    deaths: Arc<Mutex<Option<Dice>>>,
}

/// A run, as its client sees it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: RunKey,
    pub(super) status: RunStatus,
    /// Whether the run ends each process that resumes it.
    is_poisoned: bool,
}

impl Database {
    pub(super) fn new(
        time: Time,
        store: MemoryStore,
        settings: &Settings,
        deaths: Option<Dice>,
    ) -> Self {
        let shared = settings.shared.as_ref();
        Self {
            time,
            store,
            rows: Arc::default(),
            slow: Arc::new(Mutex::new(0)),
            budgets: shared.map_or_else(Vec::new, |shared| limits::budgets(shared.money)),
            has_poison: settings.has_poison,
            deaths: Arc::new(Mutex::new(deaths)),
        }
    }

    pub(super) fn row(&self, tag: &str) -> Option<Row> {
        lock(&self.rows).get(tag).cloned()
    }

    /// The runs that have not ended.
    pub(super) fn open(&self) -> Vec<(String, Row)> {
        let rows = lock(&self.rows);
        let open = rows
            .iter()
            .filter(|(_, row)| row.status != RunStatus::Ended);
        open.map(|(tag, row)| (tag.clone(), row.clone())).collect()
    }

    /// The outcomes of the runs that have one.
    pub(super) fn ends(&self) -> BTreeMap<String, End> {
        let rows = lock(&self.rows);
        let ends = rows.values().filter_map(|row| {
            let record = self.read(self.store.get(row.key.clone())).ok()?;
            Some((row.key.run.to_string(), end_of(&record.outcome?)))
        });
        ends.collect()
    }

    fn set(&self, run: &RunId, status: RunStatus) {
        let mut rows = lock(&self.rows);
        if let Some(row) = rows.values_mut().find(|row| row.key.run == *run) {
            row.status = status;
        }
    }

    /// Ends the processes that have resumed a poisoned run.
    fn poison(&self, process: ProcessId, run: &RunId) {
        let rows = lock(&self.rows);
        let is_poisoned = |row: &Row| row.is_poisoned && row.key.run == *run;
        if rows.values().any(is_poisoned) {
            let act = move |hosts: &mut Hosts| hosts.poison(process);
            self.time.after(0, None, Act::World(Box::new(act)));
        }
    }

    /// Ends a process that has stored the history of a run that asks.
    fn end_after_append(&self, process: ProcessId) {
        if lock(&self.deaths)
            .as_mut()
            .is_some_and(|dice| dice.one_in(8))
        {
            let act = move |hosts: &mut Hosts| hosts.poison(process);
            self.time.after(0, None, Act::World(Box::new(act)));
        }
    }

    /// Ends the poison of one run, or of all runs and the deaths.
    pub(super) fn cure(&self, run: Option<&RunId>) {
        if run.is_none() {
            *lock(&self.deaths) = None;
        }
        for row in lock(&self.rows).values_mut() {
            row.is_poisoned &= run.is_some_and(|run| row.key.run != *run);
        }
    }

    /// Returns the result of a work of the store, which is there at once.
    pub(super) fn read<T>(&self, work: StoreFuture<T>) -> Result<T, StoreError> {
        work.now_or_never()
            .unwrap_or_else(|| Err(StoreError::failed("the store in memory was not ready")))
    }
}

// ---- the connection ----

/// The faults of the connection of a process.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Requests are lost.
    pub(super) is_cut_to: bool,
    /// Answers are lost.
    pub(super) is_cut_back: bool,
    /// One in so many requests, and as many answers, is lost with its connection; none if it is 0.
    pub(super) loses: u64,
    /// The process is dead.
    pub(super) is_dead: bool,
}

/// The store, as a process reaches it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) database: Database,
    pub(super) process: ProcessId,
    pub(super) wire: Arc<Mutex<Wire>>,
}

/// After this many milliseconds, a request without an answer has failed.
const TIMEOUT: u64 = 2_000;

fn lost() -> StoreError {
    StoreError::failed("the connection to the store is lost")
}

type Notes<T> = Box<dyn FnOnce(&Database, &T) -> Vec<What> + Send>;

impl Connection {
    /// Sends `work` to the store, which notes what it has done.
    pub(super) fn send<T: Send + 'static>(
        &self,
        work: StoreFuture<T>,
        noting: impl FnOnce(&Database, &T) -> Vec<What> + Send + 'static,
    ) -> StoreFuture<T> {
        let (connection, noting) = (self.clone(), Box::new(noting) as Notes<T>);
        Box::pin(async move {
            // The requests of a dead process do not leave it.
            if lock(&connection.wire).is_dead {
                return std::future::pending().await;
            }
            let (sender, answer) = oneshot::channel();
            connection.begin(work, noting, sender);
            match answer.await {
                Ok(done) => done,
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn begin<T: Send + 'static>(
        &self,
        work: StoreFuture<T>,
        noting: Notes<T>,
        sender: oneshot::Sender<Result<T, StoreError>>,
    ) {
        let time = &self.database.time;
        let (slow, loses) = (*lock(&self.database.slow), lock(&self.wire).loses);
        let (to, back, request, answer) = time.dice(|dice| {
            let to = dice.range(1, 4) + dice.below(slow + 1);
            let mut luck = || loses > 0 && dice.one_in(loses);
            let (request, answer) = (luck(), luck());
            (to, dice.range(1, 4), request, answer)
        });
        // Whichever is first is the answer.
        let sender = Arc::new(Mutex::new(Some(sender)));
        let deliver = {
            let (time, process) = (time.clone(), self.process);
            move |after: u64, done: Result<T, StoreError>, wire: Option<Arc<Mutex<Wire>>>| {
                let sender = Arc::clone(&sender);
                let act = move || {
                    let is_cut = wire.is_some_and(|wire| lock(&wire).is_cut_back);
                    if !is_cut && let Some(sender) = lock(&sender).take() {
                        let _ = sender.send(done);
                    }
                };
                time.after(after, Some(process), Act::Do(Box::new(act)));
            }
        };
        if request {
            return deliver(to, Err(lost()), None);
        }
        let timed_out = StoreError::failed("the statement timed out");
        deliver(TIMEOUT, Err(timed_out), None);
        let (database, wire) = (self.database.clone(), Arc::clone(&self.wire));
        let process = self.process;
        time.then(to, move || {
            // One that has left a process arrives, also if the process has died.
            if lock(&wire).is_cut_to {
                return;
            }
            let done = database.read(work);
            if let Ok(done) = &done {
                for what in noting(&database, done) {
                    database.time.note(Some(process), what);
                }
            }
            let done = match answer {
                true => Err(lost()),
                false => done,
            };
            deliver(back, done, Some(wire));
        });
    }

    pub(super) fn ask<T: Send + 'static>(&self, work: StoreFuture<T>) -> StoreFuture<T> {
        self.send(work, |_, _| Vec::new())
    }
}

pub(super) fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

fn pairs<'a>(replies: impl IntoIterator<Item = &'a Reply>) -> Vec<(String, String)> {
    let pair = |reply: &Reply| (reply.interrupt_id.to_string(), text(reply));
    replies.into_iter().map(pair).collect()
}

/// A reply without its token.
pub(super) fn text(reply: &Reply) -> String {
    format!("{:?} {:?}", reply.status, reply.payload)
}

pub(super) const fn end_of(outcome: &Result<Outcome, ErrorKind>) -> End {
    match outcome {
        Ok(Outcome::Completed) => End::Completed,
        Ok(Outcome::Halted { .. }) => End::Halted,
        Ok(Outcome::Aborted { .. }) => End::Aborted,
        Ok(_) => End::Other,
        Err(_) => End::Failed,
    }
}

/// A turn in some words.
pub(super) fn outline(turn: &Turn) -> String {
    let message = turn.as_message();
    let calls: Vec<_> = message.tool_calls().map(|call| call.id.as_str()).collect();
    format!("{:?} {} {calls:?}", message.role, message.text())
}

fn script_of(turns: &[Turn]) -> Option<Script> {
    let mut newest = turns.iter().rev().map(Turn::as_message);
    Script::read(&newest.find(|it| it.role == Role::User)?.text())
}

fn claimed(record: &RunRecord, sent: &[Reply], lease: Duration) -> What {
    // Accepted since the last write of the state, or before.
    let known = record.replies.iter().chain(record.state.replies());
    What::Claimed {
        run: record.key.run.to_string(),
        fence: record.fence,
        lease: millis(lease),
        sent: pairs(sent),
        known: pairs(known),
    }
}

impl RunStore for Connection {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let script = script_of(&change.turns);
        let is_poisoned = script.as_ref().is_some_and(|it| it.variant % 4 == 1);
        let tag = script.map(|script| script.tag).unwrap_or_default();
        let (kept, client) = (key.clone(), client_id.to_string());
        let work = RunStore::begin(&self.database.store, key, client_id, change, lease);
        self.send(work, move |database, fence| {
            let row = Row {
                key: kept.clone(),
                status: RunStatus::Running,
                is_poisoned: is_poisoned && database.has_poison,
            };
            lock(&database.rows).insert(tag.clone(), row);
            vec![What::Begun {
                run: kept.run.to_string(),
                client,
                tag,
                fence: *fence,
                lease: millis(lease),
            }]
        })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.ask(self.database.store.is_live(tenant, thread, client_id))
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        self.ask(self.database.store.get(key))
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let work = self.database.store.claim(record, replies.clone(), lease);
        self.send(work, move |database, record| {
            database.set(&record.key.run, RunStatus::Running);
            vec![claimed(record, &replies, lease)]
        })
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let work = self.database.store.claim_abandoned(limit, lease);
        let process = self.process;
        self.send(work, move |database, records| {
            for record in records {
                database.poison(process, &record.key.run);
            }
            let runs = records.iter().map(|record| record.key.run.to_string());
            let runs = runs.collect();
            let mut notes = vec![What::Swept { limit, runs }];
            notes.extend(records.iter().map(|record| claimed(record, &[], lease)));
            notes
        })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        self.ask(self.database.store.amend(key, version, change))
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let run = key.run.to_string();
        let lease_millis = millis(lease);
        let work = self.database.store.save(key, fence, change, lease);
        self.send(work, move |_, ()| {
            vec![What::Saved {
                run,
                fence,
                lease: lease_millis,
            }]
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        let run = key.run.to_string();
        let lease_millis = millis(lease);
        let work = self.database.store.renew(key, fence, lease);
        self.send(work, move |_, _| {
            vec![What::Renewed {
                run,
                fence,
                lease: lease_millis,
            }]
        })
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.ask(self.database.store.cancel(key))
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let run = key.run.clone();
        let questions = change.head.interrupts().into_iter();
        let questions = questions.map(|asked| asked.id.to_string()).collect();
        let work = self.database.store.suspend(key, fence, change);
        self.send(work, move |database, ()| {
            database.set(&run, RunStatus::Suspended);
            let run = run.to_string();
            vec![What::Suspended {
                run,
                fence,
                questions,
            }]
        })
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        let (run, end) = (key.run.clone(), end_of(&outcome));
        let work = self.database.store.end(key, fence, outcome);
        self.send(work, move |database, ()| ended(database, &run, fence, end))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        self.ask(self.database.store.withdraw(tenant, thread))
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        self.ask(self.database.store.release(key))
    }

    fn purge(&self) -> StoreFuture<()> {
        self.ask(self.database.store.purge())
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let store = &self.database.store;
        self.ask(store.find_by_interrupt(tenant, thread, questions))
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        let store = &self.database.store;
        self.ask(store.find_by_client_id(tenant, thread, client_id))
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let store = &self.database.store;
        self.ask(store.list_by_thread(tenant, thread, message, limit))
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        self.ask(self.database.store.list_waiting(tenant, limit))
    }
}

/// Notes the end of a run, also if it is repeated.
fn ended(database: &Database, run: &RunId, fence: u64, end: End) -> Vec<What> {
    database.set(run, RunStatus::Ended);
    let run = run.to_string();
    vec![What::Ended { run, fence, end }]
}

impl Ledger for Connection {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        let claim = intent.claim.clone();
        let work = Ledger::begin(&self.database.store, key, intent);
        self.send(work, move |_, entry| match (entry, claim) {
            (LedgerEntry::New, Some(claim)) => vec![What::EffectBegan {
                run: claim.key.run.to_string(),
                fence: claim.fence,
            }],
            _ => Vec::new(),
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.ask(self.database.store.finish(key, outcome))
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.ask(self.database.store.known(key))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.ask(self.database.store.retract(key))
    }
}

impl Once for Connection {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        self.ask(self.database.store.once(tenant, key, keep))
    }
}

impl ThreadStore for Connection {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.ask(self.database.store.load(tenant, thread))
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        let store = &self.database.store;
        self.ask(store.turns(tenant, thread, start, limit))
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let ends = change.ends.clone();
        let (id, keep) = (change.id.clone().unwrap_or_default(), change.keep);
        let turns: Vec<_> = change.turns.iter().map(outline).collect();
        let told = format!("{thread} at {version} keeps {keep} and gets {turns:?} by {id}");
        let work = self.database.store.append(tenant, thread, version, change);
        let process = self.process;
        self.send(work, move |database, new| {
            let mut notes = vec![What::Told(format!("{told}, now {new}"))];
            match ends {
                Some((claim, Ok(Outcome::Interrupted))) => {
                    database.end_after_append(process);
                    let (run, fence) = (claim.key.run.to_string(), claim.fence);
                    notes.push(What::Appended { run, fence });
                }
                Some((claim, outcome)) => {
                    let end = end_of(&outcome);
                    notes.extend(ended(database, &claim.key.run, claim.fence, end));
                }
                None => {}
            }
            notes
        })
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let store = &self.database.store;
        self.ask(store.fork(tenant, thread, version, to, change))
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.ask(self.database.store.list_threads(tenant, before, limit))
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        self.ask(ThreadStore::delete(&self.database.store, tenant, thread))
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        self.ask(self.database.store.delete_tenant(tenant))
    }
}
