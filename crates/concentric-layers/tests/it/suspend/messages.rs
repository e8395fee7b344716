use super::*;

/// A reply, with a message of that id.
fn reply_and_say(
    world: &TestEnvironment,
    run: &'static str,
    replies: Vec<Reply>,
    id: &'static str,
) -> ChatRequest {
    let mut request = reply(world, run, replies);
    let message = Message::user(id).with_id(MessageId::new(id));
    request.resume = request
        .resume
        .map(|resume| resume.with_messages(vec![message]));
    request
}

#[tokio::test]
async fn a_message_is_as_durable_as_its_replies() {
    for (dies_at, slow) in [("claim", false), ("save", false), ("save", true)] {
        let (world, store) = world();
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let dying = Process::other(&Flaky {
            dies_at: Some(dies_at),
            ..store.clone()
        });
        let request = reply_and_say(&world, "next", approve(&questions), "more");
        let agent = dying.agent.clone();
        let mut left = task::spawn(async move {
            let response = agent.oneshot(request).await.unwrap();
            response.collect().await.map(drop)
        });
        assert!(left.poll().is_pending());
        settle().await;
        assert!(left.poll().is_pending());
        std::mem::forget(left);
        assert!(dying.store.dead.load(Ordering::Relaxed));

        world.advance(LEASE);
        store.slow.store(slow, Ordering::Relaxed);
        let other = Process::other(&store);
        // A client that has no answer sends it again.
        let request = reply_and_say(&world, "again", approve(&questions), "more");
        let (_, finish) = assert_finishes(other.body(request).await).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(told(&other), ["Pay them.", "more"]);
        assert_eq!(other.tools.done(), 1);
    }
}

#[tokio::test]
async fn a_message_with_invalid_replies_is_not_accepted() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();
    let other = Process::other(&store);
    let twice = [approve(&questions), approve(&questions)].concat();
    let error = other
        .fails(reply_and_say(&world, "next", twice, "more"))
        .await;
    is(&error, ErrorKind::InvalidRequest, "duplicate_reply");
    assert_eq!(store.get(before.key.clone()).await.unwrap(), before);
}

#[tokio::test]
async fn an_invalid_message_for_the_run_is_rejected() {
    let (world, store) = world();
    let tools = ScriptedTools::new().asks("pay", "paid");
    let inner = AgentLayer::new(tools.clone()).layer(payer());
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(BoxModel::new(inner));
    let agent = BoxModel::new(agent);
    let body = agent
        .clone()
        .oneshot(request(&world, "run"))
        .await
        .unwrap()
        .body;
    let (_, finish) = assert_finishes(body).await;
    let questions: Vec<_> = finish.interrupts().iter().map(|it| it.id.clone()).collect();
    let request = reply_and_say(&world, "next", approve(&questions), "more");
    let error = agent.clone().oneshot(request).await.map(drop).unwrap_err();
    is(&error, ErrorKind::InvalidRequest, "unexpected_message");
    assert!(error.message().contains("`more`"), "{error}");
    assert_eq!(tools.done(), 0);
    // Without it, the replies are taken.
    let body = agent.oneshot(reply(&world, "next", approve(&questions)));
    let (_, finish) = assert_finishes(body.await.unwrap().body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn of_several_concurrent_replies_one_resumes() {
    let (world, store) = world();
    for run in ["a", "b", "c"] {
        let questions = Process::paying(&store).interrupted(&world, run).await;
        let others: Vec<_> = (0..4).map(|_| Process::other(&store)).collect();
        let replied = others.iter().map(|other| {
            other
                .agent
                .clone()
                .oneshot(reply(&world, "next", approve(&questions)))
        });
        let mut won = 0;
        for replied in join_all(replied).await {
            match replied {
                Ok(response) => {
                    won += 1;
                    assert_finishes(response.body).await;
                }
                Err(error) => is(&error, ErrorKind::Conflict, "already_resumed"),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(
            others.iter().map(|other| other.tools.done()).sum::<usize>(),
            1
        );
        let late = others[0]
            .fails(reply(&world, "late", approve(&questions)))
            .await;
        is(&late, ErrorKind::Conflict, "run_ended");
    }
}

#[tokio::test]
async fn a_file_store_supports_the_same_flow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    let world = TestEnvironment::new();
    let agent = |model| {
        let tools = ScriptedTools::new().asks("pay", "paid");
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(
                SqliteStore::open(&path).unwrap(),
            )))
            .layer(AgentLayer::new(tools))
            .service::<ScriptedModel>(model)
    };
    let first = agent(payer())
        .oneshot(request(&world, "run"))
        .await
        .unwrap();
    let (_, finish) = assert_finishes(first.body).await;
    let questions: Vec<_> = finish
        .interrupts()
        .iter()
        .map(|asked| asked.id.clone())
        .collect();
    let others = (0..3).map(|_| {
        let other = agent(ScriptedModel::new().text("Done."));
        other.oneshot(reply(&world, "next", approve(&questions)))
    });
    let mut won = 0;
    for replied in join_all(others).await {
        match replied {
            Ok(response) => {
                won += 1;
                assert_finishes(response.body).await;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    }
    assert_eq!(won, 1);
}
