//! Long conversations of recorded answers, shortened by layers and encoded for each API.

#[path = "../../../crates/concentric-providers/tests/it/common/strict.rs"]
mod strict;

use crate::{Recording, Rng, default_dir, direct, load, model};
use bytes::Bytes;
use concentric_core::{
    AgentLayer, Answer, BoxModel, CallId, ChatRequest, Error, Message, Part, PartKind, Role, Round,
    ToolCall, ToolOutcome, ToolResult, ToolSpec, Transcript, Turn, Usage,
    message::{Author, Executor},
    store::{EffectKey, Ledger, LedgerEntry},
};
use concentric_layers::{
    ClearToolResultsLayer, CompactionLayer, TrimLayer,
    compaction::Trigger,
    tokens::{Estimator, TokenCounter},
};
use concentric_test::{MemoryStore, ScriptedModel};
use concentric_tools::{Tool, Toolset};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashSet},
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

/// A model that gives a recorded answer.
fn recorded(recording: &Recording) -> Option<BoxModel> {
    let http = direct(recording, recording.pieces());
    model(
        &recording.api,
        address(&recording.api),
        recording.stream,
        http,
    )
}

async fn answer(recording: &Recording) -> Option<Answer> {
    let model = recorded(recording)?;
    let answer = model.oneshot(ChatRequest::user("hi")).await.ok()?;
    let answer = answer.collect().await.ok()?;
    (!answer.message.parts.is_empty()).then_some(answer)
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

/// Returns whether every encoder accepts the turn.
async fn is_accepted(turn: &Turn) -> bool {
    let alone = [Turn::user("Hi."), turn.clone(), Turn::user("And?")];
    faults(&alone.into_iter().collect()).await.is_empty()
}

/// All recorded answers of `api` that every encoder accepts, as one conversation.
async fn history(dir: &std::path::Path, api: &str) -> Transcript {
    let mut history = Transcript::new();
    for (index, recording) in load(dir, api).unwrap().iter().enumerate() {
        let answer = answer(recording).await;
        let Some(turn) = answer.and_then(|it| turn(it.message, index)) else {
            continue;
        };
        if !is_accepted(&turn).await {
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

/// A tool whose effects and outcomes are noted.
fn noted(name: &str, effects: &Effects) -> Tool {
    let effects = Arc::clone(effects);
    let spec = ToolSpec::new(name.to_owned(), "A tool.", json!({"type": "object"}));
    let service = service_fn(move |call: ToolCall| {
        let mut effects = effects.lock().unwrap();
        let index = effects.len();
        let text = format!("result {index} ").repeat(60);
        let outcome = ToolOutcome::done(text).with_data(json!({"index": index}));
        effects.push((EffectKey::of(&call.context).unwrap(), outcome.clone()));
        async move { Ok::<_, Error>(outcome) }
    });
    Tool::new(spec, service)
}

type Effects = Arc<Mutex<Vec<(EffectKey, ToolOutcome)>>>;

/// An agent executes the calls of all recorded answers of an API, one answer after the other.
#[tokio::test]
async fn cleared_results_stay_in_the_conversation_and_in_the_ledger() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    for (api, _) in ENCODERS {
        let (mut models, mut names) = (Vec::new(), BTreeSet::new());
        for (index, recording) in load(&dir, api).unwrap().iter().enumerate() {
            let answer = answer(recording).await;
            let turn = answer.and_then(|it| turn(it.message, index));
            let Some(round) = turn.as_ref().and_then(Turn::as_round) else {
                continue;
            };
            if is_accepted(turn.as_ref().unwrap()).await {
                let calls = round.message().tool_calls();
                names.extend(calls.map(|call| call.name.to_string()));
                models.extend(recorded(recording));
            }
        }
        models.push(BoxModel::new(ScriptedModel::new().text("Done.")));
        let steps = models.len();
        let (effects, ledger) = (Effects::default(), MemoryStore::new());
        let tools = names.iter().map(|name| noted(name, &effects));
        let tools = tools.fold(Toolset::new(), Toolset::tool);
        let views: Arc<Mutex<Vec<Transcript>>> = Arc::default();
        let seen = Arc::clone(&views);
        let model = service_fn(move |request: ChatRequest| {
            let mut views = seen.lock().unwrap();
            views.push(request.transcript.clone());
            models[views.len() - 1].clone().oneshot(request)
        });
        let clear = ClearToolResultsLayer::new().trigger(500).keep(2).inputs();
        let agent =
            AgentLayer::new(tools.ledger(ledger.clone())).layer(clear.layer(BoxModel::new(model)));
        let answer = agent.oneshot(ChatRequest::user("Begin.")).await.unwrap();
        let answer = answer.collect().await.unwrap();

        let results = |of: &Transcript| -> Vec<ToolOutcome> {
            let results = of.iter().flat_map(Turn::results);
            results.map(|it| it.outcome.clone()).collect()
        };
        let kept = results(answer.transcript().unwrap());
        let views = views.lock().unwrap().clone();
        let last = results(views.last().unwrap());
        let cleared = kept.iter().filter(|outcome| !last.contains(outcome));
        let (effects, cleared) = (effects.lock().unwrap().clone(), cleared.count());
        eprintln!(
            "{api}: {steps} steps, {} effects, {cleared} cleared",
            effects.len()
        );
        assert_eq!((views.len(), last.len()), (steps, kept.len()), "{api}");
        assert!(effects.len() > 2 && cleared > 0, "{api}");
        for (key, outcome) in effects {
            assert!(kept.contains(&outcome), "{api}: {outcome:?}");
            // Models do not receive the data.
            assert!(last.iter().any(|it| it.data == outcome.data), "{api}");
            let recorded = ledger.known(key).await.unwrap();
            assert_eq!(recorded, LedgerEntry::Finished(Box::new(outcome)));
        }
        for view in views.iter().rev().step_by(4) {
            let faults = faults(view).await;
            assert!(faults.is_empty(), "{api}: {faults:#?}");
        }
    }
}

/// The texts of an answer that has some, and their reported tokens.
fn texts(answer: Answer) -> Option<(Message, u64)> {
    let (mut message, usage) = (answer.message, answer.finish.usage);
    let is_reasoning = |part: &Part| matches!(part.kind, PartKind::Reasoning(_));
    // Reasoning is a part of the output, if it is reported.
    let reasoning = match usage.reasoning_tokens() {
        None if message.parts.iter().any(is_reasoning) => return None,
        tokens => tokens.unwrap_or(0),
    };
    message.parts.retain(|part| !is_reasoning(part));
    let mut parts = message.parts.iter();
    let is_text = parts.all(|part| matches!(part.kind, PartKind::Text(_)));
    let tokens = usage.output_tokens()?.saturating_sub(reasoning);
    // Of a short text, much of the reported tokens are not of the text.
    (is_text && tokens > 20).then_some((message, tokens))
}

/// A conversation grows by the recorded answers of an API. Its tokens are those that the service has reported for
/// each of them.
#[tokio::test]
async fn the_estimate_of_recorded_conversations_converges_within_three_calls() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let mut checked = 0;
    for (api, _) in ENCODERS {
        let (estimator, uncorrected) = (Estimator::new(), Estimator::new());
        let (mut history, mut tokens) = (Transcript::new(), 0);
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        for recording in load(&dir, api).unwrap() {
            answers.extend(answer(&recording).await.and_then(texts));
        }
        // The longest first: no later answer changes the mixture of vendors and languages by much.
        answers.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
        for (message, reported) in answers {
            history.push(Turn::message(message).unwrap());
            tokens += reported;
            let request = ChatRequest::new(history.clone());
            errors.push(estimator.request(&request).abs_diff(tokens) * 100 / tokens);
            let count = uncorrected.request(&request);
            estimator.observe(None, count, &Usage::new(tokens, 1));
        }
        eprintln!("{api}: {tokens} tokens, errors in percent: {errors:?}");
        let later = errors.iter().skip(3);
        checked += later.clone().count();
        assert!(
            later.max().is_none_or(|error| *error <= 15),
            "{api}: {errors:?}"
        );
    }
    assert!(checked > 5, "{checked}");
}
