use super::*;

struct Visits;

impl Slot for Visits {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "visits";
    const SCOPE: Scope = Scope::Run;
}

#[tokio::test]
async fn slots_are_restored_before_a_run_resumes() {
    let (model, tools) = once();
    let log = Log::default();
    let layer = || {
        let ask = asks("asks", &log);
        AgentLayer::new(tools.clone()).gate(round_gate("asks", move |step| {
            step.context
                .update_state::<Visits>(|visits| visits + 10)
                .unwrap();
            ask(step).map_or(RoundDecision::Continue, RoundDecision::ask)
        }))
    };
    let visit = |request: &ChatRequest| {
        request
            .context
            .update_state::<Visits>(|visits| visits + 1)
            .unwrap();
        *request.context.state::<Visits>().unwrap()
    };
    let request = ChatRequest::user("hi");
    assert_eq!(visit(&request), 1);
    let waits = run(layer(), &model, request).await;
    let id = waits.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&waits), vec![Reply::resolve(id, json!(true))]);
    let request = request.with_context(Context::new());
    assert_eq!(visit(&request), 12);
    let context = request.context.clone();
    run(layer(), &model, request).await;
    assert_eq!(*context.state::<Visits>().unwrap(), 22);
}

struct Noted;

impl Slot for Noted {
    type Value = u32;
    type Keep = Transient;
    const NAME: &'static str = "test/noted";
    const SCOPE: Scope = Scope::Run;
}

#[tokio::test]
async fn a_resumed_requests_slots_are_replaced_by_the_runs() {
    let suspended = async |visits: u32| {
        let (model, tools) = once();
        let gate = asks("asks", &Log::default());
        let layer = AgentLayer::new(tools).gate(round_gate("asks", move |step| {
            gate(step).map_or(RoundDecision::Continue, RoundDecision::ask)
        }));
        let request = ChatRequest::user("hi");
        if visits > 0 {
            request.context.update_state::<Visits>(|_| visits).unwrap();
        }
        state_of(&run(layer, &model, request).await)
    };
    let context = Context::new();
    // State of this process only is not replaced.
    context.update_state::<Noted>(|_| 3).unwrap();
    for visits in [5, 5, 0, 7] {
        let mut request = ChatRequest::user("hi").with_context(context.clone());
        let state = ResumePoint::State(Box::new(suspended(visits).await));
        request.set_resume(Resume::new(state, Vec::new()));
        assert_eq!(*context.state::<Visits>().unwrap(), visits);
        assert_eq!(*context.state::<Noted>().unwrap(), 3);
        context.update_state::<Visits>(|visits| visits + 1).unwrap();
    }
}

/// The number of calls that were allowed beyond the first two.
struct Allowed;

impl Slot for Allowed {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/allowed";
    const SCOPE: Scope = Scope::Run;
}

fn limited() -> impl StepGate {
    model_gate("limit", |step| {
        let id = step.interrupt_id("limit");
        if let Some(reply) = step.reply(&id) {
            let more = reply
                .payload
                .as_ref()
                .and_then(|more| more["more"].as_u64());
            let Some(more) = more else {
                return StepDecision::Finish;
            };
            let more = u32::try_from(more).unwrap();
            let update = step.context.update_state::<Allowed>(|all| all + more);
            update.unwrap();
        }
        let allowed = step.context.state::<Allowed>().unwrap();
        match step.step < 2 + *allowed {
            true => StepDecision::Continue,
            false => StepDecision::ask(Interrupt::new(id, "limit")),
        }
    })
}

#[tokio::test]
async fn slots_persist_across_processes_and_count_once() {
    let (model, tools) = looker();
    let layer = || AgentLayer::new(tools.clone()).gate(limited());
    let mut answer = run(layer(), &model, ChatRequest::user("hi")).await;
    assert_eq!(model.calls(), 2);
    for (more, calls) in [(3, 5), (1, 6)] {
        let state = state_of(&answer);
        let id = state.interrupts()[0].id.clone();
        let reply = vec![Reply::resolve(id, json!({ "more": more }))];
        answer = run(layer(), &model, ChatRequest::resume(state, reply)).await;
        assert_eq!(model.calls(), calls);
    }
    let state = state_of(&answer);
    assert_eq!(state.slots()[0].value, json!(4));
    let id = state.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state, vec![Reply::cancel(id)]);
    let answer = run(layer(), &model, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 6);
}

