//! The stacks that read hostile requests.

use crate::endpoint::Endpoint;
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, FinishReason,
    ToolCallPart, Usage, store::Tenant,
};
use concentric_http::{
    ClientPolicy,
    ag_ui::{AgUiLayer, AgUiState, EventLogLayer, Threads},
    console::{Console, Operator},
    openai::OpenAi,
    ui_messages::UiMessagesLayer,
};
use concentric_layers::{
    DetachLayer, FallbackLayer, RateLimitLayer, ResponseCacheLayer, RetryModel,
    budget::{self, BudgetPlugin},
    rate_limit::Quota,
    response_cache::CacheScope,
    suspend::SuspendLayer,
};
use concentric_mcp::McpService;
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use concentric_store::SqliteStore;
use concentric_tools::{
    Approval, ApprovalTokens, LazyTools, Skill, Skills, Toolset, token::TokenKeys, tool,
};
use futures_core::Stream;
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    hint::black_box,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    retry::RetryLayer,
    service_fn,
    util::{BoxCloneSyncService, MapRequestLayer},
};

/// A stack with only the HTTP endpoint.
pub(crate) const EDGE: &str = "edge";

/// The limits of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    /// The defaults of the endpoint.
    Default,
    /// Only the limit on the body, and no policy.
    Raised,
}

/// A boundary between stages. Callgrind writes its counts at each call of this function.
#[inline(never)]
pub(crate) fn hostile_boundary(stage: &str) {
    println!("stage {}", black_box(stage));
}

/// The number of bytes that a run has sent to its model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent(Arc<AtomicUsize>);

impl Sent {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stack behind its endpoint.
pub(crate) type Served = BoxCloneSyncService<
    http::Request<UnsyncBoxBody<Bytes, BoxError>>,
    http::Response<UnsyncBoxBody<Bytes, BoxError>>,
    Infallible,
>;

/// Builds the stack named `name`, behind `endpoint`.
pub(crate) fn build(
    endpoint: Endpoint,
    name: &str,
    limits: Limits,
) -> Result<(Served, Sent), BoxError> {
    let sent = Sent::default();
    let model = model(name, &sent)?;
    let model = match name {
        EDGE => model,
        "chat-gateway" | "responses-gateway-streamed" => gateway(model),
        _ => agent(model)?,
    };
    Ok((behind(endpoint, limits, model)?, sent))
}

/// Puts a model or an agent behind an endpoint.
pub(crate) fn behind(
    endpoint: Endpoint,
    limits: Limits,
    model: BoxModel,
) -> Result<Served, BoxError> {
    Ok(match endpoint {
        Endpoint::AgUi => {
            let layer = AgUiLayer::new().keep_alive(None);
            let layer = match policy(limits) {
                Some(policy) => layer.client_policy(policy),
                None => layer,
            };
            served(layer.layer(model))
        }
        Endpoint::Chat | Endpoint::Responses => {
            let api = OpenAi::new().model("m", model).keep_alive(None);
            served(match policy(limits) {
                Some(policy) => api.client_policy(policy),
                None => api,
            })
        }
        Endpoint::UseChat => {
            let log = EventLogLayer::new();
            let layer = UiMessagesLayer::new().events(&log).keep_alive(None);
            let layer = match policy(limits) {
                Some(policy) => layer.client_policy(policy),
                None => layer,
            };
            let agent = ServiceBuilder::new()
                .layer(DetachLayer::new())
                .layer(log)
                .service(model);
            served(layer.layer(BoxModel::new(agent)))
        }
        Endpoint::Threads => {
            let store = SqliteStore::open_in_memory()?;
            served(Threads::new().threads(store.clone()).runs(store))
        }
        Endpoint::Console | Endpoint::Pages => {
            let operator = Operator::new("o", [Tenant::default()]).content().decide();
            let console = Console::authorize(move |_| std::future::ready(Some(operator.clone())));
            let store = SqliteStore::open_in_memory()?;
            served(console.runs(store).replies(model))
        }
        Endpoint::Mcp => {
            let look = tool("look", "Looks.", |look: Look| async move {
                hostile_boundary("tool");
                if look.waits {
                    std::future::pending().await
                }
                "seen"
            });
            served(McpService::new("s", Toolset::new().tool(look.read_only())))
        }
    })
}

fn served<S, B>(service: S) -> Served
where
    S: Service<
            http::Request<UnsyncBoxBody<Bytes, BoxError>>,
            Response = http::Response<B>,
            Error = Infallible,
        > + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let service = service.map_response(|response: http::Response<B>| response.map(boxed));
    BoxCloneSyncService::new(service)
}

