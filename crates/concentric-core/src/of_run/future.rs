use super::OfRunBody;
use crate::{
    response::ChatResponse,
    service::{BoxFuture, EventStream},
};
use concentric_proto::Error;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tower::BoxError;

pin_project! {
    /// Response future for [`OfRun`](super::OfRun).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        call: Call<F>,
    }
}

pin_project! {
    #[project = CallProj]
    enum Call<F> {
        Inner { #[pin] inner: F },
        Layered { layered: BoxFuture<ChatResponse<EventStream>> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn inner(inner: F) -> Self {
        Self {
            call: Call::Inner { inner },
        }
    }

    pub(super) fn layered(layered: BoxFuture<ChatResponse<EventStream>>) -> Self {
        Self {
            call: Call::Layered { layered },
        }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ChatResponse<OfRunBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().call.project() {
            CallProj::Inner { inner } => inner.poll(cx).map(|answered| match answered {
                Ok(response) => Ok(response.map_body(OfRunBody::inner)),
                Err(error) => Err(Error::from(error.into())),
            }),
            CallProj::Layered { layered } => layered
                .as_mut()
                .poll(cx)
                .map_ok(|response| response.map_body(OfRunBody::layered)),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
