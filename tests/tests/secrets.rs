//! Looks for secrets where none may be, with every log switched on.
//!
//! A whole stack, from AG-UI to a provider on a socket, is given a different canary in every place
//! where a secret can stand. Calls are approved with tokens, denied, forged and cut off, and the
//! provider repeats what it was sent in its errors. Then the canaries are looked for:
//!
//! | the secret | may be in | must not be in |
//! |---|---|---|
//! | keys and headers of the provider, the keys of tokens, headers of the client | requests to the provider | logs, errors, `Debug`, cassettes, the database, HTTP answers |
//! | an approval token | the HTTP answer that carries its question | logs, errors, `Debug`, cassettes, the database |
//! | arguments of calls | the conversation: cassettes, the database, HTTP answers | logs, errors, `Debug` of layers and services |
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use concentric_core::{AgentLayer, ChatRequest, Error, store::Tenant};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::SuspendLayer;
use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
use concentric_store::SqliteStore;
use concentric_test::cassette::RecordLayer;
use concentric_tools::{Approval, ApprovalTokens, ToolError, Toolset, token::TokenKeys, tool};
use http::Request;
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    fs,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_http::trace::TraceLayer;
use tracing_subscriber::fmt::MakeWriter;

// ---- the canaries ----

const API_KEY: &str = "canary-api-key-5f21";
const PROVIDER_HEADER: &str = "canary-provider-header-81b0";
const URL_QUERY: &str = "canary-url-query-4e77";
const TOKEN_KEY: &str = "canary-token-key-0123456789abcdef";
const AUTHORIZATION: &str = "canary-authorization-90aa";
const COOKIE: &str = "canary-cookie-7c1e";
const ARGUMENT: &str = "canary-argument-36d8";

/// What may be nowhere but in requests to the provider.
const KEYS: [&str; 6] = [
    API_KEY,
    PROVIDER_HEADER,
    URL_QUERY,
    TOKEN_KEY,
    AUTHORIZATION,
    COOKIE,
];

// ---- the logs ----

#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

// ---- the provider ----

/// Answers as the prompt wants, and repeats in errors all that it was sent.
async fn provide(headers: HeaderMap, uri: axum::http::Uri, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let messages = request["messages"].as_array().unwrap();
    let prompt = messages.iter().rev().find(|it| it["role"] == "user");
    let prompt = prompt.unwrap()["content"].as_str().unwrap().to_owned();
    let is_answered = messages.last().unwrap()["role"] == "tool";
    if prompt.contains("refuse") {
        let mut said = format!("{uri} ");
        for (name, value) in &headers {
            write!(said, "{name}: {} ", value.to_str().unwrap_or_default()).unwrap();
        }
        let error = json!({"error": {"message": said, "type": "invalid_api_key", "code": said}});
        return (StatusCode::UNAUTHORIZED, error.to_string()).into_response();
    }
    let chunk = |delta: Value, reason: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let mut text = String::new();
    if is_answered || prompt.contains("talk") {
        text += &chunk(json!({"content": "done"}), None);
        text += &chunk(json!({}), Some("stop"));
    } else {
        let name = if prompt.contains("fail") {
            "fail"
        } else {
            "pay"
        };
        let arguments = json!({"account": ARGUMENT}).to_string();
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
        text += &chunk(json!({"tool_calls": [call]}), None);
        text += &chunk(json!({}), Some("tool_calls"));
    }
    if prompt.contains("cut") {
        text.truncate(text.len() / 2);
    } else {
        text += "data: [DONE]\n\n";
    }
    ([("content-type", "text/event-stream")], text).into_response()
}

async fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(post(provide));
    tokio::spawn(axum::serve(listener, app).into_future());
    format!("http://{address}/v1?key={URL_QUERY}")
}

// ---- the stack ----

#[derive(Deserialize, JsonSchema)]
struct Account {
    account: String,
}

