use super::*;

#[tokio::test]
async fn a_run_commits_at_its_first_content() {
    let gate = Gate::new();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().wait(&gate).text("a").never());
    let mut call = task::spawn(agent.oneshot(request()));
    assert_pending!(call.poll());
    gate.open();
    assert!(call.is_woken());
    let mut body = assert_ready!(call.poll()).unwrap().body;
    // Both are there at once.
    let mut read = task::spawn(async { (body.next().await, body.next().await) });
    let (start, text) = assert_ready!(read.poll());
    assert_eq!(
        shape([&start.unwrap().unwrap(), &text.unwrap().unwrap()]),
        "step_start text"
    );
}

#[tokio::test]
async fn dropping_the_first_content_delays_the_commit() {
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .text("secret")
        .wait(&gate)
        .error(server_error())
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .retry(retry(2))
        .layer(texts(|text| match text {
            "secret" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .service(model.clone());
    let mut call = task::spawn(agent.oneshot(request()));
    assert_pending!(call.poll());
    gate.open();
    let (events, _) = assert_finishes(assert_ready!(call.poll()).unwrap().body).await;
    // Nothing had been shown, so the failure was tried again.
    assert_eq!(text_of(&events), "ok");
}

#[tokio::test]
async fn the_commit_layer_holds_events_until_its_point() {
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .text("One. ")
        .wait(&gate)
        .text("Two.")
        .repeat();
    let whole = CommitLayer::whole().layer(model.clone());
    let mut whole = task::spawn(whole.oneshot(request()));
    assert_pending!(whole.poll());
    let sentence = CommitLayer::first_sentence().layer(model);
    let mut sentence = task::spawn(sentence.oneshot(request()));
    let sentence = assert_ready!(sentence.poll()).unwrap();
    gate.open();
    let whole = assert_ready!(whole.poll()).unwrap();
    for body in [
        EventStream::new(whole.body),
        EventStream::new(sentence.body),
    ] {
        assert_eq!(text_of(&assert_finishes(body).await.0), "One. Two.");
    }
}

#[tokio::test]
async fn defaults_apply_equally_inside_and_outside_the_loop() {
    let defaults = RequestDefaultsLayer::new()
        .system("Be brief.")
        .model("small");
    let script = || {
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .text("ok")
    };
    let tools = ScriptedTools::new().answers("search", "42");
    let (outside, inside) = (script(), script());
    let a = ServiceBuilder::new()
        .layer(defaults.clone())
        .layer(AgentLayer::new(tools.clone()))
        .service(outside.clone());
    let b = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(defaults)
        .service(inside.clone());
    assert_finishes(a.oneshot(request()).await.unwrap().body).await;
    assert_finishes(b.oneshot(request()).await.unwrap().body).await;
    for (a, b) in outside.requests().iter().zip(inside.requests()) {
        assert_eq!(a.system.text(), "Be brief.");
        assert_eq!((&a.system, &a.options), (&b.system, &b.options));
    }
}

#[tokio::test]
async fn ids_and_time_come_from_the_environment() {
    let test = TestEnvironment::new();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "42"),
        ))
        .service(
            ScriptedModel::new()
                .tool_call("search", json!({}))
                .then()
                .sleep(Duration::from_secs(5))
                .text("ok"),
        );
    let mut body = Box::pin(agent.oneshot(test.request("hi")).await.unwrap().body);
    let mut run = task::spawn(async { assert_finishes(&mut body).await });
    assert_pending!(run.poll());
    test.advance(Duration::from_secs(5));
    assert!(run.is_woken());
    let (events, _) = assert_ready!(run.poll());
    let ids: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::StepStart(start) => Some(start.message_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(ids, ["msg_1", "msg_2"]);
}

#[tokio::test]
async fn a_deadline_ends_a_run_by_the_environments_clock() {
    let test = TestEnvironment::new();
    let context: Context = test
        .context_builder()
        .deadline(test.context().now() + Duration::from_secs(30))
        .build();
    let tools = ScriptedTools::new().never("slow");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .service(ScriptedModel::new().tool_call("slow", json!({})));
    let request = request().with_context(context);
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    let mut run = task::spawn(async { assert_fails(&mut body).await });
    assert_pending!(run.poll());
    test.advance(Duration::from_secs(30));
    let (events, error) = assert_ready!(run.poll());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(
        shape(&events),
        "step_start tool_call step_finish tool_result"
    );
    assert_eq!((tools.live(), test.clock().sleepers()), (0, 0));
}
