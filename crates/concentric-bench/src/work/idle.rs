//! W1 with one built-in layer that has nothing to do.
//!
//! A call's own cost is divided by its events, so a run has 4,000 of them.

use super::{
    drive,
    script::{Model, Script},
    stream::expected,
};
use concentric_core::{AgentLayer, BoxError, ModelService, NoTools};
use concentric_layers::{
    CommitLayer, RequestDefaultsLayer,
    budget::{BudgetPlugin, Limits},
    circuit_breaker::CircuitBreakerLayer,
    guard::{GuardLayer, Parts, Rules, pii, secrets},
    guardrail::{Assessment, GuardrailLayer, Subject},
    in_flight::InFlightLimitLayer,
    log::LogLayer,
    memory::DynamicMemoryLayer,
    otel::Otel,
    rate_limit::{Quota, RateLimitLayer},
    response_cache::{CacheScope, ResponseCacheLayer},
    static_memory::StaticMemoryLayer,
};
use concentric_store::MemoryStore;
use std::{sync::LazyLock, time::Duration};
use tower::{Layer, service_fn};

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
    circuit_breaker: CircuitBreakerLayer::new("none");
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

/// The layers of a run and of its model calls, without limits.
pub(crate) fn budget(count: u64) {
    let budget = BudgetPlugin::new(Limits::new());
    let model = budget.model().layer(Model(Script::Text(EVENTS)));
    run(
        budget.run().layer(AgentLayer::new(NoTools).layer(model)),
        count,
    );
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
