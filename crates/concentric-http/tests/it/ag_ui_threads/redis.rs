//! Processes that share the events of their runs in Redis, and are killed. `.ci/redis` runs these tests; without its
//! servers they are skipped.

use super::*;
use axum::Router;
use concentric_http::ag_ui::{AgUiLayer, EventLogLayer};
use concentric_layers::{DetachLayer, SuspendLayer, suspend::Sweeper};
use concentric_store::{Options, RedisStore, SqliteStore};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// The variables of a server's process: its part, the server of the events, and the file of the runs.
const PART: &str = "CONCENTRIC_EVENTS_PART";
const REDIS: &str = "CONCENTRIC_EVENTS_REDIS";
const FILE: &str = "CONCENTRIC_EVENTS_FILE";

/// The pieces of the answer, and the time between them.
const PIECES: usize = 60;
const PAUSE: Duration = Duration::from_millis(10);

/// A server that is started again as a process of its own.
#[test]
fn server() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    // The process ends with its parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve(&part));
}

async fn serve(part: &str) {
    let options = Options::new().accept_loss(true).schema("http_events");
    let url = std::env::var(REDIS).unwrap();
    let events = RedisStore::open_with(&url, options).await.unwrap();
    let log = EventLogLayer::new().shared(events);
    let store = SqliteStore::open(std::env::var(FILE).unwrap()).unwrap();
    let suspend = SuspendLayer::new(Arc::new(store.clone())).lease(Duration::from_secs(1));
    let slow = |model: ScriptedModel| {
        (0..PIECES).fold(model, |model, n| {
            model.deltas([format!("piece {n} ")]).sleep(PAUSE)
        })
    };
    let model = match part {
        "answers" => slow(ScriptedModel::new()).repeat(),
        "dies" => ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .deltas(["Wait. "])
            .never(),
        _ => slow(ScriptedModel::new()),
    };
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log.clone())
        .layer(suspend.clone())
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "nothing"),
        ))
        .service(model);
    if part == "sweeps" {
        let sweeper = Sweeper::new(&suspend, BoxModel::new(agent.clone()));
        let sweeper = sweeper.every(Duration::from_millis(200));
        tokio::spawn(sweeper.run(std::future::pending()));
    }
    let threads = Threads::new().runs(store).events(&log);
    let app = Router::new()
        .route_service("/agent", tower::Layer::layer(&AgUiLayer::new(), agent))
        .nest_service("/threads", threads);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistens on {}", listener.local_addr().unwrap().port());
    axum::serve(listener, app).await.unwrap();
}

struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(part: &str, redis: &str, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ag_ui_threads::redis::server", "--nocapture"])
            .env(PART, part)
            .env(REDIS, redis)
            .env(FILE, folder.join("runs.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let port = loop {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "the server has ended"
            );
            if let Some(port) = line.trim().strip_prefix("listens on ") {
                break port.parse().unwrap();
            }
        };
        // Until the process ends, so that it can write.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Self { child, port }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn send(&self, head: &str, body: &str) -> Answered {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let length = body.len();
        let request = format!(
            "{head}Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        Answered::read(BufReader::new(stream))
    }

    /// Starts a run.
    fn run(&self, run: &str) -> Answered {
        let mut input = crate::support::input();
        input["runId"] = run.into();
        self.send("POST /agent HTTP/1.1\r\n", &input.to_string())
    }

    /// Joins a run after an event.
    fn join(&self, run: &str, after: &str) -> Answered {
        let head =
            format!("GET /threads/t/runs/{run}/events HTTP/1.1\r\nLast-Event-ID: {after}\r\n");
        self.send(&head, "")
    }

    /// Joins a run as soon as it has events.
    fn join_later(&self, run: &str, after: &str) -> Answered {
        let began = Instant::now();
        loop {
            let answer = self.join(run, after);
            if answer.status == 200 {
                return answer;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "status {}",
                answer.status
            );
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A streamed response.
struct Answered {
    status: u16,
    body: BufReader<TcpStream>,
    read: String,
}

impl Answered {
    fn read(mut body: BufReader<TcpStream>) -> Self {
        let mut line = String::new();
        body.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while line != "\r\n" {
            line.clear();
            body.read_line(&mut line).unwrap();
        }
        let read = String::new();
        Self { status, body, read }
    }

    /// Reads a chunk; returns whether there are more.
    fn chunk(&mut self) -> bool {
        let mut line = String::new();
        if self.body.read_line(&mut line).unwrap_or(0) == 0 {
            return false;
        }
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        if self.body.read_exact(&mut chunk).is_err() {
            return false;
        }
        self.read
            .push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        size > 0
    }

    fn frames(&self) -> Vec<String> {
        let whole = self.read.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        let frames = whole.split("\n\n").map(str::to_owned);
        frames
            .filter(|it| it.starts_with("id: ") || it.starts_with("data: "))
            .collect()
    }

    /// Reads at least this number of frames.
    fn at_least(&mut self, count: usize) -> Vec<String> {
        while self.frames().len() < count {
            assert!(self.chunk(), "the end after {}", self.read);
        }
        self.frames()
    }

    fn until(&mut self, text: &str) -> Vec<String> {
        while !self.read.contains(text) {
            assert!(self.chunk(), "the end after {}", self.read);
        }
        self.frames()
    }

    fn end(mut self) -> Vec<String> {
        while self.chunk() {}
        self.frames()
    }
}

fn id(frames: &[String]) -> String {
    let frame = frames.last().unwrap();
    let id = frame.strip_prefix("id: ").unwrap();
    id.split('\n').next().unwrap().to_owned()
}

/// Checks that no event is missing or repeated, and that the run has completed.
fn check_whole(frames: &[String], what: &str) {
    for (n, frame) in frames.iter().enumerate() {
        assert!(
            frame.starts_with(&format!("id: {}-", n + 1)),
            "{what}: {frame}"
        );
    }
    assert!(
        frames.last().unwrap().contains("RUN_FINISHED"),
        "{what}: {frames:?}"
    );
    let texts = frames.iter().filter(|it| it.contains("piece "));
    assert_eq!(texts.count(), PIECES, "{what}");
}

/// Whether the servers are there.
fn is_available() -> bool {
    let is_available = std::env::var_os("CONCENTRIC_REDIS").is_some();
    if !is_available {
        println!("skipped without CONCENTRIC_REDIS: `.ci/redis` sets it");
    }
    is_available
}

#[test]
fn a_client_continues_in_another_process_without_gap_or_repeat() {
    if !is_available() {
        return;
    }
    let redis = std::env::var("CONCENTRIC_REDIS").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mine = format!("c{}", std::process::id());
    let [here, there] = ["answers", "reads"].map(|it| Process::start(it, &redis, folder.path()));
    for count in [1, 2, 7, 30, 50] {
        let run = format!("{mine}-{count}");
        let mut first = here.run(&run);
        let mut all = first.at_least(count);
        drop(first);
        all.extend(there.join_later(&run, &id(&all)).end());
        check_whole(&all, &format!("after {count}"));
        assert_eq!(here.join(&run, "0").end(), all, "after {count}");
        assert_eq!(there.join(&run, &id(&all)).status, 204);
    }
}

#[test]
fn the_run_of_a_killed_process_is_followed_in_a_third_one() {
    if !is_available() {
        return;
    }
    let redis = std::env::var("CONCENTRIC_REDIS").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = format!("k{}", std::process::id());
    let mut died = Process::start("dies", &redis, folder.path());
    let reader = Process::start("reads", &redis, folder.path());
    let mut first = died.run(&run);
    let known = first.until("Wait. ");
    let mut joined = reader.join_later(&run, "0");
    joined.until("Wait. ");
    died.kill();
    let sweeper = Process::start("sweeps", &redis, folder.path());
    // The stream of the lost log tells that there is another one.
    let lost = joined.end();
    assert_eq!(lost[..lost.len() - 1], known);
    assert!(lost.last().unwrap().contains("stale_claim"), "{lost:?}");
    let all = reader.join_later(&run, &id(&known)).end();
    assert!(
        all[0].contains("RUN_STARTED") && all[1].contains("MESSAGES_SNAPSHOT"),
        "{all:?}"
    );
    check_whole(&all, "resumed");
    assert_eq!(sweeper.join(&run, "0").end(), all);
}

/// A server of a test's own, without a file.
struct OwnRedis(Child, u16);

impl OwnRedis {
    fn start(port: u16) -> Self {
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(10));
            sleep(Duration::from_millis(20));
        }
        Self(child, port)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_killed_server_of_the_events_affects_no_run() {
    if !is_available() {
        return;
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut server = OwnRedis::start(port);
    let url = format!("redis://127.0.0.1:{}/0", server.1);
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["answers", "reads"].map(|it| Process::start(it, &url, folder.path()));
    let mut first = here.run("r");
    first.until("piece 5 ");
    let mut joined = there.join_later("r", "0");
    joined.until("piece 5 ");
    server.kill();
    let all = first.end();
    check_whole(&all, "without a server");
    // It is started again, without its data, and gets the events that the process still has.
    let _server = OwnRedis::start(port);
    let mut read = joined.end();
    let end = read.pop().unwrap();
    if end.contains("events_lost") {
        read.extend(there.join_later("r", &id(&read)).end());
    } else {
        read.push(end);
    }
    assert_eq!(read, all);
}
