//! The checks: `restate_check [NAME ..]`; see `.ci/restate`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program, which fails by panics"
)]

mod awaits;

use self::awaits::{awaits, expiry};
use bytes::Bytes;
use concentric_core::{
    BoxModel, ChatRequest, Context, Environment, Error, ErrorKind, Event, Interrupt, Message,
    Outcome, Reply, ThreadId, interrupt, store::Ledger, trace::lasting,
};
use concentric_layers::SuspendLayer;
use concentric_restate::{
    ReplyInput, RestateAgents, RestateClient, RunEvents, RunInput, RunOutput, Waits, register,
};
use concentric_restate_tests::{
    agent::{Traced, agent},
    servers::{Options, Restate, Splitter, Supervised, Worker, port, signal},
    world::World,
};
use concentric_store::{MemoryStore, Options as StoreOptions, PostgresStore};
use futures_util::{StreamExt, stream};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustix::process::Signal;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, time::sleep};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in names {
        let began = Instant::now();
        let figures = match name.as_str() {
            "kills" => kills().await,
            "server-kills" => server_kills().await,
            "both" => both().await,
            "parallel" => parallel().await,
            "stopped" => stopped().await,
            "long" => long().await,
            "deployments" => deployments().await,
            "changed" => changed().await,
            "key" => key().await,
            "events" => events().await,
            "canary" => canary().await,
            "cancel" => cancel().await,
            "limits" => limits().await,
            "workers" => workers().await,
            "suite" => suite().await,
            "await" => awaits().await,
            "expiry" => expiry().await,
            "identity" => identity().await,
            "history" => history().await,
            "overhead" => overhead().await,
            other => panic!("there is no check `{other}`"),
        };
        println!("{name}: {figures} ({:.1} s)", began.elapsed().as_secs_f64());
    }
}

/// The number in an environment variable.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |it| it.parse().unwrap())
}

// ---- random numbers ----

struct Dice(u64);

