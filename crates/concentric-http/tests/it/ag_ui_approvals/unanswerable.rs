//! Interrupts without a possible reply.

use super::*;

/// Runs `agent` behind an endpoint that sends the full text of errors; returns the events.
async fn with_whole_errors(agent: BoxModel) -> Vec<Value> {
    let service = AgUiLayer::new()
        .error_message(|error| error.message().to_owned())
        .layer(agent);
    send(service, Client::new().request(&json!([])))
        .await
        .events()
}

#[tokio::test]
async fn an_interrupt_without_a_possible_reply_is_an_error() {
    for late in [false, true] {
        let ran = Ran::default();
        let calls = vec![
            ("call_0", "look", json!({})),
            ("call_1", "refund", json!({})),
        ];
        let mut agent = agent(tools(&ran), calls);
        if late {
            agent = BoxModel::new(service_fn(move |request| {
                let agent = agent.clone();
                async move {
                    tokio::task::yield_now().await;
                    agent.oneshot(request).await
                }
            }));
        }
        let events = with_whole_errors(agent).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR", "{events:?}");
        assert_eq!(end(&events)["code"], "configuration");
        let message = end(&events)["message"].as_str().unwrap();
        assert!(message.contains("SuspendLayer"), "{message}");
        assert!(message.contains("Toolset::tokens"), "{message}");
        // The client has the results of the calls that were executed.
        assert_eq!(ran.lines(), ["look {}"]);
        let results = events.iter().filter(|e| e["type"] == "TOOL_CALL_RESULT");
        let results: Vec<_> = results.map(|e| e["toolCallId"].clone()).collect();
        assert_eq!(results, ["call_0"]);
    }
}

#[tokio::test]
async fn a_subagents_interrupt_requires_a_stored_run() {
    let ran = Ran::default();
    let clerk = agent(with_tokens(&ran), refund());
    let toolset = Toolset::new().tool(agent_tool("clerk", "", clerk));
    let outer = agent(toolset, vec![("call_9", "clerk", json!({"task": "Pay."}))]);
    let events = with_whole_errors(outer.clone()).await;
    assert_eq!(end(&events)["code"], "configuration", "{events:?}");
    let message = end(&events)["message"].as_str().unwrap();
    assert!(message.contains("SuspendLayer"), "{message}");
    assert!(!message.contains("tokens"), "{message}");

    let (outer, _) = stored(outer);
    interrupted(&outer).await;
}

#[tokio::test]
async fn a_host_that_stores_runs_can_show_interrupts() {
    let inner = agent(tools(&Ran::default()), refund());
    let host = BoxModel::new(service_fn(move |request: ChatRequest| {
        let inner = inner.clone();
        async move {
            let mut response = inner.oneshot(request).await?;
            response.extensions.insert(Resumable);
            Ok::<_, Error>(response)
        }
    }));
    interrupted(&host).await;
}

#[tokio::test]
async fn a_session_shows_interrupts_and_accepts_replies() {
    let ran = Ran::default();
    let sessions = MakeSession::new(agent(tools(&ran), refund()));
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = BoxModel::new(sessions.oneshot(target).await.unwrap());
    let mut client = interrupted(&session).await;
    let resume = client.answers(&approved());
    let events = client.run(&session, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
    assert_eq!(ran.lines(), [r#"refund {"order":7}"#]);
}
