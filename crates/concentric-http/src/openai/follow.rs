//! Streams of the events of background responses.

use std::task::{Context, Poll};

use bytes::Bytes;
use concentric_core::{Error, ErrorKind, context::Context as Run};
use memchr::memmem;

use crate::{
    run::{Read, Reader, Remote},
    shutdown::Guard,
};

/// The events that end a stream.
const LAST: [&[u8]; 3] = [
    b"event: response.completed\n",
    b"event: response.incomplete\n",
    b"event: response.failed\n",
];

/// A reader of the events of a background response.
pub(super) struct Following {
    events: Events,
    /// For the time, and for logs.
    context: Run,
    shutdown: Option<Guard>,
    unsent: Bytes,
    /// Whether the last event was read.
    is_complete: bool,
}

pub(super) enum Events {
    /// Those of a run of this process.
    Log(Reader),
    /// Those in the store that processes share.
    Shared(Box<Remote>),
}

impl Following {
    pub(super) const fn new(events: Events, context: Run, shutdown: Option<Guard>) -> Self {
        Self {
            events,
            context,
            shutdown,
            unsent: Bytes::new(),
            is_complete: false,
        }
    }

    pub(super) const fn context(&self) -> &Run {
        &self.context
    }

    /// The events that are ready.
    pub(super) const fn unsent(&mut self) -> &mut Bytes {
        &mut self.unsent
    }

    /// Reads events, unless some are ready. Returns the end of the stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Error>> {
        if !self.unsent.is_empty() {
            return None;
        }
        // The run may be one of another process, which continues.
        if let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            return Some(Err(lost("the server shuts down")));
        }
        let read = match &mut self.events {
            Events::Log(reader) => reader.poll(cx).map(|read| match read {
                Read::Frames(events) => Ok(Some(events)),
                Read::End => Ok(None),
                Read::Gap => Err(()),
            }),
            Events::Shared(remote) => remote.poll(cx).map(|read| read.map_err(|_| ())),
        };
        match read {
            Poll::Ready(Ok(Some(events))) => {
                self.is_complete = is_last(&events);
                self.unsent = events;
                None
            }
            Poll::Ready(Ok(None)) if self.is_complete => Some(Ok(())),
            Poll::Ready(Ok(None)) => Some(Err(lost("the process of the response has stopped"))),
            Poll::Ready(Err(())) => Some(Err(lost("the events of the response are not kept"))),
            Poll::Pending => None,
        }
    }
}

/// Whether the last of these events ends a stream.
fn is_last(events: &[u8]) -> bool {
    let before = events.strip_suffix(b"\n\n").unwrap_or(events);
    let start = memmem::rfind(before, b"\n\n").map_or(0, |end| end + 2);
    let last = before.get(start..).unwrap_or_default();
    LAST.iter().any(|name| last.starts_with(name))
}

fn lost(message: &'static str) -> Error {
    Error::new(ErrorKind::Truncated, message)
}
