//! Mapping of HTTP requests to the agent's requests, and error responses.

mod body;
mod refused;

use crate::support::{
    Asked, agent, asked, asked_openly, finish, input, legal, open_policy, post, send, step, types,
};
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Error, Event, Executor,
    InterruptId, MediaSource, NoTools, PartKind, Reply, ResumePoint, Role, ToolStatus,
    store::StoreError,
};
use concentric_http::{
    Shutdown,
    ag_ui::{AgUi, AgUiContext, AgUiLayer, AgUiState},
};
use futures_util::{Stream, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_test::mock;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn with_messages(messages: Value) -> Value {
    let mut input = input();
    input["messages"] = messages;
    input
}

// ---- the request ----

#[tokio::test]
async fn a_large_request_yields_between_its_stages() {
    for (bytes, yields) in [(10, 0), (64 << 10, 5)] {
        let input = with_messages(json!([
            {"id": "u", "role": "user", "content": "x".repeat(bytes)}
        ]));
        let asked = Asked::default();
        let service = AgUiLayer::new().layer(asked.agent());
        let mut task = tokio_test::task::spawn(service.oneshot(post(input.to_string())));
        for _ in 0..yields {
            assert!(task.poll().is_pending());
            assert!(task.is_woken(), "pending without a wakeup");
            assert!(!asked.is_called());
        }
        assert!(task.poll().is_ready());
        assert!(asked.is_called());
    }
}

#[tokio::test]
async fn a_large_invalid_request_is_answered_with_its_path() {
    for (bytes, yields) in [(10, 0), (64 << 10, 2)] {
        let input = with_messages(json!([
            {"id": "u", "role": "user", "content": "x".repeat(bytes)},
            {"id": "v", "role": "user", "content": 7},
        ]));
        let asked = Asked::default();
        let service = AgUiLayer::new().layer(asked.agent());
        let mut task = tokio_test::task::spawn(service.oneshot(post(input.to_string())));
        for _ in 0..yields {
            assert!(task.poll().is_pending());
            assert!(task.is_woken(), "pending without a wakeup");
        }
        let Poll::Ready(Ok(response)) = task.poll() else {
            panic!("pending");
        };
        assert_eq!(response.status(), 400);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["field"], "messages[1].content");
        assert!(!asked.is_called());
    }
}

#[tokio::test]
async fn the_run_has_the_ids_and_values_of_the_input() {
    #[derive(Clone)]
    struct User(&'static str);

    let mut input = input();
    input["state"] = json!({"a": 1});
    input["context"] = json!([{"description": "page", "value": "cart"}]);
    input["forwardedProps"] = json!({"theme": "dark"});
    let mut request = post(input.to_string());
    request.extensions_mut().insert(User("ada"));
    request
        .headers_mut()
        .insert("x-request-id", "req-1".parse().unwrap());

    let asked = Asked::default();
    let service = AgUiLayer::new().agent("clerk").layer(asked.agent());
    send(service, request).await.events();
    let ChatRequest { context, .. } = asked.take();
    assert_eq!(context.run_id().as_str(), "r");
    assert_eq!(context.thread_id().unwrap().as_str(), "t");
    assert_eq!(context.request_id().as_str(), "req-1");
    assert_eq!(context.agent().unwrap().as_str(), "clerk");
    let extensions = context.extensions();
    assert_eq!(extensions.get::<User>().unwrap().0, "ada");
    let sent = extensions.get::<AgUiContext>().unwrap();
    assert_eq!(sent.items[0].value, "cart");
    assert_eq!(sent.forwarded_props.as_ref().unwrap()["theme"], "dark");
    assert_eq!(
        *extensions.get::<AgUiState>().unwrap().get(),
        json!({"a": 1})
    );
    assert!(extensions.get::<http::HeaderMap>().is_none());
}

#[tokio::test]
async fn headers_are_kept_only_with_keep_headers() {
    let asked = Asked::default();
    let service = AgUiLayer::new().keep_headers().layer(asked.agent());
    send(service, post(input().to_string())).await.events();
    let context = asked.take().context;
    let headers = context.extensions().get::<http::HeaderMap>().unwrap();
    assert_eq!(headers["content-type"], "application/json");
}

#[tokio::test]
async fn only_leading_system_messages_become_the_system_text() {
    let request = asked_openly(&with_messages(json!([
        {"id": "1", "role": "system", "content": "a"},
        {"id": "2", "role": "developer", "content": "b"},
        {"id": "3", "role": "user", "content": "hi"},
        {"id": "4", "role": "developer", "content": "c"},
        {"id": "5", "role": "reasoning", "content": "hm"},
        {"id": "6", "role": "activity", "activityType": "x", "content": {}},
        {"id": "7", "role": "user", "content": "ho"},
    ])))
    .await;
    assert_eq!(request.system.text(), "a\n\nb");
    let turns: Vec<_> = request
        .transcript
        .iter()
        .map(|turn| (turn.as_message().role, turn.as_message().text()))
        .collect();
    assert_eq!(
        turns,
        [
            (Role::User, "hi".to_owned()),
            (Role::System, "c".to_owned()),
            (Role::User, "ho".to_owned())
        ]
    );
    let first = request.transcript.iter().next().unwrap();
    assert_eq!(first.as_message().id.as_ref().unwrap().as_str(), "3");
}

#[tokio::test]
async fn messages_of_sub_agents_are_omitted() {
    let request = asked(&with_messages(json!([
        {"id": "1", "role": "user", "content": "hi"},
        {"id": "2", "role": "assistant", "content": "inner", "subagentRunId": "s"},
        {"id": "3", "role": "assistant", "content": "outer"},
    ])))
    .await;
    let texts: Vec<_> = request
        .transcript
        .iter()
        .map(|t| t.as_message().text())
        .collect();
    assert_eq!(texts, ["hi", "outer"]);
}

#[tokio::test]
async fn the_parts_of_a_message_keep_their_kind() {
    let request = asked_openly(&with_messages(json!([{"id": "1", "role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
        {"type": "audio", "source": {"type": "url", "value": "https://x/y"}},
        {"type": "video", "source": {"type": "url", "value": "https://x/z", "mimeType": "video/mp4"}},
        {"type": "document", "source": {"type": "file", "value": "f"}, "metadata": {"filename": "a.pdf"}},
    ]}])))
    .await;
    let turn = request.transcript.last().unwrap();
    let kinds: Vec<_> = turn.as_message().parts.iter().map(|p| &p.kind).collect();
    let [
        PartKind::Text(text),
        PartKind::Image(image),
        PartKind::Audio(audio),
        PartKind::File(video),
        PartKind::File(file),
    ] = kinds[..]
    else {
        panic!("{kinds:?}")
    };
    assert_eq!(text.as_str(), "look");
    assert_eq!(image.source, MediaSource::Base64("AA==".into()));
    assert_eq!(image.media_type.as_deref(), Some("image/png"));
    assert_eq!(audio.source, MediaSource::Url("https://x/y".into()));
    assert_eq!(video.media_type.as_deref(), Some("video/mp4"));
    assert_eq!(file.source, MediaSource::Id("f".into()));
    assert_eq!(file.name.as_deref(), Some("a.pdf"));
}

