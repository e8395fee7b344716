use super::{CommitBody, Point};
use crate::{ChatResponse, Error, ErrorKind, Event, response::truncated};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::BoxError;

pin_project! {
    /// Response future for [`Commit`](super::Commit).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, B, P> {
        #[pin]
        inner: F,
        point: P,
        // How many more bytes may be held.
        left: usize,
        held: Option<ChatResponse<CommitBody<B>>>,
    }
}

impl<F, B, P> ResponseFuture<F, B, P> {
    pub(super) const fn new(inner: F, point: P, limit: usize) -> Self {
        Self {
            inner,
            point,
            left: limit,
            held: None,
        }
    }
}

impl<F, B, E, P> Future for ResponseFuture<F, B, P>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    P: Point,
{
    type Output = Result<ChatResponse<CommitBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.held.is_none() {
            let response = ready!(this.inner.poll(cx)).map_err(|e| Error::from(e.into()))?;
            *this.held = Some(response.map_body(CommitBody::new));
        }
        let body = &mut this.held.as_mut().expect("it was just put there").body;
        loop {
            match ready!(body.poll_inner(cx)) {
                Some(Ok(event)) => {
                    let Some(left) = this.left.checked_sub(held_bytes(&event)) else {
                        let error = Error::new(
                            ErrorKind::TooLarge,
                            "the answer is too long to be held until it may be shown",
                        );
                        return Poll::Ready(Err(error));
                    };
                    *this.left = left;
                    let reached = event.is_finish() || this.point.is_reached(&event);
                    body.hold(event);
                    if reached {
                        break;
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Err(truncated())),
            }
        }
        Poll::Ready(Ok(this.held.take().expect("it is there")))
    }
}

/// What an event weighs: its text, and the room it takes in the queue.
fn held_bytes(event: &Event) -> usize {
    size_of::<Event>()
        + match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                text.len()
            }
            Event::ToolCallDelta(delta) => delta.arguments.len(),
            Event::ToolCall(call) => call.call.arguments.as_str().len(),
            _ => 0,
        }
}

impl<F, B, P> fmt::Debug for ResponseFuture<F, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
