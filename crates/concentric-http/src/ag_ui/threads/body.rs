use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::service::Config;
use crate::{
    run::{Events, LogStream},
    shutdown::Guard,
};

/// Response body of [`Threads`](crate::ag_ui::Threads): JSON, or the events of a run.
///
/// Dropping the body does not affect the run.
#[must_use = "bodies do nothing unless polled"]
pub struct ThreadsBody(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Events(Box<Events>),
}

impl ThreadsBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    pub(super) fn events(
        log: impl Into<LogStream>,
        config: &Config,
        shutdown: Option<Guard>,
    ) -> Self {
        let environment = config.environment.clone();
        let (earlier, keep_alive) = (Bytes::new(), config.keep_alive);
        let events = Events::new(log, earlier, environment, keep_alive, shutdown);
        Self(Kind::Events(Box::new(events)))
    }
}

impl Body for ThreadsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut self.0 {
            Kind::Whole(bytes) => bytes.take(),
            Kind::Events(events) => ready!(events.poll(cx)),
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Events(events) => events.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Events(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for ThreadsBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadsBody").finish_non_exhaustive()
    }
}
