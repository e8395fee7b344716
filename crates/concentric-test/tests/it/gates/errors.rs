use super::*;

#[tokio::test]
async fn a_halting_error_from_any_source_is_an_outcome() {
    let halted = |answer: &Answer| {
        assert_eq!(
            answer.finish.outcome,
            Outcome::Halted {
                reason: "enough".into()
            }
        );
    };
    // A failed model call, in the first step and in a later one, and a failed body.
    let first = ScriptedModel::new().error(Error::halted("enough"));
    let later = ScriptedModel::new().tool_call("look", json!({})).then();
    let later = later.error(Error::halted("enough"));
    let body = ScriptedModel::new()
        .text("Half of")
        .error(Error::halted("enough"));
    for (model, turns) in [(first, 1), (later, 2), (body, 2)] {
        let tools = ScriptedTools::new().answers("look", "seen");
        let answer = run(AgentLayer::new(tools), &model, ChatRequest::user("hi")).await;
        halted(&answer);
        assert_eq!(answer.transcript().unwrap().len(), turns);
    }
    // A failed gate.
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(Failing);
    halted(&run(layer, &model, ChatRequest::user("hi")).await);
}

struct Failing;

impl StepGate for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        Err(Error::halted("enough").into())
    }
}

#[tokio::test]
async fn a_failed_gate_fails_the_run_before_any_call() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools.clone()).gate(Fails);
    let error = try_run(layer, &model, ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "the step gate `fails` failed: the database is gone"
    );
    assert_eq!(tools.calls().len(), 0);
}

struct Panics;

impl StepGate for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn a_panic_in_a_gate_is_an_error() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools.clone()).gate(Panics);
    let request = ChatRequest::user("hi");
    let error = try_run(layer, &model, request).await.unwrap_err();
    assert_eq!(
        error.message(),
        "the step gate `panics` failed: it panicked"
    );
    assert_eq!(tools.calls().len(), 0);
}

struct Hangs;

impl StepGate for Hangs {
    fn name(&self) -> &str {
        "hangs"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        if step.step == 1 {
            pending::<()>().await;
        }
        Ok(StepDecision::Continue)
    }

    async fn before_round(&self, step: &StepView) -> Result<RoundDecision, BoxError> {
        if step.context.extensions().get::<Log>().is_some() {
            pending::<()>().await;
        }
        Ok(RoundDecision::Continue)
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_cancelled_while_a_gate_hangs() {
    for at_the_round in [true, false] {
        let (model, tools) = once();
        let mut request = ChatRequest::user("hi");
        if at_the_round {
            request.context.extensions_mut().insert(Log::default());
        }
        let context = request.context.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            context.cancel(CancelReason::User);
        });
        let answer = run(AgentLayer::new(tools.clone()).gate(Hangs), &model, request).await;
        assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
        let status = results(&answer)[0].0;
        match at_the_round {
            true => assert_eq!((status, tools.done()), (ToolStatus::Cancelled, 0)),
            false => assert_eq!((status, tools.done()), (ToolStatus::Done, 1)),
        }
    }
}

#[tokio::test]
async fn gates_of_a_run_are_outside_the_agents_gates() {
    let (model, tools) = once();
    let log = Log::default();
    let tells = |name: &'static str| {
        let log = log.clone();
        model_gate(name, move |step| {
            log.lock().unwrap().push(format!("{name} {}", step.step));
            StepDecision::Continue
        })
    };
    let layer = AgentLayer::new(tools).gate(tells("agent"));
    let own = RunOverrides::new().step_gate(tells("run"));
    let request = ChatRequest::user("hi").with_overrides(own);
    run(layer, &model, request).await;
    assert_eq!(
        *log.lock().unwrap(),
        ["run 0", "agent 0", "run 1", "agent 1"]
    );
}