/// An agent with gates, tokens, lazy tools and skills over a store.
fn agent(model: BoxModel) -> Result<BoxModel, BoxError> {
    let tools = Toolset::new()
        .tool(tool("look", "Looks.", |_: Anything| async { "seen" }).read_only())
        .tool(tool("pay", "Pays.", |_: Anything| async { "paid" }))
        .tool(tool("crm_a", "Reads a customer.", |_: Anything| async {
            "a"
        }))
        .tool(tool("crm_b", "Reads an order.", |_: Anything| async {
            "b"
        }))
        .tool(tool("refund", "Pays back.", |_: Anything| async { "ok" }));
    let skills = Skills::new().skill(
        Skill::new(
            "refunds",
            "How to pay orders back.",
            "Look the order up first.",
        )
        .unlocks(["refund"]),
    );
    let store = SqliteStore::open_in_memory()?;
    let keys = TokenKeys::new("k", vec![7; 32])?;
    let tools = tools
        .gate(Approval::for_tools("pay"))
        .gate(Approval::for_tools(skills.active("refunds")))
        .tokens(ApprovalTokens::new(
            keys,
            "https://agent.example",
            store.clone(),
        ));
    let (tools, lazy) = LazyTools::new(["crm_*"]).wrap(tools);
    let (tools, skills) = skills.wrap(tools)?;
    let agent = ServiceBuilder::new()
        .layer(MapRequestLayer::new(entered))
        .layer(SuspendLayer::new(Arc::new(store)))
        .layer(AgentLayer::new(tools))
        .layer(lazy)
        .layer(skills)
        .layer(MapRequestLayer::new(|request| {
            hostile_boundary("provider");
            request
        }))
        .service(model);
    Ok(BoxModel::new(agent))
}

/// A model with the layers that callers of a gateway share.
fn gateway(model: BoxModel) -> BoxModel {
    let budget = BudgetPlugin::new(budget::Limits::new());
    let provider = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryModel::new(2)))
        .layer(budget.model())
        .layer(MapRequestLayer::new(|request| {
            hostile_boundary("provider");
            request
        }))
        .service(model);
    let provider = BoxModel::new(provider);
    let minute = Quota::per(Duration::from_secs(60)).requests(1_000);
    let stack = ServiceBuilder::new()
        .layer(MapRequestLayer::new(entered))
        .layer(RateLimitLayer::new(minute).by(|request| Tenant::of(&request.context).0))
        .layer(ResponseCacheLayer::new(CacheScope::Tenant))
        .layer(FallbackLayer::new("primary").or("secondary", provider.clone()))
        .service(provider);
    BoxModel::new(stack)
}

/// The policy without limits, if they are raised.
fn policy(limits: Limits) -> Option<ClientPolicy> {
    let policy = ClientPolicy::new()
        .max_values(usize::MAX)
        .max_messages(usize::MAX)
        .max_tool_calls(usize::MAX)
        .max_parts(usize::MAX)
        .max_tools(usize::MAX)
        .max_tool_schema(usize::MAX)
        .max_id(usize::MAX)
        .max_client_results(usize::MAX)
        .max_replies(usize::MAX)
        .max_context(usize::MAX)
        .system_messages(true)
        .file_ids(true)
        .media_host("*");
    (limits == Limits::Raised).then_some(policy)
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Anything {}

#[derive(Debug, Deserialize, JsonSchema)]
struct Look {
    /// Whether the tool never returns.
    #[serde(default)]
    waits: bool,
}

/// Reads the state, changes every number in it, and reads it again, as a tool may do.
fn entered(request: ChatRequest) -> ChatRequest {
    hostile_boundary("loop");
    if let Some(state) = request.context.extensions().get::<AgUiState>() {
        // A change that is too large is rejected, and the run continues without it.
        let _ = state.update(increment);
        let _ = state.update(increment);
    }
    request
}

fn increment(value: &mut Value) {
    match value {
        Value::Number(number) => *value = Value::from(number.as_i64().unwrap_or(0) + 1),
        Value::Array(items) => items.iter_mut().for_each(increment),
        Value::Object(fields) => fields.values_mut().for_each(increment),
        _ => {}
    }
}

fn model(name: &str, sent: &Sent) -> Result<BoxModel, BoxError> {
    let key = || ApiKey::new("test-key");
    Ok(match name {
        EDGE => BoxModel::new(service_fn(|_: ChatRequest| async {
            let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
            let events = [Event::text("Done."), finish];
            Ok::<_, Error>(ChatResponse::new(Answer(events.into())))
        })),
        "agent"
        | "chat-agent-streamed"
        | "responses-agent"
        | "use-chat"
        | "console"
        | "pages"
        | "threads"
        | "mcp" => calling(sent.clone()),
        "anthropic" => BoxModel::new(
            AnthropicLayer::new("claude-sonnet-4-5", key()).layer(http(ANTHROPIC, sent)),
        ),
        "chat" | "chat-gateway" => {
            BoxModel::new(OpenAiLayer::new("gpt-5.5", key()).layer(http(CHAT, sent)))
        }
        "gemini" => {
            BoxModel::new(GeminiLayer::new("gemini-2.5-pro", key()).layer(http(GEMINI, sent)))
        }
        "gemini-2.0" => {
            BoxModel::new(GeminiLayer::new("gemini-2.0-flash", key()).layer(http(GEMINI, sent)))
        }
        "ollama" => BoxModel::new(OllamaLayer::new("qwen3").layer(http(OLLAMA, sent))),
        "responses" | "responses-gateway-streamed" => {
            BoxModel::new(OpenAiResponsesLayer::new("gpt-5.5", key()).layer(http(RESPONSES, sent)))
        }
        other => return Err(format!("unknown stack `{other}`").into()),
    })
}

const CHAT: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Done.\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n",
);

