//! What the cases share: how they run, how they fail, and common steps.

#![expect(clippy::panic, reason = "assertions")]

use super::values::{at, client, key, question, running, secs, waiting};
use crate::{ManualClock, SeededRandom, StoreHarness};
use concentric_core::{
    ErrorKind, Outcome, Reply,
    context::Random as _,
    store::{
        BudgetStore, CacheStore, Decisions, Ledger, Memories, Once, RunKey, RunRecord, RunStatus,
        RunStore, RunSummary, StoreError, StoreFuture, ThreadStore,
    },
};
use std::{
    error::Error as _,
    fmt::{Debug, Display},
    future::Future,
    pin::{Pin, pin},
    time::{Duration, SystemTime},
};

/// Names for the bounds on a harness.
macro_rules! bounds {
    ($($name:ident: $($of:ident)+,)+) => {
        $(
            pub(super) trait $name: StoreHarness<Store: $($of +)+> {}
            impl<H> $name for H where H: StoreHarness<Store: $($of +)+> {}
        )+
    };
}

bounds! {
    Runs: RunStore,
    LedgerOfRuns: RunStore Ledger,
    All: RunStore Ledger Decisions ThreadStore,
    Every: RunStore Ledger Once Decisions ThreadStore Memories CacheStore BudgetStore,
}

/// A store of its own for a case.
pub(super) struct Test<H: StoreHarness> {
    pub(super) harness: H,
    pub(super) store: H::Store,
    pub(super) clock: ManualClock,
}

impl<H: StoreHarness> Test<H> {
    pub(super) async fn start() -> Self {
        let clock = ManualClock::at(at(0));
        let harness = H::start(clock.clone()).await;
        let store = harness.open().await;
        Self {
            harness,
            store,
            clock,
        }
    }

    /// Sets the clock.
    pub(super) fn set(&self, seconds: u64) {
        self.clock.set(at(seconds));
    }
}

/// Runs a case, which must end within a minute for each default number of rounds.
pub(crate) fn run<H, F>(case: impl FnOnce(Test<H>) -> F)
where
    H: StoreHarness,
    F: Future<Output = ()>,
{
    if !H::is_available() {
        println!("skipped: the store is not available");
        return;
    }
    // Without its type from here on: runtimes take long to compile for each case of each store.
    in_time(pin!(async { case(Test::start().await).await }));
}

fn in_time(case: Pin<&mut dyn Future<Output = ()>>) {
    let minutes = rounds() / ROUNDS + 1;
    block_on(pin!(async {
        let ended = tokio::time::timeout(secs(60 * minutes), case).await;
        ended.unwrap_or_else(|_| panic!("the store did not respond within {minutes} minutes"));
    }));
}

pub(super) fn block_on(work: Pin<&mut dyn Future<Output = ()>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(work);
}

const ROUNDS: u64 = 10;

/// The number of races, and of random sequences.
pub(super) fn rounds() -> u64 {
    variable("CONCENTRIC_STORE_ROUNDS", ROUNDS)
}

/// Random numbers of a seed.
pub(super) struct Numbers(SeededRandom);

impl Numbers {
    pub(super) const fn new(seed: u64) -> Self {
        Self(SeededRandom::new(seed))
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }
}

pub(super) fn since_1970(now: SystemTime) -> Duration {
    now.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// The seed of the first random sequence.
pub(super) fn seed() -> u64 {
    variable("CONCENTRIC_STORE_SEED", 1)
}

fn variable(name: &str, default: u64) -> u64 {
    let Ok(value) = std::env::var(name) else {
        return default;
    };
    value
        .parse()
        .unwrap_or_else(|_| panic!("`{name}` is not a number: `{value}`"))
}

/// The error with its sources.
pub(super) fn text(error: &StoreError) -> String {
    let mut text = format!("`{}` ({error})", error.code());
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The value of an operation that must succeed.
#[track_caller]
pub(super) fn done<T>(result: Result<T, StoreError>, what: impl Display) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what} must succeed, but failed with {}", text(&error)),
    }
}

/// Checks that an operation fails with the error `code`.
#[track_caller]
pub(super) fn fails<T: Debug>(result: Result<T, StoreError>, code: &str, what: impl Display) {
    match result {
        Ok(value) => panic!("{what} must fail with `{code}`, but returned {value:?}"),
        Err(error) if error.code() == code => {}
        Err(error) => panic!(
            "{what} must fail with `{code}`, but failed with {}",
            text(&error)
        ),
    }
}

/// Checks a value of the store.
#[track_caller]
#[expect(
    clippy::needless_pass_by_value,
    reason = "most values are made for the call"
)]
pub(super) fn same<T, U>(found: T, expected: U, what: impl Display)
where
    T: PartialEq<U> + Debug,
    U: Debug,
{
    if found != expected {
        panic!("{what} must be {expected:?}, but is {found:?}");
    }
}

