//! The end of a body.

use concentric_core::{Error, Event, Finish};
use std::task::Poll;

/// The result of a poll of a body.
pub(crate) type Polled = Poll<Option<Result<Event, Error>>>;

/// The end of a body.
pub(crate) enum Last {
    Finished(Box<Finish>),
    Failed(Error),
    /// There is no terminal item.
    Truncated,
}

impl Last {
    #[inline(always)]
    pub(crate) fn into_item(self) -> Option<Result<Event, Error>> {
        match self {
            Self::Finished(finish) => Some(Ok(Event::Finish(finish))),
            Self::Failed(error) => Some(Err(error)),
            Self::Truncated => None,
        }
    }
}

/// Gives the end of a body to `end`, which is not inlined, and returns other items unchanged.
///
/// Without a reference to the item, and with an end that fits into registers, an event is not written to memory.
// Inlined always: it is a comparison of a few instructions.
#[inline(always)]
pub(crate) fn at_end(polled: Polled, end: impl FnOnce(Last) -> Poll<Last>) -> Polled {
    let last = match polled {
        Poll::Ready(Some(Ok(Event::Finish(finish)))) => Last::Finished(finish),
        Poll::Ready(Some(Err(error))) => Last::Failed(error),
        Poll::Ready(None) => Last::Truncated,
        other => return other,
    };
    end(last).map(Last::into_item)
}
