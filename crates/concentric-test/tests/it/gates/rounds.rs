use super::*;

#[tokio::test]
async fn a_round_of_client_calls_is_gated() {
    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let request = || {
        let mut request = ChatRequest::user("hi");
        let spec = ToolSpec::new("confirm", "", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
        request
    };
    let agent = |verdict: RoundDecision| {
        let gate = round_gate("policy", move |step| match step.replies() {
            [] => verdict.clone(),
            _ => RoundDecision::Continue,
        });
        AgentLayer::new(ScriptedTools::new()).gate(gate)
    };
    let halted = run(agent(RoundDecision::halt("no")), &model.clone(), request()).await;
    assert_eq!(
        halted.finish.outcome,
        Outcome::Halted {
            reason: "no".into()
        }
    );
    assert_eq!(results(&halted)[0].0, ToolStatus::Cancelled);

    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let skipped = run(agent(RoundDecision::skip("not now")), &model, request()).await;
    assert_eq!(skipped.finish.outcome, Outcome::Completed);
    assert_eq!(
        results(&skipped),
        [(ToolStatus::Denied, "not now".to_owned())]
    );

    // The gate asks first, and then the client executes the call.
    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let ask = Interrupt::new(InterruptId::new("policy"), "may_it");
    let asked = run(agent(RoundDecision::ask(ask.clone())), &model, request()).await;
    assert_eq!(asked.finish.interrupts()[0].reason, "may_it");
    let replies = vec![Reply::resolve(ask.id, json!(true))];
    let mut resumed = ChatRequest::resume(state_of(&asked), replies);
    resumed.tools = request().tools;
    let layer = agent(RoundDecision::Continue);
    let waits = run(layer.clone(), &model, resumed).await;
    assert_eq!(waits.finish.interrupts()[0].reason, interrupt::CLIENT_TOOL);
    let call = waits.finish.interrupts()[0].id.clone();
    let mut resumed = ChatRequest::resume(state_of(&waits), vec![Reply::answer(call, "yes")]);
    resumed.tools = request().tools;
    // The gate does not decide about calls that the client has executed.
    let done = run(agent(RoundDecision::halt("too late")), &model, resumed).await;
    assert_eq!(done.finish.outcome, Outcome::Completed);
    assert_eq!(results(&done), [(ToolStatus::Done, "yes".to_owned())]);
}

#[tokio::test]
async fn a_duplicate_reply_does_not_answer_the_next_interrupt() {
    let (model, tools) = once();
    let gate = || {
        round_gate("two", |step| {
            let id = step.interrupt_id("two");
            match step.reply(&id).map(|reply| reply.read::<u8>().unwrap()) {
                None => RoundDecision::ask(Interrupt::new(id, "first")),
                Some(1) => RoundDecision::ask(Interrupt::new(id, "second")),
                Some(_) => RoundDecision::Continue,
            }
        })
    };
    let layer = || AgentLayer::new(tools.clone()).gate(gate());
    let first = run(layer(), &model, ChatRequest::user("hi")).await;
    let id = first.finish.interrupts()[0].id.clone();
    let reply = Reply::resolve(id.clone(), json!(1));
    let request = ChatRequest::resume(state_of(&first), vec![reply.clone()]);
    let second = run(layer(), &model, request).await;
    assert_eq!(second.finish.interrupts()[0].reason, "second");
    assert_ne!(second.finish.interrupts()[0].id, id);
    let again = ChatRequest::resume(state_of(&second), vec![reply]);
    assert!(try_run(layer(), &model, again).await.is_err());
    let id = second.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&second), vec![Reply::resolve(id, json!(2))]);
    let done = run(layer(), &model, request).await;
    assert_eq!(done.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn messages_added_with_an_interrupt_are_added_once() {
    let log = Log::default();
    let layer = || {
        let ask = asks("asks", &log);
        AgentLayer::new(ScriptedTools::new())
            .gate(model_gate("says", |step| match step.step {
                0 => {
                    step.push(user("Be brief."));
                    StepDecision::Continue
                }
                _ => StepDecision::Continue,
            }))
            .gate(model_gate("asks", move |step| {
                ask(step).map_or(StepDecision::Continue, StepDecision::ask)
            }))
    };
    let model = ScriptedModel::new().text("Done.");
    let waits = run(layer(), &model, ChatRequest::user("hi")).await;
    let id = waits.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&waits), vec![Reply::resolve(id, json!(true))]);
    let done = run(layer(), &model, request).await;
    let said = done.transcript().unwrap().iter();
    let said: Vec<String> = said.map(|turn| turn.as_message().text()).collect();
    assert_eq!(said, ["hi", "Be brief.", "Done."]);
}

#[tokio::test]
async fn a_halted_step_runs_none_of_its_calls() {
    let (model, tools) = once();
    let spent = map_events(|event: &mut Event| {
        if let Event::Finish(finish) = event {
            finish.outcome = Outcome::Halted {
                reason: "spent".into(),
            };
        }
    });
    let agent = AgentLayer::new(tools.clone()).layer(spent.layer(model.clone()));
    let answer = agent
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(
        answer.finish.outcome,
        Outcome::Halted {
            reason: "spent".into()
        }
    );
    assert_eq!((model.calls(), tools.done()), (1, 0));
    assert_eq!(results(&answer)[0].0, ToolStatus::Cancelled);
}

#[tokio::test]
async fn a_gate_answers_instead_of_a_round() {
    let ask = RoundDecision::ask(Interrupt::new(InterruptId::new("policy"), "may_it"));
    let answer = || RoundDecision::answer("Too many calls.");
    for (others, limit) in [
        (vec![RoundDecision::Continue], 32),
        // The run is over before it reaches its limit.
        (vec![RoundDecision::Continue], 1),
        (vec![RoundDecision::skip("not now"), ask.clone()], 32),
    ] {
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .tool_call("look", json!({}))
            .then()
            .text("Next.");
        let tools = ScriptedTools::new().answers("look", "a cat");
        let mut layer = AgentLayer::new(tools.clone()).step_limit(limit);
        for other in others {
            layer = layer.gate(round_gate("other", move |_| other.clone()));
        }
        let layer = layer.gate(round_gate("answers", move |_| answer()));
        let ended = run(layer, &model, ChatRequest::user("hi")).await;
        assert_eq!(ended.finish.outcome, Outcome::Completed);
        assert_eq!(ended.text(), "Too many calls.");
        let denied = (ToolStatus::Denied, "Too many calls.".to_owned());
        assert_eq!(results(&ended), [denied.clone(), denied]);
        assert_eq!((model.calls(), tools.calls().len()), (1, 0));

        // The conversation continues with another run.
        let mut transcript = ended.transcript().unwrap().clone();
        assert_eq!(transcript.len(), 3);
        transcript.push_user("And now?");
        let layer = AgentLayer::new(ScriptedTools::new());
        let next = run(layer, &model, ChatRequest::new(transcript)).await;
        assert_eq!(next.text(), "Next.");
    }
    let model = ScriptedModel::new().tool_call("look", json!({}));
    let layer = AgentLayer::new(ScriptedTools::new())
        .gate(round_gate("answers", move |_| answer()))
        .gate(round_gate("halts", |_| RoundDecision::halt("no")));
    let halted = run(layer, &model, ChatRequest::user("hi")).await;
    let reason = "no".into();
    assert_eq!(halted.finish.outcome, Outcome::Halted { reason });
}
