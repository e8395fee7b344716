use super::*;

#[tokio::test]
async fn a_run_completes_without_a_reading_consumer() {
    let (world, store) = world();
    let (process, mut body, gate, _) = at_the_gate(&world, &store).await;
    for n in 1..=12 {
        world.advance(LEASE / 3);
        settle().await;
        assert_eq!(store.renewals.load(Ordering::Relaxed), n);
        assert_eq!(status(&store, "run").await, RunStatus::Running);
    }
    // It ends, too, since there is room for what it has to say.
    gate.open();
    settle().await;
    assert_eq!(process.tools.done(), 1);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let items = drain(&mut body).await;
    assert!(items.last().unwrap().as_ref().unwrap().is_finish());
}

#[tokio::test]
async fn a_task_executes_the_first_tools_of_a_run() {
    let (world, store) = world();
    let tools = ScriptedTools::new().answers("pay", "paid");
    let process = Process::new(&store, tools, payer());
    let mut body = task::spawn(process.body(request(&world, "run")).await);
    // The store is ready at once, and so are the tools.
    while body.poll_next().is_ready() {}
    assert_eq!(status(&store, "run").await, RunStatus::Running);
    assert_eq!(process.tools.done(), 0);
    settle().await;
    assert_eq!(process.tools.done(), 1);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let items = drain(&mut body).await;
    assert!(items.last().unwrap().as_ref().unwrap().is_finish());
}

#[test]
fn polls_drive_a_stored_run_without_a_runtime() {
    let (world, store) = world();
    let gate = Gate::new();
    let process = Process::new(&store, gated(&gate), payer());
    let mut call = task::spawn(process.body(request(&world, "run")));
    let std::task::Poll::Ready(body) = call.poll() else {
        panic!("the model is ready");
    };
    let mut body = task::spawn(body);
    let mut items = Vec::new();
    let mut poll = || {
        // Twice, since the run is pending when it is stored.
        for _ in 0..2 {
            while let std::task::Poll::Ready(Some(item)) = body.poll_next() {
                items.push(item.unwrap());
            }
        }
        items.last().is_some_and(Event::is_finish)
    };
    assert!(!poll());
    assert_eq!(process.tools.live(), 1);
    for n in 1..=3 {
        world.advance(LEASE / 3);
        assert!(!poll());
        assert_eq!(store.renewals.load(Ordering::Relaxed), n);
    }
    gate.open();
    assert!(poll());
    assert_eq!(process.tools.done(), 1);
    let mut record = task::spawn(store.get(key(&store, "run")));
    let std::task::Poll::Ready(Ok(record)) = record.poll() else {
        panic!("the store is ready");
    };
    assert_eq!(record.status, RunStatus::Ended);
}

