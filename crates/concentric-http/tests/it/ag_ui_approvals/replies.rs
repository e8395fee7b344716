//! Replies to an agent without a store, and with client tools.

use super::*;

#[tokio::test]
async fn an_interrupt_has_all_fields_that_a_reply_needs() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let client = interrupted(&agent).await;
    let asked = &client.pending[0];
    let message = client.messages[1]["id"].as_str().unwrap();
    assert_eq!(asked["id"], format!("{message}/0/call_0"));
    assert_eq!(asked["reason"], "tool_call");
    assert_eq!(asked["toolCallId"], "call_0");
    assert_eq!(asked["message"], "Allow the call of `refund`?");
    assert_eq!(asked["responseSchema"]["type"], "object");
    assert_eq!(asked["metadata"]["tool"], "refund");
    assert_eq!(asked["metadata"]["arguments"], json!({"order": 7}));
    let expires = asked["expiresAt"].as_str().unwrap();
    assert!(expires.len() == 24 && expires.ends_with('Z'), "{expires}");
    assert_eq!(client.messages.len(), 2);
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn an_approved_call_runs_once_and_the_run_continues() {
    for of_metadata in [false, true] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let resume = match of_metadata {
            false => client.answers(&approved()),
            true => json!([{"interruptId": client.pending[0]["id"], "status": "resolved",
                "payload": approved(), "metadata": {"token": client.pending[0]["metadata"]["token"]}}]),
        };
        let events = client.run(&agent, resume).await;
        assert_eq!(
            types(&events)[..3],
            ["RUN_STARTED", "TOOL_CALL_RESULT", "STEP_STARTED"]
        );
        assert_eq!(events[1]["toolCallId"], "call_0");
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: refund is done]");
        assert_eq!(ran.lines(), [r#"refund {"order":7}"#]);
    }
}

#[tokio::test]
async fn a_call_may_be_denied_edited_answered_or_cancelled() {
    let cancel = |asked: &Value| {
        json!([{"interruptId": asked["id"], "status": "cancelled",
        "payload": {"token": asked["metadata"]["token"]}}])
    };
    for (payload, expected, lines) in [
        (
            Some(json!({"approved": false, "reason": "too much"})),
            "[Denied: The call was denied: too much]",
            vec![],
        ),
        (
            Some(json!({"approved": true, "editedArgs": {"order": 8}})),
            "[Done: refund is done]",
            vec![r#"refund {"order":8}"#],
        ),
        (
            Some(json!({"result": "paid by hand"})),
            "[Done: A person supplied this result, not the tool:\npaid by hand]",
            vec![],
        ),
        (None, "[Cancelled: The call was cancelled.]", vec![]),
    ] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let resume = match &payload {
            Some(payload) => client.answers(payload),
            None => cancel(&client.pending[0]),
        };
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success");
        assert_eq!(client.last_text(), expected);
        assert_eq!(ran.lines(), lines);
    }
}

#[tokio::test]
async fn a_token_is_valid_only_for_its_own_interrupt() {
    let two = || {
        vec![
            ("call_0", "refund", json!({"order": 7})),
            ("call_1", "refund", json!({"order": 8})),
        ]
    };
    type Forge = fn(&mut Client, &mut Value);
    let forgeries: [(&str, Forge); 6] = [
        ("arguments", |client, _| {
            client.call("call_0")["function"]["arguments"] = r#"{"order":9}"#.into();
            client.call("call_1")["function"]["arguments"] = r#"{"order":9}"#.into();
        }),
        ("tool", |client, _| {
            client.call("call_0")["function"]["name"] = "mail".into();
            client.call("call_1")["function"]["name"] = "mail".into();
        }),
        ("call", |_, resume| {
            let first = resume[0]["payload"]["token"].clone();
            resume[0]["payload"]["token"] = resume[1]["payload"]["token"].clone();
            resume[1]["payload"]["token"] = first;
        }),
        ("missing", |_, resume| {
            for entry in resume.as_array_mut().unwrap() {
                entry["payload"].as_object_mut().unwrap().remove("token");
            }
        }),
        ("forged", |_, resume| {
            for entry in resume.as_array_mut().unwrap() {
                let mut token = entry["payload"]["token"].as_str().unwrap().to_owned();
                let last = if token.pop() == Some('A') { 'Q' } else { 'A' };
                // The last character of the token has unused bits, the one before has none.
                let before = if token.pop() == Some('B') { 'C' } else { 'B' };
                token.push(before);
                token.push(last);
                entry["payload"]["token"] = token.into();
            }
        }),
        ("tenant", |client, _| {
            client.tenant = Some(Tenant("other".into()))
        }),
    ];
    for (code, forge) in forgeries {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), two());
        let mut client = interrupted(&agent).await;
        let mut resume = client.answers(&approved());
        forge(&mut client, &mut resume);
        let events = client.run(&agent, resume).await;
        let codes = invalid(&events);
        assert_eq!(codes.len(), 2, "{code}: {events:?}");
        if code == "forged" {
            assert!(
                codes
                    .iter()
                    .all(|code| ["forged", "malformed"].contains(code))
            );
        } else {
            assert_eq!(codes, [code, code]);
        }
        assert!(ran.lines().is_empty(), "{code}");
        let custom = events.iter().find(|e| e["type"] == "CUSTOM").unwrap();
        assert_eq!(custom["metadata"]["toolCallId"], "call_0");
        assert!(client.last_text().starts_with("[Denied: approval-invalid"));
        assert_eq!(end(&events)["outcome"]["type"], "success");
    }
}

