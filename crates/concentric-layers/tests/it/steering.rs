//! One test per row of [`concentric_layers::steering`]'s table, and what is never lost.

use concentric_core::{
    AgentLayer, Answer, BoxError, CallId, CancelReason, ChatRequest, Error, ErrorKind, Interrupt,
    Message, MessageId, ModelService, Outcome, Part, PartKind, Reply, Role, RunOverrides,
    ToolCallPart, ToolOutcome, Transcript,
    agent::{StepDecision, StepDraft, StepGate},
    machine::RunState,
};
use concentric_layers::{Steering, steering::SteerError};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, Spurious, check_step_gate, drop_at_each_wait, watched,
};
use serde_json::json;
use std::cell::RefCell;
use tower::{Layer, ServiceExt};

#[tokio::test]
async fn a_gate_that_steers_two_runs_at_once_fails_the_first() {
    let steering = Steering::new(4);
    let gate = concentric_test::Gate::new();
    let held = gate.clone();
    let tools = ScriptedTools::new().tool("work", move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            ToolOutcome::done("done")
        }
    });
    let model = || {
        ScriptedModel::new()
            .tool_call("work", json!({}))
            .then()
            .text("Done.")
    };
    // The gate of an agent is that of all its runs: one after the other is no matter.
    let agent = |model: ScriptedModel, layer: &AgentLayer<ScriptedTools>| layer.layer(model);
    let layer = AgentLayer::new(tools).gate(steering.gate());
    let first = agent(model(), &layer).oneshot(ChatRequest::user("one"));
    let first = tokio::spawn(async { first.await.unwrap().collect().await });
    gate.reached_times(1).await;
    let second = agent(model(), &layer).oneshot(ChatRequest::user("two"));
    let second = tokio::spawn(async { second.await.unwrap().collect().await });
    gate.reached_times(2).await;
    gate.open();
    let error = first.await.unwrap().unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("steering"), "{error}");
    assert_eq!(second.await.unwrap().unwrap().text(), "Done.");
    // Another one follows.
    let third = agent(model(), &layer).oneshot(ChatRequest::user("three"));
    assert_eq!(third.await.unwrap().text().await.unwrap(), "Done.");
}

#[tokio::test(start_paused = true)]
async fn the_gate_keeps_its_contract() {
    check_step_gate(|| Steering::new(4).gate()).await;
}

fn is_handle<T: Clone + Send + Sync + 'static>(_: &T) {}

fn user(text: &str) -> Message {
    Message::user(text)
}

fn steered(request: ChatRequest, own: RunOverrides) -> ChatRequest {
    request.with_overrides(own)
}

fn by(steering: &Steering) -> RunOverrides {
    RunOverrides::new().step_gate(steering.gate())
}

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

fn texts(transcript: &Transcript) -> Vec<String> {
    let turns = transcript.iter();
    turns.map(|turn| turn.as_message().text()).collect()
}

fn said(answer: &Answer) -> Vec<String> {
    texts(answer.finish.transcript.as_ref().unwrap())
}

/// A tool that says `next` at the next step, and `idle` when the run is idle.
fn steers(steering: &Steering, next: &'static [&str], idle: &'static [&str]) -> ScriptedTools {
    let steering = steering.clone();
    ScriptedTools::new().tool("work", move |_| {
        for text in idle {
            steering.when_idle(user(text)).unwrap();
        }
        for text in next {
            steering.at_next_step(user(text)).unwrap();
        }
        async { ToolOutcome::done("ok") }
    })
}

fn works_once() -> ScriptedModel {
    ScriptedModel::new()
        .text("I work.")
        .tool_call("work", json!({}))
        .then()
        .text("one")
        .then()
        .text("two")
}

#[tokio::test]
async fn a_message_is_said_before_the_next_model_call() {
    let steering = Steering::new(8);
    is_handle(&steering);
    let model = works_once();
    let agent = AgentLayer::new(steers(&steering, &["b", "c"], &[])).layer(model.clone());
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    assert_eq!(said(&answer), ["a", "I work.", "b", "c", "one"]);
    assert_eq!(
        texts(&model.request(1).transcript),
        ["a", "I work.", "b", "c"]
    );
    assert!(steering.is_empty());
}

