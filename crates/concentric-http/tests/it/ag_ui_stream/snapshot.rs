use super::*;
use crate::support::open_policy;
use concentric_core::{Author, Message, MessageId, Role, Round, Turn};

/// A round whose message and call have this id.
pub(super) fn round(id: &str) -> Turn {
    let call = ToolCallPart::new(CallId::new(id), "f", "");
    let parts = vec![Part::text("I look."), Part::new(PartKind::ToolCall(call))];
    let message = Message::new(Role::Assistant, parts).with_id(MessageId::new(id));
    let outcome = ToolOutcome::failed("gone").with_data(json!({"n": 1}));
    let result = ToolResult::new(CallId::new(id), "f", outcome);
    Round::new(message, vec![result]).unwrap().into()
}

#[tokio::test]
async fn a_replaced_conversation_is_a_snapshot() {
    let image = Media::new(MediaSource::Url("https://a/b.png".into()));
    let parts = vec![Part::text("hi"), Part::new(PartKind::Image(image))];
    let parts = parts
        .into_iter()
        .map(|part| part.by(Author::User))
        .collect();
    let user = Message::new(Role::User, parts).with_id(MessageId::new("u"));
    let script = vec![
        step(0, "m"),
        Event::text("I look."),
        call("c", "f", "{}"),
        step_end(0),
        result("c", ToolOutcome::done("ok")),
        Event::TranscriptReplaced(
            [Turn::message(user).unwrap(), round("c"), round("c")]
                .into_iter()
                .collect(),
        ),
        step(1, "c"),
        Event::text("Done."),
        step_end(1),
        finish(),
    ];
    let mut input = input();
    let system = json!({"id": "s", "role": "system", "content": "Be brief."});
    input["messages"]
        .as_array_mut()
        .unwrap()
        .insert(0, system.clone());
    let service = AgUiLayer::new()
        .client_policy(open_policy())
        .layer(agent(ok(script)));
    let events = send(service, post(input.to_string())).await.events();
    let snapshot = of(&events, "MESSAGES_SNAPSHOT")[0];
    let messages = snapshot["messages"].as_array().unwrap();
    assert_eq!(messages[0], system);
    assert_eq!(messages[1]["content"][0]["text"], "hi");
    assert_eq!(messages[1]["content"][1]["type"], "image");
    // The newest call has the id that the client knows, and the other one a new id.
    let mut calls = Vec::new();
    for pair in messages[2..].chunks(2) {
        let call = &pair[0]["toolCalls"][0];
        assert_eq!(
            (&pair[0]["content"], &call["function"]["arguments"]),
            (&json!("I look."), &json!("{}"))
        );
        assert_eq!(pair[1]["toolCallId"], call["id"]);
        assert_eq!(pair[1]["content"], "gone");
        assert_eq!(
            pair[1]["metadata"],
            json!({"status": "failed", "data": {"n": 1}})
        );
        calls.push(call["id"].clone());
    }
    assert_eq!(calls, ["c~2", "c"]);
    assert_eq!(messages.len(), 6);
    // A later message has an id that the snapshot does not have.
    let later = of(&events, "TEXT_MESSAGE_START")[1]["messageId"].clone();
    assert!(
        messages.iter().all(|message| message["id"] != later),
        "{later}"
    );
}

#[tokio::test]
async fn a_sub_agents_conversation_is_not_sent() {
    let replaced = Event::TranscriptReplaced([round("c")].into_iter().collect());
    let inner = SubAgentEvent::new(RunId::new("s"), None, None, replaced);
    let events = events(ok(vec![Event::SubAgent(Box::new(inner)), finish()])).await;
    assert!(of(&events, "MESSAGES_SNAPSHOT").is_empty());
}
