use super::{RecordBody, call::Call};
use concentric_core::BoxError;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future for [`Record`](super::Record).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct RecordFuture<F> {
        #[pin]
        inner: F,
        // Moved to the body.
        call: Option<Call>,
    }
}

impl<F> RecordFuture<F> {
    pub(super) const fn new(inner: F, call: Call) -> Self {
        Self {
            inner,
            call: Some(call),
        }
    }
}

impl<F, RB, E> Future for RecordFuture<F>
where
    F: Future<Output = Result<http::Response<RB>, E>>,
    E: Into<BoxError>,
    RB: http_body::Body,
{
    type Output = Result<http::Response<RecordBody<RB>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let mut call = this.call.take();
        Poll::Ready(match result {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                if let Some(call) = &mut call {
                    call.head(&parts);
                }
                Ok(http::Response::from_parts(
                    parts,
                    RecordBody::new(body, call),
                ))
            }
            Err(error) => {
                let error = error.into();
                if let Some(call) = &mut call {
                    call.fail(&error);
                }
                Err(error)
            }
        })
    }
}

concentric_core::opaque_debug!(RecordFuture<F>);
