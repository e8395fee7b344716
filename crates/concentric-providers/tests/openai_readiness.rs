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
use concentric_core::{ChatRequest, ChatResponse, Error, ErrorKind, Event};
use concentric_providers::{ApiKey, OllamaLayer, OpenAiLayer};
use futures_util::Stream;
use http_body_util::Full;
use tower::{Layer, Service};
use tower_test::mock;

type Mock = mock::Mock<http::Request<Full<Bytes>>, http::Response<Script>>;
type Handle = mock::Handle<http::Request<Full<Bytes>>, http::Response<Script>>;

fn openai() -> OpenAiLayer {
    OpenAiLayer::new("gpt-test", ApiKey::new("key"))
}

fn strict<L: Layer<Mock>>(layer: &L) -> (tokio_test::task::Spawn<L::Service>, Handle) {
    let (mock, handle) = mock::pair();
    (tokio_test::task::spawn(layer.layer(mock)), handle)
}

#[tokio::test]
async fn readiness_is_the_inner_services() {
    ready(&openai(), delta(r#"{"content":"a"}"#) + &finish("stop")).await;
    let line = r#"{"message":{"content":"a"},"done":true}"#;
    ready(&OllamaLayer::new("m"), line.to_owned()).await;
}

async fn ready<L, B>(layer: &L, answer: String)
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
    let future = service.enter(|_, mut service| service.call(ChatRequest::user("hi")));
    let (request, reply) = handle.next_request().await.unwrap();
    assert_eq!(request.method(), http::Method::POST);
    reply.send_response(http::Response::new(Script::new([answer], End::Clean)));
    assert_eq!(future.await.unwrap().text().await.unwrap(), "a");
}

#[tokio::test]
async fn a_failed_call_is_a_connection_error() {
    failed(&openai(), "openai").await;
    failed(&OllamaLayer::new("m"), "ollama").await;
}

async fn failed<L, B>(layer: &L, provider: &str)
where
    L: Layer<Mock>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error> + Unpin,
    B: Stream<Item = Result<Event, Error>>,
{
    let (mut service, mut handle) = strict(layer);
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );
    let future = service.enter(|_, mut service| service.call(ChatRequest::user("hi")));
    let (_, reply) = handle.next_request().await.unwrap();
    reply.send_error("unplugged");
    let error = future.await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert_eq!(error.provider(), Some(provider));
}

#[tokio::test]
async fn a_dropped_future_drops_the_call() {
    dropped(&openai()).await;
    dropped(&OllamaLayer::new("m")).await;
}

async fn dropped<L, B>(layer: &L)
where
    L: Layer<Mock>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error> + Unpin,
    B: Stream<Item = Result<Event, Error>>,
{
    let (mut service, mut handle) = strict(layer);
    handle.allow(1);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_ready()
    );
    let future = service.enter(|_, mut service| service.call(ChatRequest::user("hi")));
    let (_, reply) = handle.next_request().await.unwrap();
    drop(future);
    reply.send_response(http::Response::new(Script::new([""], End::Clean)));
}
