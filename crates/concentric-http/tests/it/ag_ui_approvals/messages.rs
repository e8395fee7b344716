//! Messages that accompany replies.

use super::*;

/// A model that makes `calls`, and then writes their outcomes and the later user messages as text.
pub(super) fn attentive(tools: Toolset, calls: Calls) -> BoxModel {
    let model = service_fn(move |request: ChatRequest| {
        let mut events = Vec::new();
        let turns: Vec<_> = request.transcript.iter().collect();
        match turns.iter().position(|turn| !turn.results().is_empty()) {
            None => events.extend(calls.iter().map(|(id, name, arguments)| {
                let arguments = arguments.to_string();
                Event::tool_call(ToolCallPart::new(CallId::new(*id), *name, arguments))
            })),
            Some(at) => {
                let results = turns[at].results().iter();
                let mut texts: Vec<_> = results
                    .map(|it| it.outcome.content.text().into_owned())
                    .collect();
                texts.extend(turns[at + 1..].iter().map(|turn| turn.as_message().text()));
                events.push(Event::text(texts.join(", ")));
            }
        }
        events.push(crate::support::finish());
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    BoxModel::new(AgentLayer::new(tools).layer(model))
}

/// The agent with each kind of store, and without one.
fn kept_or_not(agent: &BoxModel) -> Vec<(Option<tempfile::TempDir>, BoxModel)> {
    let mut agents = vec![(None, agent.clone())];
    for (dir, store) in stores() {
        agents.push((Some(dir), kept(agent.clone(), &store)));
    }
    agents
}

#[tokio::test]
async fn a_message_with_a_reply_is_added_after_the_round() {
    for (payload, result) in [
        (Some(approved()), "refund is done"),
        (None, "The call was cancelled."),
    ] {
        let ran = Ran::default();
        for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), refund())) {
            let mut client = interrupted(&asking).await;
            let resume = match &payload {
                Some(payload) => client.answers(payload),
                None => json!([{"interruptId": client.pending[0]["id"], "status": "cancelled",
                    "payload": {"token": client.pending[0]["metadata"]["token"]}}]),
            };
            client.add_message("and tell them");
            let events = client.run(&asking, resume).await;
            assert_eq!(
                end(&events)["outcome"],
                json!({"type": "success"}),
                "{events:?}"
            );
            assert_eq!(client.last_text(), format!("{result}, and tell them"));
            assert_eq!(client.results("call_0"), [result]);
            // The next message continues the complete conversation.
            client.add_message("thanks");
            client.run(&asking, json!(null)).await;
            let expected = format!("{result}, and tell them, {result}, and tell them, thanks");
            assert_eq!(client.last_text(), expected);
        }
    }
}

#[tokio::test]
async fn a_message_known_to_the_run_is_not_added_again() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "mail", json!({})),
    ];
    for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), calls)) {
        for keeps_history in [true, false] {
            let mut client = interrupted(&asking).await;
            let first = json!([answer(&client.pending[0], &approved())]);
            client.add_message("one");
            client.run(&asking, first).await;
            assert_eq!(client.pending.len(), 1);
            // Clients send their whole history.
            client.add_message("two");
            if !keeps_history {
                client.messages.retain(|message| message["role"] == "user");
            }
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            if end(&events)["type"] == "RUN_ERROR" {
                // Without a store, the run depends on the history.
                assert!(_dir.is_none() && !keeps_history, "{events:?}");
                continue;
            }
            assert_eq!(client.last_text(), "refund is done, mail is done, one, two");
        }
    }
}

#[tokio::test]
async fn a_reply_may_carry_a_message_and_a_client_result() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
    ];
    for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), calls)) {
        for message_first in [true, false] {
            let (_, mut client) = mixed(&ran);
            client.run(&asking, json!([])).await;
            let resume = client.answers(&approved());
            let result =
                json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"});
            client.messages.push(result);
            client.add_message("go on");
            if message_first {
                let last = client.messages.len() - 1;
                client.messages.swap(last - 1, last);
            }
            let events = client.run(&asking, resume).await;
            assert_eq!(
                end(&events)["outcome"],
                json!({"type": "success"}),
                "{events:?}"
            );
            assert_eq!(client.last_text(), "refund is done, yes, go on");
        }
    }
}

#[tokio::test]
async fn a_session_adds_a_message_that_accompanies_a_reply() {
    let ran = Ran::default();
    let sessions = MakeSession::new(attentive(tools(&ran), refund()));
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = BoxModel::new(sessions.oneshot(target).await.unwrap());
    let mut client = interrupted(&session).await;
    let resume = client.answers(&approved());
    client.add_message("and tell them");
    client.run(&session, resume).await;
    assert_eq!(client.last_text(), "refund is done, and tell them");
}
