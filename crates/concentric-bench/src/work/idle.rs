//! One built-in layer that has nothing to do, around a model or around an agent.
//!
//! Each work has two lengths, so that the cost of an event and that of a call are known apart. What is inside the
//! layer is boxed, also without a layer; what is outside is not, as in a stack of layers. So the row differs from
//! that without a layer by the layer alone, and the loop is compiled once.

use super::{
    drive, noop,
    script::{Model, Script},
    stream::expected,
    tools,
};
use concentric_core::{
    Agent, AgentLayer, BoxError, BoxModel, ChatRequest, Context, Error, Event, ModelService,
    NoTools, ThreadId,
};
use concentric_layers::{
    ClearToolResultsLayer, CommitLayer, CompactionLayer, ConversationLayer, Emit,
    RequestDefaultsLayer, Transform, TransformLayer, TrimLayer,
    budget::{BudgetPlugin, Limits},
    circuit_breaker::CircuitBreakerLayer,
    detach::DetachLayer,
    fallback::FallbackLayer,
    guard::{GuardLayer, Parts, Rules, pii, secrets},
    guardrail::{Assessment, GuardrailLayer, Input, Subject},
    in_flight::InFlightLimitLayer,
    log::LogLayer,
    map_events,
    memory::DynamicMemoryLayer,
    on_end,
    otel::Otel,
    rate_limit::{Quota, RateLimitLayer},
    response_cache::{CacheScope, ResponseCacheLayer},
    session::{MakeSession, SessionTarget},
    static_memory::StaticMemoryLayer,
    suspend::SuspendLayer,
};
use concentric_store::MemoryStore;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};
use tower::{Layer, ServiceExt, layer::util::Identity, service_fn};
use tower_service::Service;

/// The number of events of a run.
pub(crate) const EVENTS: usize = 4_000;

/// Half of them.
pub(crate) const HALF: usize = EVENTS / 2;

fn run<S>(model: S, events: usize, count: u64)
where
    S: ModelService<Error = Error>,
{
    drive::concentric(model, count, expected(events));
}

fn model(events: usize) -> BoxModel {
    BoxModel::new(Model(Script::Text(events)))
}

fn agent(events: usize) -> Agent<BoxModel, NoTools> {
    AgentLayer::new(NoTools).layer(model(events))
}

/// Defines a work for each layer around a model.
macro_rules! inside {
    ($($name:ident: $layer:expr;)*) => {$(
        pub(crate) fn $name<const N: usize>(count: u64) {
            run($layer.layer(model(N)), N, count);
        }
    )*};
}

inside! {
    // Nothing to shorten: the request is below the limit. The usage at the end of the answer, for which the
    // layer looks, is that of the counted request.
    clear_results: ClearToolResultsLayer::new();
    compaction: CompactionLayer::new(BoxModel::new(Model(Script::Text(1))), 200_000);
    trim: TrimLayer::tokens(100_000);
    // The circuit is closed. The end of the answer, for which the layer looks, is a success.
    circuit_breaker: CircuitBreakerLayer::new("none");
    // The first model answers.
    fallback: FallbackLayer::new("first").or("second", model(1));
    // The functions do nothing.
    map: map_events(|_: &mut Event| {});
    end: on_end(|_| {});
    transform: TransformLayer::new(|_: &ChatRequest| Pass);
    // No event is held any more.
    commit: CommitLayer::first_event();
    // There are no defaults.
    defaults: RequestDefaultsLayer::new();
    // The document is added to the request.
    static_memory: document();
    // Guards the messages of the user, and nothing of the answer.
    guard: GuardLayer::new(one_rule()).output(Parts::NONE);
    // Guards parts of the answer that no event has, and so reads the kind of each event.
    busy_guard: GuardLayer::new(one_rule()).output(Parts::REASONING | Parts::ARGUMENTS);
    // No call waits. The permit is returned at the end of the answer, for which the layer looks.
    in_flight: InFlightLimitLayer::new(8);
    // Without a subscriber.
    log: LogLayer::standard();
    otel: Otel::new().model();
    // No call waits, and no tokens are counted. The call is settled at the end of the answer, for which the layer
    // looks.
    rate_limit: RateLimitLayer::new(Quota::per(Duration::from_secs(1)).requests(u64::MAX));
    // Counts the received text, in case no usage is reported.
    busy_rate_limit: RateLimitLayer::new(Quota::per(Duration::from_secs(1)).output_tokens(u64::MAX));
    // Runs without a thread, which are not cached.
    response_cache: ResponseCacheLayer::new(CacheScope::Thread);
}

