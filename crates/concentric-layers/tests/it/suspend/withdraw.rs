use super::*;

/// A request that withdraws what its conversation has asked.
fn instead(world: &TestEnvironment, run: &'static str) -> ChatRequest {
    let mut request = request(world, run);
    let extensions = request.context.extensions_mut();
    extensions.insert(OpenInterrupts::Withdraw);
    request
}

#[tokio::test]
async fn a_new_message_withdraws_waiting_runs() {
    for slow in [false, true] {
        let (world, store) = world();
        store.slow.store(slow, Ordering::Relaxed);
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        // A request that does not say so leaves it.
        let beside = Process::paying(&store).interrupted(&world, "beside").await;
        let other = Process::other(&store);
        assert_finishes(other.body(instead(&world, "next")).await).await;
        for (run, questions) in [("run", &questions), ("beside", &beside)] {
            assert_eq!(status(&store, run).await, RunStatus::Ended);
            let late = other.fails(reply(&world, "late", approve(questions))).await;
            is(&late, ErrorKind::Conflict, "run_ended");
        }
        assert_eq!(other.tools.done(), 0);
    }
}

#[tokio::test]
async fn without_waiting_runs_nothing_is_written() {
    let (world, store) = world();
    let other = Process::other(&store);
    assert_finishes(other.body(instead(&world, "run")).await).await;
    assert_eq!(store.writes(), 0);
    // Requests without a conversation are of many.
    let nowhere = || {
        let run = world.context_builder().build();
        ChatRequest::user("Pay them.").with_context(run)
    };
    let asking = Process::paying(&store);
    let (_, finish) = assert_finishes(asking.body(nowhere()).await).await;
    let writes = store.writes();
    let mut request = nowhere();
    let extensions = request.context.extensions_mut();
    extensions.insert(OpenInterrupts::Withdraw);
    assert_finishes(other.body(request).await).await;
    assert_eq!(store.writes(), writes);
    let mut replies =
        ChatRequest::replying(vec![Reply::approve(finish.interrupts()[0].id.clone())]);
    replies = replies.with_context(world.context_builder().build());
    let (_, finish) = assert_finishes(other.body(replies).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_running_run_is_not_withdrawn() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    let claim = store.claim(record, approve(&questions), LEASE);
    let claimed = claim.await.unwrap();
    let other = Process::other(&store);
    assert_finishes(other.body(instead(&world, "next")).await).await;
    let read = store.get(claimed.key.clone()).await;
    assert_eq!(read.unwrap(), claimed);
}

#[tokio::test]
async fn a_failed_withdrawal_prevents_the_new_run() {
    for fails in ["of_thread", "withdraw"] {
        let (world, store) = world();
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        store.fail(fails);
        let other = Process::other(&store);
        let error = other.fails(instead(&world, "next")).await;
        is(&error, ErrorKind::Server, "store_failed");
        assert_eq!(other.model.requests().len(), 0);
        store.heal();
        let replied = reply(&world, "late", approve(&questions));
        let (_, finish) = assert_finishes(other.body(replied).await).await;
        assert_eq!(finish.outcome, Outcome::Completed);
    }
}

#[tokio::test]
async fn a_reply_and_a_new_message_exclude_each_other() {
    for race in 0..16 {
        let (world, store) = world();
        store.elsewhere.store(race % 2 == 0, Ordering::Relaxed);
        store.slow.store(race % 3 == 0, Ordering::Relaxed);
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let (replying, other) = (Process::other(&store), Process::other(&store));
        let replied = async {
            let request = reply(&world, "reply", approve(&questions));
            let response = replying.agent.clone().oneshot(request).await?;
            let answer = response.collect().await;
            answer.map(drop).map_err(|incomplete| incomplete.error)
        };
        let said = async { assert_finishes(other.body(instead(&world, "next")).await).await };
        let replied = match race % 4 < 2 {
            true => tokio::join!(replied, said).0,
            false => tokio::join!(said, replied).1,
        };
        if let Err(error) = &replied {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let code = error.code().unwrap();
            assert!(["run_ended", "already_resumed"].contains(&code), "{code}");
        }
        assert_eq!(replying.tools.done(), usize::from(replied.is_ok()));
        settle().await;
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}
