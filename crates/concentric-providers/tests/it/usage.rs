//! The tokens of responses that are not complete.

use crate::common::{CANARY, End, Http, Once, Script, delta, finish, layer, response};
use concentric_core::{ChatRequest, ModelUsage};
use concentric_providers::{ApiKey, OpenAiResponsesLayer};
use futures_util::StreamExt;
use serde_json::json;
use std::{convert::Infallible, future::pending};
use tower::{Layer, ServiceExt, service_fn};

/// A request of 40 bytes.
fn forty() -> ChatRequest {
    ChatRequest::user("a".repeat(40))
}

/// Reads `items` events of a response with `body`, and returns the recorded usage of the call.
async fn read(items: usize, body: &[String], end: End) -> Option<ModelUsage> {
    let script = Script::new(body.iter().map(String::as_str), end);
    let model = layer().layer(Once(Some(http::Response::new(script))));
    let request = forty();
    let context = request.context.clone();
    if let Ok(response) = model.oneshot(request).await {
        let _: Vec<_> = response.body.take(items).collect().await;
    }
    let usage = context.run_usage();
    assert!(usage.models().len() <= 1);
    usage.models().first().cloned()
}

fn tokens(of: &ModelUsage) -> (u64, Option<u64>, Option<u64>) {
    let usage = of.usage;
    (of.estimated, usage.input_tokens(), usage.output_tokens())
}

#[tokio::test]
async fn a_dropped_response_is_estimated_from_its_text() {
    let two = [
        delta(r#"{"content":"Hello, w"}"#),
        delta(r#"{"content":"orld"}"#),
    ];
    for (items, expected) in [(1, 2), (2, 3)] {
        let body = [two.concat()];
        let usage = read(items, &body, End::Silent).await.unwrap();
        assert_eq!(usage.provider.as_deref(), Some("openai"));
        assert!(usage.model.is_some());
        assert_eq!(
            (usage.calls, tokens(&usage)),
            (1, (1, Some(10), Some(expected)))
        );
    }
}

#[tokio::test]
async fn a_response_that_breaks_is_estimated_if_it_had_output() {
    let body = [delta(r#"{"content":"Hello"}"#)];
    let usage = read(9, &body, End::Broken).await.unwrap();
    assert_eq!(tokens(&usage), (1, Some(10), Some(2)));
    assert_eq!(read(9, &[], End::Broken).await, None);
}

#[tokio::test]
async fn a_complete_response_is_not_estimated() {
    let body = [delta(r#"{"content":"Hello"}"#), finish("stop")];
    let usage = read(9, &body, End::Clean).await.unwrap();
    assert_eq!((usage.calls, usage.estimated), (1, 0));
}

#[tokio::test]
async fn a_call_is_estimated_once_it_was_sent() {
    let http = service_fn(|_| pending::<Result<http::Response<Script>, Infallible>>());
    let request = forty();
    let context = request.context.clone();
    let mut call = tokio_test::task::spawn(layer().layer(http).oneshot(request));
    assert!(call.poll().is_pending());
    assert!(context.run_usage().models().is_empty());
    drop(call);
    let usage = context.run_usage();
    assert_eq!(tokens(&usage.models()[0]), (1, Some(10), Some(0)));
    assert_eq!(usage.models()[0].model.as_deref(), Some("gpt-test"));

    // A call that was not sent.
    let (request, http) = (forty(), Http::new(response(200, &[], "")));
    let context = request.context.clone();
    let mut model = layer().layer(http);
    drop(tower::Service::call(&mut model, request));
    assert!(context.run_usage().models().is_empty());
}

#[tokio::test]
async fn a_refused_call_has_no_usage() {
    let model = layer().layer(Http::new(response(429, &[], "{}")));
    let request = forty();
    let context = request.context.clone();
    model.oneshot(request).await.unwrap_err();
    assert!(context.run_usage().models().is_empty());
}

#[tokio::test]
async fn the_usage_of_a_failed_response_is_that_of_its_last_event() {
    let event = json!({"type": "response.failed", "response": {
        "id": "resp_1",
        "status": "failed",
        "error": {"code": "server_error", "message": "down"},
        "usage": {"input_tokens": 60, "output_tokens": 7, "total_tokens": 67},
    }});
    let body = format!("event: response.failed\ndata: {event}\n\n");
    let model = OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY));
    let model = model.layer(Http::new(response(
        200,
        &[("content-type", "text/event-stream")],
        &body,
    )));
    let request = forty();
    let context = request.context.clone();
    model.oneshot(request).await.unwrap_err();
    let usage = context.run_usage();
    assert_eq!(tokens(&usage.models()[0]), (0, Some(60), Some(7)));
}