#[tokio::test]
async fn a_message_for_an_idle_run_is_said_when_it_would_end() {
    let steering = Steering::new(8);
    let agent = AgentLayer::new(steers(&steering, &["now"], &["later"])).layer(works_once());
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    let expected = ["a", "I work.", "now", "one", "later", "two"];
    assert_eq!(said(&answer), expected);
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_message_for_the_next_step_makes_one_if_there_is_none() {
    let steering = Steering::new(8);
    let gate = concentric_test::Gate::new();
    let model = ScriptedModel::new()
        .text("one")
        .wait(&gate)
        .then()
        .text("two");
    let agent = AgentLayer::new(ScriptedTools::new()).layer(model.clone());
    let request = steered(ChatRequest::user("a"), by(&steering));
    let answer = agent.oneshot(request).await.unwrap();
    // The model speaks already.
    steering.at_next_step(user("b")).unwrap();
    gate.open();
    assert_eq!(
        said(&answer.collect().await.unwrap()),
        ["a", "one", "b", "two"]
    );
}

#[tokio::test]
async fn a_message_that_comes_before_the_run_is_said_at_its_first_step() {
    let steering = Steering::new(8);
    steering.at_next_step(user("b")).unwrap();
    let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("one"));
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    assert_eq!(said(&answer), ["a", "b", "one"]);
}

#[tokio::test]
async fn at_the_step_limit_a_message_is_said_and_the_run_ends() {
    let steering = Steering::new(8);
    let agent = AgentLayer::new(steers(&steering, &[], &["later"]))
        .step_limit(2)
        .layer(works_once());
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    let transcript = answer.finish.transcript.unwrap();
    assert_eq!(texts(&transcript), ["a", "I work.", "one", "later"]);
    assert!(steering.take_back(&transcript).is_empty());
}

#[tokio::test]
async fn a_message_that_was_not_said_when_the_run_waits_is_said_when_it_goes_on() {
    let steering = Steering::new(8);
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("one");
    let agent = AgentLayer::new(tools).layer(model);
    let request = steered(ChatRequest::user("a"), by(&steering));
    let waits = agent.clone().oneshot(request).await.unwrap();
    steering.at_next_step(user("b")).unwrap();
    let waits = waits.collect().await.unwrap();
    assert_eq!(waits.finish.outcome, Outcome::Interrupted);
    assert_eq!(steering.at_next_step(user("c")), Err(SteerError::Ended));
    assert_eq!(steering.len(), 1);

    let state = waits.finish.state.unwrap();
    let json = state.to_json().unwrap();
    let state = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    let replies = vec![Reply::approve(state.interrupts()[0].id.clone())];
    let request = steered(ChatRequest::resume(state, replies), by(&steering));
    let answer = run(&agent, request).await;
    assert_eq!(said(&answer), ["a", "", "b", "one"]);
    assert!(steering.is_empty());
}

#[tokio::test]
async fn a_message_that_was_not_said_when_the_run_is_cancelled_can_be_taken_back() {
    let steering = Steering::new(8);
    let request = steered(ChatRequest::user("a"), by(&steering));
    let context = request.context.clone();
    let agent =
        AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("one").never());
    let answer = agent.oneshot(request).await.unwrap();
    steering.at_next_step(user("b")).unwrap();
    steering.when_idle(user("c")).unwrap();
    context.cancel(CancelReason::User);
    let answer = answer.collect().await.unwrap();
    let transcript = answer.finish.transcript.unwrap();
    let back = steering.take_back(&transcript);
    assert_eq!(back, [user("b"), user("c")]);
    assert!(steering.is_empty());
}

/// A gate that decides something before the model is called for the `n`th time.
struct At(u32, fn(&mut StepDraft) -> StepDecision);

impl StepGate for At {
    fn name(&self) -> &'static str {
        "at"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        Ok(match step.step == self.0 {
            true => (self.1)(step),
            false => StepDecision::Continue,
        })
    }
}

