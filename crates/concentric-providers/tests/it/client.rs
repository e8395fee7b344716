//! The default client with real sockets.

use crate::common::*;
use bytes::Bytes;
use concentric_core::{ChatRequest, ErrorKind};
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer, Timeouts, client::Body};
use http_body::{Body as _, Frame};
use http_body_util::Full;
use std::{future::poll_fn, pin::Pin, process::Output, task::Poll, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt};

fn model(url: &str) -> <OpenAiLayer as Layer<HttpClient>>::Service {
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
async fn a_redirect_is_not_followed() {
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
async fn silence_is_a_timeout_and_a_broken_connection_an_error() {
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

    // The request was sent, so it may have been received.
    let (response, ()) = tokio::join!(model(&url).oneshot(ChatRequest::user("hi")), async {
        drop(accept(&listener, "").await);
    });
    let error = response.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Connection, None));
}

#[tokio::test]
async fn a_refused_connection_is_an_error_without_the_url() {
    let (listener, url) = listen().await;
    drop(listener);
    let error = model(&format!("{url}?key={CANARY}"))
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Connection, Some("not_connected"))
    );
    assert!(error.is_retryable());
    assert!(!format!("{error:?} {error}").contains(CANARY));
}

#[tokio::test]
async fn dropping_the_body_closes_the_connection() {
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

/// Sends a request to `listener`, and reads it there. Returns the body and the server's connection.
async fn streamed(listener: &TcpListener, url: &str, answer: &str) -> (Body, TcpStream) {
    streamed_to(HttpClient::new().unwrap(), listener, url, answer).await
}

async fn streamed_to(
    client: HttpClient,
    listener: &TcpListener,
    url: &str,
    answer: &str,
) -> (Body, TcpStream) {
    let request = http::Request::post(url).body(Full::from("{}")).unwrap();
    let (response, stream) = tokio::join!(client.oneshot(request), accept(listener, answer));
    (response.unwrap().into_body(), stream)
}

fn chunked(chunks: impl IntoIterator<Item = String>) -> String {
    let chunks = chunks.into_iter();
    let chunks = chunks.map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    chunks.collect()
}

fn text(frame: Frame<Bytes>) -> String {
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

const CHUNKED: &str = "HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn a_few_chunks_that_are_ready_together_wake_the_reader_once() {
    let (listener, url) = listen().await;
    let (mut body, mut server) = streamed(&listener, &url, CHUNKED).await;
    let texts = [0..30, 30..60, 60..160].map(|numbers| numbers.map(|i| format!("chunk {i};")));
    let [first, second, third] = texts.clone().map(|texts| texts.collect::<String>());
    let mut sent = texts.map(chunked);
    sent[2] += "0\r\n\r\n";
    tokio::spawn(async move {
        for sent in sent {
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.write_all(sent.as_bytes()).await.unwrap();
        }
    });
    let mut reads = vec![String::new()];
    poll_fn(|cx| {
        while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(cx) {
            match frame {
                Some(frame) => *reads.last_mut().unwrap() += &text(frame.unwrap()),
                None => return Poll::Ready(()),
            }
        }
        reads.push(String::new());
        Poll::Pending
    })
    .await;
    assert_eq!(reads[..3], ["".to_owned(), first, second]);
    // The first ones of many are read before the last ones are.
    assert!(reads.len() > 4, "{reads:?}");
    assert_eq!(reads[3..].concat(), third);
}

/// On a runtime where each poll of the connection comes 10 ms after the last one.
#[test]
fn a_busy_runtime_is_not_a_silent_server() {
    const COUNT: usize = 80;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().event_interval(1).build().unwrap();
    let (mut body, mut server) = runtime.block_on(async {
        let (listener, url) = listen().await;
        let client = HttpClient::builder().read_timeout(Duration::from_millis(200));
        streamed_to(client.build().unwrap(), &listener, &url, CHUNKED).await
    });
    runtime.spawn(async {
        loop {
            std::thread::sleep(Duration::from_millis(10));
            tokio::task::yield_now().await;
        }
    });
    let sent = chunked((0..COUNT).map(|_| "chunk".to_owned()));
    let read = runtime.block_on(async {
        server.write_all(sent.as_bytes()).await.unwrap();
        let mut read = String::new();
        while read.len() < COUNT * "chunk".len() {
            let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            read += &text(frame.unwrap().unwrap());
        }
        read
    });
    assert_eq!(read, "chunk".repeat(COUNT));
}

/// On a runtime that was blocked for longer than the limit, while the answer arrived.
#[tokio::test]
async fn what_has_arrived_is_read_though_its_time_is_over() {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let (listener, url) = listen().await;
    let event = delta(r#"{"content":"a"}"#);
    let head =
        "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let first = head.to_owned() + &chunked([event.clone()]);
    let rest = chunked([event, finish("stop"), "data: [DONE]\n\n".to_owned()]);
    for (read_timeout, timeouts) in [
        (TIMEOUT, Timeouts::off()),
        (Duration::MAX, Timeouts::off().idle(TIMEOUT)),
    ] {
        let client = HttpClient::builder().read_timeout(read_timeout);
        let layer = OpenAiLayer::compatible(&url, "m", None).timeouts(timeouts);
        let model = layer.layer(client.build().unwrap());
        let (response, mut server) = tokio::join!(
            tokio::spawn(model.oneshot(ChatRequest::user("hi"))),
            accept(&listener, &first)
        );
        let text = tokio::spawn(response.unwrap().unwrap().text());
        // The reader waits when the rest arrives.
        tokio::time::sleep(TIMEOUT / 10).await;
        server.write_all(rest.as_bytes()).await.unwrap();
        std::thread::sleep(TIMEOUT * 2);
        assert_eq!(text.await.unwrap().unwrap(), "aa");
    }
}

#[tokio::test]
async fn a_body_that_is_not_read_holds_the_server_back() {
    const CHUNK: usize = 16 << 10;
    const CHUNKS: usize = 4096;
    let (listener, url) = listen().await;
    let (mut body, mut server) = streamed(&listener, &url, CHUNKED).await;
    let mut sent = tokio::spawn(async move {
        let chunk = chunked(["x".repeat(CHUNK)]);
        for _ in 0..CHUNKS {
            server.write_all(chunk.as_bytes()).await.unwrap();
        }
        server
            .write_all(b"0\r\nx-count: 4096\r\n\r\n")
            .await
            .unwrap();
        server
    });
    // The sockets hold a few MiB of the 64.
    let early = tokio::time::timeout(Duration::from_millis(500), &mut sent).await;
    assert!(early.is_err(), "all was read ahead");
    let (mut read, mut trailers) = (0, None);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(data) => read += data.len(),
            Err(last) => trailers = last.into_trailers().ok(),
        }
    }
    assert_eq!(read, CHUNK * CHUNKS);
    assert_eq!(trailers.unwrap()["x-count"], "4096");
    assert!(body.is_end_stream());
    sent.await.unwrap();
}

