use super::*;

#[tokio::test]
async fn a_run_without_tool_calls_writes_nothing() {
    let (world, store) = world();
    let talks = Process::new(
        &store,
        ScriptedTools::new(),
        ScriptedModel::new().text("Hi!"),
    );
    assert_finishes(talks.body(request(&world, "run")).await).await;
    assert_eq!(store.writes(), 0);
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn a_run_is_stored_before_tools_and_ended_before_finish() {
    let (world, store) = world();
    let seen = Arc::new(Mutex::new(None));
    let tools = ScriptedTools::new().tool("pay", {
        let (store, seen) = (store.clone(), seen.clone());
        move |call| {
            let (store, seen) = (store.clone(), seen.clone());
            async move {
                let record = store.get(key(&store, "run")).await.unwrap();
                *seen.lock().unwrap() = Some((RunClaim::of(&call.context), record));
                ToolOutcome::done("paid")
            }
        }
    });
    let process = Process::new(&store, tools, payer());
    let mut body = process.body(request(&world, "run")).await;
    while let Some(event) = body.next().await {
        if event.unwrap().is_finish() {
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
        }
    }
    let (claim, record) = seen.lock().unwrap().take().unwrap();
    assert_eq!(record.status, RunStatus::Running);
    assert_eq!(record.lease_until, context(&world, "x").now() + LEASE);
    assert_eq!(claim, Some(RunClaim::new(key(&store, "run"), record.fence)));
}

#[tokio::test]
async fn a_round_does_not_start_unless_the_run_is_stored() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    store.fail("begin");
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(process.tools.calls().is_empty());
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn a_repeated_run_id_starts_another_run() {
    let (world, store) = world();
    let process = || Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    let mut keys = Vec::new();
    for _ in 0..3 {
        let process = process();
        let (_, finish) = assert_finishes(process.body(request(&world, "run")).await).await;
        assert_eq!(
            (finish.outcome, process.tools.done()),
            (Outcome::Completed, 1)
        );
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(record.client_id, RunId::new("run"));
        assert!(!keys.contains(&record.key));
        keys.push(record.key);
    }
    // One that waits has ended for its client, too.
    for _ in 0..2 {
        Process::paying(&store).interrupted(&world, "run").await;
    }
}

#[tokio::test]
async fn the_run_id_of_a_live_run_calls_no_model() {
    let (world, store) = world();
    let (process, body, gate, _) = at_the_gate(&world, &store).await;
    // In this process, and in another one.
    let calls = process.model.requests().len();
    let error = process.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert!(error.to_string().contains("is still running"), "{error}");
    let other = Process::paying(&store);
    let error = other.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert_eq!(process.model.requests().len(), calls);
    assert!(other.model.requests().is_empty());
    // Other ids, conversations and tenants are not concerned.
    let mut elsewhere = request(&world, "run");
    let context = elsewhere.context.extensions_mut();
    context.insert(Tenant("other".into()));
    assert_finishes(other.body(elsewhere).await).await;
    gate.open();
    assert_finishes(body.into_inner()).await;
}

#[tokio::test]
async fn a_run_is_live_before_it_is_stored() {
    let (world, store) = world();
    let model = ScriptedModel::new().never().repeat();
    let process = Process::new(&store, ScriptedTools::new(), model);
    let mut first = task::spawn(process.agent.clone().oneshot(request(&world, "run")));
    assert!(first.poll().is_pending());
    settle().await;
    assert!(first.poll().is_pending());
    let error = process.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert_eq!(process.model.requests().len(), 1);
    // Its consumer leaves.
    drop(first);
    let mut second = task::spawn(process.agent.clone().oneshot(request(&world, "run")));
    assert!(second.poll().is_pending());
    assert_eq!(process.model.requests().len(), 2);
}

#[tokio::test]
async fn attempts_at_one_request_may_overlap() {
    let (world, store) = world();
    let model = ScriptedModel::new().text("Hi!").repeat();
    let process = Process::new(&store, ScriptedTools::new(), model);
    let asked = request(&world, "run");
    let first = process.body(asked.clone()).await;
    let second = process.body(asked).await;
    assert_finishes(first).await;
    assert_finishes(second).await;
}

#[tokio::test]
async fn a_run_begins_when_the_live_check_fails() {
    let (world, store) = world();
    store.fail("is_live");
    let talks = ScriptedModel::new().text("Hi!");
    let process = Process::new(&store, ScriptedTools::new(), talks);
    assert_finishes(process.body(request(&world, "run")).await).await;
}
