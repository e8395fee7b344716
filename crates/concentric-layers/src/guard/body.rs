use super::{
    Parts,
    lane::Lane,
    layer::{BLOCKED, Options},
};
use crate::body::{Passed, body};
use concentric_core::{ChatRequest, Context, Error, Event, FinishReason, SideEffects, Str, Usage};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

body! {
    /// Response body for [`Guard`](super::Guard).
    pub struct GuardBody<B>(Passed<B, Box<Watched<B>>>);
}

/// An answer whose events are searched.
struct Watched<B> {
    // `None` once the answer has ended. Boxed, since it is polled before the future moves it into the
    // response.
    inner: Option<Pin<Box<B>>>,
    watch: Box<Watch>,
}

/// The held and the released events of an answer.
pub(super) struct Watch {
    options: Arc<Options>,
    // The context of the call, and the number of the run's effects before it.
    context: Context,
    effects: u64,
    lane: Lane,
    released: VecDeque<Event>,
    // Whether the inner body has ended, or nothing of it follows.
    is_over: bool,
    // The error that follows the released events.
    failed: Option<Error>,
}

impl Watch {
    /// Creates the state of an answer to `request`; `None` if all events pass.
    pub(super) fn new(options: &Arc<Options>, request: &ChatRequest) -> Option<Box<Self>> {
        if !options.has_output() {
            return None;
        }
        let is_typed = request.options.output_schema.is_some();
        Some(Box::new(Self {
            options: Arc::clone(options),
            context: request.context.clone(),
            effects: request.context.effect_count(),
            lane: Lane::new(is_typed && options.output.contains(Parts::TEXT)),
            released: VecDeque::new(),
            is_over: false,
            failed: None,
        }))
    }

    /// The state of a call whose input is blocked.
    fn blocked(options: &Arc<Options>, text: Str) -> Self {
        Self {
            options: Arc::clone(options),
            context: Context::new(),
            effects: 0,
            lane: Lane::default(),
            released: replacement(text).into(),
            is_over: false,
            failed: None,
        }
    }

    /// Takes an item of the inner body, and edits it in place. Returns whether it is emitted at once.
    // Inlined always: a call would move the event.
    #[inline(always)]
    fn take(&mut self, item: &mut Option<Result<Event, Error>>) -> bool {
        let Some(Ok(event)) = item else {
            self.take_end(item.take());
            return false;
        };
        self.is_over = event.is_finish();
        match self.lane.take(&self.options, event, &mut self.released) {
            Ok(true) if self.released.is_empty() => return true,
            Ok(true) => self.released.extend(item.take().and_then(Result::ok)),
            Ok(false) => {}
            Err(error) => self.fail(error),
        }
        false
    }

    /// Takes the end of the inner body.
    fn take_end(&mut self, item: Option<Result<Event, Error>>) {
        self.is_over = true;
        match (self.lane.end(&self.options, &mut self.released), item) {
            (Err(error), _) => self.fail(error),
            (Ok(()), Some(Err(error))) => {
                self.failed = Some(self.with_effects(self.options.error(error)));
            }
            (Ok(()), _) => {}
        }
    }

    /// Ends the answer with an error of the layer itself.
    fn fail(&mut self, error: Error) {
        self.is_over = true;
        match &self.options.block_with {
            Some(text) if error.code() == Some(BLOCKED) => {
                self.released.extend(replacement(text.clone()));
            }
            _ => self.failed = Some(self.with_effects(error)),
        }
    }

    /// Adds to an error that tools have had effects.
    fn with_effects(&self, error: Error) -> Error {
        if self.context.effect_count() == self.effects {
            return error;
        }
        let effects = error.effects().max(SideEffects::Possible);
        error.with_effects(effects)
    }
}

/// The events in place of a blocked text.
fn replacement(text: Str) -> [Event; 2] {
    let finish = Event::finish(FinishReason::ContentFilter, Usage::default());
    [Event::TextDelta(text), finish]
}

impl<B> GuardBody<B> {
    /// The body of an answer, of which all events pass if nothing is watched.
    pub(super) fn new(body: B, watch: Option<Box<Watch>>) -> Self {
        match watch {
            None => Self {
                inner: Passed::Inner { body },
            },
            Some(watch) => Self::watched(Some(Box::pin(body)), watch),
        }
    }

    /// The body of a call whose input is blocked.
    pub(super) fn blocked(options: &Arc<Options>, text: Str) -> Self {
        Self::watched(None, Box::new(Watch::blocked(options, text)))
    }

    fn watched(inner: Option<Pin<Box<B>>>, watch: Box<Watch>) -> Self {
        let body = Box::new(Watched { inner, watch });
        Self {
            inner: Passed::Other { body },
        }
    }
}

impl<B> GuardBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    /// Reads until content is released, or the answer has ended.
    pub(super) fn poll_commit(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        match &mut self.inner {
            Passed::Inner { .. } => Poll::Ready(Ok(())),
            Passed::Other { body } => body.poll_commit(cx),
        }
    }
}

impl<B> Watched<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    fn poll_commit(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        let Self { inner, watch } = self;
        loop {
            if watch.released.iter().any(Event::is_content) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = watch.failed.take() {
                return Poll::Ready(Err(error));
            }
            let Some(body) = inner else {
                return Poll::Ready(Err(Error::truncated()));
            };
            let mut item = ready!(body.as_mut().poll_next(cx));
            if watch.take(&mut item) {
                watch.released.extend(item.and_then(Result::ok));
            }
            if watch.is_over {
                *inner = None;
            }
        }
    }
}

impl<B> Stream for Watched<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Not inlined into the path of each event that passes.
    #[inline(never)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { inner, watch } = &mut *self;
        loop {
            if let Some(event) = watch.released.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = watch.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(body) = inner else {
                return Poll::Ready(None);
            };
            // Edited where it is, since moving it costs as much as passing it through several layers.
            let mut item = ready!(body.as_mut().poll_next(cx));
            let is_emitted = watch.take(&mut item);
            if watch.is_over {
                *inner = None;
            }
            if is_emitted {
                return Poll::Ready(item);
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.watch.released.len(), None)
    }
}
