use super::{
    Hooks,
    watch::{Watch, is_terminal},
};
use concentric_proto::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    vec,
};

pin_project! {
    /// Response body for [`Hooked`](super::Hooked): the inner body's items, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct HooksBody<B, H>
    where
        H: Hooks,
    {
        // Dropped before `watch` calls the hooks.
        #[pin]
        source: Source<B>,
        watch: Watch<H>,
    }
}

pin_project! {
    #[project = SourceProj]
    enum Source<B> {
        /// The inner body, whose events are passed to the hook's event method only.
        Events { #[pin] body: B },
        /// The inner body, whose steps or end are also passed to the hook.
        Observed { #[pin] body: B },
        /// The hook's answer in place of the inner service.
        Answer { events: vec::IntoIter<Event> },
        Ended,
    }
}

impl<B, H> HooksBody<B, H>
where
    H: Hooks,
{
    pub(super) const fn new(body: B, watch: Watch<H>) -> Self {
        let source = match watch.observes() {
            true => Source::Observed { body },
            false => Source::Events { body },
        };
        Self { source, watch }
    }

    pub(super) fn answer(events: Vec<Event>, watch: Watch<H>) -> Self {
        Self {
            source: Source::Answer {
                events: events.into_iter(),
            },
            watch,
        }
    }
}

impl<B, H> HooksBody<B, H>
where
    B: Stream<Item = Result<Event, Error>>,
    H: Hooks,
{
    /// Polls a body whose steps or end are passed to the hook.
    // Not inlined, because each layer would add a copy of this code to its caller.
    #[inline(never)]
    fn poll_observed(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, Error>>> {
        let mut this = self.project();
        if !this.watch.holds() {
            let item = match this.source.as_mut().project() {
                SourceProj::Events { body } | SourceProj::Observed { body } => {
                    ready!(body.poll_next(cx))
                }
                SourceProj::Answer { events } => events.next().map(Ok),
                SourceProj::Ended => return Poll::Ready(None),
            };
            if is_terminal(&item) {
                // The inner body is dropped before the hooks receive the end.
                this.source.set(Source::Ended);
            }
            if !this.watch.record_item(&item) {
                return Poll::Ready(item);
            }
            this.watch.start(item);
        }
        this.watch.poll(cx)
    }
}

impl<B, H> Stream for HooksBody<B, H>
where
    B: Stream<Item = Result<Event, Error>>,
    H: Hooks,
{
    type Item = Result<Event, Error>;

    // Inlined, because a call would copy each event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.as_mut().project();
        let SourceProj::Events { body } = this.source.project() else {
            return self.poll_observed(cx);
        };
        let polled = body.poll_next(cx);
        if let Poll::Ready(Some(Ok(event))) = &polled {
            this.watch.event(event);
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let held = usize::from(self.watch.holds());
        let (least, most) = match &self.source {
            Source::Events { body } | Source::Observed { body } => body.size_hint(),
            Source::Answer { events } => events.size_hint(),
            Source::Ended => (0, Some(0)),
        };
        (
            least.saturating_add(held),
            most.and_then(|most| most.checked_add(held)),
        )
    }
}

impl<B, H> fmt::Debug for HooksBody<B, H>
where
    H: Hooks,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HooksBody").finish_non_exhaustive()
    }
}