fn tools(store: &SqliteStore) -> Toolset {
    let keys = TokenKeys::new("k1", TOKEN_KEY.as_bytes().to_vec()).unwrap();
    let pay = tool("pay", "Pays.", |Account { account }: Account| async move {
        format!("{} bytes", account.len())
    });
    let fail = tool(
        "fail",
        "Fails.",
        |Account { account }: Account| async move {
            Err::<String, _>(ToolError::new(format!(
                "no account of {} bytes",
                account.len()
            )))
        },
    );
    Toolset::new()
        .tool(pay)
        .tool(fail)
        .gate(Approval::for_tools(["pay"]))
        .tokens(ApprovalTokens::new(
            keys,
            "https://one.example",
            store.clone(),
        ))
        .ledger(store.clone())
}

/// Everything that is printed of the parts of a stack, for `Debug`.
struct Printed(String);

impl Printed {
    fn add(&mut self, value: &impl std::fmt::Debug) {
        writeln!(self.0, "{value:?}\n{value:#?}").unwrap();
    }
}

struct Answer {
    text: String,
    events: Vec<Value>,
}

impl Answer {
    fn of_type(&self, kind: &str) -> Option<&Value> {
        self.events.iter().find(|event| event["type"] == kind)
    }
}

async fn post_to<S>(
    mut agent: S,
    thread: &str,
    run: &str,
    change: impl FnOnce(&mut Value),
) -> Answer
where
    S: Service<Request<Body>, Error: std::fmt::Debug>,
    S::Response: IntoResponse,
{
    let mut body = json!({
        "threadId": thread, "runId": run,
        "messages": [{"id": "m1", "role": "user", "content": thread}],
        "tools": [], "context": [], "state": {}, "forwardedProps": {},
    });
    change(&mut body);
    let request = Request::post("/agent")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {AUTHORIZATION}"))
        .header(header::COOKIE, format!("session={COOKIE}"))
        .extension(Tenant("acme".into()))
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = agent.ready().await.unwrap().call(request).await.unwrap();
    let bytes = response
        .into_response()
        .into_body()
        .collect()
        .await
        .unwrap();
    let text = String::from_utf8(bytes.to_bytes().to_vec()).unwrap();
    let events = text
        .split("\n\n")
        .filter_map(|frame| frame.strip_prefix("data: "))
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    Answer { text, events }
}

fn assert_without(place: &str, text: &str, secrets: &[&str]) {
    for secret in secrets {
        if let Some(at) = text.find(secret) {
            let from = text.floor_char_boundary(at.saturating_sub(300));
            let to = text.floor_char_boundary((at + 300).min(text.len()));
            panic!("{secret} is in {place}: ..{}..", &text[from..to]);
        }
    }
}

/// All files of a folder, as text.
fn files(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap();
    let files = files.map(|file| fs::read(file.unwrap().path()).unwrap());
    files
        .map(|it| String::from_utf8_lossy(&it).into_owned())
        .collect()
}

