use super::{
    decoder::Decoder,
    model::Model as Named,
    request::{Conversation, NAMES, Wire},
    schema,
    thinking::Plan,
};
use crate::{
    ApiKey, Capabilities, ProviderLayer, Unsupported,
    api::{Api, Call, host, is_at},
    capabilities::{NO_CONTENT, input_schema},
};
use concentric_core::Str;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;

/// Anthropic's Messages API.
#[derive(Clone, Debug)]
pub struct Messages {
    pub(super) provider: Str,
    pub(super) max_tokens: Option<u32>,
    pub(super) cache: PromptCache,
    /// The tools that the service defines.
    pub(super) tools: Vec<Value>,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that turns an HTTP
/// service into a model with Anthropic's Messages API.
///
/// | constructor | service |
/// |---|---|
/// | `AnthropicLayer::new(model, key)` | Anthropic's own service |
/// | `AnthropicLayer::compatible(..)` | another service with the same API, by base URL |
///
/// [`ProviderLayer`] has the settings that all providers share.
pub type AnthropicLayer = ProviderLayer<Messages>;

/// How long the service caches the common prefix of requests (`cache_control`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptCache {
    /// No caching, except where the [`provider`](concentric_core::ChatOptions::provider) options
    /// and parts of a request set `cache_control`.
    Off,
    /// Five minutes since the last use.
    #[default]
    FiveMinutes,
    /// One hour since the last use.
    OneHour,
}

const ANTHROPIC: Str = Str::from_static("anthropic");

impl AnthropicLayer {
    /// Creates a layer for Anthropic's own service. `model` is used unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        Self::at(
            "https://api.anthropic.com",
            api(ANTHROPIC),
            model,
            Some(key),
        )
    }

    /// Creates a layer for a service with the same API as Anthropic's at `base_url`, the URL
    /// without `/v1/messages`.
    ///
    /// The provider name of clouds that serve Anthropic's models is `anthropic`, since they accept
    /// each other's signatures; for any other service, it is the host. An invalid URL fails
    /// `poll_ready` of the model.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let provider = provider_at(&host(&base_url));
        Self::at(base_url, api(provider), model, key)
    }

    /// Enables beta features (`anthropic-beta`), in place of those enabled before.
    ///
    /// ```
    /// # use concentric_providers::{AnthropicLayer, ApiKey};
    /// let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("the key"))
    ///     .betas(["files-api-2025-04-14", "context-management-2025-06-27"]);
    /// ```
    #[must_use]
    pub fn betas<'a>(self, betas: impl IntoIterator<Item = &'a str>) -> Self {
        let betas: Vec<&str> = betas.into_iter().collect();
        let name = Str::from_static("anthropic-beta");
        self.with_header(name, betas.join(",").into(), false)
    }

    /// Sets `max_tokens` for requests without a limit, since the service requires the field.
    ///
    /// The default is 32,000; 8,192 for models whose name contains Claude 3.5 or no version, and
    /// 4,096 for older ones. A reasoning budget of a request is added to the default. Any number is
    /// sent unchanged, including one that the service rejects, such as zero.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.api.max_tokens = Some(max_tokens);
        self
    }

    /// Sets how long the service caches the common prefix of requests; five minutes by default.
    #[must_use]
    pub fn prompt_cache(mut self, cache: PromptCache) -> Self {
        self.api.cache = cache;
        self
    }

    /// Offers a tool that the service defines, in the service's format.
    ///
    /// The service executes most of these tools. For one that it does not execute (`bash`, a text
    /// editor), a tool of the same name in the request executes the calls, and this definition
    /// replaces the one of the request.
    ///
    /// ```
    /// # use concentric_providers::{AnthropicLayer, ApiKey};
    /// use serde_json::json;
    ///
    /// let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("the key"))
    ///     .server_tool(json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3}));
    /// ```
    #[must_use]
    pub fn server_tool(mut self, tool: Value) -> Self {
        self.api.tools.push(tool);
        self
    }
}

const fn api(provider: Str) -> Messages {
    Messages {
        provider,
        max_tokens: None,
        cache: PromptCache::FiveMinutes,
        tools: Vec::new(),
    }
}

fn provider_at(host: &str) -> Str {
    const OWN: [&str; 5] = [
        "anthropic.com",
        "amazonaws.com",
        "api.aws",
        "azure.com",
        "googleapis.com",
    ];
    if OWN.into_iter().any(|name| is_at(host, name)) {
        ANTHROPIC
    } else if is_at(host, "openrouter.ai") {
        Str::from_static("openrouter")
    } else {
        host.into()
    }
}

impl Api for Messages {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.provider
    }

    fn key_header(&self) -> &str {
        "x-api-key"
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        Named::named(model).capabilities()
    }

    fn tools(&self) -> &[Value] {
        &self.tools
    }

    fn path(&self, _: &Call<'_>) -> Cow<'static, str> {
        "/v1/messages".into()
    }

    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a> {
        let mut plan = Plan::of(&call, self.max_tokens);
        unsupported.append(&mut plan.unsupported);
        // Converted once, since it takes about a third of the time of a long request.
        let mut conversation = Conversation::of(call.request, &self.provider);
        self.check(&call, &mut conversation, unsupported);
        Wire::new(call, self, plan, conversation)
    }

    fn decoder(&self, _: &Call<'_>) -> Decoder {
        Decoder::default()
    }
}

impl Messages {
    /// Adds the features that `call`, with its `conversation`, needs and the service does not support.
    fn check(
        &self,
        call: &Call<'_>,
        conversation: &mut Conversation<'_>,
        unsupported: &mut Vec<Unsupported>,
    ) {
        let request = call.request;
        let options = &*request.options;
        let model = Named::named(call.model);
        let replaced = |name: &str| options.provider.contains_key(name);
        if !replaced("messages") {
            // Unsupported content is listed below.
            if conversation.is_empty() && conversation.unsupported.is_empty() {
                unsupported.push(Unsupported::new(NO_CONTENT));
            }
            let may_prefill = model.supports_prefill() || replaced("fallback_credit_token");
            if conversation.is_prefilled() && !may_prefill {
                unsupported.push(Unsupported::new("a prefilled assistant message"));
            }
            unsupported.append(&mut conversation.unsupported);
        }
        if !replaced("tools") {
            for tool in &request.tools {
                if !NAMES.fits(&tool.name) {
                    let what = format!("a tool with the name `{}`", tool.name);
                    unsupported.push(Unsupported::new(what));
                }
                if let Some(what) = schema::refused_input(&tool.input_schema) {
                    unsupported.push(input_schema(tool, what));
                }
            }
        }
        if let Some(output) = &options.output_schema
            && !replaced("output_config")
            && let Err(what) = schema::output(&output.schema)
        {
            unsupported.push(Unsupported::new(format!("an output schema with {what}")));
        }
        if options
            .temperature
            .is_some_and(|t| !(0.0..=1.0).contains(&t))
        {
            unsupported.push(Unsupported::new("a temperature outside of 0 to 1"));
        }
        if options.temperature.is_some()
            && options.top_p.is_some()
            && model.takes_one_of_temperature_and_top_p()
        {
            unsupported.push(Unsupported::new("both a temperature and `top_p`"));
        }
        if options.stop.iter().any(|stop| stop.trim().is_empty()) {
            unsupported.push(Unsupported::new("a blank stop sequence"));
        }
    }
}