#[tokio::test]
async fn a_message_is_not_lost_if_the_run_is_stopped_as_it_is_about_to_be_said() {
    for stops in [
        (|_| StepDecision::halt("no")) as fn(&mut StepDraft) -> StepDecision,
        |_| StepDecision::Finish,
    ] {
        let steering = Steering::new(8);
        let tools = steers(&steering, &["b"], &[]);
        let agent = AgentLayer::new(tools)
            .gate(At(1, stops))
            .layer(works_once());
        let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
        let transcript = answer.finish.transcript.unwrap();
        assert_eq!(texts(&transcript), ["a", "I work.", "b"]);

        // The next run answers it, and does not say it again.
        let mut next = ChatRequest::user("");
        next.transcript = transcript;
        let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("one"));
        let answer = run(&agent, steered(next, by(&steering))).await;
        assert_eq!(said(&answer), ["a", "I work.", "b", "one"]);
    }
}

/// A run that is steered by its own tool. The model and the tool take ticks.
async fn steered_slowly(steering: Steering, model: ScriptedModel) -> Result<Answer, Error> {
    let tools = steers(&steering, &["b"], &["c"]).paced(Pace::NextTick);
    let agent = AgentLayer::new(tools).layer(model);
    let call = agent.oneshot(steered(ChatRequest::user("a"), by(&steering)));
    let answer = Spurious::new(call).await?;
    Ok(answer.map_body(Spurious::new).collect().await?)
}

#[test]
fn a_message_is_said_once_in_a_run_polled_without_a_wake() {
    let answer = watched(async {
        let model = works_once().paced(Pace::NextTick);
        steered_slowly(Steering::new(8), model).await.unwrap()
    });
    assert_eq!(said(&answer), ["a", "I work.", "b", "one", "c", "two"]);
}

#[tokio::test]
async fn a_message_is_not_lost_wherever_its_run_is_dropped() {
    let scene = RefCell::new(None);
    let run = || {
        let model = works_once().paced(Pace::NextTick);
        let steering = Steering::new(8);
        *scene.borrow_mut() = Some((steering.clone(), model.clone()));
        steered_slowly(steering, model)
    };
    let drops = drop_at_each_wait(run, async |polls| {
        let (steering, model) = scene.take().unwrap();
        assert_eq!(model.live(), 0, "{polls}");
        // The conversation is as it was before the run.
        let back = steering.take_back(&ChatRequest::user("a").transcript);
        let back: Vec<_> = back.iter().map(Message::text).collect();
        assert!(back.is_empty() || back == ["c", "b"], "{polls}: {back:?}");
        assert!(steering.is_empty());
    });
    let drops = drops.await;
    assert!(drops > 5, "{drops}");
}

#[tokio::test]
async fn a_message_is_said_once_though_somebody_is_asked_at_the_same_time() {
    let steering = Steering::new(8);
    let asks = |step: &mut StepDraft| {
        let id = step.interrupt_id("at");
        match step.reply(&id) {
            Some(_) => StepDecision::Continue,
            None => StepDecision::ask(Interrupt::new(id, "may_it")),
        }
    };
    let tools = steers(&steering, &["b"], &[]);
    let agent = AgentLayer::new(tools).gate(At(1, asks)).layer(works_once());
    let waits = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    let state = waits.finish.state.unwrap();
    assert_eq!(texts(state.transcript()), ["a", "I work."]);
    let json = state.to_json().unwrap();
    let state = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    let replies = vec![Reply::resolve(state.interrupts()[0].id.clone(), json!({}))];
    let request = steered(ChatRequest::resume(state, replies), by(&steering));
    assert_eq!(
        said(&run(&agent, request).await),
        ["a", "I work.", "b", "one"]
    );
    assert!(steering.is_empty());
}

