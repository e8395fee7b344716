use super::*;

#[tokio::test]
async fn a_lease_is_renewed_while_a_tool_runs() {
    let (world, store) = world();
    let (_process, mut body, gate, context) = at_the_gate(&world, &store).await;
    for n in 1..=12 {
        world.advance(LEASE / 3);
        assert!(drain(&mut body).await.is_empty());
        assert_eq!(store.renewals.load(Ordering::Relaxed), n);
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(record.lease_until, context.now() + LEASE);
        assert_eq!(record.status, RunStatus::Running);
    }
    gate.open();
    assert!(
        drain(&mut body)
            .await
            .last()
            .unwrap()
            .as_ref()
            .unwrap()
            .is_finish()
    );
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert_eq!(world.clock().sleepers(), 0);
}

#[tokio::test]
async fn a_run_claimed_by_another_process_fails() {
    let (world, store) = world();
    let (process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    // It slept through its lease.
    world.advance(LEASE);
    let record = store.get(key(&store, "run")).await.unwrap();
    let claim = store.claim(record, vec![], LEASE);
    let record = claim.await.unwrap();

    let items = drain(&mut body).await;
    assert_eq!(items.len(), 1);
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Conflict,
        "stale_claim",
    );
    assert!(!items[0].as_ref().unwrap_err().is_retryable());
    assert_eq!(
        context.cancel_reason(),
        Some(CancelReason::Other("lease lost".into()))
    );
    // Its tool has stopped, before the body is dropped.
    assert_eq!((process.tools.live(), process.tools.dropped()), (0, 1));
    drop(body);
    settle().await;
    assert_eq!(store.get(key(&store, "run")).await.unwrap(), record);
}

#[tokio::test]
async fn an_unrenewed_lease_is_lost_before_it_expires() {
    let (world, store) = world();
    let (process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    store.fail("renew");
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    // It is tried again, and succeeds.
    store.heal();
    world.advance(LEASE / 6);
    assert!(drain(&mut body).await.is_empty());
    let until = store.get(key(&store, "run")).await.unwrap().lease_until;
    assert_eq!(until, context.now() + LEASE);
    // It fails until the end, and a last attempt would have no answer.
    store.fail("renew");
    for _ in 0..4 {
        world.advance(LEASE / 6);
        assert!(drain(&mut body).await.is_empty());
    }
    store.hangs.store(true, Ordering::Relaxed);
    world.advance(LEASE * 4 / 5 - LEASE * 4 / 6);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
    assert!(context.is_cancelled());
    assert_eq!((process.tools.live(), process.tools.dropped()), (0, 1));
    assert!(context.now() < until);
}

#[tokio::test]
async fn a_run_that_slept_through_its_lease_does_not_continue() {
    // What its tool waits for happens meanwhile, and no other process has taken the run over yet.
    let (world, store) = world();
    let (process, mut body, gate, context) = at_the_gate(&world, &store).await;
    world.advance(LEASE);
    gate.open();
    let items = drain(&mut body).await;
    assert_eq!(items.len(), 1);
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Conflict,
        "stale_claim",
    );
    assert!(context.is_cancelled());
    assert_eq!((process.tools.done(), process.tools.dropped()), (0, 1));
    assert_eq!(status(&store, "run").await, RunStatus::Abandoned);
}

#[tokio::test]
async fn a_checkpoint_extends_a_lease_that_is_being_renewed() {
    let (world, store) = world();
    let gates = [Gate::new(), Gate::new()];
    let calls = Arc::new(AtomicUsize::new(0));
    let tools = ScriptedTools::new().tool("pay", {
        let gates = gates.clone();
        move |_| {
            let gate = gates[calls.fetch_add(1, Ordering::Relaxed)].clone();
            async move {
                gate.pass().await;
                ToolOutcome::done("paid")
            }
        }
    });
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .tool_call("pay", json!({}))
        .then()
        .text("Done.");
    let process = Process::new(&store, tools, model);
    let mut body = task::spawn(process.body(request(&world, "run")).await);
    drain(&mut body).await;
    store.stalls.lock().unwrap().push("renew");
    world.advance(LEASE / 2);
    assert!(drain(&mut body).await.is_empty());
    gates[0].open();
    assert!(drain(&mut body).await.iter().all(Result::is_ok));
    // After the end of the first lease, and before that of the second one.
    world.advance(LEASE / 2);
    assert!(drain(&mut body).await.is_empty());
    assert_eq!(process.tools.live(), 1);
    world.advance(LEASE * 4 / 5 - LEASE / 2);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
}

