use super::{
    DetachBody,
    hold::{Continue, Hold},
};
use crate::rest::Rest;
use concentric_core::{ChatResponse, Error, service::BoxFuture};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Response future for [`Detach`](super::Detach).
///
/// If it is dropped after its first poll, the run continues without its consumer.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ResponseFuture<B> {
    // Taken while it is polled, so a call that panicked is not polled again.
    call: Option<BoxFuture<ChatResponse<B>>>,
    hold: Option<Hold>,
    has_begun: bool,
    continue_run: Continue<B>,
}

impl<B> ResponseFuture<B> {
    pub(super) const fn new(
        call: BoxFuture<ChatResponse<B>>,
        hold: Option<Hold>,
        continue_run: Continue<B>,
    ) -> Self {
        Self {
            call: Some(call),
            hold,
            has_begun: false,
            continue_run,
        }
    }
}

impl<B> Future for ResponseFuture<B> {
    type Output = Result<ChatResponse<DetachBody<B>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut call = self.call.take().expect("polled after completion");
        self.has_begun = true;
        let Poll::Ready(result) = call.as_mut().poll(cx) else {
            self.call = Some(call);
            return Poll::Pending;
        };
        let mut hold = self.hold.take();
        Poll::Ready(result.map(|answer| {
            if let Some(hold) = &mut hold {
                hold.answered(&answer);
            }
            answer.map_body(|body| DetachBody::new(body, hold, self.continue_run))
        }))
    }
}

impl<B> Drop for ResponseFuture<B> {
    fn drop(&mut self) {
        if let (true, Some(call), Some(hold)) = (self.has_begun, self.call.take(), self.hold.take())
        {
            (self.continue_run)(hold, Rest::Call(call));
        }
    }
}

concentric_core::opaque_debug!(ResponseFuture<B>);
