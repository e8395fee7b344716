//! The client policy: limits on the size and the content of requests.

mod content;
mod names;

use crate::support::{Answer, Asked, agent, finish, input, open_policy, post, send};
use concentric_core::{AgentLayer, ChatRequest, ChatResponse, Error, ErrorKind, ToolSpec};
use concentric_http::{ClientPolicy, ag_ui::AgUiLayer};
use concentric_layers::{Next, from_fn};
use concentric_tools::{ToolError, Toolset, tool};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{Layer, Service, service_fn};

/// The response under `policy`. The agent must not be called unless the response is a stream.
async fn answer(policy: ClientPolicy, input: &Value) -> Answer {
    let asked = Asked::default();
    let service = AgUiLayer::new()
        .client_policy(policy)
        .body_limit(64 << 20)
        .layer(asked.agent());
    let answer = send(service, post(input.to_string())).await;
    assert_eq!(asked.is_called(), answer.status == 200, "{}", answer.body);
    answer
}

/// The error of a request that is rejected with 422.
#[track_caller]
fn refused(answer: &Answer) -> Value {
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()["error"].clone()
}

fn with(field: &str, value: Value) -> Value {
    let mut input = input();
    input[field] = value;
    input
}

fn messages(count: usize) -> Value {
    let message = |n| json!({"id": format!("m{n}"), "role": "user", "content": ""});
    with("messages", (0..count).map(message).collect())
}

fn calls(count: usize) -> Value {
    let call = |n| {
        json!({"id": format!("c{n}"), "type": "function",
            "function": {"name": "f", "arguments": "{}"}})
    };
    let calls: Vec<Value> = (0..count).map(call).collect();
    let message = json!({"id": "a", "role": "assistant", "toolCalls": calls});
    with("messages", json!([message]))
}

fn parts(count: usize) -> Value {
    let content = vec![json!({"type": "text", "text": ""}); count];
    let message = json!({"id": "u", "role": "user", "content": content});
    with("messages", json!([message]))
}

fn tools(count: usize) -> Value {
    let tool = |n| json!({"name": format!("t{n}"), "description": ""});
    with("tools", (0..count).map(tool).collect())
}

