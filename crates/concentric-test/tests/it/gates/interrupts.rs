use super::*;

// Case C094.
#[tokio::test]
async fn interrupts_of_several_gates_are_raised_together_and_once() {
    for before_a_round in [false, true] {
        let log = Log::default();
        let (model, tools) = once();
        let layer = || {
            let layer = AgentLayer::new(tools.clone());
            ["a", "b"].into_iter().fold(layer, |layer, name| {
                let ask = asks(name, &log);
                match before_a_round {
                    true => layer.gate(round_gate(name, move |step| {
                        ask(step).map_or(RoundDecision::Continue, RoundDecision::ask)
                    })),
                    false => layer.gate(model_gate(name, move |step| match step.step {
                        0 => ask(step).map_or(StepDecision::Continue, StepDecision::ask),
                        _ => StepDecision::Continue,
                    })),
                }
            })
        };
        let answer = run(layer(), &model, ChatRequest::user("hi")).await;
        let state = state_of(&answer);
        let ids: Vec<_> = state
            .interrupts()
            .iter()
            .map(|ask| ask.id.clone())
            .collect();
        assert_eq!(ids.len(), 2);
        assert!(state.asks_together());
        assert_eq!(model.calls(), usize::from(before_a_round));
        assert_eq!(tools.calls().len(), 0);

        // All of them need a reply, and nothing else does.
        let one = vec![Reply::resolve(ids[0].clone(), json!({}))];
        let error = try_run(layer(), &model, ChatRequest::resume(state.clone(), one)).await;
        assert_eq!(error.unwrap_err().code(), Some("missing_reply"));
        let nobody = ChatRequest::resume(state.clone(), vec![]);
        let again = run(layer(), &model, nobody).await;
        assert_eq!(state_of(&again).interrupts().len(), 2);
        assert!(log.lock().unwrap().is_empty());

        let both = ids.into_iter().map(|id| Reply::resolve(id, json!({})));
        let request = ChatRequest::resume(state, both.collect());
        let answer = run(layer(), &model, request).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(*log.lock().unwrap(), ["a sees 2", "b sees 2"]);
        assert_eq!(model.calls(), 2);
        assert_eq!(tools.done(), 1);
    }
}

// Case C094.
#[tokio::test]
async fn the_strictest_decision_of_several_gates_wins() {
    let log = Log::default();
    let (model, tools) = once();
    let layer = || {
        let (a, b) = (asks("a", &log), asks("b", &log));
        AgentLayer::new(tools.clone())
            .gate(model_gate("a", move |step| {
                a(step).map_or(StepDecision::Continue, StepDecision::ask)
            }))
            .gate(model_gate("b", move |step| {
                b(step).map_or(StepDecision::halt("b says no"), StepDecision::ask)
            }))
    };
    let state = state_of(&run(layer(), &model, ChatRequest::user("hi")).await);
    let replies = state.interrupts();
    let replies = replies
        .iter()
        .map(|ask| Reply::resolve(ask.id.clone(), json!({})));
    let request = ChatRequest::resume(state.clone(), replies.collect());
    let answer = run(layer(), &model, request).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_finish_gate_asks_again_after_the_run_continues() {
    let model = ScriptedModel::new().text("A.").then().text("B.");
    let log = Log::default();
    let layer = || {
        let log = log.clone();
        AgentLayer::new(ScriptedTools::new()).gate(finish_gate(move |step| {
            let id = step.interrupt_id("finish");
            log.lock().unwrap().push(step.step.to_string());
            match step.reply(&id).map(|reply| reply.read().unwrap()) {
                None => FinishDecision::ask(Interrupt::new(id, "enough")),
                Some(true) => FinishDecision::Finish,
                Some(false) => {
                    step.push(user("More."));
                    FinishDecision::Retry { void: false }
                }
            }
        }))
    };
    let mut answer = run(layer(), &model, ChatRequest::user("hi")).await;
    for (enough, calls) in [(false, 1), (true, 2)] {
        assert_eq!(model.calls(), calls);
        let asked = answer.finish.interrupts()[0].id.clone();
        let reply = Reply::resolve(asked, json!(enough));
        let request = ChatRequest::resume(state_of(&answer), vec![reply]);
        answer = run(layer(), &model, request).await;
    }
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    let said = answer.transcript().unwrap().iter();
    let said: Vec<String> = said.map(|turn| turn.as_message().text()).collect();
    assert_eq!(said, ["hi", "A.", "More.", "B."]);
    assert_eq!(*log.lock().unwrap(), ["0", "0", "1", "1"]);
}

#[tokio::test]
async fn a_finish_gates_interrupt_stays_open_without_a_reply() {
    let model = ScriptedModel::new().text("A.").repeat();
    let layer = || {
        AgentLayer::new(ScriptedTools::new()).gate(finish_gate(|step| {
            let id = step.interrupt_id("finish");
            match step.reply(&id) {
                None => FinishDecision::ask(Interrupt::new(id, "enough")),
                Some(_) => FinishDecision::Finish,
            }
        }))
    };
    let mut answer = run(layer(), &model, ChatRequest::user("hi")).await;
    for _ in 0..2 {
        let nothing = ChatRequest::resume(state_of(&answer), Vec::new());
        answer = run(layer(), &model, nothing).await;
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    }
    let asked = answer.finish.interrupts()[0].id.clone();
    let reply = Reply::resolve(asked, json!(true));
    let request = ChatRequest::resume(state_of(&answer), vec![reply]);
    let answer = run(layer(), &model, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_reply_to_a_missing_finish_gate_is_an_error() {
    let model = ScriptedModel::new().text("A.");
    let layer = AgentLayer::new(ScriptedTools::new());
    let asking = layer.clone().gate(finish_gate(|step| {
        FinishDecision::ask(Interrupt::new(step.interrupt_id("finish"), "enough"))
    }));
    let answer = run(asking, &model, ChatRequest::user("hi")).await;
    let asked = answer.finish.interrupts()[0].id.clone();
    let replies = vec![Reply::resolve(asked, json!(true))];
    let request = ChatRequest::resume(state_of(&answer), replies);
    let error = try_run(layer, &model, request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn gates_that_raise_interrupts_need_distinct_names() {
    let model = ScriptedModel::new().text("A.");
    let layer =
        ["same", "same"]
            .into_iter()
            .fold(AgentLayer::new(ScriptedTools::new()), |layer, name| {
                layer.gate(model_gate(name, move |step| {
                    StepDecision::ask(Interrupt::new(step.interrupt_id(name), "budget"))
                }))
            });
    let error = try_run(layer, &model, ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn a_gates_messages_are_kept_when_another_gate_stops() {
    for (verdict, outcome) in [
        (StepDecision::Finish, Outcome::Completed),
        (
            StepDecision::halt("no"),
            Outcome::Halted {
                reason: "no".into(),
            },
        ),
    ] {
        let model = ScriptedModel::new().text("A.");
        let layer = AgentLayer::new(ScriptedTools::new())
            .gate(model_gate("steers", |step| {
                step.push(user("Stop."));
                StepDecision::Continue
            }))
            .gate(model_gate("stops", move |_| verdict.clone()));
        let answer = run(layer, &model, ChatRequest::user("hi")).await;
        assert_eq!(answer.finish.outcome, outcome);
        let last = answer.transcript().unwrap().last().unwrap();
        assert_eq!(
            (last.as_message().text().as_str(), model.calls()),
            ("Stop.", 0)
        );
    }
}
