//! W1 with one built-in layer that has nothing to do.
//!
//! A call's own cost is divided by its events, so a run has 4,000 of them.

use super::{
    drive,
    script::{Model, Script},
    stream::expected,
};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Context, Event, ModelService, NoTools, ThreadId,
};
use concentric_layers::{
    ClearToolResultsLayer, CommitLayer, CompactionLayer, ConversationLayer, Emit,
    RequestDefaultsLayer, Transform, TransformLayer, TrimLayer,
    budget::{BudgetPlugin, Limits},
    circuit_breaker::CircuitBreakerLayer,
    detach::DetachLayer,
    fallback::FallbackLayer,
    guard::{GuardLayer, Parts, Rules, pii, secrets},
    guardrail::{Assessment, GuardrailLayer, Subject},
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
use tower::{Layer, ServiceExt, service_fn};
use tower_service::Service;

/// The number of events of a run.
pub(crate) const EVENTS: usize = 4_000;

fn run<S>(agent: S, count: u64)
where
    S: ModelService<Error = concentric_core::Error>,
{
    drive::concentric(agent, count, expected(EVENTS));
}

/// Defines a work for each layer, at its place inside the loop.
macro_rules! inside {
    ($($name:ident: $layer:expr;)*) => {$(
        pub(crate) fn $name(count: u64) {
            let model = $layer.layer(Model(Script::Text(EVENTS)));
            run(AgentLayer::new(NoTools).layer(model), count);
        }
    )*};
}

inside! {
    clear_results: ClearToolResultsLayer::new();
    compaction: CompactionLayer::new(BoxModel::new(Model(Script::Text(1))), 200_000);
    circuit_breaker: CircuitBreakerLayer::new("none");
    fallback: FallbackLayer::new("first").or("second", Model(Script::Text(EVENTS)));
    map: map_events(|_: &mut Event| {});
    end: on_end(|_| {});
    transform: TransformLayer::new(|_: &ChatRequest| Pass);
    commit: CommitLayer::first_event();
    defaults: RequestDefaultsLayer::new();
    guard: guard_of_twelve().input(Parts::NONE).output(Parts::NONE);
    guardrail: GuardrailLayer::new("none", service_fn(pass));
    in_flight: InFlightLimitLayer::new(8);
    log: LogLayer::standard();
    otel: Otel::new().model();
    rate_limit: RateLimitLayer::new(Quota::per(Duration::from_secs(1)).requests(u64::MAX));
    // Counts the received text, in case no usage is reported.
    busy_rate_limit: RateLimitLayer::new(Quota::per(Duration::from_secs(1)).output_tokens(u64::MAX));
    // Runs without a thread, which are not cached.
    response_cache: ResponseCacheLayer::new(CacheScope::Thread);
    static_memory: StaticMemoryLayer::new();
    trim: TrimLayer::tokens(100_000);
}

/// A guard that searches the text of each event for personal data and credentials, and finds none.
pub(crate) fn twelve_rules_guard(count: u64) {
    let model = guard_of_twelve().layer(Model(Script::Text(EVENTS)));
    run(AgentLayer::new(NoTools).layer(model), count);
}

fn guard_of_twelve() -> GuardLayer {
    GuardLayer::new(twelve_rules())
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

/// The layers of a run and of its model calls, with a limit.
fn budget_of(limits: Limits, count: u64) {
    let budget = BudgetPlugin::new(limits);
    let model = budget.model().layer(Model(Script::Text(EVENTS)));
    run(
        budget.run().layer(AgentLayer::new(NoTools).layer(model)),
        count,
    );
}

/// A limit that no event counts for.
pub(crate) fn budget(count: u64) {
    budget_of(Limits::new().model_calls(u64::MAX), count);
}

/// A limit for which the text of each event is counted.
pub(crate) fn budget_of_tokens(count: u64) {
    budget_of(Limits::new().output_tokens(u64::MAX), count);
}

/// A layer around the loop, in a conversation for each run.
pub(crate) fn conversation(count: u64) {
    let layer = ConversationLayer::new(MemoryStore::new());
    let agent = layer.layer(AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS))));
    // The layer limits the time of the store.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("the runtime must start");
    let _entered = runtime.enter();
    let mut runs = 0;
    let in_thread = move |request: ChatRequest| {
        runs += 1;
        let thread = ThreadId::new(format!("thread-{runs}"));
        request.with_context(Context::builder().thread_id(thread).build())
    };
    run(agent.map_request(in_thread), count);
}

/// A session of an agent, without a store.
pub(crate) fn session(count: u64) {
    let mut make = MakeSession::new(AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS))));
    let target = SessionTarget::new(ThreadId::new("thread"));
    let session = drive::block_on(make.call(target));
    run(session.expect("the session must start"), count);
}

/// Runs whose consumer stays. The layer boxes them, so that it can move them to a task.
pub(crate) fn detach(count: u64) {
    let agent = AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS)));
    run(DetachLayer::new().layer(agent), count);
}

/// Runs that are not interrupted. The layer boxes them, so that it can move them to a task.
pub(crate) fn suspend(count: u64) {
    let agent = AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS)));
    let layer = SuspendLayer::new(Arc::new(MemoryStore::new()));
    run(layer.layer(agent), count);
}

/// The identity.
struct Pass;

impl Transform for Pass {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// A layer around the loop, in a run that has no owner.
pub(crate) fn memory(count: u64) {
    let memory = DynamicMemoryLayer::new(MemoryStore::new(), |_| None);
    run(
        memory.layer(AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS)))),
        count,
    );
}

async fn pass(_: Subject) -> Result<Assessment, BoxError> {
    Ok(Assessment::Pass)
}

/// Runs with one event, to measure the cost of a call.
pub(crate) fn otel_call(count: u64) {
    let model = Otel::new().model().layer(Model(Script::Text(1)));
    drive::concentric(AgentLayer::new(NoTools).layer(model), count, expected(1));
}

pub(crate) fn no_call(count: u64) {
    let agent = AgentLayer::new(NoTools).layer(Model(Script::Text(1)));
    drive::concentric(agent, count, expected(1));
}

/// An agent without a layer.
pub(crate) fn none(count: u64) {
    run(
        AgentLayer::new(NoTools).layer(Model(Script::Text(EVENTS))),
        count,
    );
}