#[tokio::test]
async fn a_checkpoint_before_a_round_contains_the_slots() {
    let (model, tools) = once();
    let saved = Arc::new(Mutex::new(Vec::new()));
    let states = saved.clone();
    let checkpoint = Checkpoint::new(move |state: RunState| {
        states.lock().unwrap().push(state);
        Box::pin(std::future::ready(Ok(())))
    });
    let layer = AgentLayer::new(tools).gate(round_gate("counts", |step| {
        step.context.update_state::<Allowed>(|n| n + 7).unwrap();
        RoundDecision::Continue
    }));
    let mut request = ChatRequest::user("hi");
    request.checkpoint = Some(checkpoint);
    run(layer.clone(), &model, request).await;
    let state = saved.lock().unwrap()[0].clone();
    assert_eq!(state.slots()[0].value, json!(7));
    // Another process restores the slots, and does not gate the round again, because it had begun.
    let mut request = ChatRequest::resume(state, vec![]);
    let context = request.context.clone();
    request = request.with_context(context.clone());
    run(layer, &model, request).await;
    assert_eq!(*context.state::<Allowed>().unwrap(), 7);
}

#[derive(Default, Clone)]
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

impl<'de> serde::Deserialize<'de> for Unwritable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Self)
    }
}

struct Cursed;

impl Slot for Cursed {
    type Value = Unwritable;
    type Keep = Durable;
    const NAME: &'static str = "test/cursed";
    const SCOPE: Scope = Scope::Run;
}

#[tokio::test]
async fn an_unserializable_slot_fails_the_run_before_tools() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools.clone()).gate(round_gate("curses", |step| {
        step.context.state::<Cursed>().unwrap();
        RoundDecision::Continue
    }));
    let mut request = ChatRequest::user("hi");
    let save = |_| Box::pin(std::future::ready(Ok(()))) as _;
    request.checkpoint = Some(Checkpoint::new(save));
    let error = try_run(layer, &model, request).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Configuration, Some("slot"))
    );
    assert_eq!(tools.calls().len(), 0);
}

// Case C049.
#[tokio::test]
async fn changes_before_a_halt_are_kept() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools)
        .gate(round_gate("counts", |step| {
            step.context.update_state::<Allowed>(|n| n + 1).unwrap();
            RoundDecision::Continue
        }))
        .gate(round_gate("halts", |_| RoundDecision::halt("closed")));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let answer = run(layer, &model, request).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(*context.state::<Allowed>().unwrap(), 1);
}

// Case C126.
#[tokio::test]
async fn a_runs_usage_covers_all_its_model_calls() {
    let used = || Usage::new(10, 3);
    let look = |model: ScriptedModel| model.usage(used()).tool_call("look", json!({})).then();
    let model = look(look(ScriptedModel::new())).usage(used()).text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let answer = run(AgentLayer::new(tools), &model, ChatRequest::user("hi")).await;
    assert_eq!(model.calls(), 3);
    assert_eq!(answer.finish.usage.input_tokens(), Some(30));
    assert_eq!(answer.finish.usage.output_tokens(), Some(9));
}

// Case C055.
#[tokio::test]
async fn the_outcome_has_only_the_reason_of_the_cancellation() {
    for reason in [
        CancelReason::User,
        CancelReason::Shutdown,
        CancelReason::Disconnected,
        CancelReason::Other("the user changed page".into()),
        CancelReason::Other("user".into()),
    ] {
        let model = ScriptedModel::new().text("I ").never();
        let tools = ScriptedTools::new();
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let agent = AgentLayer::new(tools).layer(model);
        let response = agent.oneshot(request).await.unwrap();
        context.cancel(reason.clone());
        let answer = response.collect().await.unwrap();
        let by_user = reason == CancelReason::User;
        let Outcome::Aborted { reason: said } = &answer.finish.outcome else {
            panic!("{:?}", answer.finish.outcome);
        };
        assert_eq!(*said, reason);
        assert_eq!(*said == CancelReason::User, by_user);
    }
}
