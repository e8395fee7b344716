//! Calls that several requests wait for.

use super::{
    answer::{Recorder, Stored},
    key::{CacheControl, Key},
    layer::Options,
    progress::{Answer, Beginning, CallEnd, FIRST, Private, Progress},
};
use crate::caching::SharedStore;
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Context as RunContext, Error, ErrorKind, Event,
    EventStream, panic::catch, run_state::RunEdits,
};
use futures_core::Stream;
use moka::sync::Cache;
use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
};
use tower::ServiceExt;
use tower_service::Service;

/// The maximum number of calls that other requests can join.
const MAX_CALLS: usize = 1024;

/// The least number of bytes that a reader may be behind, so that sharing does not depend on small limits
/// of what is stored.
const MIN_BEHIND: usize = 64 << 10;

/// The stored answers, and the calls in progress.
pub(super) struct Answers {
    pub(super) stored: Cache<Key, Arc<Stored>>,
    calls: Mutex<HashMap<Key, Weak<SharedCall>>>,
}

/// The answer that a request receives.
pub(super) enum Found {
    Stored(Arc<Stored>),
    Shared(Reader),
}

impl Answers {
    pub(super) fn new(stored: Cache<Key, Arc<Stored>>) -> Self {
        Self {
            stored,
            calls: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<SharedCall>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, key: &Key, options: &Options, context: &RunContext) -> Option<Arc<Stored>> {
        let stored = self.stored.get(key)?;
        let now = context.environment().clock().monotonic();
        if stored.age(now) < options.cache.ttl {
            return Some(stored);
        }
        self.stored.invalidate(key);
        None
    }

    /// Returns a stored answer, or a call in progress, or a call that `begin` begins. `waiting` is the
    /// request's place in a call that has failed.
    pub(super) fn find(
        self: &Arc<Self>,
        key: &Key,
        options: &Options,
        context: &RunContext,
        waiting: Option<&Reader>,
        begin: impl FnOnce() -> Call,
    ) -> Found {
        let is_new = context.extensions().get() == Some(&CacheControl::Refresh);
        let stored = || match is_new {
            true => None,
            false => self.stored(key, options, context),
        };
        if let Some(stored) = stored() {
            return Found::Stored(stored);
        }
        // Dropped after the lock, which the last handle to a call takes.
        let (last, _left);
        let mut calls = self.lock();
        if let Some(reader) = waiting.and_then(Reader::moved) {
            return Found::Shared(reader);
        }
        last = calls.get(key).and_then(Weak::upgrade);
        if let Some(call) = &last
            && !is_new
            && let Some(at) = call.progress.join(None)
        {
            let call = Arc::clone(call);
            return Found::Shared(Reader { call, at });
        }
        // A call that has ended since has stored its answer before it was removed.
        if let Some(stored) = stored() {
            return Found::Stored(stored);
        }
        let reader = self.begin(&mut calls, key, options, begin());
        _left = last.as_ref().map(|last| reader.call.adopt(last));
        Found::Shared(reader)
    }

    fn begin(
        self: &Arc<Self>,
        calls: &mut HashMap<Key, Weak<SharedCall>>,
        key: &Key,
        options: &Options,
        call: Call,
    ) -> Reader {
        let progress = Progress::new(options.cache.max_bytes.max(MIN_BEHIND));
        let shared = Arc::new(SharedCall {
            answers: Arc::clone(self),
            key: key.clone(),
            options: options.clone(),
            waker: Waker::from(Arc::clone(&progress)),
            progress,
            call: Mutex::new(call),
        });
        if calls.len() < MAX_CALLS || calls.contains_key(key) {
            calls.insert(key.clone(), Arc::downgrade(&shared));
        }
        Reader {
            call: shared,
            at: FIRST,
        }
    }
}

/// A model call with its readers. The last one drops it.
struct SharedCall {
    answers: Arc<Answers>,
    key: Key,
    options: Options,
    progress: Arc<Progress>,
    // Of `progress`, which does not contain the call: a call that keeps its waker does not keep itself.
    waker: Waker,
    // Only tried: a reader that finds it locked waits for the wakeup of the one that polls the call.
    call: Mutex<Call>,
}

/// The inner call, boxed because calls of services of different types are shared.
pub(super) struct Call {
    stage: Stage,
    context: RunContext,
    answer: Option<Answer>,
    recorder: Option<Recorder>,
    // The answer that the store has.
    found: Option<Arc<Stored>>,
}

enum Stage {
    // The lookup in the store, and then the inner call.
    Future(Pin<Box<dyn Future<Output = Result<Made, Error>> + Send>>),
    Body(EventStream),
    Ended,
}

/// The answer of a call.
enum Made {
    Response(ChatResponse<EventStream>),
    Stored(Arc<Stored>),
}

/// A lookup in the store.
pub(super) type Lookup = Pin<Box<dyn Future<Output = Result<Option<Arc<Stored>>, Error>> + Send>>;

impl Call {
    pub(super) fn new<S, B>(inner: S, mut request: ChatRequest, lookup: Option<Lookup>) -> Self
    where
        S: Service<ChatRequest, Response = ChatResponse<B>> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: Stream<Item = Result<Event, Error>> + Send + 'static,
    {
        // The first request's run does not end the call for the others.
        request.context = request.context.shared();
        let context = request.context.clone();
        let future = async {
            if let Some(lookup) = lookup
                && let Some(stored) = lookup.await?
            {
                return Ok(Made::Stored(stored));
            }
            let answer = inner.oneshot(request).await;
            let answer = answer.map_err(|error| Error::from(error.into()))?;
            Ok(Made::Response(answer.map_body(EventStream::new)))
        };
        Self {
            stage: Stage::Future(Box::pin(future)),
            context,
            answer: None,
            recorder: None,
            found: None,
        }
    }

