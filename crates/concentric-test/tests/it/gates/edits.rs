//! Edits that gates make for all later steps.

use super::*;
use concentric_core::{HistoryError, System, SystemSegment, Transcript};
use concentric_test::assert_finishes;

fn system(text: &str) -> System {
    let mut system = System::default();
    system.push(SystemSegment::new(text));
    system
}

fn texts(transcript: &Transcript) -> Vec<String> {
    let texts = transcript.iter().map(|turn| turn.as_message().text());
    texts.collect()
}

/// Edits everything before the first step.
fn edits(step: &mut StepDraft) -> StepDecision {
    if step.step == 0 {
        *step.system_mut() = system("Edited.");
        step.options_mut().max_output_tokens = Some(7);
        step.retain_tools(|tool| tool.name == "look");
        step.rewrite(1, vec![user("Earlier.")]).unwrap();
    }
    StepDecision::Continue
}

/// A model that calls two tools, then one, and then answers.
fn twice() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("touch", json!({}))
        .then()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    (model, tools.answers("touch", "touched"))
}

fn assert_edited(request: &ChatRequest) {
    assert_eq!(request.system, system("Edited."));
    assert_eq!(request.options.max_output_tokens, Some(7));
    let names: Vec<_> = request
        .tools
        .iter()
        .map(|tool| tool.name.as_str())
        .collect();
    assert_eq!(names, ["look"]);
    assert_eq!(texts(&request.transcript)[..2], ["Earlier.", "hi"]);
}

#[tokio::test]
async fn edits_last_for_all_later_steps() {
    let (model, tools) = twice();
    let layer = AgentLayer::new(tools.clone()).gate(model_gate("edits", edits));
    let request = ChatRequest::user("hi").with_system("First.");
    let answer = run(layer, &model, request).await;
    (0..3).for_each(|step| assert_edited(&model.request(step)));
    // A call of a tool that is not offered any more is refused.
    assert_eq!(results(&answer)[0], (ToolStatus::Done, "seen".to_owned()));
    assert_eq!(results(&answer)[1].0, ToolStatus::Failed);
    assert_eq!(tools.done(), 2);
    assert_eq!(texts(answer.transcript().unwrap()).len(), 5);
}

#[tokio::test]
async fn edits_survive_a_suspension() {
    let (model, tools) = twice();
    let log = Log::default();
    let layer = || {
        let ask = asks("asks", &log);
        AgentLayer::new(tools.clone())
            .gate(model_gate("edits", edits))
            .gate(model_gate("asks", move |step| match step.step {
                1 => ask(step).map_or(StepDecision::Continue, StepDecision::ask),
                _ => StepDecision::Continue,
            }))
    };
    let waits = run(layer(), &model, ChatRequest::user("hi")).await;
    let state = state_of(&waits);
    let replies = vec![Reply::resolve(state.interrupts()[0].id.clone(), json!({}))];
    // The request that resumes the run has a system text and options of its own.
    let mut request = ChatRequest::resume(state, replies).with_system("Second.");
    request.options_mut().max_output_tokens = Some(9);
    let answer = run(layer(), &model, request).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    (1..3).for_each(|step| assert_edited(&model.request(step)));
}

#[tokio::test]
async fn edits_of_gates_that_ask_are_discarded() {
    let model = ScriptedModel::new().text("Done.");
    let log = Log::default();
    let layer = || {
        let (ask, before, after) = (asks("asks", &log), log.clone(), log.clone());
        let sees = move |log: &Log, step: &StepDraft| {
            let system = step.system().text();
            log.lock()
                .unwrap()
                .push(format!("{system}{}", step.transcript.len()));
        };
        AgentLayer::new(ScriptedTools::new())
            .gate(model_gate("edits", move |step| {
                sees(&before, step);
                edits(step)
            }))
            .gate(model_gate("asks", move |step| {
                sees(&after, step);
                ask(step).map_or(StepDecision::Continue, StepDecision::ask)
            }))
    };
    let waits = run(layer(), &model, ChatRequest::user("hi")).await;
    // A gate sees the edits of the gates before it.
    assert_eq!(std::mem::take(&mut *log.lock().unwrap()), ["1", "Edited.2"]);
    let state = state_of(&waits);
    assert!(!state.to_json().unwrap().contains("edits\":{"));
    assert_eq!(state.transcript().len(), 1);
    let id = waits.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state, vec![Reply::resolve(id, json!(true))]);
    run(layer(), &model, request).await;
    let seen = ["1", "Edited.2", "asks sees 1"];
    assert_eq!(*log.lock().unwrap(), seen);
    assert_eq!(texts(&model.request(0).transcript), ["Earlier.", "hi"]);
}

