//! The bodies that layers share.
//!
//! An event that a body passes on stays where the inner body wrote it if there is one variable for the
//! item, which the rare function for other items takes and replaces. If that function borrows the
//! item, or if there are several conditions or returns, each event is copied, which costs more than
//! all the rest of a layer.

use concentric_core::{Error, Event, hooks::End};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// The result of a poll of a body.
pub(crate) type Polled = Poll<Option<Result<Event, Error>>>;

/// Returns whether `item` is an event that is not the last one.
// Inlined always: it is a comparison, and those of adjacent layers become one.
#[inline(always)]
pub(crate) fn is_event(item: &Polled) -> bool {
    match item {
        Poll::Ready(Some(Ok(event))) => !event.is_finish(),
        _ => false,
    }
}

/// Defines the response body of a layer, which is a stream of another type.
#[allow(unused_macros, reason = "used by most features")]
macro_rules! body {
    ($(#[$attr:meta])* pub struct $name:ident<B>($inner:ty);) => {
        pin_project_lite::pin_project! {
            $(#[$attr])*
            #[must_use = "streams do nothing unless polled"]
            pub struct $name<B> {
                #[pin]
                inner: $inner,
            }
        }

        impl<B> futures_core::Stream for $name<B>
        where
            B: futures_core::Stream<
                Item = Result<concentric_core::Event, concentric_core::Error>,
            >,
        {
            type Item = B::Item;

            // Inlined always: a call would copy the event, and a stack has many layers.
            #[inline(always)]
            fn poll_next(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                self.project().inner.poll_next(cx)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.inner.size_hint()
            }
        }

        concentric_core::opaque_debug!($name<B>);
    };
}
#[allow(unused_imports, reason = "used by most features")]
pub(crate) use body;

/// Observes the items of a body.
pub(crate) trait Observer {
    /// Receives the end of the body, if it has one.
    fn end(&mut self, end: End<'_>);

    /// Returns whether the observer receives the [events](Self::event).
    #[inline(always)]
    fn reads_events(&self) -> bool {
        false
    }

    /// Receives an event before the end.
    fn event(&mut self, _: &Event) {}
}

/// Passes an item that is not an event to `observer`.
// Not inlined into the path of each event.
#[cold]
#[inline(never)]
pub(crate) fn observe_end<O: Observer>(item: Polled, observer: &mut O) -> Polled {
    match &item {
        Poll::Ready(Some(Ok(Event::Finish(finish)))) => observer.end(End::Finished(finish)),
        Poll::Ready(Some(Err(error))) => observer.end(End::Failed(error)),
        Poll::Ready(None) => observer.end(End::Truncated),
        Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
    }
    item
}

pin_project! {
    /// The items of a body, unchanged, for an observer.
    pub(crate) struct Observed<B, O> {
        // Dropped before the observer, which may settle a call on drop.
        #[pin]
        inner: B,
        observer: O,
    }
}

impl<B, O> Observed<B, O> {
    pub(crate) const fn new(inner: B, observer: O) -> Self {
        Self { inner, observer }
    }
}

impl<B, O> Stream for Observed<B, O>
where
    B: Stream<Item = Result<Event, Error>>,
    O: Observer,
{
    type Item = B::Item;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let mut item = match this.observer.reads_events() {
            false => this.inner.poll_next(cx),
            true => poll_read(this.inner, this.observer, cx),
        };
        if !is_event(&item) {
            item = observe_end(item, this.observer);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

/// Polls a body for an observer that receives its events.
// Not inlined into the path of the events of a body that is not read.
#[inline(never)]
fn poll_read<B, O>(body: Pin<&mut B>, observer: &mut O, cx: &mut Context<'_>) -> Polled
where
    B: Stream<Item = Result<Event, Error>>,
    O: Observer,
{
    let item = body.poll_next(cx);
    if let Poll::Ready(Some(Ok(event))) = &item
        && !event.is_finish()
    {
        observer.event(event);
    }
    item
}

pin_project! {
    /// The body of a call that a layer passes on, or another one.
    // With a tag of its own both bodies are at the same place, so that it is read for a branch only.
    #[repr(u8)]
    #[project = PassedProj]
    #[allow(dead_code, reason = "used by some features")]
    pub(crate) enum Passed<B, O> {
        Inner { #[pin] body: B },
        Other { #[pin] body: O },
    }
}

impl<B, O> Stream for Passed<B, O>
where
    B: Stream<Item = Result<Event, Error>>,
    O: Stream<Item = Result<Event, Error>>,
{
    type Item = B::Item;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project() {
            PassedProj::Inner { body } => body.poll_next(cx),
            PassedProj::Other { body } => body.poll_next(cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Inner { body } => body.size_hint(),
            Self::Other { body } => body.size_hint(),
        }
    }
}
