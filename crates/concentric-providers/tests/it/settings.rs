//! Every number and duration that a caller can set, at zero and at the minimum and maximum: each is
//! accepted without a panic or an endless wait.

use crate::common::*;
use concentric_core::{ChatRequest, Context, Environment, Error, ErrorKind};
use concentric_providers::{AnthropicLayer, ApiKey, Limits, OllamaLayer, OpenAiLayer, Timeouts};
use std::time::Duration;
use tower::{Layer, ServiceExt};

const LEAST: Duration = Duration::from_nanos(1);

type Set<T> = fn(Timeouts, T) -> Timeouts;

/// The outcome of a response under these timeouts and the deadline of the run.
async fn answer(timeouts: Timeouts, status: u16, script: Script) -> Result<String, Error> {
    let mut response = http::Response::new(script);
    *response.status_mut() = status.try_into().unwrap();
    let http = Http::new(response);
    let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts);
    let ends = Environment::system().clock().now() + Duration::from_secs(3600);
    let context = Context::builder().deadline(ends).build();
    let request = ChatRequest::user("hi").with_context(context);
    layer.layer(http).oneshot(request).await?.text().await
}

fn hello() -> String {
    delta(r#"{"content":"Hello"}"#) + &finish("stop") + DONE
}

#[tokio::test(start_paused = true)]
async fn every_timeout_accepts_extreme_values() {
    let clocks: [(Set<Duration>, &str); 3] = [
        (|timeouts, time| timeouts.idle(time), "idle"),
        (|timeouts, time| timeouts.progress(time), "no_progress"),
        (|timeouts, time| timeouts.total(time), "deadline"),
    ];
    for (set, code) in clocks {
        for (time, code) in [
            (Duration::ZERO, code),
            (LEAST, code),
            (Duration::from_secs(1), code),
            // The deadline of the run comes first.
            (Duration::MAX, "deadline"),
        ] {
            let timeouts = set(Timeouts::off(), time);
            // Available data never time out.
            let script = Script::new([hello()], End::Clean);
            assert_eq!(answer(timeouts, 200, script).await.unwrap(), "Hello");
            let script = Script::new([delta(r#"{"content":"a"}"#)], End::Silent);
            let error = answer(timeouts, 200, script).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{code} {time:?}");
            assert_eq!(error.code(), Some(code), "{time:?}");
        }
    }
    for time in [Duration::ZERO, LEAST, Duration::from_secs(1), Duration::MAX] {
        let timeouts = Timeouts::off().error(time);
        let script = Script::new(["{\"error\":"], End::Silent);
        let error = answer(timeouts, 500, script).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server, "{time:?}");
        assert_eq!(error.status(), Some(500));
    }
}

#[tokio::test]
async fn every_limit_accepts_extreme_values() {
    type Set = fn(&mut Limits, usize);
    let call = delta(
        r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\":1}"}}]}"#,
    );
    let body = call + &finish("tool_calls") + DONE;
    let limits: [(&str, Set); 5] = [
        ("line", |limits, most| limits.line = most),
        ("event", |limits, most| limits.event = most),
        ("response", |limits, most| limits.response = most),
        ("tool_arguments", |limits, most| {
            limits.tool_arguments = most
        }),
        ("tool_calls", |limits, most| limits.tool_calls = most),
    ];
    for (name, set) in limits {
        for (most, fits) in [
            (0, false),
            // The response contains one call.
            (1, name == "tool_calls"),
            (usize::MAX, true),
        ] {
            let mut limits = Limits::default();
            set(&mut limits, most);
            let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).limits(limits);
            let script = Script::new([body.clone()], End::Clean);
            let (_, error) = read_script(&layer, script).await;
            let kind = error.map(|error| error.kind());
            let expected = (!fits).then_some(ErrorKind::TooLarge);
            assert_eq!(kind, expected, "{name} {most}");

            // The line limit does not apply to NDJSON.
            let fits = fits || name == "line";
            let layer = OllamaLayer::new("m").limits(limits);
            let line =
                r#"{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}}"#;
            let body = format!("{line}\n{{\"done\":true}}\n");
            let (_, error) = read_script(&layer, Script::new([body], End::Clean)).await;
            let kind = error.map(|error| error.kind());
            let expected = (!fits).then_some(ErrorKind::TooLarge);
            assert_eq!(kind, expected, "{name} {most}");
        }
    }
    for (most, text) in [(0, "no body"), (1, "n"), (usize::MAX, "not today")] {
        let mut limits = Limits::default();
        limits.error = most;
        let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).limits(limits);
        let Err(error) = call_once(&layer, response(500, &[], "not today")).await else {
            panic!("{most}")
        };
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(error.message().contains(text), "{most}: {error}");
    }
    for most in [Duration::ZERO, LEAST, Duration::MAX] {
        let mut limits = Limits::default();
        limits.retry_after = most;
        let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).limits(limits);
        let answer = response(429, &[("retry-after", "7")], "{}");
        let Err(error) = call_once(&layer, answer).await else {
            panic!("{most:?}")
        };
        let expected = Duration::from_secs(7).min(most);
        assert_eq!(error.retry_after(), Some(expected));
    }
}

