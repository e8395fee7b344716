//! Several processes that share one file.
//!
//! The test program starts itself as each of the racing processes, with [`DB`] in their
//! environment. `CONCENTRIC_RACES` sets the number of races (default 20).

mod threads;

use crate::common::{
    client, clock, file::open, key, question, running, secs, set, tenant, waiting,
};
use concentric_core::{
    Context, Outcome, Reply, ThreadId, ToolOutcome,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, RunClaim, RunStatus, RunStore, StoreError,
        StoreFuture,
    },
};
use concentric_store::{Options, SqliteStore};
use std::{
    fmt::Debug,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

const DB: &str = "CONCENTRIC_RACE_DB";
const RUN: &str = "CONCENTRIC_RACE_RUN";

// ---- child processes ----

/// A child process that reports its progress on stdout and waits for a line on stdin.
struct Actor {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    fn start(part: &str, db: &Path, run: &str) -> Self {
        Self::start_with(part, db, run, (RUN, run))
    }

    /// Like [`start`](Self::start), with another variable in the environment.
    fn start_with(part: &str, db: &Path, run: &str, (name, value): (&str, &str)) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                &format!("race::{part}"),
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DB, db)
            .env(RUN, run)
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads the next report, without the output of the test harness.
    fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            let len = self.stdout.read_line(&mut line).unwrap();
            assert_ne!(len, 0, "the child process exited");
            if let Some((_, report)) = line.split_once("> ") {
                return report.trim().to_owned();
            }
        }
    }

    fn go(&mut self) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"go\n")
            .unwrap();
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- roles of the child processes ----

fn report(value: impl Debug) {
    println!("> {value:?}");
}

fn wait() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn result<T: Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.code().to_owned(),
    }
}

fn block<T>(work: StoreFuture<T>) -> Result<T, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(work)
}

/// The store and the run of this role; `None` if this process was not started by [`Actor::start`].
fn part() -> Option<(SqliteStore, String)> {
    let db = std::env::var_os(DB)?;
    // All its runs wait in one conversation.
    let options = Options::new()
        .clock(clock())
        .max_waiting_per_thread(usize::MAX);
    let store = SqliteStore::open_with(db, options);
    Some((store.unwrap(), std::env::var(RUN).unwrap()))
}

fn effect(run: &str) -> EffectKey {
    EffectKey::new(tenant("acme"), run.to_owned())
}

fn intent(run: &str, fence: u64) -> Intent {
    let mut intent = Intent::new("refund".into(), "{}".into(), &Context::new());
    intent.claim = Some(RunClaim::new(key(run), fence));
    intent
}

/// Replies to the interrupt of a run, and drives the run if its claim succeeds.
#[test]
#[ignore = "a child process of the tests below"]
fn racer() {
    let Some((store, run)) = part() else { return };
    let thread = || ThreadId::new("thread");
    let find = || block(store.find_by_interrupt(tenant("acme"), thread(), vec![question(&run)]));
    let seen = find().unwrap();
    report("ready");
    wait();
    // Half of the processes read the run again, and may find it already claimed.
    let seen = match std::process::id() % 2 {
        0 => seen,
        _ => find().unwrap(),
    };
    let replies = vec![Reply::approve(question(&run))];
    match block(store.claim(seen, replies, secs(30))) {
        Ok(record) => {
            assert_eq!(record.replies.len(), 1);
            let fence = record.fence;
            let state = running("on");
            block(store.save(key(&run), fence, state.into(), secs(30))).unwrap();
            let begun = block(Ledger::begin(&store, effect(&run), intent(&run, fence)));
            assert_eq!(begun.unwrap(), LedgerEntry::New);
            block(store.finish(effect(&run), ToolOutcome::done("paid"))).unwrap();
            block(store.end(key(&run), fence, Ok(Outcome::Completed))).unwrap();
            report("won");
        }
        Err(error) => report(error.code()),
    }
}

/// Withdraws the waiting runs of the conversation.
#[test]
#[ignore = "a child process of the tests below"]
fn withdrawer() {
    let Some((store, _)) = part() else { return };
    report("ready");
    wait();
    report(block(store.withdraw(tenant("acme"), ThreadId::new("thread"))).unwrap());
}

/// Begins a run, is stopped, and then tries to write.
#[test]
#[ignore = "a child process of the tests below"]
fn zombie() {
    let Some((store, run)) = part() else { return };
    let fence = block(RunStore::begin(
        &store,
        key(&run),
        client(&run),
        running("1").into(),
        secs(30),
    ))
    .unwrap();
    report(fence);
    wait();
    let begun = block(Ledger::begin(&store, effect(&run), intent(&run, fence)));
    report([
        result(block(store.save(
            key(&run),
            fence,
            running("zombie").into(),
            secs(90),
        ))),
        result(block(store.renew(key(&run), fence, secs(90)))),
        result(block(store.suspend(
            key(&run),
            fence,
            waiting("z", "z").into(),
        ))),
        result(block(store.end(key(&run), fence, Ok(Outcome::Completed)))),
        result(begun),
    ]);
}

/// Writes until it is killed, and reports each acknowledged write.
#[test]
#[ignore = "a child process of the tests below"]
fn writer() {
    let Some((store, run)) = part() else { return };
    for n in 0.. {
        let name = format!("{run}/{n}");
        let fence = block(RunStore::begin(
            &store,
            key(&name),
            client(&name),
            running(&name).into(),
            secs(30),
        ))
        .unwrap();
        block(store.suspend(key(&name), fence, waiting(&name, &name).into())).unwrap();
        report(n);
    }
}

