use super::{
    Replayed, ResponseCacheBody,
    answer::{Replay, Stored},
    call::{Answers, Call, Found, Lookup, Reader},
    key::{CacheControl, Key},
    layer::Options,
    progress::{Answer, Beginning, Private},
};
use crate::wait::Stop;
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Context as RunContext, CustomEvent, Error, Event,
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use serde_json::json;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower::util::Oneshot;
use tower_service::Service;

/// The description of a wait in errors.
pub(super) const WAITS_FOR: &str = "an answer that it shares with other runs";

pin_project! {
    /// Response future for [`ResponseCache`](super::ResponseCache).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        stage: Stage<S>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S>
    where
        S: Service<ChatRequest>,
    {
        // A request that is not cached.
        Passed { #[pin] call: Oneshot<S, ChatRequest> },
        // Boxed, so that it need not be pinned to be moved.
        Cached { request: Box<Request<S>> },
        Done,
    }
}

/// A request that is cached.
pub(super) struct Request<S> {
    pub(super) inner: S,
    pub(super) request: ChatRequest,
    pub(super) key: Key,
    pub(super) options: Options,
    pub(super) answers: Arc<Answers>,
    reader: Option<Reader>,
    // Created with the first wait.
    stop: Option<Stop>,
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn passed(inner: S, request: ChatRequest) -> Self {
        let call = Oneshot::new(inner, request);
        Self {
            stage: Stage::Passed { call },
        }
    }

    pub(super) fn cached(
        inner: S,
        request: ChatRequest,
        key: Key,
        options: Options,
        answers: Arc<Answers>,
    ) -> Self {
        let request = Box::new(Request {
            inner,
            request,
            key,
            options,
            answers,
            reader: None,
            stop: None,
        });
        Self {
            stage: Stage::Cached { request },
        }
    }
}

impl<S, B> Request<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ChatResponse<ResponseCacheBody<B>>, Error>> {
        // The place in a call that has failed.
        let mut last: Option<Reader> = None;
        loop {
            let reader = match self.reader.take() {
                Some(reader) => reader,
                None => {
                    // A run that is cancelled or late begins no call.
                    if let Poll::Ready(error) = self.stop().poll(WAITS_FOR, cx) {
                        return Poll::Ready(Err(error));
                    }
                    match self.find(last.as_ref()) {
                        Found::Stored(stored) => return Poll::Ready(Ok(self.replay(stored))),
                        Found::Shared(reader) => reader,
                    }
                }
            };
            return match reader.poll_beginning(cx) {
                Poll::Ready(Beginning::Shared(answer)) => {
                    Poll::Ready(Ok(self.share(answer, reader)))
                }
                Poll::Ready(Beginning::Private(private)) => {
                    let Private {
                        answer,
                        first,
                        body,
                    } = *private;
                    Poll::Ready(Ok(
                        answer.map_body(|()| ResponseCacheBody::private(first, body))
                    ))
                }
                Poll::Ready(Beginning::Stored(stored)) => Poll::Ready(Ok(self.replay(stored))),
                Poll::Ready(Beginning::Failed(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Beginning::Again) => {
                    last = Some(reader);
                    continue;
                }
                Poll::Pending => {
                    self.reader = Some(reader);
                    self.stop().poll(WAITS_FOR, cx).map(Err)
                }
            };
        }
    }

    fn stop(&mut self) -> &mut Stop {
        let context = &self.request.context;
        self.stop.get_or_insert_with(|| Stop::new(context))
    }

    fn find(&self, last: Option<&Reader>) -> Found {
        let begin = || {
            // One lookup of a request is enough.
            let lookup = last.is_none().then(|| self.lookup()).flatten();
            Call::new(self.inner.clone(), self.request.clone(), lookup)
        };
        let context = &self.request.context;
        self.answers
            .find(&self.key, &self.options, context, last, begin)
    }

    /// A lookup in the store, unless there is none or the request does not want a stored answer.
    fn lookup(&self) -> Option<Lookup> {
        self.options.cache.store.as_ref()?;
        let context = self.request.context.clone();
        if context.extensions().get() == Some(&CacheControl::Refresh) {
            return None;
        }
        let (options, key) = (self.options.clone(), self.key.clone());
        Some(Box::pin(async move {
            let Options { cache, tool_calls } = &options;
            let read = |json: &[u8]| Stored::from_json(json, cache.max_bytes, *tool_calls);
            let found = cache.find(|store| key.in_store(store), &context, read);
            let found = found.await?;
            let now = context.environment().clock().monotonic();
            Ok(found.map(|(stored, age)| Arc::new(stored.with_age(age, now))))
        }))
    }

    /// The answer that is stored.
    fn replay(&self, stored: Arc<Stored>) -> ChatResponse<ResponseCacheBody<B>> {
        let context = &self.request.context;
        report(context, "stored");
        let now = context.environment().clock().monotonic();
        let replayed = Replayed {
            usage: stored.usage,
            age: stored.age(now),
        };
        let head = stored.head.clone();
        let replay = Replay::new(stored, context.clone());
        let mut response = ChatResponse::new(ResponseCacheBody::stored(replay)).with_head(head);
        response.extensions.insert(replayed);
        response
    }

    /// The answer of a call in progress.
    fn share(&mut self, answer: Answer, reader: Reader) -> ChatResponse<ResponseCacheBody<B>> {
        let context = &self.request.context;
        if !reader.is_first() {
            report(context, "shared");
        }
        let stop = self.stop.take().unwrap_or_else(|| Stop::new(context));
        answer.map_body(|()| ResponseCacheBody::shared(reader, stop))
    }
}

/// Reports an answer for which the run has made no call.
fn report(context: &RunContext, answer: &str) {
    context.skip_stack_check();
    let value = json!({"answer": answer});
    // A consumer that is far behind loses the event, not the answer.
    let _ = context.emit(CustomEvent::new("concentric.response_cache", value));
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    type Output = Result<ChatResponse<ResponseCacheBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        let polled = match stage.as_mut().project() {
            StageProj::Passed { call } => call.poll(cx).map(|result| match result {
                Ok(response) => Ok(response.map_body(ResponseCacheBody::passed)),
                Err(error) => Err(Error::from(error.into())),
            }),
            StageProj::Cached { request } => request.poll(cx),
            StageProj::Done => Poll::Pending,
        };
        if polled.is_ready() {
            // A completed future holds nothing.
            stage.set(Stage::Done);
        }
        polled
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
