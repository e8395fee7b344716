//! The worker processes, and the clients that talk to them.

use super::{
    agent::Script,
    dice::Dice,
    history::{Recorder, What},
    load::Settings,
    proxy::Proxy,
    worker::{Answer, Order, PART, Part},
    world::{Entry, World, call_of},
};
use concentric_core::{
    Reply, RunId, ThreadId, interrupt,
    store::{RunKey, RunStatus, RunStore, Tenant},
};
use concentric_store::PostgresStore;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};
use tokio_postgres::{Client, NoTls};

// ---- workers ----

/// A place for a worker: its processes, one after the other.
pub struct Worker {
    part: Mutex<Part>,
    pub proxy: Proxy,
    process: Mutex<Process>,
    recorder: Mutex<Recorder>,
}

struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    pending: Pending,
}

/// The requests without an answer. Their senders are dropped when the process has ended.
type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

fn start(part: &Part) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "worker::worker",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PART, serde_json::to_string(part).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let says = BufReader::new(child.stdout.take().unwrap());
    let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
    let answers = Arc::clone(&pending);
    std::thread::spawn(move || {
        for line in says.lines() {
            let Ok(line) = line else { break };
            // The harness of the tests prints lines, too.
            let Some((_, answer)) = line.split_once("> ") else {
                continue;
            };
            let answer: Answer = serde_json::from_str(answer).unwrap();
            let mut answers = answers.lock().unwrap();
            if let (Some(request), Some(answers)) = (answer.request(), answers.as_mut())
                && let Some(answered) = answers.remove(&request)
            {
                let _ = answered.send(answer);
            }
        }
        answers.lock().unwrap().take();
    });
    Process {
        stdin: child.stdin.take(),
        child,
        pending,
    }
}

impl Worker {
    pub async fn start(world: &World, mut part: Part) -> Self {
        let proxy = Proxy::start(&part.url).await;
        part.url = proxy.url.clone();
        Self {
            process: Mutex::new(start(&part)),
            recorder: Mutex::new(Recorder::new(world.clone(), part.worker)),
            proxy,
            part: Mutex::new(part),
        }
    }

    /// Sends an order; the answer fails if the process ends before.
    fn send(&self, request: u64, order: &Order) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let mut process = self.process.lock().unwrap();
        if let Some(pending) = process.pending.lock().unwrap().as_mut() {
            pending.insert(request, sender);
        }
        let line = format!("{}\n", serde_json::to_string(order).unwrap());
        // A process that was killed has ended for its clients.
        let stdin = process.stdin.as_mut().unwrap();
        let _ = stdin.write_all(line.as_bytes());
        answer
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process.lock().unwrap().child)
    }

    fn note(&self, fault: &str) {
        let recorder = self.recorder.lock().unwrap();
        recorder.note(What::Fault(fault.to_owned()));
    }

    pub fn kill(&self) {
        self.note("kill");
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.process.lock().unwrap().child.wait().unwrap();
    }

    /// Starts another process in place of one that was killed.
    pub fn restart(&self, world: &World) {
        let mut part = self.part.lock().unwrap();
        part.worker.1 += 1;
        *self.recorder.lock().unwrap() = Recorder::new(world.clone(), part.worker);
        *self.process.lock().unwrap() = start(&part);
    }

    pub fn stop(&self) {
        self.note("stop");
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn set_clock(&self, off: i64) {
        self.note("clock");
        self.part.lock().unwrap().clock_off = off;
        drop(self.send(u64::MAX, &Order::Clock(off)));
    }

    /// Lets the process end, and waits until it has.
    pub fn end(&self) {
        let mut process = self.process.lock().unwrap();
        drop(process.stdin.take());
        assert!(process.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap();
        let _ = process.child.kill();
        let _ = process.child.wait();
    }
}

// ---- the rows of runs ----

/// A row of a run.
#[derive(Clone, Debug)]
pub struct Row {
    pub run: String,
    pub status: String,
}

/// The runs of the database by the ids of their requests, as of one of many queries.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The number of the query.
    n: u64,
    runs: Arc<HashMap<String, Vec<Row>>>,
}