/// A guard that searches the text of each event for personal data and credentials, and finds none.
pub(crate) fn twelve_rules_guard<const N: usize>(count: u64) {
    run(GuardLayer::new(twelve_rules()).layer(model(N)), N, count);
}

/// The same for a text whose events begin and end within words.
pub(crate) fn twelve_rules_guard_split<const N: usize>(count: u64) {
    run(GuardLayer::new(twelve_rules()).layer(split(N)), N, count);
}

pub(crate) fn none_split<const N: usize>(count: u64) {
    run(split(N), N, count);
}

fn split(events: usize) -> BoxModel {
    BoxModel::new(Model(Script::Split(events)))
}

fn document() -> StaticMemoryLayer {
    let layer = StaticMemoryLayer::new().document("style", "Be brief.");
    layer.expect("the document is short")
}

/// One rule, since the cost of compiling many varies between processes.
fn one_rule() -> Rules {
    Rules::new([pii::email()]).expect("the rule is valid")
}

/// Compiled once, since an application compiles its rules when it starts.
fn twelve_rules() -> Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| {
        let rules = [
            pii::card(),
            pii::iban(),
            pii::email(),
            pii::ip(),
            pii::us_ssn(),
            pii::phone(),
            secrets::pem(),
            secrets::openai(),
            secrets::aws(),
            secrets::github(),
            secrets::jwt(),
            secrets::generic(),
        ];
        Rules::new(rules).expect("the rules are valid")
    });
    RULES.clone()
}

/// The layers of a run and of its model calls, with a limit. No loop is between them, which would be compiled again
/// for what is inside it.
fn budget_of<const N: usize>(limits: Limits, count: u64) {
    let budget = BudgetPlugin::new(limits);
    let model = budget.model().layer(model(N));
    run(budget.run().layer(model), N, count);
}

/// A limit that no event counts for. The call is settled at the end of the answer, for which the layer looks.
pub(crate) fn budget<const N: usize>(count: u64) {
    budget_of::<N>(Limits::new().model_calls(u64::MAX), count);
}

/// A limit for which the text of each event is counted.
pub(crate) fn budget_of_tokens<const N: usize>(count: u64) {
    budget_of::<N>(Limits::new().output_tokens(u64::MAX), count);
}

/// A guardrail that judges the message of the user, and nothing of the answer.
pub(crate) fn guardrail<const N: usize>(count: u64) {
    let layer = GuardrailLayer::new("none", service_fn(pass)).input(Input::Blocking);
    // The layer limits the time of the classifier.
    let runtime = runtime();
    let _entered = runtime.enter();
    run(layer.layer(model(N)), N, count);
}

/// A runtime for layers that make timers.
fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("the runtime must start")
}

/// A layer around the loop, which stores each run as a conversation.
pub(crate) fn busy_conversation<const N: usize>(count: u64) {
    let layer = ConversationLayer::new(MemoryStore::new());
    let agent = layer.layer(agent(N));
    // The layer limits the time of the store.
    let runtime = runtime();
    let _entered = runtime.enter();
    run(agent.map_request(in_threads()), N, count);
}

/// A layer around a nested run, whose conversation is that of the run around it.
pub(crate) fn conversation<const N: usize>(count: u64) {
    let agent = ConversationLayer::new(MemoryStore::new()).layer(agent(N));
    run(agent.map_request(in_run()), N, count);
}

/// Makes each run a nested one.
fn in_run() -> impl FnMut(ChatRequest) -> ChatRequest + Clone {
    let outer = Context::new();
    move |request: ChatRequest| request.with_context(outer.child().build())
}

/// A layer that stores each answer.
pub(crate) fn storing_cache<const N: usize>(count: u64) {
    let cache = ResponseCacheLayer::new(CacheScope::Thread).layer(model(N));
    run(cache.map_request(in_threads()), N, count);
}

