use super::*;

fn within_itself(budget: &BudgetPlugin, model: &ScriptedModel) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(search(budget)))
        .layer(budget.model())
        .service(model.clone());
    BoxModel::new(agent)
}

// Case C126, with parallel agents, a summary, a failed attempt of a fallback and a rejected answer.
#[cfg(feature = "full")]
#[tokio::test]
async fn a_budget_and_the_usage_of_a_run_agree() {
    use concentric_core::ResponseHead;
    use concentric_layers::{CompactionLayer, FallbackLayer, compaction::Trigger};

    let used = Usage::new;
    let named = |tokens| {
        let head = ResponseHead::new("test", "model");
        ScriptedModel::new().head(head).usage(tokens)
    };
    let inner = named(used(1_000, 100)).paced(Pace::NextTick);
    let inner = inner.text("No news.").repeat();
    let summarizer = named(used(500, 9)).text("The summary.").repeat();
    let head = ResponseHead::new("test", "model");
    let outer = named(used(10, 1)).text("Hm.").then();
    let outer = outer
        .head(head.clone())
        .usage(used(20, 2))
        .tool_call("ask", json!({"task": "s"}))
        .tool_call("ask", json!({"task": "t"}));
    let outer = outer.then().head(head).usage(used(30, 3)).text("Nothing.");
    // The first answer is rejected by a layer, as a retry does.
    let retried = from_fn(async |request: ChatRequest, mut next: Next| {
        if request.context.step() == 0 {
            next.run(request.clone()).await?.collect().await?;
        }
        next.run(request).await
    });
    let budget = BudgetPlugin::new(Limits::new()).estimate(|_| Usage::new(30, 20));
    let summaries = BoxModel::new(budget.model().layer(summarizer.clone()));
    let compaction = CompactionLayer::new(summaries, 10_000)
        .when(Trigger::tokens(200))
        .keep(50);
    let refused = Error::new(ErrorKind::RateLimited, "later");
    let refused = ScriptedModel::new().error(refused).repeat();
    let tools = agent_tool("ask", "", within_itself(&budget, &inner));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(Toolset::new().tool(tools)))
        .layer(compaction)
        .layer(retried)
        .layer(FallbackLayer::new("first").or("second", budget.model().layer(outer)))
        .layer(budget.model())
        .service(refused.clone());
    let tenant = Budget::new(Limits::new());
    let mut asked = request(&tenant);
    // 400 tokens, of which most are summarised.
    let long = "a".repeat(160);
    let earlier = (0..5).flat_map(|_| [Message::user(&*long), Message::assistant(&*long)]);
    let turns = earlier.chain([Message::user("News?")]);
    asked.transcript = turns
        .map(|message| Turn::message(message).unwrap())
        .collect();
    let answer = run(&BoxModel::new(agent), asked).await;
    assert_eq!(answer.text(), "Nothing.");
    assert_eq!((summarizer.calls(), inner.most_live()), (1, 2));
    // The later steps keep to the second model.
    assert_eq!(refused.calls(), 1);
    let total = answer.finish.run_usage().total();
    assert_eq!(total, used(2_560, 215));
    let (spent, total) = (tenant.spent(), Amounts::of_usage(&total));
    assert_eq!(
        (spent.input_tokens, spent.output_tokens, spent.total_tokens),
        (total.input_tokens, total.output_tokens, total.total_tokens)
    );
    assert_eq!((spent.model_calls, tenant.reserved()), (6, Amounts::new()));
}

// Case F033.
#[tokio::test]
async fn an_agent_tool_spends_its_callers_budget() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let agent = around(&budget, &outer, within_itself(&budget, &inner));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    // One call of its own, and four of the other, which fails; then it is stopped itself.
    assert_eq!((outer.calls(), inner.calls()), (1, 4));
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(statuses(&answer), [ToolStatus::Failed]);
}

// Case F033.
#[tokio::test]
async fn an_agent_tool_may_have_its_own_limits() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let own = BudgetPlugin::new(Limits::new().model_calls(2));
    let agent = around(&budget, &outer, searcher(&own, &inner));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!((outer.calls(), inner.calls()), (2, 2));
    assert_eq!(answer.text(), "done");
}

// Case F033.
#[tokio::test]
async fn an_agent_tool_may_have_a_part_of_the_budget() {
    async fn part(
        mut request: ChatRequest,
        mut next: Next,
    ) -> Result<ChatResponse<EventStream>, Error> {
        let budget = request.context.require::<Budget>()?;
        let part = budget.split(Limits::new().model_calls(2))?;
        request.context.provide(part);
        next.run(request).await
    }
    let (outer, inner) = (asks(), searches());
    let budget = BudgetPlugin::new(Limits::new().model_calls(4));
    let agent = from_fn(part).layer(within_itself(&budget, &inner));
    let tenant = Budget::new(Limits::new());
    let agent = around(&budget, &outer, BoxModel::new(agent));
    let answer = run(&agent, request(&tenant)).await;
    assert_eq!((outer.calls(), inner.calls()), (2, 2));
    assert_eq!(answer.text(), "done");
    let spent = (tenant.spent().model_calls, tenant.reserved().model_calls);
    assert_eq!(spent, (4, 0));
}

// Case F034.
#[tokio::test]
async fn an_agent_tools_spending_survives_a_resume() {
    let budget = BudgetPlugin::new(Limits::new().model_calls(4));
    let own = BudgetPlugin::new(Limits::new().model_calls(3));
    let make = |outer: &ScriptedModel, inner: &ScriptedModel| {
        let tools = ScriptedTools::new().asks("pay", "paid");
        let agent = ServiceBuilder::new()
            .layer(own.run())
            .layer(AgentLayer::new(tools))
            .layer(own.model())
            .service(inner.clone());
        around(&budget, outer, BoxModel::new(agent))
    };
    let pays = || ScriptedModel::new().tool_call("pay", json!({})).repeat();
    let (outer, inner) = (asks(), pays());
    let mut answer = run(&make(&outer, &inner), ChatRequest::user("hi")).await;
    // Each of the two has a process of its own for each of its calls.
    for _ in 0..2 {
        let inner = pays();
        let agent = make(&ScriptedModel::new(), &inner);
        answer = run(&agent, reply(written(answer), Reply::approve)).await;
        assert_eq!(inner.calls(), 1);
    }
    // Its own three are used up, and with the first of the outer run that run's four.
    let (outer, inner) = (ScriptedModel::new().text("done"), pays());
    let answer = run(
        &make(&outer, &inner),
        reply(written(answer), Reply::approve),
    )
    .await;
    assert_eq!((outer.calls(), inner.calls()), (0, 0));
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(statuses(&answer), [ToolStatus::Failed]);
}

#[tokio::test]
async fn an_agent_tool_asks_on_behalf_of_its_caller() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetPlugin::new(Limits::new().model_calls(2)).ask(Amounts::new().model_calls(2));
    let unlimited = BudgetPlugin::new(Limits::new());
    let agent = around(&budget, &outer, searcher(&unlimited, &inner));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    assert_eq!(
        (outer.calls(), inner.calls(), state.interrupts().len()),
        (1, 1, 1)
    );
    let answer = run(&agent, reply(state, Reply::approve)).await;
    assert_eq!((outer.calls(), inner.calls()), (1, 3));
    assert_eq!(written(answer).interrupts().len(), 1);
}
