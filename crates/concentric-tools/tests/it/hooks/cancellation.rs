//! Calls that are dropped, and readiness.

use super::*;

// ---- cancellation ----

/// Notes when it is dropped.
struct Dropped(Log);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

pub(super) fn hangs(log: &Log) -> BoxTool {
    let log = log.clone();
    BoxTool::new(service_fn(move |call: ToolCall| {
        let dropped = Dropped(log.clone());
        async move {
            let _dropped = dropped;
            pace().pass(&call.context).await;
            pending::<Result<ToolOutcome, Error>>().await
        }
    }))
}

paced!(a_call_that_is_dropped_is_cancelled_once);
async fn a_call_that_is_dropped_is_cancelled_once() {
    let log = Log::default();
    let mut service = recorder("A", &log).layer(hangs(&log));
    // While it runs: what runs is dropped first.
    let mut running = spawn(service.ready().await.unwrap().call(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert_eq!(
        log.lines(),
        ["A before call-0 {}", "dropped", "A cancelled call-0"]
    );
    // Before it was polled.
    drop(service.ready().await.unwrap().call(call("t")));
    assert_eq!(log.count("A cancelled call-0"), 2);
    assert_eq!(log.count("A before call-0 {}"), 2);
    // A time limit outside.
    let limited = TimeoutLayer::new(Duration::ZERO).layer(service);
    limited.oneshot(call("t")).await.unwrap_err();
    assert_eq!(log.count("A cancelled call-0"), 3);
    assert!(
        !log.lines()
            .iter()
            .any(|l| l.contains("after") || l.contains("error"))
    );
}

paced!(c052_the_calls_of_a_run_that_is_cancelled_are_told_once);
async fn c052_the_calls_of_a_run_that_is_cancelled_are_told_once() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| pending::<&str>()))
        .layer(recorder("A", &log));
    let context = Context::new();
    let round = crate::common::round_in(&context, &[("t", "{}"), ("t", "{}")]);
    let mut outcomes = spawn(tools.oneshot(round).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    drop(outcomes);
    for id in 0..2 {
        assert_eq!(log.count(&format!("A cancelled call-{id}")), 1);
    }
    assert_eq!(log.lines().len(), 4);
}

paced!(a_hook_that_waits_is_dropped_with_the_call);
async fn a_hook_that_waits_is_dropped_with_the_call() {
    let log = Log::default();
    let ok = BoxTool::new(service_fn(async |call: ToolCall| {
        pace().pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done(""))
    }));
    // In `before`: the call is cancelled.
    let (layer, _go_before, _go_after) = waiter(&log);
    let mut running = spawn(layer.layer(ok.clone()).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert_eq!(log.lines(), ["before", "cancelled"]);
    // In `after`: there was an outcome.
    let (layer, go_before, go_after) = waiter(&log);
    let mut running = spawn(layer.layer(ok).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    go_before.send(()).unwrap();
    assert!(running.is_woken());
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert!(go_after.is_closed());
    assert_eq!(log.lines()[2..], ["before", "after"]);
}

paced!(a_call_that_ends_is_not_cancelled_when_its_future_is_dropped);
async fn a_call_that_ends_is_not_cancelled_when_its_future_is_dropped() {
    let log = Log::default();
    let ok = BoxTool::new(service_fn(async |call: ToolCall| {
        pace().pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done(""))
    }));
    let mut running = spawn(recorder("A", &log).layer(ok).oneshot(call("t")));
    assert_ready_ok!(polled!(running.poll()));
    drop(running);
    assert_eq!(log.lines(), ["A before call-0 {}", "A after call-0 Done 0"]);
}

