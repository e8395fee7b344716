use super::*;

#[tokio::test]
async fn one_gate_can_end_a_run_normally() {
    let (model, tools) = looker();
    let layer = AgentLayer::new(tools.clone())
        .gate(model_gate("goes on", |_| StepDecision::Continue))
        .gate(model_gate("has enough", |step| match step.step {
            0 | 1 => StepDecision::Continue,
            _ => StepDecision::Finish,
        }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!((model.calls(), tools.done()), (2, 2));
    assert_eq!(answer.transcript().unwrap().len(), 3);
}

#[tokio::test]
async fn a_halt_keeps_the_transcript_and_the_usage() {
    let (model, tools) = looker();
    let layer = AgentLayer::new(tools)
        .gate(model_gate("votes", |_| StepDecision::Finish))
        .gate(model_gate("halts", |step| match step.step {
            0 => StepDecision::Continue,
            _ => StepDecision::halt("no money left"),
        }));
    // The gate stops the run before its first step.
    let answer = run(layer.clone(), &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 0);

    let (model, tools) = looker();
    let layer = AgentLayer::new(tools).gate(model_gate("halts", |step| match step.step {
        0 => StepDecision::Continue,
        _ => StepDecision::halt("no money left"),
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    let reason = "no money left".into();
    assert_eq!(answer.finish.outcome, Outcome::Halted { reason });
    assert_eq!(results(&answer), [(ToolStatus::Done, "seen".to_owned())]);
}

#[tokio::test]
async fn a_halted_or_skipped_round_is_closed_without_running_calls() {
    for halts in [true, false] {
        let (model, tools) = once();
        let layer = AgentLayer::new(tools.clone()).gate(round_gate("no", move |step| {
            assert_eq!(step.message.as_ref().unwrap().tool_calls().count(), 1);
            match halts {
                true => RoundDecision::halt("closed"),
                false => RoundDecision::skip("not now"),
            }
        }));
        let answer = run(layer, &model, ChatRequest::user("hi")).await;
        assert_eq!(tools.calls().len(), 0);
        match halts {
            true => {
                let reason = "closed".into();
                assert_eq!(answer.finish.outcome, Outcome::Halted { reason });
                assert_eq!(results(&answer)[0].0, ToolStatus::Cancelled);
            }
            false => {
                assert_eq!(answer.finish.outcome, Outcome::Completed);
                let denied = (ToolStatus::Denied, "not now".to_owned());
                assert_eq!(results(&answer), [denied]);
            }
        }
    }
}

#[tokio::test]
async fn a_run_that_may_not_finish_makes_another_step() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(finish_gate(|step| {
        let said: Vec<_> = step.transcript.iter().collect();
        // The response of this step.
        assert!([1, 2].contains(&step.step), "{}", step.step);
        match said.len() {
            ..5 => {
                step.push(user("Are you sure?"));
                FinishDecision::Retry { void: false }
            }
            _ => FinishDecision::Finish,
        }
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    // The question, a round, an answer, the gate's message, and the final answer.
    assert_eq!(model.calls(), 3);
    let last = model.request(2).transcript;
    let asked = last.last().unwrap().as_message().clone();
    assert_eq!(asked.role, Role::User);
    assert_eq!(answer.transcript().unwrap().len(), 5);
}

#[tokio::test]
async fn continued_runs_have_the_same_step_limit() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools)
        .step_limit(4)
        .gate(finish_gate(|step| {
            step.push(user("More!"));
            FinishDecision::Retry { void: false }
        }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(model.calls(), 4);
}

#[tokio::test]
async fn a_gates_messages_precede_the_next_step() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(model_gate("steers", |step| match step.step {
        1 => {
            step.push(user("Be quick."));
            StepDecision::Continue
        }
        _ => StepDecision::Continue,
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.transcript().unwrap().len(), 4);
    let sent = model.request(1).transcript;
    assert_eq!(sent.last().unwrap().as_message().role, Role::User);
}