const ANTHROPIC: &str = concat!(
    "data: {\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"id\":\"m\",",
    "\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"usage\":{}}}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":0,",
    "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,",
    "\"delta\":{\"type\":\"text_delta\",\"text\":\"Done.\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{}}\n\n",
    "data: {\"type\":\"message_stop\"}\n\n",
);

const GEMINI: &str = concat!(
    "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"Done.\"}]},",
    "\"finishReason\":\"STOP\"}]}\n\n",
);

const OLLAMA: &str = concat!(
    "{\"message\":{\"content\":\"Done.\"},\"done\":false}\n",
    "{\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n",
);

const RESPONSES: &str = concat!(
    "data: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"object\":\"response\",",
    "\"status\":\"in_progress\",\"output\":[]}}\n\n",
    "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":",
    "{\"type\":\"message\",\"id\":\"m\",\"role\":\"assistant\",\"content\":[]}}\n\n",
    "data: {\"type\":\"response.content_part.added\",\"item_id\":\"m\",\"output_index\":0,",
    "\"content_index\":0,\"part\":{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[]}}\n\n",
    "data: {\"type\":\"response.output_text.delta\",\"item_id\":\"m\",\"output_index\":0,",
    "\"content_index\":0,\"delta\":\"Done.\"}\n\n",
    "data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":",
    "{\"type\":\"message\",\"id\":\"m\",\"role\":\"assistant\",\"status\":\"completed\",",
    "\"content\":[{\"type\":\"output_text\",\"text\":\"Done.\",\"annotations\":[]}]}}\n\n",
    "data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"object\":\"response\",",
    "\"status\":\"completed\",\"output\":[{\"type\":\"message\",\"id\":\"m\",",
    "\"role\":\"assistant\",\"status\":\"completed\",\"content\":",
    "[{\"type\":\"output_text\",\"text\":\"Done.\",\"annotations\":[]}]}]}}\n\n",
);

/// The provider's server: reads the request, and returns a short response.
fn http(
    answer: &'static str,
    sent: &Sent,
) -> impl tower::Service<
    http::Request<Full<Bytes>>,
    Response = http::Response<Full<Bytes>>,
    Error = BoxError,
    Future: Send + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    let sent = sent.clone();
    service_fn(move |request: http::Request<Full<Bytes>>| {
        hostile_boundary("http");
        let sent = sent.clone();
        async move {
            sent.add(request.into_body().collect().await?.to_bytes().len());
            let content_type = match answer.starts_with('{') {
                true => "application/x-ndjson",
                false => "text/event-stream",
            };
            hostile_boundary("answer");
            let response = http::Response::builder().header("content-type", content_type);
            let body = Full::new(Bytes::from_static(answer.as_bytes()));
            Ok::<_, BoxError>(response.body(body)?)
        }
    })
}

/// A model that calls one tool of each kind, and then returns text.
fn calling(sent: Sent) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        hostile_boundary("answer");
        sent.add(request.transcript.len());
        let mut events = VecDeque::new();
        let reason = match request.context.step() {
            0 => {
                for (tool, arguments) in [
                    ("look", "{}"),
                    ("crm_a", "{}"),
                    ("refund", "{}"),
                    ("load_skill", r#"{"name":"refunds"}"#),
                    ("find_tools", r#"{"query":"order"}"#),
                ] {
                    let id = CallId::new(format!("call-of-{tool}"));
                    let call = ToolCallPart::new(id, tool, arguments);
                    events.push_back(Event::tool_call(call));
                }
                FinishReason::ToolCalls
            }
            _ => {
                events.push_back(Event::text("Done."));
                FinishReason::Stop
            }
        };
        events.push_back(Event::finish(reason, Usage::new(1, 1)));
        async { Ok::<_, Error>(ChatResponse::new(Answer(events))) }
    }))
}

struct Answer(VecDeque<Event>);

impl Stream for Answer {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// The response to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// The size of the body in bytes.
    pub(crate) bytes: usize,
}

/// A body of requests to all stacks.
pub(crate) fn boxed<B>(body: B) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Sends a body, and reads the response to its end.
pub(crate) async fn send(endpoint: Endpoint, served: &Served, body: Bytes) -> Answered {
    hostile_boundary(endpoint.stage());
    let request = endpoint.request(body).map(boxed);
    let response = match served.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status().as_u16();
    let mut body = std::pin::pin!(response.into_body());
    let mut bytes = 0;
    // A stream that fails ends with an error.
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    hostile_boundary("end");
    Answered { status, bytes }
}
