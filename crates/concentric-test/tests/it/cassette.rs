//! Recording and replaying HTTP traffic.

use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, ChatRequest, Error, ErrorKind, Event};
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use concentric_test::{
    ScriptedTools, TestEnvironment,
    cassette::{RecordLayer, Redaction, ReplayLayer},
    collect_events, shape, text_of,
};
use futures_util::StreamExt;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

/// A directory that is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("concentric-cassette-test-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("c.jsonl")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Pieces = Vec<Result<Bytes, std::io::Error>>;

/// A service that returns the given responses, one after another.
fn answers(
    answers: Vec<Pieces>,
) -> impl Service<
    http::Request<Full<Bytes>>,
    Response = http::Response<impl Body<Data = Bytes, Error = std::io::Error> + Unpin>,
    Error = Infallible,
    Future: Send,
> + Clone {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    service_fn(move |_: http::Request<Full<Bytes>>| {
        let pieces = answers.lock().unwrap().pop_front().unwrap();
        let frames = pieces.into_iter().map(|piece| piece.map(Frame::data));
        let body = StreamBody::new(futures_util::stream::iter(frames));
        std::future::ready(Ok(http::Response::new(body)))
    })
}

fn pieces<const N: usize>(pieces: [&str; N]) -> Pieces {
    let pieces = pieces.into_iter();
    pieces
        .map(|piece| Ok(Bytes::copy_from_slice(piece.as_bytes())))
        .collect()
}

fn post(uri: &str, body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    http::Request::post(uri)
        .body(Full::new(body.into()))
        .unwrap()
}

async fn record(path: &Path, uri_and_body: Vec<(&str, Value)>, given: Vec<Pieces>) {
    let layer = RecordLayer::new(path);
    let service = layer.layer(answers(given));
    for (uri, body) in uri_and_body {
        let response = service
            .clone()
            .oneshot(post(uri, body.to_string()))
            .await
            .unwrap();
        response.into_body().collect().await.unwrap();
    }
    layer.save().unwrap();
}

async fn ask(replay: &ReplayLayer, uri: &str, body: Value) -> Result<String, Error> {
    let response = replay
        .layer(())
        .oneshot(post(uri, body.to_string()))
        .await?;
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().skip(1);
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

// ---- an agent ----

fn says(delta: &str, reason: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
    )
}

/// An HTTP server on a socket that returns the given bodies, chunk by chunk.
async fn server(bodies: Vec<Vec<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for body in bodies {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            // The request ends with its body, which is one JSON object.
            while serde_json::from_slice::<Value>(
                read.windows(4)
                    .position(|w| w == b"\r\n\r\n")
                    .map_or(&[][..], |end| &read[end + 4..]),
            )
            .is_err()
            {
                assert!(stream.read_buf(&mut read).await.unwrap() > 0);
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                        x-request-id: req_1\r\nset-cookie: canary-cookie-1\r\n\
                        connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            for chunk in body {
                let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
                stream.write_all(chunk.as_bytes()).await.unwrap();
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    url
}

/// Runs an agent on a question that needs a tool.
async fn run(model: BoxModel) -> String {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "It is 42."),
        ))
        .service(model);
    let request = TestEnvironment::new().request("canary-named-1, what is it?");
    let response = agent.oneshot(request).await.unwrap();
    let events = collect_events(response.body).await;
    let events: Vec<Event> = events.into_iter().map(Result::unwrap).collect();
    assert!(events.last().unwrap().is_finish());
    shape(&events) + &text_of(&events)
}

#[tokio::test]
async fn an_agent_is_recorded_and_replayed() {
    let dir = Dir::new();
    let path = dir.file();
    let call = r#"{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"search","arguments":"{\"api_key\": \"canary-field-1\"}"}}]}"#;
    let url = server(vec![
        vec![
            says(r#"{"content":"Let me "}"#, "null"),
            says(r#"{"content":"look."}"#, "null")
                + &says(call, "null")
                + &says("{}", "\"tool_calls\"")
                + "data: [DONE]\n\n",
        ],
        vec![
            says(
                r#"{"content":"42, and your key is sk-canary-0123456789."}"#,
                "null",
            ),
            says("{}", "\"stop\""),
            "data: [DONE]\n\n".to_owned(),
        ],
    ])
    .await;

    let redaction = Redaction::default().value("canary-named-1");
    let recorder = RecordLayer::new(&path).redaction(redaction.clone());
    let provider = |key: &'static str| {
        OpenAiLayer::compatible(
            format!("{url}?token=canary-query-1"),
            "gpt-test",
            Some(ApiKey::new(key)),
        )
        .header("x-tenant-key", "canary-header-1")
    };
    let model = ServiceBuilder::new()
        .layer(provider("canary-key-1"))
        .layer(recorder.clone())
        .service(HttpClient::new().unwrap());
    let first = run(BoxModel::new(model)).await;
    recorder.save().unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    for canary in ["canary-", "sk-canary"] {
        assert!(!text.contains(canary), "{canary}: {text}");
    }
    let lines = lines(&path);
    assert_eq!(lines.len(), 2);
    // The model does not read beyond `[DONE]`; the end may or may not have arrived by then.
    assert!(lines[0]["end"] == "finished" || lines[0]["end"] == "dropped");
    assert_eq!(lines[0]["response"]["headers"]["x-request-id"], "req_1");
    assert_eq!(lines[0]["request"]["path"], "/v1/chat/completions");
    assert!(lines[0]["response"].get("times").is_none());
    // Only the cassette is left.
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1);

    let replay = ReplayLayer::load(&path).unwrap().redaction(redaction);
    let model = ServiceBuilder::new()
        .layer(provider("another"))
        .layer(replay.clone())
        .service(());
    let second = run(BoxModel::new(model)).await;
    assert_eq!(second, first.replace("sk-canary-0123456789.", "[REDACTED]"));
    assert_eq!(replay.unused(), 0);
}

