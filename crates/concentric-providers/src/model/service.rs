use super::{Body, ResponseFuture, clocks::Clocks, config::Config};
use crate::{
    ApiKey, Unsupported,
    api::{Answer, Api, Call},
    capabilities::{invalid, refused},
};
use bytes::Bytes;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, ResponseHead};
use http::Method;
use http_body_util::Full;
use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// A model with the API `A` over the HTTP service `S`.
///
/// Created by a [`ProviderLayer`](super::ProviderLayer).
///
/// Ready when the HTTP service is ready. A request that is rejected before it is sent
/// ([`check`](super::ProviderLayer::check)) does not use that readiness, as in tower's `Filter`:
/// the reservation is kept for the next call, or until the model is dropped.
#[derive(Clone, Debug)]
pub struct Model<S, A> {
    inner: S,
    config: Arc<Config<A>>,
}

impl<S, A> Model<S, A> {
    pub(super) const fn new(inner: S, config: Arc<Config<A>>) -> Self {
        Self { inner, config }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Gets a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, A, RB> Service<ChatRequest> for Model<S, A>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<RB>>,
    S::Error: Into<BoxError>,
    A: Api,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Response = ChatResponse<Body<RB, A>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, RB, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Err(error) = &self.config.target {
            return Poll::Ready(Err(error.clone()));
        }
        self.inner
            .poll_ready(cx)
            .map_err(|error| self.config.origin().transport(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let prepared = match request.check_stack() {
            Ok(()) => self.config.prepare(request),
            Err(error) => Err(error),
        };
        match prepared {
            Ok((upstream, answer, decoder)) => {
                let clocks = Clocks::new(self.config.timeouts, &answer.context);
                ResponseFuture::new(self.inner.call(upstream), clocks, answer, decoder)
            }
            Err(error) => ResponseFuture::failed(error),
        }
    }
}

/// The HTTP request of a call, and the state for decoding its response.
type Prepared<A> = (http::Request<Full<Bytes>>, Answer, <A as Api>::Decoder);

impl<A> Config<A>
where
    A: Api,
{
    fn call<'a>(&'a self, request: &'a ChatRequest) -> Call<'a> {
        Call {
            request,
            model: request.options.model.as_ref().unwrap_or(&self.model),
            streaming: self.streaming,
        }
    }

    /// Lists the features that `request` uses and the service does not support.
    pub(super) fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        let call = self.call(request);
        let capabilities = self
            .capabilities
            .unwrap_or_else(|| self.api.capabilities(call.model));
        let mut unsupported = invalid(call.request, call.model, self.api.tools());
        unsupported.extend(capabilities.check(request));
        self.api.check(&call, &mut unsupported);
        unsupported
    }

    /// Builds the HTTP request of a call, and the state for decoding its response.
    fn prepare(&self, request: ChatRequest) -> Result<Prepared<A>, Error> {
        let target = self.target.as_ref().map_err(Error::clone)?;
        // Outer layers may have added duplicate tools, which is an error of the stack.
        request.tools.check()?;
        let unsupported = self.check(&request);
        let call = self.call(&request);
        if !unsupported.is_empty() {
            return Err(refused(call.model, &unsupported));
        }
        let key = self.key.as_ref().map(ApiKey::resolve).transpose()?;
        let mut headers = target.headers.clone();
        if let Some(key) = &key
            // A header that was set explicitly replaces the key.
            && !headers.contains_key(&target.key_header)
        {
            let (_, prefix) = self.api.key_header();
            headers.insert(&target.key_header, key.header(prefix)?);
        }
        let body = self.api.encode(&call)?;
        let mut upstream = http::Request::new(Full::new(Bytes::from(body)));
        *upstream.method_mut() = Method::POST;
        *upstream.uri_mut() = self.api.endpoint(&target.base, &call)?;
        *upstream.headers_mut() = headers;
        let mut head = ResponseHead::default();
        head.provider = Some(self.api.provider().clone());
        // The model cannot call tools that an outer layer has removed.
        head.tools = (!request.options.provider.contains_key("tools"))
            .then(|| request.tools.iter().map(|tool| tool.name.clone()).collect());
        let mut limits = self.limits;
        if !self.streaming {
            // The response is a single event.
            limits.event = limits.response;
        }
        let decoder = self.api.decoder(&call);
        let answer = Answer {
            context: request.context,
            head,
            events: VecDeque::new(),
            provider: self.api.provider().clone(),
            key,
            secrets: Arc::clone(&target.secrets),
            limits,
            changed: false,
        };
        Ok((upstream, answer, decoder))
    }
}
