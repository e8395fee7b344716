//! What the layers of the recommended stack say of themselves has no content of messages, without a guard.
//!
//! Content belongs into content events, into the requests of models and tools, and into the stores and caches
//! that keep it by their documentation: those of suspended runs, conversations, memories and cached answers.

use crate::log::{Lines, Spans};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Context, Error, ErrorKind, Event, Message,
    Outcome, Part, Reply, ResponseHead, Role, ThreadId, Turn, Usage, store::Tenant,
};
use concentric_layers::{
    BudgetPlugin, CircuitBreakerLayer, ClearToolResultsLayer, CommitLayer, CompactionLayer,
    ConversationLayer, DetachLayer, DynamicMemoryLayer, Emit, FallbackLayer, GuardrailLayer,
    InFlightLimitLayer, LogLayer, Otel, RateLimitLayer, RequestDefaultsLayer, ResponseCacheLayer,
    RetryModel, StaticMemoryLayer, Steering, SuspendLayer, ToolCacheLayer, Transform,
    TransformLayer, TrimLayer,
    budget::Limits,
    compaction::Trigger,
    guardrail::{Assessment, Input, Output, Subject},
    rate_limit::Quota,
    response_cache::CacheScope,
    stop::{ErrorLimit, Judgement, LoopDetector, OutputConstraint},
    suspend::Sweeper,
    tool_cache,
};
use concentric_store::Options;
use concentric_test::{MemoryStore, ScriptedModel, ScriptedTools, TestEnvironment, collect_events};
use concentric_tools::{Approval, NoArguments, RetryTool, Toolset, tool};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::{error::Error as _, fmt::Debug, sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};
use tower::{
    Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn, timeout::TimeoutLayer,
};
use tracing::Level;

const CANARY: &str = "canary-4711";
const SECOND: Duration = Duration::from_secs(1);

fn canary(text: &str) -> String {
    format!("{text} {CANARY}")
}

#[track_caller]
fn check(place: &str, text: &str) {
    assert!(!text.contains(CANARY), "{place}: {text}");
}

/// A layer whose `Debug` is checked, as is that of its service.
fn checked<L>(layer: L) -> L
where
    L: Layer<BoxModel, Service: Debug> + Debug,
{
    let service = layer.layer(BoxModel::new(ScriptedModel::new()));
    check("a layer", &format!("{layer:?} {service:?}"));
    layer
}

/// An error of a provider that quotes the request, as providers do.
fn quoting(kind: ErrorKind) -> Error {
    Error::new(kind, canary("cannot read"))
}

struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// Flags what it judges.
fn guardrail(name: &'static str) -> GuardrailLayer {
    GuardrailLayer::new(
        name,
        service_fn(async |_: Subject| Ok::<_, BoxError>(Assessment::Flag(vec!["shop".into()]))),
    )
}

