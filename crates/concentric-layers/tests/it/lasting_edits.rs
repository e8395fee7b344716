//! Lasting edits of layers between the loop and the model.

use concentric_core::{
    AgentLayer, ChatRequest, ChatResponse, Error, ErrorKind, Event, InterruptId, NoTools, Outcome,
    Reply, System, SystemSegment, ToolChoice, Transcript, Turn,
    agent::{StepDecision, StepDraft, StepGate},
    run_state::{RunEdits, RunState},
};
use concentric_layers::{Next, from_fn, map_events};
use concentric_test::{ScriptedModel, ScriptedTools};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt};

fn texts(transcript: &Transcript) -> Vec<String> {
    let texts = transcript.iter().map(|turn| turn.as_message().text());
    texts.collect()
}

fn system(text: &str) -> System {
    let mut system = System::default();
    system.push(SystemSegment::new(text));
    system
}

/// Sends a shorter conversation with another system text in the first step, and keeps both.
async fn shorten(mut request: ChatRequest, mut next: Next) -> Result<ChatResponse<Body>, Error> {
    if request.context.step() != 0 {
        return next.run(request).await;
    }
    let mut edits = RunEdits::default();
    edits.rewrite(&mut request.transcript, 2, [Turn::user("Earlier.")])?;
    request.system = system("Brief.");
    edits.system = Some(request.system.clone());
    Ok(next.run(request).await?.with_edits(edits))
}

type Body = concentric_core::EventStream;

fn conversation() -> ChatRequest {
    let mut request = ChatRequest::user("one");
    request.transcript.push_user("two");
    request.transcript.push_user("three");
    request
}

/// Asks before the second step.
struct Asks;

impl StepGate for Asks {
    fn name(&self) -> &str {
        "asks"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let id: InterruptId = step.interrupt_id("asks");
        Ok(match step.step == 1 && step.reply(&id).is_none() {
            true => StepDecision::ask(concentric_core::Interrupt::new(id, "Go on?")),
            false => StepDecision::Continue,
        })
    }
}

fn model() -> ScriptedModel {
    let model = ScriptedModel::new().tool_call("look", json!({}));
    model.then().text("Done.")
}

#[tokio::test]
async fn c014_what_a_layer_commits_is_what_later_steps_see() {
    let model = model();
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(from_fn(shorten))
        .service(model.clone());
    let answer = agent.oneshot(conversation()).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(texts(&model.request(0).transcript), ["Earlier.", "three"]);
    let later = model.request(1);
    assert_eq!(texts(&later.transcript)[..2], ["Earlier.", "three"]);
    assert_eq!(later.transcript.len(), 3);
    assert_eq!(later.system, system("Brief."));
    let kept = answer.transcript().unwrap();
    assert_eq!(kept.len(), 4);

    // Without the commit, the same changes are those of one call.
    let model = self::model();
    let view = from_fn(async |request: ChatRequest, next: Next| {
        let mut answer = shorten(request, next).await?;
        answer.extensions.remove::<RunEdits>();
        Ok::<_, Error>(answer)
    });
    let agent = AgentLayer::new(tools).layer(view.layer(model.clone()));
    let answer = agent.oneshot(conversation()).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(texts(&model.request(0).transcript), ["Earlier.", "three"]);
    assert_eq!(
        texts(&model.request(1).transcript)[..3],
        ["one", "two", "three"]
    );
    assert_eq!(model.request(1).system, System::default());
    assert_eq!(answer.transcript().unwrap().len(), 5);
}

#[tokio::test]
async fn a_layers_edits_survive_a_suspension_and_reach_the_consumer() {
    let model = model();
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = || {
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools.clone()).gate(Asks))
            // Layers that keep the response keep its edits.
            .layer(map_events(|_| {}))
            .layer(from_fn(shorten))
            .service(model.clone())
    };
    let mut replaced = Vec::new();
    let body = agent().oneshot(conversation()).await.unwrap().body;
    let mut body = std::pin::pin!(body);
    let mut finish = None;
    while let Some(event) = futures_util::StreamExt::next(&mut body).await {
        match event.unwrap() {
            Event::TranscriptReplaced(transcript) => replaced.push(texts(&transcript)),
            Event::Finish(end) => finish = Some(end),
            _ => {}
        }
    }
    assert_eq!(replaced, [["Earlier.", "three"]]);
    let finish = finish.unwrap();
    assert_eq!(finish.outcome, Outcome::Interrupted);
    let text = finish.state.unwrap().to_json().unwrap();
    let state = RunState::from_json(text.as_bytes(), text.len()).unwrap();
    let reply = Reply::resolve(state.interrupts()[0].id.clone(), json!({}));
    let resumed = ChatRequest::resume(state, vec![reply]).with_system("Another.");
    let answer = agent().oneshot(resumed).await.unwrap().collect().await;
    assert_eq!(answer.unwrap().finish.outcome, Outcome::Completed);
    let later = model.request(1);
    assert_eq!(texts(&later.transcript)[..2], ["Earlier.", "three"]);
    assert_eq!(later.system, system("Brief."));
}