#[tokio::test]
async fn a_message_is_said_again_when_the_run_is_tried_again() {
    let steering = Steering::new(8);
    steering.at_next_step(user("b")).unwrap();
    let broken = Error::new(ErrorKind::Server, "it broke");
    let model = ScriptedModel::new().error(broken).then().text("one");
    let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
    let request = steered(ChatRequest::user("a"), by(&steering));
    agent.clone().oneshot(request.clone()).await.unwrap_err();
    assert_eq!(said(&run(&agent, request).await), ["a", "b", "one"]);
    assert!(steering.is_empty());
}

#[tokio::test]
async fn a_handle_that_is_full_says_so() {
    let steering = Steering::new(2);
    steering.at_next_step(user("a")).unwrap();
    steering.when_idle(user("b")).unwrap();
    assert_eq!(steering.at_next_step(user("c")), Err(SteerError::Full));
    assert_eq!(steering.when_idle(user("c")), Err(SteerError::Full));
    assert_eq!(steering.take_back(&Transcript::new()).len(), 2);
    steering.when_idle(user("c")).unwrap();
}

#[tokio::test]
async fn a_run_that_has_ended_takes_no_message() {
    let steering = Steering::new(8);
    let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("one"));
    let request = steered(ChatRequest::user("a"), by(&steering));
    // Whoever keeps the request does not keep the run alive.
    let kept = request.clone();
    run(&agent, request).await;
    assert_eq!(steering.at_next_step(user("b")), Err(SteerError::Ended));
    drop(kept);
    // Nor does one whose run never began.
    drop(by(&steering));
    assert_eq!(steering.when_idle(user("b")), Err(SteerError::Ended));
    let _gate = steering.gate();
    steering.when_idle(user("b")).unwrap();
}

#[tokio::test]
async fn what_cannot_stand_by_itself_is_refused() {
    let call = ToolCallPart::new(CallId::new("c"), "work", "{}");
    let calls = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let refused = Steering::new(8).at_next_step(calls);
    assert!(matches!(refused, Err(SteerError::Invalid(_))));
}

#[tokio::test]
async fn only_the_last_gate_made_says_anything() {
    let steering = Steering::new(8);
    let (old, new) = (by(&steering), by(&steering));
    steering.at_next_step(user("b")).unwrap();
    let agent = |model: ScriptedModel| AgentLayer::new(ScriptedTools::new()).layer(model);
    let first = agent(ScriptedModel::new().text("one"));
    let answer = run(&first, steered(ChatRequest::user("a"), old)).await;
    assert_eq!(said(&answer), ["a", "one"]);
    // The end of the other run is not the end of this one.
    steering.at_next_step(user("c")).unwrap();
    let second = agent(ScriptedModel::new().text("two"));
    let answer = run(&second, steered(ChatRequest::user("a"), new)).await;
    assert_eq!(said(&answer), ["a", "b", "c", "two"]);
}

#[tokio::test]
async fn a_message_keeps_its_id() {
    let steering = Steering::new(8);
    let named = user("b").with_id(MessageId::new("mine"));
    steering.at_next_step(named).unwrap();
    let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("one"));
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    let transcript = answer.finish.transcript.unwrap();
    let ids = transcript.iter().map(|turn| turn.as_message().id.clone());
    assert!(ids.flatten().any(|id| id.as_str() == "mine"));
}

#[tokio::test]
async fn an_agent_in_the_run_is_not_steered() {
    let steering = Steering::new(8);
    let inner = ScriptedModel::new().text("inner");
    let helper = AgentLayer::new(ScriptedTools::new()).layer(inner.clone());
    let from_tool = steering.clone();
    let tools = ScriptedTools::new().tool("work", move |call| {
        let helper = helper.clone();
        from_tool.at_next_step(user("b")).unwrap();
        async move {
            let context = call.context.child().build();
            let request = ChatRequest::user("help").with_context(context);
            let answer = helper.oneshot(request).await.unwrap();
            ToolOutcome::done(answer.text().await.unwrap())
        }
    });
    let agent = AgentLayer::new(tools).layer(works_once());
    let answer = run(&agent, steered(ChatRequest::user("a"), by(&steering))).await;
    assert_eq!(texts(&inner.request(0).transcript), ["help"]);
    assert_eq!(said(&answer), ["a", "I work.", "b", "one"]);
}
