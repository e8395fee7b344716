//! Processes that are killed while they write: what a store has acknowledged is there, and the write that was under way
//! is applied completely or not at all.
//!
//! The test program starts the test again, in a process of its own with [`WRITES`] in its environment. That process
//! writes and reports each acknowledged write on stdout until it is killed.

#![expect(clippy::panic, reason = "assertions")]

use super::{
    kit::{Runs, Test, block_on, done, names, rounds, same, seed},
    ledger::{effect, finished, intent},
    threads::{WithThreads, id},
    values::{at, client, key, running_after, secs, tenant},
};
use crate::{ManualClock, StoreHarness};
use concentric_core::{
    Outcome, ToolOutcome, Transcript, Turn,
    machine::RunState,
    store::{
        Ledger, LedgerEntry, Once, RunRecord, RunStatus, RunStore, StoreError, ThreadChange,
        ThreadStore,
    },
};
use std::{
    io::{BufRead as _, BufReader},
    pin::pin,
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, SystemTime},
};

crashes! {
    $ __store_crashes crashes [RunStore]
    a_killed_process_leaves_whole_runs
}

crashes! {
    $ __store_crashes_of_threads crashes_of_threads [ThreadStore]
    a_killed_process_leaves_whole_changes_of_a_conversation
}

crashes! {
    $ __store_crashes_of_ledger crashes_of_ledger [Ledger]
    a_killed_process_loses_no_acknowledged_effect
}

crashes! {
    $ __store_crashes_of_once crashes_of_once [Once]
    a_killed_process_loses_no_acknowledged_key
}

/// The number of the round and the name of the store of a process that writes until it is killed.
const WRITES: &str = "CONCENTRIC_STORE_WRITES";

/// Precedes the number of an acknowledged write. The test runner may print something before it.
const MARK: &str = "> acknowledged ";

/// How long a process may take to start, and for each write.
const PATIENCE: Duration = secs(60);

/// The seconds between the clocks of two rounds, so that the leases of the first one have ended.
const ROUND: u64 = 1_000;

/// The name of a store that no other test has.
fn new_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis();
    format!("crash_{now}_{}_{n}", std::process::id())
}

/// Makes the writes of a round with increasing numbers, each after the last one was acknowledged.
///
/// In the process that is killed, `write` makes the write with this number, beginning with 0, and `check` is not
/// called. In the test, `check` is called in each round with the number of acknowledged writes.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the closures are made for the call"
)]
fn crash<H: StoreHarness, S>(
    test: &str,
    new: impl AsyncFn(&H::Store, u64) -> S,
    write: impl AsyncFn(&H::Store, &mut S, u64),
    check: impl AsyncFn(&Test<H>, u64, u64),
) {
    if let Ok(writes) = std::env::var(WRITES) {
        block_on(pin!(async {
            let (round, name) = writes
                .split_once(' ')
                .and_then(|(round, name)| Some((round.parse().ok()?, name)))
                .unwrap_or_else(|| panic!("`{WRITES}` is not a number and a name"));
            let opened = H::shared(name, ManualClock::at(at(round * ROUND))).await;
            let harness = opened.unwrap_or_else(|| panic!("the store cannot be opened again"));
            let store = harness.open().await;
            let mut state = new(&store, round).await;
            for n in 0.. {
                write(&store, &mut state, n).await;
                println!("{MARK}{n}");
            }
        }));
        return;
    }
    if !H::is_available() {
        println!("skipped: the store is not available");
        return;
    }
    block_on(pin!(async {
        let (name, clock) = (new_name(), ManualClock::at(at(0)));
        let Some(harness) = H::shared(&name, clock.clone()).await else {
            println!("skipped: several processes cannot use the store");
            return;
        };
        let store = harness.open().await;
        let test_of = Test {
            harness,
            store,
            clock,
        };
        let mut all = 0;
        for round in 0..rounds() {
            test_of.set(round * ROUND);
            let acknowledged = write_until_killed(test, &name, round);
            check(&test_of, round, acknowledged).await;
            all += acknowledged;
        }
        println!("{} processes were killed after {all} writes", rounds());
    }));
}

