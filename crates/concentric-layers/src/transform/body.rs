use super::{Emit, Transform};
use crate::body::Polled;
use concentric_core::{Error, Event};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Response body for [`TransformEvents`](super::TransformEvents).
#[must_use = "streams do nothing unless polled"]
pub struct TransformBody<B, T> {
    // Boxed, since it is polled before the future moves it into the response. Dropped at its end.
    inner: Option<Pin<Box<B>>>,
    transform: T,
    ready: VecDeque<Result<Event, Error>>,
    // Whether an item follows those that are ready.
    is_open: bool,
}

impl<B, T> TransformBody<B, T>
where
    B: Stream<Item = Result<Event, Error>>,
    T: Transform,
{
    pub(super) fn new(inner: B, transform: T) -> Self {
        Self {
            inner: Some(Box::pin(inner)),
            transform,
            ready: VecDeque::new(),
            is_open: true,
        }
    }

    /// Creates the body of a call that failed.
    pub(super) fn failed(error: Error, transform: T) -> Self {
        let mut body = Self {
            inner: None,
            transform,
            ready: VecDeque::new(),
            is_open: true,
        };
        body.fail(error);
        body
    }

    /// Polls the inner body until content is ready to be yielded.
    ///
    /// An error before the first content is returned by the future.
    pub(super) fn poll_commit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut seen = 0;
        loop {
            while let Some(item) = self.ready.get(seen) {
                match item {
                    Ok(event) if event.is_content() => return Poll::Ready(Ok(())),
                    Ok(_) => seen += 1,
                    Err(error) => return Poll::Ready(Err(error.clone())),
                }
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(Err(Error::truncated()));
            }
        }
    }

    // These are not inlined into the path of each event.
    #[cold]
    fn emitted(&mut self, emit: Emit, cx: &mut Context<'_>) -> Polled {
        self.emit(emit);
        self.poll_queued(cx)
    }

    #[cold]
    fn ended(&mut self, item: Option<Result<Event, Error>>, cx: &mut Context<'_>) -> Polled {
        match self.take(item) {
            true => self.poll_queued(cx),
            false => Poll::Ready(None),
        }
    }

    /// Returns the next item, which is in the queue if that is not empty.
    #[inline(never)]
    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Poll::Ready(Some(item));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// Reads one item of the inner body; `false` if there is none.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(false);
        };
        let item = ready!(inner.as_mut().poll_next(cx));
        Poll::Ready(self.take(item))
    }

    /// Processes an item of the inner body; `false` if nothing follows.
    fn take(&mut self, item: Option<Result<Event, Error>>) -> bool {
        match item {
            Some(Ok(Event::Finish(mut finish))) => {
                let held = self.transform.flush();
                self.emit(held);
                if self.end() {
                    self.transform.finish(&mut finish);
                    self.ready.push_back(Ok(Event::Finish(finish)));
                }
            }
            Some(Ok(event)) => {
                let emit = self.transform.event(event);
                self.emit(emit);
            }
            end => {
                let held = self.transform.flush();
                self.emit(held);
                match end {
                    Some(Err(error)) if self.is_open => self.fail(error),
                    _ => _ = self.end(),
                }
                return !self.ready.is_empty();
            }
        }
        true
    }

    /// Passes an error to the transform, whose result ends the body.
    fn fail(&mut self, error: Error) {
        let end = self.transform.error(error);
        self.emit(end);
        self.end();
    }

    /// Drops the inner body; `false` if the body has ended before.
    fn end(&mut self) -> bool {
        self.inner = None;
        mem::replace(&mut self.is_open, false)
    }

    fn emit(&mut self, emit: Emit) {
        match emit {
            Emit::None => {}
            Emit::One(event) => self.push(event),
            Emit::Many(events) => events.into_iter().for_each(|event| self.push(event)),
            Emit::Fail(error) => {
                if self.end() {
                    self.ready.push_back(Err(error));
                }
            }
        }
    }

    fn push(&mut self, event: Event) {
        if !self.is_open || is_empty(&event) {
            return;
        }
        if event.is_finish() {
            self.end();
        }
        self.ready.push_back(Ok(event));
    }
}

/// Returns whether an event has no effect.
fn is_empty(event: &Event) -> bool {
    matches!(event, Event::TextDelta(text) | Event::ReasoningDelta(text) if text.is_empty())
}

// The inner body is boxed, and the other fields are plain data.
impl<B, T> Unpin for TransformBody<B, T> {}

impl<B, T> Stream for TransformBody<B, T>
where
    B: Stream<Item = Result<Event, Error>>,
    T: Transform,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if !this.ready.is_empty() {
            return this.poll_queued(cx);
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        match inner.as_mut().poll_next(cx) {
            Poll::Pending => Poll::Pending,
            // An event that becomes one event is not queued.
            Poll::Ready(Some(Ok(event))) if !event.is_finish() => {
                match this.transform.event(event) {
                    Emit::One(event) if !event.is_finish() && !is_empty(&event) => {
                        Poll::Ready(Some(Ok(event)))
                    }
                    emit => this.emitted(emit, cx),
                }
            }
            Poll::Ready(item) => this.ended(item, cx),
        }
    }
}

impl<B, T> fmt::Debug for TransformBody<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformBody")
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
