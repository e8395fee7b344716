//! Reads a streamed HTTP/1.1 response ahead of its consumer.
//!
//! hyper's connection passes on one chunk each time that the body is polled, also when the next ones have
//! arrived, so that a stack of services would be woken and polled for each of them. A task of the response
//! collects the chunks that are ready together, and wakes the consumer once for all.

use super::broken;
use bytes::{Bytes, BytesMut};
use concentric_core::Error;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};
use tokio::task::AbortHandle;

/// The size in bytes at which no further chunks are collected. The consumer may have as much besides.
const LIMIT: usize = 32 << 10;

/// Smaller chunks are copied into pieces of this size, in bytes: each chunk may keep a buffer of the connection, of 8 KiB
/// and more.
const PIECE: usize = 4 << 10;

/// The number of polls without a further chunk after which the consumer is woken: the connection gets its turn
/// between two of them.
const POLLS: u8 = 2;

/// The number of chunks after which the consumer is woken in any case: small events of about 16 KiB, which a server sends
/// as one chunk. On a busy runtime, each of them takes as long as the task waits for its turn.
const CHUNKS: u8 = 64;

/// The body of a response, read by a task that ends when this is dropped.
pub(super) struct ReadAhead {
    // Taken from the task, all that it has at once.
    chunks: VecDeque<Bytes>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    // What the consumer has not taken: chunks, and after them a piece of small ones. It may take them before it is woken,
    // so that it does not report an idle connection while they are collected.
    chunks: VecDeque<Bytes>,
    piece: BytesMut,
    // The number of collected chunks, and their size.
    count: u8,
    size: usize,
    end: Option<End>,
    // The consumer that waits for a chunk, and the task that waits until there is room.
    consumer: Option<Waker>,
    task: Option<Waker>,
}

/// The end of a body, with its trailers.
type End = Result<Option<HeaderMap>, Error>;

impl ReadAhead {
    /// Must be called in a tokio runtime.
    pub(super) fn new(body: Incoming) -> Self {
        let shared = Arc::new(Shared(Mutex::default()));
        let task = Task {
            body,
            shared: Arc::clone(&shared),
            polls: POLLS,
            is_full: false,
        };
        Self {
            chunks: VecDeque::new(),
            shared,
            task: tokio::spawn(task).abort_handle(),
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.chunks.is_empty() {
            ready!(self.shared.poll_chunks(&mut self.chunks, cx));
        }
        let frame = match self.chunks.pop_front() {
            Some(chunk) => Some(Ok(Frame::data(chunk))),
            None => self.shared.take_end(),
        };
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.shared.lock();
        self.chunks.is_empty() && state.size == 0 && matches!(state.end, Some(Ok(None)))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.task.abort();
        // The task may be dropped much later.
        let mut state = self.shared.lock();
        let kept = std::mem::take(&mut *state);
        drop(state);
        drop(kept);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there are chunks, which are moved to `into`, or the end.
    fn poll_chunks(&self, into: &mut VecDeque<Bytes>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.is_ready() {
            let replaced = match &state.consumer {
                Some(known) if known.will_wake(cx.waker()) => None,
                _ => state.consumer.replace(cx.waker().clone()),
            };
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        state.end_piece();
        std::mem::swap(into, &mut state.chunks);
        (state.count, state.size) = (0, 0);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
        Poll::Ready(())
    }

    /// Takes the trailers or the error at the end.
    fn take_end(&self) -> Option<Result<Frame<Bytes>, Error>> {
        let end = self.lock().end.replace(Ok(None))?;
        let last = end.transpose()?;
        Some(last.map(Frame::trailers))
    }

    /// Adds a chunk. Returns whether there is no room for more, as [`State::is_full`] does.
    // Locks once per chunk, mostly without contention.
    fn collect(&self, chunk: Bytes, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.collect(chunk);
        let is_full = state.is_full(cx);
        if is_full || state.count >= CHUNKS {
            wake(state);
        }
        is_full
    }

    fn end(&self, end: End) {
        let mut state = self.lock();
        state.end = Some(end);
        wake(state);
    }
}

/// Wakes the consumer if there is something for it.
fn wake(mut state: MutexGuard<'_, State>) {
    if state.is_ready() {
        let consumer = state.consumer.take();
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }
}

impl State {
    fn is_ready(&self) -> bool {
        self.size > 0 || self.end.is_some()
    }

    /// Whether there is no room for more. The task is woken when there is.
    fn is_full(&mut self, cx: &Context<'_>) -> bool {
        let is_full = self.size >= LIMIT;
        self.task = is_full.then(|| cx.waker().clone());
        is_full
    }

    fn collect(&mut self, chunk: Bytes) {
        self.count = self.count.saturating_add(1);
        self.size += chunk.len();
        if self.piece.len() + chunk.len() > PIECE {
            self.end_piece();
        }
        if chunk.len() >= PIECE {
            return self.chunks.push_back(chunk);
        }
        if !self.piece.is_empty() {
            self.piece.reserve(PIECE - self.piece.len());
        }
        self.piece.extend_from_slice(&chunk);
    }

    fn end_piece(&mut self) {
        if !self.piece.is_empty() {
            let piece = std::mem::take(&mut self.piece);
            self.chunks.push_back(piece.freeze());
        }
    }
}

/// Collects the chunks.
struct Task {
    body: Incoming,
    shared: Arc<Shared>,
    // The number of polls since the last chunk.
    polls: u8,
    // Whether the consumer had no room for more.
    is_full: bool,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.is_full {
            this.is_full = this.shared.lock().is_full(cx);
        }
        while !this.is_full {
            let end = match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        this.polls = 0;
                        this.is_full = this.shared.collect(chunk, cx);
                        continue;
                    }
                    Err(last) => Ok(last.into_trailers().ok()),
                },
                Poll::Ready(Some(Err(error))) => Err(broken().with_source(error)),
                Poll::Ready(None) => Ok(None),
                Poll::Pending => {
                    if this.polls < POLLS {
                        this.polls += 1;
                        match this.polls < POLLS {
                            true => cx.waker().wake_by_ref(),
                            false => wake(this.shared.lock()),
                        }
                    }
                    break;
                }
            };
            this.shared.end(end);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Task {
    /// Ends the body if the runtime drops the task.
    fn drop(&mut self) {
        let is_over = self.shared.lock().end.is_some();
        if !is_over {
            self.shared.end(Err(broken()));
        }
    }
}