    /// Resolves with the next item of the body.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        loop {
            match &mut self.stage {
                Stage::Future(future) => {
                    let response = match ready!(future.as_mut().poll(cx)) {
                        Ok(Made::Response(response)) => response,
                        Ok(Made::Stored(stored)) => {
                            self.found = Some(stored);
                            self.stage = Stage::Ended;
                            continue;
                        }
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    };
                    let mut body = None;
                    self.answer = Some(response.map_body(|it| body = Some(it)));
                    self.stage = body.map_or(Stage::Ended, Stage::Body);
                }
                Stage::Body(body) => return Pin::new(body).poll_next(cx),
                Stage::Ended => return Poll::Ready(None),
            }
        }
    }
}

impl SharedCall {
    /// Polls the call for the reader at `at`. Returns whether there is an event or an end.
    ///
    /// The reader has registered its waker. If the call was not woken since it was last polled, its waker
    /// will wake the reader; if another reader polls it at the moment, that one will.
    fn drive(&self, at: usize) -> bool {
        // `step` catches panics of the call, so that the lock is never poisoned.
        let Ok(mut call) = self.call.try_lock() else {
            return false;
        };
        let has_progress = self.progress.take_woken() && self.step(&mut call);
        drop(call);
        // There is an event or an end for the other readers; those that found the call locked wait as well, although
        // it was woken or has more.
        if self.progress.is_woken() {
            self.progress.wake_readers(Some(at));
        }
        has_progress
    }

