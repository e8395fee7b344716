use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::context::{Context as Run, Sleep};

/// A comment, which clients ignore and which keeps proxies from closing the connection.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A timer that fires after a time without output.
///
/// It is not reset for every chunk, since a timer costs more than a chunk: it sleeps for the whole
/// time, and then for the rest since the last chunk.
pub(crate) struct KeepAlive {
    silence: Duration,
    // When the last chunk was sent (monotonic).
    sent: Option<Duration>,
    // The current sleep, and whether nothing was sent since it began.
    sleep: Option<Sleep>,
    silent: bool,
}

impl KeepAlive {
    /// The silence that a setter accepts. A very short time would fill the stream with comments.
    pub(crate) fn silence(silence: Option<Duration>) -> Option<Duration> {
        let silence = silence.filter(|silence| !silence.is_zero());
        silence.map(|silence| silence.max(Duration::from_secs(1)))
    }

    pub(crate) const fn new(silence: Duration) -> Self {
        Self {
            silence,
            sent: None,
            sleep: None,
            silent: true,
        }
    }

    pub(crate) const fn sent(&mut self, now: Duration) {
        self.sent = Some(now);
        self.silent = false;
    }

    /// Returns a comment when it is due.
    pub(crate) fn poll(
        keep_alive: &mut Option<Self>,
        context: &Run,
        cx: &mut Context<'_>,
    ) -> Poll<Bytes> {
        let Some(timer) = keep_alive else {
            return Poll::Pending;
        };
        ready!(timer.poll_due(context, cx));
        timer.sent(context.environment().clock().monotonic());
        Poll::Ready(Bytes::from_static(KEEP_ALIVE))
    }

    fn poll_due(&mut self, context: &Run, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(cx));
                self.sleep = None;
                if self.silent {
                    return Poll::Ready(());
                }
            }
            let clock = context.environment().clock();
            let past = self.sent.map(|sent| clock.monotonic().saturating_sub(sent));
            let left = self.silence.saturating_sub(past.unwrap_or_default());
            self.sleep = Some(clock.sleep(left));
            self.silent = true;
        }
    }
}
