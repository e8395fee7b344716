//! Requests, and their rejection.

use super::*;
use crate::support::{Asked, finish};
use concentric_core::{MediaSource, PartKind, Role};
use concentric_http::{
    ClientPolicy,
    ag_ui::{AgUiContext, AgUiState},
};
use serde_json::Map;

async fn asked(layer: &UiMessagesLayer, input: &Value) -> ChatRequest {
    let asked = Asked::default();
    let answer = ask(layer, asked.agent(), input).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    asked.take()
}

#[tokio::test]
async fn a_response_has_the_headers_of_the_protocol() {
    let answer = ask(&UiMessagesLayer::new(), agent(vec![Ok(finish())]), &hi()).await;
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("x-vercel-ai-ui-message-stream", "v1"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(answer.headers[name], value);
    }
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn messages_become_the_transcript() {
    let part = |state: &str, id: &str| json!({"type": "tool-look", "toolCallId": id, "state": state, "input": {"n": 1}});
    let mut done = part("output-available", "a");
    done["output"] = json!({"rows": 2});
    let mut failed = part("output-error", "b");
    failed["errorText"] = "broken".into();
    let mut partial = part("output-available", "c");
    partial["preliminary"] = true.into();
    let messages = [
        json!({"id": "u", "role": "user", "metadata": {"x": 1}, "parts": [
            {"type": "text", "text": "look"},
            {"type": "data-x", "data": 1},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA",
             "filename": "a.png"}]}),
        json!({"id": "m", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "hm", "state": "done"},
            {"type": "text", "text": "I look."},
            done, failed, partial,
            part("input-streaming", "d"),
            {"type": "step-start"},
            {"type": "text", "text": "Found."},
            {"type": "new-type", "x": 1}]}),
        user("u2", "thanks"),
    ];
    let request = asked(&UiMessagesLayer::new(), &input(&messages)).await;
    let turns: Vec<_> = request.transcript.iter().collect();
    assert_eq!(turns.len(), 4);
    let first = &turns[0].as_message();
    assert_eq!(first.role, Role::User);
    assert_eq!(first.text(), "look");
    let PartKind::Image(image) = &first.parts[1].kind else {
        panic!("no image: {first:?}");
    };
    assert_eq!(image.source, MediaSource::Base64("AAAA".into()));
    assert_eq!(image.name.as_ref().unwrap().as_str(), "a.png");
    let round = turns[1].as_message();
    assert_eq!(round.text(), "I look.");
    let ids: Vec<_> = round.tool_calls().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let results: Vec<_> = turns[1]
        .results()
        .iter()
        .map(|it| it.outcome.content.text())
        .collect();
    assert_eq!(results[..2], ["{\"rows\":2}", "broken"]);
    assert!(results[2].contains("No result"), "{results:?}");
    assert_eq!(turns[2].as_message().text(), "Found.");
}

#[tokio::test]
async fn unknown_fields_of_the_body_are_kept() {
    let mut body = hi();
    body["topic"] = json!({"a": [1]});
    let request = asked(&UiMessagesLayer::new(), &body).await;
    let context = &request.context;
    assert_eq!(context.thread_id().unwrap().as_str(), "chat");
    let sent = context.extensions().get::<AgUiContext>().unwrap();
    assert_eq!(
        sent.forwarded_props.as_deref(),
        Some(&json!({"topic": {"a": [1]}}))
    );
    assert!(context.extensions().get::<AgUiState>().is_some());
    assert!(!context.run_id().as_str().is_empty());
}