impl Dice {
    /// From `CONCENTRIC_SEED`, or a new seed, which is printed.
    fn new() -> Self {
        let seed = match std::env::var("CONCENTRIC_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => Environment::system().random().next_u64() >> 16,
        };
        println!("CONCENTRIC_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

// ---- the servers of a check ----

struct Place {
    dir: tempfile::TempDir,
    world: World,
    restate: Restate,
    client: RestateClient,
    waits: Waits,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let restate = Restate::start(dir.path(), None).await;
        Self {
            world: World::new(dir.path()),
            dir,
            client: restate.client(),
            restate,
            waits: Waits::Return,
        }
    }

    /// Another one, whose runs await their replies.
    async fn awaiting() -> Self {
        Self {
            waits: Waits::Await,
            ..Self::new().await
        }
    }

    async fn register(&self, port: u16) {
        let uri = format!("http://127.0.0.1:{port}");
        register(&self.restate.admin(), &uri).await.unwrap();
    }

    /// A supervised worker, which is registered.
    async fn worker(&self, options: Options) -> Supervised {
        let options = Options {
            waits: self.waits,
            ..options
        };
        let worker = Supervised::start(&self.world, options).await;
        self.register(worker.port).await;
        worker
    }

    /// Runs a script to its end, and replies to each interrupt: approves, and reports effects as they are in the world.
    async fn run(&self, thread: &str, script: &str) -> (RunOutput, usize) {
        let input = RunInput::user(script);
        let run = retried(|| self.client.run(thread, "run", &input));
        let mut output = match self.waits {
            Waits::Return => run.await,
            Waits::Await => return self.answered(thread, run).await,
        };
        let mut asked = 0;
        for round in 0.. {
            if output.outcome != Some(Outcome::Interrupted) {
                break;
            }
            assert!(round < 8, "{thread}: {output:?}");
            let reply = |asked: &Interrupt| self.answer(thread, asked);
            let replies: Vec<Reply> = output.interrupts.iter().map(reply).collect();
            asked += replies.len();
            let input = ReplyInput::new(replies);
            let key = format!("reply-{round}");
            output = retried(|| self.client.reply(thread, &key, &input)).await;
        }
        (output, asked)
    }

    /// Replies to the interrupts of a run that awaits them, until `run` has its end.
    async fn answered(
        &self,
        thread: &str,
        run: impl Future<Output = RunOutput>,
    ) -> (RunOutput, usize) {
        let (mut run, mut asked, mut round) = (std::pin::pin!(run), 0, 0);
        loop {
            tokio::select! {
                output = &mut run => return (output, asked),
                () = sleep(Duration::from_millis(5)) => {}
            }
            let state = retried(|| self.client.state(thread)).await;
            if state.interrupts.is_empty() {
                continue;
            }
            let reply = |asked: &Interrupt| self.answer(thread, asked);
            let input = ReplyInput::new(state.interrupts.iter().map(reply).collect());
            let key = format!("reply-{round}");
            let output = retried(|| self.client.reply(thread, &key, &input)).await;
            assert!(output.error.is_none(), "{thread}: {output:?}");
            asked += input.replies.len();
            round += 1;
        }
    }

    /// Waits until a run has interrupts, and returns them.
    async fn interrupts(&self, thread: &str) -> Vec<Interrupt> {
        for _ in 0..2_000 {
            let state = retried(|| self.client.state(thread)).await;
            if !state.interrupts.is_empty() {
                return state.interrupts;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("{thread} has no interrupts");
    }

    fn answer(&self, thread: &str, asked: &Interrupt) -> Reply {
        let id = asked.id.clone();
        if asked.reason != interrupt::UNKNOWN_EFFECT {
            return Reply::approve(id);
        }
        let call = asked.call_id.as_ref().unwrap().as_str();
        self.world.log(thread, &format!("asked {call}"));
        match self.world.count(thread, &format!("effect {call}")) {
            0 => Reply::answer(id, "It was not done."),
            _ => Reply::answer(id, "It was done."),
        }
    }
}

/// Calls again while the server is not reachable.
async fn retried<T, F>(call: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 0..600 {
        match call().await {
            Ok(done) => return done,
            Err(error) if error.kind() == ErrorKind::Connection => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error:#}"),
        }
    }
    panic!("the server is not reachable");
}

fn completed(thread: &str, output: &RunOutput) {
    assert_eq!(
        output.outcome,
        Some(Outcome::Completed),
        "{thread}: {output:?}"
    );
}

// ---- kills ----

const SCRIPTS: &[&str] = &[
    "",
    "look",
    "look+pay;send",
    "pay;refund",
    "send+look+pay;look",
    "send+send;refund+send",
];

/// The points of a script's run, each with the step of the model call or the round that it belongs to.
fn points(script: &str) -> Vec<(String, usize, bool)> {
    let rounds: Vec<&str> = script.split(';').filter(|it| !it.is_empty()).collect();
    let mut points = Vec::new();
    let parts = ["begin", "middle", "end"];
    for step in 0..=rounds.len() {
        points.extend(parts.map(|part| (format!("model-{step}:{part}"), step, true)));
        for (at, name) in rounds
            .get(step)
            .iter()
            .flat_map(|round| round.split('+'))
            .enumerate()
        {
            points.extend(parts.map(|part| (format!("{name}_{step}_{at}:{part}"), step, false)));
        }
    }
    points
}

/// Checks what has happened in a run that was killed at a point.
fn check(world: &World, thread: &str, script: &str, killed: &(String, usize, bool), asked: usize) {
    let lines = || world.lines(thread).join("\n");
    let (point, at, in_model) = killed;
    let rounds: Vec<&str> = script.split(';').filter(|it| !it.is_empty()).collect();
    for step in 0..=rounds.len() {
        // What was recorded before the kill is not requested again.
        let calls = 1 + usize::from(*in_model && step == *at);
        assert_eq!(
            world.count(thread, &format!("model {step}")),
            calls,
            "{thread} {point}\n{}",
            lines()
        );
        for (position, name) in rounds
            .get(step)
            .iter()
            .flat_map(|round| round.split('+'))
            .enumerate()
        {
            let call = format!("{name}_{step}_{position}");
            let (runs, effects) = (
                world.count(thread, &format!("tool {call}")),
                world.count(thread, &format!("effect {call}")),
            );
            let is_here = !in_model && step == *at;
            assert!(
                runs <= 1 + usize::from(is_here),
                "{thread} {point} {call}\n{}",
                lines()
            );
            match name {
                "pay" | "refund" => assert_eq!(effects, 1, "{thread} {point} {call}\n{}", lines()),
                "send" => {
                    let was_asked = world.count(thread, &format!("asked {call}"));
                    assert!(
                        runs <= 1 && effects <= runs,
                        "{thread} {point} {call}\n{}",
                        lines()
                    );
                    // One that may have happened is asked about.
                    assert!(
                        effects == 1 || was_asked == 1,
                        "{thread} {point} {call}\n{}",
                        lines()
                    );
                    assert!(
                        is_here || was_asked == 0,
                        "{thread} {point} {call}\n{}",
                        lines()
                    );
                }
                _ => {}
            }
        }
    }
    let approvals = script.matches("refund").count();
    assert!(asked >= approvals, "{thread} {point}: {asked}");
}

/// Kills the worker at points of runs.
async fn kills() -> String {
    let (mut dice, places) = (Dice::new(), [Place::new().await, Place::awaiting().await]);
    let [_first, _second] = [
        places[0].worker(Options::default()).await,
        places[1].worker(Options::default()).await,
    ];
    let count = number("CONCENTRIC_KILLS", 60);
    let mut every: Vec<(&str, (String, usize, bool))> = SCRIPTS
        .iter()
        .flat_map(|script| points(script).into_iter().map(|point| (*script, point)))
        .collect();
    let mut asked = 0;
    for at in 0..count {
        let place = &places[at % 2];
        // Each point once, in a random order, and again.
        if every.is_empty() {
            every = SCRIPTS
                .iter()
                .flat_map(|script| points(script).into_iter().map(|point| (*script, point)))
                .collect();
        }
        let next = dice.below(every.len());
        let (script, killed) = every.swap_remove(next);
        let thread = format!("k{at}");
        place.world.plan(&thread, "kill", &killed.0);
        let (output, questions) = place.run(&thread, script).await;
        completed(&thread, &output);
        assert_eq!(
            place.world.count(&thread, "kill"),
            1,
            "{thread} {}",
            killed.0
        );
        check(&place.world, &thread, script, &killed, questions);
        asked += questions - script.matches("refund").count();
    }
    format!("{count} kills of the service, {asked} unknown effects asked about")
}

/// Kills the server at points of runs; the service goes on with the step.
async fn server_kills() -> String {
    let (mut dice, mut place) = (Dice::new(), Place::new().await);
    let worker = place.worker(Options::default()).await;
    let count = number("CONCENTRIC_SERVER_KILLS", 12);
    for at in 0..count {
        let script = SCRIPTS[1 + dice.below(SCRIPTS.len() - 1)];
        let all = points(script);
        let killed = all[dice.below(all.len())].clone();
        let thread = format!("s{at}");
        // The worker stops at the point until the server is dead.
        place.world.plan(&thread, "stop", &killed.0);
        let input = RunInput::user(script);
        retried(|| place.client.start(&thread, "run", &input)).await;
        if killed.0.starts_with("refund") {
            // Reached after the approval.
            let output = retried(|| place.client.run(&thread, "run", &input)).await;
            let replies = output.interrupts.iter().map(|it| place.answer(&thread, it));
            let input = ReplyInput::new(replies.collect());
            retried(|| place.client.start_reply(&thread, "reply-0", &input)).await;
        }
        while place.world.count(&thread, "stop") == 0 {
            // An earlier interrupt of the script. A worker that has stopped does not answer.
            let state = retried(|| place.client.state(&thread));
            let state = tokio::time::timeout(Duration::from_millis(500), state).await;
            if let Ok(state) = state
                && !state.interrupts.is_empty()
            {
                let replies = state.interrupts.iter().map(|it| place.answer(&thread, it));
                let input = ReplyInput::new(replies.collect());
                retried(|| place.client.start_reply(&thread, "reply-0", &input)).await;
            }
            sleep(Duration::from_millis(5)).await;
        }
        place.restate.kill().await;
        signal(worker.id(), Signal::CONT);
        place.restate.restart().await;
        let (output, _) = place.run(&thread, script).await;
        completed(&thread, &output);
        check_once(&place.world, &thread, script);
    }
    format!("{count} kills of the server")
}

/// Checks the effects of a run whose server was killed: its attempts may overlap.
fn check_once(world: &World, thread: &str, script: &str) {
    for (step, round) in script.split(';').enumerate() {
        for (at, name) in round.split('+').enumerate() {
            let call = format!("{name}_{step}_{at}");
            let effects = world.count(thread, &format!("effect {call}"));
            let lines = || world.lines(thread).join("\n");
            match name {
                "pay" | "refund" => assert_eq!(effects, 1, "{thread} {call}\n{}", lines()),
                "send" => assert!(effects <= 1, "{thread} {call}\n{}", lines()),
                _ => {}
            }
        }
    }
}

/// An approval is asked, both are killed and started again in either order, and the approval is given; and the same in
/// the middle of a tool.
async fn both() -> String {
    let mut place = Place::new().await;
    let worker = place.worker(Options::default()).await;
    for server_first in [true, false] {
        let thread = format!("b{server_first}");
        let input = RunInput::user("refund;look");
        let output = place.client.run(&thread, "run", &input).await.unwrap();
        assert_eq!(output.outcome, Some(Outcome::Interrupted));
        restart_both(&mut place, &worker, server_first).await;
        let (output, _) = place.run(&thread, "refund;look").await;
        completed(&thread, &output);
        assert_eq!(place.world.count(&thread, "effect refund_0_0"), 1);
        assert_eq!(place.world.count(&thread, "model 0"), 1);

        // The approval arrives while no worker runs.
        let thread = format!("d{server_first}");
        let output = place.client.run(&thread, "run", &input).await.unwrap();
        worker.hold(true);
        worker.kill();
        worker.ended().await;
        let replies = output.interrupts.iter().map(|it| place.answer(&thread, it));
        let reply = ReplyInput::new(replies.collect());
        place
            .client
            .start_reply(&thread, "reply-0", &reply)
            .await
            .unwrap();
        worker.hold(false);
        let output = retried(|| place.client.reply(&thread, "reply-0", &reply)).await;
        completed(&thread, &output);

        let thread = format!("m{server_first}");
        place.world.plan(&thread, "kill", "pay_0_1:middle");
        let input = RunInput::user("look+pay");
        worker.hold(true);
        place.client.start(&thread, "run", &input).await.unwrap();
        worker.ended().await;
        restart_both(&mut place, &worker, server_first).await;
        let (output, _) = place.run(&thread, "look+pay").await;
        completed(&thread, &output);
        check(
            &place.world,
            &thread,
            "look+pay",
            &("pay_0_1:middle".into(), 0, false),
            0,
        );
    }
    "killed and restarted in both orders, while an approval waited and in the middle of a tool"
        .into()
}

async fn restart_both(place: &mut Place, worker: &Supervised, server_first: bool) {
    worker.hold(true);
    worker.kill();
    worker.ended().await;
    place.restate.kill().await;
    if server_first {
        place.restate.restart().await;
        worker.hold(false);
    } else {
        worker.hold(false);
        while worker.id() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        place.restate.restart().await;
    }
}

// ---- single cases ----

async fn parallel() -> String {
    let place = Place::new().await;
    let _worker = place.worker(Options::default()).await;
    let mut took = Vec::new();
    for thread in ["calm", "killed"] {
        let began = Instant::now();
        if thread == "killed" {
            place.world.plan(thread, "kill", "slow_0_2:middle");
        }
        let (output, _) = place.run(thread, "slow+slow+slow+slow").await;
        took.push(format!("{thread} {:.2} s", began.elapsed().as_secs_f64()));
        completed(thread, &output);
        // All have started before the first has ended.
        let lines = place.world.lines(thread);
        let of_last: Vec<&String> = lines
            .rsplit(|line| line.starts_with("kill"))
            .next()
            .unwrap()
            .iter()
            .collect();
        let first_end = of_last
            .iter()
            .position(|line| line.starts_with("ended"))
            .unwrap();
        let started = of_last[..first_end]
            .iter()
            .filter(|line| line.starts_with("tool"));
        assert_eq!(started.count(), 4, "{lines:?}");
        assert_eq!(place.world.count(thread, "model 0"), 1);
    }
    format!("4 calls of 1 s each: {}", took.join(", "))
}

/// Two workers; one is stopped in a step, the other takes over, and the first goes on later.
async fn stopped() -> String {
    let place = Place::new().await;
    let options = Options {
        inactivity: Duration::from_secs(1),
        deadline: Duration::from_secs(3),
        abort: Duration::from_secs(4),
        ..Options::default()
    };
    let (first, second) = (port(), port());
    let workers = [
        Worker::start(&place.world, first, &options).await,
        Worker::start(&place.world, second, &options).await,
    ];
    let splitter = Splitter::start(vec![first, second]).await;
    place.register(splitter.port).await;
    place.world.plan("t", "stop", "pay_0_0:middle");
    let input = RunInput::user("pay");
    place.client.start("t", "run", &input).await.unwrap();
    while place.world.count("t", "stop") == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let lines = place.world.lines("t");
    let stop = lines.iter().find(|line| line.starts_with("stop")).unwrap();
    let stopped: u32 = stop.rsplit(' ').next().unwrap().parse().unwrap();
    let (output, _) = place.run("t", "pay").await;
    // The deadline is that of the invocation, whose process was stopped for longer.
    let is_late = output
        .error
        .as_ref()
        .is_some_and(|error| error.kind == ErrorKind::Timeout);
    assert!(
        is_late || output.outcome == Some(Outcome::Completed),
        "{output:?}"
    );
    signal(stopped, Signal::CONT);
    sleep(Duration::from_secs(1)).await;
    assert!(
        place.world.count("t", "effect pay_0_0") <= 1,
        "{:?}",
        place.world.lines("t")
    );
    drop(workers);
    format!(
        "the effect happened once; the run {}",
        if is_late {
            "passed its deadline"
        } else {
            "completed"
        }
    )
}

/// A model call that is longer than the inactivity timeout is made once; an abort timeout that is too short is refused.
async fn long() -> String {
    let place = Place::new().await;
    let options = Options {
        inactivity: Duration::from_secs(1),
        deadline: Duration::from_secs(20),
        abort: Duration::from_secs(30),
        ..Options::default()
    };
    let _worker = place.worker(options).await;
    let (output, _) = place.run("t", "long").await;
    completed("t", &output);
    assert_eq!(
        place.world.count("t", "model 0"),
        1,
        "{:?}",
        place.world.lines("t")
    );
    let agent = agent(&place.world, MemoryStore::new(), &Traced::default());
    let refused = RestateAgents::new("Clerk", agent)
        .deadline(Duration::from_secs(20))
        .abort_timeout(Duration::from_secs(3))
        .endpoint();
    assert_eq!(refused.err().unwrap().code(), Some("abort_timeout"));
    "a call of 6 s with an inactivity timeout of 1 s was made once".into()
}

/// A new deployment while runs wait: they continue with the new code.
async fn deployments() -> String {
    let place = Place::new().await;
    let old = place
        .worker(Options {
            version: "1".into(),
            ..Options::default()
        })
        .await;
    let count = number("CONCENTRIC_WAITING", 200);
    let threads: Vec<String> = (0..count).map(|at| format!("w{at}")).collect();
    let input = RunInput::user("refund");
    let wait = |thread: String| {
        let (client, input) = (place.client.clone(), input.clone());
        async move { client.run(&thread, "run", &input).await.unwrap() }
    };
    let waiting: Vec<RunOutput> = stream::iter(threads.clone())
        .map(wait)
        .buffer_unordered(8)
        .collect()
        .await;
    assert!(
        waiting
            .iter()
            .all(|it| it.outcome == Some(Outcome::Interrupted))
    );
    let driven = place
        .restate
        .query("SELECT id FROM sys_invocation WHERE status <> 'completed'")
        .await;
    assert!(
        driven.is_empty(),
        "a waiting run has no invocation: {driven:?}"
    );
    let new = place
        .worker(Options {
            version: "2".into(),
            ..Options::default()
        })
        .await;
    old.hold(true);
    old.kill();
    old.ended().await;
    let place = &place;
    let reply = |thread: String| async move { place.run(&thread, "refund").await.0 };
    let ended: Vec<RunOutput> = stream::iter(threads.clone())
        .map(reply)
        .buffer_unordered(8)
        .collect()
        .await;
    assert!(
        ended
            .iter()
            .all(|it| it.outcome == Some(Outcome::Completed))
    );
    for thread in &threads {
        assert_eq!(place.world.count(thread, "effect refund_0_0"), 1);
        assert_eq!(place.world.count(thread, "model 0"), 1);
    }
    drop(new);
    format!("{count} waiting runs continued with the new code")
}

/// Changed code does not continue an invocation; the code that began it does.
async fn changed() -> String {
    let place = Place::new().await;
    let worker = place
        .worker(Options {
            version: "1".into(),
            ..Options::default()
        })
        .await;
    worker.hold(true);
    worker.set_version("2");
    place.world.plan("t", "kill", "look_0_0:middle");
    let input = RunInput::user("look");
    place.client.start("t", "run", &input).await.unwrap();
    worker.ended().await;
    worker.hold(false);
    let mut refused = false;
    for _ in 0..400 {
        let rows = place
            .restate
            .query("SELECT last_failure FROM sys_invocation WHERE target_handler_name = 'run'")
            .await;
        refused = rows
            .iter()
            .any(|row| row.to_string().contains("code_changed"));
        if refused {
            break;
        }
        sleep(Duration::from_millis(25)).await;
    }
    assert!(refused, "the changed code continued the invocation");
    worker.set_version("1");
    worker.kill();
    let (output, _) = place.run("t", "look").await;
    completed("t", &output);
    assert_eq!(place.world.count("t", "model 0"), 1);
    "refused with `code_changed`, and continued by the code that began it".into()
}

/// One key is one run.
async fn key() -> String {
    let place = Place::new().await;
    let _worker = place.worker(Options::default()).await;
    let input = RunInput::user("pay");
    let (first, second) = tokio::join!(
        place.client.run("t", "k", &input),
        place.client.run("t", "k", &input)
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.run, second.run);
    assert_eq!(
        place.client.run("t", "k", &input).await.unwrap().run,
        first.run
    );
    assert_eq!(place.world.count("t", "model 0"), 1);
    assert_eq!(place.client.state("t").await.unwrap().turns, 3);
    // Another key is the next turn of the conversation.
    let next = place
        .client
        .run("t", "k2", &RunInput::user(""))
        .await
        .unwrap();
    completed("t", &next);
    assert_ne!(next.run, first.run);
    assert_eq!(place.client.state("t").await.unwrap().turns, 5);
    // While a run waits, another one is refused, or withdraws it.
    let waits = place
        .client
        .run("t", "k3", &RunInput::user("refund"))
        .await
        .unwrap();
    assert_eq!(waits.outcome, Some(Outcome::Interrupted));
    let refused = place
        .client
        .run("t", "k4", &RunInput::user(""))
        .await
        .unwrap();
    assert_eq!(refused.error.unwrap().code.as_deref(), Some("run_waiting"));
    let mine = ReplyInput::new(vec![Reply::approve(waits.interrupts[0].id.clone())]);
    let other = mine.clone().with_tenant("other");
    let hidden = place.client.reply("t", "r1", &other).await.unwrap();
    assert_eq!(hidden.error.unwrap().code.as_deref(), Some("run_not_found"));
    let next = place
        .client
        .run("t", "k5", &RunInput::user("").withdrawing())
        .await
        .unwrap();
    completed("t", &next);
    let late = place.client.reply("t", "r2", &mine).await.unwrap();
    assert_eq!(late.error.unwrap().code.as_deref(), Some("run_ended"));
    assert_eq!(place.world.count("t", "effect refund_0_0"), 0);
    "one run for three calls; waiting runs are refused, hidden from others, withdrawn".into()
}

/// Serves an agent in this process.
async fn serve(place: &Place, agents: RestateAgents) -> tokio::task::JoinHandle<()> {
    let endpoint = agents.endpoint().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        endpoint
            .serve(listener, std::future::pending())
            .await
            .unwrap()
    });
    place.register(port).await;
    task
}

/// Consumers attach at any time, and receive each event once, with a reset before a step that is made again.
async fn events() -> String {
    let mut place = Place::new().await;
    let events = RunEvents::new();
    let agent = agent(&place.world, MemoryStore::new(), &Traced::default());
    let task = serve(
        &place,
        RestateAgents::new("Clerk", agent).events(events.clone()),
    )
    .await;
    let mut early = events.attach("t");
    let input = RunInput::user("look;slow");
    place.client.start("t", "run", &input).await.unwrap();
    while place.world.count("t", "tool slow_1_0") == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    // The server dies in the middle of a step, and this process makes it again.
    place.restate.restart().await;
    let (output, _) = place.run("t", "look;slow").await;
    completed("t", &output);
    let mut late = events.attach("t");
    for consumer in [&mut early, &mut late] {
        let (mut texts, mut resets, mut results) = (Vec::new(), 0, Vec::new());
        loop {
            match consumer.next().await.unwrap() {
                Event::TextDelta(text) => texts.push(text.to_string()),
                Event::Reset => resets += 1,
                Event::ToolResult(result) => results.push(result.call_id.to_string()),
                Event::Finish(_) => break,
                _ => {}
            }
        }
        assert_eq!(texts, ["step 0", "step 1", "step 2"]);
        assert_eq!(results, ["look_0_0", "slow_1_0"]);
        assert_eq!(resets, 1);
    }
    assert_eq!(place.world.count("t", "model 0"), 1);
    task.abort();
    "each event once, one reset for the repeated step, for early and late consumers".into()
}

/// The journal has no text of a provider.
async fn canary() -> String {
    let place = Place::new().await;
    let _worker = place.worker(Options::default()).await;
    let output = place
        .client
        .run("t", "run", &RunInput::user("look;error"))
        .await
        .unwrap();
    let error = output.error.unwrap();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    assert!(!error.message.contains("canary"), "{error:?}");
    let mut rows = place.restate.query("SELECT * FROM sys_journal").await;
    assert!(!rows.is_empty());
    rows.extend(place.restate.query("SELECT * FROM sys_invocation").await);
    rows.extend(place.restate.query("SELECT * FROM state").await);
    let text = serde_json::to_string(&rows).unwrap();
    assert!(!text.contains("canary-of-a-provider"));
    // As bytes in hexadecimal, and as bytes in the server's files.
    let hex: String = "canary-of-a-provider"
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(!text.contains(&hex));
    let found = std::process::Command::new("grep")
        .args(["-rqa", "canary-of-a-provider"])
        .arg(place.dir.path().join("restate"))
        .status()
        .unwrap();
    assert!(
        !found.success(),
        "a file of the server has the text of a provider"
    );
    "no text of a provider in the journal, the state or a file of the server".into()
}

/// Cancels a run in the middle of a step.
async fn cancel() -> String {
    let place = Place::new().await;
    let _worker = place.worker(Options::default()).await;
    assert!(!place.client.cancel("t").await.unwrap());
    let input = RunInput::user("pay;stuck");
    place.client.start("t", "run", &input).await.unwrap();
    while place.world.count("t", "tool stuck_1_0") == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    assert!(place.client.cancel("t").await.unwrap());
    let output = place.client.run("t", "run", &input).await.unwrap();
    assert!(
        matches!(output.outcome, Some(Outcome::Aborted { .. })),
        "{output:?}"
    );
    let took = began.elapsed();
    // The conversation has a closed round, and continues.
    let next = place
        .client
        .run("t", "next", &RunInput::user(""))
        .await
        .unwrap();
    completed("t", &next);
    format!("a step of 600 s stopped in {} ms", took.as_millis())
}

/// A step that passes the deadline, and a conversation that is too large.
async fn limits() -> String {
    let place = Place::new().await;
    let options = Options {
        deadline: Duration::from_secs(1),
        ..Options::default()
    };
    let _worker = place.worker(options).await;
    let output = place
        .client
        .run("t", "run", &RunInput::user("look;stuck"))
        .await
        .unwrap();
    assert_eq!(output.error.unwrap().kind, ErrorKind::Timeout);
    let large = "x".repeat(9 << 20);
    let input = RunInput::new(vec![Message::user(large), Message::user("")]);
    let output = place.client.run("u", "run", &input).await.unwrap();
    assert_eq!(output.error.unwrap().code.as_deref(), Some("unwritable"));
    assert_eq!(place.client.state("u").await.unwrap().turns, 0);
    // Each step records what is new.
    let script = ["wide"; 8].join(";");
    let (output, _) = place.run("v", &script).await;
    completed("v", &output);
    // A reply by which the conversation becomes too large ends the run, whose tool has been executed.
    let _worker = place.worker(Options::default()).await;
    let input = RunInput::user("refund");
    let output = place.client.run("w", "run", &input).await.unwrap();
    let mut input = ReplyInput::new(replies(&output.interrupts, true));
    input.messages.push(Message::user(";".repeat(9 << 20)));
    let output = place.client.reply("w", "r0", &input).await.unwrap();
    assert_eq!(code(&output), Some("unwritable"), "{output:?}");
    assert_eq!(place.world.count("w", "effect refund_0_0"), 1);
    input.messages.clear();
    let late = place.client.reply("w", "r1", &input).await.unwrap();
    assert_eq!(code(&late), Some("run_ended"));
    "the deadline ends a step; a conversation of 9 MiB is refused, also after a reply".into()
}

/// Runs continue on the other of two workers.
async fn workers() -> String {
    let place = Place::new().await;
    let [mut first, second] = [
        Worker::start(&place.world, port(), &Options::default()).await,
        Worker::start(&place.world, port(), &Options::default()).await,
    ];
    let splitter = Splitter::start(vec![first.port, second.port]).await;
    place.register(splitter.port).await;
    let (count, mut slowest) = (8, Duration::ZERO);
    // Both workers have runs in the middle of a step, also if one connection serves all of them.
    for at in 0..count {
        place
            .client
            .start(&format!("t{at}"), "run", &RunInput::user("look;slow;pay"))
            .await
            .unwrap();
    }
    for at in 0..count {
        while place.world.count(&format!("t{at}"), "tool slow_1_0") == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }
    first.kill().await;
    let killed = Instant::now();
    for at in 0..count {
        let thread = format!("t{at}");
        let (output, _) = place.run(&thread, "look;slow;pay").await;
        completed(&thread, &output);
        slowest = slowest.max(killed.elapsed());
        assert_eq!(place.world.count(&thread, "model 0"), 1);
        assert_eq!(place.world.count(&thread, "effect pay_2_0"), 1);
    }
    drop(second);
    format!(
        "all {count} runs ended on the other, the last {:.2} s after the kill, with a step of 1 s",
        slowest.as_secs_f64()
    )
}

fn code(output: &RunOutput) -> Option<&str> {
    output.error.as_ref()?.code.as_deref()
}

async fn post(uri: &str, body: &str) -> u16 {
    let http = Client::builder(TokioExecutor::new()).build_http();
    let body = Full::new(Bytes::from(body.to_owned()));
    let request = http::Request::post(uri).header("content-type", "application/json");
    let response = http.request(request.body(body).unwrap()).await.unwrap();
    response.status().as_u16()
}

// ---- requests that the server signs ----

/// The service accepts requests that are signed with the key of its server, and no others.
async fn identity() -> String {
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("key.pem");
    let made = std::process::Command::new("openssl")
        .args(["genpkey", "-algorithm", "ed25519", "-out"])
        .arg(&pem)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let restate = Restate::start(dir.path(), Some(pem)).await;
    let place = Place {
        world: World::new(dir.path()),
        dir,
        client: restate.client(),
        restate,
        waits: Waits::Return,
    };
    let serve = async |port: u16, key: &str| {
        let agent = agent(&place.world, MemoryStore::new(), &Traced::default());
        let agents = RestateAgents::new("Clerk", agent).identity_keys([key]);
        let endpoint = agents.endpoint().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            endpoint.serve(listener, shutdown).await.unwrap();
        });
        (stop, task)
    };
    // The public key of the documentation of Restate's SDK.
    let other = "publickeyv1_ChjENKeMvCtRnqG2mrBK1HmPKufgFUc98K8B3ononQvp";
    let address = |port: u16| format!("http://127.0.0.1:{port}");
    let wrong = port();
    let (_stop, _task) = serve(wrong, other).await;
    let refused = register(&place.restate.admin(), &address(wrong)).await;
    assert!(
        refused.is_err(),
        "an endpoint with another key was registered"
    );