fn calls(ids: &[&str]) -> Value {
    let calls: Vec<_> = ids
        .iter()
        .map(
            |id| json!({"id": id, "type": "function", "function": {"name": id, "arguments": "{}"}}),
        )
        .collect();
    json!({"id": "a", "role": "assistant", "content": "", "toolCalls": calls})
}

#[tokio::test]
async fn calls_keep_their_names_and_get_their_results() {
    let mut input = with_messages(json!([
        {"id": "u", "role": "user", "content": "hi"},
        calls(&["x", "y", "z"]),
        {"id": "1", "role": "tool", "toolCallId": "y", "content": "no", "error": "failed"},
        {"id": "2", "role": "tool", "toolCallId": "x", "content": "yes"},
        {"id": "3", "role": "tool", "toolCallId": "z", "content": "not so", "metadata": {"status": "denied"}},
    ]));
    input["tools"] = json!([{"name": "y", "description": "", "parameters": {"type": "object"}}]);
    let request = asked(&input).await;
    assert!(request.resume.is_none());
    let turn = request.transcript.last().unwrap();
    let calls: Vec<_> = turn.as_message().tool_calls().collect();
    assert_eq!(calls[0].id, CallId::new("x"));
    assert_eq!(calls[0].executor, Executor::Loop);
    assert_eq!(calls[1].executor, Executor::Client);
    let results: Vec<_> = turn
        .results()
        .iter()
        .map(|r| (r.call_id.as_str(), r.name.as_str(), r.outcome.status))
        .collect();
    assert_eq!(
        results,
        [
            ("x", "x", ToolStatus::Done),
            ("y", "y", ToolStatus::Failed),
            ("z", "z", ToolStatus::Denied)
        ]
    );
    assert_eq!(turn.results()[1].outcome.content.text(), "no");
}

#[tokio::test]
async fn unanswerable_calls_are_closed_as_unknown() {
    let user = json!({"id": "u", "role": "user", "content": "hi"});
    // A client call with a newer message after it, and a call of a server tool.
    for (messages, client) in [
        (json!([calls(&["x"]), user]), true),
        (json!([user, calls(&["x"])]), false),
    ] {
        let mut input = with_messages(messages);
        if client {
            input["tools"] = json!([{"name": "x", "description": ""}]);
        }
        let request = asked(&input).await;
        assert!(request.resume.is_none());
        let round = request
            .transcript
            .iter()
            .find(|turn| !turn.results().is_empty())
            .unwrap();
        assert_eq!(round.results()[0].outcome.status, ToolStatus::Unknown);
    }
}

