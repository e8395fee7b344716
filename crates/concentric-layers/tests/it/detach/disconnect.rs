use super::*;

// Case F012.
#[tokio::test]
async fn a_run_completes_after_its_consumer_disconnects() {
    let gate = Gate::new();
    let open = gate.clone();
    let tools = ScriptedTools::new().tool("order", move |_| {
        let gate = open.clone();
        async move {
            gate.pass().await;
            ToolOutcome::done("ordered")
        }
    });
    let model = ScriptedModel::new()
        .tool_call("order", json!({}))
        .then()
        .text("Done.");
    let scene = Scene::new(model).tools(tools);
    let context = scene.leave().await;
    assert_eq!(scene.log.lines(), ["outside: dropped"]);
    gate.reached().await;
    assert_eq!((scene.detached(), scene.tools.live()), (1, 1));
    assert!(!context.is_cancelled(), "the run goes on");

    gate.open();
    scene.layer.shutdown().await;
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: completed"]);
    assert_eq!((scene.model.calls(), scene.tools.done()), (2, 1));
    assert!(!context.is_cancelled(), "nobody has cancelled it");
}

// Case F012.
#[tokio::test]
async fn without_the_layer_a_disconnect_stops_the_run() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(DetachLayer::new().limit(0));
    let context = scene.leave().await;
    assert_eq!(scene.log.lines(), ["inside: dropped", "outside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert_eq!((scene.model.live(), scene.model.dropped()), (0, 1));
}

// Case F012.
#[tokio::test]
async fn a_run_continues_from_every_await_point() {
    let model = || {
        ScriptedModel::new()
            .pause()
            .text("Let ")
            .pause()
            .text("me see. ")
            .tool_call("order", json!({}))
            .pause()
            .then()
            .pause()
            .text("Done.")
            .pause()
    };
    let tools = || {
        ScriptedTools::new().tool("order", |_| async {
            yield_now().await;
            ToolOutcome::done("ordered")
        })
    };
    let mut times = 0;
    loop {
        let scene = Scene::new(model()).tools(tools());
        let agent = scene.agent();
        let request = scene.request();
        let context = request.context.clone();
        let mut answer =
            Box::pin(async move { agent.oneshot(request).await.unwrap().text().await });
        let whole = poll_times(&mut answer, times).await;
        drop(answer);
        scene.layer.shutdown().await;

        if times == 0 {
            // Nothing has begun.
            assert_eq!((scene.model.calls(), scene.log.lines().len()), (0, 0));
            times += 1;
            continue;
        }
        let ends = match &whole {
            Some(_) => ["inside: completed", "outside: completed"],
            None => ["outside: dropped", "inside: completed"],
        };
        assert_eq!(scene.log.lines(), ends, "after {times} polls");
        assert_eq!((scene.model.calls(), scene.model.live()), (2, 0));
        assert_eq!((scene.tools.done(), scene.tools.dropped()), (1, 0));
        assert!(!context.is_cancelled());
        if let Some(text) = whole {
            assert_eq!(text.unwrap(), "Done.");
            break;
        }
        times += 1;
    }
    assert!(times > 5, "there are some await points: {times}");
}

#[tokio::test]
async fn a_future_that_was_never_polled_is_dropped() {
    let scene = Scene::new(ScriptedModel::new().text("hi"));
    let mut service = scene.layer.layer(scene.model.clone());
    let call = tower::Service::call(service.ready().await.unwrap(), scene.request());
    drop(call);
    settle().await;
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
    assert_eq!(scene.model.items(), 0);
}

#[tokio::test]
async fn an_ended_body_is_not_detached() {
    let scene = Scene::new(ScriptedModel::new().text("hi"));
    let (_, mut body) = scene.start().await;
    while let Some(item) = body.next().await {
        if item.unwrap().is_finish() {
            break;
        }
    }
    assert_eq!(scene.model.live(), 0);
    assert!(body.next().await.is_none());
    drop(body);
    assert_eq!(scene.detached(), 0);
    assert_eq!(
        scene.log.lines(),
        ["inside: completed", "outside: completed"]
    );
}

#[tokio::test]
async fn a_body_is_not_polled_after_a_panic() {
    let body = stream::iter([Ok(Event::text("hi"))])
        .chain(stream::once(async { panic!("this is wrong") }));
    let body = Mutex::new(Some(EventStream::new(body)));
    let body = Arc::new(body);
    let model = service_fn(move |_: ChatRequest| {
        let body = body.lock().unwrap().take().unwrap();
        async { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let layer = DetachLayer::new();
    let agent = layer.layer(model);
    let read =
        tokio::spawn(async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await });
    assert!(read.await.unwrap_err().is_panic());
    assert_eq!(layer.available(), 64);
}
