use super::*;

#[tokio::test]
async fn a_failed_run_is_logged_with_its_id() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let broken = Error::new(ErrorKind::Server, "it broke");
    let scene = Scene::new(ScriptedModel::new().text("Well,").error(broken));
    let context = scene.leave().await;
    scene.layer.shutdown().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: failed, server: it broke"]
    );
    let run = context.run_id();
    assert_eq!(
        warnings.take(),
        [format!(
            "message=a detached run failed run={run} kind=\"server\""
        )]
    );
}

#[tokio::test]
async fn a_truncated_run_is_logged() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let model = ScriptedModel::new().text("Well,").end_early();
    let layer = DetachLayer::new();
    let agent = layer.layer(model);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.shutdown().await;
    let lines = warnings.take();
    assert_eq!(lines.len(), 1);
    assert!(
        lines.concat().contains("ended without a terminal item"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_panicking_run_is_logged_and_frees_its_place() {
    let (warnings, _guard) = LogCapture::of_thread("detach");
    let model = service_fn(async |_: ChatRequest| {
        let panics = stream::once(async { panic!("this is wrong") });
        let body = stream::iter([Ok(Event::text("hi"))]).chain(panics);
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let layer = DetachLayer::new();
    let agent = layer.layer(model);
    let mut answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    answer.body.next().await.unwrap().unwrap();
    drop(answer);
    layer.shutdown().await;
    let lines = warnings.take().concat();
    assert!(
        lines.contains("panicked") && lines.contains("this is wrong"),
        "{lines}"
    );
}

#[tokio::test]
async fn an_always_ready_model_yields_to_other_tasks() {
    let endless = service_fn(async |_: ChatRequest| {
        let more = stream::repeat_with(|| Ok(Event::text("more ")));
        Ok::<_, Error>(ChatResponse::new(more))
    });
    let environment = TestEnvironment::new();
    let layer = DetachLayer::new().within(Duration::from_secs(60));
    let agent = layer.layer(endless);
    drop(agent.oneshot(environment.request("hi")).await.unwrap());
    settle().await;
    assert_eq!(layer.available(), 63);
    environment.advance(Duration::from_secs(60));
    settle().await;
    assert_eq!(layer.available(), 64);
}

#[tokio::test]
async fn a_run_dropped_at_any_await_ends_once() {
    let scene = RefCell::new(None);
    let run = || {
        let look = |_| async {
            // It is woken, and has nothing to say yet.
            yield_now().await;
            ToolOutcome::done("seen")
        };
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Se")
            .pause()
            .text("en.");
        let tools = ScriptedTools::new().tool("look", look);
        let next = Scene::new(model.paced(Pace::NextTick)).tools(tools.paced(Pace::NextTick));
        let call = next.agent().oneshot(next.request());
        *scene.borrow_mut() = Some(next);
        async move {
            let answer = Spurious::new(call).await?.map_body(Spurious::new);
            Ok::<_, Error>(answer.collect().await?)
        }
    };
    let drops = drop_at_each_wait(run, async |polls| {
        settle().await;
        let scene = scene.take().unwrap();
        let begun = usize::from(polls > 0);
        assert_eq!((scene.detached(), scene.model.live()), (0, 0), "{polls}");
        assert_eq!(scene.tools.done(), begun, "{polls}");
        let ends = scene.log.lines();
        let inside: Vec<_> = ends.iter().filter(|end| end.contains("inside")).collect();
        assert_eq!(inside.len(), begun, "{polls}: {ends:?}");
    });
    let drops = drops.await;
    assert!(drops > 5, "{drops}");
}
