//! A stack of all layers of `concentric_layers::order` in their order, without a box between them.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, ChatResponse, Context, Error, Event, FinishReason,
    ThreadId, Usage, store::Tenant,
};
use concentric_layers::{
    BudgetPlugin, CircuitBreakerLayer, ClearToolResultsLayer, CommitLayer, CompactionLayer,
    ConversationLayer, DetachLayer, DynamicMemoryLayer, Emit, FallbackLayer, GuardLayer,
    GuardrailLayer, InFlightLimitLayer, LogLayer, Otel, RateLimitLayer, RequestDefaultsLayer,
    ResponseCacheLayer, RetryModel, StaticMemoryLayer, Steering, SuspendLayer, ToolCacheLayer,
    Transform, TransformLayer, TrimLayer,
    budget::Limits,
    guard::{Parts, Rules, pii},
    guardrail::{Assessment, Input, Output, Subject},
    rate_limit::Quota,
    response_cache::CacheScope,
    stop::{ErrorLimit, Judgement, LoopDetector, OutputConstraint},
    tool_cache,
};
use concentric_store::MemoryStore;
use concentric_tools::{Approval, NoArguments, RetryTool, Toolset, output, tool};
use std::{sync::Arc, time::Duration};
use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn, timeout::TimeoutLayer};

struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let model = service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(futures_util::stream::iter([
            Ok(Event::text("\"hi\"")),
            Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        ])))
    });
    let store = MemoryStore::new();
    let log = LogLayer::standard();
    let budget = BudgetPlugin::new(Limits::new().model_calls(5));
    let owner = |context: &Context| Some(Tenant::of(context).0);
    let classifier = service_fn(async |_: Subject| Ok::<_, BoxError>(Assessment::Pass));
    let guardrail = GuardrailLayer::new("topic", classifier);
    let guard = GuardLayer::new(Rules::new([pii::email()])?);
    let otel = Otel::new();
    let tools = Toolset::new()
        .tool(tool("time", "The time.", async |NoArguments {}| "noon").read_only())
        .gate(Approval::for_tools("time"))
        .hooks(otel.tool())
        .hooks(log.clone())
        .layer(ToolCacheLayer::new(tool_cache::CacheScope::Run))
        .layer(RetryLayer::new(RetryTool::new(2)))
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(budget.tool());
    let greeting = output::<String>("greeting");
    let accepts = async |_, _| Ok(Judgement::Accept);
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log.clone())
        .layer(guard.clone().input(Parts::USER).output(Parts::NONE))
        .layer(guardrail.clone().input(Input::Parallel))
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(otel.run())
        .layer(ConversationLayer::new(store.clone()))
        .layer(budget.run())
        .layer(RequestDefaultsLayer::new().system("Be brief."))
        .layer(StaticMemoryLayer::new())
        .layer(DynamicMemoryLayer::new(store, owner))
        .layer(
            AgentLayer::new(tools)
                .gate(Steering::new(4).gate())
                .gate(LoopDetector::new(3))
                .gate(ErrorLimit::new().consecutive(3))
                .gate(greeting.gate())
                .gate(OutputConstraint::new("polite", accepts)),
        )
        .layer(greeting)
        .layer(CompactionLayer::new(BoxModel::new(model), 200_000))
        .layer(ClearToolResultsLayer::new())
        .layer(TrimLayer::turns(1_000))
        .layer(TransformLayer::new(|_: &ChatRequest| Same))
        .layer(guard.output(Parts::TEXT))
        .layer(guardrail.output(Output::Whole))
        .layer(ResponseCacheLayer::new(CacheScope::Thread))
        .layer(FallbackLayer::new("model"))
        .layer(RetryLayer::new(RetryModel::new(3)))
        .layer(CircuitBreakerLayer::new("model"))
        .layer(CommitLayer::first_event())
        .layer(otel.model())
        .layer(log)
        .layer(RateLimitLayer::new(
            Quota::per(Duration::from_secs(1)).requests(9),
        ))
        .layer(InFlightLimitLayer::new(9))
        .layer(budget.model())
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .service(model);
    let agent = BoxModel::new(agent);
    println!("{}", agent.describe());
    let mut request = ChatRequest::user("hi");
    request.context = Context::builder()
        .thread_id(ThreadId::new("thread"))
        .build();
    println!("{}", agent.oneshot(request).await?.text().await?);
    Ok(())
}
