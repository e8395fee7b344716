use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use concentric_core::Error;
use http_body::{Body, Frame, SizeHint};

use super::run::Answering;
use crate::{
    keep_alive::KeepAlive,
    merge::{Merge, PIECE},
};

/// Response body of [`OpenAi`](super::OpenAi): a JSON object, or server-sent events.
///
/// Polling the body of a stream drives the run, and dropping it drops the run. A stream that fails
/// ends with an event that has the error, and then with an error of the body: an HTTP/1.1 server
/// closes the connection without the end of the chunked encoding, and an HTTP/2 server resets the
/// stream. The SDKs do not notice a stream that ends otherwise before its last event.
///
/// Events that are ready together are returned as one chunk of about 16 KiB, and waits of up to
/// 10 ms merge small chunks, but not the first ones after a pause.
#[must_use = "bodies do nothing unless polled"]
pub struct ResponseBody {
    kind: Kind,
}

enum Kind {
    Whole(Option<Bytes>),
    Stream(Box<EventStream>),
}

struct EventStream {
    run: Answering,
    merge: Merge,
    keep_alive: Option<KeepAlive>,
    stage: Stage,
}

enum Stage {
    Running,
    /// The end is written, and the error follows it.
    Failed(Error),
    /// The server sends the bytes before it is polled again, and gets the error then.
    Cut(Error),
    Over,
}

impl ResponseBody {
    pub(super) const fn whole(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Whole(Some(bytes)),
        }
    }

    pub(super) fn stream(run: Answering, keep_alive: Option<KeepAlive>) -> Self {
        Self {
            kind: Kind::Stream(Box::new(EventStream {
                run,
                merge: Merge::new(),
                keep_alive,
                stage: Stage::Running,
            })),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let chunk = match &mut self.kind {
            Kind::Whole(bytes) => bytes.take().map(Ok),
            Kind::Stream(stream) => ready!(stream.poll_chunk(cx)),
        };
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream(stream) => stream.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}

impl EventStream {
    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Running => self.stage = Stage::Running,
            Stage::Over => return Poll::Ready(None),
            Stage::Failed(error) => {
                self.stage = Stage::Cut(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Stage::Cut(error) => return Poll::Ready(Some(Err(error))),
        }
        self.run.poll(cx);
        if let Some(end) = self.run.take_end() {
            self.run.write_end(&end);
            self.stage = match end {
                Err(failure) => Stage::Failed(failure.into_error()),
                Ok(_) => Stage::Over,
            };
        }
        let is_running = matches!(self.stage, Stage::Running);
        let len = self.run.out().len();
        let now = self.run.context().environment().clock().monotonic();
        if len == 0 {
            if !is_running {
                return Poll::Ready(None);
            }
            let context = self.run.context();
            let comment = ready!(KeepAlive::poll(&mut self.keep_alive, context, cx));
            self.merge.sent(now);
            return Poll::Ready(Some(Ok(comment)));
        }
        if is_running && (1..PIECE).contains(&len) && self.merge.waits(len, now) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.merge.sent(now);
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.sent(now);
        }
        Poll::Ready(Some(Ok(self.run.out().split().freeze())))
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
