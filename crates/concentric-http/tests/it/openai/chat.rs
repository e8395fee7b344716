use super::*;
use concentric_core::{MessageId, Outcome, StepStart, interrupt};

fn step(n: u32) -> Event {
    Event::StepStart(Box::new(StepStart::new(n, MessageId::new("m"))))
}

#[tokio::test]
async fn a_whole_answer_has_text_usage_and_the_requested_model() {
    let api = api(ok([Event::text("Hel"), Event::text("lo"), finish()]));
    let reply = send(&api, chat(json!({}))).await;
    assert_eq!((reply.status, reply.cut.is_none()), (200, true));
    assert_eq!(reply.headers["content-type"], "application/json");
    let answer = reply.json();
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-run_"));
    assert!(answer["created"].as_u64().unwrap() > 0);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "m");
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hello");
    assert_eq!(choice["message"]["refusal"], Value::Null);
    assert_eq!(choice["message"].get("tool_calls"), None);
    assert_eq!(answer["usage"]["prompt_tokens"], 10);
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["usage"]["total_tokens"], 15);
}

#[tokio::test]
async fn a_stream_ends_with_done_and_has_usage_if_it_is_requested() {
    let api = api(ok([Event::text("Hel"), Event::text("lo"), finish()]));
    let reply = send(&api, chat(json!({"stream": true}))).await;
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(sum(&events).0, "Hello");
    assert_eq!(events.last().unwrap(), "[DONE]");
    let last = &events[events.len() - 2];
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(events.iter().all(|event| event.get("usage").is_none()));

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = send(&api, chat(options)).await.events();
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 15);
    for event in &events[..events.len() - 2] {
        assert_eq!(event["usage"], Value::Null);
    }
    // All chunks have one identity.
    let chunks = &events[..events.len() - 1];
    assert!(chunks.iter().all(|chunk| chunk["id"] == events[0]["id"]));
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_have_the_same_content() {
    let scripts = [
        vec![finish()],
        vec![Event::text("a"), refusal("no"), Event::text("b"), finish()],
        vec![refusal("I can"), refusal("not."), finish()],
        vec![
            Event::text(""),
            Event::text("\r\n\0\u{2028}\u{1f600}\"\\\u{7f}"),
            finish(),
        ],
        vec![
            Event::text("Looking."),
            call_start(0, "c0", "look"),
            call_delta(0, "{\"a\""),
            call_start(1, "c1", "find"),
            call_delta(1, "{}"),
            call_delta(0, ":1}"),
            call("c0", "look", "{\"a\":1}"),
            call("c1", "find", "{}"),
            finish_by(FinishReason::ToolCalls),
        ],
        // Without previews, and a tool that was not offered.
        vec![
            call("c0", "look", "{}"),
            call("c1", "other", "[]"),
            finish(),
        ],
        vec![
            step(0),
            Event::text("One."),
            step(1),
            Event::text("Two."),
            Event::text(" Three."),
            finish_by(FinishReason::Length),
        ],
        vec![
            call_start(0, "c0", "look"),
            call_delta(0, "{\"a"),
            finish_by(FinishReason::Length),
        ],
    ];
    for script in scripts {
        let tools = chat_tools(&["look", "find"]);
        for api in [api(ok(script.clone())), slow_api(ok(script.clone()))] {
            let whole = send(&api, chat(json!({"tools": tools}))).await.json();
            let request = chat(json!({"tools": tools, "stream": true}));
            let events = send(&api, request).await.events();
            let choice = &whole["choices"][0];
            assert_eq!(sum(&events), sum_of(&choice["message"]), "{script:?}");
            let last = &events[events.len() - 2]["choices"][0];
            assert_eq!(last["finish_reason"], choice["finish_reason"]);
        }
    }
}

