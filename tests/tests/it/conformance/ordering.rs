use super::*;

// Case C001.
#[tokio::test]
async fn model_layers_nest_in_the_order_added() {
    let log = Log::default();
    let provider = service_fn({
        let log = log.clone();
        move |_: ChatRequest| {
            log.add("provider");
            ready(Ok::<_, Error>(ChatResponse::new(stream::iter([
                Ok(Event::text("ok")),
                Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
            ]))))
        }
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(logs!(log, "LA"))
        .layer(logs!(log, "LB"))
        .service(provider);
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        ["LA-in", "LB-in", "provider", "LB-out", "LA-out"]
    );
}

// Case C003.
#[tokio::test]
async fn run_layers_nest_in_the_order_added() {
    let log = Log::default();
    let before = |name: &'static str| {
        let log = log.clone();
        tower::util::MapRequestLayer::new(move |request: ChatRequest| {
            log.add(name);
            request
        })
    };
    let agent = ServiceBuilder::new()
        .layer(before("before A"))
        .layer(ends!(log, "after A"))
        .layer(before("before B"))
        .layer(ends!(log, "after B"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().text("ok"));
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "before A",
            "before B",
            "after B: completed",
            "after A: completed"
        ]
    );
}

// Case C004.
#[tokio::test]
async fn layers_of_one_run_enclose_those_of_the_agent() {
    let log = Log::default();
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(logs!(log, "agent"))
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(ScriptedModel::new().text("ok").repeat()),
    );
    // Whoever has a run of its own to layer puts it around a clone.
    let run = ServiceBuilder::new()
        .layer(logs!(log, "run"))
        .service(agent.clone());
    assert_finishes(run.oneshot(request()).await.unwrap().body).await;
    assert_eq!(log.take(), ["run-in", "agent-in", "agent-out", "run-out"]);
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(log.take(), ["agent-in", "agent-out"]);
}

// Case C005.
#[tokio::test]
async fn two_observers_see_a_run_in_order() {
    let log = Log::default();
    let observer = |name: &'static str| {
        let log = log.clone();
        inspect_events(move |event: &Event| log.add(format!("{name} {}", shape([event]))))
    };
    let tool = ServiceBuilder::new()
        .layer(tool_from_fn({
            let log = log.clone();
            move |call: ToolCall, mut next: NextTool| {
                let log = log.clone();
                async move {
                    log.add("before call");
                    let outcome = next.run(call).await;
                    log.add("after call");
                    outcome
                }
            }
        }))
        .service(service_fn(async |_: ToolCall| {
            Ok::<_, Error>(ToolOutcome::done("42"))
        }));
    let agent = ServiceBuilder::new()
        .layer(observer("A"))
        .layer(observer("B"))
        .layer(logs!(log, "run"))
        .layer(AgentLayer::new(
            ScriptedTools::new().service(ToolSpec::new("search", "", json!({})), tool),
        ))
        .layer(logs!(log, "model"))
        .service(
            ScriptedModel::new()
                .tool_call("search", json!({}))
                .then()
                .text("ok"),
        );
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "run-in",
            "model-in",
            "model-out",
            "run-out",
            "B step_start",
            "A step_start",
            "B tool_call",
            "A tool_call",
            "B step_finish",
            "A step_finish",
            "before call",
            "after call",
            "B tool_result",
            "A tool_result",
            "B step_start",
            "A step_start",
            "model-in",
            "model-out",
            "B text",
            "A text",
            "B step_finish",
            "A step_finish",
            "B finish",
            "A finish",
        ]
    );
}

// Case C007.
#[tokio::test(start_paused = true)]
async fn a_slow_asynchronous_transform_keeps_the_order() {
    let slow = from_fn(async |request: ChatRequest, mut next: Next| {
        let response = next.run(request).await?;
        Ok(response.map_body(|body| {
            body.enumerate().then(async |(at, item)| {
                // The first takes longest.
                let wait = 100 / (at as u64 + 1);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                item
            })
        }))
    });
    let agent = ServiceBuilder::new()
        .layer(slow)
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().deltas(["a", "b", "c", "d"]));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        shape(&events),
        "step_start text text text text step_finish finish"
    );
    assert_eq!(text_of(&events), "abcd");
}