#[tokio::test]
async fn no_secret_leaves_the_stack_at_any_log_level() {
    let logs = Logs::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(logs.clone())
        .init();
    let (databases, cassettes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cassette = cassettes.path().join("traffic.jsonl");
    let store = SqliteStore::open(databases.path().join("runs.db")).unwrap();
    let url = provider().await;
    let mut printed = Printed(String::new());

    let recorder = RecordLayer::new(&cassette);
    let model = |url: &str| {
        OpenAiLayer::compatible(url, "model", Some(ApiKey::new(API_KEY)))
            .header("x-tenant-key", PROVIDER_HEADER)
    };
    let client = HttpClient::new().unwrap();
    let tools = tools(&store);
    for part in [
        &tools as &dyn std::fmt::Debug,
        &model(&url),
        &client,
        &recorder,
        &store,
    ] {
        printed.add(&part);
    }
    // Without tower-http's `TraceLayer` below the provider, which logs the whole URL.
    let agent = |url: &str| {
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(store.clone())))
            .layer(AgentLayer::new(tools.clone()))
            .layer(model(url))
            .layer(recorder.clone())
            .service(client.clone())
    };
    printed.add(&agent(&url));
    let server = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(AgUiLayer::new())
        .service(agent(&url));

    // A call is asked about; its token is used twice, forged, and cut off.
    let asked = post_to(server.clone(), "pay", "r1", |_| ()).await;
    let finished = asked.of_type("RUN_FINISHED").unwrap();
    let interrupt = &finished["outcome"]["interrupts"][0];
    let token = interrupt["metadata"]["token"].as_str().unwrap().to_owned();
    let resume = |token: &str, approved: bool| {
        json!([{
            "interruptId": interrupt["id"], "status": "resolved",
            "payload": {"approved": approved}, "metadata": {"token": token},
        }])
    };
    let mut answers = Vec::new();
    let forged = format!("{}x", &token[..token.len() - 1]);
    for (run, token) in [
        ("r2", forged.as_str()),
        ("r3", &token[..9]),
        ("r4", &token),
        ("r5", &token),
    ] {
        let change = |body: &mut Value| body["resume"] = resume(token, true);
        answers.push(post_to(server.clone(), "pay", run, change).await);
    }
    assert!(
        answers
            .iter()
            .any(|answer| answer.text.contains("20 bytes")),
        "the approved call did not run"
    );
    // Other ends: a denial, a tool's failure, a broken stream, a provider that repeats its request.
    let other = post_to(server.clone(), "pay again", "r6", |_| ()).await;
    let question = &other.of_type("RUN_FINISHED").unwrap()["outcome"]["interrupts"][0];
    let denial = json!([{
        "interruptId": question["id"], "status": "resolved", "payload": {"approved": false},
        "metadata": question["metadata"],
    }]);
    let other_token = question["metadata"]["token"].as_str().unwrap().to_owned();
    answers.push(
        post_to(server.clone(), "pay again", "r7", |body| {
            body["resume"] = denial
        })
        .await,
    );
    for prompt in ["fail", "talk and cut", "refuse", "talk"] {
        answers.push(post_to(server.clone(), prompt, "r8", |_| ()).await);
    }
    assert!(
        answers
            .iter()
            .any(|answer| answer.of_type("RUN_ERROR").is_some())
    );
    // Garbage instead of a request.
    let garbage = |body: &mut Value| body["messages"] = json!([{"role": ARGUMENT}]);
    answers.push(post_to(server.clone(), "garbage", "r9", garbage).await);

    // Errors, whole: from a service that refuses, and from one that is not there.
    let mut errors = String::new();
    let gone = url.replace("127.0.0.1:", "127.0.0.1:1");
    for url in [
        url.as_str(),
        gone.split('?').next().unwrap(),
        "http://127.0.0.1:9/v1",
    ] {
        let error: Error = match agent(url).oneshot(ChatRequest::user("refuse")).await {
            Err(error) => error,
            Ok(response) => response.collect().await.unwrap_err().into(),
        };
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = source {
            writeln!(errors, "{error} {error:#} {error:?} {error:#?}").unwrap();
            source = error.source();
        }
    }
    recorder.save().unwrap();

    let logs = logs.text();
    assert!(logs.contains("TRACE"), "the logs are not switched on");
    let cassettes = files(cassettes.path());
    assert!(cassettes.contains("call_1"), "nothing was recorded");
    let databases = files(databases.path());
    assert!(databases.contains(ARGUMENT), "nothing was stored");
    let tokens = [token.as_str(), &other_token];
    let http: String = answers.iter().map(|answer| answer.text.as_str()).collect();
    for (place, text) in [
        ("the logs", &logs),
        ("an error", &errors),
        ("`Debug`", &printed.0),
        ("a cassette", &cassettes),
        ("the database", &databases),
        ("an HTTP answer", &http),
    ] {
        assert_without(place, text, &KEYS);
        if place != "an HTTP answer" {
            assert_without(place, text, &tokens);
        }
    }
    assert_without("the first HTTP answer", &asked.text, &KEYS);
    for (place, text) in [
        ("the logs", &logs),
        ("an error", &errors),
        ("`Debug`", &printed.0),
    ] {
        assert_without(place, text, &[ARGUMENT]);
    }
}