#[tokio::test]
async fn a_round_with_missing_client_results_is_resumed() {
    let mut input = with_messages(json!([
        {"id": "u", "role": "user", "content": "hi"},
        calls(&["own", "ask", "tell"]),
        {"id": "1", "role": "tool", "toolCallId": "tell", "content": "told"},
    ]));
    input["tools"] = json!([
        {"name": "ask", "description": ""}, {"name": "tell", "description": ""}]);
    let request = asked(&input).await;
    let Some((ResumePoint::UnverifiedHistory(open), replies)) = request.resume.unwrap().take()
    else {
        panic!("the run is not resumed")
    };
    assert!(replies.is_empty());
    let waiting: Vec<_> = open.waiting().map(|c| c.id.as_str()).collect();
    assert_eq!(waiting, ["ask"]);
    assert_eq!(request.transcript.len(), 1);
}

#[tokio::test]
async fn the_clients_tools_are_offered() {
    let mut input = input();
    input["tools"] = json!([
        {"name": "a", "description": "A.", "parameters": {"type": "object", "required": ["x"]}},
        {"name": "b", "description": "B.", "parameters": null},
    ]);
    let tools = asked(&input).await.tools;
    assert_eq!(tools.get("a").unwrap().input_schema["required"][0], "x");
    assert_eq!(tools.get("b").unwrap().input_schema["type"], "object");
}

const MANY: usize = 20_000;

fn many_calls() -> Value {
    let call = |n| {
        json!({"id": format!("c{n}~2"), "type": "function",
               "function": {"name": format!("f{n}"), "arguments": "{}"}})
    };
    json!({"id": "a", "role": "assistant", "toolCalls": (0..MANY).map(call).collect::<Vec<_>>()})
}

#[tokio::test]
async fn many_calls_and_results_are_accepted() {
    let mut messages = vec![many_calls()];
    messages.extend((0..MANY).map(|n| {
        json!({"id": format!("r{n}"), "role": "tool", "toolCallId": format!("c{n}~2"), "content": ""})
    }));
    let request = asked_openly(&with_messages(messages.into())).await;
    assert_eq!(request.transcript.last().unwrap().results().len(), MANY);
}

#[tokio::test]
async fn many_calls_with_missing_results_are_accepted() {
    let mut input = with_messages(json!([many_calls()]));
    let request = asked_openly(&input).await;
    assert_eq!(request.transcript.last().unwrap().results().len(), MANY);

    // One call is of a client tool, whose result is missing.
    input["tools"] = json!([{"name": "f7", "description": ""}]);
    let (suspended, _) = asked_openly(&input).await.resume.unwrap().take().unwrap();
    let ResumePoint::UnverifiedHistory(open) = suspended else {
        panic!("{suspended:?}")
    };
    let waiting: Vec<_> = open.waiting().map(|call| call.name.as_str()).collect();
    assert_eq!(waiting, ["f7"]);
}

#[tokio::test]
async fn many_calls_of_many_tools_with_replies_are_accepted() {
    let mut input = with_messages(json!([many_calls()]));
    let tool = |n| json!({"name": format!("f{n}"), "description": ""});
    input["tools"] = (0..MANY).map(tool).collect();
    let answer = |n| {
        let id = format!("m/{n}/c{n}");
        json!({"interruptId": id, "status": "resolved", "payload": {"approved": true}})
    };
    input["resume"] = (0..256).map(answer).collect();
    let (suspended, replies) = asked_openly(&input).await.resume.unwrap().take().unwrap();
    let ResumePoint::UnverifiedHistory(open) = suspended else {
        panic!("{suspended:?}")
    };
    assert_eq!((open.calls().len(), replies.len()), (MANY, 256));
    let ids: Vec<_> = [0, 255, 256]
        .map(|n| open.calls().nth(n).unwrap().0.id.as_str())
        .into();
    assert_eq!(ids, ["c0", "c255", "c256~2"]);
}

#[tokio::test]
async fn many_texts_of_one_message_are_joined() {
    let text = |n| json!({"id": format!("m~{n}"), "role": "assistant", "content": "and "});
    let aside = |n| json!({"id": format!("s{n}"), "role": "reasoning", "content": ""});
    let mut messages = vec![json!({"id": "m", "role": "assistant", "content": "and "})];
    messages.extend((2..MANY).flat_map(|n| [text(n), aside(n)]));
    let request = asked_openly(&with_messages(messages.into())).await;
    assert_eq!(request.transcript.len(), 1);
    let text = request.transcript.last().unwrap().as_message().text();
    assert_eq!(text.len(), 4 * (MANY - 1));
}

// ---- types ----

#[test]
fn the_service_can_be_mounted() {
    fn mountable<S>(_: &S)
    where
        S: Service<http::Request<axum::body::Body>, Error = std::convert::Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
    }
    let service: AgUi<BoxModel> = AgUiLayer::new().layer(BoxModel::new(agent(vec![])));
    mountable(&service);
    let _: axum::Router = axum::Router::new().route_service("/agent", service.clone());
    // Any error type is accepted.
    let boxed = service_fn(async |_: ChatRequest| {
        Err::<ChatResponse<crate::support::Script>, BoxError>("no".into())
    });
    mountable(&AgUiLayer::new().layer(boxed));
    assert!(format!("{service:?}{:?}", AgUiLayer::new()).contains("body_limit"));
}
