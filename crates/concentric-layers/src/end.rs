//! The end of a body.

use concentric_core::{Error, Event, hooks::End};
use std::task::Poll;

/// The result of a poll of a body.
pub(crate) type Polled = Poll<Option<Result<Event, Error>>>;

/// The end of a body.
#[cfg(any(feature = "conversation", feature = "session"))]
pub(crate) enum Last {
    Finished(Box<concentric_core::Finish>),
    Failed(Error),
    /// There is no terminal item.
    Truncated,
}

#[cfg(any(feature = "conversation", feature = "session"))]
impl Last {
    pub(crate) fn into_item(self) -> Option<Result<Event, Error>> {
        match self {
            Self::Finished(finish) => Some(Ok(Event::Finish(finish))),
            Self::Failed(error) => Some(Err(error)),
            Self::Truncated => None,
        }
    }
}

/// Calls `f` with the end of a body, if `item` is one.
///
/// A body returns its item from one place, after this call: otherwise each event is copied.
// Inlined always: it is a comparison of a few instructions.
#[inline(always)]
pub(crate) fn observe_end(item: &Polled, f: impl FnOnce(End<'_>)) {
    if is_end(item) {
        observe(item, f);
    }
}

/// Replaces the end of a body, if `item` is one, as [`observe_end`].
#[cfg(any(feature = "conversation", feature = "session"))]
#[inline(always)]
pub(crate) fn replace_end(item: &mut Polled, f: impl FnOnce(Last) -> Poll<Last>) {
    if is_end(item) {
        replace(item, f);
    }
}

/// Returns whether `item` is a terminal item.
#[inline(always)]
pub(crate) const fn is_end(item: &Polled) -> bool {
    matches!(
        item,
        Poll::Ready(None | Some(Err(_) | Ok(Event::Finish(_))))
    )
}

// These are not inlined into the path of each event.
#[cold]
#[inline(never)]
fn observe(item: &Polled, f: impl FnOnce(End<'_>)) {
    match item {
        Poll::Ready(Some(Ok(Event::Finish(finish)))) => f(End::Finished(finish)),
        Poll::Ready(Some(Err(error))) => f(End::Failed(error)),
        Poll::Ready(None) => f(End::Truncated),
        Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
    }
}

#[cfg(any(feature = "conversation", feature = "session"))]
#[cold]
#[inline(never)]
fn replace(item: &mut Polled, f: impl FnOnce(Last) -> Poll<Last>) {
    *item = match std::mem::replace(item, Poll::Pending) {
        Poll::Ready(Some(Ok(Event::Finish(finish)))) => f(Last::Finished(finish)),
        Poll::Ready(Some(Err(error))) => f(Last::Failed(error)),
        Poll::Ready(None) => f(Last::Truncated),
        other => {
            *item = other;
            return;
        }
    }
    .map(Last::into_item);
}
