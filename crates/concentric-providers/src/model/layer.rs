use super::{
    Model,
    config::{Config, Header, Settings},
};
use crate::{ApiKey, Capabilities, Limits, Timeouts, Unsupported, api::Api};
use concentric_core::{ChatRequest, Str};
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that turns an HTTP service into a model with the API `A`.
///
/// Every provider layer is an alias of this type, such as [`OpenAiLayer`](crate::OpenAiLayer).
#[derive(Clone, Debug)]
pub struct ProviderLayer<A> {
    settings: Settings,
    pub(crate) api: A,
}

impl<A: Api> ProviderLayer<A> {
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

    pub(crate) fn config(&self) -> Config<A> {
        let config = self.settings.config(&self.api);
        config.warn_without_tls();
        config
    }

    /// Sets the base URL of the service, to which the paths of its endpoints are appended.
    ///
    /// A URL that is invalid, has an invalid port or contains user information fails `poll_ready`
    /// of the model. The values of its query are treated as secrets (all except `api-version`) and
    /// are not shown in errors. Pass credentials in a [`header`](Self::header) instead, since
    /// layers and clients below log the URL. With the scheme `http`, the key and all messages are
    /// sent without TLS: [`layer`](Layer::layer) logs a warning unless the host is the local
    /// machine (`localhost` or a loopback address).
    #[must_use]
    pub fn base_url(mut self, base_url: impl Into<Str>) -> Self {
        self.settings.base_url = base_url.into();
        self
    }

    /// Adds a header to every request. Its value is treated as a secret: if it has at least four
    /// characters, it is not shown in errors.
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

    /// Sets the capabilities of the model. By default, they are those that the API documents for
    /// the model. A [`Catalogue`](crate::Catalogue) has more information about individual models:
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

    /// The capabilities of the model: the configured ones, or those that the API documents for the
    /// layer's model. A request may name another model.
    ///
    /// [`support`](crate::support) lists the capabilities of all services.
    pub fn supports(&self) -> Capabilities {
        let configured = self.settings.capabilities;
        configured.unwrap_or_else(|| self.api.capabilities(&self.settings.model))
    }

    /// Lists the features that `request` uses and the service does not support. A call with any of
    /// them fails with [`ErrorKind::InvalidRequest`](concentric_core::ErrorKind::InvalidRequest)
    /// and the code `unsupported`, before anything is sent.
    pub fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        self.settings.config(&self.api).check(request)
    }

    /// Sets whether to request a stream; enabled by default.
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.settings.streaming = streaming;
        self
    }

    /// Sets the limits on the size of responses.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Sets the timeouts, in place of the defaults of the API.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.settings.timeouts = Some(timeouts);
        self
    }
}

impl<S, A: Api> Layer<S> for ProviderLayer<A> {
    type Service = Model<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Model::new(inner, Arc::new(self.config()))
    }
}
