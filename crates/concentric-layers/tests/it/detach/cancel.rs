use super::*;

#[tokio::test]
async fn a_cancel_stops_a_detached_run() {
    let scene = Scene::waiting(&Gate::new());
    let context = scene.leave().await;
    settle().await;
    context.cancel(CancelReason::User);
    settle().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: aborted, User"]
    );
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
    assert_eq!(context.cancel_reason(), Some(CancelReason::User));
}

#[tokio::test]
async fn a_run_cancelled_before_the_disconnect_ends_as_cancelled() {
    let scene = Scene::waiting(&Gate::new());
    let (context, body) = scene.start().await;
    context.cancel(CancelReason::User);
    drop(body);
    settle().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: aborted, User"]
    );
}

#[tokio::test]
async fn a_run_ignoring_a_cancel_is_dropped_after_30_seconds() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let layer = DetachLayer::new();
    let request = environment.request("hi");
    let context = request.context.clone();
    let agent = layer.layer(model.clone());
    drop(agent.oneshot(request).await.unwrap());
    settle().await;
    context.cancel(CancelReason::User);
    settle().await;
    environment.advance(Duration::from_secs(29));
    settle().await;
    assert_eq!(model.live(), 1);
    environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(model.live(), 0);
    assert!(warnings.take().concat().contains("did not end after"));
}

#[tokio::test]
async fn a_run_ignoring_its_deadline_is_dropped_after_30_seconds() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let deadline = environment.context().now() + Duration::from_secs(7);
    let context = environment.context_builder().deadline(deadline).build();
    let request = ChatRequest::user("hi").with_context(context);
    let layer = DetachLayer::new().within(Duration::MAX);
    drop(layer.layer(model.clone()).oneshot(request).await.unwrap());
    settle().await;
    for (seconds, live) in [(6, 1), (1, 1), (29, 1), (1, 0)] {
        environment.advance(Duration::from_secs(seconds));
        settle().await;
        assert_eq!(model.live(), live);
    }
    assert!(warnings.take().concat().contains("did not end after"));
}

#[tokio::test]
async fn a_cancel_does_not_extend_the_remaining_time() {
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let layer = DetachLayer::new().within(Duration::from_secs(60));
    let request = environment.request("hi");
    let context = request.context.clone();
    drop(layer.layer(model.clone()).oneshot(request).await.unwrap());
    settle().await;
    environment.advance(Duration::from_secs(50));
    context.cancel(CancelReason::User);
    settle().await;
    environment.advance(Duration::from_secs(9));
    settle().await;
    assert_eq!(model.live(), 1);
    environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(model.live(), 0);
}
