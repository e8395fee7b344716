//! Clients that join a run which another process drives.

use super::{
    events::{Server, Stream, frames, greeting, last_type, parse, settle, whole},
    *,
};
use crate::support::types;
use concentric_core::{
    Error, ErrorKind, Str,
    store::{EventBatch, EventKey, EventPage, EventStore},
};
use concentric_http::ag_ui::EventLogLayer;
use concentric_store::Options;
use concentric_test::{Gate, TestEnvironment};
use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, SystemTime},
};
use tokio::time::sleep;
use tower::Layer;

const TICK: Duration = Duration::from_millis(200);

/// A server, and another one that drives no run.
fn two(store: &impl EventStoreClone, model: ScriptedModel) -> [Server; 2] {
    let log = || EventLogLayer::new().shared(store.clone());
    [
        Server::of(&log(), model),
        Server::of(&log(), ScriptedModel::new()),
    ]
}

/// A store with the clock of `world`.
fn kept_by(world: &TestEnvironment) -> MemoryStore {
    MemoryStore::with_options(Options::new().clock(world.clock().clone()))
}

/// The stream of a run that `here` drives, and one that has joined it at the other server, at the same event.
async fn followed(here: &Server, there: &Server) -> (Stream, Stream) {
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    let mut joined = there.join("").await;
    joined.until("\", \"").await;
    (first, joined)
}

trait EventStoreClone: EventStore + Clone {}

impl<S: EventStore + Clone> EventStoreClone for S {}

