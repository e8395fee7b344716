//! Gates that end a run, and those that don't let it end yet.

use concentric_core::{
    AgentLayer, Answer, Author, CallId, ChatRequest, Effects, Error, ErrorKind, Event, Finish,
    FinishReason, Interrupt, InterruptId, ModelService, Outcome, Reply, Str, ToolCallPart,
    ToolOutcome, ToolStatus, Transcript, Turn, Usage,
    agent::{BeforeFinish, StepGate, StepGates, StepView},
    machine::MachineState,
};
use concentric_layers::stop::{
    ErrorLimit, Judgement, LoopAction, LoopDetector, MORE_STEPS, OutputConstraint, RejectedAnswer,
    StepApproval, StopWhen, called, called_times, cost, finish_reason, holds, input_tokens,
    output_tokens, steps, total_tokens,
};
use concentric_test::{
    ScriptedModel, ScriptedTools, TestEnvironment, assert_fails, assert_finishes, shape,
};
use serde_json::{Value, json};
use std::{error::Error as _, time::Duration};
use tower::{BoxError, Layer, ServiceExt};

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

/// A model that makes these calls, one in each answer, and then says that it is done.
fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> ScriptedModel {
    let each = calls.into_iter();
    let model = each.fold(ScriptedModel::new(), |model, (tool, arguments)| {
        model.tool_call(tool, arguments).then()
    });
    model.text("done")
}

/// A model that calls `work` `n` times, with other arguments each time.
fn works(n: usize) -> ScriptedModel {
    calls((0..n).map(|n| ("work", json!({ "n": n }))))
}

fn tools() -> ScriptedTools {
    ScriptedTools::new()
        .answers("work", "ok")
        .answers("a", "ok")
        .answers("b", "ok")
        .tool("fail", async |_| ToolOutcome::failed("it broke"))
        .tool("deny", async |_| ToolOutcome::denied("no"))
        .asks("pay", "paid")
}

/// What comes of a run of `model` with `gate`, how many models and tools were called.
async fn ends(gate: impl StepGate, model: ScriptedModel) -> (Outcome, usize, usize) {
    let tools = tools();
    let agent = AgentLayer::new(tools.clone())
        .gate(gate)
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    (answer.finish.outcome, model.calls(), tools.calls().len())
}

fn halted(reason: &str) -> Outcome {
    Outcome::Halted {
        reason: reason.into(),
    }
}

