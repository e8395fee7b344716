use super::*;
use concentric_layers::suspend::Sweeper;
use concentric_test::LogCapture;
use tokio::{sync::oneshot, task::JoinHandle};

const EVERY: Duration = Duration::from_secs(10);

fn sweeper(world: &TestEnvironment, process: &Process) -> Sweeper<Flaky> {
    let layer = SuspendLayer::new(Arc::new(process.store.clone())).lease(LEASE);
    Sweeper::new(&layer, process.agent.clone())
        .environment(world.environment())
        .every(EVERY)
}

/// Starts a sweeper; it stops when the sender is dropped.
fn start(sweeper: Sweeper<Flaky>) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(sweeper.run(async { drop(stopped.await) }));
    (stop, task)
}

/// Lets one interval pass: at most one and a half of it.
async fn interval(world: &TestEnvironment) {
    world.advance(EVERY * 3 / 2);
    settle().await;
}

/// Leaves `count` runs whose process has died, each in a conversation of its own.
async fn left(world: &TestEnvironment, store: &Flaky, count: usize) -> Vec<RunKey> {
    let mut keys = Vec::new();
    for n in 0..count {
        let tools = ScriptedTools::new().never("pay");
        let process = Process::new(store, tools, payer());
        let context = world
            .context_builder()
            .thread_id(ThreadId::new(format!("thread {n}")))
            .run_id(RunId::new(format!("run {n}")));
        let request = ChatRequest::user("Pay.").with_context(context.build());
        let mut body = task::spawn(process.body(request).await);
        drain(&mut body).await;
        let id = RunId::new(format!("run {n}"));
        keys.push(store.keys.lock().unwrap()[&id].clone());
        process.die(body);
    }
    world.advance(LEASE);
    keys
}

async fn statuses(store: &Flaky, keys: &[RunKey]) -> Vec<RunStatus> {
    let mut all = Vec::new();
    for key in keys {
        all.push(store.get(key.clone()).await.unwrap().status);
    }
    all
}

