use super::{Body, ResponseFuture, clocks::Clocks, config::Config};
use crate::{
    Unsupported,
    api::{Answer, Api, Call, Estimate},
    capabilities::{invalid, refused},
};
use bytes::Bytes;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, ErrorKind, ResponseHead};
use http_body_util::Full;
use serde::Serialize;
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
        self.config.check_target()?;
        self.inner
            .poll_ready(cx)
            .map_err(|error| self.config.origin().transport(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let prepared = match request.check_stack() {
            // Outside a loop, a retry layer calls once more after its pause was cancelled.
            Ok(()) if request.context.is_cancelled() => Err(Error::new(
                ErrorKind::Cancelled,
                "the run was cancelled before the request was sent",
            )),
            Ok(()) => self.config.prepare(request),
            Err(error) => Err(error),
        };
        match prepared {
            Ok((upstream, answer, decoder)) => {
                let clocks = Clocks::new(self.config.timeouts(), &answer.context);
                ResponseFuture::new(self.inner.call(upstream), clocks, answer, decoder)
            }
            Err(error) => ResponseFuture::failed(error),
        }
    }
}

/// The HTTP request of a call, and the state for decoding its response.
type Prepared<A> = (http::Request<Full<Bytes>>, Answer, <A as Api>::Decoder);

impl<A: Api> Config<A> {
    fn call<'a>(&'a self, request: &'a ChatRequest) -> Call<'a> {
        Call {
            request,
            model: (request.options.model.as_ref()).unwrap_or(&self.settings.model),
            streaming: self.settings.streaming,
        }
    }

    /// Lists the features that `request` uses and the service does not support.
    pub(super) fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        self.body(self.call(request)).1
    }

    /// The body of a call, and the features that it uses and the service does not support.
    fn body<'a>(&'a self, call: Call<'a>) -> (impl Serialize + use<'a, A>, Vec<Unsupported>) {
        let configured = self.settings.capabilities;
        let capabilities = configured.unwrap_or_else(|| self.api.capabilities(call.model));
        let mut unsupported = invalid(call.request, call.model, self.api.tools());
        unsupported.extend(capabilities.check(call.request));
        let body = self.api.body(call, &mut unsupported);
        (body, unsupported)
    }

    /// Builds the HTTP request of a call, and the state for decoding its response.
    fn prepare(&self, request: ChatRequest) -> Result<Prepared<A>, Error> {
        self.check_target()?;
        // Outer layers may have added duplicate tools, which is an error of the stack.
        request.tools.check()?;
        let call = self.call(&request);
        let (body, unsupported) = self.body(call);
        if !unsupported.is_empty() {
            return Err(refused(call.model, &unsupported));
        }
        // The approximate size of a short request.
        let mut json = Vec::with_capacity(1024);
        serde_json::to_writer(&mut json, &body).map_err(|error| {
            let what = "the request cannot be serialized as JSON";
            Error::new(ErrorKind::InvalidRequest, what).with_source(error)
        })?;
        drop(body);
        let (upstream, key) = self.upstream(&self.api.path(&call), Bytes::from(json))?;
        let mut head = ResponseHead::default();
        head.provider = Some(self.api.provider().clone());
        // The model cannot call tools that an outer layer has removed.
        head.tools = (!request.options.provider.contains_key("tools"))
            .then(|| request.tools.iter().map(|tool| tool.name.clone()).collect());
        let mut limits = self.settings.limits;
        if !self.settings.streaming {
            // The response is a single event.
            limits.event = limits.response;
        }
        let decoder = self.api.decoder(&call);
        let estimate = Estimate::new(&request, call.model);
        let answer = Answer {
            context: request.context,
            head,
            events: VecDeque::new(),
            provider: self.api.provider().clone(),
            key,
            secrets: self.secrets(),
            limits,
            changed: false,
            estimate,
        };
        Ok((upstream, answer, decoder))
    }
}
