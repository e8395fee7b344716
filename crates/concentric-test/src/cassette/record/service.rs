use super::{RecordBody, RecordFuture, RecordLayer};
use bytes::Bytes;
use concentric_core::BoxError;
use http_body_util::Full;
use std::task::{Context, Poll};
use tower_service::Service;

/// An HTTP service that records its calls.
///
/// Created by [`RecordLayer`]. It is ready when the inner service is.
#[derive(Clone, Debug)]
pub struct Record<S> {
    inner: S,
    layer: RecordLayer,
}

impl<S> Record<S> {
    pub(super) const fn new(inner: S, layer: RecordLayer) -> Self {
        Self { inner, layer }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, RB> Service<http::Request<Full<Bytes>>> for Record<S>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<RB>>,
    S::Error: Into<BoxError>,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Response = http::Response<RecordBody<RB>>;
    // The kind of the error is found by downcasting.
    type Error = BoxError;
    type Future = RecordFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Full<Bytes>>) -> Self::Future {
        let call = self.layer.call(&request);
        RecordFuture::new(self.inner.call(request), call)
    }
}