// ---- the tests ----

fn races() -> usize {
    std::env::var("CONCENTRIC_RACES").map_or(20, |races| races.parse().unwrap())
}

#[test]
fn one_of_several_processes_resumes_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let (store, _clock) = open(&db);
    let (mut processes, mut winners, mut refused, mut ended) = (0, 0, 0, 0);
    for race in 0..races() {
        let run = format!("race{race}");
        let fence = block(RunStore::begin(
            &store,
            key(&run),
            client(&run),
            running("hi").into(),
            secs(30),
        ))
        .unwrap();
        block(store.suspend(key(&run), fence, waiting("hi", &run).into())).unwrap();

        let mut racers: Vec<_> = (0..2 + race % 7)
            .map(|_| Actor::start("racer", &db, &run))
            .collect();
        for racer in &mut racers {
            assert_eq!(racer.next(), r#""ready""#);
        }
        for racer in &mut racers {
            racer.go();
        }
        processes += racers.len();
        let mut won = 0;
        for mut racer in racers {
            match racer.next().as_str() {
                r#""won""# => won += 1,
                r#""already_resumed""# | r#""run_ended""# => refused += 1,
                other => panic!("{other}"),
            }
            racer.end();
        }
        winners += won;
        assert_eq!(won, 1, "race {race}");
        let record = block(store.get(key(&run))).unwrap();
        ended += usize::from(record.status == RunStatus::Ended);
        assert_eq!(record.status, RunStatus::Ended);
    }
    println!(
        "{} races of {processes} processes, {winners} resumed the run and began its effect, \
         {refused} refused, {ended} runs ended",
        races()
    );
}

#[test]
fn a_run_is_either_resumed_or_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let (store, _clock) = open(&db);
    let mut resumed = 0;
    for race in 0..races() {
        let run = format!("race{race}");
        let begun = RunStore::begin(
            &store,
            key(&run),
            client(&run),
            running("hi").into(),
            secs(30),
        );
        let fence = block(begun).unwrap();
        block(store.suspend(key(&run), fence, waiting("hi", &run).into())).unwrap();
        let mut actors = ["racer", "withdrawer"].map(|part| Actor::start(part, &db, &run));
        for actor in &mut actors {
            assert_eq!(actor.next(), r#""ready""#);
        }
        // Alternates which process starts first.
        if race % 2 == 0 {
            actors.iter_mut().for_each(Actor::go);
        } else {
            actors.iter_mut().rev().for_each(Actor::go);
        }
        let [replied, withdrawn] = actors.map(|mut actor| {
            let report = actor.next();
            actor.end();
            report
        });
        let won = replied == r#""won""#;
        resumed += usize::from(won);
        if !won {
            assert!(
                [r#""already_resumed""#, r#""run_ended""#].contains(&&*replied),
                "{replied}"
            );
        }
        assert_eq!(withdrawn, usize::from(!won).to_string(), "{replied}");
        let done = block(store.known(effect(&run))).unwrap() != LedgerEntry::New;
        assert_eq!(done, won);
        let record = block(store.get(key(&run))).unwrap();
        assert_eq!(record.status, RunStatus::Ended);
    }
    println!("{} races: {resumed} resumed, the others withdrawn", races());
}

#[test]
fn a_process_that_missed_its_lease_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let (store, clock) = open(&db);
    let mut zombie = Actor::start("zombie", &db, "run");
    let old: u64 = zombie.next().parse().unwrap();
    zombie.signal("-STOP");

    set(&clock, 30);
    let left = block(store.claim_abandoned(9, secs(30))).unwrap();
    assert_eq!(left.len(), 1);
    let new = left[0].fence;
    assert!(new > old);
    let begun = Ledger::begin(&store, effect("run"), intent("run", new));
    assert_eq!(block(begun).unwrap(), LedgerEntry::New);
    let record = block(store.get(key("run"))).unwrap();

    zombie.signal("-CONT");
    zombie.go();
    assert_eq!(zombie.next(), format!("{:?}", ["stale_claim"; 5]));
    zombie.end();
    let unchanged = block(store.get(key("run"))).unwrap() == record;
    println!(
        "1 process that missed its lease tried to write, {} runs changed",
        usize::from(!unchanged)
    );
    assert!(unchanged);
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("runs.db");
    let (mut kills, mut acknowledged, mut found) = (0, 0, 0);
    for n in 0..5 {
        let run = format!("killed{n}");
        let mut writer = Actor::start("writer", &db, &run);
        let mut last = 0;
        for _ in 0..=n * 7 {
            last = writer.next().parse().unwrap();
        }
        writer.signal("-KILL");
        kills += 1;
        let store = SqliteStore::open(&db).unwrap();
        for at in 0..=last {
            let name = format!("{run}/{at}");
            let record = block(store.get(key(&name))).unwrap();
            acknowledged += 1;
            found += usize::from(record.state == waiting(&name, &name));
            assert_eq!(found, acknowledged, "{name}: {:?}", record.state);
        }
    }
    println!(
        "{kills} kills of a writer, {acknowledged} writes acknowledged, {found} found, {} lost",
        acknowledged - found
    );
}
