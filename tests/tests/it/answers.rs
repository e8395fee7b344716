//! What the answer of a run is, and what it is said to have used.

use concentric_core::{
    AgentLayer, Answer, BoxError, BoxModel, ChatRequest, Event, Finish, FinishReason, Message,
    MessageId, Outcome, Reply, Role, StepStart, Turn, Usage,
    agent::{FinishDecision, StepDraft, StepGate},
    machine::RunState,
    store::Checkpoint,
};
use concentric_layers::stop::{Judgement, OutputConstraint};
use concentric_test::{Pace, ScriptedModel, ScriptedTools, watched};
use concentric_tools::{Toolset, agent_tool};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceExt};

async fn ask(agent: &BoxModel, request: ChatRequest) -> Answer {
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

fn named() -> OutputConstraint {
    OutputConstraint::new("named", async |answer: concentric_core::Str, _| {
        Ok(match answer.contains("Ada") {
            true => Judgement::Accept,
            false => Judgement::complain("Say the user's name."),
        })
    })
}

fn corrected() -> ScriptedModel {
    ScriptedModel::new()
        .text("Hello.")
        .then()
        .text("Hello Ada.")
}

// ---- the final answer ----

#[test]
fn the_text_of_a_corrected_run_is_what_was_accepted() {
    for pace in Pace::ALL {
        let (answer, text) = watched(async move {
            let agent = |model| AgentLayer::new(Toolset::new()).gate(named()).layer(model);
            let first = BoxModel::new(agent(corrected().paced(pace)));
            let second = BoxModel::new(agent(corrected().paced(pace)));
            let text = second.oneshot(ChatRequest::user("hi")).await.unwrap();
            (
                ask(&first, ChatRequest::user("hi")).await,
                text.text().await.unwrap(),
            )
        });
        assert_eq!(
            (answer.text().as_str(), text.as_str()),
            ("Hello Ada.", "Hello Ada.")
        );
        assert!(answer.all_text().ends_with("Hello Ada."));
        let last = answer.transcript().unwrap().last().unwrap();
        assert_eq!(last.as_message().text(), answer.text());
    }
}

#[tokio::test]
async fn the_text_of_a_run_with_tools_follows_the_last_result() {
    let model = ScriptedModel::new()
        .text("I look. ")
        .tool_call("look", json!({}))
        .then()
        .text("Not ")
        .text("yet.")
        .then()
        .reasoning("hm")
        .text("It is ")
        .text("Ada.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = BoxModel::new(AgentLayer::new(tools).gate(named()).layer(model));
    let answer = ask(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.text(), "It is Ada.");
    assert_eq!(answer.all_text(), answer.message.text());
    assert!(answer.all_text().starts_with("I look. "));
}

#[tokio::test]
async fn a_run_that_ends_on_a_tool_result_has_no_answer() {
    let model = ScriptedModel::new()
        .text("I look.")
        .tool_call("look", json!({}));
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = BoxModel::new(AgentLayer::new(tools).step_limit(1).layer(model));
    let answer = ask(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(
        (answer.text(), answer.all_text()),
        (String::new(), "I look.".into())
    );
}

/// Puts one more message in when the run is about to end.
struct AndMore;

impl StepGate for AndMore {
    fn name(&self) -> &str {
        "more"
    }

    async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        Ok(match step.step {
            0 => {
                step.push(Turn::message(Message::user("And?")).unwrap());
                FinishDecision::Retry { void: false }
            }
            _ => FinishDecision::Finish,
        })
    }
}

#[tokio::test]
async fn the_text_of_a_continued_run_is_its_last_message() {
    let model = ScriptedModel::new().text("One.").then().text("Two.");
    let agent = BoxModel::new(AgentLayer::new(Toolset::new()).gate(AndMore).layer(model));
    assert_eq!(ask(&agent, ChatRequest::user("hi")).await.text(), "Two.");
}

#[tokio::test]
async fn an_agent_as_a_tool_returns_its_final_answer() {
    let inner = AgentLayer::new(Toolset::new())
        .gate(named())
        .layer(corrected());
    let tools = Toolset::new().tool(agent_tool("greet", "", inner));
    let model = ScriptedModel::new()
        .tool_call("greet", json!({"task": "go"}))
        .then()
        .text("Greeted.");
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
    let answer = ask(&agent, ChatRequest::user("hi")).await;
    let results = answer.transcript().unwrap().iter().flat_map(Turn::results);
    let results: Vec<_> = results
        .map(|r| r.outcome.content.text().into_owned())
        .collect();
    assert_eq!(results, ["Hello Ada."]);
}

#[tokio::test]
async fn the_text_of_a_model_is_all_its_text() {
    let start = Event::StepStart(Box::new(StepStart::new(0, MessageId::new("m"))));
    for model in [
        ScriptedModel::new().deltas(["a", "b"]),
        ScriptedModel::new().event(start).deltas(["a", "b"]),
        ScriptedModel::new()
            .text("x")
            .event(Event::Reset)
            .deltas(["a", "b"]),
    ] {
        let answer = ask(&BoxModel::new(model), ChatRequest::user("hi")).await;
        assert_eq!(
            (answer.text(), answer.all_text()),
            ("ab".into(), "ab".into())
        );
        assert_eq!(answer.message.role, Role::Assistant);
    }
}

// ---- what it used ----

fn pays() -> ScriptedModel {
    ScriptedModel::new()
        .usage(Usage::new(100, 10))
        .tool_call("pay", json!({}))
        .then()
        .usage(Usage::new(200, 20))
        .tool_call("pay", json!({}))
        .then()
        .usage(Usage::new(400, 40))
        .text("Paid.")
}

fn replies(finish: &Finish) -> Vec<Reply> {
    let asked = finish.interrupts().into_iter();
    asked
        .map(|asked| Reply::approve(asked.id.clone()))
        .collect()
}

/// Answers all questions of a run, and returns its finishes and the tokens of its steps.
async fn whole(agent: &BoxModel) -> (Vec<Finish>, Usage) {
    let (mut finishes, mut steps) = (Vec::new(), Usage::default());
    let mut request = ChatRequest::user("Pay.");
    loop {
        let body = agent.clone().oneshot(request).await.unwrap().body;
        let (events, finish) = concentric_test::assert_finishes(body).await;
        for event in &events {
            if let Event::StepFinish(step) = event {
                steps += step.usage;
            }
        }
        let state = finish.state.clone();
        finishes.push(finish.clone());
        match state {
            Some(state) => request = ChatRequest::resume(*state, replies(&finish)),
            None => return (finishes, steps),
        }
    }
}

fn sum(finishes: &[Finish]) -> Usage {
    let mut sum = Usage::default();
    for finish in finishes {
        sum += finish.attempt_usage();
    }
    sum
}

#[tokio::test]
async fn tokens_of_a_resumed_run_are_reported_once() {
    for levels in 0..=2 {
        let tools = ScriptedTools::new().asks("pay", "paid");
        let agent = BoxModel::new(AgentLayer::new(tools).layer(pays()));
        let around = |inner| BoxModel::new(AgentLayer::new(Toolset::new()).layer(inner));
        let agent = (0..levels).fold(agent, |inner, _| around(inner));
        let (finishes, steps) = whole(&agent).await;
        let totals: Vec<_> = finishes.iter().map(|finish| finish.usage).collect();
        let expected = [
            Usage::new(100, 10),
            Usage::new(300, 30),
            Usage::new(700, 70),
        ];
        assert_eq!(totals, expected, "{levels}");
        let parts: Vec<_> = finishes.iter().map(Finish::attempt_usage).collect();
        let expected = [
            Usage::new(100, 10),
            Usage::new(200, 20),
            Usage::new(400, 40),
        ];
        assert_eq!(parts, expected, "{levels}");
        assert_eq!(steps, Usage::new(700, 70), "{levels}");
    }
}

#[tokio::test]
async fn tokens_before_a_crash_are_reported_after_it() {
    for levels in 0..=2 {
        let saved = Arc::new(Mutex::new(Vec::<RunState>::new()));
        let agent = |model: ScriptedModel| {
            let tools = ScriptedTools::new().answers("pay", "paid");
            let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
            let around = |inner| BoxModel::new(AgentLayer::new(Toolset::new()).layer(inner));
            (0..levels).fold(agent, |inner, _| around(inner))
        };
        let mut request = ChatRequest::user("Pay.");
        let states = Arc::clone(&saved);
        request.checkpoint = Some(Checkpoint::new(move |state| {
            states.lock().unwrap().push(state);
            Box::pin(std::future::ready(Ok(())))
        }));
        ask(&agent(pays()), request).await;
        // Another process continues with what was stored before the second round.
        let stored = saved.lock().unwrap()[1].to_json().unwrap();
        let state = RunState::from_json(stored.as_bytes(), stored.len()).unwrap();
        let left = ScriptedModel::new()
            .usage(Usage::new(400, 40))
            .text("Paid.");
        let answer = ask(&agent(left), ChatRequest::resume(state, Vec::new())).await;
        assert_eq!(answer.finish.usage, Usage::new(700, 70), "{levels}");
        assert_eq!(sum(&[answer.finish]), Usage::new(700, 70), "{levels}");
    }
}

#[test]
fn a_stored_finish_without_attempts_reports_all_it_used() {
    let finish = Finish::new(FinishReason::Stop, Usage::new(3, 4));
    let stored = serde_json::to_value(&finish).unwrap();
    assert_eq!(
        stored,
        json!({
            "reason": "stop",
            "usage": {"input_tokens": 3, "output_tokens": 4},
            "outcome": "completed",
        })
    );
    let read: Finish = serde_json::from_value(stored).unwrap();
    assert_eq!(read.attempt_usage(), Usage::new(3, 4));
}
