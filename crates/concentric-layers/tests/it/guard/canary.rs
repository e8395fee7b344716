//! Nothing that a rule matches reaches a place that stands behind the guard.

use super::layer::SECRET;
use crate::log::Lines;
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, Context, Error, Event, Message, OutputSchema, Reply,
    ThreadId, ToolCall, ToolCallDelta, ToolCallStart, ToolContent, ToolOutcome,
};
use concentric_layers::{
    ConversationLayer, DynamicMemoryLayer, GuardLayer, LogLayer, NextTool, Otel,
    ResponseCacheLayer, SuspendLayer, ToolCacheLayer,
    guard::{Parts, Rule, Rules},
    response_cache::CacheScope,
    tool_cache, tool_from_fn,
};
use concentric_store::SqliteStore;
use concentric_test::{ScriptedModel, collect_events};
use concentric_tools::{Approval, Toolset, tool};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tracing::Level;

const REPLACED: &str = "[password]";

/// Checks that a place has a redacted text, and not the secret one.
fn check(place: &str, content: &[u8]) {
    let has = |text: &str| {
        content
            .windows(text.len())
            .any(|part| part.eq_ignore_ascii_case(text.as_bytes()))
    };
    assert!(
        !has(SECRET),
        "{place}: {}",
        String::from_utf8_lossy(content)
    );
    assert!(
        has(REPLACED),
        "{place}: {}",
        String::from_utf8_lossy(content)
    );
}

fn check_folder(place: &str, folder: &Path) {
    let files = std::fs::read_dir(folder).unwrap();
    let bytes = files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap());
    check(place, &bytes.collect::<Vec<u8>>());
}

async fn events(agent: &BoxModel, request: ChatRequest) -> Vec<Event> {
    let context = Context::builder().thread_id(ThreadId::new("t")).build();
    let request = request.with_context(context);
    let response = agent.clone().oneshot(request).await.unwrap();
    let items = collect_events(response.body).await;
    // Memories are stored after the end of the run.
    tokio::task::yield_now().await;
    let events: Vec<Event> = items.into_iter().map(Result::unwrap).collect();
    check("events", format!("{events:?}").as_bytes());
    events
}

// Case F057.
#[tokio::test]
async fn held_text_of_a_dropped_call_is_not_logged() {
    let (lines, _subscriber) = Lines::of_thread(Level::TRACE);
    let rules = Rules::new([Rule::literals("password", [SECRET])]).unwrap();
    let calls = |arguments| ToolCallDelta::new(0, arguments);
    let start = ToolCallStart::new(0, CallId::new("c"), "look");
    let model = ScriptedModel::new()
        .event(Event::ToolCallStart(Box::new(start)))
        .event(Event::ToolCallDelta(calls("{\"who\": \"hunt")))
        .deltas(["It is ", "hunter"])
        .never();
    let agent = ServiceBuilder::new()
        .layer(LogLayer::verbose().content(10_000))
        .layer(GuardLayer::new(rules).output(Parts::ALL))
        .service(model.clone());
    let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let mut events = Vec::new();
    while let Some(item) = body.next().now_or_never() {
        events.push(item.unwrap().unwrap());
    }
    assert_eq!(events, [Event::TextDelta("It is ".into())]);
    drop(body);
    assert_eq!(model.live(), 0);
    let lines = lines.take_all();
    assert!(lines.contains("dropped"), "{lines}");
    assert!(!lines.contains("hunt") && !lines.contains("who"), "{lines}");
}