#[tokio::test]
async fn invalid_bodies_name_the_field() {
    let body = |change: fn(&mut Map<String, Value>)| {
        let mut body = hi();
        change(body.as_object_mut().unwrap());
        body
    };
    for (input, field) in [
        (body(|it| drop(it.remove("id"))), Some("id")),
        (body(|it| drop(it.remove("messages"))), Some("messages")),
        (
            body(|it| drop(it.insert("trigger".into(), "resume-stream".into()))),
            Some("trigger"),
        ),
        (
            input(&[json!({"id": "u", "role": "tool", "parts": []})]),
            Some("messages[0].role"),
        ),
        (
            input(&[json!({"id": "u", "role": "user"})]),
            Some("messages[0].parts"),
        ),
        (
            input(&[json!({"id": "u", "role": "user", "parts": [{"text": "x"}]})]),
            Some("messages[0].parts[0].type"),
        ),
        (
            input(&[json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": 1}]})]),
            Some("messages[0].parts[0].text"),
        ),
        (json!([]), None),
        (json!("x"), None),
    ] {
        let answer = ask(&UiMessagesLayer::new(), agent(vec![]), &input).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert_eq!(
            answer.json()["error"]["field"].as_str(),
            field,
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn hostile_bodies_are_rejected() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let wide = format!(
        r#"{{"id":"c","messages":[],"x":[{}0]}}"#,
        "0,".repeat(100_000)
    );
    for (body, status) in [
        (format!(r#"{{"id":"c","messages":[],"x":{deep}}}"#), 400),
        (wide, 422),
        (String::new(), 400),
        ("{".to_owned(), 400),
        (format!("{}{}", hi(), hi()), 400),
        (" ".repeat(5 << 20), 413),
    ] {
        let mut request = post(&hi());
        *request.body_mut() = Full::new(body.into());
        let service = UiMessagesLayer::new().layer(agent(vec![]));
        assert_eq!(send(service, request).await.status, status);
    }
    let mut request = post(&hi());
    request
        .headers_mut()
        .insert("content-type", "text/plain".parse().unwrap());
    let service = UiMessagesLayer::new().layer(agent(vec![]));
    assert_eq!(send(service, request).await.status, 415);
    let mut request = post(&hi());
    *request.method_mut() = http::Method::GET;
    let service = UiMessagesLayer::new().layer(agent(vec![]));
    assert_eq!(send(service, request).await.status, 405);
}

#[tokio::test]
async fn the_policy_limits_requests() {
    let file = |url: &str| {
        let part = json!({"type": "file", "mediaType": "image/png", "url": url});
        input(&[json!({"id": "u", "role": "user", "parts": [part]})])
    };
    let long = "x".repeat(300);
    let call = |id: &str, approval: &str| {
        json!({"type": "dynamic-tool", "toolName": "f", "toolCallId": id, "input": {},
            "state": "approval-responded", "approval": {"id": approval, "approved": true}})
    };
    let answer = |part: Value| input(&[json!({"id": "m", "role": "assistant", "parts": [part]})]);
    let system = json!({"id": "s", "role": "system", "parts": [{"type": "text", "text": "x"}]});
    let mut long_id = hi();
    long_id["id"] = long.clone().into();
    for (input, field) in [
        (file("http://10.0.0.1/a.png"), "messages[0].parts[0].url"),
        (
            file("https://example.com/a.png"),
            "messages[0].parts[0].url",
        ),
        (file("file:///etc/passwd"), "messages[0].parts[0].url"),
        (input(std::slice::from_ref(&system)), "messages[0].role"),
        (input(&[user(&long, "x")]), "messages[0].id"),
        (answer(call(&long, "i")), "messages[0].parts[0].toolCallId"),
        (
            answer(call("c", &"x".repeat(1025))),
            "messages[0].parts[0].approval.id",
        ),
        (long_id, "id"),
    ] {
        let answer = ask(&UiMessagesLayer::new(), agent(vec![]), &input).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        assert_eq!(answer.json()["error"]["field"], field);
    }
    let small = ClientPolicy::new().max_messages(1).max_replies(1);
    let layer = UiMessagesLayer::new().client_policy(small);
    let two = input(&[user("a", "x"), user("b", "x")]);
    let replies = input(&[json!({"id": "m", "role": "assistant",
        "parts": [call("a", "i"), call("b", "j")]})]);
    let parts: Vec<Value> = (0..1025).map(|_| json!({"type": "text"})).collect();
    let parts = input(&[json!({"id": "m", "role": "assistant", "parts": parts})]);
    for (input, limit) in [(two, "messages"), (replies, "replies"), (parts, "parts")] {
        let answer = ask(&layer, agent(vec![]), &input).await;
        assert_eq!(answer.json()["error"]["limit"], limit, "{}", answer.body);
    }
    let open = ClientPolicy::new()
        .media_host("example.com")
        .system_messages(true);
    let layer = UiMessagesLayer::new().client_policy(open);
    asked(&layer, &file("https://example.com/a.png")).await;
    let request = asked(&layer, &input(&[system, user("u", "hi")])).await;
    assert_eq!(request.system.iter().count(), 1);
}
