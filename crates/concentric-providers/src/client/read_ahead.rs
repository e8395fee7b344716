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

/// The size in bytes at which no further chunks are collected, and at which no more are passed on.
const LIMIT: usize = 16 << 10;

/// Smaller chunks are copied into pieces of this size, in bytes: each chunk may keep a buffer of the connection, of 8 KiB
/// and more.
const PIECE: usize = 4 << 10;

/// The number of polls without a further chunk after which the consumer is woken: the connection gets its turn
/// between two of them.
const POLLS: u8 = 2;

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
    chunks: VecDeque<Bytes>,
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
            chunks: VecDeque::new(),
            piece: BytesMut::new(),
            size: 0,
            polls: 0,
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
        let is_empty = self.chunks.is_empty() && state.chunks.is_empty();
        is_empty && matches!(state.end, Some(Ok(None)))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.task.abort();
        // The task may be dropped much later.
        let mut state = self.shared.lock();
        let kept = (std::mem::take(&mut state.chunks), state.consumer.take());
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
        if state.chunks.is_empty() && state.end.is_none() {
            let replaced = match &state.consumer {
                Some(known) if known.will_wake(cx.waker()) => None,
                _ => state.consumer.replace(cx.waker().clone()),
            };
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        std::mem::swap(into, &mut state.chunks);
        state.size = 0;
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

    /// Changes the state, and wakes the consumer.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        let consumer = state.consumer.take();
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        changed
    }
}

impl State {
    /// Whether there is no room for more. The task is woken when there is.
    fn is_full(&mut self, cx: &Context<'_>) -> bool {
        let is_full = self.size >= LIMIT;
        self.task = is_full.then(|| cx.waker().clone());
        is_full
    }
}

/// Collects the chunks.
struct Task {
    body: Incoming,
    shared: Arc<Shared>,
    // What the consumer cannot read yet: chunks, and after them a piece of small ones.
    chunks: VecDeque<Bytes>,
    piece: BytesMut,
    size: usize,
    // The number of polls since the last chunk.
    polls: u8,
    // Whether the consumer had no room for more.
    is_full: bool,
}

impl Task {
    fn collect(&mut self, chunk: Bytes) {
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

    /// Passes on what was collected, and the end.
    fn pass_on(&mut self, end: Option<End>, cx: &Context<'_>) {
        self.end_piece();
        let (chunks, size) = (&mut self.chunks, std::mem::take(&mut self.size));
        self.is_full = self.shared.change(|state| {
            match state.chunks.is_empty() {
                true => std::mem::swap(&mut state.chunks, chunks),
                false => state.chunks.append(chunks),
            }
            state.size += size;
            state.end = end;
            state.is_full(cx)
        });
    }
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
                        this.collect(chunk);
                        this.polls = 0;
                        if this.size >= LIMIT {
                            this.pass_on(None, cx);
                        }
                        continue;
                    }
                    Err(last) => Ok(last.into_trailers().ok()),
                },
                Poll::Ready(Some(Err(error))) => Err(broken().with_source(error)),
                Poll::Ready(None) => Ok(None),
                Poll::Pending => {
                    if this.size > 0 {
                        this.polls += 1;
                        match this.polls < POLLS {
                            true => cx.waker().wake_by_ref(),
                            false => this.pass_on(None, cx),
                        }
                    }
                    break;
                }
            };
            this.pass_on(Some(end), cx);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Task {
    /// Ends the body if the runtime drops the task.
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.end.get_or_insert_with(|| Err(broken()));
        });
    }
}