/// Gives each request a conversation of its own.
fn in_threads() -> impl FnMut(ChatRequest) -> ChatRequest + Clone {
    let mut runs = 0;
    move |request: ChatRequest| {
        runs += 1;
        let thread = ThreadId::new(format!("thread-{runs}"));
        request.with_context(Context::builder().thread_id(thread).build())
    }
}

/// A session of an agent, without a store. It looks for the end of the turn, which another one may wait for.
pub(crate) fn session<const N: usize>(count: u64) {
    let mut make = MakeSession::new(agent(N));
    let target = SessionTarget::new(ThreadId::new("thread"));
    let session = drive::block_on(make.call(target));
    run(session.expect("the session must start"), N, count);
}

/// Runs whose consumer stays, and which the layer ends before the consumer receives the end.
pub(crate) fn detach<const N: usize>(count: u64) {
    run(DetachLayer::new().layer(agent(N)), N, count);
}

/// Runs that are neither stored nor interrupted, and so are driven by the consumer. After a poll without an event the
/// layer reads whether the run is stored, since a task drives it from then on.
pub(crate) fn suspend<const N: usize>(count: u64) {
    let layer = SuspendLayer::new(Arc::new(MemoryStore::new()));
    run(layer.layer(agent(N)), N, count);
}

/// The identity.
struct Pass;

impl Transform for Pass {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// A layer around the loop that finds no memories. It looks for the end of the run, of which it keeps none.
pub(crate) fn memory<const N: usize>(count: u64) {
    let owner = |_: &Context| Some("owner".into());
    let memory = DynamicMemoryLayer::new(MemoryStore::new(), owner).capture(|_| None);
    let runtime = runtime();
    let _entered = runtime.enter();
    run(memory.layer(agent(N)), N, count);
}

async fn pass(_: Subject) -> Result<Assessment, BoxError> {
    Ok(Assessment::Pass)
}

/// Spans that a subscriber keeps, and that are entered for each event.
pub(crate) fn busy_otel<const N: usize>(count: u64) {
    tracing::subscriber::with_default(tracing_subscriber::registry(), || otel::<N>(count));
}

/// Spans of runs, without a subscriber.
pub(crate) fn otel_around<const N: usize>(count: u64) {
    run(Otel::new().run().layer(agent(N)), N, count);
}

/// A model call with one event, to measure the cost of a call.
fn one_event() -> BoxModel {
    BoxModel::new(Model(Script::Text(1)))
}

fn call<S>(model: S, count: u64)
where
    S: ModelService<Error = Error>,
{
    drive::concentric(model, count, expected(1));
}

pub(crate) fn otel_call(count: u64) {
    call(Otel::new().model().layer(one_event()), count);
}

pub(crate) fn log_call(count: u64) {
    call(LogLayer::standard().layer(one_event()), count);
}

pub(crate) fn no_call(count: u64) {
    call(one_event(), count);
}

/// A run with one event.
fn one_run() -> Agent<BoxModel, NoTools> {
    AgentLayer::new(NoTools).layer(one_event())
}

pub(crate) fn otel_run(count: u64) {
    call(Otel::new().run().layer(one_run()), count);
}

pub(crate) fn no_run(count: u64) {
    call(one_run(), count);
}

/// The number of tool calls of a run.
pub(crate) const TOOL_CALLS: usize = 100;

pub(crate) fn otel_tool(count: u64) {
    let tools = noop::toolset().layer(Otel::new().tool());
    tools::run(tools, 0, count, 1, TOOL_CALLS);
}

/// With a layer that does nothing, since a toolset without layers has no stack of them.
pub(crate) fn no_tool(count: u64) {
    let tools = noop::toolset().layer(Identity::new());
    tools::run(tools, 0, count, 1, TOOL_CALLS);
}

/// A model without a layer.
pub(crate) fn none<const N: usize>(count: u64) {
    run(model(N), N, count);
}

/// An agent without a layer.
pub(crate) fn none_around<const N: usize>(count: u64) {
    run(agent(N), N, count);
}
