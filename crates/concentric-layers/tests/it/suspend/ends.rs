use super::*;

#[tokio::test]
async fn a_finish_that_cannot_be_stored_is_an_error() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    store.fail("end");
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_failed_run_is_ended() {
    let (world, store) = world();
    let broken = Error::new(ErrorKind::Server, "it broke").with_code("E7");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(broken);
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "E7");
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let failed = Some(Err(ErrorKind::Server));
    assert_eq!(outcome(&store, "run").await, failed);
}

#[tokio::test]
async fn a_run_whose_state_is_not_stored_is_abandoned() {
    let (world, store) = world();
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .wait(&gate)
        .tool_call("pay", json!({}));
    let tools = ScriptedTools::new().answers("pay", "paid");
    let process = Process::new(&store, tools.clone(), model);
    let mut body = task::spawn(process.body(request(&world, "run")).await);
    drain(&mut body).await;
    assert_eq!(tools.done(), 1);
    // The store is away for the checkpoint only.
    store.fail("save");
    gate.open();
    let items = drain(&mut body).await;
    let error = items.last().unwrap().as_ref().unwrap_err();
    is(error, ErrorKind::Server, "store_failed");
    assert!(!error.is_retryable());
    store.heal();
    assert_eq!(tools.done(), 1);
    // At once, since the claim was given up.
    let left = abandoned(&store, &world, 9).await.unwrap().remove(0);
    let (_, finish) = assert_finishes(Process::other(&store).body(left).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    is_over(&world, &store).await;

    // No attempt could store it.
    let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
    let process = Process::new(&store, tools, model);
    store.refuse("save");
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    is_over(&world, &store).await;
}

#[tokio::test]
async fn a_run_with_a_dropped_body_is_ended() {
    let (world, store) = world();
    let (process, body, _gate, _context) = at_the_gate(&world, &store).await;
    drop(body);
    settle().await;
    assert_eq!(process.tools.dropped(), 1);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let reason = CancelReason::Disconnected;
    let dropped = Some(Ok(Outcome::Aborted { reason }));
    assert_eq!(outcome(&store, "run").await, dropped);
}

#[tokio::test]
async fn a_run_with_a_body_that_ends_early_is_truncated() {
    let (world, store) = world();
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .end_early();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    assert_fails(process.body(request(&world, "run")).await).await;
    let truncated = Some(Err(ErrorKind::Truncated));
    assert_eq!(outcome(&store, "run").await, truncated);
}

#[tokio::test]
async fn a_cancelled_run_has_the_reason_of_its_cancellation() {
    let (world, store) = world();
    let (_process, body, _gate, context) = at_the_gate(&world, &store).await;
    let reason = CancelReason::Other("closed".into());
    context.cancel(reason.clone());
    let (_, finish) = assert_finishes(body).await;
    let aborted = Outcome::Aborted { reason };
    assert_eq!(finish.outcome, aborted);
    assert_eq!(outcome(&store, "run").await, Some(Ok(aborted)));
}

#[tokio::test]
async fn a_run_dropped_during_its_first_write_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let key = RunKey::new(
        Tenant::default(),
        ThreadId::new("thread"),
        RunId::new("stored_1"),
    );
    let store = SqliteStore::open(dir.path().join("runs.db")).unwrap();
    let world = TestEnvironment::new();
    let tools = ScriptedTools::new().answers("pay", "paid");
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(AgentLayer::new(tools.clone()))
        .service(payer());
    let mut body = task::spawn(agent.oneshot(request(&world, "run")).await.unwrap().body);
    // It is pending first when it waits for the store's thread. If that has ended the write before the first poll, it
    // is pending when its task begins.
    while let std::task::Poll::Ready(Some(_)) = body.poll_next() {}
    drop(body);
    for _ in 0..500 {
        if let Ok(record) = store.get(key.clone()).await
            && record.status == RunStatus::Ended
        {
            assert!(tools.calls().is_empty());
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", store.get(key.clone()).await);
}

#[tokio::test]
async fn a_reply_without_effect_can_be_repeated() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let before = store.get(key(&store, "run")).await.unwrap();
    let waits_on = async || {
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(
            (record.status, &record.state),
            (RunStatus::Suspended, &before.state)
        );
        assert!(record.replies.is_empty());
    };

    // The round is not begun.
    store.fail("save");
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    let (_, error) = assert_fails(body).await;
    is(&error, ErrorKind::Server, "store_failed");
    waits_on().await;
    store.heal();

    // The body is dropped before it.
    store.stalls.lock().unwrap().push("save");
    let mut body = other.body(reply(&world, "next", approve(&questions))).await;
    assert!(matches!(body.next().await, Some(Ok(Event::Resumed))));
    assert_eq!(status(&store, "run").await, RunStatus::Running);
    drop(body);
    settle().await;
    waits_on().await;
    store.heal();

    let body = other.body(reply(&world, "next", approve(&questions))).await;
    assert_finishes(body).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn a_reply_followed_only_by_reads_can_be_repeated() {
    let (world, store) = world();
    let mut look = ToolSpec::new("look", "", json!({"type": "object"}));
    look.annotations.read_only = true;
    let seen = service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("seen")) });
    let tools = ScriptedTools::new()
        .service(look, seen)
        .waits("look", |call| Suspension::new(vec![question(call)]));
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .error(Error::new(ErrorKind::Server, "broken"))
        .then()
        .text("Seen.");
    let process = Process::new(&store, tools, model);
    let questions = process.interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();

    let body = process
        .body(reply(&world, "next", approve(&questions)))
        .await;
    assert_fails(body).await;
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, &record.state),
        (RunStatus::Suspended, &before.state)
    );

    let body = process
        .body(reply(&world, "next", approve(&questions)))
        .await;
    assert_finishes(body).await;
    assert_eq!(process.tools.done(), 2);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

#[tokio::test]
async fn only_an_inner_hooks_halt_ends_the_stored_run() {
    use concentric_core::hooks::{self, Flow, Hooks};
    use concentric_core::{BoxError, Str};

    struct Closed;
    impl Hooks for Closed {
        fn id(&self) -> &str {
            "closed"
        }
        async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
            Ok(match request.resume {
                Some(_) => Flow::halt("closed"),
                None => Flow::Continue,
            })
        }
    }
    let halted = Outcome::Halted {
        reason: "closed".into(),
    };
    let (world, store) = world();
    let suspend = || SuspendLayer::new(Arc::new(store.clone()));
    let tools = ScriptedTools::new().asks("pay", "paid");
    let agent = || AgentLayer::new(tools.clone()).layer(payer());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();

    let outside = hooks::run(Arc::new(Closed)).layer(suspend().layer(agent()));
    let response = outside.oneshot(reply(&world, "1", approve(&questions)));
    let (_, finish) = assert_finishes(response.await.unwrap().body).await;
    assert_eq!((&finish.outcome, &finish.transcript), (&halted, &None));
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, record.state),
        (RunStatus::Suspended, before.state)
    );

    let inside = suspend().layer(hooks::run(Arc::new(Closed)).layer(agent()));
    let response = inside.oneshot(reply(&world, "2", approve(&questions)));
    let (_, finish) = assert_finishes(response.await.unwrap().body).await;
    assert_eq!((&finish.outcome, tools.done()), (&halted, 0));
    assert_eq!(finish.transcript.unwrap().len(), 2);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert_eq!(outcome(&store, "run").await, Some(Ok(halted)));
}
