use super::*;

// Case C57.
#[tokio::test]
async fn a_stop_condition_finishes_without_a_new_step() {
    let ended = ends(StopWhen::finish(steps(2)), works(5)).await;
    assert_eq!(ended, (Outcome::Completed, 2, 2));
}

// Case C48.
#[tokio::test]
async fn a_halt_has_its_reason() {
    let ended = ends(StopWhen::halt("enough", steps(2)), works(5)).await;
    assert_eq!(ended, (halted("enough"), 2, 2));
}

#[tokio::test]
async fn a_run_that_completes_earlier_is_not_stopped() {
    let ended = ends(StopWhen::halt("enough", steps(3)), works(2)).await;
    assert_eq!(ended, (Outcome::Completed, 3, 2));
}

#[tokio::test]
async fn the_strictest_of_several_conditions_applies() {
    let agent = AgentLayer::new(tools())
        .gate(StopWhen::finish(steps(2)))
        .gate(StopWhen::halt("enough", steps(2)))
        .layer(works(5));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, halted("enough"));
}

#[tokio::test]
async fn conditions_are_combined() {
    for (condition, made) in [
        (steps(1).and(steps(3)), 3),
        (steps(1).or(steps(3)), 1),
        (steps(9).and(steps(1)).or(called_times("work", 2)), 2),
        (steps(9).and(steps(1).or(called("work"))), 6),
    ] {
        let (outcome, models, _) = ends(StopWhen::finish(condition), works(5)).await;
        assert_eq!((outcome, models), (Outcome::Completed, made));
    }
}

#[tokio::test]
async fn a_condition_counts_the_calls_of_a_tool() {
    let model = || {
        let none = json!({});
        calls([
            ("a", none.clone()),
            ("b", none.clone()),
            ("a", none.clone()),
            ("a", none),
        ])
    };
    for (condition, made) in [
        (called("b"), 2),
        (called_times("a", 2), 3),
        (called("c"), 5),
    ] {
        let (_, models, _) = ends(StopWhen::finish(condition), model()).await;
        assert_eq!(models, made);
    }
}

#[tokio::test]
async fn calls_with_equal_ids_in_two_answers_both_count() {
    let call = || Event::tool_call(ToolCallPart::new(CallId::new("1"), "work", "{}"));
    let model = ScriptedModel::new().event(call()).then().event(call());
    let model = model.then().event(call()).then().text("done");
    let (_, models, _) = ends(StopWhen::finish(called_times("work", 2)), model).await;
    assert_eq!(models, 2);
}

#[tokio::test]
async fn a_condition_reads_the_finish_reason() {
    let cut = Finish::new(FinishReason::Length, Usage::new(1, 1));
    let model = ScriptedModel::new()
        .tool_call("a", json!({}))
        .then()
        .tool_call("b", json!({}))
        .finish(cut)
        .then()
        .text("done");
    let gate = StopWhen::halt("cut short", finish_reason(FinishReason::Length));
    assert_eq!(ends(gate, model).await, (halted("cut short"), 2, 2));
}

#[tokio::test]
async fn a_condition_reads_the_usage() {
    let model = || {
        let used = |model: ScriptedModel| model.usage(Usage::new(100, 10)).then();
        let work = |model: ScriptedModel| used(model.tool_call("work", json!({})));
        work(work(work(ScriptedModel::new()))).text("done")
    };
    let price = |usage: &Usage| 8 * usage.output_tokens().unwrap_or(0);
    for (condition, made) in [
        (input_tokens(150), 2),
        (output_tokens(30), 3),
        (total_tokens(110), 1),
        (total_tokens(111), 2),
        (total_tokens(10_000), 4),
        (cost(160, price), 2),
        (
            cost(0.3, |usage| {
                f64::from(u32::try_from(total(usage)).unwrap()) / 1000.0
            }),
            3,
        ),
        (holds(|step| step.transcript.len() > 3), 3),
    ] {
        let (_, models, _) = ends(StopWhen::halt("used up", condition), model()).await;
        assert_eq!(models, made);
    }
}

#[tokio::test]
async fn turns_before_the_run_do_not_count() {
    let agent = |model| {
        AgentLayer::new(tools())
            .gate(StopWhen::finish(called_times("a", 2)))
            .gate(LoopDetector::new(2))
            .gate(ErrorLimit::new().consecutive(2).total(2))
            .layer(model)
    };
    let one = || calls([("a", json!({})), ("fail", json!({}))]);
    let first = run(&agent(one()), ChatRequest::user("hi")).await;
    assert_eq!(first.finish.outcome, Outcome::Completed);

    let mut transcript: Transcript = first.finish.transcript.unwrap();
    transcript.push_user("again");
    let mut request = ChatRequest::user("");
    request.transcript = transcript;
    let second = run(&agent(one()), request).await;
    assert_eq!(second.finish.outcome, Outcome::Completed);
    assert_eq!(second.text(), "done");
}

// Case C99.
#[tokio::test]
async fn counts_from_before_a_suspension_are_not_repeated() {
    // Two calls before it waits, one that it waits for, one after it.
    let model = || {
        let none = json!({});
        calls([
            ("a", none.clone()),
            ("pay", none.clone()),
            ("a", none.clone()),
            ("a", none),
        ])
    };
    for limit in [2, 3, 4] {
        let stop = StopWhen::finish(called_times("a", limit));
        let repeats = LoopDetector::new(u32::try_from(limit).unwrap());
        let model = model();
        let agent = AgentLayer::new(tools())
            .gate(stop)
            .gate(repeats)
            .layer(model.clone());
        let waits = run(&agent, ChatRequest::user("hi")).await;
        let mut state = state_of(&waits);
        for _ in 0..3 {
            // It goes on waiting.
            let again = run(&agent, ChatRequest::resume(state, Vec::new())).await;
            state = state_of(&again);
        }
        let answer = run(&agent, reply(&state, Reply::approve)).await;
        let repeated = format!("`a` was called {limit} times with the same arguments");
        // The detector is asked before the round, and the condition after it.
        let expected = match limit {
            2 => (halted(&repeated), 3),
            3 => (halted(&repeated), 4),
            _ => (Outcome::Completed, 5),
        };
        assert_eq!((answer.finish.outcome, model.calls()), expected);
    }
}

#[tokio::test]
async fn a_gate_may_apply_to_one_run() {
    let agent = AgentLayer::new(tools()).layer(works(2));
    let gates = RunOverrides::new().step_gate(StopWhen::halt("enough", steps(1)));
    let request = ChatRequest::user("hi").with_overrides(gates);
    let first = run(&agent, request).await;
    assert_eq!(first.finish.outcome, halted("enough"));
    let second = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(second.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_nested_agent_does_not_inherit_step_gates() {
    let within = AgentLayer::new(tools()).layer(works(3));
    let agent = AgentLayer::new(ScriptedTools::new()).layer(within);
    let gates = RunOverrides::new().step_gate(StopWhen::halt("enough", steps(1)));
    let request = ChatRequest::user("hi").with_overrides(gates);
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}