#[tokio::test]
async fn nothing_that_a_rule_matches_is_behind_the_guard() {
    let (lines, spans, _subscriber) = Lines::with_spans(Level::TRACE);
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("all.db")).unwrap();
    let rules = Rules::new([Rule::literals("password", [SECRET])]).unwrap();
    let of_log = rules.clone();
    let guard = GuardLayer::new(rules.clone())
        .input(Parts::ALL)
        .output(Parts::ALL);
    let otel = Otel::new().content(10_000);
    let log = || LogLayer::verbose().content(10_000);
    let (responses, results) = (
        ResponseCacheLayer::new(CacheScope::Shared).tool_calls(true),
        ToolCacheLayer::new(tool_cache::CacheScope::Thread).tools(["look", "echo"]),
    );
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let tools = Toolset::new()
        .tool(tool("look", "", |_: Value| async {
            format!("It is {SECRET}.")
        }))
        .tool(tool("echo", "", |all: Value| async { all }))
        .tool(tool("pay", "", |all: Value| async { all }))
        .gate(Approval::for_tools(["pay"]))
        .layer(log())
        .layer(otel.tool())
        .layer(results.clone())
        // The results of tools, before they are cached and stored.
        .layer(tool_from_fn(move |call: ToolCall, mut next: NextTool| {
            let rules = rules.clone();
            if call.name() != "pay" {
                seen.lock().unwrap().push(call.clone());
            }
            async move {
                let mut outcome: ToolOutcome = next.run(call).await?;
                if let ToolContent::Text(text) = &mut outcome.content {
                    *text = rules.apply(text).into();
                }
                Ok::<_, Error>(outcome)
            }
        }));
    let secret = || json!({"who": SECRET, SECRET: [SECRET, 1]});
    let model = ScriptedModel::new()
        .reasoning(SECRET)
        .deltas(["It is hun", "ter2."])
        .tool_call("look", secret())
        .tool_call("echo", secret())
        .then()
        .tool_call("pay", secret())
        .then()
        .reasoning(SECRET)
        .deltas(["hunter", "2 is paid."])
        .then()
        .deltas(["{\"who\": \"hunt", "er2\"}"]);
    let agent = ServiceBuilder::new()
        // Outside the guard, the log gets the input of the user.
        .layer(log().redact(move |text| of_log.apply(text).into_owned()))
        .layer(guard.clone())
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(otel.run())
        .layer(ConversationLayer::new(store.clone()))
        .layer(DynamicMemoryLayer::new(store.clone(), |_| {
            Some("ada".into())
        }))
        .layer(AgentLayer::new(tools))
        .layer(responses.clone())
        .layer(otel.model())
        .layer(log())
        .layer(guard)
        .service(model.clone());
    let agent = BoxModel::new(agent);

    let waiting = events(&agent, ChatRequest::user(format!("I am {SECRET}."))).await;
    let Some(Event::Finish(finish)) = waiting.last() else {
        panic!("{waiting:?}");
    };
    check_folder("the store of a suspended run", folder.path());
    let reply = Reply::approve(finish.interrupts()[0].id.clone());
    let mut request = ChatRequest::replying(vec![reply]);
    let resume = request.resume.take().unwrap();
    request.set_resume(resume.with_messages(vec![Message::user(format!("Pay {SECRET}!"))]));
    events(&agent, request).await;
    let mut request = ChatRequest::user(format!("Again, {SECRET}?"));
    request.options_mut().output_schema = Some(OutputSchema::new("who", json!({"type": "object"})));
    events(&agent, request).await;

    check_folder("the stores", folder.path());
    check("the log", lines.take_all().as_bytes());
    let spans = spans.finished();
    assert!(spans.len() >= 9, "{}", spans.len());
    check("spans", format!("{spans:?}").as_bytes());
    let requests = model.requests();
    assert_eq!(requests.len(), 4);
    // The caches have the answers and the results, since nothing inside of them is called.
    for request in requests {
        check("a request", format!("{request:?}").as_bytes());
        let cached = responses.layer(ScriptedModel::new());
        // Within the call of the layer, it would not be cached.
        let request = request.with_context(Context::new());
        let response = cached.oneshot(request).await.unwrap();
        check(
            "a cached response",
            format!("{:?}", collect_events(response.body).await).as_bytes(),
        );
    }
    let calls = calls.lock().unwrap().clone();
    let names: Vec<_> = calls.iter().map(|call| call.name().as_str()).collect();
    assert_eq!(names, ["look", "echo"]);
    for call in calls {
        let cached = results.layer(service_fn(
            async |call: ToolCall| -> Result<ToolOutcome, Error> {
                panic!("{} is called", call.name())
            },
        ));
        let outcome = cached.oneshot(call).await.unwrap();
        check("a cached result", format!("{outcome:?}").as_bytes());
    }
}
