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
async fn an_unrenewed_lease_is_lost_when_it_expires() {
    let (world, store) = world();
    let (_process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    store.fail("renew");
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    // It is tried again, and succeeds.
    store.heal();
    world.advance(LEASE / 6);
    assert!(drain(&mut body).await.is_empty());
    let until = store.get(key(&store, "run")).await.unwrap().lease_until;
    assert_eq!(until, context.now() + LEASE);
    // It fails until the end.
    store.fail("renew");
    for _ in 0..4 {
        world.advance(LEASE / 6);
        assert!(drain(&mut body).await.is_empty());
    }
    world.advance(LEASE / 3);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
    assert!(context.is_cancelled());
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
