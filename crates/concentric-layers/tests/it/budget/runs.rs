use super::*;

/// An agent that searches once, within a budget at every place; its model and its tool take ticks.
async fn search_slowly(whole: Budget, model: ScriptedModel) -> Result<String, Error> {
    let budget = layer();
    let found = service_fn(async |call: ToolCall| {
        tokio::task::yield_now().await;
        Pace::NextTick.pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done("found"))
    });
    let tools = ScriptedTools::new().service(object("search"), budget.tool().layer(found));
    let agent = Layers::new()
        .with(budget.run())
        .layer(AgentLayer::new(tools))
        .with(budget.model())
        .service(model);
    let answer = Spurious::new(agent.oneshot(request(&whole))).await?;
    Ok(answer.map_body(Spurious::new).collect().await?.text())
}

fn searches_once() -> ScriptedModel {
    let model = ScriptedModel::new().paced(Pace::NextTick);
    model.tool_call("search", json!({})).then().text("Done.")
}

#[test]
fn a_spuriously_polled_run_is_charged_once() {
    let (text, whole) = watched(async {
        let whole = limit(1_000);
        let text = search_slowly(whole.clone(), searches_once()).await;
        (text.unwrap(), whole)
    });
    assert_eq!(text, "Done.");
    let spent = whole.spent();
    assert_eq!(
        (spent.money, spent.model_calls, spent.tool_calls),
        (200, 2, 1)
    );
    assert_eq!(whole.reserved(), Amounts::new());
}

#[tokio::test]
async fn a_run_dropped_while_waiting_reserves_nothing() {
    let scene = RefCell::new(None);
    let run = || {
        let (whole, model) = (limit(1_000), searches_once());
        *scene.borrow_mut() = Some((whole.clone(), model.clone()));
        search_slowly(whole, model)
    };
    let drops = drop_at_each_wait(run, async |polls| {
        let (whole, model) = scene.take().unwrap();
        assert_eq!(
            (whole.reserved(), model.live()),
            (Amounts::new(), 0),
            "{polls}"
        );
        assert!(whole.spent().money <= 200, "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 4, "{drops}");
}

#[tokio::test]
async fn an_exhausted_run_halts_and_keeps_its_results() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(3));
    let answer = run(&searcher(&budget, &model), ChatRequest::user("hi")).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    let said = "budget exceeded: 3 of 3 model calls used, 1 more requested";
    assert_eq!(reason, said);
    assert_eq!(
        (model.calls(), answer.finish.usage),
        (3, Usage::new(30, 30))
    );
    // Every call has its result, and the conversation can be gone on with.
    assert_eq!(statuses(&answer), [ToolStatus::Done; 3]);
    let mut transcript = answer.finish.transcript.unwrap();
    assert_eq!(transcript.len(), 4);
    transcript.push_user("Go on.");
    let answer = run(&searcher(&budget, &model), ChatRequest::new(transcript)).await;
    // Of another run, there is another budget.
    assert_eq!(
        (model.calls(), answer.finish.usage),
        (6, Usage::new(30, 30))
    );
}

// Case F034.
#[tokio::test]
async fn a_run_halts_wherever_the_limit_lies() {
    let mut halted = 0;
    for tokens in (0..1_200).step_by(4) {
        let model = searches();
        let limits = Limits::new().total_tokens(tokens);
        let budget = BudgetLayer::new(limits);
        let request = ChatRequest::user("What is it?!").with_system("You are it. ".repeat(20));
        let answer = run(&searcher(&budget, &model), request).await;
        match answer.finish.outcome {
            Outcome::Halted { .. } => halted += 1,
            Outcome::StepLimit => {}
            other => panic!("{other:?} by a limit of {tokens}"),
        }
        assert!(20 * model.calls() as u64 <= tokens);
    }
    assert!(halted > 100, "{halted}");
}

// Case F034.
#[tokio::test]
async fn a_run_that_may_ask_never_fails() {
    for tokens in (120..600).step_by(4) {
        let budget = BudgetLayer::new(Limits::new().total_tokens(tokens));
        let budget = budget.ask(Amounts::new().total_tokens(10));
        let agent = searcher(&budget, &searches());
        let mut request = ChatRequest::user("What is it?!").with_system("You are it. ".repeat(20));
        for _ in 0..20 {
            let answer = run(&agent, request).await;
            match answer.finish.outcome {
                Outcome::Interrupted => request = reply(written(answer), Reply::approve),
                // Ten more were not enough.
                Outcome::Halted { .. } => break,
                other => panic!("{other:?} by a limit of {tokens}"),
            }
        }
    }
}

#[tokio::test]
async fn a_call_over_its_estimate_halts_the_run() {
    // What only the layer around the model sees: the conversation grows on the way.
    let grows = concentric_layers::from_fn(|mut request: ChatRequest, mut next: Next| async move {
        if request.context.step() == 1 {
            request.transcript.push_user("long ".repeat(1_000));
        }
        next.run(request).await
    });
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().total_tokens(500));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(search(&budget)))
        .layer(grows)
        .layer(budget.model())
        .service(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    assert!(reason.contains("budget exceeded"), "{reason}");
    // What was paid for is kept.
    let kept = answer.transcript().unwrap();
    assert!(kept.len() > 1 && model.calls() == 1, "{kept:?}");
}

