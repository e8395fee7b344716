//! The rest of a run, which can be moved into a task.

use crate::body::Polled;
use concentric_core::{ChatResponse, Error, Event, service::BoxFuture};
use futures_core::Stream;
use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
};

/// The rest of a run. Boxed, since it is moved into a task.
pub(crate) enum Rest<B> {
    Call(BoxFuture<ChatResponse<B>>),
    Body(Pin<Box<B>>),
    /// A body whose poll panicked. It is not polled again.
    Panicked {
        _body: Pin<Box<B>>,
    },
    Over,
}

impl<B> Rest<B> {
    pub(crate) fn body(body: B) -> Self {
        Self::Body(Box::pin(body))
    }

    pub(crate) const fn is_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Takes the rest; nothing is left.
    pub(crate) const fn take(&mut self) -> Self {
        mem::replace(self, Self::Over)
    }
}

impl<B> Rest<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    /// Polls the body. Returns no item if the rest is none.
    // Inlined always: a call would copy the event.
    #[inline(always)]
    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Polled {
        let on_panic = OnPanic(self);
        let item = match &mut *on_panic.0 {
            Self::Body(body) => body.as_mut().poll_next(cx),
            _ => Poll::Ready(None),
        };
        mem::forget(on_panic);
        item
    }
}

/// Marks a body as panicked when dropped. Costs nothing unless it panics.
struct OnPanic<'a, B>(&'a mut Rest<B>);

impl<B> Drop for OnPanic<'_, B> {
    fn drop(&mut self) {
        *self.0 = match self.0.take() {
            Rest::Body(body) => Rest::Panicked { _body: body },
            rest => rest,
        };
    }
}
