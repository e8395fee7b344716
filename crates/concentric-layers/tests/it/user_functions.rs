//! Functions of the application that panic: what the caller receives, and that the layer works afterwards.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Error, ErrorKind, Message, Part, Role, Transcript, Turn,
    Usage, service::SharedModel,
};
use concentric_layers::{
    CircuitBreakerLayer, ClearToolResultsLayer, CompactionLayer, FallbackLayer, RateLimitLayer,
    RetryModel, TrimLayer,
    rate_limit::Quota,
    tokens::{Estimator, TokenCounter},
};
use concentric_test::{ScriptedModel, ScriptedTools};
use futures_util::FutureExt;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tower::{
    Layer, ServiceExt,
    retry::{RetryLayer, budget::TpsBudget},
};

/// Whether the functions panic.
#[derive(Clone)]
struct Panics(Arc<AtomicBool>);

impl Panics {
    fn here<T>(&self, otherwise: T) -> T {
        assert!(!self.0.load(Ordering::SeqCst), "a mistake");
        otherwise
    }
}

impl TokenCounter for Panics {
    fn text(&self, text: &str) -> u64 {
        self.here(Estimator::new().text(text))
    }
}

fn with<L>(layer: L, model: &ScriptedModel) -> BoxModel
where
    L: Layer<ScriptedModel, Service: SharedModel>,
{
    BoxModel::new(layer.layer(model.clone()))
}

type Case = (&'static str, fn(Panics, &ScriptedModel) -> BoxModel);

fn retry() -> RetryModel {
    RetryModel::new(2).backoff(Duration::ZERO, Duration::ZERO)
}

fn limit() -> RateLimitLayer {
    RateLimitLayer::new(Quota::per(Duration::from_secs(60)).requests(1_000))
}

fn fallback() -> FallbackLayer {
    FallbackLayer::new("first").sticky(false)
}

fn other() -> ScriptedModel {
    ScriptedModel::new().text("Hi.").repeat()
}

const CASES: [Case; 14] = [
    ("retry_if", |panics, model| {
        let policy = retry().retry_if(move |_| panics.here(None));
        with(RetryLayer::new(policy), model)
    }),
    ("budget_by, the key", |panics, model| {
        let policy = retry().budget_by(move |_| panics.here("key".into()), TpsBudget::default);
        with(RetryLayer::new(policy), model)
    }),
    ("budget_by, the budget", |panics, model| {
        let make = move || panics.here(TpsBudget::default());
        let policy = retry().budget_by(|_| "key".into(), make);
        with(RetryLayer::new(policy), model)
    }),
    ("on", |panics, model| {
        let layer = fallback().or("other", other());
        with(layer.on(move |_| panics.here(None)), model)
    }),
    ("or_with", |panics, model| {
        let layer = fallback().or_with("other", other(), move |_| panics.here(()));
        with(layer, model)
    }),
    ("by, of the rate limit", |panics, model| {
        with(limit().by(move |_| panics.here("key".into())), model)
    }),
    ("quotas", |panics, model| {
        with(limit().quotas(move |_| panics.here(None)), model)
    }),
    ("estimate", |panics, model| {
        with(
            limit().estimate(move |_| panics.here(Usage::new(1, 1))),
            model,
        )
    }),
    ("priority", |panics, model| {
        with(limit().priority(move |_| panics.here(1)), model)
    }),
    ("by, of the circuit breaker", |panics, model| {
        let layer = CircuitBreakerLayer::new("model");
        with(layer.by(move |_| panics.here("key".into())), model)
    }),
    ("counts", |panics, model| {
        let layer = CircuitBreakerLayer::new("model");
        with(layer.counts(move |_| panics.here(None)), model)
    }),
    ("counter of a trim", |panics, model| {
        with(TrimLayer::tokens(1).counter(panics), model)
    }),
    ("counter of the results", |panics, model| {
        with(ClearToolResultsLayer::new().counter(panics), model)
    }),
    ("counter of a compaction", |panics, model| {
        let summarizer = BoxModel::new(other());
        with(
            CompactionLayer::new(summarizer, 1_000).counter(panics),
            model,
        )
    }),
];

/// A model that fails once, then answers.
fn model() -> ScriptedModel {
    let busy = Error::new(ErrorKind::Overloaded, "busy");
    ScriptedModel::new().error(busy).then().text("Hi.").repeat()
}

fn request() -> ChatRequest {
    let message = |role| Turn::message(Message::new(role, vec![Part::text("x".repeat(100))]));
    let turns = [Role::User, Role::Assistant, Role::User].map(|role| message(role).unwrap());
    ChatRequest::new(turns.into_iter().collect::<Transcript>())
}

async fn text(service: &BoxModel) -> Result<String, Error> {
    let response = service.clone().oneshot(request()).await?;
    response.text().await
}

#[tokio::test]
async fn a_panic_unwinds_to_the_caller_and_the_layer_still_works() {
    for (name, layer) in CASES {
        let panics = Panics(Arc::new(AtomicBool::new(true)));
        let service = layer(panics.clone(), &model());
        for _ in 0..2 {
            let caught = AssertUnwindSafe(text(&service)).catch_unwind().await;
            if let Err(panic) = caught {
                assert_eq!(panic.downcast_ref(), Some(&"a mistake"), "{name}");
                panics.0.store(false, Ordering::SeqCst);
                break;
            }
        }
        assert!(!panics.0.load(Ordering::SeqCst), "{name} did not panic");
        // The model may have its error left.
        let _ = text(&service).await;
        assert_eq!(text(&service).await.unwrap(), "Hi.", "{name}");
    }
}

#[tokio::test]
async fn a_panic_fails_the_run_of_a_loop() {
    for (name, layer) in CASES {
        let panics = Panics(Arc::new(AtomicBool::new(true)));
        let tools = AgentLayer::new(ScriptedTools::new());
        let agent = BoxModel::new(tools.layer(layer(panics.clone(), &model())));
        let error = text(&agent).await.unwrap_err();
        assert!(error.message().contains("panicked"), "{name}: {error}");
        panics.0.store(false, Ordering::SeqCst);
        let _ = text(&agent).await;
        assert_eq!(text(&agent).await.unwrap(), "Hi.", "{name}");
    }
}
