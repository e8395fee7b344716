//! Mapping of HTTP requests to the agent's requests, and error responses.

use crate::support::{
    Asked, agent, asked, asked_openly, finish, input, legal, open_policy, post, send, step, types,
};
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Error, Event, Executor,
    InterruptId, MediaSource, NoTools, PartKind, Reply, Role, Suspended, ToolStatus,
    store::StoreError,
};
use concentric_http::ag_ui::{
    AgUi, AgUiContext, AgUiForwardedProps, AgUiLayer, AgUiState, Shutdown,
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
    for (bytes, yields) in [(10, 0), (64 << 10, 2)] {
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
    assert_eq!(context.request_id().unwrap().as_str(), "req-1");
    assert_eq!(context.agent().unwrap().as_str(), "clerk");
    assert!(context.stream_id().is_some());
    let extensions = context.extensions();
    assert_eq!(extensions.get::<User>().unwrap().0, "ada");
    assert_eq!(extensions.get::<AgUiContext>().unwrap()[0].value, "cart");
    assert_eq!(
        extensions.get::<AgUiForwardedProps>().unwrap()["theme"],
        "dark"
    );
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
    let Some((Suspended::Claimed(open), replies)) = request.resume.unwrap().take() else {
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

const MANY: usize = 100_000;

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
    let Suspended::Claimed(open) = suspended else {
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
    let Suspended::Claimed(open) = suspended else {
        panic!("{suspended:?}")
    };
    assert_eq!((open.calls().len(), replies.len()), (MANY, 256));
    let ids: Vec<_> = [0, 255, 256]
        .map(|n| open.calls()[n].call.id.as_str())
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

// ---- rejected requests ----

async fn refused(request: http::Request<Full<Bytes>>) -> (u16, Value, http::HeaderMap) {
    let asked = Asked::default();
    let service = AgUiLayer::new().body_limit(1000).layer(asked.agent());
    let answer = send(service, request).await;
    assert!(!asked.is_called());
    assert_eq!(answer.headers["content-type"], "application/json");
    (
        answer.status,
        answer.json()["error"].clone(),
        answer.headers,
    )
}

#[tokio::test]
async fn only_a_post_starts_a_run() {
    for method in ["GET", "HEAD", "PUT", "OPTIONS", "DELETE"] {
        let mut request = post(input().to_string());
        *request.method_mut() = method.parse().unwrap();
        let (status, error, headers) = refused(request).await;
        assert_eq!(
            (status, &error["code"]),
            (405, &json!("method_not_allowed"))
        );
        assert_eq!(headers["allow"], "POST");
    }
}

#[tokio::test]
async fn only_json_starts_a_run() {
    for value in [
        "text/plain",
        "application/jsonp",
        "json",
        "",
        "application/x-www-form-urlencoded",
    ] {
        let mut request = post(input().to_string());
        request
            .headers_mut()
            .insert("content-type", value.parse().unwrap());
        assert_eq!(refused(request).await.0, 415, "{value}");
    }
    let mut request = post(input().to_string());
    request.headers_mut().remove("content-type");
    assert_eq!(refused(request).await.0, 415);

    for value in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.x+json",
    ] {
        let mut request = post(input().to_string());
        request
            .headers_mut()
            .insert("content-type", value.parse().unwrap());
        let service = AgUiLayer::new().layer(agent(vec![Ok(finish())]));
        send(service, request).await.events();
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_read_to_its_end() {
    let (status, error, _) = refused(post(vec![b' '; 1001])).await;
    assert_eq!((status, &error["code"]), (413, &json!("too_large")));

    // A body of unknown length.
    let pieces = stream::repeat_with(|| {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(&[b' '; 100])))
    });
    let request = post("").map(|_| StreamBody::new(pieces));
    let service = AgUiLayer::new().body_limit(1000).layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 413);

    // A limit of tower-http around the service.
    let request = post(vec![b' '; 2000]).map(|body| http_body_util::Limited::new(body, 1000));
    let service = AgUiLayer::new().layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn an_invalid_body_names_its_field() {
    let mut messages = input();
    messages["messages"][0]["content"] = json!(7);
    let mut tools = input();
    tools["tools"] = json!([{"name": "a", "description": ""}, {"name": "a", "description": ""}]);
    let mut schema = input();
    schema["tools"] = json!([{"name": "a", "description": "", "parameters": "x"}]);
    for (body, field) in [
        (json!({}), json!("threadId")),
        (messages, json!("messages[0].content")),
        (tools, json!("tools[1].name")),
        (schema, json!("tools[0].parameters")),
        (json!(7), json!(null)),
    ] {
        let (status, error, _) = refused(post(body.to_string())).await;
        assert_eq!(status, 400);
        assert_eq!(error["code"], "invalid_request");
        assert_eq!(error["field"], field);
    }
    let (status, error, _) = refused(post("{")).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_request")));
}

#[tokio::test]
async fn resume_entries_become_replies() {
    let mut body = input();
    body["resume"] = json!([{"interruptId": "i", "status": "cancelled"}]);
    let request = asked(&body).await;
    let resume = request.resume.unwrap();
    let Some((Suspended::Elsewhere, replies)) = resume.take() else {
        panic!("the run is not resumed")
    };
    assert_eq!(replies, [Reply::cancel(InterruptId::new("i"))]);
    // All user messages are passed on; the layer that stores the run skips those it has.
    assert_eq!(resume.messages()[0].text(), "hi");
    assert!(request.transcript.is_empty());

    let user = json!({"id": "u", "role": "user", "content": "hi"});
    let mut body = with_messages(json!([user, calls(&["x"])]));
    body["resume"] = json!([{"interruptId": "a/0/x", "status": "resolved",
        "payload": {"approved": true, "token": "t"}}]);
    let request = asked(&body).await;
    let Some((Suspended::Claimed(open), replies)) = request.resume.unwrap().take() else {
        panic!("the run is not resumed")
    };
    assert_eq!(open.waiting().count(), 1);
    let approved = Reply::approve(InterruptId::new("a/0/x")).with_token("t");
    assert_eq!(replies, [approved]);

    body["resume"] = json!([]);
    assert!(asked(&body).await.resume.is_none());
    let many = vec![json!({"interruptId": "i", "status": "cancelled"}); 257];
    body["resume"] = many.into();
    let service = AgUiLayer::new().layer(Asked::default().agent());
    let answer = send(service, post(body.to_string())).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["field"], "resume");
}

#[tokio::test]
async fn a_truncated_body_is_a_bad_request() {
    let body = stream::iter([
        Ok(http_body::Frame::data(Bytes::from_static(b"{"))),
        Err(std::io::Error::other("reset")),
    ]);
    let request = post("").map(|_| StreamBody::new(body));
    let service = AgUiLayer::new().layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 400);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let answer = block_on(send(AgUiLayer::new().layer(agent(vec![Ok(finish())])), post(body)));
        prop_assert_eq!(answer.status, 400);
        prop_assert!(answer.json()["error"]["message"].is_string());
    }

    #[test]
    fn a_mutated_body_is_a_run_or_a_bad_request(
        at in any::<prop::sample::Index>(),
        to in prop_oneof![
            Just(json!(null)), Just(json!(1)), Just(json!("x")), Just(json!([])), Just(json!({})),
            Just(json!([null])), Just(json!(-1e300)), Just(json!("\u{0}")),
        ],
        byte in any::<prop::sample::Index>(),
        flip in prop::option::of(any::<u8>()),
    ) {
        let mut body = full_input();
        let mut paths = Vec::new();
        pointers(&body, String::new(), &mut paths);
        *body.pointer_mut(&paths[at.index(paths.len())]).unwrap() = to;
        let mut bytes = body.to_string().into_bytes();
        if let Some(flip) = flip {
            let at = byte.index(bytes.len());
            bytes[at] = flip;
        }
        let layer = AgUiLayer::new().client_policy(open_policy());
        let service = layer.layer(agent(vec![Ok(finish())]));
        let answer = block_on(send(service, post(bytes)));
        match answer.status {
            200 => drop(legal(&answer.body)),
            400 | 422 => prop_assert!(answer.json()["error"]["code"].is_string()),
            status => prop_assert!(false, "{}", status),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn full_input() -> Value {
    let mut input = with_messages(json!([
        {"id": "s", "role": "system", "content": "s"},
        {"id": "u", "role": "user", "content": [{"type": "text", "text": "x"},
            {"type": "image", "source": {"type": "url", "value": "u"}, "metadata": {"filename": "f"}}]},
        calls(&["x", "x", "y"]),
        {"id": "1", "role": "tool", "toolCallId": "x", "content": "r", "metadata": {"status": "failed"}},
        {"id": "2", "role": "tool", "toolCallId": "z", "content": "r", "error": "e"},
        calls(&["y", "w~2"]),
        {"id": "a~2", "role": "assistant", "content": "more"},
    ]));
    input["tools"] = json!([{"name": "y", "description": "d", "parameters": {}}]);
    input["context"] = json!([{"description": "d", "value": "v"}]);
    input["state"] = json!({"a": [1]});
    input["forwardedProps"] = json!({});
    input["resume"] = json!([
        {"interruptId": "a/0/y", "status": "resolved", "payload": {"approved": true, "token": "t"}},
        {"interruptId": "b/0/w#changed", "status": "cancelled", "metadata": {"token": "t"}},
    ]);
    input["parentRunId"] = json!("p");
    input
}

fn pointers(value: &Value, path: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pointers(value, format!("{path}/{key}"), out);
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                pointers(value, format!("{path}/{at}"), out);
            }
        }
        _ => {}
    }
    out.push(path);
}