// ---- recording ----

#[tokio::test]
async fn chunks_are_passed_on_and_recorded_unchanged() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file()).times();
    // A character that is split over two chunks.
    let given: Pieces = [&b"a\xc3"[..], b"\xa4b", b"c"]
        .into_iter()
        .map(|piece| Ok(Bytes::from_static(piece)))
        .collect();
    let mut service = layer.layer(answers(vec![given]));
    let response = service
        .ready()
        .await
        .unwrap()
        .call(post("/p", "x"))
        .await
        .unwrap();
    let body = response.into_body();
    let read: Vec<Bytes> = body.into_data_stream().map(Result::unwrap).collect().await;
    assert_eq!(read, [&b"a\xc3"[..], b"\xa4b", b"c"]);
    layer.save().unwrap();
    let line = &lines(&dir.file())[0];
    assert_eq!(line["request"]["body"], json!({"text": "x"}));
    assert_eq!(line["response"]["body"], json!({"text": "aäbc"}));
    assert_eq!(line["response"]["cuts"], json!([2, 4, 5]));
    assert_eq!(line["response"]["times"].as_array().unwrap().len(), 3);

    let replay = ReplayLayer::load(dir.file()).unwrap();
    let response = replay.layer(()).oneshot(post("/p", "x")).await.unwrap();
    let body = response.into_body();
    let again: Vec<Bytes> = body.into_data_stream().map(Result::unwrap).collect().await;
    assert_eq!(again, read);
}

#[tokio::test]
async fn a_secret_in_two_chunks_is_removed() {
    let dir = Dir::new();
    let given = vec![pieces(["key: sk-canary", "-0123456789", " end"])];
    record(&dir.file(), vec![("/p", json!({}))], given).await;
    let text = std::fs::read_to_string(dir.file()).unwrap();
    assert!(!text.contains("canary") && !text.contains("0123456789"));
    let replay = ReplayLayer::load(dir.file()).unwrap();
    let again = ask(&replay, "/p", json!({})).await.unwrap();
    assert_eq!(again, "key: [REDACTED] end");
}

#[tokio::test]
async fn a_header_key_repeated_in_the_body_is_removed() {
    let dir = Dir::new();
    let key = "0123456789abcdef0123456789abcdef";
    let asked = |name: &str, value: &str, key: &str| {
        let request = http::Request::post("/p").header(name, value);
        request.body(Full::from(json!({ "key": key }).to_string()))
    };
    let bearer = format!("Bearer {key}");
    for (name, value) in [("api-key", key), ("authorization", &bearer)] {
        let layer = RecordLayer::new(dir.file());
        let wrong = pieces(["wrong key ", key, "!"]);
        let request = asked(name, value, key).unwrap();
        let response = layer.layer(answers(vec![wrong])).oneshot(request).await;
        response.unwrap().into_body().collect().await.unwrap();
        layer.save().unwrap();
        assert!(!std::fs::read_to_string(dir.file()).unwrap().contains(key));

        // The key of the test does not matter.
        let replay = ReplayLayer::load(dir.file()).unwrap();
        let other = "another key of another length";
        let request = asked(name, other, other).unwrap();
        let response = replay.layer(()).oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "wrong key [REDACTED]!");
    }
}

#[tokio::test]
async fn binary_bodies_are_unchanged() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file());
    let bytes: Vec<u8> = (0..=255).collect();
    let service = layer.layer(answers(vec![vec![Ok(bytes.clone().into())]]));
    let response = service.oneshot(post("/p", bytes.clone())).await.unwrap();
    response.into_body().collect().await.unwrap();
    let replay = ReplayLayer::load(dir.file()).unwrap();
    let response = replay
        .layer(())
        .oneshot(post("/p", bytes.clone()))
        .await
        .unwrap();
    let again = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(again, bytes);
}

