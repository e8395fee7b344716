use super::*;

#[tokio::test]
async fn an_unaffordable_tool_call_is_denied_with_one_result() {
    let tools = Arc::new(AtomicU64::new(0));
    let ran = Arc::clone(&tools);
    let budget = BudgetPlugin::new(Limits::new().tool_calls(2));
    let looks = service_fn(move |_: ToolCall| {
        ran.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::task::yield_now().await;
            Ok::<_, Error>(ToolOutcome::done("seen"))
        }
    });
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("look", json!({}))
        .tool_call("look", json!({}))
        .then()
        .text("That was all.");
    let tools_of = ScriptedTools::new().service(object("look"), budget.tool().layer(looks));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools_of))
        .layer(budget.model())
        .service(model);
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(tools.load(Ordering::SeqCst), 2);
    // The model is told, and the run goes on.
    assert_eq!(answer.text(), "That was all.");
    let expected = [ToolStatus::Done, ToolStatus::Done, ToolStatus::Denied];
    assert_eq!(statuses(&answer), expected);
    let transcript = answer.finish.transcript.unwrap();
    let denied = &transcript
        .iter()
        .flat_map(Turn::results)
        .nth(2)
        .unwrap()
        .outcome;
    let said = "The call was not run: budget exceeded: 2 of 2 tool calls used, 1 more requested.";
    assert_eq!(denied, &ToolOutcome::denied(said));
}

fn a_call(budget: &Budget) -> ToolCall {
    let mut context = TestEnvironment::new().context_builder().build();
    context.provide(budget.clone());
    ToolCall::new(
        ToolCallPart::new(CallId::new("call_1"), "look", json!({})),
        context,
    )
}

/// What is spent by a call of a tool that does as `tool` does.
async fn spent_by_tool<F>(tool: F) -> Amounts
where
    F: Future<Output = Result<ToolOutcome, Error>> + Clone + Send + 'static,
{
    let budget = Budget::new(Limits::new());
    let service = layer()
        .tool()
        .layer(service_fn(move |_: ToolCall| tool.clone()));
    let mut call = task::spawn(service.oneshot(a_call(&budget)));
    let _ = call.poll();
    drop(call);
    assert_eq!(budget.reserved(), Amounts::new());
    budget.spent()
}

#[tokio::test]
async fn a_tool_call_is_charged_however_it_ends() {
    let one = Amounts::new().tool_calls(1);
    let done = async { Ok(ToolOutcome::done("x")) }.boxed().shared();
    assert_eq!(spent_by_tool(done).await, one);
    let fails = async { Err(Error::new(ErrorKind::Other, "no")) }
        .boxed()
        .shared();
    assert_eq!(spent_by_tool(fails).await, one);
    let hangs = std::future::pending().boxed().shared();
    assert_eq!(spent_by_tool(hangs).await, one);
    let waits = async {
        Err(Error::suspended(concentric_core::Suspension::new(
            Vec::new(),
        )))
    };
    assert_eq!(spent_by_tool(waits.boxed().shared()).await, Amounts::new());
}

#[tokio::test]
async fn a_settled_call_costs_nothing() {
    let budget = Budget::new(Limits::new().tool_calls(0));
    let seen = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&seen);
    let service = layer().tool().layer(service_fn(move |_: ToolCall| {
        *counts.lock().unwrap() += 1;
        async { Ok::<_, Error>(ToolOutcome::denied("no")) }
    }));
    let call = a_call(&budget);
    let denied = ToolOutcome::denied("no");
    let round = concentric_core::RoundCall::new(0, call.part().clone());
    let shown = ToolCall::of_round(
        round,
        Clearance::Settled(Arc::new(denied.clone())),
        Transcript::new(),
        &call.context,
    );
    assert_eq!(service.oneshot(shown).await.unwrap(), denied);
    assert_eq!((*seen.lock().unwrap(), budget.spent()), (1, Amounts::new()));
}

#[tokio::test]
async fn a_suspended_tool_call_is_charged_once() {
    let budget = BudgetPlugin::new(Limits::new().tool_calls(1));
    let asks = service_fn(async |call: ToolCall| match call.resumed() {
        None => {
            let id = call.context.interrupt_id().unwrap();
            let asked = concentric_core::Interrupt::new(id, "choice");
            Err(Error::suspended(concentric_core::Suspension::new(vec![
                asked,
            ])))
        }
        Some(_) => Ok(ToolOutcome::done("chosen")),
    });
    let tools = ScriptedTools::new().service(object("ask"), budget.tool().layer(asks));
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools))
        .layer(budget.model())
        .service(model);
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let answer = run(&agent, reply(state, |id| Reply::resolve(id, json!("a")))).await;
    assert_eq!(statuses(&answer), [ToolStatus::Done]);
}