#[tokio::test]
async fn a_shortened_conversation_is_estimated_after_shortening() {
    let short = from_fn(|mut request: ChatRequest, mut next: Next| async move {
        request.transcript = Transcript::new();
        request.transcript.push_user("In short.");
        next.run(request).await
    });
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .text("Done.");
    let budget = BudgetLayer::new(Limits::new().total_tokens(500));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(search(&budget)))
        .layer(short)
        .layer(budget.model())
        .service(model);
    let answer = run(&agent, ChatRequest::user("long ".repeat(1_000))).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_fallback_is_called_if_the_first_is_unaffordable() {
    let (dear, cheap) = (
        ScriptedModel::new().text("dear"),
        ScriptedModel::new().text("cheap"),
    );
    let budget = BudgetLayer::new(Limits::new().money(10));
    let dear_ones = budget.clone().price(|_| 100).model().layer(dear.clone());
    let cheap_ones = budget.clone().price(|_| 1).model().layer(cheap.clone());
    let either = service_fn(move |request: ChatRequest| {
        let (dear, cheap) = (dear_ones.clone(), cheap_ones.clone());
        async move {
            match dear.oneshot(request.clone()).await {
                Err(error) if error.code() == Some(OVER_BUDGET) => cheap.oneshot(request).await,
                other => other,
            }
        }
    });
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(either);
    assert_eq!(run(&agent, ChatRequest::user("hi")).await.text(), "cheap");
    assert_eq!((dear.calls(), cheap.calls()), (0, 1));
}

#[tokio::test]
async fn concurrent_runs_of_one_layer_have_separate_budgets() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(2));
    let agent = searcher(&budget, &model);
    join_all((0..5).map(|_| run(&agent, ChatRequest::user("hi")))).await;
    assert_eq!(model.calls(), 10);
}

#[tokio::test]
async fn concurrent_runs_never_exceed_a_shared_budget() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(4));
    let agent = searcher(&budget, &model);
    let tenant = Budget::new(Limits::new().model_calls(7));
    let answers = join_all((0..5).map(|_| agent.clone().oneshot(request(&tenant)))).await;
    let bodies = answers
        .into_iter()
        .flatten()
        .map(|answer| answer.body.collect::<Vec<_>>());
    join_all(bodies).await;
    assert_eq!((model.calls(), tenant.spent().model_calls), (7, 7));
    assert_eq!(tenant.reserved(), Amounts::new());
}