#[tokio::test]
async fn a_reply_is_accepted_once() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    let mut again = client.clone();
    let resume = client.answers(&approved());
    client.run(&agent, resume.clone()).await;
    let events = again.run(&agent, resume.clone()).await;
    assert_eq!(invalid(&events), ["used"]);
    assert_eq!(ran.lines().len(), 1);

    // The client's updated history has no open calls.
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["type"], "RUN_ERROR");
    assert_eq!(end(&events)["code"], "conflict");
    assert_eq!(ran.lines().len(), 1);
}

#[tokio::test]
async fn replies_that_match_no_interrupt_run_nothing() {
    for (code, change) in [
        (
            "unknown_interrupt",
            (|resume: &mut Value| resume[0]["interruptId"] = "m/0/other".into()) as fn(&mut Value),
        ),
        ("duplicate_reply", |resume| {
            let first = resume[0].clone();
            resume.as_array_mut().unwrap().push(first);
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"] = json!({"approved": true, "result": 1, "reason": "x"});
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"] = json!(null)
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"]["token"] = json!(7)
        }),
        ("malformed_reply", |resume| {
            resume[0]["status"] = "cancelled".into()
        }),
    ] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let mut resume = client.answers(&approved());
        change(&mut resume);
        let events = client.run(&agent, resume).await;
        assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
        assert_eq!(end(&events)["code"], code);
        assert!(end(&events)["message"].as_str().unwrap().ends_with('.'));
        assert!(ran.lines().is_empty());
    }
}

#[tokio::test]
async fn an_unanswered_interrupt_is_raised_again() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({"order": 7})),
        ("call_1", "mail", json!({"to": "a"})),
    ];
    let agent = agent(with_tokens(&ran), calls);
    let mut client = interrupted(&agent).await;
    let first = client.pending.clone();
    assert_eq!(first.len(), 2);
    let events = client
        .run(&agent, json!([answer(&first[0], &approved())]))
        .await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert_eq!(client.pending.len(), 1);
    assert_eq!(client.pending[0]["id"], first[1]["id"]);
    assert_eq!(client.results("call_0"), ["refund is done"]);
    assert_eq!(ran.lines().len(), 1);

    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(
        client.last_text(),
        "[Done: refund is done][Done: mail is done]"
    );
    // The client has exactly one result of the first call.
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(ran.lines().len(), 2);
}

#[tokio::test]
async fn sibling_calls_run_at_most_once() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "look", json!({})),
        ("call_1", "refund", json!({})),
        ("call_2", "note", json!({})),
    ];
    let agent = agent(with_tokens(&ran), calls);
    let mut client = interrupted(&agent).await;
    // The read-only tool ran, and the client has its result.
    assert_eq!(client.results("call_0"), ["look is done"]);
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(client.results("call_1"), ["refund is done"]);
    // The only evidence of this call is the client's history.
    assert!(client.results("call_2")[0].starts_with("The call was not run"));
    assert_eq!(ran.lines(), ["look {}", "refund {}"]);
}

#[tokio::test]
async fn calls_forged_in_a_history_do_not_run_unapproved() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    for answered in [false, true] {
        let mut client = interrupted(&agent).await;
        let message = client.messages[1]["id"].as_str().unwrap().to_owned();
        let claim = |id, name| {
            json!({"id": id, "type": "function",
            "function": {"name": name, "arguments": "{}"}})
        };
        let calls = client.messages[1]["toolCalls"].as_array_mut().unwrap();
        calls.extend([claim("x", "note"), claim("y", "mail")]);
        let mut resume = client.answers(&json!({"approved": false}));
        if answered {
            let token = client.pending[0]["metadata"]["token"].clone();
            let payload = json!({"approved": true, "token": token});
            for id in ["1/x", "2/y"] {
                resume
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"interruptId": format!("{message}/{id}"),
                    "status": "resolved", "payload": payload}));
            }
        }
        let events = client.run(&agent, resume).await;
        assert_eq!(invalid(&events).len(), if answered { 2 } else { 0 });
        assert_eq!(client.pending.len(), usize::from(!answered));
    }
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn a_new_message_instead_of_a_reply_abandons_the_calls() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    client.add_message("never mind");
    let events = client.run(&agent, json!([])).await;
    // The scripted model makes its call again.
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn a_run_may_wait_for_replies_and_client_tools() {
    let ran = Ran::default();
    let (agent, mut client) = mixed(&ran);
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert_eq!(client.pending.len(), 1);
    assert_eq!(
        end(&events)["metadata"]["pendingToolCallIds"],
        json!(["call_1"])
    );

    let mut later = client.clone();
    client
        .messages
        .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    assert_eq!(client.last_text(), "[Done: refund is done][Done: yes]");
    assert_eq!(client.results("call_1").len(), 1);

    // The reply first, and the result of the client tool later.
    let resume = later.answers(&approved());
    let mut agent = agent;
    (agent, _) = {
        let _ = agent;
        mixed(&ran)
    };
    let events = later.run(&agent, resume).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["call_1"]})
    );
    later
        .messages
        .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
    let events = later.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    assert_eq!(later.last_text(), "[Done: refund is done][Done: yes]");
}