#[tokio::test]
async fn texts_of_steps_are_separated_by_a_blank_line() {
    let script = [
        step(0),
        Event::text("One."),
        step(1),
        step(2),
        Event::text("Two."),
        finish(),
    ];
    let answer = send(&api(ok(script)), chat(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "One.\n\nTwo.");
}

#[tokio::test]
async fn reasoning_is_not_shown_unless_the_host_allows_it() {
    let script = ok([
        reasoning("Wh"),
        reasoning("y?"),
        Event::text("a"),
        reasoning("So."),
        Event::text("b"),
        finish(),
    ]);
    let hidden = send(&api(script.clone()), chat(json!({}))).await;
    assert!(!hidden.body.contains("reasoning_content"));
    let answer = hidden.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");

    // Reasoning does not divide the text of a step.
    let api = api(script).reasoning(true);
    let answer = send(&api, chat(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "ab");
    assert_eq!(message["reasoning_content"], "Why?\n\nSo.");
    let events = send(&api, chat(json!({"stream": true}))).await.events();
    assert_eq!(sum(&events).0, "ab");
    let deltas = events.iter().filter_map(|event| event["choices"].get(0));
    let deltas = deltas.filter_map(|choice| choice["delta"]["reasoning_content"].as_str());
    assert_eq!(deltas.collect::<String>(), "Why?\n\nSo.");
}

#[tokio::test]
async fn refusals_and_finish_reasons_are_passed_on() {
    let answer = send(&api(ok([refusal("No."), finish()])), chat(json!({})))
        .await
        .json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["refusal"]),
        (&Value::Null, &json!("No."))
    );
    for (reason, expected) in [
        (FinishReason::Stop, "stop"),
        (FinishReason::Length, "length"),
        (FinishReason::ContentFilter, "content_filter"),
        (FinishReason::ToolCalls, "stop"),
        (FinishReason::Other("?".into()), "stop"),
    ] {
        let api = api(ok([Event::text("a"), finish_by(reason)]));
        let answer = send(&api, chat(json!({}))).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], expected);
    }
}

#[tokio::test]
async fn the_clients_tools_are_called_and_the_agents_are_not_shown() {
    let steps = vec![
        vec![Event::text("Paying."), call("c0", "pay", "{}")],
        vec![call("c1", "show", "{\"a\":1}"), call("c2", "show", "{}")],
    ];
    let (agent, paid) = agent(steps, ok([Event::text("Done."), finish()]));
    let api = OpenAi::new().model("m", agent);
    for stream in [false, true] {
        let fields = json!({"tools": chat_tools(&["show"]), "stream": stream});
        let reply = send(&api, chat(fields)).await;
        let (reason, (content, _, calls)) = if stream {
            let events = reply.events();
            let last = events[events.len() - 2]["choices"][0]["finish_reason"].clone();
            (last, sum(&events))
        } else {
            let choice = reply.json()["choices"][0].clone();
            (choice["finish_reason"].clone(), sum_of(&choice["message"]))
        };
        assert_eq!(
            (reason, content),
            (json!("tool_calls"), "Paying.".to_owned())
        );
        let calls: Vec<(&str, &str)> = calls.iter().map(|c| (&*c[1], &*c[2])).collect();
        assert_eq!(calls, [("show", "{\"a\":1}"), ("show", "{}")]);
    }
    assert_eq!(paid.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_answered_call_is_not_sent_to_the_client() {
    // A gate or a layer has answered the call of the client's tool.
    let result = concentric_core::ToolResult::new(
        CallId::new("c0"),
        "show",
        concentric_core::ToolOutcome::denied("no"),
    );
    let script = [
        step(0),
        call_start(0, "c0", "show"),
        call("c0", "show", "{}"),
        Event::ToolResult(Box::new(result)),
        step(1),
        Event::text("I may not."),
        finish(),
    ];
    let fields = json!({"tools": chat_tools(&["show"]), "stream": true});
    let events = send(&api(ok(script)), chat(fields)).await.events();
    assert_eq!(
        sum(&events),
        ("I may not.".to_owned(), String::new(), vec![])
    );
}

#[tokio::test]
async fn a_repeated_call_id_gets_a_number() {
    let history = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "c0_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "c0_2", "content": "b"},
        {"role": "tool", "tool_call_id": "c0", "content": [{"type": "text", "text": "a"}]},
    ]);
    let api = api(ok([
        call("c0", "look", "{}"),
        call("c1", "look", "{}"),
        finish(),
    ]));
    let fields = json!({"messages": history, "tools": chat_tools(&["look"])});
    let answer = send(&api, chat(fields)).await.json();
    let calls = sum_of(&answer["choices"][0]["message"]).2;
    assert_eq!([&*calls[0][0], &*calls[1][0]], ["c0_3", "c1"]);
}

