//! The stream of a client that has joined a run.

use std::{
    mem,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::{Environment, context::Context as Run};

use memchr::memmem;

use super::output::{Cut, LogStream};
use crate::{keep_alive::KeepAlive, shutdown::Guard};

/// A stream of the events of a run. Dropping it does not affect the run.
pub(crate) struct Events {
    log: LogStream,
    // Follows the first frame.
    earlier: Bytes,
    // Has the clock, and is not the context of the run, which may outlive the stream.
    context: Run,
    keep_alive: Option<KeepAlive>,
    shutdown: Option<Guard>,
}

impl Events {
    pub(crate) fn new(
        log: impl Into<LogStream>,
        earlier: Bytes,
        environment: Environment,
        keep_alive: Option<Duration>,
        shutdown: Option<Guard>,
    ) -> Self {
        Self {
            log: log.into(),
            earlier,
            context: Run::builder().environment(environment).build(),
            keep_alive: keep_alive.map(KeepAlive::new),
            shutdown,
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.log.is_over()
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
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
                Poll::Ready(chunk.map(|chunk| self.with_earlier(chunk)))
            }
            Poll::Pending => KeepAlive::poll(&mut self.keep_alive, &self.context, cx).map(Some),
        }
    }

    /// Inserts what the client had before after the first frame.
    fn with_earlier(&mut self, chunk: Bytes) -> Bytes {
        let earlier = mem::take(&mut self.earlier);
        let Some(end) = memmem::find(&chunk, b"\n\n").filter(|_| !earlier.is_empty()) else {
            return chunk;
        };
        let (first, rest) = chunk.split_at(end + 2);
        Bytes::from([first, &earlier, rest].concat())
    }
}