#[tokio::test]
async fn what_arrived_before_a_broken_connection_is_read() {
    let (listener, url) = listen().await;
    let (mut body, mut server) = streamed(&listener, &url, CHUNKED).await;
    let sent = chunked(["a".to_owned(), "b".to_owned()]) + "5\r\ncd";
    server.write_all(sent.as_bytes()).await.unwrap();
    drop(server);
    let mut read = String::new();
    let error = loop {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => read += &text(frame),
            Some(Err(error)) => break error,
            None => panic!("the end is not an error: {read}"),
        }
    };
    assert_eq!(
        (read.as_str(), error.kind()),
        ("abcd", ErrorKind::Connection)
    );
    assert!(
        poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
            .await
            .is_none()
    );
}

#[test]
fn a_body_whose_runtime_has_ended_is_an_error() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let first = runtime();
    let (mut body, server) = first.block_on(async {
        let (listener, url) = listen().await;
        streamed(&listener, &url, CHUNKED).await
    });
    drop(first);
    let frame = runtime().block_on(async {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        tokio::time::timeout(Duration::from_secs(5), frame)
            .await
            .unwrap()
    });
    assert_eq!(frame.unwrap().unwrap_err().kind(), ErrorKind::Connection);
    drop(server);
}

#[tokio::test]
async fn user_information_is_not_sent() {
    let (listener, url) = listen().await;
    let url = url.replace("http://", &format!("http://name:{CANARY}@"));
    let client = HttpClient::new().unwrap();
    let request = http::Request::post(format!("{url}/chat"));
    let request = request.body(Full::from("{}")).unwrap();
    let (answer, read) = tokio::join!(client.oneshot(request), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"}") {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0);
        }
        String::from_utf8(read).unwrap()
    });
    assert!(answer.is_err());
    assert!(read.starts_with("POST "), "{read}");
    assert!(!read.contains(CANARY) && !read.contains("name:"), "{read}");
}

