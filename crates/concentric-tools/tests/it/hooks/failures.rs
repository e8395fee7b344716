//! Hooks and tools that fail.

use super::*;

paced!(c064_a_hook_that_fails_after_a_success_changes_and_doubles_nothing);
async fn c064_a_hook_that_fails_after_a_success_changes_and_doubles_nothing() {
    type After = fn() -> Result<Option<ToolOutcome>, BoxError>;
    let fails: [After; 3] = [
        || Err("gone".into()),
        || panic!("secret"),
        || Err(fatal("gone").into()),
    ];
    for fails in fails {
        let log = Log::default();
        let tools = Toolset::new()
            .tool(number(&log))
            .layer(recorder("A", &log))
            .layer(after(fails));
        let all = run(&tools, &[("t", r#"{"n":1}"#)]).await;
        let all: Vec<_> = all.into_iter().map(|item| item.unwrap().outcome).collect();
        assert_eq!(all, [ToolOutcome::done("1")]);
        assert_eq!(log.lines()[1..], ["ran 1", "A after call-0 Done 0"]);
    }
}

paced!(c064_a_hook_that_fails_on_an_error_changes_and_doubles_nothing);
async fn c064_a_hook_that_fails_on_an_error_changes_and_doubles_nothing() {
    type OnError = fn() -> Result<Option<ToolOutcome>, BoxError>;
    let fails: [OnError; 2] = [|| Err("gone".into()), || panic!("secret")];
    for fails in fails {
        let inner = failing(|| Error::new(ErrorKind::Server, "broken"));
        let error = on_error(fails).layer(inner).oneshot(call("t")).await;
        assert_eq!(error.unwrap_err().to_string(), "server: broken");
    }
}

paced!(without_its_check_a_call_is_not_run);
async fn without_its_check_a_call_is_not_run() {
    type Before = fn() -> Result<Flow<ToolOutcome>, BoxError>;
    let fails: [Before; 2] = [|| Err("secret".into()), || panic!("secret")];
    for fails in fails {
        let log = Log::default();
        let tools = Toolset::new()
            .tool(number(&log))
            .layer(recorder("A", &log))
            .layer(before(fails));
        let outcome = one(&tools, "t", r#"{"n":1}"#).await;
        let told = "A check of this call failed. The call was not run.";
        assert_eq!(outcome, ToolOutcome::failed(told));
        assert_eq!(log.lines()[1..], ["A after call-0 Failed 0"]);
    }
}

paced!(a_check_that_fails_for_good_ends_the_run);
async fn a_check_that_fails_for_good_ends_the_run() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(recorder("A", &log))
        .layer(before(|| Err(fatal("no more").into())));
    let mut outcomes = tools.oneshot(round(&[("t", r#"{"n":1}"#)])).await.unwrap();
    let error = outcomes.next().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "no more");
    assert_eq!(log.lines()[1..], ["A error call-0 tool: no more 0"]);
}

paced!(an_error_inside_is_told_once_and_goes_on_as_it_was);
async fn an_error_inside_is_told_once_and_goes_on_as_it_was() {
    let log = Log::default();
    let inner = failing(|| Error::new(ErrorKind::RateLimited, "slow down").with_status(429));
    let error = recorder("A", &log).layer(inner).oneshot(call("t")).await;
    assert_eq!(error.unwrap_err().status(), Some(429));
    assert_eq!(
        log.lines(),
        [
            "A before call-0 {}",
            "A error call-0 rate_limited (HTTP 429): slow down 0"
        ]
    );
}

paced!(an_error_inside_may_become_an_outcome);
async fn an_error_inside_may_become_an_outcome() {
    let inner = failing(|| Error::new(ErrorKind::Server, "broken"));
    let service = on_error(|| Ok(Some(ToolOutcome::failed("later, please")))).layer(inner);
    let outcome = service.oneshot(call("t")).await.unwrap();
    assert_eq!(outcome, ToolOutcome::failed("later, please"));
}

paced!(a_call_that_waits_passes_untouched);
async fn a_call_that_waits_passes_untouched() {
    let log = Log::default();
    let waits = || Error::suspended(Suspension::held().with_state(json!(7)));
    let service = ServiceBuilder::new()
        .layer(recorder("A", &log))
        .layer(on_error(|| panic!("it is no error")))
        .service(failing(waits));
    let error = service.oneshot(call("t")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert_eq!(
        error.suspension().map(|(on, _)| on),
        Some(&Suspension::held().with_state(json!(7)))
    );
    assert_eq!(log.lines(), ["A before call-0 {}"]);

    // A hook may have a call wait, too.
    let service = ServiceBuilder::new()
        .layer(recorder("B", &log))
        .layer(before(move || Err(waits().into())))
        .service(failing(|| panic!("it is not called")));
    let error = service.oneshot(call("t")).await.unwrap_err();
    assert!(error.suspension().is_some());
    assert_eq!(log.lines()[1..], ["B before call-0 {}"]);
}
