use super::bucket::Reservation;
use crate::body::{Observed, Observer, body};
use concentric_core::{Event, PartKind, hooks::End};

body! {
    /// Response body for [`RateLimit`](super::RateLimit): the inner body's items, unchanged.
    pub struct RateLimitBody<B>(Observed<B, Settlement>);
}

/// Settles a reservation at the terminal item or on drop.
struct Settlement {
    reservation: Option<Reservation>,
    // Whether the received text must be counted.
    counts: bool,
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
}

impl Observer for Settlement {
    #[inline(always)]
    fn reads_events(&self) -> bool {
        self.counts
    }

    fn event(&mut self, event: &Event) {
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
        let settlement = Settlement {
            counts: reservation.counts_output(),
            reservation: Some(reservation),
            text: 0,
            previews: 0,
            calls: 0,
        };
        let inner = Observed::new(inner, settlement);
        Self { inner }
    }
}
