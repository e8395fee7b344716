use super::*;

#[tokio::test]
async fn an_exhausted_run_asks_and_continues_when_approved() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(2)).ask(Amounts::new().model_calls(3));
    let answer = run(&searcher(&budget, &model), ChatRequest::user("hi")).await;
    assert_eq!(model.calls(), 2);
    let state = written(answer);
    let asked = state.interrupts()[0].clone();
    assert_eq!(asked.reason, BUDGET);
    assert_eq!(asked.metadata["extend"]["model_calls"], 3);

    let answer = run(&searcher(&budget, &model), reply(state, Reply::approve)).await;
    assert_eq!(model.calls(), 5);
    // What was added is kept, and it asks again, another question.
    let state = written(answer);
    assert_ne!(state.interrupts()[0].id, asked.id);
    let extend = |calls: u64| {
        move |id| {
            Reply::resolve(
                id,
                json!({"approved": true, "extend": {"model_calls": calls}}),
            )
        }
    };
    // Less than was asked for, and never more.
    let answer = run(&searcher(&budget, &model), reply(state, extend(1))).await;
    assert_eq!(model.calls(), 6);
    let answer = run(
        &searcher(&budget, &model),
        reply(written(answer), extend(1_000)),
    )
    .await;
    assert_eq!(model.calls(), 9);
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
}

#[tokio::test]
async fn any_reply_but_approval_ends_the_run() {
    let replies: [fn(concentric_core::InterruptId) -> Reply; 5] = [
        |id| Reply::deny(id, "no"),
        Reply::cancel,
        |id| Reply::resolve(id, json!("yes")),
        |id| Reply::resolve(id, json!({"approved": true, "extend": {"money": 5}})),
        |id| Reply::resolve(id, json!({"approved": true, "extend": {"model_calls": -1}})),
    ];
    for make in replies {
        let model = searches();
        let asks = Amounts::new().model_calls(1);
        let budget = BudgetLayer::new(Limits::new().model_calls(1)).ask(asks);
        let agent = searcher(&budget, &model);
        let state = written(run(&agent, ChatRequest::user("hi")).await);
        let answer = run(&agent, reply(state, make)).await;
        assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
        assert_eq!((model.calls(), statuses(&answer).len()), (1, 1));
    }
}

#[tokio::test]
async fn a_run_does_not_ask_about_other_budgets() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(5)).ask(Amounts::new().model_calls(5));
    let tenant = Budget::new(Limits::new().model_calls(2));
    let answer = run(&searcher(&budget, &model), request(&tenant)).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(tenant.limits(), Limits::new().model_calls(2));
}
