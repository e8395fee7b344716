use super::bucket::Reservation;
use crate::end::{Polled, observe_end};
use concentric_core::{Error, Event, PartKind, hooks::End};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`RateLimit`](super::RateLimit): the inner body's items, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct RateLimitBody<B> {
        #[pin]
        inner: B,
        // Whether the received text must be counted.
        counts: bool,
        settlement: Settlement,
    }
}

/// Settles a reservation at the terminal item or on drop.
struct Settlement {
    reservation: Option<Reservation>,
    // Bytes of text.
    text: u64,
    // Bytes of arguments: of their pieces, which are previews, and of complete calls.
    previews: u64,
    calls: u64,
}

impl Settlement {
    fn received(&self) -> u64 {
        self.text + self.previews.max(self.calls)
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                self.text += text.len() as u64;
            }
            Event::Part(part) => {
                if let PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) =
                    &part.kind
                {
                    self.text += text.len() as u64;
                }
            }
            Event::ToolCallDelta(delta) => self.previews += delta.arguments.len() as u64,
            Event::ToolCall(call) => self.calls += call.call.arguments.as_str().len() as u64,
            _ => {}
        }
    }

    fn end(&mut self, end: End<'_>) {
        let received = self.received();
        if let Some(mut reservation) = self.reservation.take() {
            reservation.received(received);
            match end {
                End::Finished(finish) => reservation.used(finish.usage),
                End::Failed(error) => reservation.broke_off(error),
                End::Truncated | End::Dropped => {}
            }
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl<B> RateLimitBody<B> {
    pub(super) fn new(inner: B, reservation: Reservation) -> Self {
        Self {
            inner,
            counts: reservation.counts_output(),
            settlement: Settlement {
                reservation: Some(reservation),
                text: 0,
                previews: 0,
                calls: 0,
            },
        }
    }
}

// Not inlined into the path of the events of an answer that is not counted.
#[inline(never)]
fn poll_counted<B>(body: Pin<&mut B>, settlement: &mut Settlement, cx: &mut Context<'_>) -> Polled
where
    B: Stream<Item = Result<Event, Error>>,
{
    let item = body.poll_next(cx);
    if let Poll::Ready(Some(Ok(event))) = &item {
        settlement.count(event);
    }
    item
}

impl<B> Stream for RateLimitBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = match *this.counts {
            false => this.inner.poll_next(cx),
            true => poll_counted(this.inner, this.settlement, cx),
        };
        observe_end(&item, |end| this.settlement.end(end));
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(RateLimitBody<B>);
