//! Step gates, and the state of a run that waits for their interrupts.

use concentric_core::{
    AgentLayer, Answer, BoxError, CancelReason, ChatRequest, Context, Custom, Environment, Error,
    ErrorKind, Event, Interrupt, InterruptId, LiveInterrupts, Message, Outcome, Part, Reply,
    ReplyError, Resume, Role, Str, Suspended, ToolSpec, ToolStatus, Turn, Usage,
    agent::{BeforeFinish, BeforeRound, BeforeStep, StepGate, StepGates, StepView},
    ask::Unanswered,
    context::{Clock, Ids, Random, Sleep},
    interrupt,
    machine::MachineState,
    state::{Durable, Scope, Slot, Transient},
    store::{Checkpoint, Tenant},
};
use concentric_layers::map_events;
use concentric_test::{ScriptedModel, ScriptedTools};
use serde_json::json;
use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceExt};

type Log = Arc<Mutex<Vec<String>>>;

/// A gate from closures.
struct Gate<M, R, F> {
    name: &'static str,
    model: M,
    round: R,
    finish: F,
}

impl<M, R, F> StepGate for Gate<M, R, F>
where
    M: Fn(&StepView) -> BeforeStep + Send + Sync + 'static,
    R: Fn(&StepView) -> BeforeRound + Send + Sync + 'static,
    F: Fn(&StepView) -> BeforeFinish + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.name
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.model)(step))
    }

    async fn before_round(&self, step: &StepView) -> Result<BeforeRound, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.round)(step))
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.finish)(step))
    }
}

fn model_gate(
    name: &'static str,
    model: impl Fn(&StepView) -> BeforeStep + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name,
        model,
        round: |_: &StepView| BeforeRound::Continue,
        finish: |_: &StepView| BeforeFinish::Finish,
    }
}

fn round_gate(
    name: &'static str,
    round: impl Fn(&StepView) -> BeforeRound + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name,
        model: |_: &StepView| BeforeStep::Continue,
        round,
        finish: |_: &StepView| BeforeFinish::Finish,
    }
}

fn finish_gate(
    finish: impl Fn(&StepView) -> BeforeFinish + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name: "finish",
        model: |_: &StepView| BeforeStep::Continue,
        round: |_: &StepView| BeforeRound::Continue,
        finish,
    }
}

/// A model that calls a tool in every step.
fn looker() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new().tool_call("look", json!({})).repeat();
    (model, ScriptedTools::new().answers("look", "seen"))
}

/// A model that calls a tool once, and then answers.
fn once() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("I have looked.")
        .repeat();
    (model, ScriptedTools::new().answers("look", "seen"))
}

