use super::*;

#[tokio::test]
async fn a_run_of_a_dead_process_is_resumed_once() {
    let (world, store) = world();
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    assert!(abandoned(&store, &world, 9).await.unwrap().is_empty());
    world.advance(LEASE);

    let mut first = abandoned(&store, &world, 9).await.unwrap();
    assert_eq!(first.len(), 1);
    assert!(abandoned(&store, &world, 9).await.unwrap().is_empty());
    let request = first.remove(0);
    let again = request.clone();
    assert_eq!(request.context.thread_id(), Some(&ThreadId::new("thread")));
    assert_eq!(request.context.run_id(), &RunId::new("run"));
    assert_eq!(request.transcript.len(), 1);

    let other = Process::other(&store);
    let (events, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
    // What the tool did is not known, and it is not run again.
    assert!(other.tools.calls().is_empty());
    assert_eq!(status(&store, "run").await, RunStatus::Ended);

    let error = other.fails(again).await;
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn of_several_clones_of_a_request_one_resumes_the_run() {
    let (world, store) = world();
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    world.advance(LEASE);
    let other = Process::other(&store);
    let request = abandoned(&store, &world, 1).await.unwrap().remove(0);
    let taken = join_all([(); 4].map(|()| other.agent.clone().oneshot(request.clone()))).await;
    assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1);
    for error in taken.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
}

#[tokio::test]
async fn a_claimed_run_whose_request_is_dropped_is_abandoned_again() {
    let (world, store) = world();
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    world.advance(LEASE);
    // More often than a run may be taken over: the processes that give it up are alive.
    for _ in 0..8 {
        let requests = abandoned(&store, &world, 1).await.unwrap();
        assert_eq!(requests.len(), 1);
        assert_eq!(status(&store, "run").await, RunStatus::Running);
        drop(requests);
        settle().await;
        assert_eq!(status(&store, "run").await, RunStatus::Abandoned);
    }
}

#[tokio::test]
async fn a_run_that_ends_its_processes_is_quarantined() {
    let (world, store) = world();
    let questions = died_with_replies(&world, &store).await;
    for _ in 0..MAX_TAKEOVERS {
        assert_eq!(status(&store, "run").await, RunStatus::Abandoned);
        std::mem::forget(abandoned(&store, &world, 9).await.unwrap());
        world.advance(LEASE);
    }
    assert_eq!(status(&store, "run").await, RunStatus::Quarantined);
    assert!(abandoned(&store, &world, 9).await.unwrap().is_empty());
    let other = Process::other(&store);
    let error = other
        .fails(reply(&world, "reply", approve(&questions)))
        .await;
    is(&error, ErrorKind::Conflict, "run_quarantined");
    let error = other.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");

    assert!(store.release(key(&store, "run")).await.unwrap());
    let released = abandoned(&store, &world, 9).await.unwrap().remove(0);
    let (_, finish) = assert_finishes(other.body(released).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn accepted_replies_survive_the_process() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let request = abandoned(&store, &world, 1).await.unwrap().remove(0);
    let other = Process::other(&store);
    let (_, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(
        (finish.outcome, other.tools.done()),
        (Outcome::Completed, 1)
    );
}

#[tokio::test]
async fn a_reply_resumes_an_abandoned_run_with_the_first_reply() {
    let (world, store) = world();
    let questions = died_with_replies(&world, &store).await;
    let other = Process::other(&store);
    // Who replies otherwise is told so, and runs nothing.
    let denied = vec![Reply::deny(questions[0].clone(), "no")];
    let error = other.fails(reply(&world, "late", denied)).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    assert_eq!(other.tools.done(), 0);
    // Who says the same again takes it up.
    let same = vec![Reply::approve(questions[0].clone())];
    let body = other.body(reply(&world, "next", same)).await;
    assert_finishes(body).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn a_denial_after_a_stored_approval_is_rejected() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let never = ScriptedTools::new().asks("pay", "paid").never("look");
    let dies = Process::new(&store, never, ScriptedModel::new().never());
    let body = dies.body(reply(&world, "next", approve(&questions))).await;
    // The round is written down, with the reply, and then the process dies.
    let mut body = task::spawn(body);
    drain(&mut body).await;
    assert_eq!(dies.tools.done(), 1);
    dies.die(body);
    world.advance(LEASE);
    let other = Process::other(&store);
    let denied = vec![Reply::deny(questions[0].clone(), "no")];
    let error = other.fails(reply(&world, "late", denied)).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    // Who says the same again takes it up.
    let again = reply(&world, "again", approve(&questions));
    assert_finishes(other.body(again).await).await;
}

#[tokio::test]
async fn an_abandoned_run_without_progress_stays_resumable() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let take_up = async || abandoned(&store, &world, 1).await.unwrap();
    let other = Process::other(&store);
    store.fail("save");
    let request = take_up().await.remove(0);
    let (_, error) = assert_fails(other.body(request).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    store.heal();

    let request = take_up().await.remove(0);
    drop(other.body(request).await);
    settle().await;

    let request = take_up().await.remove(0);
    let (_, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(
        (finish.outcome, other.tools.done()),
        (Outcome::Completed, 1)
    );
    assert!(take_up().await.is_empty());
}

#[tokio::test]
async fn a_resumed_run_ends_only_on_its_own_error() {
    use ErrorKind::*;
    let own = [
        InvalidRequest,
        ContextWindow,
        ContentFilter,
        TooLarge,
        Tool,
        Conflict,
    ];
    let others = [
        Configuration,
        Authentication,
        Permission,
        NotFound,
        Quota,
        RateLimited,
        Overloaded,
        Server,
        Timeout,
        Connection,
        Truncated,
        Protocol,
        Cancelled,
        Other,
    ];
    for kind in own.into_iter().chain(others) {
        let (world, store) = world();
        died_with_replies(&world, &store).await;
        let left = async || abandoned(&store, &world, 1).await.unwrap();
        let agent = service_fn(move |_: ChatRequest| async move {
            Err::<ChatResponse<EventStream>, _>(Error::new(kind, "no").with_code("E7"))
        });
        let layer = SuspendLayer::new(Arc::new(store.clone()));
        let request = left().await.remove(0);
        let error = layer.layer(agent).oneshot(request).await.unwrap_err();
        is(&error, kind, "E7");
        let expected = match own.contains(&kind) {
            true => (RunStatus::Ended, 0),
            false => (RunStatus::Abandoned, 1),
        };
        let now = (status(&store, "run").await, left().await.len());
        assert_eq!(now, expected, "{kind}");
    }
}

#[tokio::test]
async fn a_run_resumes_after_a_deployment_is_fixed() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    let left = async || abandoned(&store, &world, 1).await.unwrap();
    let other = Process::other(&store);
    let without_a_key = service_fn(|_: ChatRequest| async {
        let error = Error::new(ErrorKind::Configuration, "no key");
        Err::<ChatResponse<EventStream>, _>(error)
    });
    let layer = SuspendLayer::new(Arc::new(store.clone()));
    let request = left().await.remove(0);
    let error = layer
        .layer(without_a_key)
        .oneshot(request)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);

    let body = other.body(left().await.remove(0)).await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
}
