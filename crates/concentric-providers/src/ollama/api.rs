use super::{decoder::Decoder, host, message::Messages, request::Wire, schema};
use crate::{
    ApiKey, Capabilities, ProviderLayer, Sources, Unsupported,
    api::{Api, Call},
    capabilities::{self, NO_CONTENT},
    fields::is_empty_list,
    schema::Budget,
};
use concentric_core::Str;
use serde::Serialize;
use std::borrow::Cow;

/// Ollama's native API.
#[derive(Clone, Debug)]
pub struct Ollama {
    pub(super) provider: Str,
    pub(super) endpoint: Endpoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Generate,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that turns an HTTP
/// service into a model with Ollama's native API.
///
/// | constructor | service |
/// |---|---|
/// | `OllamaLayer::new(model)` | the server on the local machine |
/// | `OllamaLayer::with_host(host, model, key)` | a server on another host |
/// | `OllamaLayer::from_env(model)` | the server in `OLLAMA_HOST` |
///
/// [`ProviderLayer`] has the settings that all providers share.
pub type OllamaLayer = ProviderLayer<Ollama>;

impl OllamaLayer {
    /// Creates a layer for the server on the local machine, `http://localhost:11434`, without a
    /// key. `model` is used unless a request names another.
    pub fn new(model: impl Into<Str>) -> Self {
        Self::with_host("", model, None)
    }

    /// Creates a layer for the server at `host`, in any of the formats of `OLLAMA_HOST`: `host`,
    /// `host:port`, `https://host/path`. The default scheme is `http`, and the default port 11434.
    ///
    /// `key` is sent in `authorization`, for `ollama.com` and for proxies in front of a server. An
    /// invalid host fails `poll_ready` of the model.
    pub fn with_host(host: &str, model: impl Into<Str>, key: Option<ApiKey>) -> Self {
        let api = Ollama {
            provider: Str::from_static("ollama"),
            endpoint: Endpoint::Chat,
        };
        Self::at(host::address(host), api, model, key)
    }

    /// Creates a layer for the server in `OLLAMA_HOST`, with the key in `OLLAMA_API_KEY`. If unset,
    /// they default to the server on the local machine and no key.
    pub fn from_env(model: impl Into<Str>) -> Self {
        let host = std::env::var("OLLAMA_HOST").unwrap_or_default();
        Self::with_host(&host, model, ApiKey::from_env("OLLAMA_API_KEY").ok())
    }

    /// Uses `/api/generate` in place of `/api/chat`: a single user message is a prompt that the
    /// model completes, for models without a chat template. Its own fields (`raw`, `suffix`,
    /// `template`) are provider options.
    ///
    /// Tools and other messages are not supported.
    #[must_use]
    pub fn generate(mut self) -> Self {
        self.api.endpoint = Endpoint::Generate;
        self
    }
}

impl Api for Ollama {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.provider
    }

    fn key_header(&self) -> &str {
        "authorization"
    }

    fn accepts(&self, streaming: bool) -> &'static str {
        match streaming {
            true => "application/x-ndjson, application/json",
            false => "application/json",
        }
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            tools: self.endpoint == Endpoint::Chat,
            // The API has no field for either.
            tool_choice: false,
            parallel_tool_calls: false,
            // The schema becomes a grammar that does not allow calls.
            output_schema_with_tools: false,
            images: Sources::BASE64,
            audio: Sources::NONE,
            files: Sources::NONE,
            ..Capabilities::all()
        }
    }

    fn path(&self, _: &Call<'_>) -> Cow<'static, str> {
        match self.endpoint {
            Endpoint::Chat => "/api/chat".into(),
            Endpoint::Generate => "/api/generate".into(),
        }
    }

    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a> {
        self.check(&call, unsupported);
        Wire { call, api: self }
    }

    fn decoder(&self, _: &Call<'_>) -> Decoder {
        Decoder::default()
    }
}

impl Ollama {
    /// Adds the features that `call` needs and the service does not support.
    fn check(&self, call: &Call<'_>, unsupported: &mut Vec<Unsupported>) {
        let options = &*call.request.options;
        capabilities::check_results(call.request, unsupported);
        let mut budget = Budget::new();
        for tool in &call.request.tools {
            if let Err(what) = schema::parameters(&tool.input_schema, &mut budget) {
                unsupported.push(capabilities::input_schema(tool, what));
            }
        }
        if let Some(effort) = &options.reasoning_effort
            && !super::request::EFFORTS.contains(&effort.as_str())
            && !options.provider.contains_key("think")
        {
            unsupported.push(Unsupported::new(format!("the reasoning effort `{effort}`")));
        }
        let is_replaced = match self.endpoint {
            Endpoint::Chat => options.provider.contains_key("messages"),
            Endpoint::Generate => options.provider.contains_key("prompt"),
        };
        if !is_replaced && is_empty_list(&Messages::new(call.request, &self.provider)) {
            unsupported.push(Unsupported::new(NO_CONTENT));
        }
        if self.endpoint == Endpoint::Generate {
            let transcript = &call.request.transcript;
            let is_prompt = transcript
                .iter()
                .all(|turn| turn.as_message().role == concentric_core::Role::User);
            if transcript.len() > 1 || !is_prompt {
                unsupported.push(Unsupported::new("more than one user message"));
            }
        }
    }
}