/// Ends a process when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process that writes, kills it at a random time, and returns the number of its acknowledged writes.
fn write_until_killed(test: &str, name: &str, round: u64) -> u64 {
    let program = std::env::current_exe();
    let program = program.unwrap_or_else(|error| panic!("the test program is unknown: {error}"));
    // Without the name of the crate.
    let (_, path) = test.split_once("::").unwrap_or_default();
    let started = Command::new(program)
        .args(["--exact", path, "--nocapture", "--test-threads=1"])
        .env(WRITES, format!("{round} {name}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child =
        Killed(started.unwrap_or_else(|error| panic!("the test program did not start: {error}")));
    let stdout = child.0.stdout.take();
    let stdout = stdout.unwrap_or_else(|| panic!("the process has no output"));
    let (send, acknowledged) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let number = line.split_once(MARK).map(|(_, number)| number.parse());
            if let Some(Ok(number)) = number {
                let _ = send.send(number);
            }
        }
    });
    let random = random(round);
    let mut count = 0;
    while count <= random % 16 {
        let last: Result<u64, _> = acknowledged.recv_timeout(PATIENCE);
        count = match last {
            Ok(last) => last + 1,
            Err(error) => panic!("the process that writes made no progress: {error}"),
        };
    }
    thread::sleep(Duration::from_micros(random / 16 % 4_000));
    drop(child);
    let _ = reader.join();
    acknowledged
        .try_iter()
        .last()
        .map_or(count, |last| last + 1)
}