paced!(calls_side_by_side_have_hooks_of_their_own);
async fn calls_side_by_side_have_hooks_of_their_own() {
    struct Yields(Log);
    impl Hooks for Yields {
        fn id(&self) -> &str {
            "yields"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
        }

        async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            tokio::task::yield_now().await;
            self.0.add(format!("before {}", call.id()));
            Ok(Flow::Continue)
        }

        async fn after_call(
            &self,
            call: &ToolCall,
            outcome: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            tokio::task::yield_now().await;
            self.0.add(format!("after {}", call.id()));
            let text = outcome.content.text();
            Ok(Some(ToolOutcome::done(format!("{text} of {}", call.id()))))
        }
    }

    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&Log::default()))
        .layer(hooks::tool(Arc::new(Yields(log.clone()))));
    for _ in 0..2 {
        for settled in run(&tools, &[("t", r#"{"n":1}"#); 8]).await {
            let settled = settled.unwrap();
            let text = format!("1 of call-{}", settled.index);
            assert_eq!(settled.outcome, ToolOutcome::done(text));
        }
    }
    for id in 0..8 {
        assert_eq!(log.count(&format!("before call-{id}")), 2);
        assert_eq!(log.count(&format!("after call-{id}")), 2);
    }
}

paced!(a_hook_is_dropped_with_its_layer_and_services);
async fn a_hook_is_dropped_with_its_layer_and_services() {
    struct Held(#[expect(dead_code, reason = "it is dropped")] Dropped);
    impl Hooks for Held {
        fn id(&self) -> &str {
            "held"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
        }

        async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            Ok(Flow::Continue)
        }

        async fn after_call(
            &self,
            _: &ToolCall,
            _: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            Ok(None)
        }
    }

    let log = Log::default();
    let layer = hooks::tool(Arc::new(Held(Dropped(log.clone()))));
    let service = layer.layer(failing(|| Error::new(ErrorKind::Server, "")));
    service.clone().oneshot(call("t")).await.unwrap_err();
    let blocked = BoxTool::new(service_fn(async |_| Ok::<_, Error>(ToolOutcome::done(""))));
    layer.layer(blocked).oneshot(call("t")).await.unwrap();
    drop(layer);
    assert_eq!(log.lines(), [""; 0]);
    drop(service);
    assert_eq!(log.lines(), ["dropped"]);
}

// ---- readiness ----

paced!(a_hooked_service_is_ready_when_the_rest_of_the_stack_is);
async fn a_hooked_service_is_ready_when_the_rest_of_the_stack_is() {
    let log = Log::default();
    // The limit panics when it is called unready.
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    let (layer, go_before, go_after) = waiter(&log);
    let limited = ConcurrencyLimitLayer::new(1).layer(mock);
    let mut service = spawn(layer.layer(limited));
    let mut clone = spawn(service.get_ref().clone());
    assert_ready_ok!(service.enter(|cx, mut s| s.poll_ready(cx)));
    assert_pending!(clone.enter(|cx, mut s| s.poll_ready(cx)));
    let mut running = spawn(service.enter(|_, mut s| s.call(call("t"))));
    assert_pending!(polled!(running.poll()));
    // The one that was ready is kept for when the hook is done.
    assert_pending!(service.enter(|cx, mut s| s.poll_ready(cx)));
    go_before.send(()).unwrap();
    assert!(running.is_woken());
    assert_pending!(polled!(running.poll()));
    let (_, response) = handle.next_request().await.unwrap();
    response.send_response(ToolOutcome::done("ok"));
    assert_pending!(polled!(running.poll()));
    // It is given back before the hook is told what came of the call.
    assert!(clone.is_woken());
    assert_ready_ok!(clone.enter(|cx, mut s| s.poll_ready(cx)));
    go_after.send(()).unwrap();
    assert_eq!(
        assert_ready_ok!(polled!(running.poll())),
        ToolOutcome::done("ok")
    );
}

paced!(a_hooked_service_fails_when_the_rest_of_the_stack_does);
async fn a_hooked_service_fails_when_the_rest_of_the_stack_does() {
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    handle.send_error("gone");
    let mut service = spawn(recorder("A", &Log::default()).layer(mock));
    let error: Error = assert_ready_err!(service.enter(|cx, mut s| s.poll_ready(cx)));
    assert_eq!(error.message(), "gone");
}

#[test]
fn a_hooked_service_can_be_shared_if_what_it_stands_around_can() {
    fn check<T: ToolService<Future: Send> + Clone + Send + Sync>(_: &T) {}
    let log = Log::default();
    let layers = ServiceBuilder::new()
        .layer(recorder("A", &log))
        .layer(recorder("B", &log).scoped(Matcher::read_only()))
        .layer(ScopedExt::scoped(recorder("C", &log), "t"))
        .layer(ConcurrencyLimitLayer::new(1).scoped("t"));
    check(&layers.service(hangs(&log)));
}