#[tokio::test(start_paused = true)]
async fn a_client_continues_after_any_event_in_another_process() {
    let gate = Gate::new();
    let [here, there] = two(&MemoryStore::new(), greeting(&gate));
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    let known = frames(&first.read);
    let mut joined = vec![there.join("").await];
    for frame in &known {
        let (id, _) = parse(frame);
        joined.push(there.join(&format!("?after={}", id.unwrap())).await);
    }
    // While the run waits.
    joined[0].until("\", \"").await;
    sleep(TICK).await;
    gate.open();
    let all = first.end().await;
    assert_eq!(types(&whole(&all)).last(), Some(&"RUN_FINISHED"));
    for (n, mut stream) in joined.into_iter().enumerate() {
        assert_eq!(stream.status(), 200);
        assert_eq!(stream.end().await, all[n..], "after {n}");
    }
    // When it has ended.
    sleep(TICK).await;
    assert_eq!(there.join("?after=3").await.end().await, all[3..]);
    let path = |after: usize| format!("/t/runs/r/events?after={after}");
    assert_eq!(there.get(&path(all.len())).await.status, 204);
    let beyond = there.get(&path(all.len() + 1)).await;
    assert_eq!(code(&beyond), (410, "events_gone".to_owned()));
    // An id of another log.
    assert_eq!(there.join("?after=3-0").await.end().await, all);
    let head = request("HEAD", "/t/runs/r/events");
    assert_eq!(
        send(there.threads.clone(), by("ada", head)).await.status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn events_belong_to_one_tenant_thread_and_run() {
    let gate = Gate::new();
    let [here, there] = two(&MemoryStore::new(), greeting(&gate));
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    for path in [
        "/t/runs/r%00",
        "/t%00/runs/r",
        "/t%2Fr/runs/",
        "/t/runs/ag-ui:r",
        "/t:/runs/r",
        "/ada/runs/r",
    ] {
        let answer = there.get(&format!("{path}/events")).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    for tenant in ["", "eve", "ad", "ada\0", "ada/t", "ada:t"] {
        let events = by(tenant, get("/t/runs/r/events"));
        assert_eq!(send(there.threads.clone(), events).await.status, 404);
    }
}

/// The clock is that of the store of the runs; the other one has real time.
#[tokio::test(start_paused = true)]
async fn a_run_that_another_process_resumes_has_another_log() {
    let world = TestEnvironment::new();
    let store = Arc::new(kept_by(&world));
    let events = MemoryStore::new();
    let server = |tools, model| {
        let log = EventLogLayer::new().shared(events.clone());
        Server::new(&log, &store, tools, model)
    };
    let tools = ScriptedTools::new().never("look");
    let model = ScriptedModel::new().tool_call("look", json!({}));
    let died = server(tools, model);
    let mut first = died.start().await;
    first.until("TOOL_CALL_END").await;
    sleep(TICK).await;
    let read = frames(&first.read);
    let (lost, _) = parse(read.last().unwrap());
    let lost = lost.unwrap();

    let reader = server(ScriptedTools::new(), ScriptedModel::new());
    let mut joined = reader.join("").await;
    joined.until("TOOL_CALL_END").await;
    // The process dies, and another one resumes its run.
    world.advance(Duration::from_secs(30));
    let gate = Gate::new();
    let tools = ScriptedTools::new().answers("look", "nothing");
    let model = ScriptedModel::new()
        .deltas(["There "])
        .wait(&gate)
        .deltas(["is nothing."]);
    let third = server(tools, model);
    let environment = world.environment();
    let claimed = third
        .suspend
        .claim_abandoned(&environment, 1)
        .await
        .unwrap();
    let request = claimed.into_iter().next().unwrap();
    let body = third.agent.clone().oneshot(request).await.unwrap();
    let driven = tokio::spawn(async move { body.collect().await.unwrap() });
    sleep(TICK).await;
    // A stream of the first log has an end that names the reason.
    let all = joined.end().await;
    let (id, end) = parse(all.last().unwrap());
    assert_eq!((id, end["code"].as_str()), (None, Some("stale_claim")));
    assert_eq!(all[..all.len() - 1], read);
    // The client joins again, in any process.
    let mut again = reader.join(&format!("?after={lost}")).await;
    again.until("There ").await;
    gate.open();
    driven.await.unwrap();
    let events = whole(&again.end().await);
    assert_eq!(types(&events)[..2], ["RUN_STARTED", "MESSAGES_SNAPSHOT"]);
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
    drop(first);
}

/// The same in the process that has lost the run.
#[tokio::test(start_paused = true)]
async fn a_process_that_has_lost_a_run_reads_its_new_log() {
    let world = TestEnvironment::new();
    let store = Arc::new(kept_by(&world));
    let events = MemoryStore::new();
    let log = || EventLogLayer::new().shared(events.clone());
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .wait(&gate)
        .tool_call("look", json!({}));
    let tools = ScriptedTools::new().answers("look", "nothing");
    let server = Server::new(&log(), &store, tools, model);
    let mut first = server.start().await;
    first.until("TOOL_CALL_RESULT").await;
    world.advance(Duration::from_secs(30));
    let other = Server::new(
        &log(),
        &store,
        ScriptedTools::new(),
        ScriptedModel::new().text("Done."),
    );
    let environment = world.environment();
    let claimed = other
        .suspend
        .claim_abandoned(&environment, 1)
        .await
        .unwrap();
    gate.open();
    let all = first.end().await;
    assert_eq!(parse(all.last().unwrap()).1["code"], "stale_claim");
    sleep(TICK).await;
    // Its own log is no answer, and there is no other one yet.
    assert_eq!(server.get("/t/runs/r/events").await.status, 204);
    let request = claimed.into_iter().next().unwrap();
    let body = other.agent.clone().oneshot(request).await.unwrap();
    body.collect().await.unwrap();
    sleep(TICK).await;
    let events = whole(&server.join("").await.end().await);
    assert_eq!(types(&events)[..2], ["RUN_STARTED", "MESSAGES_SNAPSHOT"]);
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
}

/// A store that does not always work.
#[derive(Clone)]
pub struct Faulty {
    store: MemoryStore,
    fault: Arc<AtomicU8>,
}

const FAULTS: [&str; 5] = ["none", "fails", "panics", "panics later", "stalls"];

/// A fault of reads only: the server has evicted the events.
const EVICTED: u8 = 9;

impl Faulty {
    pub fn new() -> Self {
        let options = Options::new().max_log_bytes(64 << 10);
        Self {
            store: MemoryStore::with_options(options),
            fault: Arc::default(),
        }
    }

    pub fn set(&self, fault: &str) {
        let fault = FAULTS.iter().position(|it| *it == fault).unwrap();
        self.fault
            .store(u8::try_from(fault).unwrap(), Ordering::SeqCst);
    }

    fn or<T: Send + 'static>(&self, future: StoreFuture<T>) -> StoreFuture<T> {
        let fault = usize::from(self.fault.load(Ordering::SeqCst));
        match *FAULTS.get(fault).unwrap_or(&FAULTS[0]) {
            "none" => future,
            "fails" => Box::pin(async { Err(StoreError::failed("no connection")) }),
            "panics" => panic!("a bug of the store"),
            "panics later" => Box::pin(async { panic!("a bug of the store") }),
            _ => Box::pin(std::future::pending()),
        }
    }
}

impl EventStore for Faulty {
    fn begin_events(&self, key: EventKey, tag: Str, since: SystemTime) -> StoreFuture<()> {
        self.or(self.store.begin_events(key, tag, since))
    }

    fn append_events(&self, key: EventKey, batch: EventBatch) -> StoreFuture<()> {
        self.or(self.store.append_events(key, batch))
    }

    fn read_events(&self, key: EventKey, after: u64) -> StoreFuture<Option<EventPage>> {
        if self.fault.load(Ordering::SeqCst) != EVICTED {
            return self.or(self.store.read_events(key, after));
        }
        let read = self.store.read_events(key, after);
        Box::pin(async {
            let mut page = read.await?;
            if let Some(page) = &mut page {
                page.frames.clear();
            }
            Ok(page)
        })
    }

    fn newest_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        prefix: Str,
    ) -> StoreFuture<Option<Str>> {
        self.or(self.store.newest_events(tenant, thread, prefix))
    }

    fn remove_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        name: Option<Str>,
        until: SystemTime,
    ) -> StoreFuture<()> {
        self.or(self.store.remove_events(tenant, thread, name, until))
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_work_affects_no_run() {
    for fault in &FAULTS[1..] {
        let store = Faulty::new();
        store.set(fault);
        let gate = Gate::new();
        gate.open();
        let [here, there] = two(&store, greeting(&gate));
        let mut first = here.start().await;
        let all = first.end().await;
        assert_eq!(last_type(&all), "RUN_FINISHED", "{fault}");
        assert_eq!(here.join("").await.end().await, all, "{fault}");
        let began = tokio::time::Instant::now();
        let answer = there.get("/t/runs/r/events").await;
        assert_eq!(answer.status, 204, "{fault}");
        assert_eq!(answer.headers["retry-after"], "1", "{fault}");
        assert!(began.elapsed() <= Duration::from_secs(2), "{fault}");
        // The events are written when the store works again.
        store.set("none");
        sleep(Duration::from_secs(12)).await;
        assert_eq!(there.join("").await.end().await, all, "{fault}");
    }
}

/// An outer layer delays the error, so that the whole log was written before the client receives a status.
#[tokio::test(start_paused = true)]
async fn the_log_of_a_refused_request_is_removed() {
    let store = MemoryStore::new();
    let log = EventLogLayer::new().shared(store.clone());
    let mut server = Server::of(&log, ScriptedModel::new());
    let refuses = log.layer(tower::service_fn(async |_: ChatRequest| {
        let refused = Error::new(ErrorKind::Conflict, "the thread is busy");
        Err::<concentric_core::ChatResponse<concentric_core::EventStream>, _>(refused)
    }));
    server.agent = BoxModel::new(tower::service_fn(move |request: ChatRequest| {
        let (hold, refuses) = (request.context.hold_head(), refuses.clone());
        async move {
            let refused = refuses.oneshot(request).await;
            sleep(TICK).await;
            drop(hold);
            refused
        }
    }));
    let there = Server::of(
        &EventLogLayer::new().shared(store.clone()),
        ScriptedModel::new(),
    );
    let refused = tokio::spawn(async move { server.start().await.status() });
    sleep(TICK / 2).await;
    assert_eq!(there.join("").await.status(), 200);
    assert_eq!(refused.await.unwrap(), 409);
    sleep(TICK).await;
    assert_eq!(there.get("/t/runs/r/events").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn events_that_the_store_has_evicted_are_lost() {
    let (store, gate) = (Faulty::new(), Gate::new());
    let [here, there] = two(&store, greeting(&gate));
    let (mut first, mut joined) = followed(&here, &there).await;
    store.fault.store(EVICTED, Ordering::SeqCst);
    let gone = there.get("/t/runs/r/events").await;
    assert_eq!(code(&gone), (410, "events_gone".to_owned()));
    gate.open();
    first.end().await;
    let read = joined.end().await;
    assert_eq!(parse(read.last().unwrap()).1["code"], "events_lost");
}

#[tokio::test(start_paused = true)]
async fn one_stalled_sign_cuts_no_stream() {
    let world = TestEnvironment::new();
    let options = Options::new().clock(world.clock().clone());
    let (mut store, gate) = (Faulty::new(), Gate::new());
    store.store = MemoryStore::with_options(options);
    let [here, there] = two(&store, greeting(&gate));
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    let mut joined = there.join("").await;
    let joined = tokio::spawn(async move { joined.end().await });
    for second in 0..40 {
        match second {
            9 => store.set("stalls"),
            11 => store.set("none"),
            _ => {}
        }
        sleep(Duration::from_secs(1)).await;
        world.advance(Duration::from_secs(1));
    }
    gate.open();
    assert_eq!(joined.await.unwrap(), first.end().await);
}

#[tokio::test(start_paused = true)]
async fn a_reader_learns_that_the_store_does_not_work() {
    for (fault, seconds, is_lost) in [
        ("fails", 5, false),
        ("fails", 60, true),
        ("panics", 60, true),
        ("panics later", 60, true),
        ("stalls", 5, false),
        ("stalls", 90, true),
    ] {
        let (store, gate) = (Faulty::new(), Gate::new());
        let [here, there] = two(&store, greeting(&gate));
        let mut first = here.start().await;
        let mut joined = {
            first.until("\", \"").await;
            sleep(TICK).await;
            there.join("").await
        };
        joined.until("\", \"").await;
        store.set(fault);
        let reading = tokio::spawn(async move { joined.end().await });
        sleep(Duration::from_secs(seconds)).await;
        gate.open();
        let all = first.end().await;
        assert_eq!(last_type(&all), "RUN_FINISHED");
        store.set("none");
        let read = reading.await.unwrap();
        if is_lost {
            let (id, end) = parse(read.last().unwrap());
            assert_eq!(
                (id, end["code"].as_str()),
                (None, Some("events_lost")),
                "{fault}"
            );
            sleep(Duration::from_secs(12)).await;
            let after = read.len() - 1;
            let rest = there.join(&format!("?after={after}")).await.end().await;
            assert_eq!(rest, all[after..], "{fault}");
        } else {
            assert_eq!(read, all, "{fault}");
        }
    }
}

/// A server without its data is like a store whose logs have expired.
#[tokio::test(start_paused = true)]
async fn a_store_that_has_lost_a_log_gets_it_again() {
    let world = TestEnvironment::new();
    let (store, gate) = (kept_by(&world), Gate::new());
    let [here, there] = two(&store, greeting(&gate));
    let (mut first, mut joined) = followed(&here, &there).await;
    world.advance(Duration::from_secs(3600));
    gate.open();
    let all = first.end().await;
    let lost = joined.end().await;
    assert_eq!(parse(lost.last().unwrap()).1["code"], "events_lost");
    sleep(TICK).await;
    assert_eq!(there.join("").await.end().await, all);
}

#[tokio::test(start_paused = true)]
async fn a_long_run_is_read_in_another_process() {
    // 4 MiB, of which the store keeps 1 MiB.
    let text = "x".repeat(16 << 10);
    let mut model = ScriptedModel::new();
    for _ in 0..256 {
        model = model
            .deltas([text.clone()])
            .sleep(Duration::from_millis(10));
    }
    let [here, there] = two(&MemoryStore::new(), model);
    let mut first = here.start().await;
    let slow = tokio::spawn(async move { first.end().await });
    sleep(TICK).await;
    let mut joined = there.join("").await;
    // It has begun, and is not read any more until the run has ended.
    let mut stopped = there.join("").await;
    stopped.until("TEXT_MESSAGE_START").await;
    let all = joined.end().await;
    assert_eq!(slow.await.unwrap(), all);
    assert_eq!(last_type(&all), "RUN_FINISHED");
    let lost = stopped.end().await;
    let (id, end) = parse(lost.last().unwrap());
    assert_eq!((id, end["code"].as_str()), (None, Some("events_lost")));
    assert_eq!(lost[..lost.len() - 1], all[..lost.len() - 1]);
    let gone = there.get("/t/runs/r/events?after=1").await;
    assert_eq!(code(&gone), (410, "events_gone".to_owned()));
    let after = all.len() - 20;
    let rest = there.join(&format!("?after={after}")).await.end().await;
    assert_eq!(rest, all[after..]);
}

/// The process of a run is stopped, and has no time to end the log.
#[tokio::test(start_paused = true)]
async fn a_log_without_a_sign_of_its_writer_is_not_joined() {
    let world = TestEnvironment::new();
    let (store, gate) = (kept_by(&world), Gate::new());
    let [here, there] = two(&store, greeting(&gate));
    let (_first, mut joined) = followed(&here, &there).await;
    // The writer shows that it is alive.
    sleep(Duration::from_secs(40)).await;
    world.advance(Duration::from_secs(29));
    sleep(Duration::from_secs(11)).await;
    world.advance(Duration::from_secs(29));
    sleep(TICK).await;
    assert_eq!(there.get("/t/runs/r/events?after=99").await.status, 410);
    // Its clock stops.
    world.advance(Duration::from_secs(31));
    let read = joined.end().await;
    assert_eq!(parse(read.last().unwrap()).1["code"], "events_lost");
    assert_eq!(there.get("/t/runs/r/events").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_log_has_a_limited_number_of_readers_in_each_process() {
    let gate = Gate::new();
    let [here, there] = two(&MemoryStore::new(), greeting(&gate));
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    let mut readers = Vec::new();
    for _ in 0..256 {
        readers.push(there.join("").await);
    }
    // The client of the run is one here, and the copy in the store is none.
    let mut readers_here = Vec::new();
    for _ in 1..256 {
        readers_here.push(here.join("").await);
    }
    assert!(readers_here.iter().all(|reader| reader.status() == 200));
    for server in [&here, &there] {
        let answer = server.get("/t/runs/r/events").await;
        assert_eq!(code(&answer), (429, "too_many_readers".to_owned()));
    }
    readers.pop();
    readers.push(there.join("").await);
    gate.open();
    let all = first.end().await;
    assert_eq!(readers.pop().unwrap().end().await, all);
}

#[tokio::test(start_paused = true)]
async fn a_thread_that_another_process_deletes_has_no_events() {
    let (store, runs, gate) = (
        MemoryStore::new(),
        Arc::new(MemoryStore::new()),
        Gate::new(),
    );
    let log = || EventLogLayer::new().shared(store.clone());
    let here = Server::new(&log(), &runs, ScriptedTools::new(), greeting(&gate));
    let mut there = Server::new(&log(), &runs, ScriptedTools::new(), ScriptedModel::new());
    there.threads = there.threads.threads(runs);
    let (mut first, mut joined) = followed(&here, &there).await;
    send(there.threads.clone(), by("ada", request("DELETE", "/t"))).await;
    let read = joined.end().await;
    assert_eq!(parse(read.last().unwrap()).1["code"], "events_lost");
    gate.open();
    first.end().await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(there.get("/t/runs/r/events").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_thread_is_removed_from_the_store() {
    let (store, runs) = (MemoryStore::new(), Arc::new(MemoryStore::new()));
    let log = || EventLogLayer::new().shared(store.clone());
    let mut here = Server::new(&log(), &runs, ScriptedTools::new(), greeting(&Gate::new()));
    here.threads = here.threads.threads(runs);
    let there = Server::of(&log(), ScriptedModel::new());
    let mut first = here.start().await;
    first.until("\", \"").await;
    sleep(TICK).await;
    assert_eq!(there.join("").await.status(), 200);
    send(here.threads.clone(), by("ada", request("DELETE", "/t"))).await;
    settle().await;
    assert_eq!(there.get("/t/runs/r/events").await.status, 404);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(there.get("/t/runs/r/events").await.status, 404);
}
