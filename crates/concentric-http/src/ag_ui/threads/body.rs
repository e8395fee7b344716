use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use concentric_core::context::Context as Run;
use http_body::{Body, Frame, SizeHint};

use super::{
    super::{
        log::Reader,
        output::{Cut, LogStream},
    },
    service::Config,
};
use crate::{keep_alive::KeepAlive, shutdown::Guard};

/// Response body of [`Threads`](crate::ag_ui::Threads): JSON, or the events of a run.
///
/// Dropping the body does not affect the run.
#[must_use = "bodies do nothing unless polled"]
pub struct ThreadsBody(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Events(Box<Events>),
}

/// A stream of the events of a run.
struct Events {
    log: LogStream,
    // Has the clock, and is not the context of the run, which may outlive the stream.
    context: Run,
    keep_alive: Option<KeepAlive>,
    shutdown: Option<Guard>,
}

impl ThreadsBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    pub(super) fn events(reader: Reader, config: &Config, shutdown: Option<Guard>) -> Self {
        let environment = config.environment.clone();
        Self(Kind::Events(Box::new(Events {
            log: LogStream::Open(reader),
            context: Run::builder().environment(environment).build(),
            keep_alive: config.keep_alive.map(KeepAlive::new),
            shutdown,
        })))
    }
}

impl Events {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            self.log.cut(Cut::Shutdown);
            self.shutdown = None;
        }
        match self.log.poll(true, cx) {
            Poll::Ready(chunk) => {
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.sent(self.context.environment().clock().monotonic());
                }
                Poll::Ready(chunk)
            }
            Poll::Pending => KeepAlive::poll(&mut self.keep_alive, &self.context, cx).map(Some),
        }
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
            Kind::Events(events) => events.log.is_over(),
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
