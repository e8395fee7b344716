//! The check that a run does the same in a replay, with stacks that do and that do not.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, Error, ErrorKind, Event, Message, Transcript, Turn,
    agent::{StepDecision, StepDraft, StepGate},
};
use concentric_layers::{
    ClearToolResultsLayer, CompactionLayer, RetryModel, StaticMemoryLayer, TrimLayer,
    compaction::Trigger,
    durable::{DurableLayer, DurableTools},
    guard::{GuardLayer, Parts, Rules, pii},
    map_events,
    stop::{ErrorLimit, Judgement, LoopDetector, OutputConstraint, StopWhen, steps},
};
use concentric_test::{ScriptedModel, ScriptedTools, check_replay};
use futures_util::FutureExt;
use serde_json::json;
use std::{
    collections::HashMap,
    future::ready,
    hash::{BuildHasher, RandomState},
    panic::AssertUnwindSafe,
    time::{Duration, SystemTime},
};
use tower::{ServiceBuilder, retry::RetryLayer, util::MapRequestLayer};

fn model() -> ScriptedModel {
    ScriptedModel::new()
        .deltas(["Let ", "me look."])
        .tool_call("search", json!({ "query": "tower" }))
        .then()
        .tool_call("search", json!({ "query": "axum" }))
        .then()
        .deltas(["Write to ann@exam", "ple.com."])
}

fn tools() -> DurableTools<ScriptedTools> {
    let found = "found ".repeat(200);
    DurableTools::new(ScriptedTools::new().answers("search", found))
}

fn agent() -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools()))
            .layer(DurableLayer::new())
            .service(model()),
    )
}

/// A request with a conversation that is long enough to be summarised.
fn request() -> ChatRequest {
    let mut transcript = Transcript::default();
    for at in 0..8 {
        transcript.push_user(format!("{at} {}", "words ".repeat(40)));
        let answer = Turn::message(Message::assistant("Yes."));
        transcript.push(answer.expect("a turn of an assistant"));
    }
    transcript.push_user("Who can help?");
    ChatRequest::new(transcript)
}

/// The message of the check about a stack that does not do the same.
async fn difference(agent: impl Fn() -> BoxModel) -> String {
    let check = AssertUnwindSafe(check_replay(agent, request));
    let panic = check.catch_unwind().await.expect_err("a difference");
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

#[tokio::test]
async fn the_systems_clock_is_found() {
    let found = difference(|| {
        let stamped = MapRequestLayer::new(|mut request: ChatRequest| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let stamp = since.unwrap_or_default().as_nanos();
            request.transcript.push(Turn::user(stamp.to_string()));
            request
        });
        BoxModel::new(ServiceBuilder::new().layer(stamped).service(agent()))
    })
    .await;
    assert!(found.contains("the end of the run is"), "{found}");
}

struct ByChance;

impl StepGate for ByChance {
    fn name(&self) -> &str {
        "by_chance"
    }

    async fn before_step(
        &self,
        _: &mut StepDraft,
    ) -> Result<StepDecision, concentric_core::BoxError> {
        // The keys of the hasher are random.
        Ok(match RandomState::new().hash_one(0) % 2 {
            0 => StepDecision::Continue,
            _ => StepDecision::Finish,
        })
    }
}

#[tokio::test]
async fn a_decision_by_chance_is_found() {
    for _ in 0..16 {
        let found = difference(|| {
            let agent = AgentLayer::new(tools()).gate(ByChance);
            let stack = ServiceBuilder::new().layer(agent);
            BoxModel::new(stack.layer(DurableLayer::new()).service(model()))
        })
        .await;
        // The first run may have ended before its first step.
        assert!(
            found.contains(", step ") || found.contains("no step"),
            "{found}"
        );
    }
}

#[tokio::test]
async fn the_order_of_a_map_is_found() {
    let found = difference(|| {
        let notes: HashMap<u32, String> = (0..32).map(|at| (at, format!("{at} "))).collect();
        let listed = map_events(move |event: &mut Event| {
            if let Event::ToolResult(result) = event {
                let notes: String = notes.values().map(String::as_str).collect();
                *event = Event::text(format!("{}: {notes}", result.call_id));
            }
        });
        BoxModel::new(ServiceBuilder::new().layer(listed).service(agent()))
    })
    .await;
    assert!(found.contains("event "), "{found}");
}

#[tokio::test]
async fn a_stack_without_steps_is_found() {
    let found = difference(|| {
        let agent = AgentLayer::new(ScriptedTools::new().answers("search", "found"));
        BoxModel::new(ServiceBuilder::new().layer(agent).service(model()))
    })
    .await;
    assert!(found.contains("no step"), "{found}");
}

