//! The guard at both places of the stack.

use concentric_core::{AgentLayer, BoxModel, ChatRequest, ErrorKind, Event, MessageId, StepStart};
use concentric_layers::{
    GuardLayer,
    guard::{BLOCKED, Rule, Rules},
};
use concentric_test::{ScriptedModel, ScriptedTools, assert_finishes};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tower::{ServiceBuilder, ServiceExt};

fn guard() -> GuardLayer {
    let rule = Rule::literals("password", ["hunter2"]).replace("[redacted]");
    GuardLayer::new(Rules::new([rule]).unwrap())
}

fn tells() -> ScriptedModel {
    ScriptedModel::new()
        .deltas(["It is hun", "ter2", "!"])
        .tool_call("look", json!({}))
        .then()
        .text("Done.")
}

fn tools() -> ScriptedTools {
    ScriptedTools::new().answers("look", "seen")
}

/// What the consumer reads, and what the conversation holds of the first answer.
async fn read(agent: BoxModel) -> (String, String) {
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    let transcript = finish.transcript.unwrap();
    let first = transcript.iter().nth(1).unwrap();
    (texts(&events).concat(), first.as_message().text())
}

fn texts(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::TextDelta(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn c019_inside_the_loop_the_history_and_the_next_request_are_redacted() {
    let model = tells();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()))
        .layer(guard())
        .service(model.clone());
    let (read, kept) = read(BoxModel::new(agent)).await;
    assert_eq!(read, "It is [redacted]!Done.");
    assert_eq!(kept, "It is [redacted]!");
    let next = model.request(1).transcript;
    assert_eq!(
        next.last().unwrap().as_message().text(),
        "It is [redacted]!"
    );
}

#[tokio::test]
async fn c020_outside_the_loop_the_consumer_alone_reads_it_redacted() {
    let model = tells();
    let agent = ServiceBuilder::new()
        .layer(guard())
        .layer(AgentLayer::new(tools()))
        .service(model.clone());
    let (read, kept) = read(BoxModel::new(agent)).await;
    assert_eq!(read, "It is [redacted]!Done.");
    assert_eq!(kept, "It is hunter2!");
    let next = model.request(1).transcript;
    assert_eq!(next.last().unwrap().as_message().text(), "It is hunter2!");
}

async fn events(model: ScriptedModel) -> Vec<Event> {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()))
        .layer(guard())
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    assert_finishes(body).await.0
}

#[tokio::test]
async fn c021_no_part_of_a_secret_that_comes_in_pieces_is_let_through() {
    let pieces = ["It is ", "h", "un", "te", "r2", ", not hunter."];
    let all = events(ScriptedModel::new().deltas(pieces)).await;
    let texts = texts(&all);
    assert_eq!(texts.concat(), "It is [redacted], not hunter.");
    let before: String = texts[..1].concat();
    assert!(!before.contains('h'), "{before}");
}

#[tokio::test]
async fn c022_c023_what_is_held_is_let_through_once_and_before_the_end() {
    for text in ["h", "It may be hunter"] {
        let all = events(ScriptedModel::new().text(text)).await;
        assert_eq!(texts(&all).concat(), text);
        let last_text = all.iter().rposition(|e| matches!(e, Event::TextDelta(_)));
        let end = all.iter().position(|e| matches!(e, Event::StepFinish(_)));
        assert!(last_text < end, "{all:?}");
    }
    let all = events(ScriptedModel::new().text("hunt")).await;
    assert_eq!(texts(&all), ["hunt"]);
}

#[tokio::test]
async fn c024_what_is_held_is_of_the_message_that_it_was_said_in() {
    // Outside the loop, where there are several messages in one body.
    let model = ScriptedModel::new()
        .text("hun")
        .tool_call("look", json!({}))
        .then()
        .text("ter2");
    let agent = ServiceBuilder::new()
        .layer(guard())
        .layer(AgentLayer::new(tools()))
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (all, _) = assert_finishes(body).await;
    let mut by_message: Vec<(MessageId, String)> = Vec::new();
    for event in &all {
        match event {
            Event::StepStart(start) => {
                let StepStart { message_id, .. } = &**start;
                by_message.push((message_id.clone(), String::new()));
            }
            Event::TextDelta(text) => by_message.last_mut().unwrap().1.push_str(text),
            _ => {}
        }
    }
    let texts: Vec<_> = by_message.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["hun", "ter2"]);
}

#[tokio::test]
async fn c025_a_blocked_answer_shows_nothing_of_the_match_and_is_told_once() {
    let blocked = Arc::new(AtomicUsize::new(0));
    let count = blocked.clone();
    let rule = Rule::literals("password", ["hunter2"]).block();
    let layer = GuardLayer::new(Rules::new([rule]).unwrap()).on_match(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()))
        .layer(layer)
        .service(ScriptedModel::new().deltas(["It is ", "hunt", "er2", " hunter2"]));
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (all, error) = concentric_test::assert_fails(body).await;
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::ContentFilter, Some(BLOCKED))
    );
    assert_eq!(texts(&all).concat(), "It is ");
    assert_eq!(blocked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn c026_runs_through_one_guard_have_buffers_of_their_own() {
    let model = || ScriptedModel::new().deltas(["hun", "ter2"]).repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()))
        .layer(guard())
        .service(model());
    let agent = BoxModel::new(agent);
    let runs = (0..50).map(|_| read(agent.clone()));
    for (read, kept) in futures_util::future::join_all(runs).await {
        assert_eq!((read.as_str(), kept.as_str()), ("[redacted]", "[redacted]"));
    }
}
