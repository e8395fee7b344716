//! The OpenAI-compatible server.

mod approvals;
mod background;
mod chat;
mod errors;
mod keys;
mod requests;
mod responses;
mod stored;
mod streams;

use crate::support::Item;
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, FinishReason,
    ToolCallDelta, ToolCallPart, ToolCallStart, Usage,
};
use concentric_http::openai::{OpenAi, ResponseBody};
use concentric_tools::{ToolError, Toolset, tool};
use futures_util::stream;
use http_body::Body;
use http_body_util::Full;
use serde_json::{Value, json};
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tower::{Layer, ServiceExt, service_fn};

/// A request to a route.
fn post(path: &str, body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    http::Request::post(path)
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

/// Fields of a request to each route that asks the model `m`.
fn chat(fields: Value) -> http::Request<Full<Bytes>> {
    let base = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    post("/chat/completions", with(base, fields).to_string())
}

fn response(fields: Value) -> http::Request<Full<Bytes>> {
    let base = json!({"model": "m", "input": "hi"});
    post("/responses", with(base, fields).to_string())
}

fn with(mut base: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        panic!("not fields: {fields}");
    };
    base.as_object_mut().unwrap().extend(fields);
    base
}

struct Reply {
    status: u16,
    headers: http::HeaderMap,
    body: String,
    /// The error that ends the body.
    cut: Option<Error>,
}

impl Reply {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The error of a response with an error.
    #[track_caller]
    fn error(&self) -> Value {
        assert!(self.cut.is_none());
        assert_eq!(self.headers["content-type"], "application/json");
        let error = self.json()["error"].clone();
        for field in ["message", "type", "code"] {
            assert!(error[field].is_string(), "{error}");
        }
        error
    }

    /// The data of the events; `[DONE]` is a string.
    #[track_caller]
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        assert!(self.body.ends_with("\n\n"), "cut off: {:?}", self.body);
        assert!(!self.body.contains('\r'));
        let frames = self.body.split("\n\n").filter(|frame| !frame.is_empty());
        let frames = frames.filter(|frame| !frame.starts_with(':'));
        frames
            .map(|frame| {
                let (name, data) = match frame.split_once('\n') {
                    Some((name, data)) => (name.strip_prefix("event: "), data),
                    None => (None, frame),
                };
                assert!(!data.contains('\n'), "{frame}");
                let data = data.strip_prefix("data: ").unwrap();
                if data == "[DONE]" {
                    return json!(data);
                }
                let event: Value = serde_json::from_str(data).unwrap();
                assert_eq!(event["type"].as_str(), name);
                event
            })
            .collect()
    }
}

async fn read(body: ResponseBody) -> (String, Option<Error>) {
    let (mut text, mut cut) = (Vec::new(), None);
    let mut body = pin!(body);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        match frame {
            Ok(frame) => text.extend(frame.into_data().unwrap()),
            Err(error) => {
                assert!(cut.is_none());
                cut = Some(error);
            }
        }
    }
    assert!(body.is_end_stream());
    (String::from_utf8(text).unwrap(), cut)
}

async fn send(api: &OpenAi, request: http::Request<Full<Bytes>>) -> Reply {
    let (parts, body) = api.clone().oneshot(request).await.unwrap().into_parts();
    assert!(parts.headers.contains_key("x-request-id"));
    let (body, cut) = read(body).await;
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
        cut,
    }
}

/// A server with the model `m`, which emits `script` for every request.
fn api(script: Vec<Item>) -> OpenAi {
    OpenAi::new().model("m", crate::support::agent(script))
}

/// Like [`api`], with a pause before each event and before the end.
fn slow_api(script: Vec<Item>) -> OpenAi {
    let model = service_fn(move |_: ChatRequest| {
        let body = stream::unfold(script.clone().into_iter(), async |mut script| {
            tokio::task::yield_now().await;
            script.next().map(|item| (item, script))
        });
        async { Ok::<_, Error>(ChatResponse::new(Box::pin(body))) }
    });
    OpenAi::new().model("m", model)
}

