//! The agent of the application: its tools, its two models, and the built-in layers around them.

use crate::{tools::tools, upstream::Upstream};
use concentric::interrupt::ReplyKind::{Approve, Deny, Edit};
use concentric::layers::budget::{BudgetPlugin, Limits};
use concentric::layers::guard::{Parts, Rules, pii};
use concentric::layers::{rate_limit::Quota, tool_cache::CacheScope, *};
use concentric::providers::{AnthropicLayer, ApiKey, OpenAiLayer};
use concentric::store::{SqliteStore, Tenant};
use concentric::{AgentLayer, BoxModel, ChatRequest, tools::Approval};
use std::{path::Path, sync::Arc, time::Duration};
use tower::{BoxError, Layer, ServiceBuilder, retry::RetryLayer, timeout::TimeoutLayer};

pub fn agent(db: &Path, http: Upstream) -> Result<BoxModel, BoxError> {
    let store = SqliteStore::open(db)?;
    let (log, otel) = (LogLayer::standard(), Otel::new());
    let budget = BudgetPlugin::new(Limits::new().model_calls(20).output_tokens(100_000));
    let tools = tools(db, http.clone())?
        .gate(Approval::for_tools("refund").replies([Approve, Deny, Edit]))
        .ledger(store.clone())
        .hooks(otel.tool())
        .hooks(log.clone())
        .layer(ToolCacheLayer::new(CacheScope::Tenant).tools(["stock"]));
    let quota = Quota::per(Duration::from_secs(60))
        .requests(500)
        .output_tokens(200_000);
    let tenant = |request: &ChatRequest| Tenant::of(&request.context).0;
    let model = |name: &str, provider: BoxModel| {
        ServiceBuilder::new()
            .layer(RetryLayer::new(RetryModel::new(3)))
            .layer(CircuitBreakerLayer::new(name).consecutive(6))
            .layer(otel.model())
            .layer(RateLimitLayer::new(quota).by(tenant))
            .layer(InFlightLimitLayer::new(100))
            .layer(budget.model())
            .layer(TimeoutLayer::new(Duration::from_secs(30)))
            .service(provider)
    };
    let openai = OpenAiLayer::new("gpt-5.5", ApiKey::new("k")).layer(http.clone());
    let anthropic = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("k")).layer(http);
    let anthropic = BoxModel::new(model("anthropic", BoxModel::new(anthropic)));
    let rules = Rules::new([pii::card(), pii::email(), pii::iban()])?;
    let guard = GuardLayer::new(rules).input(Parts::USER | Parts::RESULTS);
    let summarizer = BoxModel::new(guard.layer(anthropic.clone()));
    let agent = ServiceBuilder::new()
        .layer(log)
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(otel.run())
        .layer(ConversationLayer::new(store))
        .layer(budget.run())
        .layer(RequestDefaultsLayer::new().system("You work for a shop."))
        .layer(AgentLayer::new(tools))
        .layer(CompactionLayer::new(summarizer, 200_000))
        .layer(TrimLayer::turns(500))
        .layer(guard)
        .layer(ResponseCacheLayer::new(CacheScope::Tenant))
        .layer(FallbackLayer::new("openai").or("anthropic", anthropic))
        .service(model("openai", BoxModel::new(openai)));
    Ok(BoxModel::new(agent))
}