    let right = port();
    let (stop, task) = serve(right, &place.restate.public_key()).await;
    place.register(right).await;
    let (output, _) = place.run("t", "look;refund").await;
    completed("t", &output);

    // Requests without a signature, and with one of another server.
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    for path in [
        "discover",
        "invoke/Clerk/run",
        "invoke/Clerk/reply",
        "invoke/Clerk/cancel",
        "invoke/Clerk/state",
    ] {
        for signature in [None, Some("v1"), Some("unsigned")] {
            let mut request = match path {
                "discover" => http::Request::get(format!("{}/{path}", address(right))),
                _ => http::Request::post(format!("{}/{path}", address(right))),
            };
            if let Some(scheme) = signature {
                request = request.header("x-restate-signature-scheme", scheme);
                request = request.header("x-restate-jwt-v1", "e30.e30.e30");
            }
            let request = request.body(Full::new(Bytes::new())).unwrap();
            let status = http.request(request).await.unwrap().status();
            assert_eq!(status, 401, "{path} {signature:?}");
        }
    }

    // Another key in place of the right one.
    stop.send(()).unwrap();
    task.await.unwrap();
    let (_stop, _task) = serve(right, other).await;
    let input = RunInput::user("look");
    place.client.start("u", "run", &input).await.unwrap();
    let sql = "SELECT last_failure, retry_count FROM sys_invocation WHERE target_service_key = 'u'";
    let mut refused = None;
    for _ in 0..400 {
        let rows = place.restate.query(sql).await;
        let row = rows.first().map(ToString::to_string).unwrap_or_default();
        if row.contains("401") {
            refused = Some(row);
            break;
        }
        sleep(Duration::from_millis(25)).await;
    }
    assert!(
        refused.is_some(),
        "a request with another key was not refused"
    );
    assert_eq!(place.world.count("u", "model 0"), 0);
    "a signed run; 15 unsigned requests, a registration and an invocation with another key refused"
        .into()
}

