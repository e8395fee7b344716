//! Long conversations of recorded answers, shortened by layers and encoded for each API.

#[path = "../../../crates/concentric-providers/tests/it/common/strict.rs"]
mod strict;

use crate::{Recording, Rng, default_dir, direct, load, model};
use bytes::Bytes;
use concentric_core::{
    BoxModel, CallId, ChatRequest, Message, PartKind, Role, Round, ToolOutcome, ToolResult,
    Transcript, Turn,
    message::{Author, Executor},
};
use concentric_layers::{ClearToolResultsLayer, CompactionLayer, TrimLayer, compaction::Trigger};
use concentric_test::ScriptedModel;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The APIs with a chat format, and their names in the rules.
const ENCODERS: [(&str, &str); 5] = [
    ("openai-chat", "chat"),
    ("openai-responses", "responses"),
    ("anthropic-messages", "anthropic"),
    ("gemini-generate", "gemini"),
    ("ollama-chat", "ollama"),
];

/// The address of a service whose own data are sent back to it.
fn address(api: &str) -> &'static str {
    match api {
        "openai-chat" => "https://openrouter.ai/api/v1",
        _ => "http://replay.test",
    }
}

/// The request that the layer of `api` sends; `None` if it rejects the conversation.
async fn encoded(api: &str, transcript: &Transcript) -> Option<Value> {
    let sent = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&sent);
    let http = service_fn(move |request: http::Request<Full<Bytes>>| {
        let kept = Arc::clone(&kept);
        async move {
            let body = request.into_body().collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            *kept.lock().unwrap() = serde_json::from_slice(&body).ok();
            let mut response = http::Response::new(Full::new(Bytes::new()));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            Ok::<_, Infallible>(response)
        }
    });
    let model = model(api, address(api), false, http)?;
    let _ = model.oneshot(ChatRequest::new(transcript.clone())).await;
    sent.lock().unwrap().take()
}

async fn faults(transcript: &Transcript) -> Vec<String> {
    let mut faults = Vec::new();
    for (api, rules) in ENCODERS {
        match encoded(api, transcript).await {
            Some(request) => {
                // The recordings have placeholders in place of some ids.
                let found = strict::faults(rules, &request).into_iter();
                let found = found.filter(|fault| !fault.contains("two items"));
                faults.extend(found.map(|it| format!("{api}: {it}")));
            }
            None => faults.push(format!("{api}: rejected")),
        }
    }
    faults
}

/// The message of a recorded answer.
async fn answer(recording: &Recording) -> Option<Message> {
    let http = direct(recording, recording.pieces());
    let model = model(
        &recording.api,
        address(&recording.api),
        recording.stream,
        http,
    )?;
    let answer = model.oneshot(ChatRequest::user("hi")).await.ok()?;
    let message = answer.collect().await.ok()?.message;
    (!message.parts.is_empty()).then_some(message)
}

/// The turn of an answer; calls have results of several hundred bytes.
fn turn(mut message: Message, index: usize) -> Option<Turn> {
    for part in &mut message.parts {
        if let PartKind::ToolCall(call) = &mut part.kind {
            // Recordings repeat ids.
            call.id = CallId::new(format!("{}_{index}", call.id.as_str()));
        }
    }
    let calls: Vec<_> = message
        .tool_calls()
        .filter(|call| call.executor == Executor::Loop)
        .cloned()
        .collect();
    if calls.is_empty() {
        return Turn::message(message).ok();
    }
    let results = calls.into_iter().map(|call| {
        let text = format!("result {index} ").repeat(60);
        ToolResult::new(call.id, call.name, ToolOutcome::done(text))
    });
    Round::new(message, results.collect()).ok().map(Turn::from)
}

/// All recorded answers of `api` that every encoder accepts, as one conversation.
async fn history(dir: &std::path::Path, api: &str) -> Transcript {
    let mut history = Transcript::new();
    for (index, recording) in load(dir, api).unwrap().iter().enumerate() {
        let Some(turn) = answer(recording).await.and_then(|it| turn(it, index)) else {
            continue;
        };
        let alone: Transcript = [Turn::user("Hi."), turn.clone(), Turn::user("And?")]
            .into_iter()
            .collect();
        if !faults(&alone).await.is_empty() {
            continue;
        }
        // Some answers belong to one exchange.
        let is_round = history.last().is_some_and(|turn| turn.as_round().is_some());
        if !is_round || index % 3 == 0 {
            history.push_user(format!("Question {index}, which is not short. ").repeat(4));
        }
        history.push(turn);
    }
    history
}

/// The conversation that the model inside a layer receives.
async fn view<L>(layer: L, of: &Transcript) -> Transcript
where
    L: Layer<ScriptedModel>,
    L::Service: Service<ChatRequest>,
{
    let inner = ScriptedModel::new().text("Yes.");
    let _ = layer
        .layer(inner.clone())
        .oneshot(ChatRequest::new(of.clone()))
        .await;
    inner.request(0).transcript
}

fn is_note(turn: &Turn) -> bool {
    let mut parts = turn.as_message().parts.iter();
    parts.any(|part| matches!(part.author, Author::Layer { .. }))
}

/// A signed part that is sent is sent as it was, with all parts of its message.
fn assert_signatures(of: &Transcript, view: &Transcript) {
    let all: HashSet<String> = of
        .iter()
        .map(|turn| format!("{:?}", turn.as_message()))
        .collect();
    for turn in view.iter().filter(|turn| !is_note(turn)) {
        assert!(
            all.contains(&format!("{:?}", turn.as_message())),
            "{turn:?}"
        );
    }
}

#[tokio::test]
async fn every_encoder_accepts_shortened_recorded_conversations() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let seed: u64 = std::process::id().into();
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let summary = ScriptedModel::new().text("A summary.").repeat();
    let (mut longest, mut views) = (0, 0);
    for (api, _) in ENCODERS {
        let history = history(&dir, api).await;
        longest = longest.max(history.len());
        assert!(history.len() > 6, "{api}: {}", history.len());
        for _ in 0..4 {
            // The conversation before a call at any of its steps.
            let mut of = history.prefix(history.len() - rng.below(history.len() / 2));
            if of.last().is_some_and(|turn| {
                turn.as_message().role == Role::Assistant && turn.as_round().is_none()
            }) {
                of.push_user("And then?");
            }
            let mut options = || rng.below(5);
            let (head, keep) = (options(), options());
            let summarizer = BoxModel::new(summary.clone());
            let compaction = CompactionLayer::new(summarizer, 4_000)
                .when(Trigger::turns(3))
                .when(Trigger::tokens(500))
                .head(head)
                .keep(100 * keep as u64)
                .max_summary(20);
            let compacted = view(compaction, &of).await;
            assert_signatures(&of, &compacted);
            let trimmed = view(TrimLayer::turns(2 + keep).head(head), &of).await;
            assert_signatures(&of, &trimmed);
            let reduced = TrimLayer::turns(1_000).drop_reasoning(1).drop_media(1);
            let clear = ClearToolResultsLayer::new()
                .trigger(100)
                .keep(keep)
                .inputs();
            let both = view(clear.clone(), &compacted).await;
            let all = [
                compacted,
                trimmed,
                view(reduced, &of).await,
                view(clear, &of).await,
                both,
            ];
            for (index, view) in all.iter().enumerate() {
                views += 1;
                let faults = faults(view).await;
                assert!(faults.is_empty(), "{api} {index}: {faults:#?} {view:#?}");
            }
        }
    }
    eprintln!("{views} views of conversations of up to {longest} turns");
}
