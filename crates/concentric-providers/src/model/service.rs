use super::{Body, ResponseFuture, clocks::Clocks, config::Config};
use crate::{
    ApiKey, Unsupported,
    api::{Answer, Api, Call},
    capabilities::{nonsense, refused},
};
use bytes::Bytes;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Head};
use http::Method;
use http_body_util::Full;
use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// A model, by the API `A` over the HTTP service `S`.
///
/// Made by a [`ProviderLayer`](super::ProviderLayer).
///
/// It is ready when the HTTP service is. A request that is refused before it is sent
/// ([`check`](super::ProviderLayer::check)) leaves that readiness unused, as it does in tower's
/// `Filter`: what was reserved there is kept for the next call, or until this is dropped.
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
        let prepared = match request.context.check_stack() {
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

/// What a call is sent as, and what its answer is read by.
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

    /// Lists what `request` asks for that the service will not do.
    pub(super) fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        let call = self.call(request);
        let capabilities = self
            .capabilities
            .unwrap_or_else(|| self.api.capabilities(call.model));
        let mut unsupported = nonsense(&call, self.api.tools());
        unsupported.extend(capabilities.check(request));
        self.api.check(&call, &mut unsupported);
        unsupported
    }

    /// The HTTP request of a call, and what its answer is read by.
    fn prepare(&self, request: ChatRequest) -> Result<Prepared<A>, Error> {
        let target = self.target.as_ref().map_err(Error::clone)?;
        // Whatever stands around this may have added some: a mistake of the stack's.
        request.tools.check()?;
        let unsupported = self.check(&request);
        let call = self.call(&request);
        if !unsupported.is_empty() {
            return Err(refused(call.model, &unsupported));
        }
        let key = self.key.as_ref().map(ApiKey::resolve).transpose()?;
        let mut headers = target.headers.clone();
        if let Some(key) = &key
            // A header that was set by hand is meant to replace it.
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
        let mut head = Head::default();
        head.provider = Some(self.api.provider().clone());
        // What a layer further out has hidden from the model, it can't call.
        head.tools = (!request.options.provider.contains_key("tools"))
            .then(|| request.tools.iter().map(|tool| tool.name.clone()).collect());
        let mut limits = self.limits;
        if !self.streaming {
            // It is one event.
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
