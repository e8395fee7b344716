//! Readiness: the instance that was ready is the one that is called, once, at once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use bytes::Bytes;
use common::*;
use concentric_core::{ChatRequest, ErrorKind};
use concentric_providers::{ApiKey, OpenAiLayer};
use http_body_util::Full;
use tower::{Layer, Service};
use tower_test::mock;

type Mock = mock::Mock<http::Request<Full<Bytes>>, http::Response<Script>>;
type Handle = mock::Handle<http::Request<Full<Bytes>>, http::Response<Script>>;

fn strict() -> (
    tokio_test::task::Spawn<concentric_providers::openai::OpenAi<Mock>>,
    Handle,
) {
    let (mock, handle) = mock::pair();
    let layer = OpenAiLayer::new("gpt-test", ApiKey::new("key"));
    (tokio_test::task::spawn(layer.layer(mock)), handle)
}

#[tokio::test]
async fn readiness_is_the_inner_services() {
    let (mut service, mut handle) = strict();
    handle.allow(0);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_pending()
    );
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );

    // Called at once: before the future is polled.
    let future = service.call(ChatRequest::user("hi"));
    let (request, reply) = handle.next_request().await.unwrap();
    assert_eq!(request.method(), http::Method::POST);
    reply.send_response(http::Response::new(Script::new(
        [delta(r#"{"content":"a"}"#) + &finish("stop")],
        End::Clean,
    )));
    assert_eq!(future.await.unwrap().text().await.unwrap(), "a");
}

#[tokio::test]
async fn a_failed_call_is_a_connection_error() {
    let (mut service, mut handle) = strict();
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );
    let future = service.call(ChatRequest::user("hi"));
    let (_, reply) = handle.next_request().await.unwrap();
    reply.send_error("unplugged");
    let error = future.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert_eq!(error.provider(), Some("openai"));
}

#[tokio::test]
async fn a_dropped_future_drops_the_call() {
    let (mut service, mut handle) = strict();
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );
    let future = service.call(ChatRequest::user("hi"));
    let (_, reply) = handle.next_request().await.unwrap();
    drop(future);
    reply.send_response(http::Response::new(Script::new([""], End::Clean)));
}