/// The state of a run that waits, written down and read again.
fn state_of(answer: &Answer) -> MachineState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.as_ref().unwrap().to_json().unwrap();
    MachineState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn reply(state: &MachineState, reply: impl FnOnce(InterruptId) -> Reply) -> ChatRequest {
    let asked = state.interrupts();
    assert_eq!(asked.len(), 1);
    let replies = vec![reply(asked[0].id.clone())];
    ChatRequest::resume(state.clone(), replies)
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let transcript = answer.finish.transcript.as_ref().unwrap();
    let results = transcript.iter().flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

// ---- conditions ----

#[tokio::test]
async fn c57_a_vote_to_stop_is_a_normal_finish_without_a_new_step() {
    let ended = ends(StopWhen::finish(steps(2)), works(5)).await;
    assert_eq!(ended, (Outcome::Completed, 2, 2));
}

#[tokio::test]
async fn c48_a_halt_has_its_reason() {
    let ended = ends(StopWhen::halt("enough", steps(2)), works(5)).await;
    assert_eq!(ended, (halted("enough"), 2, 2));
}

#[tokio::test]
async fn a_run_that_is_done_before_is_not_stopped() {
    let ended = ends(StopWhen::halt("enough", steps(3)), works(2)).await;
    assert_eq!(ended, (Outcome::Completed, 3, 2));
}

#[tokio::test]
async fn the_strictest_of_several_conditions_counts() {
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
async fn a_condition_goes_by_the_calls_of_a_tool() {
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
async fn calls_of_two_answers_count_though_they_have_one_id() {
    let call = || Event::tool_call(ToolCallPart::new(CallId::new("1"), "work", "{}"));
    let model = ScriptedModel::new().event(call()).then().event(call());
    let model = model.then().event(call()).then().text("done");
    let (_, models, _) = ends(StopWhen::finish(called_times("work", 2)), model).await;
    assert_eq!(models, 2);
}

#[tokio::test]
async fn a_condition_goes_by_why_the_model_stopped() {
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
async fn a_condition_goes_by_what_was_used() {
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

fn total(usage: &Usage) -> u64 {
    usage.input_tokens().unwrap_or(0) + usage.output_tokens().unwrap_or(0)
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

#[tokio::test]
async fn c99_what_was_counted_before_a_pause_is_not_counted_again() {
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
async fn a_gate_may_be_of_one_run() {
    let agent = AgentLayer::new(tools()).layer(works(2));
    let mut request = ChatRequest::user("hi");
    let gates = StepGates::new().gate(StopWhen::halt("enough", steps(1)));
    request.context.own_mut().insert(gates);
    let first = run(&agent, request).await;
    assert_eq!(first.finish.outcome, halted("enough"));
    let second = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(second.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn the_gates_of_a_run_are_not_those_of_an_agent_in_it() {
    let within = AgentLayer::new(tools()).layer(works(3));
    let agent = AgentLayer::new(ScriptedTools::new()).layer(within);
    let mut request = ChatRequest::user("hi");
    let gates = StepGates::new().gate(StopWhen::halt("enough", steps(1)));
    request.context.own_mut().insert(gates);
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

// ---- loops ----

fn nested(order: bool) -> Value {
    // As text, since a map may sort its keys.
    let text = match order {
        true => r#"{"q": {"x": [{"k": 1, "l": "a b"}], "y": 2}, "n": 3}"#,
        false => r#"{"n":3,"q":{"y":2,"x":[{"l":"a b","k":1}]}}"#,
    };
    Value::from(text)
}

fn text_calls(all: &[&str]) -> ScriptedModel {
    let model = all.iter().fold(ScriptedModel::new(), |model, arguments| {
        model.tool_call("a", *arguments).then()
    });
    model.text("done")
}

#[tokio::test]
async fn c095_the_third_of_the_same_calls_is_not_executed_and_the_run_ends_with_the_reason() {
    let (one, other) = (nested(true), nested(false));
    let (one, other) = (one.as_str().unwrap(), other.as_str().unwrap());
    let ended = ends(LoopDetector::new(3), text_calls(&[one, other, one, other])).await;
    let reason = "`a` was called 3 times with the same arguments";
    assert_eq!(ended, (halted(reason), 3, 2));
}

#[tokio::test]
async fn calls_that_differ_are_not_a_loop() {
    for different in [
        ["{\"n\":1}", "{\"n\":2}", "{\"n\":\"1\"}"],
        ["[1,2]", "[2,1]", "[[1],2]"],
        ["", "{", "not JSON"],
        [
            "{\"a\":{\"b\":1}}",
            "{\"a\":{},\"b\":1}",
            "{\"a\":{\"b\":null}}",
        ],
    ] {
        let ended = ends(LoopDetector::new(2), text_calls(&different)).await;
        assert_eq!(ended.0, Outcome::Completed, "{different:?}");
    }
    let deep = "[".repeat(100_000);
    let ended = ends(LoopDetector::new(2), text_calls(&[&deep, &deep])).await;
    assert_eq!(ended.2, 1, "what is not JSON is compared as text");
}

#[tokio::test]
async fn c096_each_call_is_counted_by_itself_whatever_is_called_between() {
    let (a, b) = (("a", json!({})), ("b", json!({})));
    let alternating = || {
        let all = [&a, &b, &a, &b, &a, &b].map(|(tool, arguments)| (*tool, arguments.clone()));
        calls(all)
    };
    // A, B, A, B: two of each. The fifth is the third A.
    let ended = ends(LoopDetector::new(3), alternating()).await;
    let reason = "`a` was called 3 times with the same arguments";
    assert_eq!(ended, (halted(reason), 5, 4));
    // In a window of four rounds there are no three.
    let ended = ends(LoopDetector::new(3).window(4), alternating()).await;
    assert_eq!(ended, (Outcome::Completed, 7, 6));
}

#[tokio::test]
async fn the_calls_of_one_answer_count() {
    let same = |model: ScriptedModel| model.tool_call("a", json!({"n": 1}));
    let model = same(same(same(ScriptedModel::new())))
        .tool_call("b", json!({}))
        .then()
        .text("done");
    let (outcome, _, executed) = ends(LoopDetector::new(3), model).await;
    assert!(matches!(outcome, Outcome::Halted { .. }));
    assert_eq!(executed, 0);
}

#[tokio::test]
async fn a_loop_is_skipped_and_the_model_is_told() {
    let same = ("a", json!({}));
    let tools = tools();
    let model = calls([same.clone(), same.clone(), same.clone(), ("b", json!({}))]);
    let agent = AgentLayer::new(tools.clone())
        .gate(LoopDetector::new(2).action(LoopAction::Skip))
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    // What was skipped counts: the third is skipped, too.
    let (done, denied) = (ToolStatus::Done, ToolStatus::Denied);
    assert_eq!(statuses(&answer), [done, denied, denied, done]);
    assert_eq!(tools.calls().len(), 2);
    let told = model.request(2).transcript;
    let result = &told.last().unwrap().results()[0];
    assert_eq!(
        result.outcome.content.text(),
        "The call was not run: `a` was called 2 times with the same arguments. Try something else, \
         or answer."
    );
}

#[tokio::test]
async fn of_a_loop_the_model_is_warned() {
    let same = ("a", json!({}));
    let model = calls([same.clone(), same, ("b", json!({}))]);
    let agent = AgentLayer::new(tools())
        .gate(LoopDetector::new(2).action(LoopAction::Warn))
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(statuses(&answer), [ToolStatus::Done; 3]);
    let warned = model.request(2).transcript;
    let warning = warned.last().unwrap().as_message();
    assert_eq!(
        warning.text(),
        "`a` was called 2 times with the same arguments. Try something else, or answer."
    );
    let by = Author::Layer {
        name: "loop_detector".into(),
    };
    assert_eq!(warning.parts[0].author, by);
    // Once for each time.
    let said = answer.finish.transcript.unwrap();
    let warnings = said.rev().filter(|t| t.as_message().parts[0].author == by);
    assert_eq!(warnings.count(), 1);
}

#[tokio::test]
async fn a_call_that_was_skipped_had_no_effect() {
    let broken = Error::new(ErrorKind::Server, "it broke");
    let model = ScriptedModel::new()
        .tool_call("a", json!({}))
        .tool_call("a", json!({}))
        .then()
        .error(broken);
    let agent = AgentLayer::new(tools())
        .gate(LoopDetector::new(2).action(LoopAction::Skip))
        .layer(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let error = body.collect().await.unwrap_err();
    assert_eq!(error.error.effects(), Effects::None);
}

// ---- errors ----

#[tokio::test]
async fn c097_a_success_sets_the_errors_in_a_row_back() {
    let none = || json!({});
    let three = [("fail", none()), ("fail", none()), ("fail", none())];
    let ended = ends(ErrorLimit::new(), calls(three.clone())).await;
    assert_eq!(
        ended,
        (halted("3 consecutive rounds of tool calls failed"), 3, 3)
    );

    let between = [
        ("fail", none()),
        ("fail", none()),
        ("a", none()),
        ("fail", none()),
        ("fail", none()),
    ];
    let ended = ends(ErrorLimit::new(), calls(between.clone())).await;
    assert_eq!(ended, (Outcome::Completed, 6, 5));
    let ended = ends(ErrorLimit::new().total(4), calls(between)).await;
    assert_eq!(ended, (halted("4 rounds of tool calls failed"), 5, 5));
}

#[tokio::test]
async fn a_success_in_a_round_makes_up_for_the_errors_in_it() {
    let model = ScriptedModel::new()
        .tool_call("fail", json!({}))
        .then()
        .tool_call("a", json!({}))
        .tool_call("fail", json!({}))
        .then()
        .tool_call("fail", json!({}))
        .tool_call("fail", json!({}))
        .then()
        .text("done");
    let gate = ErrorLimit::new().consecutive(2).counting_calls();
    let ended = ends(gate, model).await;
    assert_eq!(ended, (halted("2 consecutive tool calls failed"), 3, 5));
}

#[tokio::test]
async fn calls_that_fail_side_by_side_count_once() {
    let model = || {
        let three = |model: ScriptedModel| {
            let fails = |model: ScriptedModel, _| model.tool_call("fail", json!({}));
            (0..3).fold(model, fails).then()
        };
        three(three(ScriptedModel::new())).text("done")
    };
    let ended = ends(ErrorLimit::new().total(3), model()).await;
    assert_eq!(ended, (Outcome::Completed, 3, 6));
    let ended = ends(ErrorLimit::new().consecutive(2), model()).await;
    let reason = "2 consecutive rounds of tool calls failed";
    assert_eq!(ended, (halted(reason), 2, 6));
    let ended = ends(ErrorLimit::new().counting_calls(), model()).await;
    assert_eq!(ended, (halted("3 consecutive tool calls failed"), 1, 3));
}

#[tokio::test]
async fn a_denial_is_an_error_if_it_is_said_to_be() {
    let denied = || calls([("deny", json!({})), ("deny", json!({}))]);
    let gate = ErrorLimit::new().consecutive(2);
    let ended = ends(gate.clone(), denied()).await;
    assert_eq!(ended.0, Outcome::Completed);
    let ended = ends(gate.counting_denied(), denied()).await;
    assert_eq!(ended.0, halted("2 consecutive rounds of tool calls failed"));
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_an_error() {
    let missing = calls([("nothing", json!({})), ("nothing", json!({}))]);
    let ended = ends(ErrorLimit::new().consecutive(2), missing).await;
    assert_eq!(
        ended,
        (halted("2 consecutive rounds of tool calls failed"), 2, 0)
    );
}

// ---- more steps ----

#[tokio::test]
async fn c100_as_many_more_steps_are_made_as_were_approved() {
    let (model, tools) = (works(20), tools());
    let agent = AgentLayer::new(tools.clone())
        .gate(StepApproval::after(2).steps(4))
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    let state = state_of(&answer);
    assert_eq!((model.calls(), tools.calls().len()), (2, 2));
    let asked = state.interrupts()[0].clone();
    assert_eq!(asked.reason, MORE_STEPS);
    assert_eq!(asked.metadata["steps_made"], 2);
    let schema = asked.response_schema.unwrap();
    assert_eq!(schema["properties"]["steps"]["default"], 4);

    let three = |id| Reply::resolve(id, json!({"approved": true, "steps": 3}));
    let answer = run(&agent, reply(&state, three)).await;
    let state = state_of(&answer);
    assert_eq!(model.calls(), 5);

    let answer = run(&agent, reply(&state, Reply::approve)).await;
    assert_eq!(model.calls(), 9);
    state_of(&answer);
}

#[tokio::test]
async fn anything_but_an_approval_stops_the_run() {
    for wrong in [
        None,
        Some(json!({"approved": false})),
        Some(json!({"approved": "true"})),
        Some(json!({"approved": true, "steps": 0})),
        Some(json!({"approved": true, "steps": -1})),
        Some(json!({"approved": true, "steps": "3"})),
        Some(json!({"approved": true, "steps": 1e300})),
        Some(json!({"steps": 3})),
        Some(json!(true)),
        Some(Value::Null),
    ] {
        let model = works(5);
        let agent = AgentLayer::new(tools())
            .gate(StepApproval::after(1))
            .layer(model.clone());
        let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
        let request = reply(&state, |id| match wrong.clone() {
            None => Reply::cancel(id),
            Some(payload) => Reply::resolve(id, payload),
        });
        let answer = run(&agent, request).await;
        assert_eq!(
            answer.finish.outcome,
            halted("more steps were not approved")
        );
        assert_eq!(model.calls(), 1);
        assert_eq!(
            statuses(&answer),
            [ToolStatus::Done],
            "what was done is kept"
        );
    }
}

#[tokio::test]
async fn c100_what_is_approved_too_late_is_not_done_and_the_run_can_be_stopped() {
    let test = TestEnvironment::new();
    let model = works(5);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1).within(Duration::from_secs(60)))
        .layer(model.clone());
    let state = state_of(&run(&agent, test.request("hi")).await);
    let at = |mut request: ChatRequest| {
        request.context = test.context();
        request
    };
    test.advance(Duration::from_secs(60));
    for late in [Reply::approve as fn(InterruptId) -> Reply, |id| {
        Reply::resolve(id, json!({"approved": false}))
    }] {
        let refused = agent
            .clone()
            .oneshot(at(reply(&state, late)))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Some("expired"));
    }
    let answer = run(&agent, at(reply(&state, Reply::cancel))).await;
    assert_eq!(
        answer.finish.outcome,
        halted("more steps were not approved")
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn the_agents_own_limit_stays() {
    let model = works(20);
    let agent = AgentLayer::new(tools())
        .step_limit(3)
        .gate(StepApproval::after(2))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let many = |id| Reply::resolve(id, json!({"approved": true, "steps": u32::MAX}));
    let answer = run(&agent, reply(&state, many)).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn what_was_approved_is_kept_over_another_pause() {
    let none = || json!({});
    let model = calls([("a", none()), ("pay", none()), ("b", none()), ("a", none())]);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let two = |id| Reply::resolve(id, json!({"approved": true, "steps": 2}));
    // It waits for the tool.
    let state = state_of(&run(&agent, reply(&state, two)).await);
    let answer = run(&agent, reply(&state, Reply::approve)).await;
    // It has made the three it may.
    assert_eq!(state_of(&answer).interrupts()[0].reason, MORE_STEPS);
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn two_gates_ask_at_once_and_are_answered_together() {
    let model = works(5);
    let agent = AgentLayer::new(tools())
        .gate(StepApproval::after(1))
        .gate(StepApproval::after(1).steps(3).named("second"))
        .layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let asked = state.interrupts();
    assert_eq!(asked.len(), 2);
    let replies = |second: fn(InterruptId) -> Reply| {
        let [first, other] = [0, 1].map(|n: usize| state.interrupts()[n].id.clone());
        vec![Reply::approve(first), second(other)]
    };
    let request = ChatRequest::resume(state.clone(), replies(Reply::cancel));
    let answer = run(&agent, request).await;
    assert_eq!(
        answer.finish.outcome,
        halted("more steps were not approved")
    );
    let request = ChatRequest::resume(state.clone(), replies(Reply::approve));
    let answer = run(&agent, request).await;
    // Only the first has more to ask.
    assert_eq!(state_of(&answer).interrupts().len(), 1);
    assert_eq!(model.calls(), 2);
}

// ---- the answer ----

fn says(answers: &[&str]) -> ScriptedModel {
    let mut answers = answers.iter();
    let first = ScriptedModel::new().text(*answers.next().unwrap());
    answers.fold(first, |model, answer| model.then().text(*answer))
}

fn digits() -> OutputConstraint {
    OutputConstraint::new("digits", |answer, _| async move {
        let is_number = !answer.is_empty() && answer.chars().all(|c| c.is_ascii_digit());
        Ok(match is_number {
            true => Judgement::Accept,
            false => Judgement::complain("Answer with a number."),
        })
    })
}

#[tokio::test]
async fn an_answer_that_is_wrong_is_corrected() {
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(answer.finish.usage, Usage::new(2, 2));
    let transcript = answer.finish.transcript.unwrap();
    let said: Vec<_> = transcript.iter().map(|t| t.as_message().text()).collect();
    assert_eq!(said, ["hi", "forty-two", "Answer with a number.", "42"]);
}

/// The error of a run of `model` with `gate`, and how often the model was called.
async fn rejected(agent: AgentLayer<ScriptedTools>, model: ScriptedModel) -> (Rejected, usize) {
    let agent = agent.layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    (rejection(&error), model.calls())
}

type Rejected = (String, String, String);

fn rejection(error: &Error) -> Rejected {
    assert_eq!(error.code(), Some("answer_rejected"));
    let source = error.source().unwrap();
    let rejected: &RejectedAnswer = source.downcast_ref().unwrap();
    (
        rejected.gate().to_owned(),
        rejected.complaint().to_owned(),
        rejected.answer().to_owned(),
    )
}

fn rejection_of(gate: &str, complaint: &str, answer: &str) -> Rejected {
    (gate.to_owned(), complaint.to_owned(), answer.to_owned())
}

#[tokio::test]
async fn an_answer_that_stays_wrong_fails_the_run_with_itself() {
    let wrong = || says(&["a", "b", "c", "d", "e"]);
    let agent = |gate| AgentLayer::new(tools()).gate(gate);
    let error = |answer| rejection_of("digits", "Answer with a number.", answer);
    assert_eq!(rejected(agent(digits()), wrong()).await, (error("c"), 3));
    let none = digits().tries(0);
    assert_eq!(rejected(agent(none), wrong()).await, (error("a"), 1));
}

#[tokio::test]
async fn a_rejected_answer_is_followed_by_a_reset() {
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model);
    let body = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .body;
    let (events, _) = assert_finishes(body).await;
    let shape = shape(&events);
    assert_eq!(
        shape,
        "step_start text step_finish reset step_start text step_finish finish"
    );
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model);
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.text(), "42");
}

#[tokio::test]
async fn an_answer_that_may_not_be_tried_again_is_not_void() {
    let agent = AgentLayer::new(tools())
        .step_limit(1)
        .gate(digits())
        .layer(says(&["forty-two", "42"]));
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::StepLimit);
    assert!(!events.iter().any(|event| matches!(event, Event::Reset)));
}

/// Wants a word in the answer, and gives up at once.
fn short() -> OutputConstraint {
    let judge = |answer: Str, _| async move {
        Ok(match answer.len() {
            ..3 => Judgement::Accept,
            _ => Judgement::complain("That is long."),
        })
    };
    OutputConstraint::new("short", judge).tries(0)
}

#[tokio::test]
async fn an_answer_that_the_run_does_not_end_with_is_not_judged_by_the_gates_after() {
    let agent = || AgentLayer::new(tools()).gate(digits()).gate(short());
    let model = says(&["forty-two", "42"]);
    let answer = run(&agent().layer(model.clone()), ChatRequest::user("hi")).await;
    assert_eq!(
        (answer.finish.outcome, model.calls()),
        (Outcome::Completed, 2)
    );
    // It is judged by the second once the first has it.
    let long = |answer| rejection_of("short", "That is long.", answer);
    let model = says(&["forty-two", "4242"]);
    assert_eq!(rejected(agent(), model).await, (long("4242"), 2));
    // The other way round, it is.
    let model = says(&["forty-two", "42"]);
    let agent = AgentLayer::new(tools()).gate(short()).gate(digits());
    assert_eq!(rejected(agent, model).await, (long("forty-two"), 1));
}

/// Asks before the end, and then says what it is to.
struct Hears(&'static str, BeforeFinish);

impl StepGate for Hears {
    fn name(&self) -> &str {
        self.0
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        let id = step.interrupt_id(self.0);
        Ok(match step.reply(&id) {
            None => BeforeFinish::ask(Interrupt::new(id, "enough")),
            Some(_) => self.1.clone(),
        })
    }
}

#[tokio::test]
async fn what_was_replied_to_a_gate_is_heard_though_one_before_it_goes_on() {
    let more = BeforeFinish::Continue(vec![Turn::user("More.")]);
    let model = says(&["a", "b"]);
    let agent = AgentLayer::new(tools())
        .gate(Hears("first", more))
        .gate(Hears("second", BeforeFinish::halt("it is told to")))
        .layer(model.clone());
    let asked = run(&agent, ChatRequest::user("hi")).await;
    let questions = asked.finish.interrupts();
    assert_eq!(questions.len(), 2);
    let replies = questions
        .iter()
        .map(|ask| Reply::resolve(ask.id.clone(), json!({})));
    let request = ChatRequest::resume(state_of(&asked), replies.collect());
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, halted("it is told to"));
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn an_answer_without_a_word_is_judged() {
    let model = ScriptedModel::new()
        .finish(Finish::new(FinishReason::Stop, Usage::new(1, 1)))
        .then()
        .text("42");
    assert_eq!(ends(digits(), model).await, (Outcome::Completed, 2, 0));
}

#[tokio::test]
async fn a_correction_is_a_step_like_any_other() {
    let agent = AgentLayer::new(tools())
        .step_limit(2)
        .gate(digits().tries(10))
        .layer(says(&["a", "b", "c"]));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
}

#[tokio::test]
async fn tries_are_counted_over_a_pause_and_not_those_of_earlier_runs() {
    let model = ScriptedModel::new()
        .text("a")
        .then()
        .tool_call("pay", json!({}))
        .then()
        .text("b")
        .then()
        .text("c");
    let gate = || digits().tries(1);
    let agent = AgentLayer::new(tools()).gate(gate()).layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let resumed = reply(&state, Reply::approve);
    let mut transcript = state.transcript().clone();
    let body = agent.oneshot(resumed).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(rejection(&error).2, "b");
    assert_eq!(model.calls(), 3);

    let mut request = ChatRequest::user("");
    transcript.push_user("again");
    request.transcript = transcript;
    let model = says(&["d", "42"]);
    let agent = AgentLayer::new(tools()).gate(gate()).layer(model);
    let answer = run(&agent, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_run_that_waits_has_no_answer_to_be_judged() {
    let model = ScriptedModel::new()
        .text("I will pay.")
        .tool_call("pay", json!({}))
        .then()
        .text("42");
    let agent = AgentLayer::new(tools()).gate(digits()).layer(model.clone());
    let state = state_of(&run(&agent, ChatRequest::user("hi")).await);
    let answer = run(&agent, reply(&state, Reply::approve)).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_judge_that_fails_fails_the_run() {
    let judge = |_, _| async { Err("the grader is down".into()) };
    let constraint = OutputConstraint::new("graded", judge);
    let model = says(&["a", "b"]);
    let agent = AgentLayer::new(tools())
        .gate(constraint)
        .layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let error = body.collect().await.unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Other);
    let said = "the step gate `graded` failed: the grader is down";
    assert_eq!(error.message(), said);
    assert_eq!(model.calls(), 1);
}

#[cfg(feature = "budget")]
mod graded {
    use super::*;
    use concentric_core::{CancelReason, Context, Str};
    use concentric_layers::budget::{Budget, BudgetLayer, Limits};

    /// Has `grader` say whether an answer is good.
    fn graded(grader: &ScriptedModel) -> OutputConstraint {
        let grader = BudgetLayer::new(Limits::new())
            .model()
            .layer(grader.clone());
        OutputConstraint::new("graded", move |answer: Str, context: Context| {
            let grader = grader.clone();
            async move {
                let request = ChatRequest::user(format!("Is this good? {answer}"));
                let request = request.with_context(context.child().build());
                let said = grader.oneshot(request).await?.text().await?;
                Ok(match said.as_str() {
                    "yes" => Judgement::Accept,
                    why => Judgement::complain(why),
                })
            }
        })
    }

    #[tokio::test]
    async fn the_tokens_of_a_model_that_judges_are_its_budgets_and_not_the_runs() {
        let grader = ScriptedModel::new()
            .usage(Usage::new(100, 10))
            .text("Be brief.")
            .then()
            .usage(Usage::new(100, 10))
            .text("yes");
        let model = says(&["well, 42", "42"]);
        let agent = AgentLayer::new(tools())
            .step_limit(2)
            .gate(graded(&grader))
            .layer(model);
        let budget = Budget::new(Limits::new());
        let mut request = ChatRequest::user("hi");
        request.context.provide(budget.clone());
        let answer = run(&agent, request).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        let transcript = answer.finish.transcript.unwrap();
        let said: Vec<_> = transcript.iter().map(|t| t.as_message().text()).collect();
        assert_eq!(said, ["hi", "well, 42", "Be brief.", "42"]);
        let asked = grader.request(0).transcript;
        let asked = asked.last().unwrap().as_message().text();
        assert_eq!(asked, "Is this good? well, 42");

        assert_eq!(answer.finish.usage, Usage::new(2, 2));
        assert_eq!(budget.spent().input_tokens, 200);
        assert_eq!(budget.spent().model_calls, 2);
    }

    #[tokio::test]
    async fn a_model_that_judges_ends_with_the_run() {
        let grader = ScriptedModel::new().text("Well").never();
        let agent = AgentLayer::new(tools())
            .gate(graded(&grader))
            .layer(says(&["a"]));
        let mut request = ChatRequest::user("hi");
        request.context.provide(Budget::new(Limits::new()));
        let context = request.context.clone();
        let mut answer = tokio_test::task::spawn(run(&agent, request));
        assert!(answer.poll().is_pending());
        assert_eq!(grader.live(), 1);
        context.cancel(CancelReason::User);
        let answer = answer.await;
        let reason = CancelReason::User;
        assert_eq!(answer.finish.outcome, Outcome::Aborted { reason });
        assert_eq!((grader.live(), grader.dropped()), (0, 1));
    }
}