#[tokio::test]
async fn abandoned_runs_are_resumed_once_by_several_sweepers() {
    let (world, store) = world();
    let keys = left(&world, &store, 40).await;
    let processes = [Process::other(&store), Process::other(&store)];
    let started = processes.each_ref().map(|it| start(sweeper(&world, it)));
    for _ in 0..200 {
        settle().await;
    }
    assert_eq!(statuses(&store, &keys).await, [RunStatus::Ended; 40]);
    let calls = processes.each_ref().map(|it| it.model.calls());
    assert_eq!(calls.iter().sum::<usize>(), 40, "{calls:?}");
    for (stop, task) in started {
        drop(stop);
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_sweeper_drives_no_more_runs_than_its_limit() {
    let (world, store) = world();
    let keys = left(&world, &store, 7).await;
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("Done.").repeat();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let (stop, task) = start(sweeper(&world, &process).limit(3).batch(2));
    for _ in 0..20 {
        settle().await;
    }
    assert_eq!(process.model.live(), 3);
    let abandoned = statuses(&store, &keys).await;
    let abandoned = abandoned.iter().filter(|it| **it == RunStatus::Abandoned);
    assert_eq!(abandoned.count(), 4);
    // The next ones are claimed once there is room, before the interval ends.
    gate.open();
    for _ in 0..100 {
        settle().await;
    }
    assert_eq!(statuses(&store, &keys).await, [RunStatus::Ended; 7]);
    drop(stop);
    task.await.unwrap();
}

#[tokio::test]
async fn a_run_that_fails_is_resumed_after_longer_and_longer_intervals() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let down = service_fn({
        let calls = Arc::clone(&calls);
        move |_: ChatRequest| {
            calls.fetch_add(1, Ordering::Relaxed);
            async { Err::<ChatResponse<EventStream>, _>(Error::new(ErrorKind::Overloaded, "down")) }
        }
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let sweeper = Sweeper::new(&layer, layer.layer(down))
        .environment(world.environment())
        .every(EVERY);
    let (_stop, _task) = start(sweeper);
    settle().await;
    let calls = || calls.load(Ordering::Relaxed);
    let mut pauses = Vec::new();
    let (mut known, mut since) = (calls(), 0);
    assert_eq!(known, 1);
    for second in 0..400 {
        world.advance(Duration::from_secs(1));
        for _ in 0..4 {
            settle().await;
        }
        if calls() > known {
            known = calls();
            pauses.push(second - since);
            since = second;
        }
    }
    // Each pause ends with the next look, up to one and a half intervals later.
    assert!(pauses.len() >= 4, "{pauses:?}");
    assert_eq!(status(&store, "run").await, RunStatus::Abandoned);
    for (pause, least) in pauses.iter().zip([10, 20, 40, 80]) {
        assert!((least - 1..least + 16).contains(pause), "{pauses:?}");
    }
}

#[tokio::test]
async fn a_stopped_sweeper_claims_nothing_and_waits_for_its_runs() {
    let (world, store) = world();
    let first = left(&world, &store, 1).await;
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("Done.").repeat();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let (stop, mut task) = start(sweeper(&world, &process));
    settle().await;
    assert_eq!(process.model.live(), 1);
    drop(stop);
    settle().await;
    assert!(!task.is_finished());
    interval(&world).await;
    assert_eq!(statuses(&store, &first).await, [RunStatus::Running]);
    gate.open();
    (&mut task).await.unwrap();
    assert_eq!(statuses(&store, &first).await, [RunStatus::Ended]);
}

/// The store makes the claim although the sweeper does not wait for it.
#[tokio::test]
async fn a_stopped_or_dropped_sweeper_gives_up_what_it_claims() {
    for is_dropped in [false, true] {
        let (world, store) = world();
        let keys = left(&world, &store, 3).await;
        store.elsewhere.store(true, Ordering::Relaxed);
        let process = Process::other(&store);
        let gate = Gate::new();
        *store.gate.lock().unwrap() = Some(gate.clone());
        let (stop, task) = start(sweeper(&world, &process));
        gate.reached().await;
        if is_dropped {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            gate.open();
            settle().await;
        } else {
            drop(stop);
            settle().await;
            gate.open();
            task.await.unwrap();
        }
        assert_eq!(process.model.calls(), 0);
        assert_eq!(statuses(&store, &keys).await, [RunStatus::Abandoned; 3]);
    }
}

#[tokio::test]
async fn a_stopped_sweeper_does_not_wait_for_a_store_that_hangs() {
    let (world, store) = world();
    let process = Process::other(&store);
    store.stalls.lock().unwrap().push("claim_abandoned");
    let (stop, mut task) = start(sweeper(&world, &process));
    settle().await;
    drop(stop);
    settle().await;
    world.advance(Duration::from_secs(29));
    settle().await;
    assert!(!task.is_finished());
    world.advance(Duration::from_secs(1));
    (&mut task).await.unwrap();
    // Nor does the task that waits for the claim.
    world.advance(Duration::from_secs(30));
    settle().await;
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 0);
}

#[tokio::test]
async fn runs_of_a_dropped_sweeper_continue() {
    let (world, store) = world();
    let keys = left(&world, &store, 1).await;
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("Done.").repeat();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let (_stop, task) = start(sweeper(&world, &process));
    settle().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    gate.open();
    settle().await;
    assert_eq!(statuses(&store, &keys).await, [RunStatus::Ended]);
}

#[tokio::test]
async fn a_sweeper_survives_a_failing_store_and_a_panicking_agent() {
    let (log, _guard) = LogCapture::of_thread("suspend");
    let (world, store) = world();
    let keys = left(&world, &store, 1).await;
    let panics = service_fn(|_: ChatRequest| async {
        let panics = true;
        assert!(!panics, "a bug");
        Ok::<_, Error>(ChatResponse::new(stream::empty::<Result<Event, Error>>()))
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let agent = layer.layer(panics);
    store.fail("claim_abandoned");
    let sweeper = Sweeper::new(&layer, agent)
        .environment(world.environment())
        .every(EVERY);
    let (_stop, task) = start(sweeper);
    settle().await;
    let lines = log.take();
    assert!(lines[0].contains("could not claim"), "{lines:?}");
    assert_eq!(statuses(&store, &keys).await, [RunStatus::Abandoned]);
    store.heal();
    interval(&world).await;
    assert!(!task.is_finished());
    let lines = log.take();
    assert!(
        lines.iter().any(|line| line.contains("panicked")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn expired_entries_are_removed() {
    let world = TestEnvironment::new();
    let options = options(&world).keep_waiting(Duration::from_secs(60));
    let store = Flaky::with(MemoryStore::with_options(options));
    Process::paying(&store).interrupted(&world, "run").await;
    let process = Process::other(&store);
    let minute = Duration::from_secs(60);
    let (_stop, _task) = start(sweeper(&world, &process).purge_every(minute));
    settle().await;
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);
    for _ in 0..8 {
        interval(&world).await;
    }
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

#[tokio::test]
async fn the_removal_of_entries_does_not_delay_runs() {
    let (world, store) = world();
    let process = Process::other(&store);
    store.stalls.lock().unwrap().push("purge");
    let (stop, task) = start(sweeper(&world, &process).purge_every(EVERY));
    settle().await;
    let before = store.writes();
    for _ in 0..9 {
        interval(&world).await;
    }
    // One removal at a time, besides the looks for runs.
    assert_eq!(store.writes(), before + 10);
    let keys = left(&world, &store, 3).await;
    interval(&world).await;
    for _ in 0..20 {
        settle().await;
    }
    assert_eq!(statuses(&store, &keys).await, [RunStatus::Ended; 3]);
    drop(stop);
    task.await.unwrap();
}

#[tokio::test]
async fn a_failed_run_is_resumed_within_an_hour() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let limited = service_fn({
        let calls = Arc::clone(&calls);
        move |_: ChatRequest| {
            calls.fetch_add(1, Ordering::Relaxed);
            let error = Error::new(ErrorKind::RateLimited, "much later");
            let error = error.with_retry_after(Duration::from_secs(1 << 30));
            async { Err::<ChatResponse<EventStream>, _>(error) }
        }
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let sweeper = Sweeper::new(&layer, layer.layer(limited))
        .environment(world.environment())
        .every(EVERY);
    let (_stop, _task) = start(sweeper);
    settle().await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    world.advance(Duration::from_secs(60 * 60));
    settle().await;
    interval(&world).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_failed_run_is_not_resumed_before_its_provider_allows_it() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let limited = service_fn({
        let calls = Arc::clone(&calls);
        move |_: ChatRequest| {
            calls.fetch_add(1, Ordering::Relaxed);
            let error = Error::new(ErrorKind::RateLimited, "later");
            let error = error.with_retry_after(Duration::from_secs(300));
            async { Err::<ChatResponse<EventStream>, _>(error) }
        }
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let sweeper = Sweeper::new(&layer, layer.layer(limited))
        .environment(world.environment())
        .every(EVERY);
    let (_stop, _task) = start(sweeper);
    settle().await;
    for _ in 0..19 {
        interval(&world).await;
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    for _ in 0..3 {
        interval(&world).await;
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[cfg(feature = "otel")]
#[tokio::test]
async fn resumed_runs_are_counted_by_their_outcomes() {
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::{
        InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
        data::{AggregatedMetrics, MetricData},
    };
    for (error, outcome) in [
        (None, "completed"),
        (Some(Error::new(ErrorKind::Overloaded, "down")), "failed"),
        // A conflict of the run itself, such as that of its conversation.
        (Some(Error::new(ErrorKind::Conflict, "moved")), "failed"),
        (Some(Error::from(StoreError::Stale)), "taken"),
    ] {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let (world, store) = world();
        died_with_replies(&world, &store).await;
        let answers = service_fn(move |_: ChatRequest| {
            let answer = match &error {
                Some(error) => Err(error.clone()),
                None => Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
            };
            async { Ok::<_, Error>(ChatResponse::new(stream::iter([answer]))) }
        });
        let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
        let sweeper = Sweeper::new(&layer, layer.layer(answers))
            .environment(world.environment())
            .meter(&provider.meter("test"));
        let (stop, task) = start(sweeper);
        settle().await;
        drop(stop);
        task.await.unwrap();
        provider.force_flush().unwrap();
        let metrics = exporter.get_finished_metrics().unwrap();
        let mut metrics = metrics[0].scope_metrics().flat_map(|it| it.metrics());
        let runs = metrics
            .find(|it| it.name() == "concentric.recovered_runs")
            .unwrap();
        let AggregatedMetrics::U64(MetricData::Sum(sum)) = runs.data() else {
            panic!("{runs:?}");
        };
        let is_counted = sum.data_points().any(|point| {
            point.value() > 0 && point.attributes().any(|it| it.value.as_str() == outcome)
        });
        assert!(is_counted, "{outcome}: {sum:?}");
    }
}
