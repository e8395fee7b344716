use super::{
    Model,
    config::{Header, Settings},
};
use crate::{ApiKey, Capabilities, Limits, Timeouts, Unsupported, api::Api};
use concentric_core::{ChatRequest, Str};
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that makes a model of an HTTP service, by the API `A`.
///
/// Each provider's layer is one of these: [`OpenAiLayer`](crate::OpenAiLayer) and its neighbours.
#[derive(Clone, Debug)]
pub struct ProviderLayer<A> {
    settings: Settings,
    pub(crate) api: A,
}

impl<A> ProviderLayer<A>
where
    A: Api,
{
    pub(crate) fn at(
        base_url: impl Into<Str>,
        api: A,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        Self {
            settings: Settings {
                base_url: base_url.into(),
                model: model.into(),
                key,
                headers: Vec::new(),
                capabilities: None,
                streaming: true,
                limits: Limits::default(),
                timeouts: None,
            },
            api,
        }
    }

    /// Sets the service's address, which its endpoints' paths follow, and changes nothing else.
    ///
    /// An address that is none, whose port no service can have, or that contains user information, is
    /// an error of the services' `poll_ready`. The values of its query count as secrets (all but
    /// `api-version`) and are not shown in errors; credentials belong in a [`header`](Self::header),
    /// since layers and clients below log the address. One with the scheme `http` sends the key and all messages without TLS: unless it
    /// names this machine (`localhost`, a loopback address), [`layer`](Layer::layer) logs a warning.
    #[must_use]
    pub fn base_url(mut self, base_url: impl Into<Str>) -> Self {
        self.settings.base_url = base_url.into();
        self
    }

    /// Adds a header to every request. It counts as a secret: of four characters or more, it is not
    /// shown in an error either.
    #[must_use]
    pub fn header(self, name: impl Into<Str>, value: impl Into<Str>) -> Self {
        self.with_header(name.into(), value.into(), true)
    }

    pub(crate) fn with_header(mut self, name: Str, value: Str, is_secret: bool) -> Self {
        self.settings.headers.push(Header {
            name,
            value,
            is_secret,
        });
        self
    }

    /// Says what the model can do, where that is not all that its API can. By default, what the API
    /// can of its newest models; a [`Catalogue`](crate::Catalogue) knows more of a single one:
    ///
    /// ```
    /// use concentric_providers::{ApiKey, Catalogue, OpenAiLayer};
    ///
    /// let layer = OpenAiLayer::new("gpt-5.5", ApiKey::new("key"));
    /// let catalogue = Catalogue::builtin();
    /// let model = catalogue.get("openai", "gpt-5.5").ok_or("an unknown model")?;
    /// let capabilities = model.narrow(layer.supports());
    /// let layer = layer.capabilities(capabilities);
    /// assert!(!layer.supports().temperature);
    /// # Ok::<_, &str>(())
    /// ```
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.settings.capabilities = Some(capabilities);
        self
    }

    /// What the model can do: what the layer was told, or else what its API says of the model that is
    /// asked unless a request names another.
    ///
    /// [`support`](crate::support) has it of all services.
    pub fn supports(&self) -> Capabilities {
        let told = self.settings.capabilities;
        told.unwrap_or_else(|| self.api.capabilities(&self.settings.model))
    }

    /// Lists what `request` asks for that the service will not do. A call with any of it fails with
    /// [`ErrorKind::InvalidRequest`](concentric_core::ErrorKind::InvalidRequest) and the code
    /// `unsupported`, before anything is sent.
    pub fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        self.settings.config(&self.api).check(request)
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

    /// Sets how long the service may take, in place of what is known of it.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.settings.timeouts = Some(timeouts);
        self
    }
}

impl<S, A> Layer<S> for ProviderLayer<A>
where
    A: Api,
{
    type Service = Model<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        let config = self.settings.config(&self.api);
        config.warn_without_tls();
        Model::new(inner, Arc::new(config))
    }
}