/// The recommended stack without a guard, whose thresholds are so low that each layer acts.
fn stack(store: &MemoryStore, model: ScriptedModel, other: ScriptedModel) -> BoxModel {
    let budget = BudgetPlugin::new(Limits::new().model_calls(20));
    let (otel, log) = (Otel::new(), LogLayer::verbose());
    let summaries = ScriptedModel::new().text(canary("They talked:")).repeat();
    let facts = json!({"facts": [canary("It likes")]}).to_string();
    let facts = ScriptedModel::new().text(facts).repeat();
    let owner = |context: &Context| Some(Tenant::of(context).0);
    let tools = Toolset::new()
        .tool(
            tool("look", "", |NoArguments {}| async {
                canary(&"x".repeat(400))
            })
            .read_only(),
        )
        .tool(tool("break", "", |NoArguments {}| async {
            // The text of a tool's error is logged, since the model does not receive it.
            Err::<String, BoxError>("it is closed".into())
        }))
        .tool(tool("pay", "", |NoArguments {}| async { canary("paid") }))
        .gate(Approval::for_tools("pay"))
        .hooks(otel.tool())
        .hooks(log.clone())
        .layer(ToolCacheLayer::new(tool_cache::CacheScope::Run))
        .layer(RetryLayer::new(RetryTool::new(2)))
        .layer(TimeoutLayer::new(SECOND * 5))
        .layer(budget.tool());
    let accepts = async |_, _| Ok(Judgement::Accept);
    let documents = StaticMemoryLayer::new().document("style", &canary("Be brief."));
    let agent = ServiceBuilder::new()
        .layer(checked(DetachLayer::new()))
        .layer(checked(log.clone()))
        .layer(checked(guardrail("topic").input(Input::Parallel)))
        .layer(checked(SuspendLayer::new(Arc::new(store.clone()))))
        .layer(checked(otel.run()))
        .layer(checked(ConversationLayer::new(store.clone())))
        .layer(checked(budget.run()))
        .layer(checked(
            RequestDefaultsLayer::new().system(canary("You work for")),
        ))
        .layer(checked(documents.unwrap()))
        .layer(checked(
            DynamicMemoryLayer::new(store.clone(), owner).facts(facts),
        ))
        .layer(checked(
            AgentLayer::new(tools)
                .gate(Steering::new(4).gate())
                .gate(LoopDetector::new(9))
                .gate(ErrorLimit::new())
                .gate(OutputConstraint::new("polite", accepts)),
        ))
        .layer(checked(
            CompactionLayer::new(BoxModel::new(summaries), 2_000)
                .when(Trigger::turns(6))
                .keep(100),
        ))
        .layer(checked(ClearToolResultsLayer::new().trigger(0).keep(0)))
        .layer(checked(TrimLayer::turns(4)))
        .layer(checked(TransformLayer::new(|_: &ChatRequest| Same)))
        .layer(checked(guardrail("tone").output(Output::windows(10, 5))))
        .layer(checked(ResponseCacheLayer::new(CacheScope::Thread)))
        .layer(checked(
            FallbackLayer::new("model")
                .or("other", budget.model().layer(other))
                .sticky(false),
        ))
        .layer(RetryLayer::new(
            RetryModel::new(2).backoff(Duration::ZERO, Duration::ZERO),
        ))
        .layer(checked(CircuitBreakerLayer::new("model").consecutive(3)))
        .layer(checked(CommitLayer::first_sentence()))
        .layer(checked(otel.model()))
        .layer(checked(log))
        .layer(checked(RateLimitLayer::new(
            Quota::per(SECOND * 60).requests(20),
        )))
        .layer(checked(InFlightLimitLayer::new(9)))
        .layer(checked(budget.model()))
        .layer(TimeoutLayer::new(SECOND * 5))
        .service(model);
    BoxModel::new(agent)
}

fn in_thread(request: ChatRequest) -> ChatRequest {
    let context = Context::builder().thread_id(ThreadId::new("t")).build();
    request.with_context(context)
}

/// Checks the events that are not content.
fn check_events(events: &[Event]) -> Vec<&str> {
    let mut custom = Vec::new();
    for event in events {
        match event {
            // Whoever decides about a call must see its arguments.
            Event::Custom(event) if event.name == "interrupt" => {}
            Event::Custom(event) => {
                check("an event", &format!("{event:?}"));
                custom.push(event.name.as_str());
            }
            Event::StepStart(_)
            | Event::StepFinish(_)
            | Event::PartEnd(_)
            | Event::ToolCallStart(_)
            | Event::State(_)
            | Event::Reset
            | Event::Resumed => check("an event", &format!("{event:?}")),
            _ => {}
        }
    }
    custom
}

/// Checks an error that a layer has made, with its sources.
#[track_caller]
fn check_error(error: &Error) {
    check("an error", &format!("{error:#} {error:?}"));
    let mut source = error.source();
    while let Some(of) = source {
        check("a source", &format!("{of} {of:?}"));
        source = of.source();
    }
}

