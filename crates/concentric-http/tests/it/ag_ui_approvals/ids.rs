//! Calls whose ids or messages a client has reused or merged.

use super::*;

#[tokio::test]
async fn reused_ids_are_distinguished() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    let resume = client.answers(&approved());
    client.run(&agent, resume).await;
    client.add_message("again");
    client.run(&agent, json!([])).await;
    let asked = client.pending[0].clone();
    assert_eq!(asked["toolCallId"], "call_0~2");
    assert!(asked["id"].as_str().unwrap().ends_with("/0/call_0"));
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert!(invalid(&events).is_empty());
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(client.results("call_0~2"), ["refund is done"]);
    assert_eq!(ran.lines().len(), 2);
}

#[tokio::test]
async fn text_after_a_call_does_not_abandon_it() {
    let ran = Ran::default();
    let talks = service_fn(|request: ChatRequest| {
        let done = !request
            .transcript
            .last()
            .map_or(&[][..], Turn::results)
            .is_empty();
        let call = Event::tool_call(ToolCallPart::new(CallId::new("c"), "refund", "{}"));
        let mut events = match done {
            true => vec![Event::text("done")],
            false => vec![Event::text("So"), call, Event::text("be it")],
        };
        events.push(crate::support::finish());
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    let agent = BoxModel::new(AgentLayer::new(with_tokens(&ran)).layer(talks));
    let mut client = interrupted(&agent).await;
    assert_eq!(client.messages.len(), 3);
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(ran.lines().len(), 1);
}

#[tokio::test]
async fn merged_client_messages_are_restored() {
    // `@tanstack/ai-client` merges the steps of a run.
    let ran = Ran::default();
    let steps = service_fn(|request: ChatRequest| {
        let rounds = request
            .transcript
            .iter()
            .filter(|turn| !turn.results().is_empty());
        let call = |id, name| Event::tool_call(ToolCallPart::new(CallId::new(id), name, "{}"));
        let body = vec![
            Ok(match rounds.count() {
                0 => call("a", "look"),
                1 => call("b", "refund"),
                _ => Event::text("done"),
            }),
            Ok(crate::support::finish()),
        ];
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    let agent = BoxModel::new(AgentLayer::new(with_tokens(&ran)).layer(steps));
    let mut client = interrupted(&agent).await;
    let [_, first, result, second] = &client.messages[..] else {
        panic!("{:?}", client.messages)
    };
    let mut one = first.clone();
    let call = second["toolCalls"][0].clone();
    one["toolCalls"].as_array_mut().unwrap().push(call);
    client.messages = vec![client.messages[0].clone(), one, result.clone()];
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
    assert_eq!(ran.lines(), ["look {}", "refund {}"]);
    assert_eq!(client.last_text(), "done");
}