/// A service in an agent's place that has `events` to say once a run was resumed, and how many of them
/// were taken from it.
async fn resumed_with_events(
    world: &TestEnvironment,
    store: &Flaky,
    buffer: usize,
    events: usize,
) -> (task::Spawn<EventStream>, Arc<AtomicUsize>, Context) {
    let questions = Process::paying(store).interrupted(world, "run").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let agent = service_fn({
        let taken = Arc::clone(&taken);
        move |_: ChatRequest| {
            let taken = Arc::clone(&taken);
            let events = (0..events).map(move |n| {
                taken.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(Event::text(format!("{n} ")))
            });
            let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
            let events = events.chain([Ok(finish)]);
            async move { Ok::<_, Error>(ChatResponse::new(stream::iter(events))) }
        }
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let request = reply(world, "next", approve(&questions));
    let context = request.context.clone();
    let agent = BoxModel::new(layer.buffer(buffer).layer(agent));
    let body = agent.oneshot(request).await.unwrap().body;
    (task::spawn(body), taken, context)
}

#[tokio::test]
async fn a_run_precedes_its_consumer_by_the_buffer_size() {
    for (buffer, most) in [(0, 1), (1, 1), (5, 5), (usize::MAX, 1000)] {
        let (world, store) = world();
        let (mut body, taken, _) = resumed_with_events(&world, &store, buffer, 1000).await;
        settle().await;
        for n in 1..=6 {
            world.advance(LEASE / 3);
            settle().await;
            // Besides, one is in hand, and one was taken before the run had its task.
            let taken = taken.load(Ordering::Relaxed);
            assert!(taken <= most + 2, "{taken}");
            if most < 1000 {
                // It waits, and is alive.
                assert_eq!(store.renewals.load(Ordering::Relaxed), n);
                assert_eq!(status(&store, "run").await, RunStatus::Running);
            }
        }
        let mut text = String::new();
        while text.len() < 3890 {
            for item in drain(&mut body).await {
                match item.unwrap() {
                    Event::Finish(_) => {}
                    Event::TextDelta(delta) => text.push_str(&delta),
                    other => panic!("{other:?}"),
                }
            }
        }
        let all: String = (0..1000).map(|n| format!("{n} ")).collect();
        assert_eq!(text, all);
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}

#[tokio::test]
async fn a_blocked_run_ends_on_cancel_or_deadline() {
    for late in [false, true] {
        let (world, store) = world();
        let layer = SuspendLayer::new(Arc::new(store.clone()))
            .lease(LEASE)
            .buffer(1);
        let tools = ScriptedTools::new().answers("pay", "paid");
        let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
        let agent = ServiceBuilder::new()
            .layer(layer)
            .layer(AgentLayer::new(tools.clone()))
            .service(model);
        let now = context(&world, "x").now();
        let limited = world.context_builder().thread_id(ThreadId::new("thread"));
        let limited = limited.run_id(RunId::new("run")).deadline(now + LEASE / 2);
        let request = ChatRequest::user("Pay.").with_context(limited.build());
        let cancel = request.context.clone();
        let mut body = task::spawn(agent.oneshot(request).await.unwrap().body);
        // Until it is stored, and driven by its task.
        while is_unknown(&store, "run") {
            let _ = body.poll_next();
            tokio::task::yield_now().await;
        }
        settle().await;
        assert_eq!(status(&store, "run").await, RunStatus::Running);
        match late {
            true => world.advance(LEASE / 2),
            false => cancel.cancel(CancelReason::User),
        }
        settle().await;
        assert_eq!(
            status(&store, "run").await,
            RunStatus::Ended,
            "late: {late}"
        );
        assert_eq!(tools.live(), 0);
    }
}

#[tokio::test]
async fn a_panic_in_a_stored_run_is_its_last_item() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();
    let agent = service_fn(|_: ChatRequest| async {
        let mut polls = 0;
        let body = stream::poll_fn(move |_| {
            polls += 1;
            assert!(polls < 4, "over the fourth event");
            std::task::Poll::Ready(Some(Ok::<_, Error>(Event::text("and "))))
        });
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let agent = BoxModel::new(layer.layer(agent));
    let body = agent.oneshot(reply(&world, "next", approve(&questions)));
    let (events, error) = assert_fails(body.await.unwrap().body).await;
    assert_eq!(events.len(), 3);
    assert!(
        error.to_string().contains("over the fourth event"),
        "{error}"
    );
    // Nothing was done, so it waits on.
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, record.state),
        (RunStatus::Suspended, before.state)
    );
}

#[test]
fn a_runtime_shutdown_ends_the_body() {
    let (world, store) = world();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (process, mut body, _gate, _) = first.block_on(at_the_gate(&world, &store));
    drop(first);
    let item = second.block_on(async { body.next().await }).unwrap();
    is(&item.unwrap_err(), ErrorKind::Cancelled, "task_stopped");
    assert_eq!(process.tools.live(), 0);
    // It is resumed like that of a process that died.
    world.advance(LEASE);
    let left = second.block_on(abandoned(&store, &world, 9));
    assert_eq!(left.unwrap().len(), 1);
}

#[tokio::test]
async fn a_lease_of_any_length_is_kept() {
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let (world, store) = world();
        let layer = SuspendLayer::new(Arc::new(store.clone())).lease(lease);
        let tools = ScriptedTools::new().answers("pay", "paid");
        let agent = ServiceBuilder::new()
            .layer(layer)
            .layer(AgentLayer::new(tools.clone()))
            .service(payer());
        let response = agent.oneshot(request(&world, "run")).await.unwrap();
        let (_, finish) = assert_finishes(response.body).await;
        assert_eq!(
            (finish.outcome, tools.done()),
            (Outcome::Completed, 1),
            "{lease:?}"
        );
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}