#[tokio::test]
async fn a_reset_fails_a_stream_only_if_it_takes_something_back() {
    let early = [step(0), Event::Reset, Event::text("b"), finish()];
    let events = send(&api(ok(early)), chat(json!({"stream": true})))
        .await
        .events();
    assert_eq!(sum(&events).0, "b");

    let late = [
        step(0),
        Event::text("a"),
        Event::Reset,
        Event::text("b"),
        finish(),
    ];
    let answer = send(&slow_api(ok(late.clone())), chat(json!({})))
        .await
        .json();
    assert_eq!(answer["choices"][0]["message"]["content"], "b");
    let reply = send(&slow_api(ok(late)), chat(json!({"stream": true}))).await;
    assert_eq!(
        reply.events().last().unwrap()["error"]["code"],
        "upstream_protocol"
    );
    assert!(reply.cut.is_some());
}

#[tokio::test]
async fn a_call_that_differs_from_its_preview_fails_a_stream() {
    let script = [
        call_start(0, "c", "look"),
        call_delta(0, "{\"a\":1"),
        call("c", "look", "{}"),
        finish(),
    ];
    let fields = |stream| json!({"tools": chat_tools(&["look"]), "stream": stream});
    let answer = send(&slow_api(ok(script.clone())), chat(fields(false)))
        .await
        .json();
    assert_eq!(sum_of(&answer["choices"][0]["message"]).2[0][2], "{}");
    let reply = send(&slow_api(ok(script)), chat(fields(true))).await;
    assert!(reply.events().last().unwrap()["error"].is_object());
    assert!(reply.cut.is_some());
}

#[tokio::test]
async fn outcomes_other_than_completion_are_marked() {
    for (outcome, name) in [
        (Outcome::Halted { reason: "x".into() }, "halted"),
        (Outcome::StepLimit, "step_limit"),
        (Outcome::CallLimit, "call_limit"),
    ] {
        let script = ok([Event::text("a"), crate::support::finish_with(outcome)]);
        let answer = send(&api(script.clone()), chat(json!({}))).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["concentric"]["outcome"], name);
        let events = send(&api(script), chat(json!({"stream": true})))
            .await
            .events();
        assert_eq!(events[events.len() - 2]["concentric"]["outcome"], name);
    }
}

#[tokio::test]
async fn a_run_that_waits_for_an_approval_is_an_error() {
    use concentric_tools::Approval;

    let pay = tool("pay", "Pays.", |_: Value| async {
        Ok::<_, ToolError>("paid".to_owned())
    });
    let tools = Toolset::new().tool(pay).gate(Approval::for_tools("pay"));
    let model = crate::support::agent(ok([call("c0", "pay", "{}"), finish()]));
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
    let store = concentric_store::MemoryStore::new();
    let agent = concentric_layers::SuspendLayer::new(Arc::new(store)).layer(agent);
    let api = OpenAi::new().model("m", agent);
    for request in [chat(json!({})), chat(json!({"stream": true}))] {
        let reply = send(&api, request).await;
        assert_eq!(reply.status, 409, "{}", reply.body);
        assert_eq!(reply.headers["x-should-retry"], "false");
        let error = reply.error();
        assert_eq!(error["code"], "approval_required");
        let asked = &error["concentric"]["interrupts"][0];
        assert_eq!(asked["reason"], interrupt::TOOL_CALL.as_str());
    }
}

#[tokio::test]
async fn an_answer_of_one_mebibyte_in_one_token_is_sent() {
    let token = "\u{0}x".repeat(1 << 19);
    let api = api(ok([Event::text(token.clone()), finish()]));
    let answer = send(&api, chat(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], json!(token));
    let events = send(&api, chat(json!({"stream": true}))).await.events();
    assert_eq!(sum(&events).0, token);
    let events = send(&api, response(json!({"stream": true}))).await.events();
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], json!(token));
}

#[tokio::test]
async fn an_endless_answer_fails() {
    let model = service_fn(|_: ChatRequest| {
        let token: concentric_core::Str = "x".repeat(1 << 20).into();
        let body = stream::repeat_with(move || Ok(Event::TextDelta(token.clone())));
        async { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let api = OpenAi::new().model("m", model);
    let reply = send(&api, chat(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (413, &json!("too_large"))
    );
    let reply = send(&api, chat(json!({"stream": true}))).await;
    assert!(reply.cut.is_some() && !reply.body.contains("[DONE]"));
}