#[tokio::test]
async fn a_connection_is_reused() {
    let body = delta(r#"{"content":"a"}"#) + &finish("stop") + DONE;
    let stream = chunked([body.clone()]) + "0\r\n\r\n";
    let (length, chunked) = (
        format!("content-length: {}", body.len()),
        "transfer-encoding: chunked",
    );
    for (header, body) in [(length.as_str(), body), (chunked, stream)] {
        let answer = format!("HTTP/1.1 200 x\r\n{header}\r\n\r\n{body}");
        let (listener, url) = listen().await;
        let client = HttpClient::new().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..2 {
                let mut read = Vec::new();
                while !read.ends_with(b"}") {
                    assert!(stream.read_buf(&mut read).await.unwrap() > 0);
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        for _ in 0..2 {
            let model = OpenAiLayer::compatible(url.clone(), "m", None).layer(client.clone());
            let answer = model.oneshot(ChatRequest::user("hi")).await.unwrap();
            assert_eq!(answer.text().await.unwrap(), "a");
            // A background task returns the connection to the pool.
            tokio::task::yield_now().await;
        }
        server.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_read_whole_at_any_pace() {
    const CHUNKS: usize = 2000;
    // Each pauses after so many chunks.
    let paces = [(1000, 7), (7, 1000), (13, 11), (CHUNKS, 1)];
    let readers = paces.map(|(sent, read)| async move {
        let (listener, url) = listen().await;
        let (mut body, mut server) = streamed(&listener, &url, CHUNKED).await;
        tokio::spawn(async move {
            for i in 0..CHUNKS {
                let chunk = chunked([format!("{i};") + &"x".repeat(i % 300)]);
                server.write_all(chunk.as_bytes()).await.unwrap();
                if i % sent == sent - 1 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            server.write_all(b"0\r\n\r\n").await.unwrap();
        });
        let (mut all, mut frames) = (String::new(), 0);
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            all += &text(frame.unwrap());
            frames += 1;
            if frames % read == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let expected: String = (0..CHUNKS)
            .map(|i| format!("{i};") + &"x".repeat(i % 300))
            .collect();
        assert!(all == expected, "{} of {} bytes", all.len(), expected.len());
    });
    let all = futures_util::future::join_all(readers.map(tokio::spawn));
    let all = tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .unwrap();
    all.into_iter().for_each(Result::unwrap);
}

/// The URL and the proxy setting for a child process.
const URL: &str = "CONCENTRIC_CLIENT_URL";
const PROXIES: &str = "CONCENTRIC_CLIENT_PROXIES";

/// Calls with the proxies from this process's environment; only runs in a child process.
#[tokio::test]
async fn one_call_with_proxies_from_the_environment() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut client = HttpClient::builder().connect_timeout(Duration::from_secs(20));
    if std::env::var(PROXIES).is_ok() {
        client = client.proxy_from_env(false);
    }
    let layer = OpenAiLayer::compatible(url, "m", Some(ApiKey::new(CANARY)));
    let model = layer.layer(client.build().unwrap());
    let error = model.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    println!("{:?}: {error:#} {error:?}", error.kind());
}

/// Runs that test in a child process with this environment.
async fn in_process(environment: &[(&str, &str)]) -> Output {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "client::one_call_with_proxies_from_the_environment",
        "--nocapture",
    ]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(environment.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// Reads the head of a request, and closes the connection.
async fn head(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut read = Vec::new();
    while !read.windows(4).any(|four| four == b"\r\n\r\n") {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0);
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn proxies_come_from_the_environment_unless_disabled() {
    let (proxy, _) = listen().await;
    let (service, url) = listen().await;
    let at = format!("http://me:{CANARY}@{}", proxy.local_addr().unwrap());
    let auth = "proxy-authorization: Basic bWU6";

    // Without TLS, the proxy receives the call.
    let environment = [(URL, url.as_str()), ("HTTP_PROXY", &at)];
    let (output, read) = tokio::join!(in_process(&environment), head(&proxy));
    assert!(
        read.starts_with(&format!("POST {url}/chat/completions HTTP/1.1")),
        "{read}"
    );
    assert!(read.contains(auth), "{read}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("Connection") && !stdout.contains(CANARY),
        "{stdout}"
    );

    // With TLS, the proxy is asked for a tunnel, and sees nothing else.
    let environment = [(URL, "https://a.invalid/v1"), ("https_proxy", &at)];
    let (output, read) = tokio::join!(in_process(&environment), head(&proxy));
    assert!(read.starts_with("CONNECT a.invalid:443 HTTP/1.1"), "{read}");
    assert!(read.to_lowercase().contains(&auth.to_lowercase()), "{read}");
    assert!(!read.contains("/v1") && !read.contains("Bearer"), "{read}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("Connection") && !stdout.contains(CANARY),
        "{stdout}"
    );

    // The service is called directly if the environment or the builder disables proxies.
    for more in [("NO_PROXY", "127.0.0.1"), (PROXIES, "off")] {
        let environment = [(URL, url.as_str()), ("ALL_PROXY", &at), more];
        let (_, read) = tokio::join!(in_process(&environment), head(&service));
        assert!(
            read.starts_with("POST /v1/chat/completions HTTP/1.1"),
            "{read}"
        );
    }

    let socks = at.replace("http://", "socks5://");
    let output = in_process(&[(URL, &url), ("ALL_PROXY", &socks)]).await;
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("Configuration") && !stdout.contains(CANARY),
        "{stdout}"
    );
}
