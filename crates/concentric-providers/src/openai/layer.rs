use super::{OpenAi, compat::Compat, config::Settings};
use crate::{ApiKey, Limits};
use concentric_core::Str;
use http::Uri;
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that makes a model of an HTTP service, by OpenAI's chat completions.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct OpenAiLayer {
    settings: Settings,
}

impl OpenAiLayer {
    /// Creates a layer for OpenAI's own service. `model` is asked unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        Self::at(
            "https://api.openai.com/v1",
            Compat::openai(),
            model.into(),
            Some(key),
        )
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
        Self::at(base_url, compat, model.into(), key)
    }

    fn at(base_url: impl Into<Str>, compat: Compat, model: Str, key: Option<ApiKey>) -> Self {
        Self {
            settings: Settings {
                base_url: base_url.into(),
                model,
                key,
                headers: Vec::new(),
                compat,
                streaming: true,
                limits: Limits::default(),
            },
        }
    }

    /// Sets the address, without `/chat/completions`, and changes nothing else.
    #[must_use]
    pub fn base_url(mut self, base_url: impl Into<Str>) -> Self {
        self.settings.base_url = base_url.into();
        self
    }

    /// Adds a header to every request. It counts as a secret.
    #[must_use]
    pub fn header(mut self, name: impl Into<Str>, value: impl Into<Str>) -> Self {
        self.settings.headers.push((name.into(), value.into()));
        self
    }

    /// Says where the service differs from OpenAI's.
    #[must_use]
    pub fn compat(mut self, compat: Compat) -> Self {
        self.settings.compat = compat;
        self
    }

    /// Whether to ask for the answer as a stream, which is the default.
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.settings.streaming = streaming;
        self
    }

    /// Sets how much the service may send.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }
}

impl<S> Layer<S> for OpenAiLayer {
    type Service = OpenAi<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OpenAi::new(inner, Arc::new(self.settings.config()))
    }
}
