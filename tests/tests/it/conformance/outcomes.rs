use super::*;

// Case C059.
#[tokio::test]
async fn each_observer_receives_one_outcome_per_run() {
    let tools = || {
        ScriptedTools::new()
            .answers("search", "42")
            .never("slow")
            .tool("stop", |_| {
                ready(ToolOutcome::done("ok").and_halt("enough"))
            })
    };
    let client_tool = |mut request: ChatRequest| {
        request
            .tools
            .push(Arc::new(ToolSpec::new("ask", "", json!({}))));
        request
    };
    type Prepare = Box<dyn Fn(ChatRequest) -> ChatRequest>;
    let as_it_is = || -> Prepare { Box::new(|request| request) };
    let model = ScriptedModel::new;
    let cases: Vec<(&str, ScriptedModel, Prepare)> = vec![
        ("completed", model().text("ok"), as_it_is()),
        ("failed: server", model().error(server_error()), as_it_is()),
        (
            "failed: server",
            model().text("a").error(server_error()),
            as_it_is(),
        ),
        (
            "failed: truncated",
            model().text("a").end_early(),
            as_it_is(),
        ),
        ("halted", model().tool_call("stop", json!({})), as_it_is()),
        (
            "step limit",
            model().tool_call("search", json!({})).repeat(),
            as_it_is(),
        ),
        (
            "interrupted",
            model().tool_call("ask", json!({})),
            Box::new(client_tool),
        ),
        (
            "aborted",
            model().text("a").never(),
            Box::new(|request| {
                let context = request.context.clone();
                tokio::spawn(async move { context.cancel(CancelReason::User) });
                request
            }),
        ),
        (
            "aborted",
            model().tool_call("slow", json!({})),
            Box::new(|request| {
                let context = request.context.clone();
                tokio::spawn(async move { context.cancel(CancelReason::User) });
                request
            }),
        ),
    ];
    for (outcome, model, prepare) in cases {
        let log = Log::default();
        let agent = ServiceBuilder::new()
            .layer(ends!(log, "A"))
            .layer(map_events(|_: &mut Event| {}))
            .layer(ends!(log, "B"))
            .layer(AgentLayer::new(tools()).step_limit(2))
            .service(model);
        if let Ok(response) = agent.oneshot(prepare(request())).await {
            let _ = collect_events(response.body).await;
        }
        assert_eq!(
            log.take(),
            [format!("B: {outcome}"), format!("A: {outcome}")]
        );
    }
}

// Case C060.
#[tokio::test]
async fn a_dropped_stream_leaves_one_outcome() {
    let log = Log::default();
    let model = ScriptedModel::new().text("a").text("b").never();
    let agent = ServiceBuilder::new()
        .layer(ends!(log, "run"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(ends!(log, "model"))
        .service(model.clone());
    let mut body = agent.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    assert!(log.take().is_empty());
    drop(body);
    let mut told = log.take();
    told.sort();
    assert_eq!(told, ["model: dropped", "run: dropped"]);
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

// Case C067.
#[tokio::test]
async fn a_provider_failure_is_one_error_with_its_code() {
    let scripts = [
        ScriptedModel::new().error(server_error()),
        ScriptedModel::new().text("a").error(server_error()),
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .error(server_error()),
    ];
    for model in scripts {
        let log = Log::default();
        let codes = Log::default();
        let agent = ServiceBuilder::new()
            .layer(ends!(log, "run"))
            .layer(on_end({
                let codes = codes.clone();
                move |end: End<'_>| {
                    if let End::Failed(error) = end {
                        codes.add(error.code().unwrap_or_default());
                    }
                }
            }))
            .layer(AgentLayer::new(
                ScriptedTools::new().answers("search", "42"),
            ))
            .service(model);
        let error = match agent.oneshot(request()).await {
            Err(error) => error,
            Ok(response) => assert_fails(response.body).await.1,
        };
        assert_eq!(error.code(), Some("E7"));
        assert_eq!(log.take(), ["run: failed: server"]);
        assert_eq!(codes.take(), ["E7"]);
    }
}