/// A connection that is made again after it was lost.
pub struct Database {
    url: String,
    client: Option<Client>,
    /// The number of statements so far.
    pub statements: u64,
}

impl Database {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            client: None,
            statements: 0,
        }
    }

    pub async fn query(&mut self, statement: &str) -> Option<Vec<tokio_postgres::Row>> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.ok()?;
                tokio::spawn(connection);
                client
            }
        };
        self.statements += 1;
        let rows = client.query(statement, &[]).await.ok()?;
        self.client = Some(client);
        Some(rows)
    }

    /// The rows of a statement, as soon as the server is there.
    pub async fn rows(&mut self, statement: &str) -> Vec<tokio_postgres::Row> {
        loop {
            if let Some(rows) = self.query(statement).await {
                return rows;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Reads the rows of runs again and again, and checks that no row runs without a lease.
pub async fn watch_rows(
    url: String,
    schema: String,
    rows: watch::Sender<Rows>,
    statements: Arc<AtomicU64>,
) {
    let mut database = Database::new(&url);
    let query = format!(
        "SELECT r.client_id, r.run, r.status, l.held FROM {schema}.runs r
         LEFT JOIN {schema}.leases l ON l.run = r.id"
    );
    loop {
        sleep(Duration::from_millis(150)).await;
        let Some(found) = database.query(&query).await else {
            continue;
        };
        statements.store(database.statements, Ordering::Relaxed);
        let mut runs: HashMap<String, Vec<Row>> = HashMap::new();
        for row in found {
            let (status, held): (String, Option<bool>) = (row.get(2), row.get(3));
            let run: String = row.get(1);
            assert_eq!(held, Some(status == "running"), "the lease of {run}");
            let all = runs.entry(row.get(0)).or_default();
            all.push(Row { run, status });
        }
        let runs = Arc::new(runs);
        rows.send_modify(|rows| {
            rows.n += 1;
            rows.runs = runs;
        });
    }
}

// ---- clients ----

/// What the clients share.
pub struct Clients {
    pub workers: Vec<Worker>,
    pub world: World,
    pub store: PostgresStore,
    pub rows: watch::Receiver<Rows>,
    pub requests: AtomicU64,
    pub settings: Settings,
    /// The questions that were answered, with the answer of the worker to each request that did.
    pub replies: Replies,
    /// The runs of each conversation that have ended, and requests that were not accepted.
    pub done: Mutex<HashMap<String, Vec<Script>>>,
}

type Replies = Arc<Mutex<Vec<(String, Option<Answer>)>>>;

/// The runs of a conversation.
pub const TURNS: usize = 3;

impl Clients {
    fn request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    fn random<'a>(&'a self, dice: &mut Dice) -> &'a Worker {
        let n = dice.below(self.workers.len() as u64);
        &self.workers[usize::try_from(n).unwrap()]
    }

    /// Leads a conversation to its end.
    pub async fn converse(&self, n: usize, mut dice: Dice) {
        let thread = format!("t{n}");
        for turn in 0..TURNS {
            let script = Script {
                run: format!("{thread}.{turn}"),
                asks: (n + turn).is_multiple_of(2),
                steps: self.settings.steps,
            };
            self.lead(&thread, script, &mut dice).await;
        }
    }

    /// Notes a run that has ended, or was not accepted.
    fn note(&self, thread: &str, script: Script) {
        let mut done = self.done.lock().unwrap();
        done.entry(thread.to_owned()).or_default().push(script);
    }

    fn begin(&self, thread: &str, script: &Script, dice: &mut Dice) -> oneshot::Receiver<Answer> {
        let request = self.request();
        let order = Order::Start {
            request,
            thread: thread.to_owned(),
            run: script.run.clone(),
            text: script.text(),
        };
        self.random(dice).send(request, &order)
    }

    /// Starts a run, and answers its interrupts, until it has ended.
    async fn lead(&self, thread: &str, mut script: Script, dice: &mut Dice) {
        let mut rows = self.rows.clone();
        let mut began = Some(self.begin(thread, &script, dice));
        // The first query of rows that the end of the request is known to precede.
        let mut settled = u64::MAX;
        let mut replied: Option<Instant> = None;
        loop {
            if let Some(answer) = &mut began {
                tokio::select! {
                    _ = answer => {
                        began = None;
                        settled = rows.borrow().n + 2;
                    }
                    changed = rows.changed() => changed.unwrap(),
                }
            } else {
                rows.changed().await.unwrap();
            }
            let now = rows.borrow_and_update().clone();
            let found = now.runs.get(&script.run).map(Vec::as_slice);
            let found = found.unwrap_or_default();
            // A request that was not accepted is followed by another one, once it can't be accepted any more.
            let Some(row) = found.first() else {
                if began.is_none() && now.n >= settled {
                    let mut next = script.clone();
                    next.run += "+";
                    self.note(thread, std::mem::replace(&mut script, next));
                    began = Some(self.begin(thread, &script, dice));
                }
                continue;
            };
            assert_eq!(found.len(), 1, "{found:?} of {}", script.run);
            match row.status.as_str() {
                "ended" => return self.note(thread, script),
                "suspended" if replied.is_none_or(|at| at.elapsed() > self.settings.lease * 3) => {
                    if replied.is_none() {
                        sleep(Duration::from_millis(dice.below(self.settings.thinks))).await;
                    }
                    if self.reply(thread, &script, &row.run, dice).await {
                        replied = Some(Instant::now());
                    }
                }
                "suspended" => {}
                // The next interrupt is another one.
                _ => replied = None,
            }
        }
    }

    /// Answers all interrupts of a waiting run; returns whether it waits.
    async fn reply(&self, thread: &str, script: &Script, run: &str, dice: &mut Dice) -> bool {
        let key = RunKey::new(Tenant::default(), ThreadId::new(thread), RunId::new(run));
        let Ok(record) = self.store.get(key).await else {
            return false;
        };
        if record.status != RunStatus::Suspended {
            return false;
        }
        let (mut replies, mut others) = (Vec::new(), Vec::new());
        let mut is_twice = false;
        for question in record.state.interrupts() {
            let id = question.id.clone();
            if question.reason == interrupt::UNKNOWN_EFFECT {
                let call = question.call_id.clone().unwrap();
                self.world.log(&Entry::Asked {
                    id: id.to_string(),
                    reason: question.reason.to_string(),
                    call: call.to_string(),
                });
                let effect = id.as_str().strip_suffix("#effect").unwrap();
                assert_eq!(call_of(effect), call.as_str());
                let seen = match self.world.inquire(effect) {
                    true => format!("{call}: seen done"),
                    false => format!("{call}: seen not done"),
                };
                replies.push(Reply::answer(id.clone(), seen.clone()));
                others.push(Reply::answer(id, seen));
                continue;
            }
            assert_eq!(question.reason, interrupt::TOOL_CALL);
            let (yes, no) = (Reply::approve(id.clone()), Reply::deny(id, "no"));
            let (one, other) = match dice.below(8) {
                0..=3 => (yes.clone(), yes),
                4..=6 => (no.clone(), no),
                // Two people decide differently.
                _ => {
                    is_twice = true;
                    (yes, no)
                }
            };
            replies.push(one);
            others.push(other);
        }
        // One in four replies is sent twice, to any workers.
        is_twice |= dice.below(4) == 0;
        let sent = [Some(replies), is_twice.then_some(others)];
        for replies in sent.into_iter().flatten() {
            let request = self.request();
            let ids: Vec<_> = replies
                .iter()
                .map(|reply| reply.interrupt_id.to_string())
                .collect();
            let order = Order::Reply {
                request,
                thread: thread.to_owned(),
                run: script.run.clone(),
                replies,
            };
            let answer = self.random(dice).send(request, &order);
            tokio::spawn(answered(Arc::clone(&self.replies), ids, answer));
        }
        true
    }
}

async fn answered(replies: Replies, questions: Vec<String>, answer: oneshot::Receiver<Answer>) {
    let answer = answer.await.ok();
    let mut replies = replies.lock().unwrap();
    replies.extend(questions.into_iter().map(|id| (id, answer.clone())));
}
