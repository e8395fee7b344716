use crate::verify::{Verifier, check_fields};
use arbitrary::Arbitrary;
use bytes::{Bytes, BytesMut};
use concentric_core::{AgentLayer, BoxModel, store::RunStore};
use concentric_http::{ag_ui::AgUiLayer, openai::OpenAi, ui_messages::UiMessagesLayer};
use concentric_layers::suspend::SuspendLayer;
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use concentric_store::MemoryStore;
use concentric_tools::{Approval, ApprovalTokens, Toolset, token::TokenKeys, tool};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::{
    convert::Infallible,
    future::{Future, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

/// A provider whose requests are looked at.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's chat completions.
    Chat,
    /// Gemini's `generateContent`.
    Gemini,
    /// The same for a model that takes fewer keywords in schemas.
    OldGemini,
    /// Ollama's own.
    Ollama,
    /// OpenAI's Responses.
    Responses,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Anthropic,
        Self::Chat,
        Self::Gemini,
        Self::OldGemini,
        Self::Ollama,
        Self::Responses,
    ];

    /// What [the rules](crate::strict::faults) call its API.
    pub const fn api(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Chat => "chat",
            Self::Gemini | Self::OldGemini => "gemini",
            Self::Ollama => "ollama",
            Self::Responses => "responses",
        }
    }

    fn model<S>(self, http: S) -> BoxModel
    where
        S: Service<
                http::Request<Full<Bytes>>,
                Response = http::Response<Full<Bytes>>,
                Error = Infallible,
                Future: Send + 'static,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let key = ApiKey::new("key");
        match self {
            Self::Anthropic => {
                BoxModel::new(AnthropicLayer::new("claude-sonnet-4-5", key).layer(http))
            }
            Self::Chat => BoxModel::new(OpenAiLayer::new("gpt-5.5", key).layer(http)),
            Self::Gemini => BoxModel::new(GeminiLayer::new("gemini-2.5-pro", key).layer(http)),
            Self::OldGemini => BoxModel::new(GeminiLayer::new("gemini-2.0-flash", key).layer(http)),
            Self::Ollama => BoxModel::new(OllamaLayer::new("qwen3").layer(http)),
            Self::Responses => BoxModel::new(OpenAiResponsesLayer::new("gpt-5.5", key).layer(http)),
        }
    }
}

/// An endpoint that clients send requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// AG-UI.
    AgUi,
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// `useChat` of the Vercel AI SDK.
    UiMessages,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct Came {
    /// The status that it was answered with.
    pub status: u16,
    /// The answer's body.
    pub body: Bytes,
    /// The bodies of the requests to the provider.
    pub asked: Vec<Bytes>,
    /// How many tools have run.
    pub ran: usize,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Anything {}

/// Sends a body to an agent behind an endpoint that has a tool, a tool that needs an approval, tokens
/// and a store, and a provider that answers nothing of use.
pub fn served(endpoint: Endpoint, provider: Provider, body: Bytes) -> Came {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let ran = Arc::new(AtomicUsize::new(0));
    let agent = agent(provider, &asked, &ran);
    let request = |path| {
        http::Request::post(path)
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))
            .expect("a request")
    };
    let (status, body) = block_on(async {
        match endpoint {
            Endpoint::AgUi => {
                let service = AgUiLayer::new().keep_alive(None).layer(agent);
                read(service.oneshot(request("/")).await).await
            }
            Endpoint::UiMessages => {
                let service = UiMessagesLayer::new().keep_alive(None).layer(agent);
                read(service.oneshot(request("/")).await).await
            }
            Endpoint::Chat | Endpoint::Responses => {
                let service = OpenAi::new().model("m", agent).keep_alive(None);
                let path = match endpoint {
                    Endpoint::Chat => "/chat/completions",
                    _ => "/responses",
                };
                read(service.oneshot(request(path)).await).await
            }
        }
    });
    let asked = std::mem::take(&mut *asked.lock().expect("no panic"));
    Came {
        status,
        body,
        asked,
        ran: ran.load(Ordering::Relaxed),
    }
}

/// The status, and the body as far as the endpoint writes it.
async fn read<B>(response: Result<http::Response<B>, Infallible>) -> (u16, Bytes)
where
    B: Body<Data = Bytes>,
{
    let Ok(response) = response;
    let status = response.status().as_u16();
    let mut body = std::pin::pin!(response.into_body());
    let mut bytes = BytesMut::new();
    // A stream that fails ends with an error.
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    (status, bytes.freeze())
}

fn agent(provider: Provider, asked: &Arc<Mutex<Vec<Bytes>>>, ran: &Arc<AtomicUsize>) -> BoxModel {
    let http = {
        let asked = Arc::clone(asked);
        service_fn(move |request: http::Request<Full<Bytes>>| {
            let body = block_on(request.into_body().collect());
            let Ok(body) = body.map(|body| body.to_bytes());
            asked.lock().expect("no panic").push(body);
            let mut response = http::Response::new(Full::new(Bytes::from_static(b"{}")));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            ready(Ok::<_, Infallible>(response))
        })
    };
    let work = |name: &'static str| {
        let ran = Arc::clone(ran);
        tool(name, "Does it.", move |_: Anything| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { "done" }
        })
    };
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let keys = TokenKeys::new("k", vec![7; 32]).expect("a key");
    let tools = Toolset::new()
        .tool(work("look").read_only())
        .tool(work("pay"))
        .gate(Approval::for_tools("pay"))
        .tokens(ApprovalTokens::new(keys, "fuzz", MemoryStore::new()));
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(store))
        .layer(AgentLayer::new(tools))
        .service(provider.model(http));
    BoxModel::new(agent)
}

/// The events of a stream, which keep the protocol's order.
///
/// # Panics
///
/// They do not.
pub fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).expect("UTF-8");
    let mut verifier = Verifier::default();
    let mut events = Vec::new();
    for frame in text.split_terminator("\n\n") {
        let json = frame.strip_prefix("data: ").expect("an event");
        let event: Value = serde_json::from_str(json).expect("JSON");
        check_fields(&event).expect("an event of the protocol");
        verifier.verify(&event).expect("a legal order");
        events.push(event);
    }
    verifier.finish().expect("an end");
    events
}

/// The data of the events of a stream, without the last one, `[DONE]`.
///
/// # Panics
///
/// One of them is neither JSON nor that.
pub fn data(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).expect("UTF-8");
    let mut data = Vec::new();
    for frame in text.split_terminator("\n\n") {
        let line = frame.rsplit('\n').next().unwrap_or_default();
        let json = line.strip_prefix("data: ").expect("an event");
        if json != "[DONE]" {
            data.push(serde_json::from_str(json).expect("JSON"));
        }
    }
    data
}

/// The output of a future.
pub fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
    }
    match tokio::runtime::Handle::try_current() {
        // What is in the midst of another one is ready.
        Ok(_) => {
            let mut future = std::pin::pin!(future);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match future.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(output) => output,
                std::task::Poll::Pending => panic!("a body that waits"),
            }
        }
        Err(_) => RUNTIME.with(|runtime| runtime.block_on(future)),
    }
}
