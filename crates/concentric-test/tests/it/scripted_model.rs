//! The scripted model, with one test per row of the table in its docs.

use concentric_core::{
    ChatRequest, Error, ErrorKind, Event, Executor, Finish, FinishReason, ResponseHead,
    ToolCallPart, Usage,
};
use concentric_test::{
    Gate, ScriptedModel, TestEnvironment, assert_ends_early, assert_fails, assert_finishes,
    collect_events, shape,
};
use futures_util::{Stream, StreamExt};
use serde_json::json;
use std::time::Duration;
use tokio_test::{assert_pending, assert_ready, task};
use tower::ServiceExt;

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

fn broken() -> Error {
    Error::new(ErrorKind::Server, "it broke")
}

async fn finish(model: ScriptedModel) -> Finish {
    let response = model.oneshot(request()).await.expect("it answers");
    assert_finishes(response.body).await.1
}

#[tokio::test]
async fn a_response_finishes_by_default() {
    let text = ScriptedModel::new().text("a").usage(Usage::new(3, 4));
    let text = finish(text).await;
    assert_eq!(
        (text.reason, text.usage),
        (FinishReason::Stop, Usage::new(3, 4))
    );

    let call = ScriptedModel::new().tool_call("search", json!({}));
    assert_eq!(finish(call).await.reason, FinishReason::ToolCalls);

    let theirs = ToolCallPart::new(concentric_core::CallId::new("c"), "web", "{}")
        .executed_by(Executor::Provider);
    let theirs = ScriptedModel::new().event(Event::tool_call(theirs));
    assert_eq!(finish(theirs).await.reason, FinishReason::Stop);
}

#[tokio::test]
async fn a_response_finishes_with_the_given_finish() {
    let finish_as = Finish::new(FinishReason::Length, Usage::new(1, 2));
    let model = ScriptedModel::new().text("a").finish(finish_as.clone());
    assert_eq!(finish(model).await, finish_as);
}

#[tokio::test]
async fn an_error_before_content_fails_the_future() {
    let start = concentric_core::StepStart::new(0, concentric_core::MessageId::new("m"));
    let model = ScriptedModel::new()
        .event(Event::StepStart(Box::new(start)))
        .error(broken());
    let error = model.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!((model.live(), model.dropped()), (0, 0));
}

#[tokio::test]
async fn an_error_after_content_is_the_last_item() {
    let model = ScriptedModel::new().text("a").error(broken());
    let response = model.oneshot(request()).await.unwrap();
    let (events, error) = assert_fails(response.body).await;
    assert_eq!(
        (shape(&events).as_str(), error.kind()),
        ("text", ErrorKind::Server)
    );
}

#[tokio::test]
async fn a_response_without_terminal_item_ends_early_or_is_truncated() {
    let model = ScriptedModel::new()
        .text("a")
        .end_early()
        .then()
        .end_early();
    let response = model.clone().oneshot(request()).await.unwrap();
    assert_eq!(shape(&assert_ends_early(response.body).await), "text");
    let error = model.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn a_response_can_stay_pending_forever() {
    let model = ScriptedModel::new().text("a").never();
    let mut body = model.clone().oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    assert_pending!(task::spawn(body.next()).poll());
    drop(body);
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

#[tokio::test]
async fn the_future_resolves_when_content_is_ready() {
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("a");
    let mut call = task::spawn(model.oneshot(request()));
    assert_pending!(call.poll());
    assert!(!gate.is_open());
    gate.open();
    assert!(call.is_woken());
    let mut body = assert_ready!(call.poll()).unwrap().body;
    assert_ready!(task::spawn(body.next()).poll())
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_unary_response_succeeds_or_fails_as_a_whole() {
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .text("a")
        .wait(&gate)
        .text("b")
        .unary()
        .then()
        .text("a")
        .error(broken())
        .unary();
    let mut call = task::spawn(model.clone().oneshot(request()));
    assert_pending!(call.poll());
    gate.open();
    let body = assert_ready!(call.poll()).unwrap().body;
    assert_eq!(body.size_hint(), (3, Some(3)));
    assert_eq!(collect_events(body).await.len(), 3);
    model.oneshot(request()).await.unwrap_err();
}

#[tokio::test]
async fn a_response_sleeps_by_the_clock_of_the_run() {
    let test = TestEnvironment::new();
    let model = ScriptedModel::new().sleep(Duration::from_secs(9)).text("a");
    let mut call = task::spawn(model.oneshot(test.request("hi")));
    assert_pending!(call.poll());
    assert_eq!(test.clock().next_wake(), Some(Duration::from_secs(9)));
    test.advance(Duration::from_secs(8));
    assert!(!call.is_woken());
    test.advance(Duration::from_secs(1));
    assert!(call.is_woken());
    assert_ready!(call.poll()).unwrap();
}

#[tokio::test]
async fn an_exhausted_script_is_an_error() {
    let model = ScriptedModel::new().text("a").then();
    finish(model.clone()).await;
    assert_eq!(model.unused(), 0);
    let error = model.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(error.message(), "the script has no response for call 2");
    assert!(!error.is_retryable());
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_repeating_script_repeats_its_last_response() {
    let model = ScriptedModel::new().text("a").then().text("b").repeat();
    for expected in ["a", "b", "b", "b"] {
        let answer = model.clone().oneshot(request()).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_model_has_a_head_and_may_fail_readiness() {
    let mut head = ResponseHead::default();
    head.model = Some("small-1".into());
    let model = ScriptedModel::new().text("a").head(head.clone());
    assert_eq!(model.clone().oneshot(request()).await.unwrap().head, head);
    let model = model.unready(broken());
    model.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(model.calls(), 1);
}

#[test]
#[should_panic(expected = "the model was called 0 times, so there is no request 0")]
fn a_request_is_missing_before_the_first_call() {
    ScriptedModel::new().request(0);
}
