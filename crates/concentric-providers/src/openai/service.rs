use super::{Body, ResponseFuture, config::Config, request};
use bytes::Bytes;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, ErrorKind, Head};
use http::Method;
use http_body_util::Full;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// A model, by OpenAI's chat completions over the HTTP service `S`.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct OpenAi<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> OpenAi<S> {
    pub(super) const fn new(inner: S, config: Arc<Config>) -> Self {
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

impl<S, RB> Service<ChatRequest> for OpenAi<S>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<RB>>,
    S::Error: Into<BoxError>,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Response = ChatResponse<Body<RB>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, RB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Err(error) = &self.config.target {
            return Poll::Ready(Err(error.clone()));
        }
        self.inner
            .poll_ready(cx)
            .map_err(|error| self.config.origin(None).transport(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let prepared = match &self.config.target {
            // Whatever stands around this may have added some.
            Ok(target) => request.tools.check().and_then(|()| {
                let body = request::encode(&request, &self.config)?;
                Ok((target, body))
            }),
            Err(error) => Err(error.clone()),
        };
        let (target, body) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return ResponseFuture::failed(error),
        };
        let mut upstream = http::Request::new(Full::new(Bytes::from(body)));
        *upstream.method_mut() = Method::POST;
        *upstream.uri_mut() = target.uri.clone();
        *upstream.headers_mut() = target.headers.clone();
        let mut head = Head::default();
        head.provider = Some(self.config.compat.provider.clone());
        // What a layer further out has hidden from the model, it can't call.
        head.tools = (!request.options.provider.contains_key("tools"))
            .then(|| request.tools.iter().map(|tool| tool.name.clone()).collect());
        let call = self.inner.call(upstream);
        ResponseFuture::new(call, Arc::clone(&self.config), request.context, head)
    }
}

impl Config {
    pub(super) fn encoding(&self) -> Error {
        self.origin(None).error(
            ErrorKind::InvalidRequest,
            "the request can't be written as JSON",
        )
    }
}
