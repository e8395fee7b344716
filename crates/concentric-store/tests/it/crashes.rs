//! The cases of crashes find stores that lose acknowledged writes, or apply some in part.

use crate::kinds::{Kind, Sqlite};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{Renewed, RunChange, RunKey, RunRecord, RunStore, RunSummary, StoreFuture, Tenant},
};
use concentric_store::{Options, SqliteStore};
use concentric_test::{ManualClock, StoreHarness, store::cases::crashes};
use std::time::Duration;

/// Longer than a test waits before it kills the process that writes.
const PAUSE: Duration = Duration::from_millis(20);

/// Reports a `save` before it is made.
const SAVES_LATER: u8 = 1;

/// Makes a `save` in two steps, the first of which stores half of the turns.
const SAVES_IN_TWO_STEPS: u8 = 2;

struct Faulty<const FAULT: u8>(Sqlite);

impl<const FAULT: u8> StoreHarness for Faulty<FAULT> {
    type Store = FaultyStore<FAULT>;

    async fn start(clock: ManualClock) -> Self {
        Self(Sqlite::with(Options::new().clock(clock)).await)
    }

    async fn open(&self) -> Self::Store {
        FaultyStore(self.0.open().await)
    }

    async fn shared(name: &str, clock: ManualClock) -> Option<Self> {
        Sqlite::shared(name, clock).await.map(Self)
    }
}

#[derive(Clone)]
struct FaultyStore<const FAULT: u8>(SqliteStore);

macro_rules! unchanged {
    ($($name:ident($($argument:ident: $of:ty),*) -> $result:ty;)+) => {
        $(fn $name(&self, $($argument: $of),*) -> StoreFuture<$result> {
            self.0.$name($($argument),*)
        })+
    };
}

impl<const FAULT: u8> RunStore for FaultyStore<FAULT> {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        RunStore::begin(&self.0, key, client_id, change, lease)
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let store = self.0.clone();
        match FAULT {
            SAVES_LATER => Box::pin(async move {
                tokio::spawn(async move {
                    tokio::time::sleep(PAUSE).await;
                    store.save(key, fence, change, lease).await
                });
                Ok(())
            }),
            SAVES_IN_TWO_STEPS => Box::pin(async move {
                let mut first = change.clone();
                first.turns.truncate(change.turns.len() / 2);
                store.save(key.clone(), fence, first, lease).await?;
                tokio::time::sleep(PAUSE).await;
                store.save(key, fence, change, lease).await
            }),
            _ => store.save(key, fence, change, lease),
        }
    }

    fn purge(&self) -> StoreFuture<()> {
        RunStore::purge(&self.0)
    }

    unchanged! {
        is_live(tenant: Tenant, thread: ThreadId, client_id: RunId) -> bool;
        get(key: RunKey) -> RunRecord;
        claim(record: RunRecord, replies: Vec<Reply>, lease: Duration) -> RunRecord;
        claim_abandoned(limit: usize, lease: Duration) -> Vec<RunRecord>;
        amend(key: RunKey, version: u64, change: RunChange) -> u64;
        renew(key: RunKey, fence: u64, lease: Duration) -> Renewed;
        cancel(key: RunKey) -> bool;
        suspend(key: RunKey, fence: u64, change: RunChange) -> ();
        end(key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> ();
        withdraw(tenant: Tenant, thread: ThreadId) -> usize;
        release(key: RunKey) -> bool;
        find_by_interrupt(tenant: Tenant, thread: ThreadId, questions: Vec<InterruptId>) -> RunRecord;
        find_by_client_id(tenant: Tenant, thread: ThreadId, client_id: RunId) -> RunSummary;
        list_by_thread(tenant: Tenant, thread: ThreadId, message: Option<MessageId>, limit: usize)
            -> Vec<RunSummary>;
        list_waiting(tenant: Tenant, limit: usize) -> Vec<RunSummary>;
    }
}

#[test]
#[should_panic(expected = "the state of a run is that of its last acknowledged write")]
fn an_acknowledged_write_that_is_made_later_is_found() {
    let test = concat!(
        module_path!(),
        "::an_acknowledged_write_that_is_made_later_is_found"
    );
    crashes::a_killed_process_leaves_whole_runs::<Faulty<SAVES_LATER>>(test);
}

#[test]
#[should_panic(expected = "failed with `store_failed` (the store failed): run")]
fn a_write_in_two_steps_is_found() {
    let test = concat!(module_path!(), "::a_write_in_two_steps_is_found");
    crashes::a_killed_process_leaves_whole_runs::<Faulty<SAVES_IN_TWO_STEPS>>(test);
}
