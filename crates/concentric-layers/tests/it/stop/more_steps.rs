use super::*;

// Case C100.
#[tokio::test]
async fn an_approval_adds_the_approved_number_of_steps() {
    let (model, tools) = (works(20), tools());
    let agent = AgentLayer::new(tools.clone())
        .gate(StepApproval::after(2).steps(4))
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    let state = state_of(&answer);
    assert_eq!((model.calls(), tools.calls().len()), (2, 2));
    let asked = state.interrupts()[0].clone();
    assert_eq!(asked.reason, MORE_STEPS);
    assert_eq!(asked.metadata["steps_made"], 2);
    let schema = asked.response_schema.unwrap();
    assert_eq!(schema["properties"]["steps"]["default"], 4);

    let three = |id| Reply::resolve(id, json!({"approved": true, "steps": 3}));
    let answer = run(&agent, reply(&state, three)).await;
    let state = state_of(&answer);
    assert_eq!(model.calls(), 5);

    let answer = run(&agent, reply(&state, Reply::approve)).await;
    assert_eq!(model.calls(), 9);
    state_of(&answer);
}

#[tokio::test]
async fn anything_but_an_approval_stops_the_run() {
    for wrong in [
        None,
        Some(json!({"approved": false})),
        Some(json!({"approved": "true"})),
        Some(json!({"approved": true, "steps": 0})),
        Some(json!({"approved": true, "steps": -1})),
        Some(json!({"approved": true, "steps": "3"})),
        Some(json!({"approved": true, "steps": 1e300})),
        Some(json!({"steps": 3})),
        Some(json!(true)),
        Some(Value::Null),
    ] {
        let model = works(5);
        let agent = AgentLayer::new(tools())
            .gate(StepApproval::after(1))
            .layer(model.clone());
        let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
        let request = reply(&state, |id| match wrong.clone() {
            None => Reply::cancel(id),
            Some(payload) => Reply::resolve(id, payload),
        });
        let answer = run(&agent, request).await;
        assert_eq!(
            answer.finish.outcome,
            halted("more steps were not approved")
        );
        assert_eq!(model.calls(), 1);
        assert_eq!(
            statuses(&answer),
            [ToolStatus::Done],
            "what was done is kept"
        );
    }
}

// Case C100.
#[tokio::test]
async fn a_late_approval_has_no_effect() {
    let test = TestEnvironment::new();
    let model = works(5);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1).within(Duration::from_secs(60)))
        .layer(model.clone());
    let state = state_of(&run(&agent, test.request("hi")).await);
    let at = |mut request: ChatRequest| {
        request.context = test.context();
        request
    };
    test.advance(Duration::from_secs(60));
    for late in [Reply::approve as fn(InterruptId) -> Reply, |id| {
        Reply::resolve(id, json!({"approved": false}))
    }] {
        let refused = agent
            .clone()
            .oneshot(at(reply(&state, late)))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Some("expired"));
    }
    let answer = run(&agent, at(reply(&state, Reply::cancel))).await;
    assert_eq!(
        answer.finish.outcome,
        halted("more steps were not approved")
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn the_agents_own_limit_still_applies() {
    let model = works(20);
    let agent = AgentLayer::new(tools())
        .step_limit(3)
        .gate(StepApproval::after(2))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let many = |id| Reply::resolve(id, json!({"approved": true, "steps": u32::MAX}));
    let answer = run(&agent, reply(&state, many)).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn an_approval_survives_another_suspension() {
    let none = || json!({});
    let model = calls([("a", none()), ("pay", none()), ("b", none()), ("a", none())]);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let two = |id| Reply::resolve(id, json!({"approved": true, "steps": 2}));
    // It waits for the tool.
    let state = state_of(&run(&agent, reply(&state, two)).await);
    let answer = run(&agent, reply(&state, Reply::approve)).await;
    // It has made the three it may.
    assert_eq!(state_of(&answer).interrupts()[0].reason, MORE_STEPS);
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn two_gates_ask_and_are_answered_together() {
    let model = works(5);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1))
        .gate(StepApproval::after(1).steps(3).named("second"))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let asked = state.interrupts();
    assert_eq!(asked.len(), 2);
    let replies = |second: fn(InterruptId) -> Reply| {
        let [first, other] = [0, 1].map(|n: usize| state.interrupts()[n].id.clone());
        vec![Reply::approve(first), second(other)]
    };
    let request = ChatRequest::resume(state.clone(), replies(Reply::cancel));
    let answer = run(&agent, request).await;
    assert_eq!(
        answer.finish.outcome,
        halted("more steps were not approved")
    );
    let request = ChatRequest::resume(state.clone(), replies(Reply::approve));
    let answer = run(&agent, request).await;
    // Only the first has more to ask.
    assert_eq!(state_of(&answer).interrupts().len(), 1);
    assert_eq!(model.calls(), 2);
}