#[tokio::test]
async fn a_choice_that_forced_a_call_does_not_force_another_after_a_suspension() {
    let model = model();
    let agent = || {
        let tools = ScriptedTools::new().answers("look", "seen");
        AgentLayer::new(tools).gate(Asks).layer(model.clone())
    };
    let forced = |mut request: ChatRequest| {
        request.options_mut().tool_choice = Some(ToolChoice::Required);
        request
    };
    let answer = agent().oneshot(forced(ChatRequest::user("hi"))).await;
    let finish = answer.unwrap().collect().await.unwrap().finish;
    let state = finish.state.unwrap();
    let reply = Reply::resolve(state.interrupts()[0].id.clone(), json!({}));
    let resumed = forced(ChatRequest::resume(*state, vec![reply]));
    let answer = agent().oneshot(resumed).await.unwrap().collect().await;
    assert_eq!(answer.unwrap().finish.outcome, Outcome::Completed);
    let choices = [0, 1].map(|at| model.request(at).options.tool_choice.clone());
    assert_eq!(choices, [Some(ToolChoice::Required), None]);
}

#[tokio::test]
async fn edits_of_a_failed_attempt_are_dropped_with_it() {
    let count = Arc::new(AtomicUsize::new(0));
    // A guard that rejects the first answer.
    let guard = from_fn(move |request: ChatRequest, mut next: Next| {
        let count = count.clone();
        async move {
            let again = request.clone();
            let first = next.run(request).await;
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => next.run(again).await,
                _ => first,
            }
        }
    });
    let first = Arc::new(AtomicUsize::new(0));
    let commits_first = from_fn(move |request: ChatRequest, mut next: Next| {
        let first = first.clone();
        async move {
            match first.fetch_add(1, Ordering::SeqCst) {
                0 => shorten(request, next).await,
                _ => next.run(request).await,
            }
        }
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(guard)
        .layer(commits_first)
        .service(ScriptedModel::new().text("a").then().text("b"));
    let answer = agent.oneshot(conversation()).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(
        texts(answer.transcript().unwrap()),
        ["one", "two", "three", "b"]
    );
}

#[tokio::test]
async fn a_rewrite_of_a_view_fails_the_run() {
    let model = ScriptedModel::new().text("Done.");
    let trims = from_fn(async |mut request: ChatRequest, mut next: Next| {
        request.transcript = request.transcript.rewrite(1, [])?;
        next.run(request).await
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(trims)
        .layer(from_fn(shorten))
        .service(model);
    let error = agent.oneshot(conversation()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("rewrote"), "{error}");
}

#[tokio::test]
async fn edits_of_two_layers_are_those_of_the_inner_one_last() {
    let model = ScriptedModel::new().text("Done.");
    let adds = |text: &'static str| {
        from_fn(move |mut request: ChatRequest, mut next: Next| async move {
            let mut edits = RunEdits::default();
            edits.rewrite(&mut request.transcript, 0, [Turn::user(text)])?;
            request.system.push(SystemSegment::new(text));
            edits.system = Some(request.system.clone());
            Ok::<_, Error>(next.run(request).await?.with_edits(edits))
        })
    };
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(adds("outer"))
        .layer(adds("inner"))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(
        texts(&model.request(0).transcript),
        ["inner", "outer", "hi"]
    );
    let kept = texts(answer.transcript().unwrap());
    assert_eq!(kept, ["inner", "outer", "hi", "Done."]);
}

#[tokio::test]
async fn without_a_loop_edits_change_nothing() {
    let model = ScriptedModel::new().text("Done.");
    let mut edits = RunEdits::default();
    edits.system = Some(system("Brief."));
    let layer = from_fn(move |request: ChatRequest, mut next: Next| {
        let edits = edits.clone();
        async move { Ok::<_, Error>(next.run(request).await?.with_edits(edits)) }
    });
    let answer = layer.layer(model).oneshot(conversation()).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(answer.text(), "Done.");
}