// ---- three drivers ----

const BEHAVIOURS: &[(&str, bool)] = &[
    ("", true),
    ("look", true),
    ("look+pay;send", true),
    ("slow+look", true),
    ("fail", true),
    ("look+missing", true),
    ("refund", true),
    ("refund", false),
    ("look+refund;send", true),
    ("refund+refund", true),
    ("look;error", true),
    (
        "look;look;look;look;look;look;look;look;look;look;look;look;look",
        true,
    ),
];

/// The end of a run: its outcome or the kind of its error, and its text.
type End = (Option<Outcome>, Option<ErrorKind>, String);

fn replies(interrupts: &[Interrupt], approves: bool) -> Vec<Reply> {
    let reply = |asked: &Interrupt| match approves {
        true => Reply::approve(asked.id.clone()),
        false => Reply::deny(asked.id.clone(), "No."),
    };
    interrupts.iter().map(reply).collect()
}

async fn direct(agent: &BoxModel, thread: &str, script: &str, approves: bool, stored: bool) -> End {
    let context = || Context::builder().thread_id(ThreadId::new(thread)).build();
    let mut request = ChatRequest::user(script).with_context(context());
    loop {
        let answer = async {
            let answer = agent.clone().oneshot(request.clone()).await?;
            answer.collect().await.map_err(Error::from)
        };
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => return (None, Some(error.kind()), String::new()),
        };
        let finish = &answer.finish;
        if finish.outcome != Outcome::Interrupted {
            let last = finish.transcript.as_ref().unwrap().last();
            return (
                Some(finish.outcome.clone()),
                None,
                last.unwrap().as_message().text(),
            );
        }
        let asked: Vec<Interrupt> = finish.interrupts().into_iter().cloned().collect();
        let replies = replies(&asked, approves);
        request = match stored {
            true => ChatRequest::replying(replies).with_context(context()),
            false => {
                ChatRequest::resume(*finish.state.clone().unwrap(), replies).with_context(context())
            }
        };
    }
}