    fn step(&self, call: &mut Call) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        let polled = catch(|| call.poll(&mut cx));
        let item = match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(item)) => item,
            Err(panic) => {
                let panic = panic.text();
                tracing::error!(target: "concentric::response_cache", panic, "a shared model call panicked");
                let why = "the shared model call panicked";
                Some(Err(Error::new(ErrorKind::Other, why)))
            }
        };
        self.progress.set_woken();
        match item {
            Some(Ok(event)) => self.event(call, event),
            Some(Err(error)) => self.end(call, CallEnd::Failed(error)),
            None => match call.found.take() {
                Some(stored) => self.found(call, stored),
                None => self.end(call, CallEnd::Truncated),
            },
        }
        true
    }

    fn event(&self, call: &mut Call, event: Event) {
        if let Some(answer) = call.answer.take() {
            // Answers of agents and edits of a run are of one run.
            let is_private = matches!(event, Event::StepStart(_))
                || answer.extensions.get::<RunEdits>().is_some();
            if let (true, Stage::Body(_)) = (is_private, &call.stage)
                && let Stage::Body(body) = std::mem::replace(&mut call.stage, Stage::Ended)
            {
                let first = event;
                let private = Private {
                    answer,
                    first,
                    body,
                };
                return self.end(call, CallEnd::Private(Some(Box::new(private))));
            }
            let Options { cache, tool_calls } = &self.options;
            let recorder = Recorder::new(&answer.head, cache.max_bytes, *tool_calls);
            call.recorder = Some(recorder);
            self.progress.begin(answer);
        }
        if let Event::Finish(finish) = &event {
            let now = call.context.environment().clock().monotonic();
            let recorder = call.recorder.take();
            if let Some(stored) = recorder.and_then(|recorder| recorder.finish(finish, now)) {
                let stored = Arc::new(stored);
                self.keep(&stored);
                let key = |store: &SharedStore| self.key.in_store(store);
                let context = &call.context;
                self.options
                    .cache
                    .store(key, context, move || stored.to_json());
            }
            self.progress.push(event);
            self.end(call, CallEnd::Finished);
            return;
        }
        call.recorder.take_if(|recorder| !recorder.push(&event));
        self.progress.push(event);
    }

    /// Ends the call with the answer that the store has.
    fn found(&self, call: &mut Call, stored: Arc<Stored>) {
        self.keep(&stored);
        self.end(call, CallEnd::Stored(stored));
    }

    /// Keeps an answer in the process.
    fn keep(&self, stored: &Arc<Stored>) {
        let answers = &self.answers.stored;
        answers.insert(self.key.clone(), Arc::clone(stored));
        // Evicts the least recently used answers now rather than at some later call.
        answers.run_pending_tasks();
    }

    fn end(&self, call: &mut Call, end: CallEnd) {
        // The call is over before its readers know.
        let ended = std::mem::replace(&mut call.stage, Stage::Ended);
        drop(catch(|| drop(ended)));
        call.recorder = None;
        self.progress.end(end);
        // The next call adopts readers that have not been polled since.
        if self.progress.in_need().is_empty() {
            self.remove();
        }
    }

    /// Gives the readers of `last` that need another call a place in this one, so that none makes another
    /// one because it is polled after this one has ended. Returns the places that they leave, which must be dropped
    /// without the lock of the calls.
    fn adopt(self: &Arc<Self>, last: &Arc<Self>) -> Vec<(Option<Arc<Self>>, Option<Reader>)> {
        let mut left = Vec::new();
        for (at, origin) in last.progress.in_need() {
            let origin = origin.and_then(|Origin { call, at }| Some((call.upgrade()?, at)));
            // The place is found where the reader will look next, however many calls have failed since.
            let (from, from_at) = match &origin {
                Some((call, at)) if call.progress.has_moved(*at) => (call, *at),
                _ => (last, at),
            };
            let place = self.progress.join(Some(Origin {
                call: Arc::downgrade(from),
                at: from_at,
            }));
            let reader = place.map(|at| Reader {
                call: Arc::clone(self),
                at,
            });
            let reader = reader.and_then(|reader| from.progress.set_moved(from_at, reader));
            left.push((origin.map(|(call, _)| call), reader));
        }
        left
    }

    /// Removes the call, so that no further request joins it.
    fn remove(&self) {
        let mut calls = self.answers.lock();
        let is_this = |call: &Weak<Self>| std::ptr::eq(call.as_ptr(), self);
        if calls.get(&self.key).is_some_and(is_this) {
            calls.remove(&self.key);
        }
    }
}

impl Drop for SharedCall {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A place in an earlier call.
#[derive(Clone)]
pub(super) struct Origin {
    call: Weak<SharedCall>,
    at: usize,
}

/// One of the requests that wait for a call.
pub(super) struct Reader {
    call: Arc<SharedCall>,
    at: usize,
}

impl Reader {
    /// Whether the request's run made the call.
    pub(super) const fn is_first(&self) -> bool {
        self.at == FIRST
    }

    /// Takes the request's place in a later call, while the calls are locked.
    fn moved(&self) -> Option<Self> {
        self.call.progress.take_moved(self.at)
    }

    pub(super) fn poll_beginning(&self, cx: &mut Context<'_>) -> Poll<Beginning> {
        self.poll(|progress| progress.poll_beginning(self.at, cx.waker()))
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        self.poll(|progress| progress.poll_next(self.at, cx.waker()))
    }

    fn poll<T>(&self, poll: impl Fn(&Progress) -> Poll<T>) -> Poll<T> {
        loop {
            if let ready @ Poll::Ready(_) = poll(&self.call.progress) {
                return ready;
            }
            if !self.call.drive(self.at) {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.call.progress.leave(self.at);
    }
}
