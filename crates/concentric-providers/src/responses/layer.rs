use super::{compat::Compat, decoder::Decoder, request};
use crate::{
    ApiKey, Capabilities, ProviderLayer, Sources, Unsupported,
    api::{Api, Call},
    sound,
};
use concentric_core::Str;
use serde::Serialize;
use std::borrow::Cow;

/// OpenAI's Responses API.
#[derive(Clone, Debug)]
pub struct Responses {
    compat: Compat,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that turns an HTTP
/// service into a model with OpenAI's Responses API.
///
/// | constructor | service |
/// |---|---|
/// | `OpenAiResponsesLayer::new(model, key)` | OpenAI's own service |
/// | `OpenAiResponsesLayer::compatible(..)` | another service with the same API, by base URL |
///
/// [`ProviderLayer`] has the settings that all providers share.
pub type OpenAiResponsesLayer = ProviderLayer<Responses>;

impl OpenAiResponsesLayer {
    /// Creates a layer for OpenAI's own service. `model` is used unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        let api = Responses {
            compat: Compat::openai(),
        };
        Self::at("https://api.openai.com/v1", api, model, Some(key))
    }

    /// Creates a layer for a service with a compatible API at `base_url`, the URL without
    /// `/responses`.
    ///
    /// If the host is known, its settings are used; to configure others, use
    /// [`compat`](Self::compat). An invalid URL fails `poll_ready` of the model.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let compat = Compat::of_url(&base_url);
        Self::at(base_url, Responses { compat }, model, key)
    }

    /// Sets the differences of the service from OpenAI's.
    #[must_use]
    pub fn compat(mut self, compat: Compat) -> Self {
        self.api.compat = compat;
        self
    }
}

impl Api for Responses {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.compat.provider
    }

    fn key_header(&self) -> &str {
        &self.compat.key_header
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            audio: Sources::NONE,
            penalties: false,
            seed: false,
            stop: 0,
            ..Capabilities::all()
        }
    }

    fn path(&self, _: &Call<'_>) -> Cow<'static, str> {
        "/responses".into()
    }

    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a> {
        let compat = &self.compat;
        request::check(&call, compat, unsupported);
        request::Wire { call, compat }
    }

    fn decoder(&self, call: &Call<'_>) -> Decoder {
        Decoder::new(self.compat.hosts_custom_tools, sound::media_type(call))
    }
}