// ---- the stream ----

#[tokio::test]
async fn response_headers_disable_buffering() {
    let service = AgUiLayer::new().layer(agent(vec![Ok(finish())]));
    let answer = send(service, post(input().to_string())).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
}

#[tokio::test]
async fn the_run_has_started_before_the_agent_is_ready() {
    // The mock panics if it is called before it is ready.
    let (agent, mut handle) = mock::pair::<ChatRequest, ChatResponse<crate::support::Script>>();
    handle.allow(0);
    let mut service = AgUiLayer::new().keep_alive(None).layer(agent);
    let ready = std::future::poll_fn(|cx| {
        Service::<http::Request<Full<Bytes>>>::poll_ready(&mut service, cx)
    });
    ready.await.unwrap();
    let response = service.call(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let mut task = tokio_test::task::spawn(());
    macro_rules! poll {
        () => {
            task.enter(|cx, _| http_body::Body::poll_frame(body.as_mut(), cx))
        };
    }
    let Poll::Ready(Some(Ok(frame))) = poll!() else {
        panic!("no RUN_STARTED")
    };
    let first = frame.into_data().unwrap();
    assert!(first.starts_with(b"data: {\"type\":\"RUN_STARTED\""));
    assert!(poll!().is_pending());

    handle.allow(1);
    assert!(task.is_woken());
    assert!(poll!().is_pending());
    let (_, answer) = handle.next_request().await.unwrap();
    answer.send_response(ChatResponse::new(stream::iter(vec![
        Ok(Event::text("x")),
        Ok(finish()),
    ])));
    assert!(task.is_woken());
    // All events that are ready together are one chunk.
    let Poll::Ready(Some(Ok(frame))) = poll!() else {
        panic!("no frame")
    };
    let rest = frame.into_data().unwrap();
    let text = String::from_utf8([first, rest].concat()).unwrap();
    assert_eq!(legal(&text).len(), 5);
    assert!(matches!(poll!(), Poll::Ready(None)));
}

#[tokio::test]
async fn an_agent_that_fails_to_get_ready_fails_the_run() {
    let (agent, mut handle) = mock::pair::<ChatRequest, ChatResponse<crate::support::Script>>();
    handle.send_error("down");
    let service = AgUiLayer::new().layer(agent);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
}

#[tokio::test]
async fn chunks_stay_near_their_target_size() {
    let mut script = vec![Ok(step(0, "m"))];
    script.extend((0..10_000).map(|_| Ok(Event::text("twenty bytes of text"))));
    script.push(Ok(finish()));
    let service = AgUiLayer::new().layer(agent(script));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let (mut pieces, mut text) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() < (16 << 10) + 200);
        pieces += 1;
        text.extend_from_slice(&data);
    }
    assert!((10..100).contains(&pieces), "{pieces}");
    legal(std::str::from_utf8(&text).unwrap());
}

