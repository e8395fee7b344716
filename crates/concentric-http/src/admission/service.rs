use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Body;
use tower_service::Service;

use super::{AdmissionBody, ResponseFuture, gate::Gate, layer::Config};

/// Middleware that limits concurrent requests, counted until their response bodies have ended.
#[derive(Clone)]
pub struct Admission<S> {
    inner: S,
    config: Config,
    gate: Arc<Gate>,
}

impl<S> Admission<S> {
    pub(super) const fn new(inner: S, config: Config, gate: Arc<Gate>) -> Self {
        Self {
            inner,
            config,
            gate,
        }
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

impl<S, B, RB> Service<http::Request<RB>> for Admission<S>
where
    S: Service<http::Request<RB>, Response = http::Response<B>> + Clone,
    B: Body<Data: From<Bytes>>,
{
    type Response = http::Response<AdmissionBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, RB>;

    // Always ready: a request is rejected, or waits in its future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let tenant = (self.config.tenant)(&parts);
        let request = http::Request::from_parts(parts, body);
        let arrival = self.gate.arrive(tenant);
        ResponseFuture::new(arrival, self.inner.clone(), request, &self.config)
    }
}

impl<S: fmt::Debug> fmt::Debug for Admission<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