async fn try_run(
    layer: AgentLayer<ScriptedTools>,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Result<Answer, Error> {
    let response = layer.layer(model.clone()).oneshot(request).await?;
    Ok(response.collect().await?)
}

async fn run(
    layer: AgentLayer<ScriptedTools>,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Answer {
    try_run(layer, model, request).await.unwrap()
}

fn results(answer: &Answer) -> Vec<(ToolStatus, String)> {
    let turns = answer.transcript().unwrap().iter();
    let results = turns.flat_map(|turn| turn.results().iter());
    results
        .map(|r| (r.outcome.status, r.outcome.content.text().into_owned()))
        .collect()
}

fn state_of(answer: &Answer) -> MachineState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.as_ref().unwrap().to_json().unwrap();
    MachineState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn user(text: &str) -> Turn {
    Turn::message(Message::new(Role::User, vec![Part::text(text)])).unwrap()
}

// ---- stopping ----

#[tokio::test]
async fn one_gate_can_end_a_run_normally() {
    let (model, tools) = looker();
    let layer = AgentLayer::new(tools.clone())
        .gate(model_gate("goes on", |_| BeforeStep::Continue))
        .gate(model_gate("has enough", |step| match step.step {
            0 | 1 => BeforeStep::Continue,
            _ => BeforeStep::Finish,
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
        .gate(model_gate("votes", |_| BeforeStep::Finish))
        .gate(model_gate("halts", |step| match step.step {
            0 => BeforeStep::Continue,
            _ => BeforeStep::halt("no money left"),
        }));
    // The gate stops the run before its first step.
    let answer = run(layer.clone(), &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 0);

    let (model, tools) = looker();
    let layer = AgentLayer::new(tools).gate(model_gate("halts", |step| match step.step {
        0 => BeforeStep::Continue,
        _ => BeforeStep::halt("no money left"),
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
                true => BeforeRound::halt("closed"),
                false => BeforeRound::skip("not now"),
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

// ---- continuing ----

#[tokio::test]
async fn a_run_that_may_not_finish_makes_another_step() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(finish_gate(|step| {
        let said: Vec<_> = step.transcript.iter().collect();
        // The response of this step.
        assert!([1, 2].contains(&step.step), "{}", step.step);
        match said.len() {
            ..5 => BeforeFinish::Continue(vec![user("Are you sure?")]),
            _ => BeforeFinish::Finish,
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
        .gate(finish_gate(|_| BeforeFinish::Continue(vec![user("More!")])));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(model.calls(), 4);
}

#[tokio::test]
async fn a_gates_messages_precede_the_next_step() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(model_gate("steers", |step| match step.step {
        1 => BeforeStep::Say(vec![user("Be quick.")]),
        _ => BeforeStep::Continue,
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(answer.transcript().unwrap().len(), 4);
    let sent = model.request(1).transcript;
    assert_eq!(sent.last().unwrap().as_message().role, Role::User);
}

// ---- interrupts ----

fn asks(name: &'static str, log: &Log) -> impl Fn(&StepView) -> Option<Interrupt> + use<> {
    let log = log.clone();
    move |step| {
        let id = step.interrupt_id(name);
        match step.reply(&id) {
            Some(_) => {
                let all = step.replies().len();
                log.lock().unwrap().push(format!("{name} sees {all}"));
                None
            }
            None => Some(Interrupt::new(id, "budget").with_message("May it go on?")),
        }
    }
}

#[tokio::test]
async fn interrupts_of_several_gates_are_raised_together_and_once() {
    for before_a_round in [false, true] {
        let log = Log::default();
        let (model, tools) = once();
        let layer = || {
            let layer = AgentLayer::new(tools.clone());
            ["a", "b"].into_iter().fold(layer, |layer, name| {
                let ask = asks(name, &log);
                match before_a_round {
                    true => layer.gate(round_gate(name, move |step| {
                        ask(step).map_or(BeforeRound::Continue, BeforeRound::ask)
                    })),
                    false => layer.gate(model_gate(name, move |step| match step.step {
                        0 => ask(step).map_or(BeforeStep::Continue, BeforeStep::ask),
                        _ => BeforeStep::Continue,
                    })),
                }
            })
        };
        let answer = run(layer(), &model, ChatRequest::user("hi")).await;
        let state = state_of(&answer);
        let ids: Vec<_> = state
            .interrupts()
            .iter()
            .map(|ask| ask.id.clone())
            .collect();
        assert_eq!(ids.len(), 2);
        assert!(state.asks_together());
        assert_eq!(model.calls(), usize::from(before_a_round));
        assert_eq!(tools.calls().len(), 0);

        // All of them need a reply, and nothing else does.
        let one = vec![Reply::resolve(ids[0].clone(), json!({}))];
        let error = try_run(layer(), &model, ChatRequest::resume(state.clone(), one)).await;
        assert_eq!(error.unwrap_err().code(), Some("missing_reply"));
        let nobody = ChatRequest::resume(state.clone(), vec![]);
        let again = run(layer(), &model, nobody).await;
        assert_eq!(state_of(&again).interrupts().len(), 2);
        assert!(log.lock().unwrap().is_empty());

        let both = ids.into_iter().map(|id| Reply::resolve(id, json!({})));
        let request = ChatRequest::resume(state, both.collect());
        let answer = run(layer(), &model, request).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(*log.lock().unwrap(), ["a sees 2", "b sees 2"]);
        assert_eq!(model.calls(), 2);
        assert_eq!(tools.done(), 1);
    }
}

#[tokio::test]
async fn the_strictest_decision_of_several_gates_wins() {
    let log = Log::default();
    let (model, tools) = once();
    let layer = || {
        let (a, b) = (asks("a", &log), asks("b", &log));
        AgentLayer::new(tools.clone())
            .gate(model_gate("a", move |step| {
                a(step).map_or(BeforeStep::Continue, BeforeStep::ask)
            }))
            .gate(model_gate("b", move |step| {
                b(step).map_or(BeforeStep::halt("b says no"), BeforeStep::ask)
            }))
    };
    let state = state_of(&run(layer(), &model, ChatRequest::user("hi")).await);
    let replies = state.interrupts();
    let replies = replies
        .iter()
        .map(|ask| Reply::resolve(ask.id.clone(), json!({})));
    let request = ChatRequest::resume(state.clone(), replies.collect());
    let answer = run(layer(), &model, request).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(model.calls(), 0);
}

// ---- errors and cancellation ----

struct Fails;

impl StepGate for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    async fn before_round(&self, _: &StepView) -> Result<BeforeRound, BoxError> {
        Err("the database is gone".into())
    }
}

#[tokio::test]
async fn a_finish_gate_asks_again_after_the_run_continues() {
    let model = ScriptedModel::new().text("A.").then().text("B.");
    let log = Log::default();
    let layer = || {
        let log = log.clone();
        AgentLayer::new(ScriptedTools::new()).gate(finish_gate(move |step| {
            let id = step.interrupt_id("finish");
            log.lock().unwrap().push(step.step.to_string());
            match step.reply(&id).map(|reply| reply.read().unwrap()) {
                None => BeforeFinish::ask(Interrupt::new(id, "enough")),
                Some(true) => BeforeFinish::Finish,
                Some(false) => BeforeFinish::Continue(vec![user("More.")]),
            }
        }))
    };
    let mut answer = run(layer(), &model, ChatRequest::user("hi")).await;
    for (enough, calls) in [(false, 1), (true, 2)] {
        assert_eq!(model.calls(), calls);
        let asked = answer.finish.interrupts()[0].id.clone();
        let reply = Reply::resolve(asked, json!(enough));
        let request = ChatRequest::resume(state_of(&answer), vec![reply]);
        answer = run(layer(), &model, request).await;
    }
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    let said = answer.transcript().unwrap().iter();
    let said: Vec<String> = said.map(|turn| turn.as_message().text()).collect();
    assert_eq!(said, ["hi", "A.", "More.", "B."]);
    assert_eq!(*log.lock().unwrap(), ["0", "0", "1", "1"]);
}

#[tokio::test]
async fn an_interrupt_of_a_finish_gate_stays_open_without_a_reply() {
    let model = ScriptedModel::new().text("A.").repeat();
    let layer = || {
        AgentLayer::new(ScriptedTools::new()).gate(finish_gate(|step| {
            let id = step.interrupt_id("finish");
            match step.reply(&id) {
                None => BeforeFinish::ask(Interrupt::new(id, "enough")),
                Some(_) => BeforeFinish::Finish,
            }
        }))
    };
    let mut answer = run(layer(), &model, ChatRequest::user("hi")).await;
    for _ in 0..2 {
        let nothing = ChatRequest::resume(state_of(&answer), Vec::new());
        answer = run(layer(), &model, nothing).await;
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    }
    let asked = answer.finish.interrupts()[0].id.clone();
    let reply = Reply::resolve(asked, json!(true));
    let request = ChatRequest::resume(state_of(&answer), vec![reply]);
    let answer = run(layer(), &model, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_reply_to_a_missing_finish_gate_is_an_error() {
    let model = ScriptedModel::new().text("A.");
    let layer = AgentLayer::new(ScriptedTools::new());
    let asking = layer.clone().gate(finish_gate(|step| {
        BeforeFinish::ask(Interrupt::new(step.interrupt_id("finish"), "enough"))
    }));
    let answer = run(asking, &model, ChatRequest::user("hi")).await;
    let asked = answer.finish.interrupts()[0].id.clone();
    let replies = vec![Reply::resolve(asked, json!(true))];
    let request = ChatRequest::resume(state_of(&answer), replies);
    let error = try_run(layer, &model, request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn gates_that_raise_interrupts_need_distinct_names() {
    let model = ScriptedModel::new().text("A.");
    let layer =
        ["same", "same"]
            .into_iter()
            .fold(AgentLayer::new(ScriptedTools::new()), |layer, name| {
                layer.gate(model_gate(name, move |step| {
                    BeforeStep::ask(Interrupt::new(step.interrupt_id(name), "budget"))
                }))
            });
    let error = try_run(layer, &model, ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn a_gates_messages_are_kept_when_another_gate_stops() {
    for (verdict, outcome) in [
        (BeforeStep::Finish, Outcome::Completed),
        (
            BeforeStep::halt("no"),
            Outcome::Halted {
                reason: "no".into(),
            },
        ),
    ] {
        let model = ScriptedModel::new().text("A.");
        let layer = AgentLayer::new(ScriptedTools::new())
            .gate(model_gate("steers", |_| {
                BeforeStep::Say(vec![user("Stop.")])
            }))
            .gate(model_gate("stops", move |_| verdict.clone()));
        let answer = run(layer, &model, ChatRequest::user("hi")).await;
        assert_eq!(answer.finish.outcome, outcome);
        let last = answer.transcript().unwrap().last().unwrap();
        assert_eq!(
            (last.as_message().text().as_str(), model.calls()),
            ("Stop.", 0)
        );
    }
}

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

    async fn before_step(&self, _: &StepView) -> Result<BeforeStep, BoxError> {
        Err(Error::halted("enough").into())
    }
}

#[tokio::test]
async fn live_interrupts_are_answered_through_the_runs_handle() {
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let log = Log::default();
    let seen = log.clone();
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(Asking(seen));
    let run = tokio::spawn(async move { run(layer, &model, request).await });
    let asked = loop {
        let asked = context.live().interrupts(&Tenant::of(&context));
        match asked.into_iter().next() {
            Some(asked) => break asked,
            None => tokio::task::yield_now().await,
        }
    };
    let unknown = Reply::resolve(InterruptId::new("another"), json!(3));
    assert!(matches!(
        context.reply(unknown),
        Err(ReplyError::Unknown(_))
    ));
    context
        .reply(Reply::resolve(asked.id.clone(), json!(3)))
        .unwrap();
    // A second reply is not accepted.
    assert!(context.reply(Reply::resolve(asked.id, json!(4))).is_err());
    assert_eq!(run.await.unwrap().finish.outcome, Outcome::Completed);
    assert_eq!(*log.lock().unwrap(), ["3"]);
}

#[tokio::test(start_paused = true)]
async fn a_live_interrupt_without_a_reply_times_out_and_is_withdrawn() {
    let context = Context::new();
    let ask = || Interrupt::new(InterruptId::new("q"), "row");
    let minute = Duration::from_secs(60);
    let waits = context.ask(ask(), minute);
    let twice = async {
        tokio::task::yield_now().await;
        context.ask(ask(), minute).await
    };
    // The run is not polled, so its events are not delivered.
    let (late, twice) = tokio::join!(waits, twice);
    assert_eq!(late, Err(Unanswered::Late));
    assert_eq!(twice, Err(Unanswered::Asked(InterruptId::new("q"))));
    assert!(context.live().interrupts(&Tenant::of(&context)).is_empty());
    let cancelled = async {
        tokio::task::yield_now().await;
        context.cancel(CancelReason::User);
    };
    let (asked, ()) = tokio::join!(context.ask(ask(), minute), cancelled);
    assert_eq!(asked, Err(Unanswered::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_live_interrupt_without_room_times_out() {
    let context = Context::new();
    let event = || Event::Custom(Box::new(Custom::new("full", json!({}))));
    while context.emit(event()).is_ok() {}
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let asked = context.ask(ask, Duration::from_secs(60));
    let asked = tokio::time::timeout(Duration::from_secs(61), asked).await;
    assert_eq!(asked.unwrap(), Err(Unanswered::Late));
}

/// An environment in which the reply to the interrupt `q` arrives as its deadline passes.
struct LastMoment(LiveInterrupts);

impl Clock for LastMoment {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn sleep(&self, _: Duration) -> Sleep {
        let live = self.0.clone();
        Box::pin(async move {
            let reply = Reply::resolve(InterruptId::new("q"), json!(3));
            let taken = live.reply(&Tenant::default(), reply, SystemTime::UNIX_EPOCH);
            taken.unwrap();
        })
    }
}

impl Ids for LastMoment {
    fn next(&self, prefix: &str) -> Str {
        prefix.into()
    }
}

impl Random for LastMoment {
    fn next_u64(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn an_accepted_reply_is_delivered_after_the_deadline() {
    let live = LiveInterrupts::new();
    let world = || LastMoment(live.clone());
    let environment = Environment::new(world(), world(), world());
    let context = Context::builder().environment(environment).build();
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let asked = live.ask(ask, Duration::from_secs(60), &context).await;
    assert_eq!(asked.unwrap().read::<u8>().unwrap(), 3);
}

struct Asking(Log);

impl StepGate for Asking {
    fn name(&self) -> &str {
        "asking"
    }

    async fn before_round(&self, step: &StepView) -> Result<BeforeRound, BoxError> {
        let id = InterruptId::new(step.context.new_id("ask_"));
        let ask = Interrupt::new(id, "row");
        let reply = step.context.ask(ask, Duration::from_secs(60)).await?;
        self.0.lock().unwrap().push(reply.read::<u8>()?.to_string());
        Ok(BeforeRound::Continue)
    }
}

#[tokio::test]
async fn a_round_of_client_calls_is_gated() {
    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let request = || {
        let mut request = ChatRequest::user("hi");
        let spec = ToolSpec::new("confirm", "", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
        request
    };
    let agent = |verdict: BeforeRound| {
        let gate = round_gate("policy", move |step| match step.replies() {
            [] => verdict.clone(),
            _ => BeforeRound::Continue,
        });
        AgentLayer::new(ScriptedTools::new()).gate(gate)
    };
    let halted = run(agent(BeforeRound::halt("no")), &model.clone(), request()).await;
    assert_eq!(
        halted.finish.outcome,
        Outcome::Halted {
            reason: "no".into()
        }
    );
    assert_eq!(results(&halted)[0].0, ToolStatus::Cancelled);

    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let skipped = run(agent(BeforeRound::skip("not now")), &model, request()).await;
    assert_eq!(skipped.finish.outcome, Outcome::Completed);
    assert_eq!(
        results(&skipped),
        [(ToolStatus::Denied, "not now".to_owned())]
    );

    // The gate asks first, and then the client executes the call.
    let model = ScriptedModel::new()
        .tool_call("confirm", json!({}))
        .then()
        .text("Done.");
    let ask = Interrupt::new(InterruptId::new("policy"), "may_it");
    let asked = run(agent(BeforeRound::ask(ask.clone())), &model, request()).await;
    assert_eq!(asked.finish.interrupts()[0].reason, "may_it");
    let replies = vec![Reply::resolve(ask.id, json!(true))];
    let mut resumed = ChatRequest::resume(state_of(&asked), replies);
    resumed.tools = request().tools;
    let layer = agent(BeforeRound::Continue);
    let waits = run(layer.clone(), &model, resumed).await;
    assert_eq!(waits.finish.interrupts()[0].reason, interrupt::CLIENT_TOOL);
    let call = waits.finish.interrupts()[0].id.clone();
    let mut resumed = ChatRequest::resume(state_of(&waits), vec![Reply::answer(call, "yes")]);
    resumed.tools = request().tools;
    // The gate does not decide about calls that the client has executed.
    let done = run(agent(BeforeRound::halt("too late")), &model, resumed).await;
    assert_eq!(done.finish.outcome, Outcome::Completed);
    assert_eq!(results(&done), [(ToolStatus::Done, "yes".to_owned())]);
}

#[tokio::test]
async fn a_duplicate_reply_does_not_answer_the_next_interrupt() {
    let (model, tools) = once();
    let gate = || {
        round_gate("two", |step| {
            let id = step.interrupt_id("two");
            match step.reply(&id).map(|reply| reply.read::<u8>().unwrap()) {
                None => BeforeRound::ask(Interrupt::new(id, "first")),
                Some(1) => BeforeRound::ask(Interrupt::new(id, "second")),
                Some(_) => BeforeRound::Continue,
            }
        })
    };
    let layer = || AgentLayer::new(tools.clone()).gate(gate());
    let first = run(layer(), &model, ChatRequest::user("hi")).await;
    let id = first.finish.interrupts()[0].id.clone();
    let reply = Reply::resolve(id.clone(), json!(1));
    let request = ChatRequest::resume(state_of(&first), vec![reply.clone()]);
    let second = run(layer(), &model, request).await;
    assert_eq!(second.finish.interrupts()[0].reason, "second");
    assert_ne!(second.finish.interrupts()[0].id, id);
    let again = ChatRequest::resume(state_of(&second), vec![reply]);
    assert!(try_run(layer(), &model, again).await.is_err());
    let id = second.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&second), vec![Reply::resolve(id, json!(2))]);
    let done = run(layer(), &model, request).await;
    assert_eq!(done.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn messages_added_with_an_interrupt_are_added_once() {
    let log = Log::default();
    let layer = || {
        let ask = asks("asks", &log);
        AgentLayer::new(ScriptedTools::new())
            .gate(model_gate("says", |step| match step.step {
                0 => BeforeStep::Say(vec![user("Be brief.")]),
                _ => BeforeStep::Continue,
            }))
            .gate(model_gate("asks", move |step| {
                ask(step).map_or(BeforeStep::Continue, BeforeStep::ask)
            }))
    };
    let model = ScriptedModel::new().text("Done.");
    let waits = run(layer(), &model, ChatRequest::user("hi")).await;
    let id = waits.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&waits), vec![Reply::resolve(id, json!(true))]);
    let done = run(layer(), &model, request).await;
    let said = done.transcript().unwrap().iter();
    let said: Vec<String> = said.map(|turn| turn.as_message().text()).collect();
    assert_eq!(said, ["hi", "Be brief.", "Done."]);
}

#[tokio::test]
async fn a_halted_step_runs_none_of_its_calls() {
    let (model, tools) = once();
    let spent = map_events(|event: &mut Event| {
        if let Event::Finish(finish) = event {
            finish.outcome = Outcome::Halted {
                reason: "spent".into(),
            };
        }
    });
    let agent = AgentLayer::new(tools.clone()).layer(spent.layer(model.clone()));
    let answer = agent
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(
        answer.finish.outcome,
        Outcome::Halted {
            reason: "spent".into()
        }
    );
    assert_eq!((model.calls(), tools.done()), (1, 0));
    assert_eq!(results(&answer)[0].0, ToolStatus::Cancelled);
}

#[tokio::test]
async fn live_interrupts_of_a_sub_run_use_the_outer_handle() {
    let outer = Context::new();
    let inner = outer.child().build();
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let reply = async {
        tokio::task::yield_now().await;
        outer.reply(Reply::resolve(InterruptId::new("q"), json!(3)))
    };
    let (asked, replied) = tokio::join!(inner.ask(ask, Duration::from_secs(60)), reply);
    replied.unwrap();
    assert_eq!(asked.unwrap().read::<u8>().unwrap(), 3);
}

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
            ask(step).map_or(BeforeRound::Continue, BeforeRound::ask)
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
            gate(step).map_or(BeforeRound::Continue, BeforeRound::ask)
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
        let state = Suspended::State(Box::new(suspended(visits).await));
        request.set_resume(Resume::new(state, Vec::new()));
        assert_eq!(*context.state::<Visits>().unwrap(), visits);
        assert_eq!(*context.state::<Noted>().unwrap(), 3);
        context.update_state::<Visits>(|visits| visits + 1).unwrap();
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

    async fn before_round(&self, _: &StepView) -> Result<BeforeRound, BoxError> {
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

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        if step.step == 1 {
            pending::<()>().await;
        }
        Ok(BeforeStep::Continue)
    }

    async fn before_round(&self, step: &StepView) -> Result<BeforeRound, BoxError> {
        if step.context.extensions().get::<Log>().is_some() {
            pending::<()>().await;
        }
        Ok(BeforeRound::Continue)
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
            BeforeStep::Continue
        })
    };
    let layer = AgentLayer::new(tools).gate(tells("agent"));
    let mut request = ChatRequest::user("hi");
    let own = StepGates::new().gate(tells("run"));
    request.context.own_mut().insert(own);
    run(layer, &model, request).await;
    assert_eq!(
        *log.lock().unwrap(),
        ["run 0", "agent 0", "run 1", "agent 1"]
    );
}

// ---- persistence ----

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
                return BeforeStep::Finish;
            };
            let more = u32::try_from(more).unwrap();
            let update = step.context.update_state::<Allowed>(|all| all + more);
            update.unwrap();
        }
        let allowed = step.context.state::<Allowed>().unwrap();
        match step.step < 2 + *allowed {
            true => BeforeStep::Continue,
            false => BeforeStep::ask(Interrupt::new(id, "limit")),
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
    let checkpoint = Checkpoint::new(move |state: MachineState| {
        states.lock().unwrap().push(state);
        Box::pin(std::future::ready(Ok(())))
    });
    let layer = AgentLayer::new(tools).gate(round_gate("counts", |step| {
        step.context.update_state::<Allowed>(|n| n + 7).unwrap();
        BeforeRound::Continue
    }));
    let mut request = ChatRequest::user("hi");
    request.context.own_mut().insert(checkpoint);
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
async fn a_slot_that_fails_to_serialize_fails_the_run_before_tools() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools.clone()).gate(round_gate("curses", |step| {
        step.context.state::<Cursed>().unwrap();
        BeforeRound::Continue
    }));
    let mut request = ChatRequest::user("hi");
    let save = |_| Box::pin(std::future::ready(Ok(()))) as _;
    request.context.own_mut().insert(Checkpoint::new(save));
    let error = try_run(layer, &model, request).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Configuration, Some("slot"))
    );
    assert_eq!(tools.calls().len(), 0);
}

#[tokio::test]
async fn changes_before_a_halt_are_kept() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools)
        .gate(round_gate("counts", |step| {
            step.context.update_state::<Allowed>(|n| n + 1).unwrap();
            BeforeRound::Continue
        }))
        .gate(round_gate("halts", |_| BeforeRound::halt("closed")));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let answer = run(layer, &model, request).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(*context.state::<Allowed>().unwrap(), 1);
}

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

#[tokio::test]
async fn the_outcome_has_only_the_reason_of_the_cancellation() {
    for reason in [
        CancelReason::User,
        CancelReason::Shutdown,
        CancelReason::Disconnected,
        CancelReason::Other("the user changed page".into()),
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