/// An agent whose model has one event per wake-up, after a pause before each.
fn one_event_per_wake(
    pause: Duration,
) -> impl Service<ChatRequest, Response = ChatResponse<BoxStream>, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |_: ChatRequest| async move {
        let events = (0..50).map(|_| Event::text("twenty bytes of text"));
        let events = stream::iter(events.chain([finish()]));
        let body = futures_util::StreamExt::then(events, move |event| async move {
            match pause.is_zero() {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(pause).await,
            }
            Ok::<_, Error>(event)
        });
        Ok::<_, Error>(ChatResponse::new(Box::pin(body) as BoxStream))
    })
}

type BoxStream = std::pin::Pin<Box<dyn Stream<Item = crate::support::Item> + Send>>;

/// The number of text deltas in each chunk of a response.
async fn deltas(pause: Duration) -> Vec<usize> {
    let service = AgUiLayer::new().layer(one_event_per_wake(pause));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let (mut deltas, mut text) = (Vec::new(), String::new());
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        let chunk = std::str::from_utf8(&data).unwrap();
        deltas.push(chunk.matches("TEXT_MESSAGE_CONTENT").count());
        text.push_str(chunk);
    }
    legal(&text);
    deltas
}

#[tokio::test(start_paused = true)]
async fn events_in_quick_succession_are_merged() {
    // The first text is not held back.
    assert_eq!(deltas(Duration::ZERO).await, [0, 1, 49]);
}