/// A schema of `bytes` bytes.
fn schema(bytes: usize) -> Value {
    let schema = json!({"description": "x".repeat(bytes - r#"{"description":""}"#.len())});
    assert_eq!(schema.to_string().len(), bytes);
    with(
        "tools",
        json!([{"name": "t", "description": "", "parameters": schema}]),
    )
}

fn description(bytes: usize) -> Value {
    let description = "x".repeat(bytes);
    with("tools", json!([{"name": "t", "description": description}]))
}

/// A history that ends with `count` results of client tools.
fn results(count: usize) -> Value {
    let mut input = calls(count);
    let result = |n| json!({"id": format!("r{n}"), "role": "tool", "toolCallId": format!("c{n}"), "content": ""});
    let messages = input["messages"].as_array_mut().unwrap();
    messages.extend((0..count).map(result));
    input["tools"] = json!([{"name": "f", "description": ""}]);
    input
}

fn replies(count: usize) -> Value {
    let reply = |n| json!({"interruptId": format!("i{n}"), "status": "cancelled"});
    with("resume", (0..count).map(reply).collect())
}

fn context(count: usize) -> Value {
    with(
        "context",
        vec![json!({"description": "", "value": ""}); count].into(),
    )
}

fn values(count: usize) -> Value {
    // The rest has 16 values: 11 outside the messages, where they count more, and 5 inside.
    let list = vec![0; count - 16];
    let mut input = input();
    // An unknown field, since values in other fields would count more.
    input["messages"][0]["list"] = list.into();
    input
}

type Shape = (
    &'static str,
    fn(usize) -> Value,
    fn(usize) -> ClientPolicy,
    usize,
);

fn id(bytes: usize) -> Value {
    with("threadId", "x".repeat(bytes).into())
}

/// Each limit: its name, a request of a given size, its setter, and its default.
fn shapes() -> Vec<Shape> {
    vec![
        ("values", values, |n| open_policy().max_values(n), 98_304),
        (
            "messages",
            messages,
            |n| open_policy().max_messages(n),
            10_000,
        ),
        (
            "tool_calls",
            calls,
            |n| open_policy().max_tool_calls(n),
            1024,
        ),
        ("parts", parts, |n| open_policy().max_parts(n), 1024),
        ("tools", tools, |n| open_policy().max_tools(n), 256),
        (
            "tool_schema",
            schema,
            |n| open_policy().max_tool_schema(n),
            65_536,
        ),
        (
            "tool_schema",
            description,
            |n| open_policy().max_tool_schema(n),
            65_536,
        ),
        ("id", id, |n| open_policy().max_id(n), 256),
        (
            "client_results",
            results,
            |n| open_policy().max_client_results(n),
            256,
        ),
        ("replies", replies, |n| open_policy().max_replies(n), 256),
        ("context", context, |n| open_policy().max_context(n), 1024),
    ]
}

#[tokio::test]
async fn an_exceeded_limit_is_named() {
    for (limit, request, _, default) in shapes() {
        let at = answer(ClientPolicy::new(), &request(default)).await;
        assert_eq!(at.status, 200, "{limit}: {}", at.body);
        let over = answer(ClientPolicy::new(), &request(default + 1)).await;
        let error = refused(&over);
        assert_eq!(error["code"], "limit_exceeded", "{limit}");
        assert_eq!(
            (&error["limit"], &error["max"], &error["value"]),
            (&json!(limit), &json!(default), &json!(default + 1)),
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&default.to_string()), "{message}");
    }
}

#[tokio::test]
async fn limits_of_zero_one_and_the_maximum_apply() {
    for (limit, request, policy, _) in shapes() {
        // Some limits have a larger minimum.
        let least = match limit {
            "values" => 20,
            "tool_schema" => 30,
            _ => 1,
        };
        let error = refused(&answer(policy(0), &request(least)).await);
        assert_eq!((&error["limit"], &error["max"]), (&json!(limit), &json!(0)));
        if least == 1 && limit != "id" {
            assert_eq!(answer(policy(1), &request(1)).await.status, 200, "{limit}");
            refused(&answer(policy(1), &request(2)).await);
        }
        let most = answer(policy(usize::MAX), &request(300)).await;
        assert_eq!(most.status, 200, "{limit}: {}", most.body);
    }
    // The ids `t`, `r` and `u` of the input have one byte each.
    assert_eq!(answer(open_policy().max_id(1), &input()).await.status, 200);
}

#[tokio::test]
async fn every_id_has_a_length_limit() {
    let long = "x".repeat(257);
    let message = |message: Value| with("messages", json!([message]));
    let call = |id: &str, name: &str| {
        message(json!({"id": "a", "role": "assistant", "toolCalls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}))
    };
    for (field, request) in [
        ("threadId", with("threadId", json!(long))),
        ("runId", with("runId", json!(long))),
        ("parentRunId", with("parentRunId", json!(long))),
        (
            "messages[0].id",
            message(json!({"id": long, "role": "user", "content": ""})),
        ),
        (
            "messages[0].id",
            message(json!({"id": long, "role": "reasoning", "content": ""})),
        ),
        (
            "messages[0].subagentRunId",
            message(json!({"id": "u", "role": "user", "content": "", "subagentRunId": long})),
        ),
        ("messages[0].toolCalls[0].id", call(&long, "f")),
        ("messages[0].toolCalls[0].function.name", call("c", &long)),
        (
            "messages[0].toolCallId",
            message(json!({"id": "r", "role": "tool", "toolCallId": long, "content": ""})),
        ),
        (
            "tools[0].name",
            with("tools", json!([{"name": long, "description": ""}])),
        ),
    ] {
        let error = refused(&answer(ClientPolicy::new(), &request).await);
        assert_eq!(
            (&error["field"], &error["value"]),
            (&json!(field), &json!(257))
        );
        // The response does not repeat the id.
        assert!(error.to_string().len() < 257);
    }
    // An interrupt id consists of other ids, and may be longer.
    let reply = |bytes| {
        with(
            "resume",
            json!([{"interruptId": "x".repeat(bytes), "status": "cancelled"}]),
        )
    };
    assert_eq!(answer(ClientPolicy::new(), &reply(1024)).await.status, 200);
    let error = refused(&answer(ClientPolicy::new(), &reply(1025)).await);
    assert_eq!(error["field"], "resume[0].interruptId");
}

#[tokio::test]
async fn a_long_request_id_is_ignored() {
    for (bytes, is_taken) in [(256, true), (257, false)] {
        let asked = Asked::default();
        let mut request = post(input().to_string());
        let id = "x".repeat(bytes);
        let header = id.parse().unwrap();
        request.headers_mut().insert("x-request-id", header);
        send(AgUiLayer::new().layer(asked.agent()), request)
            .await
            .events();
        assert_eq!(asked.take().context.request_id().as_str() == id, is_taken);
    }
}

#[tokio::test]
async fn deeply_nested_values_are_a_bad_request() {
    let nested = |depth: usize| {
        let state = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let input = input().to_string();
        format!("{},\"state\":{state}}}", input.strip_suffix('}').unwrap())
    };
    for (depth, status) in [(120, 200), (200, 400), (40_000, 400)] {
        let service = AgUiLayer::new().layer(agent(vec![Ok(finish())]));
        assert_eq!(send(service, post(nested(depth))).await.status, status);
    }
}

#[tokio::test]
async fn objects_outside_of_messages_count_six_times() {
    let policy = || ClientPolicy::new().max_values(1000);
    let state = |objects| with("state", vec![json!({}); objects].into());
    assert_eq!(answer(policy(), &state(100)).await.status, 200);
    let error = refused(&answer(policy(), &state(200)).await);
    assert_eq!(error["limit"], "values");
}

#[tokio::test]
async fn sixteen_escapes_in_strings_count_as_a_value() {
    let policy = || ClientPolicy::new().max_values(1000);
    let text = |escapes: usize| {
        let mut input = input();
        input["messages"][0]["content"] = "\n".repeat(escapes).into();
        input
    };
    assert_eq!(answer(policy(), &text(15_000)).await.status, 200);
    let error = refused(&answer(policy(), &text(16_000)).await);
    assert_eq!(error["limit"], "values");
}

#[tokio::test]
async fn free_form_json_in_messages_counts_as_outside() {
    let requests = |objects: usize| {
        let free = json!({"a": vec![json!({}); objects]});
        let part = json!({"type": "text", "text": "", "metadata": free});
        let mut of_a_call = calls(1);
        of_a_call["messages"][0]["toolCalls"][0]["metadata"] = free.clone();
        let messages = [
            json!({"id": "u", "role": "user", "content": "", "metadata": free}),
            json!({"id": "u", "role": "activity", "activityType": "t", "content": free}),
            json!({"id": "u", "role": "user", "content": [part]}),
            of_a_call["messages"][0].clone(),
        ];
        messages.map(|message| with("messages", json!([message])))
    };
    let policy = || ClientPolicy::new().max_values(1000);
    for request in requests(100) {
        assert_eq!(answer(policy(), &request).await.status, 200);
    }
    for request in requests(200) {
        let error = refused(&answer(policy(), &request).await);
        assert_eq!(error["limit"], "values");
    }
}

proptest! {
    /// The count before parsing is at least the number of values.
    #[test]
    fn every_value_is_counted(state in any_json()) {
        fn count(value: &Value) -> usize {
            1 + match value {
                Value::Array(items) => items.iter().map(count).sum(),
                Value::Object(fields) => fields.values().map(count).sum(),
                _ => 0,
            }
        }
        let input = with("state", state);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let policy = open_policy().max_values(count(&input) - 1);
        let answer = runtime.block_on(answer(policy, &input));
        prop_assert_eq!(answer.status, 422);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        "[\\[\\]{},:\"\\\\a]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map("[\\[{,\"\\\\a]{0,4}", inner, 0..8)
                .prop_map(Value::from_iter),
        ]
    })
}