async fn durable(client: &RestateClient, thread: &str, script: &str, approves: bool) -> End {
    let input = RunInput::user(script);
    let mut output = client.run(thread, "run", &input).await.unwrap();
    let mut round = 0;
    while output.outcome == Some(Outcome::Interrupted) {
        let input = ReplyInput::new(replies(&output.interrupts, approves));
        let key = format!("r{round}");
        output = client.reply(thread, &key, &input).await.unwrap();
        round += 1;
    }
    end(output)
}

/// The end of a run that awaits its replies.
async fn awaited(place: &Place, thread: &str, script: &str, approves: bool) -> End {
    let input = RunInput::user(script);
    let mut run = std::pin::pin!(place.client.run(thread, "run", &input));
    for round in 0.. {
        let asked = tokio::select! {
            output = &mut run => return end(output.unwrap()),
            asked = place.interrupts(thread) => asked,
        };
        let input = ReplyInput::new(replies(&asked, approves));
        let key = format!("r{round}");
        place.client.reply(thread, &key, &input).await.unwrap();
    }
    unreachable!()
}

fn end(output: RunOutput) -> End {
    let kind = output.error.map(|error| error.kind);
    (output.outcome, kind, output.text.to_string())
}

fn taken(traced: &Traced) -> String {
    let entries = std::mem::take(&mut *traced.lock().unwrap());
    let lines = lasting(entries);
    let lines = lines
        .iter()
        .map(|entry| serde_json::to_string(entry).unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The same agent under three drivers.
async fn suite() -> String {
    let url = std::env::var("CONCENTRIC_POSTGRES").expect("run it by `.ci/postgres`");
    let place = Place::new().await;
    let schema = "concentric_restate";
    PostgresStore::migrate(&url, schema).await.unwrap();
    let options = StoreOptions::new().schema(schema.to_owned());
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let traced = Traced::default();
    fn build(place: &Place, ledger: impl Ledger, traced: &Traced) -> BoxModel {
        agent(&place.world, ledger, traced)
    }
    let plain = build(&place, MemoryStore::new(), &traced);
    let suspended = BoxModel::new(
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(store.clone())))
            .service(build(&place, store, &traced)),
    );
    let restate = || build(&place, MemoryStore::new(), &traced);
    let task = serve(&place, RestateAgents::new("Clerk", restate())).await;
    let awaiting = Place::awaiting().await;
    let agents = RestateAgents::new("Clerk", restate()).waits(Waits::Await);
    let awaiting_task = serve(&awaiting, agents).await;
    let run = Environment::system().ids().next("");
    for (at, (script, approves)) in BEHAVIOURS.iter().enumerate() {
        let expected = (
            direct(&plain, &format!("plain-{at}"), script, *approves, false).await,
            taken(&traced),
        );
        let thread = format!("stored-{run}-{at}");
        let stored = (
            direct(&suspended, &thread, script, *approves, true).await,
            taken(&traced),
        );
        assert_eq!(stored, expected, "`{script}` with `SuspendLayer`");
        let durable = (
            durable(&place.client, &format!("durable-{at}"), script, *approves).await,
            taken(&traced),
        );
        assert_eq!(durable, expected, "`{script}` with Restate");
        let awaited = (
            awaited(&awaiting, &format!("awaited-{at}"), script, *approves).await,
            taken(&traced),
        );
        assert_eq!(awaited, expected, "`{script}` with awaited replies");
    }
    task.abort();
    awaiting_task.abort();
    format!(
        "{} behaviours, equal ends and traces under three drivers, one of them with both kinds of waits",
        BEHAVIOURS.len()
    )
}