fn check_observers(lines: &Lines, spans: &Spans) -> (String, usize) {
    let lines = lines.take_all();
    check("the log", &lines);
    let spans = spans.finished();
    check("spans", &format!("{spans:?}"));
    (lines, spans.len())
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

fn named(model: ScriptedModel) -> ScriptedModel {
    model
        .head(ResponseHead::new("test", "m"))
        .usage(Usage::new(10, 5))
}

// Case F055.
#[tokio::test(start_paused = true)]
async fn f055_the_layers_say_nothing_of_what_is_said() {
    let (lines, spans, _guard) = Lines::with_spans(Level::INFO);
    let store = MemoryStore::new();
    let says = |model: ScriptedModel, text: &str| {
        let text = canary(text);
        let (start, end) = text.split_at(text.len() / 2);
        named(model).reasoning(canary("Hm.")).deltas([
            start.to_owned(),
            end.to_owned(),
            ". And so on. And so on.".to_owned(),
        ])
    };
    let model = ScriptedModel::new();
    // Two attempts fail, and another model answers.
    let model = named(model).error(quoting(ErrorKind::Server)).then();
    let model = named(model).error(quoting(ErrorKind::Server)).then();
    let model = says(model, "I look").tool_call("look", json!({})).then();
    let model = says(model, "Again").tool_call("break", json!({})).then();
    let model = says(model, "Now pay").tool_call("pay", json!({"note": CANARY}));
    let model = says(model.then(), "Paid").then();
    // The circuit opens at the third failure, and the other model answers.
    let model = (0..3).fold(model, |model, _| {
        named(model).error(quoting(ErrorKind::Overloaded)).then()
    });
    let other = ScriptedModel::new();
    let other = says(other, "I look").tool_call("look", json!({})).then();
    let other = says(other, "Yes").then();
    let other = says(other, "Yes");
    let agent = stack(&store, model.clone(), other);
    check("describe", &format!("{} {agent:?}", agent.describe()));

    let run = async |request: ChatRequest| {
        let response = agent.clone().oneshot(in_thread(request)).await.unwrap();
        let items = collect_events(response.body).await;
        settle().await;
        items
            .into_iter()
            .map(Result::unwrap)
            .collect::<Vec<Event>>()
    };
    let mut request = ChatRequest::user(canary("Earlier:"));
    for at in 0..8 {
        let text = canary(&"long ".repeat(40 + at));
        let said = Message::new(Role::Assistant, vec![Part::text(text)]);
        request.transcript.push(Turn::message(said).unwrap());
        request.transcript.push_user(canary("And?"));
    }
    let events = run(request).await;
    let mut reported = check_events(&events)
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    let Some(Event::Finish(finish)) = events.last() else {
        panic!("{events:?}");
    };
    let reply = Reply::approve(finish.interrupts()[0].id.clone());
    for request in [
        ChatRequest::replying(vec![reply]),
        ChatRequest::user(canary("More?")),
        ChatRequest::user(canary("And more?")),
    ] {
        let events = run(request).await;
        reported.extend(check_events(&events).into_iter().map(str::to_owned));
    }
    reported.sort();
    reported.dedup();
    for name in [
        "concentric.circuit",
        "concentric.clear_results",
        "concentric.compacted",
        "concentric.fallback",
        "concentric.guardrail",
        "concentric.memory",
        "concentric.retry",
        "concentric.tool_cache",
    ] {
        assert!(reported.iter().any(|it| it == name), "{name}: {reported:?}");
    }
    let (lines, spans) = check_observers(&lines, &spans);
    for target in [
        "concentric::log",
        "concentric::retry",
        "concentric::circuit_breaker",
    ] {
        assert!(lines.contains(target), "{target}: {lines}");
    }
    assert!(spans > 10, "{spans}");
}

#[tokio::test(start_paused = true)]
async fn the_errors_of_layers_do_not_quote() {
    let says = || ScriptedModel::new().text(canary("a long answer")).repeat();
    let blocks = |name: &'static str| {
        let block = async |_: Subject| Ok::<_, BoxError>(Assessment::Block(vec!["shop".into()]));
        GuardrailLayer::new(name, service_fn(block))
    };
    let open = CircuitBreakerLayer::new("model");
    open.open("");
    let quota = || Quota::per(SECOND);
    let budget = BudgetPlugin::new(Limits::new().model_calls(0));
    let too_long = || {
        let error = Error::new(ErrorKind::ContextWindow, "too long");
        ScriptedModel::new().error(error).repeat()
    };
    let agent = |model| AgentLayer::new(Toolset::new()).layer(model);
    let cases = [
        BoxModel::new(blocks("input").input(Input::Blocking).layer(says())),
        BoxModel::new(blocks("whole").output(Output::Whole).layer(says())),
        BoxModel::new(
            guardrail("limit")
                .output(Output::Whole)
                .limit(1)
                .layer(says()),
        ),
        BoxModel::new(RateLimitLayer::new(quota().requests(0)).layer(says())),
        BoxModel::new(RateLimitLayer::new(quota().input_tokens(1)).layer(says())),
        BoxModel::new(open.layer(says())),
        BoxModel::new(budget.run().layer(agent(budget.model().layer(says())))),
        BoxModel::new(CommitLayer::whole().layer(says().end_early())),
        BoxModel::new(CompactionLayer::new(BoxModel::new(too_long()), 10).layer(too_long())),
    ];
    for model in cases {
        let (lines, _guard) = Lines::of_thread(Level::INFO);
        let answer = model
            .oneshot(in_thread(ChatRequest::user(canary("hi"))))
            .await;
        let answer = match answer {
            Ok(answer) => answer.collect().await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match answer {
            Err(error) => check_error(&error),
            Ok(answer) => {
                assert_ne!(answer.finish.outcome, Outcome::Completed);
                check("an outcome", &format!("{:?}", answer.finish.outcome));
            }
        }
        check("the log", &lines.take_all());
    }
}

#[tokio::test]
async fn the_failure_of_a_detached_run_is_logged_without_message() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let model = ScriptedModel::new().text(canary("Well,"));
    let model = model.error(quoting(ErrorKind::Server));
    let detach = DetachLayer::new();
    let agent = detach.layer(AgentLayer::new(Toolset::new()).layer(model));
    drop(
        agent
            .oneshot(ChatRequest::user(canary("hi")))
            .await
            .unwrap(),
    );
    detach.shutdown().await;
    let lines = lines.take_all();
    assert!(lines.contains("a detached run failed"), "{lines}");
    check("the log", &lines);
}

