use super::{
    decoder::Decoder,
    model::Model as Named,
    request::{Conversation, NAMES, Wire},
    schema,
    thinking::Plan,
};
use crate::{
    ApiKey, Capabilities, Model, ProviderLayer, Unsupported,
    api::{Api, Base, Call},
    capabilities::NOTHING_SAID,
};
use concentric_core::{Error, Str};
use http::Uri;
use serde_json::Value;

/// Anthropic's Messages API.
#[derive(Clone, Debug)]
pub struct Messages {
    pub(super) provider: Str,
    pub(super) max_tokens: Option<u32>,
    pub(super) cache: PromptCache,
    /// The service's own tools.
    pub(super) tools: Vec<Value>,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that makes a model of an HTTP service, by Anthropic's Messages API.
///
/// | made by | for |
/// |---|---|
/// | `AnthropicLayer::new(model, key)` | Anthropic's own service |
/// | `AnthropicLayer::compatible(..)` | another server that speaks as it does, by its address |
///
/// The settings that all providers share (`base_url`, `header`, `timeouts`, `limits`,
/// `capabilities`, `streaming`) are methods of [`ProviderLayer`]; see the [module docs](super) for an
/// example.
pub type AnthropicLayer = ProviderLayer<Messages>;

/// A model, by Anthropic's Messages API over the HTTP service `S`.
pub type Anthropic<S> = Model<S, Messages>;

/// How long the service is to cache what requests have in common (`cache_control`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptCache {
    /// Not at all, but for what a request's own
    /// [`provider`](concentric_core::ChatOptions::provider) options and parts say.
    Off,
    /// For five minutes since it was last used.
    #[default]
    FiveMinutes,
    /// For an hour since it was last used.
    OneHour,
}

const ANTHROPIC: Str = Str::from_static("anthropic");

impl AnthropicLayer {
    /// Creates a layer for Anthropic's own service. `model` is asked unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        Self::at(
            "https://api.anthropic.com",
            api(ANTHROPIC),
            model,
            Some(key),
        )
    }

    /// Creates a layer for a service that speaks as Anthropic's does, at `base_url`: the address
    /// without `/v1/messages`.
    ///
    /// The clouds that serve Anthropic's models count as `anthropic`, since what one of them has
    /// signed the others take; any other service is named as its host. An address that is none is an
    /// error of the services' `poll_ready`.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let uri: Option<Uri> = base_url.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let provider = provider_at(host);
        Self::at(base_url, api(provider), model, key)
    }

    /// Names features that are in beta (`anthropic-beta`), in place of those named before.
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

    /// Sets how many tokens a model may write if a request does not say, which the service always
    /// wants to be told.
    ///
    /// By default 32,000; 8,192 of models whose name says Claude 3.5, or no version at all, and
    /// 4,096 of older ones. What a request's own budget for reasoning needs comes on top. Any number is
    /// sent as it is, also one that the service refuses, such as zero.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.api.max_tokens = Some(max_tokens);
        self
    }

    /// Sets how long the service caches what requests have in common; five minutes by default.
    #[must_use]
    pub fn prompt_cache(mut self, cache: PromptCache) -> Self {
        self.api.cache = cache;
        self
    }

    /// Offers a tool that the service defines, in its own words.
    ///
    /// Most of them the service executes too. Of one that it does not (`bash`, a text editor), a
    /// request's tool of that name executes the calls, and is offered as this says.
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
    let is = |name: &str| {
        let rest = host.strip_suffix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if OWN.into_iter().any(is) {
        ANTHROPIC
    } else if is("openrouter.ai") {
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

    fn key_header(&self) -> (&str, &str) {
        ("x-api-key", "")
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

    fn check(&self, call: &Call<'_>, unsupported: &mut Vec<Unsupported>) {
        let request = call.request;
        let options = &*request.options;
        let model = Named::named(call.model);
        let replaced = |name: &str| options.provider.contains_key(name);
        unsupported.extend(Plan::of(call, self.max_tokens).unsupported);
        if !replaced("messages") {
            let conversation = Conversation::of(request, &self.provider);
            // What is not taken of it is said below.
            if conversation.is_empty() && conversation.unsupported.is_empty() {
                unsupported.push(Unsupported::new(NOTHING_SAID));
            }
            let may_go_on = model.goes_on_with_prefill() || replaced("fallback_credit_token");
            if conversation.is_prefilled() && !may_go_on {
                unsupported.push(Unsupported::new("to go on with an assistant's message"));
            }
            unsupported.extend(conversation.unsupported);
        }
        if !replaced("tools") {
            for tool in &request.tools {
                if !NAMES.fits(&tool.name) {
                    let what = format!("a tool with the name `{}`", tool.name);
                    unsupported.push(Unsupported::new(what));
                }
                if let Some(what) = schema::refused_input(&tool.input_schema) {
                    let what = format!("a schema of a tool's arguments (`{}`): {what}", tool.name);
                    unsupported.push(Unsupported::new(what));
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
            unsupported.push(Unsupported::new("a stop sequence of white space"));
        }
    }

    fn endpoint(&self, base: &Base, _: &Call<'_>) -> Result<Uri, Error> {
        base.join("/v1/messages")
    }

    fn encode(&self, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        call.write(&Wire {
            call: *call,
            api: self,
        })
    }

    fn decoder(&self, _: &Call<'_>) -> Decoder {
        Decoder::default()
    }
}
