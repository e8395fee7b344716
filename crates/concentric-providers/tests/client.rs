//! The default client, against real sockets.
#![cfg(feature = "client")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::*;
use concentric_core::{ChatRequest, ErrorKind};
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt};

fn model(url: &str) -> concentric_providers::openai::OpenAi<HttpClient> {
    let client = HttpClient::builder()
        .read_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    OpenAiLayer::compatible(url, "m", Some(ApiKey::new(CANARY))).layer(client)
}

async fn accept(listener: &TcpListener, answer: &str) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"}") {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0);
    }
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    (listener, url)
}

#[tokio::test]
async fn f022_a_redirect_is_not_followed() {
    let (listener, url) = listen().await;
    let (elsewhere, other) = listen().await;
    let answer = format!("HTTP/1.1 307 x\r\nlocation: {other}\r\ncontent-length: 0\r\n\r\n");
    let (result, _stream) = tokio::join!(
        model(&url).oneshot(ChatRequest::user("hi")),
        accept(&listener, &answer)
    );
    assert_eq!(result.unwrap_err().status(), Some(307));
    let visited = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
    assert!(visited.is_err());
}

#[tokio::test]
async fn f009_silence_is_a_timeout_and_a_broken_connection_is_one() {
    let head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n";
    let (listener, url) = listen().await;
    let answer = head.to_owned() + &delta(r#"{"content":"a"}"#);
    let (response, stream) = tokio::join!(
        model(&url).oneshot(ChatRequest::user("hi")),
        accept(&listener, &answer)
    );
    let error = response.unwrap().text().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    drop(stream);

    let (response, stream) = tokio::join!(
        model(&url).oneshot(ChatRequest::user("hi")),
        accept(&listener, &answer)
    );
    drop(stream);
    let error = response.unwrap().text().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
}

#[tokio::test]
async fn nobody_at_the_address_is_a_connection_error_without_the_address() {
    let (listener, url) = listen().await;
    drop(listener);
    let error = model(&format!("{url}?key={CANARY}"))
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.is_retryable());
    assert!(!format!("{error:?} {error}").contains(CANARY));
}

#[tokio::test]
async fn f012_dropping_the_body_closes_the_connection() {
    let (listener, url) = listen().await;
    let head =
        "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let event = delta(r#"{"content":"a"}"#);
    let answer = format!("{head}{:x}\r\n{event}\r\n", event.len());
    let (response, mut stream) = tokio::join!(
        model(&url).oneshot(ChatRequest::user("hi")),
        accept(&listener, &answer)
    );
    drop(response.unwrap());
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0]))
        .await
        .unwrap();
    assert!(matches!(read, Ok(0) | Err(_)));
}
