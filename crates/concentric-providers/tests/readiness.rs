//! Readiness: the instance that was ready is the one that is called, once, at once; for every
//! provider's layer.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use bytes::Bytes;
use common::*;
use concentric_core::{ChatRequest, ChatResponse, Error, ErrorKind, Event};
use concentric_providers::{AnthropicLayer, ApiKey};
use futures_util::Stream;
use http_body_util::Full;
use tower::{Layer, Service};
use tower_test::mock;

type Mock = mock::Mock<http::Request<Full<Bytes>>, http::Response<Script>>;
type Handle = mock::Handle<http::Request<Full<Bytes>>, http::Response<Script>>;

fn strict<L>(layer: &L) -> (tokio_test::task::Spawn<L::Service>, Handle)
where
    L: Layer<Mock>,
{
    let (mock, handle) = mock::pair();
    (tokio_test::task::spawn(layer.layer(mock)), handle)
}

fn anthropic() -> AnthropicLayer {
    AnthropicLayer::new("claude-test", ApiKey::new("key"))
}

/// What `anthropic` is to say `a` with.
const MESSAGE: &str = r#"{"type":"message","content":[{"type":"text","text":"a"}]}"#;

#[tokio::test]
async fn readiness_is_the_inner_services() {
    inner_readiness(&layer(), &(delta(r#"{"content":"a"}"#) + &finish("stop"))).await;
    inner_readiness(&anthropic(), MESSAGE).await;
}

async fn inner_readiness<L, B>(layer: &L, answer: &str)
where
    L: Layer<Mock>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error> + Unpin,
    B: Stream<Item = Result<Event, Error>>,
{
    let (mut service, mut handle) = strict(layer);
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
    reply.send_response(http::Response::new(Script::new([answer], End::Clean)));
    let Ok(response) = future.await else { panic!() };
    assert_eq!(response.text().await.unwrap(), "a");
}

#[tokio::test]
async fn a_failed_call_is_a_connection_error() {
    failed_call(&layer(), "openai").await;
    failed_call(&anthropic(), "anthropic").await;
}

async fn failed_call<L, B>(layer: &L, provider: &str)
where
    L: Layer<Mock>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error> + Unpin,
{
    let (mut service, mut handle) = strict(layer);
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );
    let future = service.call(ChatRequest::user("hi"));
    let (_, reply) = handle.next_request().await.unwrap();
    reply.send_error("unplugged");
    let Err(error) = future.await else { panic!() };
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert_eq!(error.provider(), Some(provider));
}

#[tokio::test]
async fn a_dropped_future_drops_the_call() {
    dropped_call(&layer()).await;
    dropped_call(&anthropic()).await;
}

async fn dropped_call<L>(layer: &L)
where
    L: Layer<Mock>,
    L::Service: Service<ChatRequest, Error = Error> + Unpin,
{
    let (mut service, mut handle) = strict(layer);
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