async fn call_once(layer: &OpenAiLayer, response: http::Response<Script>) -> Result<String, Error> {
    call(layer, response).await?.text().await
}

#[tokio::test]
async fn every_output_limit_is_sent() {
    for (tokens, effort) in [
        (0, None),
        (1, None),
        (u32::MAX, None),
        (u32::MAX, Some("4294967294")),
        (u32::MAX, Some("high")),
    ] {
        let layer = AnthropicLayer::new("claude-haiku-4-5", ApiKey::new(CANARY)).max_tokens(tokens);
        let mut request = ChatRequest::user("hi");
        request.options_mut().reasoning_effort = effort.map(Into::into);
        let (_, body) = sent_by(&layer, request.clone()).await;
        assert_eq!(body["max_tokens"], tokens, "{effort:?}");
        let layer = AnthropicLayer::new("claude-haiku-4-5", ApiKey::new(CANARY));
        request.options_mut().max_output_tokens = Some(tokens);
        let (_, body) = sent_by(&layer, request).await;
        assert_eq!(body["max_tokens"], tokens, "{effort:?}");
    }
    // Options that are incompatible with the limit are rejected before sending.
    for tokens in [0, 1] {
        let layer = AnthropicLayer::new("claude-haiku-4-5", ApiKey::new(CANARY)).max_tokens(tokens);
        let mut request = ChatRequest::user("hi");
        request.options_mut().reasoning_effort = Some("low".into());
        let error = try_sent_by(&layer, request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
}

#[cfg(feature = "client")]
mod client {
    use super::*;
    use concentric_providers::HttpClient;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Starts a service that responds immediately or never, and returns its URL.
    async fn serve(answers: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"}") {
                if stream.read_buf(&mut read).await.unwrap() == 0 {
                    return;
                }
            }
            if answers {
                let body = hello();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        url
    }

    async fn ask(client: HttpClient, url: String) -> Result<String, Error> {
        let layer = OpenAiLayer::compatible(url, "m", None);
        let model = layer.layer(client);
        model.oneshot(ChatRequest::user("hi")).await?.text().await
    }

    #[tokio::test]
    async fn every_client_timeout_accepts_extreme_values() {
        for time in [Duration::ZERO, LEAST] {
            let client = HttpClient::builder().connect_timeout(time);
            let url = serve(true).await;
            match ask(client.build().unwrap(), url).await {
                // Within the resolution of tokio's clock, a millisecond.
                Ok(_) => assert_eq!(time, LEAST),
                Err(error) => assert_eq!(
                    (error.kind(), error.code()),
                    (ErrorKind::Timeout, Some("not_connected")),
                    "{error}"
                ),
            }

            let client = HttpClient::builder().read_timeout(time);
            let url = serve(false).await;
            let error = ask(client.build().unwrap(), url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{time:?}: {error}");
        }
        let client = HttpClient::builder()
            .connect_timeout(Duration::MAX)
            .read_timeout(Duration::MAX);
        let url = serve(true).await;
        assert_eq!(ask(client.build().unwrap(), url).await.unwrap(), "Hello");
    }
}