#[tokio::test]
async fn a_dropped_call_is_recorded_as_dropped() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file());
    let service = layer.layer(answers(vec![pieces(["a", "b"]), pieces(["c"])]));
    let response = service.clone().oneshot(post("/p", "1")).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    // Also before the response head.
    drop(service.clone().oneshot(post("/p", "2")));
    let mut service = service;
    drop(service.ready().await.unwrap().call(post("/p", "3")));
    let lines = lines(&dir.file());
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["end"], "dropped");
    assert_eq!(lines[0]["response"]["body"], json!({"text": "a"}));
    assert_eq!(lines[1]["end"], "dropped");
    assert!(lines[1].get("response").is_none());

    let replay = ReplayLayer::load(dir.file()).unwrap();
    let response = replay.layer(()).oneshot(post("/p", "1")).await.unwrap();
    let mut body = response.into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "a"
    );
    let error = body.frame().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some("recording_ended"));
    assert!(body.frame().await.is_none());
    let error = replay.layer(()).oneshot(post("/p", "3")).await.unwrap_err();
    assert_eq!(error.code(), Some("recording_ended"));
}

#[tokio::test]
async fn failures_are_recorded_and_replayed() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file());
    let broken: Pieces = vec![
        Ok("a".into()),
        Err(std::io::ErrorKind::ConnectionReset.into()),
    ];
    let response = layer
        .layer(answers(vec![broken]))
        .oneshot(post("/p", "1"))
        .await
        .unwrap();
    response.into_body().collect().await.unwrap_err();
    let fails = service_fn(|_: http::Request<Full<Bytes>>| {
        let error = Error::new(ErrorKind::Timeout, "no answer for sk-canary-0123456789");
        std::future::ready(Err::<http::Response<Full<Bytes>>, _>(error))
    });
    layer
        .layer(fails)
        .oneshot(post("/p", "2"))
        .await
        .unwrap_err();

    let replay = ReplayLayer::load(dir.file()).unwrap();
    let response = replay.layer(()).oneshot(post("/p", "1")).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    let error = replay.layer(()).oneshot(post("/p", "2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.message(), "no answer for [REDACTED]");
}

#[tokio::test]
async fn a_compressed_body_is_not_recorded() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file());
    let zipped = service_fn(|_: http::Request<Full<Bytes>>| {
        let response = http::Response::builder().header("content-encoding", "gzip");
        let response = response.body(Full::from("canary")).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let response = layer.layer(zipped).oneshot(post("/p", "1")).await.unwrap();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(bytes, "canary");
    let request = http::Request::post("/2")
        .header("content-encoding", "gzip")
        .body(Full::from("canary"));
    let response = layer.layer(zipped).oneshot(request.unwrap()).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert!(
        !std::fs::read_to_string(dir.file())
            .unwrap()
            .contains("canary")
    );
    let replay = ReplayLayer::load(dir.file()).unwrap();
    let error = ask(&replay, "/p", json!(1)).await.unwrap_err();
    assert_eq!(error.code(), Some("recording_ended"));
}

#[tokio::test]
async fn calls_are_recorded_in_call_order() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file());
    let service = layer.layer(answers(vec![pieces(["1"]), pieces(["2"])]));
    let first = service.clone().oneshot(post("/1", "")).await.unwrap();
    let second = service.clone().oneshot(post("/2", "")).await.unwrap();
    second.into_body().collect().await.unwrap();
    // The call in progress is not in the file yet.
    assert_eq!(lines(&dir.file()).len(), 1);
    first.into_body().collect().await.unwrap();
    let paths: Vec<_> = lines(&dir.file())
        .iter()
        .map(|line| line["request"]["path"].clone())
        .collect();
    assert_eq!(paths, ["/1", "/2"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_fails_no_call() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.0.join("nowhere").join("c.jsonl"));
    let service = layer.layer(answers(vec![pieces(["1"])]));
    let response = service.oneshot(post("/1", "")).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(
        layer.save().unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

// ---- replaying ----

#[tokio::test]
async fn requests_match_by_value() {
    let dir = Dir::new();
    let asked = vec![("https://a.test/p?b=2&a=1", json!({"x": 1, "y": [2.0]}))];
    record(&dir.file(), asked, vec![pieces(["yes"])]).await;
    let replay = ReplayLayer::load(dir.file()).unwrap();
    let request = http::Request::post("https://b.test/p?a=1&b=2")
        .header("authorization", "Bearer other")
        .body(Full::from("{ \"y\": [2], \"x\": 1.0 }"))
        .unwrap();
    let response = replay.layer(()).oneshot(request).await.unwrap();
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "yes"
    );
}

#[tokio::test]
async fn equal_requests_are_answered_in_order_and_once() {
    let dir = Dir::new();
    let given = ["1", "2"].map(|answer| pieces([answer])).into();
    record(&dir.file(), vec![("/p", json!(0)), ("/p", json!(0))], given).await;
    let replay = ReplayLayer::load(dir.file()).unwrap();
    assert_eq!(replay.unused(), 2);
    assert_eq!(ask(&replay, "/p", json!(0)).await.unwrap(), "1");
    assert_eq!(ask(&replay, "/p", json!(0)).await.unwrap(), "2");
    assert_eq!(replay.unused(), 0);
    let error = ask(&replay, "/p", json!(0)).await.unwrap_err();
    assert_eq!(error.code(), Some("no_recording"));
    assert!(
        error.message().contains("are used, the last in line 3"),
        "{error}"
    );

    let replay = ReplayLayer::load(dir.file()).unwrap().reuse();
    for expected in ["1", "2", "2", "2"] {
        assert_eq!(ask(&replay, "/p", json!(0)).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_miss_reports_the_first_difference_to_the_nearest_recording() {
    let dir = Dir::new();
    let chat = |text: &str| json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    let asked = vec![
        ("/v1/embeddings", json!({"input": "x"})),
        ("/v1/chat", chat("hi")),
    ];
    record(&dir.file(), asked, vec![pieces(["1"]), pieces(["2"])]).await;
    let replay = ReplayLayer::load(dir.file()).unwrap();
    let error = ask(&replay, "/v1/chat", chat("ho")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(!error.is_retryable());
    assert_eq!(
        error.message(),
        "no recording matches POST /v1/chat: the nearest recording, in line 3, first differs at \
         /body/messages/0/content (1 of 1): recorded \"hi\", received \"ho\""
    );
    let error = ask(&replay, "/v1/chat", chat(&"x".repeat(5000)))
        .await
        .unwrap_err();
    assert!(error.message().len() < 500);
    // No recording was used.
    assert_eq!(replay.unused(), 2);

    // A model passes the error on.
    let model = OpenAiLayer::new("gpt-test", ApiKey::new("k")).layer(replay.layer(()));
    let error = model.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(error.code(), Some("no_recording"));
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn changing_parts_of_requests_can_be_ignored() {
    let dir = Dir::new();
    let body =
        |id: u32| json!({"metadata": {"run": id}, "messages": [{"id": id, "content": "hi"}]});
    record(
        &dir.file(),
        vec![("/p?v=1", body(1))],
        vec![pieces(["yes"])],
    )
    .await;
    let replay = ReplayLayer::load(dir.file()).unwrap();
    assert!(ask(&replay, "/p?v=2", body(2)).await.is_err());
    let replay = replay
        .ignore("/query/v")
        .ignore("/body/metadata/run")
        .ignore("/body/messages/*/id");
    assert_eq!(ask(&replay, "/p?v=2", body(2)).await.unwrap(), "yes");
}

#[tokio::test(start_paused = true)]
async fn chunks_are_replayed_at_recorded_times_on_request() {
    let dir = Dir::new();
    let layer = RecordLayer::new(dir.file()).times();
    let slow = service_fn(|_: http::Request<Full<Bytes>>| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let frames = futures_util::stream::iter(["a", "b"]).then(|piece| async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(piece)))
        });
        Ok::<_, Infallible>(http::Response::new(StreamBody::new(Box::pin(frames))))
    });
    let response = layer.layer(slow).oneshot(post("/p", "")).await.unwrap();
    response.into_body().collect().await.unwrap();
    for (replay, seconds) in [
        (ReplayLayer::load(dir.file()).unwrap(), 0),
        (ReplayLayer::load(dir.file()).unwrap().at_times(), 5),
    ] {
        let begun = tokio::time::Instant::now();
        let response = replay.layer(()).oneshot(post("/p", "")).await.unwrap();
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "ab"
        );
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

#[test]
fn invalid_cassettes_are_rejected() {
    let dir = Dir::new();
    assert!(ReplayLayer::load(dir.file()).is_err());
    let cases = [
        ("", "not a cassette"),
        ("{}\n", "not a cassette"),
        ("{\"concentric_cassette\":2}\n", "unsupported version"),
        ("{\"concentric_cassette\":1}\n\n{\"request\":\n", "line 3"),
    ];
    for (text, expected) in cases {
        std::fs::write(dir.file(), text).unwrap();
        let error = ReplayLayer::load(dir.file()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.message().contains(expected), "{error}");
    }
}
