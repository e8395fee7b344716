//! The processes: this program, started again.

use super::{
    agent::{Ahead, LEASE, abandoned, agent, ahead, script, store},
    points::{Plan, Points},
    power,
    world::{Entry, World},
};
use concentric_core::{
    BoxModel, ChatRequest, Context, Environment, Error, Event, Interrupt, InterruptId, Outcome,
    Reply, Resume, ResumePoint, RunId, ThreadId, Transcript, interrupt,
    store::{RunKey, RunStatus, RunStore, StoreError, Tenant},
};
use futures_util::StreamExt;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};
use tower::ServiceExt;

const PART: &str = "CONCENTRIC_PART";

/// What a process is to play.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub dir: PathBuf,
    /// How many leases its clock is ahead.
    pub leases: u32,
    pub plan: Plan,
    pub script: String,
    /// Whether it answers all questions at once, or the first.
    pub all_at_once: bool,
    /// Whether it goes on with what was left, or answers though that may be going on.
    pub answers_first: bool,
    /// Whether a power failure can follow: see [`power`](super::power).
    pub power_may_fail: bool,
    /// Anything else.
    pub extra: String,
}

impl Part {
    pub fn new(dir: &Path, script: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            leases: 0,
            plan: Plan::Nothing,
            script: script.to_owned(),
            all_at_once: false,
            answers_first: false,
            power_may_fail: false,
            extra: String::new(),
        }
    }

    /// The part of this process; `None` if it is not one that was started.
    pub fn mine() -> Option<Self> {
        let part = std::env::var(PART).ok()?;
        Some(serde_json::from_str(&part).unwrap())
    }

    pub fn world(&self) -> World {
        World::new(&self.dir)
    }

    pub fn points(&self) -> Points {
        Points::new(self.plan.clone(), self.world())
    }

    pub fn clock(&self) -> Ahead {
        Ahead(LEASE * 2 * self.leases)
    }

    pub fn environment(&self) -> Environment {
        ahead(self.clock())
    }

    /// Starts a process that plays it: the test of that name in this program.
    pub fn start(&self, test: &str) -> Actor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if self.power_may_fail
            && let Some(library) = power::library()
        {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command
            .args([
                test,
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(PART, serde_json::to_string(self).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Actor { child, says }
    }
}

/// What came of a process that drives a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// The run waits.
    Waits,
    /// It is over, and its consumer has had its end.
    Over,
    /// It was over, and nobody had its end.
    Unseen,
    /// It failed, with this kind and code.
    Failed(String, String),
}

/// A process that says what it does, a line at a time, and waits to be told to go on.
pub struct Actor {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Actor {
    /// What it says next; `None` if it has ended. The test harness says things, too.
    pub fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, said)) = line.split_once("> ") {
                return Some(said.trim().to_owned());
            }
        }
    }

    /// What came of it; `None` if it was killed.
    pub fn result(mut self) -> Option<Said> {
        let mut said = None;
        while let Some(line) = self.hear() {
            said = serde_json::from_str(&line).ok();
            if said.is_none() && line != "ready" {
                println!("{line}");
            }
        }
        let status = self.child.wait().unwrap();
        if said.is_none() {
            let mut complaint = String::new();
            let stderr = self.child.stderr.as_mut().unwrap();
            stderr.read_to_string(&mut complaint).unwrap();
            assert!(status.code().is_none(), "it failed: {complaint}");
        }
        said
    }

    pub fn go(&mut self) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"go\n").unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn kill(&self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
    }

    /// Waits until it has stopped itself; whether it did, or ended.
    pub fn has_stopped(&self) -> bool {
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
        waited.is_some_and(|(_, status)| status.stopped())
    }

    pub fn wake_up(&mut self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
        self.go();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn say(what: &str) {
    println!("> {what}");
}

pub fn wait() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

pub fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(work)
}

// ---- the host ----

pub fn key() -> RunKey {
    RunKey::new(
        Tenant::default(),
        ThreadId::new("thread"),
        RunId::new("stored_run"),
    )
}

fn context(environment: &Environment) -> Context {
    Context::builder()
        .thread_id(key().thread)
        .environment(environment.clone())
        .build()
}

/// The request that brings replies; all that a host has.
pub fn replying(environment: &Environment, replies: Vec<Reply>) -> ChatRequest {
    let mut request = ChatRequest::new(Transcript::new()).with_context(context(environment));
    request.resume = Some(Resume::new(ResumePoint::InStore, replies));
    request
}

