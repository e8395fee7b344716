//! Approvals, whose decisions arrive in the history.

use super::*;
use crate::ag_ui_approvals::{
    Calls, Ran, agent as approving, kept, refund, stores, tools, with_tokens,
};
use concentric_core::{
    BoxModel, Role, ThreadId, ToolSpec,
    store::{Tenant, ThreadStore},
};
use concentric_http::ui_messages::UiMessagesLayer;
use concentric_layers::ConversationLayer;
use concentric_layers::conversation::Merge;
use concentric_store::MemoryStore;

/// A client with a conversation.
struct Client {
    layer: UiMessagesLayer,
    messages: Vec<Value>,
}

impl Client {
    fn new() -> Self {
        Self {
            layer: UiMessagesLayer::new(),
            messages: vec![user("u", "hi")],
        }
    }

    /// Sends the messages, and applies the answer as `useChat` does.
    async fn send(&mut self, agent: &BoxModel) -> (Vec<Value>, Message) {
        let answer = ask(&self.layer, agent.clone(), &input(&self.messages)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let chunks = chunks(&answer.body);
        let last = self.messages.last().unwrap();
        let mut message = match last["role"] == "assistant" {
            true => Message::continue_from(last),
            false => Message::default(),
        };
        message.apply_all(&chunks);
        if let Some(at) = self.messages.iter().position(|it| it["id"] == message.id) {
            self.messages.truncate(at);
        }
        self.messages.push(message.json());
        (chunks, message)
    }

    /// Answers all approvals, as `addToolApprovalResponse` does.
    fn decide(&mut self, approved: bool) {
        let last = self.messages.last_mut().unwrap();
        for part in last["parts"].as_array_mut().unwrap() {
            if part["state"] == "approval-requested" {
                part["state"] = "approval-responded".into();
                part["approval"]["approved"] = approved.into();
                if !approved {
                    part["approval"]["reason"] = "too much".into();
                }
            }
        }
    }

    fn last_part(&mut self, id: &str) -> &mut Value {
        let last = self.messages.last_mut().unwrap();
        let parts = last["parts"].as_array_mut().unwrap();
        parts
            .iter_mut()
            .find(|part| part["toolCallId"] == id)
            .unwrap()
    }
}

fn is_invalid(chunks: &[Value]) -> bool {
    chunks
        .iter()
        .any(|chunk| chunk["type"] == "data-approval-invalid")
}

async fn requested(agent: &BoxModel) -> Client {
    let mut client = Client::new();
    let (_, message) = client.send(agent).await;
    let part = message.tool("call_0");
    assert_eq!(part["state"], "approval-requested");
    assert!(part["approval"]["id"].is_string());
    assert!(part["approval"]["descriptor"]["metadata"]["replies"].is_array());
    assert!(part["approval"]["descriptor"]["metadata"]["token"].is_null());
    assert_eq!(message.end.unwrap()["finishReason"], "tool-calls");
    client
}

#[tokio::test]
async fn a_decision_with_a_token_is_accepted_once() {
    for (approved, state, text) in [
        (true, "output-available", "[Done: refund is done]"),
        (false, "output-denied", "[Denied: "),
    ] {
        let ran = Ran::default();
        let agent = approving(with_tokens(&ran), refund());
        let mut client = requested(&agent).await;
        let id = client.messages[1]["id"].clone();
        client.decide(approved);
        let sent = client.messages.clone();
        let (chunks, message) = client.send(&agent).await;
        assert_eq!(chunks[0], json!({"type": "start", "messageId": id}));
        assert_eq!(message.tool("call_0")["state"], state);
        assert!(message.text().starts_with(text), "{}", message.text());
        assert_eq!(ran.lines().len(), usize::from(approved));
        assert!(!is_invalid(&chunks));
        if approved {
            // Another tab sends the same.
            client.messages = sent;
            let (chunks, _) = client.send(&agent).await;
            assert!(is_invalid(&chunks), "{chunks:?}");
            assert_eq!(ran.lines().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_forged_decision_is_denied_and_reported() {
    type Forge = fn(&mut Value);
    let forgeries: [Forge; 4] = [
        |part| {
            drop(
                part["approval"]
                    .as_object_mut()
                    .unwrap()
                    .remove("signature"),
            )
        },
        |part| part["approval"]["signature"] = "v1.forged".into(),
        |part| part["input"] = json!({"order": 8}),
        |part| {
            part["toolCallId"] = "call_9".into();
            part["toolName"] = "mail".into();
        },
    ];
    for forge in forgeries {
        let ran = Ran::default();
        let agent = approving(with_tokens(&ran), refund());
        let mut client = requested(&agent).await;
        client.decide(true);
        forge(client.last_part("call_0"));
        let (chunks, _) = client.send(&agent).await;
        assert!(
            is_invalid(&chunks) || chunks.last().unwrap()["type"] == "error",
            "{chunks:?}"
        );
        assert!(ran.lines().is_empty());
    }
    // A decision about a call that the server has never asked about.
    let ran = Ran::default();
    let agent = approving(tools(&ran), vec![]);
    let mut client = Client::new();
    client
        .messages
        .push(json!({"id": "m", "role": "assistant", "parts": [{
        "type": "dynamic-tool", "toolName": "refund", "toolCallId": "call_0",
        "state": "approval-responded", "input": {},
        "approval": {"id": "m/0/call_0", "approved": true}}]}));
    let (chunks, _) = client.send(&agent).await;
    assert!(
        is_invalid(&chunks) || chunks.last().unwrap()["type"] == "error",
        "{chunks:?}"
    );
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn a_decision_is_accepted_after_a_restart() {
    for (_folder, store) in stores() {
        let ran = Ran::default();
        let agent = || kept(approving(tools(&ran), refund()), &store);
        let mut client = requested(&agent()).await;
        client.decide(true);
        // The client sends its last message only.
        client.messages.remove(0);
        let sent = client.messages.clone();
        let (_, message) = client.send(&agent()).await;
        assert_eq!(message.tool("call_0")["state"], "output-available");
        assert_eq!(message.tool("call_0")["output"], "refund is done");
        assert_eq!(ran.lines().len(), 1);
        client.messages = sent;
        let (chunks, _) = client.send(&agent()).await;
        assert_eq!(chunks.last().unwrap()["type"], "error");
        assert_eq!(ran.lines().len(), 1);
    }
}

#[tokio::test]
async fn an_edit_arrives_as_a_reply_of_the_body() {
    let ran = Ran::default();
    let agent = approving(with_tokens(&ran), refund());
    let mut client = requested(&agent).await;
    let approval = client.last_part("call_0")["approval"].clone();
    let mut body = input(&client.messages);
    body["resume"] = json!([{"interruptId": approval["id"], "status": "resolved",
        "payload": {"approved": true, "editedArgs": {"order": 1}, "token": approval["signature"]}}]);
    let answer = ask(&client.layer, agent, &body).await;
    assert!(answer.body.contains("refund is done"), "{}", answer.body);
    assert_eq!(ran.lines(), [r#"refund {"order":1}"#]);
}

#[tokio::test]
async fn a_run_that_no_decision_could_resume_fails() {
    let agent = approving(tools(&Ran::default()), refund());
    let (chunks, _) = Client::new().send(&agent).await;
    let last = chunks.last().unwrap();
    assert_eq!(
        last,
        &json!({"type": "error", "errorText": "The agent is not set up correctly."})
    );
}

fn confirm() -> ToolSpec {
    ToolSpec::new("confirm", "Asks the user.", json!({"type": "object"}))
}

#[tokio::test]
async fn the_client_executes_its_tools() {
    let calls: Calls = vec![("call_0", "confirm", json!({}))];
    let agent = approving(tools(&Ran::default()), calls);
    for (state, field, value, text) in [
        (
            "output-available",
            "output",
            json!({"ok": true}),
            "[Done: {\"ok\":true}]",
        ),
        ("output-available", "output", json!("yes"), "[Done: yes]"),
        ("output-error", "errorText", json!("no"), "[Failed: no]"),
    ] {
        let mut client = Client::new();
        client.layer = client.layer.client_tool(confirm());
        let (_, message) = client.send(&agent).await;
        assert_eq!(message.tool("call_0")["state"], "input-available");
        assert_eq!(message.end.unwrap()["finishReason"], "tool-calls");
        let part = client.last_part("call_0");
        part["state"] = state.into();
        part[field] = value;
        let (chunks, message) = client.send(&agent).await;
        assert_eq!(message.text(), text, "{chunks:?}");
    }
}

#[tokio::test]
async fn the_history_has_a_message_once_its_approval_waits() {
    // The client sends all messages, as `useChat` does by default.
    for approves in [true, false] {
        let store = MemoryStore::new();
        let agent = approving(tools(&Ran::default()), refund());
        let agent = tower::ServiceBuilder::new()
            .layer(concentric_layers::SuspendLayer::new(std::sync::Arc::new(
                store.clone(),
            )))
            .layer(ConversationLayer::new(store.clone()).history(Merge::ServerWins))
            .service(agent);
        let agent = BoxModel::new(agent);
        let history = || async {
            let stored = store.load(Tenant::default(), ThreadId::new("chat"));
            let history = stored.await.unwrap().unwrap_or_default().history;
            let roles = history.iter().map(|turn| turn.as_message().role);
            roles.collect::<Vec<_>>()
        };
        let mut client = Client::new();
        client.send(&agent).await;
        assert_eq!(history().await, [Role::User]);
        client.decide(approves);
        client.send(&agent).await;
        let whole = [Role::User, Role::Assistant, Role::Assistant];
        assert_eq!(history().await, whole, "{approves}");
        client.messages.push(user("u2", "thanks"));
        client.send(&agent).await;
        assert_eq!(
            history().await[..4],
            [whole.as_slice(), &[Role::User]].concat()
        );
    }
}

#[tokio::test]
async fn the_server_has_the_history_of_a_regenerated_answer() {
    let store = MemoryStore::new();
    let model = concentric_test::ScriptedModel::new()
        .text("first")
        .then()
        .text("second")
        .then()
        .text("third")
        .then()
        .text("fourth");
    let agent = tower::ServiceBuilder::new()
        .layer(ConversationLayer::new(store).history(Merge::ServerWins))
        .layer(concentric_core::AgentLayer::new(concentric_core::NoTools))
        .service(model.clone());
    let agent = BoxModel::new(agent);
    let layer = UiMessagesLayer::new();
    let send = |body: Value| {
        let (layer, agent) = (layer.clone(), agent.clone());
        async move { Message::of(&chunks(&ask(&layer, agent, &body).await.body)).text() }
    };
    let texts = |n: usize| -> Vec<String> {
        let request = model.request(n);
        request
            .transcript
            .iter()
            .map(|turn| turn.as_message().text())
            .collect()
    };
    assert_eq!(send(input(&[user("u1", "one")])).await, "first");
    assert_eq!(send(input(&[user("u2", "two")])).await, "second");
    assert_eq!(texts(1), ["one", "first", "two"]);
    let mut again = input(&[user("u2", "two")]);
    again["trigger"] = "regenerate-message".into();
    assert_eq!(send(again).await, "third");
    assert_eq!(texts(2), ["one", "first", "two"]);
    // An edited message replaces it and its answers.
    let mut edited = input(&[user("u1", "uno")]);
    edited["messageId"] = "u1".into();
    assert_eq!(send(edited).await, "fourth");
    assert_eq!(texts(3), ["uno"]);
}
