//! The end of a body that a layer replaces.

use crate::body::Polled;
use concentric_core::{Error, Event, Finish};
use std::task::Poll;

/// The end of a body.
pub(crate) enum Last {
    Finished(Box<Finish>),
    Failed(Error),
    /// There is no terminal item.
    Truncated,
}

impl Last {
    pub(crate) fn into_item(self) -> Option<Result<Event, Error>> {
        match self {
            Self::Finished(finish) => Some(Ok(Event::Finish(finish))),
            Self::Failed(error) => Some(Err(error)),
            Self::Truncated => None,
        }
    }
}

/// Replaces the end of a body, if `item` is one.
// Not inlined into the path of each event.
#[cold]
#[inline(never)]
pub(crate) fn replace_end(item: Polled, f: impl FnOnce(Last) -> Poll<Last>) -> Polled {
    let last = match item {
        Poll::Ready(Some(Ok(Event::Finish(finish)))) => Last::Finished(finish),
        Poll::Ready(Some(Err(error))) => Last::Failed(error),
        Poll::Ready(None) => Last::Truncated,
        other => return other,
    };
    f(last).map(Last::into_item)
}
