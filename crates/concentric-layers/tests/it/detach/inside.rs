use super::*;

#[tokio::test]
async fn inner_services_can_detect_the_disconnect() {
    let (gate, log) = (Gate::new(), Log::default());
    let (open, told) = (gate.clone(), log.clone());
    let look = move |call: ToolCall| {
        let (gate, log) = (open.clone(), told.clone());
        async move {
            let consumer = Consumer::of(&call.context).unwrap();
            log.add(format!("gone: {}", consumer.is_gone()));
            gate.pass().await;
            consumer.gone().await;
            log.add(format!("gone: {}", consumer.is_gone()));
            ToolOutcome::done("seen")
        }
    };
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("ok");
    let scene = Scene::new(model).tools(ScriptedTools::new().tool("look", look));
    let (_, mut body) = scene.start().await;
    // The step, the call, the step's end; and the tool begins.
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    assert!(body.next().now_or_never().is_none());
    gate.open();
    drop(body);
    scene.layer.shutdown().await;
    assert_eq!(log.lines(), ["gone: false", "gone: true"]);
    assert!(Consumer::of(&Context::new()).is_none());
}

#[tokio::test]
async fn the_layer_does_nothing_inside_another_run() {
    let gate = Gate::new();
    let inner = Scene::waiting(&gate);
    let agent = inner.agent();
    let outer = Context::new();
    let sub_agent = ChatRequest::user("hi").with_context(outer.child().build());
    drop(agent.clone().oneshot(sub_agent).await.unwrap());
    assert_eq!(inner.log.lines(), ["inside: dropped", "outside: dropped"]);

    // In a model's place.
    let nested = AgentLayer::new(ScriptedTools::new()).layer(agent);
    drop(nested.oneshot(ChatRequest::user("hi")).await.unwrap());
    assert_eq!(inner.log.lines().len(), 4);
    assert_eq!((inner.detached(), inner.model.live()), (0, 0));
}

#[tokio::test]
async fn an_agent_tool_may_have_the_layer() {
    let inner = Scene::new(ScriptedModel::new().text("Yes.").repeat());
    let agent = inner.agent();
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let agent = agent.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            let answer = agent.oneshot(request).await.unwrap();
            ToolOutcome::done(answer.text().await.unwrap())
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("Done.");
    let layer = DetachLayer::new();
    let outer = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(AgentLayer::new(tools))
        .service(model);
    drop(outer.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.shutdown().await;
    assert_eq!(
        inner.log.lines(),
        ["inside: completed", "outside: completed"]
    );
}

#[tokio::test]
async fn a_nested_agent_continues_inside_the_outer_layer() {
    let inner = AgentLayer::new(ScriptedTools::new());
    let layer = DetachLayer::new();
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(log.ends("inside"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(DetachLayer::new())
        .layer(inner)
        .service(ScriptedModel::new().text("Well,").pause().text(" yes."));
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.shutdown().await;
    assert_eq!(log.lines(), ["inside: completed"]);
}

#[tokio::test]
async fn usage_is_reported_to_inner_layers() {
    let used = Arc::new(Mutex::new(Usage::default()));
    let seen = Arc::clone(&used);
    let layer = DetachLayer::new();
    let model = ScriptedModel::new()
        .text("Well,")
        .pause()
        .text(" yes.")
        .usage(Usage::new(9, 2));
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(on_end(move |end: End<'_>| {
            if let End::Finished(finish) = end {
                *seen.lock().unwrap() = finish.usage;
            }
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.shutdown().await;
    assert_eq!(*used.lock().unwrap(), Usage::new(9, 2));
}

#[tokio::test]
async fn disconnects_on_many_threads_all_complete() {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let log = Log::default();
    let layer = DetachLayer::new().limit(1_000);
    let model = || {
        ScriptedModel::new()
            .text("Well,")
            .pause()
            .text(" yes.")
            .repeat()
    };
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(layer.clone())
            .layer(log.ends("inside"))
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(model()),
    );
    let consumers: Vec<_> = (0..1_000_usize)
        .map(|n| {
            let agent = agent.clone();
            runtime.spawn(async move {
                let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
                let _ = answer.body.take(n % 5).count().await;
            })
        })
        .collect();
    for consumer in consumers {
        consumer.await.unwrap();
    }
    layer.shutdown().await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1_000);
    let other = lines.iter().find(|line| **line != "inside: completed");
    assert_eq!(other, None);
    runtime.shutdown_background();
}
