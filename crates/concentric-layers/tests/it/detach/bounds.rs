use super::*;

#[tokio::test]
async fn a_run_over_the_limit_is_stopped_and_logged() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(DetachLayer::new().limit(2));
    let first = scene.leave().await;
    let second = scene.leave().await;
    let third = scene.leave().await;
    let reasons = [first, second, third.clone()].map(|context| context.cancel_reason());
    assert_eq!(reasons, [None, None, Some(CancelReason::Disconnected)]);
    let lines = warnings.take();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines.concat().contains(third.run_id().as_str()),
        "{lines:?}"
    );
    assert!(
        lines.concat().contains("the limit of 2 is reached"),
        "{lines:?}"
    );

    gate.open();
    settle().await;
    // There is room again.
    let fourth = scene.leave().await;
    settle().await;
    assert!(!fourth.is_cancelled());
}

#[tokio::test]
async fn by_default_64_runs_continue_detached() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let gate = Gate::new();
    let scene = Scene::waiting(&gate);
    for _ in 0..65 {
        scene.leave().await;
    }
    assert_eq!((scene.detached(), scene.model.live()), (64, 64));
    let lines = warnings.take().concat();
    assert!(lines.contains("the limit of 64 is reached"), "{lines}");
}

#[tokio::test]
async fn clones_share_the_limit() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(DetachLayer::new().limit(1));
    let agent = scene.agent();
    let mut reasons = Vec::new();
    for agent in [agent.clone(), agent] {
        let request = scene.request();
        let context = request.context.clone();
        drop(agent.oneshot(request).await.unwrap());
        reasons.push(context.cancel_reason());
    }
    assert_eq!(reasons, [None, Some(CancelReason::Disconnected)]);
}

#[tokio::test]
async fn a_detached_run_stops_at_its_time_limit() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let scene = Scene::waiting(&Gate::new()).layer(DetachLayer::new());
    let context = scene.leave().await;
    settle().await;
    scene.environment.advance(Duration::from_secs(599));
    settle().await;
    assert_eq!(scene.detached(), 1);
    scene.environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(scene.detached(), 0);
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert!(warnings.take().concat().contains("exceeded its time limit"));
}

#[tokio::test]
async fn an_interrupted_run_without_a_store_is_logged() {
    for is_stored in [false, true] {
        let (warnings, _guard) = LogCapture::of_thread("detach");
        let tools = ScriptedTools::new().asks("pay", "paid");
        let gate = Gate::new();
        let model = ScriptedModel::new()
            .text("Well,")
            .wait(&gate)
            .tool_call("pay", json!({}));
        let layer = DetachLayer::new();
        let agent = ServiceBuilder::new()
            .layer(layer.clone())
            // As a layer does that stores the state itself.
            .map_response(move |mut answer: ChatResponse<EventStream>| {
                if is_stored {
                    answer.extensions.insert(Resumable);
                }
                answer
            })
            .service(BoxModel::new(AgentLayer::new(tools).layer(model)));
        drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
        gate.open();
        layer.shutdown().await;
        let lines = warnings.take();
        let is_reported = lines
            .iter()
            .any(|line| line.contains("SuspendLayer") && line.contains("DetachLayer"));
        assert_eq!(is_reported, !is_stored, "{lines:?}");
    }
}

#[tokio::test]
async fn the_time_limit_starts_at_the_disconnect() {
    let scene =
        Scene::waiting(&Gate::new()).layer(DetachLayer::new().within(Duration::from_secs(5)));
    let (_, body) = scene.start().await;
    scene.environment.advance(Duration::from_secs(60));
    settle().await;
    drop(body);
    settle().await;
    scene.environment.advance(Duration::from_secs(4));
    settle().await;
    assert_eq!(scene.detached(), 1);
}

#[tokio::test]
async fn the_runs_own_deadline_still_applies() {
    let scene = Scene::waiting(&Gate::new());
    let deadline = scene.environment.context().now() + Duration::from_secs(7);
    let context = scene
        .environment
        .context_builder()
        .deadline(deadline)
        .build();
    let request = ChatRequest::user("hi").with_context(context);
    drop(scene.agent().oneshot(request).await.unwrap());
    settle().await;
    scene.environment.advance(Duration::from_secs(7));
    settle().await;
    assert_eq!(
        scene.log.lines(),
        [
            "outside: dropped",
            "inside: failed, timeout: the run's deadline has passed"
        ]
    );
}