#[tokio::test]
async fn a_call_of_a_model_outside_of_the_steps_is_found() {
    // The summary of each process is another one.
    let found = difference(|| {
        let hasher = RandomState::new();
        let small = ScriptedModel::new()
            .text(format!("They met. {}", hasher.hash_one(0)))
            .repeat();
        let compaction = CompactionLayer::new(BoxModel::new(small), 4_000)
            .when(Trigger::tokens(300))
            .keep(10)
            .commit();
        BoxModel::new(
            ServiceBuilder::new()
                .layer(AgentLayer::new(tools()))
                .layer(compaction)
                .layer(DurableLayer::new())
                .service(model()),
        )
    })
    .await;
    assert!(found.contains("in replay 1"), "{found}");
}

/// The run leaves a model call because of what it has seen of it.
#[tokio::test]
async fn a_guard_that_blocks_does_the_same() {
    for chunks in [
        vec!["Write to ann@example.com ", "now, ", "or never."],
        vec!["ann@example.com"],
    ] {
        check_replay(
            || {
                let rule = pii::email().block();
                let rules = Rules::new(vec![rule]).expect("the patterns are valid");
                BoxModel::new(
                    ServiceBuilder::new()
                        .layer(GuardLayer::new(rules).output(Parts::TEXT))
                        .layer(AgentLayer::new(tools()))
                        .layer(DurableLayer::new())
                        .service(ScriptedModel::new().deltas(chunks.clone())),
                )
            },
            request,
        )
        .await;
    }
}

#[tokio::test]
async fn built_in_layers_do_the_same() {
    check_replay(agent, request).await;
    let guard = || {
        let rules = Rules::new(vec![pii::email()]).expect("the patterns are valid");
        GuardLayer::new(rules)
            .input(Parts::USER | Parts::RESULTS)
            .output(Parts::TEXT)
    };
    let summaries = ScriptedModel::new().text("They met.").repeat();
    let compaction = || {
        let small = ServiceBuilder::new()
            .layer(DurableLayer::new())
            .service(summaries.clone());
        CompactionLayer::new(BoxModel::new(small), 4_000)
            .when(Trigger::tokens(300))
            .keep(10)
            .commit()
    };
    // Outside of the loop, in the loop and outside of the steps, and in the steps.
    let whole = || {
        let memory = StaticMemoryLayer::new().document("style", "Answers have one sentence.");
        let agent = AgentLayer::new(tools())
            .gate(StopWhen::finish(steps(20)))
            .gate(LoopDetector::new(3))
            .gate(ErrorLimit::new().consecutive(3))
            .gate(OutputConstraint::new("address", |_, _: Context| {
                ready(Ok(Judgement::Accept))
            }));
        let busy = || Error::new(ErrorKind::Overloaded, "busy");
        let backoff = Duration::from_millis(1);
        BoxModel::new(
            ServiceBuilder::new()
                .layer(memory.expect("the name is valid"))
                .layer(guard())
                .layer(agent)
                .layer(guard())
                .layer(compaction())
                .layer(ClearToolResultsLayer::new().trigger(100).keep(1))
                .layer(TrimLayer::turns(10))
                .layer(DurableLayer::new())
                .layer(RetryLayer::new(
                    RetryModel::new(3).backoff(backoff, backoff),
                ))
                .service(
                    ScriptedModel::new()
                        .error(busy())
                        .then()
                        .tool_call("search", json!({ "query": "tower" }))
                        .then()
                        .tool_call("search", json!({ "query": "axum" }))
                        .then()
                        .deltas(["Write to ann@exam", "ple.com."]),
                ),
        )
    };
    check_replay(whole, request).await;
    // By the first run only.
    assert!(summaries.calls() > 0);
    let calls = summaries.calls();
    check_replay(whole, request).await;
    assert_eq!(summaries.calls(), 2 * calls);
}

#[tokio::test]
async fn a_run_that_is_interrupted_or_fails_does_the_same() {
    let asks = || {
        let tools = ScriptedTools::new().asks("search", "found");
        BoxModel::new(
            ServiceBuilder::new()
                .layer(AgentLayer::new(DurableTools::new(tools)))
                .layer(DurableLayer::new())
                .service(model()),
        )
    };
    check_replay(asks, request).await;
    let fails = || {
        let model = ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .text("I ")
            .error(Error::new(ErrorKind::Server, "it broke"));
        BoxModel::new(
            ServiceBuilder::new()
                .layer(AgentLayer::new(tools()))
                .layer(DurableLayer::new())
                .service(model),
        )
    };
    check_replay(fails, request).await;
}
