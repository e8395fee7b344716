use super::{
    ActivityFuture, ActivityRequest, ActivityResponse, EmbeddingRequest, ImageRequest,
    ModerationRequest, SpeechRequest, TranscriptionRequest,
};
use crate::{
    OpenAiLayer,
    api::{Answer, Api, Estimate},
    model::{Clocks, Config},
    openai::Chat,
};
use bytes::Bytes;
use concentric_core::{BoxError, Error, ErrorKind, ResponseHead};
use http::{HeaderValue, header};
use http_body_util::Full;
use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that turns an HTTP service into one for requests of type `R`.
///
/// Created by [`OpenAiLayer::embeddings`] and its siblings.
pub struct ActivityLayer<R> {
    layer: OpenAiLayer,
    request: PhantomData<fn(R)>,
}

impl OpenAiLayer {
    /// Converts the layer into one for embeddings.
    pub fn embeddings(self) -> ActivityLayer<EmbeddingRequest> {
        ActivityLayer::new(self)
    }

    /// Converts the layer into one for images.
    pub fn images(self) -> ActivityLayer<ImageRequest> {
        ActivityLayer::new(self)
    }

    /// Converts the layer into one for moderation.
    pub fn moderation(self) -> ActivityLayer<ModerationRequest> {
        ActivityLayer::new(self)
    }

    /// Converts the layer into one for speech.
    pub fn speech(self) -> ActivityLayer<SpeechRequest> {
        ActivityLayer::new(self)
    }

    /// Converts the layer into one for transcription.
    pub fn transcription(self) -> ActivityLayer<TranscriptionRequest> {
        ActivityLayer::new(self)
    }
}

impl<R: ActivityRequest> ActivityLayer<R> {
    const fn new(layer: OpenAiLayer) -> Self {
        let request = PhantomData;
        Self { layer, request }
    }

    /// Returns whether the service is not known to lack the endpoint
    /// ([`Profile::activities`](crate::openai::Profile::activities)).
    pub fn is_supported(&self) -> bool {
        is_supported::<R>(&self.layer.api)
    }
}

fn is_supported<R: ActivityRequest>(api: &Chat) -> bool {
    api.profile().activities.contains(&R::NAME)
}

impl<S, R> Layer<S> for ActivityLayer<R> {
    type Service = Activity<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Activity {
            inner,
            config: Arc::new(self.layer.config()),
            request: PhantomData,
        }
    }
}

/// A service for requests of type `R` over the HTTP service `S`.
///
/// Ready when the HTTP service is ready; a request that is rejected before it is sent does not use
/// that readiness.
pub struct Activity<S, R> {
    inner: S,
    config: Arc<Config<Chat>>,
    request: PhantomData<fn(R)>,
}

impl<S, R> Activity<S, R>
where
    R: ActivityRequest,
{
    /// Builds the HTTP request, and the state for reading its response.
    fn prepare(&self, request: &R) -> Result<(http::Request<Full<Bytes>>, Answer), Error> {
        let (config, api) = (&self.config, &self.config.api);
        if !is_supported::<R>(api) {
            let what = format!("the service does not support {}", R::NAME);
            let error = Error::new(ErrorKind::InvalidRequest, what).with_code("unsupported");
            return Err(error.with_provider(api.provider().clone()));
        }
        let (body, content_type) = request.body(config.model())?;
        let (mut upstream, key) = config.upstream(R::PATH, body)?;
        if let Some(content_type) = content_type {
            let value = HeaderValue::from_str(&content_type);
            let value = value.map_err(|_| Error::new(ErrorKind::Other, "invalid boundary"))?;
            upstream.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        let accept = HeaderValue::from_static(R::ACCEPT);
        upstream.headers_mut().insert(header::ACCEPT, accept);
        let answer = Answer {
            context: request.context().clone(),
            head: ResponseHead::default(),
            events: VecDeque::new(),
            provider: api.provider().clone(),
            key,
            secrets: config.secrets(),
            limits: config.limits(),
            changed: false,
            estimate: Estimate::default(),
        };
        Ok((upstream, answer))
    }
}

impl<S, R, RB> Service<R> for Activity<S, R>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<RB>>,
    S::Error: Into<BoxError>,
    R: ActivityRequest,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Response = ActivityResponse<R::Output>;
    type Error = Error;
    type Future = ActivityFuture<S::Future, RB, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.config.check_target()?;
        let ready = self.inner.poll_ready(cx);
        ready.map_err(|error| self.config.origin().transport(error.into()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.prepare(&request) {
            Ok((upstream, answer)) => {
                let clocks = Clocks::new(self.config.timeouts(), request.context());
                let call = self.inner.call(upstream);
                ActivityFuture::new(call, clocks, answer, request)
            }
            Err(error) => ActivityFuture::failed(error),
        }
    }
}

impl<S: Clone, R> Clone for Activity<S, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            config: Arc::clone(&self.config),
            request: PhantomData,
        }
    }
}

impl<R> Clone for ActivityLayer<R> {
    fn clone(&self) -> Self {
        Self {
            layer: self.layer.clone(),
            request: PhantomData,
        }
    }
}

impl<S, R> fmt::Debug for Activity<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for ActivityLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActivityLayer").field(&self.layer).finish()
    }
}
