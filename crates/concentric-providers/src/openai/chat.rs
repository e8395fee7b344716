use super::{compat::Compat, decoder::Decoder, request::Wire};
use crate::{
    ApiKey, Capabilities, Model, ProviderLayer, Timeouts,
    api::{Api, Base, Call},
};
use concentric_core::{Error, Str};
use http::Uri;

/// OpenAI's chat completions.
#[derive(Clone, Debug)]
pub struct Chat {
    compat: Compat,
}

/// [`Layer`](tower_layer::Layer) that makes a model of an HTTP service, by OpenAI's chat
/// completions.
///
/// See the [module docs](super) for an example.
pub type OpenAiLayer = ProviderLayer<Chat>;

/// A model, by OpenAI's chat completions over the HTTP service `S`.
pub type OpenAi<S> = Model<S, Chat>;

impl OpenAiLayer {
    /// Creates a layer for OpenAI's own service. `model` is asked unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        let api = Chat {
            compat: Compat::openai(),
        };
        Self::at("https://api.openai.com/v1", api, model, Some(key))
    }

    /// Creates a layer for a service that speaks as OpenAI's does, at `base_url`: the address
    /// without `/chat/completions`.
    ///
    /// What is known of the service at that host goes for it; for what is not, see
    /// [`compat`](Self::compat). An address that is none is an error of the services' `poll_ready`.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let uri: Option<Uri> = base_url.parse().ok();
        let compat = Compat::of_host(uri.as_ref().and_then(Uri::host).unwrap_or_default());
        Self::at(base_url, Chat { compat }, model, key)
    }

    /// Says where the service differs from OpenAI's.
    #[must_use]
    pub fn compat(mut self, compat: Compat) -> Self {
        self.api.compat = compat;
        self
    }
}

impl Api for Chat {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.compat.provider
    }

    fn key_header(&self) -> (&str, &str) {
        let name = &*self.compat.key_header;
        let prefix = match name {
            "authorization" => "Bearer ",
            _ => "",
        };
        (name, prefix)
    }

    fn timeouts(&self) -> Timeouts {
        self.compat.timeouts
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities::all()
    }

    fn endpoint(&self, base: &Base, _: &Call<'_>) -> Result<Uri, Error> {
        base.join("/chat/completions")
    }

    fn encode(&self, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        call.write(&Wire {
            call: *call,
            compat: &self.compat,
        })
    }

    fn decoder(&self, _: &Call<'_>) -> Decoder {
        Decoder::default()
    }
}