/// A random number of a round.
fn random(round: u64) -> u64 {
    let mut random = seed().wrapping_add(round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..3 {
        random ^= random >> 31;
        random = random.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    random >> 16
}

/// Messages of different sizes: one, many, a large one.
fn texts(n: u64) -> Vec<String> {
    match n % 3 {
        0 => vec![format!("message {n}")],
        1 => (0..100).map(|of| format!("message {n} {of}")).collect(),
        _ => vec![format!("message {n} {}", "x".repeat(100_000))],
    }
}

/// The number of writes of a run: `begin`, two of `save`, `end`.
const WRITES_OF_A_RUN: u64 = 4;

fn run(round: u64, n: u64) -> String {
    format!("{round} {}", n / WRITES_OF_A_RUN)
}

/// The state of a run after the write number `n` of its process, which the last write does not change.
fn state(n: u64) -> RunState {
    let n = n - n % WRITES_OF_A_RUN / 3;
    let mut transcript = Transcript::new();
    for text in texts(n) {
        transcript.push_user(text);
    }
    running_after(transcript)
}

/// Whether a run has the state of its first write.
fn has_only_begun(record: &RunRecord) -> bool {
    let (_, n) = record.key.run.as_str().split_once(' ').unwrap_or_default();
    n.parse()
        .is_ok_and(|n: u64| record.state == state(n * WRITES_OF_A_RUN))
}

fn a_killed_process_leaves_whole_runs<H: Runs>(test: &str) {
    crash::<H, (u64, u64)>(
        test,
        async |_, round| (round, 0),
        async |store, (round, fence), n| {
            let (run, change) = (run(*round, n), state(n).into());
            let written = match n % WRITES_OF_A_RUN {
                0 => RunStore::begin(store, key(&run), client(&run), change, secs(30))
                    .await
                    .map(|begun| *fence = begun),
                3 => store.end(key(&run), *fence, Ok(Outcome::Completed)).await,
                _ => store.save(key(&run), *fence, change, secs(30)).await,
            };
            done(written, "a write of a run");
        },
        async |test, round, acknowledged| {
            let mut driven = Vec::new();
            for run_of_round in 0..=acknowledged / WRITES_OF_A_RUN {
                let first = run_of_round * WRITES_OF_A_RUN;
                let name = run(round, first);
                let last = acknowledged.min(first + WRITES_OF_A_RUN);
                let record = match test.store.get(key(&name)).await {
                    // It begins with the write that was not acknowledged.
                    Err(StoreError::NotFound) if last == first => continue,
                    found => done(found, format!("`get` of the run `{name}`")),
                };
                // The write after the last acknowledged one may be applied.
                let next = (last + 1).min(first + WRITES_OF_A_RUN);
                let is_whole = [last, next]
                    .iter()
                    .filter(|writes| **writes > first)
                    .any(|writes| record.state == state(writes - 1));
                let what = "that the state of a run is that of its last acknowledged write, or the next one,";
                same(is_whole, true, format!("{what} of {acknowledged},"));
                let is_ended = record.status == RunStatus::Ended;
                let may_end = [last, next].contains(&(first + WRITES_OF_A_RUN));
                let must_end = last == first + WRITES_OF_A_RUN;
                let what = format!("that the run `{name}` ended, after {last} writes,");
                same(is_ended, is_ended && may_end || must_end, what);
                if !is_ended {
                    driven.push(name);
                }
            }
            test.set(round * ROUND + 100);
            let abandoned = test.store.claim_abandoned(9, secs(30)).await;
            let abandoned = done(abandoned, "`claim_abandoned` after a crash");
            // A server may apply the last write of a killed process after the reads above, even in a later round.
            let mut claimed = names(&abandoned);
            for record in &abandoned {
                let name = record.key.run.as_str();
                if !driven.iter().any(|run| run == name) && has_only_begun(record) {
                    claimed.retain(|run| run != name);
                }
            }
            let last = run(round, acknowledged);
            if driven.contains(&last) && !claimed.contains(&last) {
                let record = done(test.store.get(key(&last)).await, "`get` after a crash");
                let is_ended = record.status == RunStatus::Ended;
                same(is_ended, true, "that a run without a driver ended");
                driven.retain(|run| *run != last);
            }
            same(claimed, driven, "the runs that the killed process drove");
            for record in abandoned {
                test.end(record.key.run.as_str(), record.fence).await;
            }
        },
    );
}

/// How many of `len` turns the change number `n` keeps.
fn kept(len: usize, n: u64) -> usize {
    match n % 5 {
        4 => len / 2,
        _ => len,
    }
}

/// The texts of a conversation after some changes.
fn conversation(changes: u64) -> Vec<String> {
    let mut all = Vec::new();
    for n in 0..changes {
        all.truncate(kept(all.len(), n));
        all.extend(texts(n));
    }
    all
}

fn a_killed_process_leaves_whole_changes_of_a_conversation<H: WithThreads>(test: &str) {
    struct Written {
        thread: String,
        version: u64,
        len: usize,
    }

    let thread = |round| format!("thread {round}");
    crash::<H, Written>(
        test,
        async |_, round| Written {
            thread: thread(round),
            version: 0,
            len: 0,
        },
        async |store, written, n| {
            let mut change = ThreadChange::default();
            change.keep = kept(written.len, n);
            change.turns = texts(n).into_iter().map(Turn::user).collect();
            written.len = change.keep + change.turns.len();
            let thread = id(&written.thread);
            let appended = store.append(tenant("acme"), thread, written.version, change);
            written.version = done(appended.await, "`append`");
        },
        async |test, round, acknowledged| {
            let loaded = test.store.load(tenant("acme"), id(&thread(round))).await;
            let loaded = done(loaded, "`load` after a crash");
            let history = loaded.map(|stored| stored.history).unwrap_or_default();
            let found: Vec<_> = history
                .iter()
                .map(|turn| turn.as_message().text())
                .collect();
            let is_whole = [acknowledged, acknowledged + 1]
                .iter()
                .any(|changes| found == conversation(*changes));
            let what =
                "that a conversation has its acknowledged changes, and perhaps the next one,";
            same(is_whole, true, format!("{what} after {acknowledged},"));
        },
    );
}

fn a_killed_process_loses_no_acknowledged_effect<H: StoreHarness<Store: Ledger>>(test: &str) {
    let name = |round, n| format!("effect {round} {}", n / 2);
    let outcome = || ToolOutcome::done("paid");
    crash::<H, u64>(
        test,
        async |_, round| round,
        async |store, round, n| {
            let effect = effect(&name(*round, n));
            if n % 2 == 0 {
                let begun = Ledger::begin(store, effect, intent(None)).await;
                same(done(begun, "`begin`"), LedgerEntry::New, "a new effect");
            } else {
                done(store.finish(effect, outcome()).await, "`finish`");
            }
        },
        async |test, round, acknowledged| {
            for n in 0..acknowledged {
                let known = test.store.known(effect(&name(round, n))).await;
                let known = done(known, "`known` after a crash");
                let is_finished = known == finished(&outcome());
                let is_kept = is_finished || n % 2 == 0 && known == LedgerEntry::Started;
                let what = "that the store has an acknowledged effect";
                same(is_kept, true, format!("{what} ({n}: {known:?})"));
            }
        },
    );
}

fn a_killed_process_loses_no_acknowledged_key<H: StoreHarness<Store: Once>>(test: &str) {
    let name = |round, n| format!("key {round} {n}");
    let once = async |store: &H::Store, name: String| {
        let used = store.once(tenant("acme"), name.into(), secs(86_400));
        done(used.await, "`once`")
    };
    crash::<H, u64>(
        test,
        async |_, round| round,
        async |store, round, n| {
            let first = once(store, name(*round, n)).await;
            same(first, true, "`once` of a new key");
        },
        async |test, round, acknowledged| {
            for n in 0..acknowledged {
                let first = once(&test.store, name(round, n)).await;
                same(first, false, "`once` of a key that a killed process used");
            }
        },
    );
}