/// The fields in which two records differ.
pub(super) fn differences(found: &RunRecord, expected: &RunRecord) -> String {
    let mut all = Vec::new();
    let mut field = |name: &str, found: &dyn Debug, expected: &dyn Debug| {
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        if found != expected {
            all.push(format!("its {name} is {found} instead of {expected}"));
        }
    };
    field("key", &found.key, &expected.key);
    field("client id", &found.client_id, &expected.client_id);
    field("status", &found.status, &expected.status);
    field("version", &found.version, &expected.version);
    field("fence", &found.fence, &expected.fence);
    field("lease", &found.lease_until, &expected.lease_until);
    field("takeovers", &found.takeovers, &expected.takeovers);
    field("replies", &found.replies, &expected.replies);
    field("time of replies", &found.replied_at, &expected.replied_at);
    field("asked interrupts", &found.asked, &expected.asked);
    field("outcome", &found.outcome, &expected.outcome);
    if found.state != expected.state {
        field("state", &found.state, &expected.state);
    }
    all.join("; ")
}

/// Checks a whole run.
#[track_caller]
pub(super) fn same_run(found: &RunRecord, expected: &RunRecord, what: impl Display) {
    let differences = differences(found, expected);
    if !differences.is_empty() {
        panic!("{what} has changed: {differences}");
    }
}

/// The names of runs.
pub(super) fn names<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> Vec<String> {
    let records = records.into_iter();
    records.map(|record| record.key.run.to_string()).collect()
}

/// Runs two operations on other threads, and returns their results.
pub(super) async fn race<T: Send + 'static>(
    one: StoreFuture<T>,
    other: StoreFuture<T>,
) -> [Result<T, StoreError>; 2] {
    let [one, other] = [one, other].map(tokio::spawn);
    let joined = |result: Result<_, tokio::task::JoinError>| {
        result.unwrap_or_else(|error| panic!("an operation panicked: {error}"))
    };
    [joined(one.await), joined(other.await)]
}

impl<H: Runs> Test<H> {
    /// Begins a run with a client id of its own; returns its fence.
    pub(super) async fn begin(&self, run: &str, lease: Duration) -> u64 {
        done(self.begin_as(run, run, lease).await, "`begin` of a new run")
    }

    /// Begins a run with the client id `name`.
    pub(super) async fn begin_as(
        &self,
        run: &str,
        name: &str,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        let change = running("hi").into();
        RunStore::begin(&self.store, key(run), client(name), change, lease).await
    }

    pub(super) async fn get(&self, run: &str) -> RunRecord {
        done(
            self.store.get(key(run)).await,
            format!("`get` of the run `{run}`"),
        )
    }

    pub(super) async fn status(&self, run: &str) -> RunStatus {
        self.get(run).await.status
    }

    pub(super) async fn suspend(&self, run: &str, fence: u64, id: &str) {
        let suspended = self
            .store
            .suspend(key(run), fence, waiting("hi", id).into());
        done(suspended.await, "`suspend` with the newest fence");
    }

    /// Creates a run that waits for a reply to the interrupt `id`; returns its version.
    pub(super) async fn waiting(&self, run: &str, id: &str) -> u64 {
        let fence = self.begin(run, secs(30)).await;
        self.suspend(run, fence, id).await;
        self.get(run).await.version
    }

    /// Claims the newest version of a run.
    pub(super) async fn claim(&self, run: &str, lease: Duration) -> Result<RunRecord, StoreError> {
        let record = self.get(run).await;
        self.store.claim(record, Vec::new(), lease).await
    }

    /// Claims a version of a run, which exists but may have another one.
    pub(super) async fn claim_version(
        &self,
        run: &str,
        version: u64,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> Result<RunRecord, StoreError> {
        let mut record = self.get(run).await;
        record.version = version;
        self.store.claim(record, replies, lease).await
    }

    /// Completes a run, which must be driven with this fence.
    pub(super) async fn end(&self, run: &str, fence: u64) {
        self.end_as(run, fence, Ok(Outcome::Completed)).await;
    }

    /// Ends a run, which must be driven with this fence.
    pub(super) async fn end_as(&self, run: &str, fence: u64, outcome: Result<Outcome, ErrorKind>) {
        let ended = self.store.end(key(run), fence, outcome).await;
        done(ended, "`end` with the newest fence");
    }

    /// The run that was started with this client id.
    pub(super) async fn of_client(&self, name: &str) -> Result<RunSummary, StoreError> {
        let RunKey { tenant, thread, .. } = key("");
        let found = self.store.find_by_client_id(tenant, thread, client(name));
        found.await
    }

    pub(super) async fn is_live(&self, name: &str) -> bool {
        let live = self
            .store
            .is_live(key("").tenant, key("").thread, client(name));
        done(live.await, "`is_live`")
    }

    /// The run that has raised an interrupt.
    pub(super) async fn asking(&self, ids: &[&str]) -> Result<RunRecord, StoreError> {
        let ids = ids.iter().map(|id| question(id)).collect();
        let found = self
            .store
            .find_by_interrupt(key("").tenant, key("").thread, ids);
        found.await
    }
}