/// The request that starts the run, under a name that the host keeps.
pub fn beginning(environment: &Environment) -> ChatRequest {
    let context = Context::builder()
        .thread_id(key().thread)
        .run_id(RunId::new("run"))
        .environment(environment.clone())
        .build();
    ChatRequest::user("Do it all.").with_context(context)
}

/// What a person says to a question, having looked at the world.
pub fn answer(world: &World, question: &Interrupt) -> Reply {
    let id = question.id.clone();
    if question.reason == interrupt::TOOL_CALL {
        return Reply::approve(id);
    }
    if question.reason == interrupt::UNKNOWN_EFFECT {
        let key = effect_of(&id);
        let call = question.call_id.clone().unwrap();
        return match world.inquire(key) {
            true => Reply::answer(id, format!("{call}: seen done")),
            false => Reply::answer(id, format!("{call}: seen not done")),
        };
    }
    Reply::resolve(id, json!("yes"))
}

/// A [`Part::extra`] whose person says of each call that it was not done, without looking again.
pub const TOO_EARLY: &str = "looked too early";

fn too_early(question: &Interrupt) -> Reply {
    let call = question.call_id.clone().unwrap();
    Reply::answer(question.id.clone(), format!("{call}: seen not done"))
}

/// The key of the effect that a question is about.
fn effect_of(id: &InterruptId) -> &str {
    id.as_str().strip_suffix("#effect").unwrap()
}

/// Goes on with the run, one request's worth, as a host does that starts.
pub async fn drive(part: &Part) -> Said {
    let (world, points) = (part.world(), part.points());
    let store = store(&world, &points, part.clock());
    let agent = agent(script(&part.script), &store);
    let environment = part.environment();
    say("ready");

    let mut left = abandoned(&store, &environment, 16).await;
    assert!(left.len() <= 1);
    if let Some(request) = left.pop() {
        return run(&agent, &world, &points, request).await;
    }
    let record = match store.get(key()).await {
        Err(StoreError::NotFound) => {
            let request = beginning(&environment);
            return run(&agent, &world, &points, request).await;
        }
        other => other.unwrap(),
    };
    match record.status {
        RunStatus::Ended => {
            let seen = |entry: &Entry| matches!(entry, Entry::Over(_));
            match world.entries().iter().any(seen) {
                true => Said::Over,
                false => Said::Unseen,
            }
        }
        RunStatus::Running | RunStatus::Abandoned | RunStatus::Quarantined => {
            panic!("it was abandoned: {:?}", record.status)
        }
        RunStatus::Suspended => {
            let questions = record.state.interrupts();
            let asked = match part.all_at_once {
                true => questions.len(),
                false => 1,
            };
            let mut replies = Vec::new();
            for question in questions.into_iter().take(asked) {
                world.log(&Entry::Asked {
                    id: question.id.to_string(),
                    reason: question.reason.to_string(),
                    call: question.call_id.clone().unwrap().to_string(),
                });
                replies.push(match part.extra.as_str() {
                    TOO_EARLY => too_early(question),
                    _ => answer(&world, question),
                });
            }
            let request = replying(&environment, replies);
            run(&agent, &world, &points, request).await
        }
    }
}

/// Runs until the run is over, or waits.
pub async fn run(agent: &BoxModel, world: &World, points: &Points, request: ChatRequest) -> Said {
    let response = match agent.clone().oneshot(request).await {
        Ok(response) => response,
        Err(error) => return failed(&error),
    };
    points.hit("head");
    let mut body = response.body;
    let mut finish = None;
    while let Some(item) = body.next().await {
        match item {
            Ok(Event::Finish(it)) => finish = Some(it),
            Ok(_) => {}
            Err(error) => return failed(&error),
        }
    }
    points.hit("finish");
    let finish = finish.unwrap();
    match finish.outcome {
        Outcome::Interrupted => Said::Waits,
        Outcome::Completed => {
            let transcript = serde_json::to_value(finish.transcript.unwrap()).unwrap();
            world.log(&Entry::Over(transcript));
            Said::Over
        }
        other => panic!("{other:?}"),
    }
}

pub fn failed(error: &Error) -> Said {
    let code = error.code().unwrap_or_default().to_owned();
    // For whoever looks for the reason, if the test fails.
    say(&format!("{error:#}"));
    Said::Failed(format!("{:?}", error.kind()), code)
}