#[tokio::test(start_paused = true)]
async fn events_with_pauses_are_not_held_back() {
    let expected: Vec<usize> = [0].into_iter().chain([1; 50]).chain([0]).collect();
    assert_eq!(deltas(secs(1)).await, expected);
}

#[tokio::test]
async fn an_agent_without_output_yields_to_other_tasks() {
    let silent = service_fn(async |_: ChatRequest| {
        let body = stream::repeat_with(|| Ok(Event::Resumed));
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let service = AgUiLayer::new().layer(silent);
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    let mut task = tokio_test::task::spawn(body.frame());
    assert!(task.poll().is_pending());
    assert!(task.is_woken());
}

fn silent() -> impl Service<
    ChatRequest,
    Response = ChatResponse<impl Stream<Item = crate::support::Item> + Send + 'static>,
    Error = Error,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(async |_: ChatRequest| {
        let body = stream::once(std::future::ready(Ok(Event::text("x"))));
        Ok::<_, Error>(ChatResponse::new(futures_util::StreamExt::chain(
            body,
            stream::pending(),
        )))
    })
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive() {
    let service = AgUiLayer::new().keep_alive(secs(7)).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    let start = tokio::time::Instant::now();
    for n in 1..4 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), ": keep-alive\n\n");
        assert_eq!(start.elapsed().as_secs_f64().round() as u64, 7 * n);
    }

    let service = AgUiLayer::new().keep_alive(None).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert!(
        tokio::time::timeout(secs(1000), body.frame())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn dropping_the_body_drops_the_run() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = dropped.clone();
    let model = service_fn(move |_: ChatRequest| {
        let guard = Guard(counter.clone());
        let mut first = true;
        let body = stream::poll_fn(move |_| {
            let _ = &guard;
            if std::mem::take(&mut first) {
                return Poll::Ready(Some(Ok::<_, Error>(Event::text("x"))));
            }
            Poll::Pending
        });
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let service = AgUiLayer::new().layer(agent);
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(body);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_run_is_dropped_before_its_terminal_event() {
    let shutdown = Shutdown::new();
    let service = AgUiLayer::new()
        .shutdown(shutdown.clone())
        .layer(agent(vec![Ok(finish())]));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    assert_eq!(shutdown.streams(), 1);
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(&body));
    drop(body);
    assert_eq!(shutdown.streams(), 0);
}

#[tokio::test]
async fn an_unwritable_state_is_reported_as_too_large() {
    let error = StoreError::unwritable("state of 9 bytes exceeds the limit of 8 bytes");
    let service = AgUiLayer::new().layer(agent(vec![Err(error.into())]));
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(events.last().unwrap()["code"], "too_large");
}

// ---- shutting down ----

#[tokio::test(start_paused = true)]
async fn a_shutdown_rejects_runs_and_ends_streams_after_the_grace() {
    let shutdown = Shutdown::new();
    let model = silent();
    let service = AgUiLayer::new()
        .keep_alive(None)
        .shutdown(shutdown.clone())
        .layer(AgentLayer::new(NoTools).layer(model));
    let response = service
        .clone()
        .oneshot(post(input().to_string()))
        .await
        .unwrap();
    let reader = tokio::spawn(response.into_body().collect());
    tokio::time::sleep(secs(1)).await;

    let start = tokio::time::Instant::now();
    shutdown.begin(secs(20));
    shutdown.begin(secs(2000));
    let answer = send(service.clone(), post(input().to_string())).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.json()["error"]["code"], "shutting_down");

    shutdown.drained().await;
    assert_eq!(start.elapsed().as_secs_f64().round() as u64, 20);
    let body = reader.await.unwrap().unwrap().to_bytes();
    let events = legal(std::str::from_utf8(&body).unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["outcome"], json!({"type": "cancelled"}));
    assert_eq!(last["metadata"], json!({"reason": "shutdown"}));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_the_shutdown_is_dropped() {
    let shutdown = Shutdown::new();
    let service = AgUiLayer::new().shutdown(shutdown.clone()).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let reader = tokio::spawn(response.into_body().collect());
    tokio::time::sleep(secs(1)).await;
    let start = tokio::time::Instant::now();
    shutdown.begin(secs(60));
    tokio::time::sleep(secs(1)).await;
    // A second call without grace.
    shutdown.begin(Duration::ZERO);
    shutdown.drained().await;
    assert_eq!(start.elapsed().as_secs_f64().round() as u64, 6);
    let body = reader.await.unwrap().unwrap().to_bytes();
    let events = legal(std::str::from_utf8(&body).unwrap());
    assert_eq!(events.last().unwrap()["outcome"]["type"], "cancelled");
}

#[tokio::test]
async fn drained_resolves_at_once_without_streams() {
    let shutdown = Shutdown::new();
    let mut drained = tokio_test::task::spawn(shutdown.drained());
    assert!(drained.poll().is_pending());
    shutdown.begin(secs(1));
    assert!(drained.is_woken());
    assert!(drained.poll().is_ready());
}

#[tokio::test]
async fn a_cancelled_run_ends_as_cancelled() {
    let cancelled = service_fn(async |request: ChatRequest| {
        request.context.cancel(CancelReason::Other("spent".into()));
        Err::<ChatResponse<crate::support::Script>, _>(Error::new(
            concentric_core::ErrorKind::Cancelled,
            "the run was cancelled",
        ))
    });
    let service = AgUiLayer::new().layer(cancelled);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(events[1]["outcome"]["type"], "cancelled");
    assert_eq!(events[1]["metadata"]["reason"], "spent");
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
