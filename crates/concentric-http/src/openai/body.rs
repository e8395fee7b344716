use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::{Context as Run, Environment, Error, ErrorKind};
use http_body::{Body, Frame, SizeHint};
use tokio::{runtime::Handle, task::AbortHandle};

use super::{failure::Failure, follow::Following, run::Answering};
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
/// The run of a client that reads nothing for the time of
/// [`read_timeout`](super::OpenAi::read_timeout) is dropped, and the body then ends with an error.
///
/// Events that are ready together are returned as one chunk of about 16 KiB, and waits of up to
/// 10 ms merge small chunks, but not the first ones after a pause. A larger event is returned in pieces,
/// each of which shows that the client reads.
#[must_use = "bodies do nothing unless polled"]
pub struct ResponseBody {
    kind: Kind,
}

enum Kind {
    Whole(Option<Bytes>),
    Stream {
        // Locked once for a chunk. Shared with the task that watches the reader.
        stream: Arc<Mutex<EventStream>>,
        _watch: Option<Watch>,
    },
}

struct EventStream {
    // `None` after its client has not read in time.
    source: Option<Source>,
    merge: Merge,
    keep_alive: Option<KeepAlive>,
    stage: Stage,
    // When the last chunk was returned (monotonic); `None` while the reader waits for the next one.
    unread_since: Option<Duration>,
}

/// The source of a stream's events.
pub(super) enum Source {
    /// A run, which the stream drives.
    Run(Box<Answering>),
    /// The log of a background run.
    Log(Following),
}

/// The task that ends the stream of a client that does not read. Dropping this value ends the task.
struct Watch(AbortHandle);

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

    pub(super) fn stream(
        source: Source,
        keep_alive: Option<KeepAlive>,
        read_timeout: Option<Duration>,
    ) -> Self {
        let environment = source.context().environment().clone();
        let stream = Arc::new(Mutex::new(EventStream {
            source: Some(source),
            // A stream begins with its first content.
            merge: Merge::new(1),
            keep_alive,
            stage: Stage::Running,
            unread_since: Some(environment.clock().monotonic()),
        }));
        let watch = match (read_timeout, Handle::try_current()) {
            (Some(limit), Ok(runtime)) => {
                let watch = watch(Arc::downgrade(&stream), limit, environment);
                Some(Watch(runtime.spawn(watch).abort_handle()))
            }
            _ => None,
        };
        Self {
            kind: Kind::Stream {
                stream,
                _watch: watch,
            },
        }
    }
}

impl From<Bytes> for ResponseBody {
    /// Creates a body that is not a stream.
    fn from(bytes: Bytes) -> Self {
        Self::whole(bytes)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ends a stream whose chunk is not read within `limit`. A server polls the body again when it has sent
/// a chunk, so that the body itself cannot notice this.
async fn watch(stream: Weak<Mutex<EventStream>>, limit: Duration, environment: Environment) {
    let mut left = limit;
    while !left.is_zero() {
        environment.clock().sleep(left).await;
        let Some(stream) = stream.upgrade() else {
            return;
        };
        let now = environment.clock().monotonic();
        let mut stream = match stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(stream)) => stream.into_inner(),
            // It is read at this moment.
            Err(TryLockError::WouldBlock) => {
                left = limit;
                continue;
            }
        };
        let unread = stream.unread_since.map(|since| now.saturating_sub(since));
        left = limit.saturating_sub(unread.unwrap_or_default());
        if left.is_zero() {
            stream.stop();
        }
    }
}

fn lock(stream: &Mutex<EventStream>) -> MutexGuard<'_, EventStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
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
            Kind::Stream { stream, .. } => ready!(lock(stream).poll_chunk(cx)),
        };
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream { stream, .. } => lock(stream).is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Stream { .. } => SizeHint::default(),
        }
    }
}

impl Source {
    const fn context(&self) -> &Run {
        match self {
            Self::Run(run) => run.context(),
            Self::Log(log) => log.context(),
        }
    }

    /// The number of bytes that are ready.
    fn len(&mut self) -> usize {
        match self {
            Self::Run(run) => run.out().len(),
            Self::Log(log) => log.unsent().len(),
        }
    }

    /// Takes bytes that are ready.
    fn take(&mut self, len: usize) -> Bytes {
        match self {
            Self::Run(run) => run.out().split_to(len).freeze(),
            Self::Log(log) => log.unsent().split_to(len),
        }
    }

    /// Gets further bytes ready, and returns the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Error>> {
        match self {
            Self::Run(run) => {
                run.poll(cx);
                let end = run.take_end()?;
                run.write_end(&end);
                Some(end.map(drop).map_err(Failure::into_error))
            }
            Self::Log(log) => log.poll(cx),
        }
    }
}

impl EventStream {
    fn is_over(&mut self) -> bool {
        let has_bytes = self.source.as_mut().is_some_and(|source| source.len() > 0);
        matches!(self.stage, Stage::Over) && !has_bytes
    }

    /// Drops the source, whose client does not read, and all that the stream has.
    fn stop(&mut self) {
        if self.is_over() {
            return;
        }
        let Some(source) = self.source.take() else {
            return;
        };
        tracing::warn!(
            run_id = %source.context().run_id(),
            "a client of the OpenAI server has not read its stream in time"
        );
        if let Source::Run(mut run) = source {
            run.stop();
        }
        let message = "the client has not read the stream in time";
        self.stage = Stage::Cut(Error::new(ErrorKind::Timeout, message));
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        self.unread_since = None;
        let Some(source) = &mut self.source else {
            return self.poll_end(cx);
        };
        if matches!(self.stage, Stage::Running)
            && source.len() < PIECE
            && let Some(end) = source.poll(cx)
        {
            self.stage = match end {
                Err(error) => Stage::Failed(error),
                Ok(()) => Stage::Over,
            };
        }
        let is_running = matches!(self.stage, Stage::Running);
        let len = source.len();
        let now = source.context().environment().clock().monotonic();
        let chunk = match len {
            0 if !is_running => return self.poll_end(cx),
            0 => ready!(KeepAlive::poll(&mut self.keep_alive, source.context(), cx)),
            _ if is_running && len < PIECE && self.merge.waits(len, now) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            _ if len > 2 * PIECE => source.take(PIECE),
            _ => source.take(len),
        };
        self.merge.sent(now);
        self.unread_since = Some(now);
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.sent(now);
        }
        Poll::Ready(Some(Ok(chunk)))
    }

    /// The end of a stream whose bytes are all sent.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Failed(error) => {
                self.stage = Stage::Cut(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Stage::Cut(error) => Poll::Ready(Some(Err(error))),
            Stage::Running | Stage::Over => Poll::Ready(None),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
