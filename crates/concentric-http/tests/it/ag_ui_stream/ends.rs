//! The last events of a stream.

use super::*;

// Case C055, as a client reads it.
#[tokio::test]
async fn each_outcome_has_its_terminal_event() {
    let halted = Outcome::Halted {
        reason: "enough".into(),
    };
    let aborted = Outcome::Aborted {
        reason: CancelReason::User,
    };
    for (outcome, expected, metadata) in [
        (Outcome::Completed, "success", json!(null)),
        (
            halted,
            "success",
            json!({"outcome": "halted", "reason": "enough"}),
        ),
        (
            Outcome::StepLimit,
            "success",
            json!({"outcome": "step_limit"}),
        ),
        (
            Outcome::CallLimit,
            "success",
            json!({"outcome": "call_limit"}),
        ),
        (aborted, "cancelled", json!({"reason": "user"})),
    ] {
        let events = events(ok(vec![Event::text("x"), finish_with(outcome)])).await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "RUN_FINISHED");
        assert_eq!(last["outcome"]["type"], expected);
        assert_eq!(last["metadata"], metadata);
        assert_eq!(last["usage"][0]["outputTokens"], 2);
    }
}

#[tokio::test]
async fn unexecuted_calls_are_pending_for_the_client() {
    let events = events(ok(vec![
        call_by(Executor::Loop, "a"),
        call_by(Executor::Client, "b"),
        call_by(Executor::Provider, "c"),
        call_by(Executor::Agent, "d"),
        call_by(Executor::Loop, "e"),
        result("e", ToolOutcome::done("")),
        finish(),
    ]))
    .await;
    assert_eq!(
        events.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["a", "b"]})
    );
}

#[tokio::test]
async fn a_client_tool_ends_the_run_with_its_call_pending() {
    let model = service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(stream::iter(ok(vec![
            call("c", "confirm", "{}"),
            Event::finish(FinishReason::ToolCalls, Usage::new(1, 1)),
        ]))))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let mut input = input();
    input["tools"] = json!([{"name": "confirm", "description": "Asks the user."}]);
    let first = run(agent.clone(), &input).await;
    assert_eq!(
        first.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["c"]})
    );

    // The client sends the conversation without the result, so the run waits for it again.
    input["messages"].as_array_mut().unwrap().push(json!(
        {"id": "a", "role": "assistant", "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "confirm", "arguments": "{}"}}]}
    ));
    let again = run(agent, &input).await;
    assert_eq!(types(&again), ["RUN_STARTED", "RUN_FINISHED"],);
    assert_eq!(
        again.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["c"]})
    );
}

#[tokio::test]
async fn a_run_that_waits_without_an_interrupt_is_an_error() {
    let events = events(ok(vec![finish_with(Outcome::Interrupted)])).await;
    assert_eq!(events.last().unwrap()["type"], "RUN_ERROR");
    assert_eq!(events.last().unwrap()["code"], "configuration");
}

#[tokio::test]
async fn an_error_closes_open_items_and_reveals_no_secret() {
    let error = || {
        Error::new(ErrorKind::Authentication, "Incorrect API key: sk-secret")
            .with_source(std::io::Error::other("postgres://user:hunter2-pw@host"))
    };
    let mut script = ok(vec![
        step(0, "m"),
        Event::text("x"),
        step_end(0),
        step(1, "n"),
        preview(0, "c", "f"),
    ]);
    script.push(Err(error()));
    script.push(Ok(Event::text("never")));
    let service = AgUiLayer::new().layer(agent(script));
    let answer = send(service, post(input().to_string())).await;
    assert!(!answer.body.contains("secret") && !answer.body.contains("hunter2-pw"));
    let events = answer.events();
    assert_eq!(
        types(&events)[types(&events).len() - 4..],
        [
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_FINISHED",
            "RUN_ERROR"
        ]
    );
    assert_eq!(
        *events.last().unwrap(),
        json!({"type": "RUN_ERROR", "code": "authentication",
               "message": "The agent has no access to its model.",
               "usage": [{"inputTokens": 3, "outputTokens": 2}]})
    );

    // An error of the future, with a message from the host.
    let failing = service_fn(move |_: ChatRequest| {
        let error = error();
        async move { Err::<ChatResponse<crate::support::Script>, _>(error) }
    });
    let service = AgUiLayer::new()
        .error_message(|error| format!("{}!", error.kind()))
        .layer(failing);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
    assert_eq!(events[1]["message"], "authentication!");
}

#[tokio::test]
async fn a_body_that_ends_early_is_an_error() {
    let events = events(ok(vec![Event::text("Once upon a")])).await;
    assert_eq!(types(&events)[3..], ["TEXT_MESSAGE_END", "RUN_ERROR"]);
    assert_eq!(events.last().unwrap()["code"], "truncated");
}

#[tokio::test]
async fn the_usage_names_provider_and_model() {
    let agent = service_fn(async |_: ChatRequest| {
        let mut head = ResponseHead::default();
        head.provider = Some("openai".into());
        head.model = Some("gpt".into());
        let body = stream::iter(ok(vec![finish()]));
        Ok::<_, Error>(ChatResponse::new(body).with_head(head))
    });
    let events = run(agent, &input()).await;
    assert_eq!(
        events.last().unwrap()["usage"],
        json!([{"provider": "openai", "model": "gpt", "inputTokens": 3, "outputTokens": 2}])
    );
}

#[tokio::test]
async fn a_rejected_run_reports_its_code() {
    for (code, message) in [
        ("run_live", "This run is already in progress."),
        ("run_exists", "A run with this id already exists."),
        (
            "conflict",
            "There is nothing to resume: the questions were already answered, or have expired.",
        ),
    ] {
        let error = Error::new(ErrorKind::Conflict, "secret").with_code(code);
        let events = events(vec![Err(error)]).await;
        let end = events.last().unwrap();
        assert_eq!(
            (&end["type"], &end["code"], &end["message"]),
            (&json!("RUN_ERROR"), &json!(code), &json!(message))
        );
    }
}