#[tokio::test]
async fn the_consumer_receives_the_new_conversation() {
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(model_gate("shortens", |step| {
        if step.step == 1 {
            assert_eq!((step.turns, step.transcript.len()), (2, 2));
            let error = step.rewrite(3, Vec::new()).unwrap_err();
            assert!(matches!(
                error,
                HistoryError::TooShort {
                    replaced: 3,
                    len: 2
                }
            ));
            step.rewrite(2, Vec::new()).unwrap();
            assert_eq!((step.turns, step.transcript.len()), (2, 1));
            step.push(user("Go."));
        }
        StepDecision::Continue
    }));
    let agent = layer.layer(model.clone());
    let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    let at = |is: fn(&Event) -> bool| events.iter().position(is).unwrap();
    let replaced = at(|event| matches!(event, Event::TranscriptReplaced(_)));
    assert!(replaced > at(|event| matches!(event, Event::ToolResult(_))));
    assert!(matches!(events[replaced + 1], Event::StepStart(_)));
    let Event::TranscriptReplaced(transcript) = &events[replaced] else {
        unreachable!()
    };
    assert_eq!(texts(transcript), ["hi"]);
    assert_eq!(texts(&model.request(1).transcript), ["hi", "Go."]);
    let last = finish.transcript.unwrap();
    assert_eq!(texts(&last), ["hi", "Go.", "I have looked."]);
}

#[tokio::test]
async fn a_retry_may_have_no_message_and_a_message_no_retry() {
    // Without a message, the model continues its own answer.
    let model = ScriptedModel::new().text("A.").then().text("B.");
    let layer = AgentLayer::new(ScriptedTools::new()).gate(finish_gate(|step| match step.step {
        0 => FinishDecision::Retry { void: false },
        _ => FinishDecision::Finish,
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(texts(&model.request(1).transcript), ["hi", "A."]);
    assert_eq!(texts(answer.transcript().unwrap()), ["hi", "A.", "B."]);

    // Without a retry, the message and the edits end the conversation.
    let model = ScriptedModel::new().text("A.");
    let layer = AgentLayer::new(ScriptedTools::new()).gate(finish_gate(|step| {
        step.push(user("Next time, be brief."));
        step.rewrite(1, vec![user("Earlier.")]).unwrap();
        FinishDecision::Finish
    }));
    let answer = run(layer, &model, ChatRequest::user("hi")).await;
    assert_eq!(
        (&answer.finish.outcome, model.calls()),
        (&Outcome::Completed, 1)
    );
    let said = ["Earlier.", "hi", "A.", "Next time, be brief."];
    assert_eq!(texts(answer.transcript().unwrap()), said);
}

#[tokio::test]
async fn messages_before_an_end_that_is_asked_about_are_discarded() {
    let model = ScriptedModel::new().text("A.");
    let layer = || {
        AgentLayer::new(ScriptedTools::new()).gate(finish_gate(|step| {
            step.push(user("Noted."));
            let id = step.interrupt_id("finish");
            match step.reply(&id) {
                None => FinishDecision::ask(Interrupt::new(id, "enough")),
                Some(_) => FinishDecision::Finish,
            }
        }))
    };
    let waits = run(layer(), &model, ChatRequest::user("hi")).await;
    assert_eq!(texts(state_of(&waits).transcript()), ["hi", "A."]);
    let id = waits.finish.interrupts()[0].id.clone();
    let request = ChatRequest::resume(state_of(&waits), vec![Reply::resolve(id, json!(true))]);
    let done = run(layer(), &model, request).await;
    assert_eq!(texts(done.transcript().unwrap()), ["hi", "A.", "Noted."]);
}

#[tokio::test]
async fn an_agent_in_the_models_place_has_edits_of_its_own() {
    let (model, tools) = once();
    let inner = AgentLayer::new(tools)
        .gate(model_gate("edits", edits))
        .layer(model.clone());
    let agent = AgentLayer::new(ScriptedTools::new()).layer(inner);
    let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    (0..2).for_each(|step| assert_edited(&model.request(step)));
    let is_replaced = |event: &Event| matches!(event, Event::TranscriptReplaced(_));
    assert!(!events.iter().any(is_replaced));
    assert_eq!(texts(&finish.transcript.unwrap())[0], "hi");
}