// ---- figures ----

/// The bytes of the records of steps with a conversation of 4 MiB are those without.
async fn history() -> String {
    let place = Place::new().await;
    let _worker = place.worker(Options::default()).await;
    // 9 model calls and 8 rounds.
    let (script, steps, large) = (["look"; 8].join(";"), 17, 4 << 20);
    let mut runs = Vec::new();
    for (thread, bytes) in [("short", 0), ("long", large)] {
        let text = Message::user("x".repeat(bytes));
        let first = RunInput::new(vec![text, Message::user("")]);
        let first = place.client.run(thread, "first", &first).await.unwrap();
        completed(thread, &first);
        let (output, _) = place.run(thread, &script).await;
        completed(thread, &output);
        let sql = format!(
            "SELECT j.entry_type, j.raw_length FROM sys_journal j JOIN sys_invocation i ON i.id = j.id \
             WHERE i.target_service_key = '{thread}' AND i.idempotency_key = 'run' ORDER BY j.index"
        );
        let rows = place.restate.query(&sql).await;
        let bytes = |row: &serde_json::Value| row["raw_length"].as_u64().unwrap();
        let is_step =
            |row: &&serde_json::Value| row["entry_type"].as_str().unwrap().ends_with(": Run");
        // The command and the result of each; the first one is that of the invocation.
        let of_steps: Vec<u64> = rows.iter().filter(is_step).map(bytes).collect();
        assert_eq!(of_steps.len(), 2 * (1 + steps), "{rows:?}");
        runs.push((of_steps, rows.iter().map(bytes).sum::<u64>()));
    }
    let [(short, short_total), (long, long_total)] = &runs[..] else {
        panic!("two runs");
    };
    let each = short.iter().zip(long);
    let growth = each.map(|(short, long)| long.abs_diff(*short)).max();
    let growth = growth.unwrap();
    assert!(growth <= 16, "{short:?} {long:?}");
    // Read and written once.
    let once = long_total - short_total;
    assert!(once <= 2 * large as u64 + 1024, "{once}");
    let step = |run: &[u64]| run.iter().sum::<u64>() / (1 + steps) as u64;
    format!(
        "{} bytes per step without a history, {} with one of 4 MiB, at most {growth} more in an entry; once per run {once} more",
        step(short),
        step(long)
    )
}

