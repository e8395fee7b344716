use super::*;

/// An agent, and all that it is made of, as a new process makes it.
fn payer(limits: Limits) -> (BoxModel, ScriptedModel) {
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .usage(Usage::new(100, 100))
        .repeat();
    let budget = BudgetPlugin::new(limits);
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
        .layer(budget.model())
        .service(model.clone());
    (BoxModel::new(agent), model)
}

// Case F034.
#[tokio::test]
async fn a_limit_holds_across_processes() {
    let limits = Limits::new().model_calls(3).total_tokens(10_000);
    let (agent, _) = payer(limits);
    let mut answer = run(&agent, ChatRequest::user("hi")).await;
    for _ in 0..2 {
        let (agent, model) = payer(limits);
        answer = run(&agent, reply(written(answer), Reply::approve)).await;
        assert_eq!(model.calls(), 1);
    }
    let (agent, model) = payer(limits);
    let answer = run(&agent, reply(written(answer), Reply::approve)).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    assert!(reason.contains("3 of 3 model calls"), "{reason}");
    assert_eq!((model.calls(), statuses(&answer).len()), (0, 3));
}

// Case F034.
#[cfg(feature = "suspend")]
#[tokio::test]
async fn a_limit_holds_for_a_stored_run() {
    use concentric_core::ThreadId;
    use concentric_layers::SuspendLayer;
    use concentric_store::MemoryStore;

    let limits = Limits::new().model_calls(2);
    for is_outside in [true, false] {
        let store = Arc::new(MemoryStore::new());
        let payer = || {
            let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
            let budget = BudgetPlugin::new(limits);
            let agent = ServiceBuilder::new()
                .option_layer(is_outside.then(|| budget.run()))
                .layer(SuspendLayer::new(Arc::clone(&store)))
                .option_layer((!is_outside).then(|| budget.run()))
                .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
                .layer(budget.model())
                .service(model.clone());
            (agent, model)
        };
        let thread = || Context::builder().thread_id(ThreadId::new("t")).build();
        let (agent, _) = payer();
        let mut answer = run(&agent, ChatRequest::user("hi").with_context(thread())).await;
        for expected in [1, 0] {
            let asked = answer.finish.interrupts()[0].id.clone();
            let request = ChatRequest::replying(vec![Reply::approve(asked)]);
            let (agent, model) = payer();
            answer = run(&agent, request.with_context(thread())).await;
            assert_eq!(model.calls(), expected);
        }
        assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    }
}

#[tokio::test]
async fn spending_is_stored_with_the_run() {
    let (agent, _) = payer(Limits::new().model_calls(3));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let slots = state.slots().iter();
    let kept: Vec<_> = slots
        .filter(|kept| kept.slot == "concentric/budget")
        .collect();
    let [kept] = kept[..] else { panic!() };
    assert_eq!(kept.value["spent"]["total_tokens"], 200);
    assert_eq!(kept.value["spent"]["model_calls"], 1);
}

#[tokio::test]
async fn a_run_with_unreadable_spending_calls_nothing() {
    let (agent, _) = payer(Limits::new().model_calls(3));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let mut json: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
    for slot in json["slots"].as_array_mut().unwrap() {
        slot["value"] = json!("nothing");
    }
    let json = json.to_string();
    let state = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    let (agent, model) = payer(Limits::new().model_calls(3));
    let answer = agent.oneshot(reply(state, Reply::approve)).await.unwrap();
    let items: Vec<_> = answer.body.collect().await;
    let error = items.into_iter().find_map(Result::err).unwrap();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn a_nested_agent_keeps_the_runs_spending() {
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let make = |model: &ScriptedModel| {
        // It has two calls for each step of the run around it.
        let own = BudgetPlugin::new(Limits::new().model_calls(2));
        let within = searcher(&own, model);
        ServiceBuilder::new()
            .layer(budget.run())
            .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
            .service(within)
    };
    let steps = || {
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
    };
    let model = steps().text("unused");
    let mut answer = run(&make(&model), ChatRequest::user("hi")).await;
    let model = steps().text("unused");
    answer = run(&make(&model), reply(written(answer), Reply::approve)).await;
    let model = steps().text("unused");
    answer = run(&make(&model), reply(written(answer), Reply::approve)).await;
    assert_eq!(model.calls(), 1);
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
}
