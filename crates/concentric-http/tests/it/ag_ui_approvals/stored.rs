//! Replies to an agent whose runs are stored.

use super::*;

#[tokio::test]
async fn a_stored_run_resumes_regardless_of_the_history() {
    for keeps_history in [true, false] {
        let ran = Ran::default();
        let calls = vec![
            ("call_0", "look", json!({})),
            ("call_1", "refund", json!({"order": 7})),
            ("call_2", "note", json!({})),
        ];
        let (agent, _) = stored(agent(tools(&ran), calls));
        let mut client = interrupted(&agent).await;
        assert!(client.pending[0]["metadata"]["token"].is_null());
        let mut late = client.clone();
        if keeps_history {
            client.call("call_1")["function"]["arguments"] = r#"{"order":9}"#.into();
        } else {
            client.messages.truncate(1);
        }
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines(), ["look {}", r#"refund {"order":7}"#, "note {}"]);
        assert_eq!(client.results("call_0").len(), 1);

        let resume = late.answers(&approved());
        let events = late.run(&agent, resume).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR");
        assert_eq!(end(&events)["code"], "run_ended");
    }
}

#[tokio::test]
async fn client_tool_results_reach_a_stored_run() {
    let ran = Ran::default();
    let (_, mut client) = mixed(&ran);
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
        ("call_2", "pick", json!({})),
    ];
    let (agent, store) = stored(agent(tools(&ran), calls));
    client.tools =
        json!([{"name": "confirm", "description": ""}, {"name": "pick", "description": ""}]);
    client.run(&agent, json!([])).await;
    let result = |call: &str| {
        json!({"id": format!("of {call}"), "role": "tool",
        "toolCallId": call, "content": format!("{call}!")})
    };

    client.messages.push(result("call_1"));
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
    assert_eq!(
        end(&events)["metadata"]["pendingToolCallIds"],
        json!(["call_2"])
    );
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["call_2"]})
    );
    client.messages.push(result("call_2"));
    let events = client.run(&agent, json!([])).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success"}),
        "{events:?}"
    );
    assert_eq!(
        client.last_text(),
        "[Done: refund is done][Done: call_1!][Done: call_2!]"
    );
    assert_eq!(ran.lines().len(), 1);
    for call in ["call_0", "call_1", "call_2"] {
        assert_eq!(client.results(call).len(), 1, "{call}");
    }
    let left = store
        .list_by_thread(Tenant::default(), ThreadId::new("t"), None, 1)
        .await;
    assert!(left.unwrap().is_empty());
}

#[tokio::test]
async fn a_client_tool_error_fails_the_call() {
    for with_store in [true, false] {
        let ran = Ran::default();
        let mut agent = agent(with_tokens(&ran), vec![("call_0", "confirm", json!({}))]);
        if with_store {
            (agent, _) = stored(agent);
        }
        let (_, mut client) = mixed(&ran);
        client.run(&agent, json!([])).await;
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_0",
            "content": "", "error": "no screen"}));
        let events = client.run(&agent, json!([])).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Failed: no screen]");
    }
}

#[tokio::test]
async fn late_or_missing_replies_to_a_stored_run_fail() {
    let soon = Approval::for_tools(["refund", "mail"]).expires_after(Duration::from_millis(20));
    for (code, toolset) in [
        ("expired", tools(&Ran::default()).gate(soon)),
        ("missing_reply", tools(&Ran::default()).all_at_once()),
    ] {
        let calls = vec![
            ("call_0", "refund", json!({})),
            ("call_1", "mail", json!({})),
        ];
        let (agent, _) = stored(agent(toolset, calls));
        let mut client = interrupted(&agent).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let resume = json!([answer(&client.pending[0], &approved())]);
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR", "{events:?}");
        assert_eq!(end(&events)["code"], code);
    }
}

#[tokio::test]
async fn the_authenticated_tenant_is_in_the_runs_context() {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let agent = BoxModel::new(service_fn(move |request: ChatRequest| {
        *keep.lock().unwrap() = Some(Tenant::of(&request.context));
        async {
            Ok::<_, Error>(ChatResponse::new(stream::iter(vec![Ok(
                crate::support::finish(),
            )])))
        }
    }));
    let mut client = Client::new();
    client.run(&agent, json!([])).await;
    assert_eq!(seen.lock().unwrap().take(), Some(Tenant::default()));
    client.tenant = Some(Tenant("acme".into()));
    client.run(&agent, json!([])).await;
    assert_eq!(seen.lock().unwrap().take(), Some(Tenant("acme".into())));
}