/// What a durable step adds to a run.
async fn overhead() -> String {
    let place = Place::new().await;
    let traced = Traced::default();
    let plain = agent(&place.world, MemoryStore::new(), &traced);
    let restate = agent(&place.world, MemoryStore::new(), &traced);
    let task = serve(&place, RestateAgents::new("Clerk", restate)).await;
    let script = ["look"; 8].join(";");
    // 9 model calls and 8 rounds.
    let (steps, runs) = (17, number("CONCENTRIC_RUNS", 40));
    let mut added = Vec::new();
    for at in 0..runs {
        let began = Instant::now();
        direct(&plain, &format!("p{at}"), &script, true, false).await;
        let alone = began.elapsed();
        let began = Instant::now();
        durable(&place.client, &format!("r{at}"), &script, true).await;
        let with = began.elapsed();
        added.push(with.saturating_sub(alone).as_secs_f64() * 1000.0 / f64::from(steps));
    }
    added.sort_by(f64::total_cmp);
    let began = Instant::now();
    let parallel = 16;
    let many = (0..runs * 4).map(|at| {
        let (client, script) = (place.client.clone(), script.clone());
        async move { durable(&client, &format!("m{at}"), &script, true).await }
    });
    let ended = stream::iter(many).buffer_unordered(parallel).count().await;
    let rate = ended as f64 * f64::from(steps) / began.elapsed().as_secs_f64();
    task.abort();
    format!(
        "a step adds {:.2} ms (p50), {:.2} ms (p95) to the plain driver; {rate:.0} steps/s on one partition, {parallel} runs at once",
        added[runs / 2],
        added[runs * 95 / 100]
    )
}
