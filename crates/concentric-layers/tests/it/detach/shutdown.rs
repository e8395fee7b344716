use super::*;

#[tokio::test]
async fn a_shutdown_waits_for_detached_runs_and_rejects_others() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate);
    let (late, body) = scene.start().await;
    let early = scene.leave().await;
    let mut shutdown = Box::pin(scene.layer.shutdown());
    assert!(poll_times(&mut shutdown, 50).await.is_none());

    // Its consumer is there, until now.
    drop(body);
    assert_eq!(late.cancel_reason(), Some(CancelReason::Disconnected));

    gate.open();
    shutdown.await;
    assert!(!early.is_cancelled());
    assert!(scene.log.lines().contains(&"inside: completed".to_owned()));
    // And again, by whoever else is told to; and from now on.
    scene.layer.shutdown().await;
    let refused = scene.leave().await;
    assert!(refused.is_cancelled());
}

#[tokio::test]
async fn an_abandoned_shutdown_accepts_runs_again() {
    let scene = Scene::waiting(&Gate::new());
    let first = scene.leave().await;
    assert!(scene.layer.shutdown().now_or_never().is_none());
    let second = scene.leave().await;
    settle().await;
    assert_eq!([first, second].map(|c| c.is_cancelled()), [false, false]);
    assert_eq!(scene.detached(), 2);
}

#[test]
fn without_a_runtime_the_run_stops_with_a_warning() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let scene = Scene::waiting(&Gate::new());
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let (context, body) = runtime.block_on(scene.start());
    drop(runtime);
    drop(body);
    assert_eq!(scene.log.lines(), ["inside: dropped", "outside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert_eq!(scene.detached(), 0);
    assert!(warnings.take().concat().contains("no tokio runtime"));
}

#[test]
fn a_runtime_shutdown_drops_detached_runs() {
    let scene = Scene::waiting(&Gate::new());
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        scene.leave().await;
        settle().await;
    });
    assert_eq!(scene.detached(), 1);
    drop(runtime);
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: dropped"]);
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
}