fn ok(events: impl IntoIterator<Item = Event>) -> Vec<Item> {
    events.into_iter().map(Ok).collect()
}

fn finish() -> Event {
    finish_by(FinishReason::Stop)
}

fn finish_by(reason: FinishReason) -> Event {
    Event::finish(reason, Usage::new(10, 5))
}

fn refusal(text: &str) -> Event {
    Event::RefusalDelta(text.into())
}

fn reasoning(text: &str) -> Event {
    Event::ReasoningDelta(text.into())
}

fn part_end() -> Event {
    Event::PartEnd(Box::default())
}

fn call(id: &str, name: &str, arguments: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), name, arguments))
}

fn call_start(index: u32, id: &str, name: &str) -> Event {
    Event::ToolCallStart(Box::new(ToolCallStart::new(index, CallId::new(id), name)))
}

fn call_delta(index: u32, arguments: &str) -> Event {
    Event::ToolCallDelta(ToolCallDelta::new(index, arguments))
}

/// Tools of the client, by name, in the form of chat completions.
fn chat_tools(names: &[&str]) -> Value {
    let tools = names.iter().map(|name| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    });
    tools.collect()
}

/// Tools of the client, by name, in the form of responses.
fn response_tools(names: &[&str]) -> Value {
    let tools = names
        .iter()
        .map(|name| json!({"type": "function", "name": name, "parameters": {"type": "object"}}));
    tools.collect()
}

/// The content of the deltas, and the calls that they make: id, name and arguments.
#[track_caller]
fn sum(events: &[Value]) -> (String, String, Vec<[String; 3]>) {
    let (mut content, mut refusal) = (String::new(), String::new());
    let mut calls: Vec<[String; 3]> = Vec::new();
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        refusal.push_str(delta["refusal"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            let function = &call["function"];
            if at == calls.len() {
                assert_eq!(call["type"], "function");
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                calls.push([text(&call["id"]), text(&function["name"]), String::new()]);
            }
            calls[at][2].push_str(function["arguments"].as_str().unwrap());
        }
    }
    (content, refusal, calls)
}

/// The same, of the message of a whole answer.
#[track_caller]
fn sum_of(message: &Value) -> (String, String, Vec<[String; 3]>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        let function = &call["function"];
        [&call["id"], &function["name"], &function["arguments"]].map(text)
    });
    (
        text(&message["content"]),
        text(&message["refusal"]),
        calls.collect(),
    )
}

/// An agent with the tool `pay`, which counts its executions. Its model makes the calls of `steps`,
/// one step after the other, and ends as `last` does.
fn agent(steps: Vec<Vec<Event>>, last: Vec<Item>) -> (BoxModel, Arc<AtomicUsize>) {
    let paid = Arc::new(AtomicUsize::new(0));
    let count = paid.clone();
    let pay = tool("pay", "Pays.", move |_: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid".to_owned()) }
    });
    let model = service_fn(move |request: ChatRequest| {
        let rounds = request
            .transcript
            .iter()
            .filter(|turn| turn.as_round().is_some());
        let script = match steps.get(rounds.count()) {
            Some(events) => {
                let end = finish_by(FinishReason::ToolCalls);
                ok(events.iter().cloned().chain([end]))
            }
            None => last.clone(),
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(script))) }
    });
    let agent = AgentLayer::new(Toolset::new().tool(pay)).layer(model);
    (BoxModel::new(agent), paid)
}

/// The body of a response that is being streamed.
type Open = Pin<Box<ResponseBody>>;

async fn open(api: &OpenAi, request: http::Request<Full<Bytes>>) -> Open {
    let response = api.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    Box::pin(response.into_body())
}

/// The next chunk of a body, as text.
async fn next(body: &mut Open) -> Option<Result<String, Error>> {
    let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await?;
    Some(frame.map(|frame| String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()))
}