#[tokio::test]
async fn a_hanging_renewal_loses_the_lease_at_expiry() {
    let (world, store) = world();
    let (_process, mut body, _gate, _) = at_the_gate(&world, &store).await;
    store.hangs.store(true, Ordering::Relaxed);
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE / 3);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
}

#[tokio::test]
async fn a_lease_is_checked_during_continuous_events() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let agent = service_fn(async |_: ChatRequest| {
        let events = (0..1000).map(|_| Ok::<_, Error>(Event::text("and ")));
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let request = reply(&world, "next", approve(&questions));
    let mut body = layer.layer(agent).oneshot(request).await.unwrap().body;
    for _ in 0..64 {
        body.next().await.unwrap().unwrap();
    }
    world.advance(LEASE);
    let record = store.get(key(&store, "run")).await.unwrap();
    let claim = store.claim(record, vec![], LEASE);
    claim.await.unwrap();
    let (events, error) = assert_fails(body).await;
    is(&error, ErrorKind::Conflict, "stale_claim");
    // What it was ahead of its consumer, and what it had in hand.
    assert!(events.len() <= 2 * 64 + 1, "{}", events.len());
}

#[tokio::test]
async fn a_run_is_cancelled_by_another_process() {
    let (world, store) = world();
    let (process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    assert!(store.cancel(key(&store, "run")).await.unwrap());
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE / 3);
    let items = drain(&mut body).await;
    let Some(Ok(Event::Finish(finish))) = items.last() else {
        panic!("{items:?}");
    };
    let reason = CancelReason::User;
    assert_eq!(finish.outcome, Outcome::Aborted { reason });
    assert_eq!(context.cancel_reason(), Some(CancelReason::User));
    assert_eq!((process.tools.live(), process.tools.done()), (0, 0));
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert!(!store.cancel(key(&store, "run")).await.unwrap());
}

#[tokio::test]
async fn a_process_that_takes_a_run_over_cancels_it() {
    let (world, store) = world();
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    assert!(store.cancel(key(&store, "run")).await.unwrap());
    world.advance(LEASE);
    let model = ScriptedModel::new().never();
    let other = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let request = abandoned(&store, &world, 1).await.unwrap().remove(0);
    let context = request.context.clone();
    let mut body = task::spawn(other.body(request).await);
    drain(&mut body).await;
    world.advance(LEASE / 3);
    drain(&mut body).await;
    assert_eq!(context.cancel_reason(), Some(CancelReason::User));
}

#[tokio::test]
async fn a_lease_is_lost_before_it_ends_in_the_store() {
    let (world, store) = world();
    let (_process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    let until = store.get(key(&store, "run")).await.unwrap().lease_until;
    store.hangs.store(true, Ordering::Relaxed);
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE * 4 / 5 - LEASE / 3);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
    assert!(context.now() < until);
}

#[tokio::test]
async fn the_lease_of_a_claimed_run_counts_from_its_claim() {
    let (world, store) = world();
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    world.advance(LEASE);
    let request = abandoned(&store, &world, 1).await.unwrap().remove(0);
    // The request is used late, but in time.
    world.advance(LEASE * 2 / 3);
    let tools = ScriptedTools::new().answers("pay", "paid");
    let other = Process::new(&store, tools, ScriptedModel::new().never());
    let context = request.context.clone();
    let mut body = task::spawn(other.body(request).await);
    drain(&mut body).await;
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(record.lease_until, context.now() + LEASE);
}
