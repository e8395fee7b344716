//! Hooks and layers for some of the calls.

use super::{cancellation::hangs, *};

/// A read-only tool, one that changes something, and one of a group.
fn three() -> Toolset {
    let ok = |name: &'static str| tool(name, "", |NoArguments {}| async { "ok" });
    Toolset::new()
        .tool(ok("fs_read").read_only())
        .tool(ok("pay"))
        .tool(ok("fs_delete").group("disk"))
}

paced!(s46_a_hook_and_a_layer_are_about_the_calls_that_match);
async fn s46_a_hook_and_a_layer_are_about_the_calls_that_match() {
    let slow = |of: &'static str| {
        Matcher::when_async(move |call: ToolCall| async move {
            tokio::task::yield_now().await;
            Ok(call.name() == of)
        })
    };
    let (all, none) = (["fs_read", "pay", "fs_delete"], [""; 0]);
    let cases: [(Matcher, &[&str]); 14] = [
        ("pay".into(), &["pay"]),
        ("fs_*".into(), &["fs_read", "fs_delete"]),
        (["pay", "*_read"].into(), &["fs_read", "pay"]),
        (Matcher::all(), &all),
        (!Matcher::all(), &none),
        (Matcher::group("disk"), &["fs_delete"]),
        (Matcher::read_only(), &["fs_read"]),
        (Matcher::effects(), &["pay", "fs_delete"]),
        (Matcher::annotated(|a| a.destructive), &["pay", "fs_delete"]),
        (Matcher::when(|call| call.name().len() == 3), &["pay"]),
        (slow("pay"), &["pay"]),
        (
            Matcher::from("fs_*").and(Matcher::effects()),
            &["fs_delete"],
        ),
        (slow("pay").or(slow("fs_read")), &["fs_read", "pay"]),
        // What fails is taken for a match.
        (Matcher::try_when(|_| Err("gone".into())), &all),
    ];
    for (matcher, expected) in cases {
        let log = Log::default();
        let tools = three()
            .layer(recorder("hook", &log).scoped(matcher.clone()))
            .layer(note("layer", &log).scoped(matcher.clone()));
        for (at, name) in all.iter().enumerate() {
            assert_eq!(text(&tools, name, "").await, "ok");
            let lines = log.lines().len();
            let matches = expected.iter().filter(|e| all[..=at].contains(e)).count();
            assert_eq!(lines, 4 * matches, "{matcher}: {name} {:?}", log.lines());
        }
    }
}

paced!(a_scope_within_a_scope_is_about_the_calls_of_both);
async fn a_scope_within_a_scope_is_about_the_calls_of_both() {
    let log = Log::default();
    let tools = three().layer(
        recorder("A", &log)
            .scoped("fs_*")
            .scoped(Matcher::effects()),
    );
    for name in ["fs_read", "pay", "fs_delete"] {
        text(&tools, name, "").await;
    }
    assert_eq!(log.lines().len(), 2);
}

paced!(a_hook_out_of_scope_leaves_a_call_alone);
async fn a_hook_out_of_scope_leaves_a_call_alone() {
    let log = Log::default();
    let layer = recorder("A", &log).scoped("other");
    let mut running = spawn(layer.layer(hangs(&log)).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    let never = layer.scoped(Matcher::when_async(|_| pending()).or("x"));
    drop(never.layer(hangs(&log)).oneshot(call("other")));
    let broken = failing(|| Error::new(ErrorKind::Server, "broken"));
    let scoped = recorder("A", &log).scoped("other");
    scoped.layer(broken).oneshot(call("t")).await.unwrap_err();
    assert_eq!(log.lines(), ["dropped"]);
}

paced!(the_calls_that_a_limit_is_not_about_hold_nothing_of_it);
async fn the_calls_that_a_limit_is_not_about_hold_nothing_of_it() {
    let log = Log::default();
    let limited = ConcurrencyLimitLayer::new(1).scoped("slow");
    let mut service = limited.layer(hangs(&log));
    let mut calls = Vec::new();
    for name in ["slow", "slow", "fast", "fast"] {
        let mut running = spawn(service.ready().await.unwrap().call(call(name)));
        assert_pending!(polled!(running.poll()));
        calls.push(running);
    }
    // The second one waits until the first is done; the others have nothing to do with it.
    assert_eq!(log.lines(), [""; 0]);
    drop(calls.remove(0));
    assert!(calls[0].is_woken());
    assert_pending!(calls[0].poll());
    drop(calls);
    // One that was never started has nothing to drop.
    assert_eq!(log.count("dropped"), 4);
}

paced!(a_scoped_service_waits_for_the_one_that_it_calls);
async fn a_scoped_service_waits_for_the_one_that_it_calls() {
    let (slow, mut slow_handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    let (fast, mut fast_handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    slow_handle.allow(0);
    let layer = layer_fn(move |_| slow.clone()).scoped("slow");
    let mut service = layer.layer(fast);
    let mut waits = spawn(service.ready().await.unwrap().call(call("slow")));
    assert_pending!(polled!(waits.poll()));
    let mut runs = spawn(service.ready().await.unwrap().call(call("fast")));
    assert_pending!(polled!(runs.poll()));
    let (_, response) = fast_handle.next_request().await.unwrap();
    response.send_response(ToolOutcome::done("fast"));
    assert_ready_ok!(polled!(runs.poll()));
    slow_handle.allow(1);
    assert!(waits.is_woken());
    assert_pending!(polled!(waits.poll()));
    let (_, response) = slow_handle.next_request().await.unwrap();
    response.send_error("broken");
    let error: Error = assert_ready_err!(polled!(waits.poll()));
    assert_eq!(error.message(), "broken");
}