#[test]
fn the_failure_of_a_swept_run_is_logged_without_message() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let process = || -> Runtime { Builder::new_current_thread().build().unwrap() };
    let world = TestEnvironment::new();
    let options = Options::new().clock(world.clock().clone());
    let lease = SECOND * 30;
    let suspend = SuspendLayer::new(Arc::new(MemoryStore::with_options(options))).lease(lease);
    let agent = |tools: ScriptedTools, model: ScriptedModel| {
        BoxModel::new(suspend.layer(AgentLayer::new(tools).layer(model)))
    };

    // The process ends while a tool is executed.
    let first = process();
    let tools = ScriptedTools::new().never("pay");
    let model = ScriptedModel::new().tool_call("pay", json!({"note": CANARY}));
    let context = world.context_builder().thread_id(ThreadId::new("t"));
    let request = ChatRequest::user(canary("Pay.")).with_context(context.build());
    let _body = first.block_on(async {
        let agent = agent(tools.clone(), model);
        let mut body = agent.oneshot(request).await.unwrap().body;
        while tools.live() == 0 {
            let _ = body.next().now_or_never();
            settle().await;
        }
        body
    });
    drop(first);
    world.advance(lease);

    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new().error(quoting(ErrorKind::Server));
    let sweeper = Sweeper::new(&suspend, agent(tools, model.repeat()));
    let sweeper = sweeper.environment(world.environment());
    process().block_on(sweeper.run(settle()));
    let lines = lines.take_all();
    assert!(lines.contains("a resumed run failed"), "{lines}");
    check("the log", &lines);
}
