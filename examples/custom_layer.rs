//! Three ways to write a custom layer.
//!
//! ```console
//! $ cargo run --example custom_layer
//! ```
//!
//! 1. [`retry`]: an async function, to change requests, skip calls or repeat them.
//! 2. [`Redact`]: a [`Transform`], to drop, change or delay events.
//! 3. [`TimingLayer`]: a tower [`Layer`] and [`Service`], without overhead.

use concentric::{
    BoxModel, ChatRequest, ChatResponse, Context as Run, Error, ErrorKind, Event, EventStream,
    FinishReason, Usage,
    layers::{Emit, Next, Transform, TransformLayer, from_fn},
};
use futures_util::{Stream, StreamExt, stream};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Error> {
    // As in any `ServiceBuilder`, the first layer is the outermost.
    let model = ServiceBuilder::new()
        .layer(TimingLayer)
        .layer(from_fn(retry))
        .layer(TransformLayer::new(|_request| Redact::new("swordfish")))
        .service(flaky_model());

    let mut response = model
        .oneshot(ChatRequest::user("What is the password?"))
        .await?;
    while let Some(event) = response.body.next().await {
        if let Event::TextDelta(text) = event? {
            println!("answer: {text:?}");
        }
    }
    Ok(())
}

/// A model whose first calls fail as overloaded, and which then streams deltas of a few letters.
fn flaky_model() -> BoxModel {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    BoxModel::new(service_fn(async |_: ChatRequest| {
        if CALLS.fetch_add(1, Ordering::Relaxed) < 2 {
            return Err(Error::new(ErrorKind::Overloaded, "try again later"));
        }
        let pieces = ["The pass", "word is sw", "ordf", "ish. Keep", " it secret."];
        let words = pieces.map(|piece| Ok(Event::text(piece)));
        let finish = Ok(Event::finish(FinishReason::Stop, Usage::new(4, 8)));
        Ok(ChatResponse::new(stream::iter(
            words.into_iter().chain([finish]),
        )))
    }))
}

// ---- 1. A function ----

/// Repeats a call that failed with a retryable error.
///
/// The future of a call resolves with its first content, so a call that fails here has not produced
/// any output, and repeating it duplicates nothing.
async fn retry(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
    for attempt in 1..3_u32 {
        match next.run(request.clone()).await {
            Err(error) if error.is_retryable() => {
                println!("retry: attempt {attempt} failed ({error})");
                let pause = Duration::from_millis(20) * attempt;
                // Returns early, with an error, if the run is cancelled.
                request
                    .context
                    .sleep(error.retry_after().unwrap_or(pause))
                    .await?;
            }
            result => return result,
        }
    }
    next.run(request).await
}

// ---- 2. A transform ----

/// Redacts a word, even if it is split over several events.
///
/// Outside the agent, it hides the word from the consumer; inside, from the next model call as
/// well.
struct Redact {
    word: &'static str,
    /// The end of the text so far that may be a prefix of the word.
    held: String,
}

impl Redact {
    const fn new(word: &'static str) -> Self {
        let held = String::new();
        Self { word, held }
    }
}

impl Transform for Redact {
    fn event(&mut self, event: Event) -> Emit {
        let Event::TextDelta(text) = event else {
            // Keep the order: emit the held text before this event.
            let held = std::mem::take(&mut self.held);
            return Emit::Many(vec![Event::text(held), event]);
        };
        self.held.push_str(&text);
        if self.held.contains(self.word) {
            println!("redact: found the word in {:?}", self.held);
            self.held = self.held.replace(self.word, "█████");
        }
        // Hold back a possible prefix of the word, and emit the rest.
        let begins = |n: &usize| {
            self.word
                .get(..*n)
                .is_some_and(|start| self.held.ends_with(start))
        };
        let keep = (1..self.word.len()).rev().find(begins).unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Emit::One(Event::text(std::mem::replace(&mut self.held, rest)))
    }

    fn flush(&mut self) -> Emit {
        Emit::One(Event::text(std::mem::take(&mut self.held)))
    }
}

// ---- 3. A layer and a service ----

/// Measures the time to the first content of a response, and to its end.
#[derive(Clone, Copy)]
struct TimingLayer;

impl<S> Layer<S> for TimingLayer {
    type Service = Timing<S>;

    fn layer(&self, inner: S) -> Timing<S> {
        Timing { inner }
    }
}

#[derive(Clone)]
struct Timing<S> {
    inner: S,
}

impl<S, B> Service<ChatRequest> for Timing<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<TimingBody<B>>;
    type Error = S::Error;
    type Future = TimingFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let watch = Watch {
            // The clock of the run, which a test can replace.
            start: request.context.now(),
            run: request.context.clone(),
            stopped: false,
        };
        TimingFuture {
            inner: self.inner.call(request),
            watch: Some(watch),
        }
    }
}

pin_project! {
    struct TimingFuture<F> {
        #[pin]
        inner: F,
        // Moved to the body.
        watch: Option<Watch>,
    }
}

impl<F, B, E> Future for TimingFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<TimingBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // A model's future resolves with the first content.
        let result = ready!(this.inner.poll(cx));
        let mut watch = this.watch.take();
        if let Some(watch) = &mut watch {
            watch.report(if result.is_ok() {
                "first content"
            } else {
                "failed"
            });
            watch.stopped = result.is_err();
        }
        Poll::Ready(result.map(|response| response.map_body(|inner| TimingBody { inner, watch })))
    }
}

pin_project! {
    struct TimingBody<B> {
        #[pin]
        inner: B,
        watch: Option<Watch>,
    }
}

impl<B> Stream for TimingBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        // A body ends in one of four ways: these three, or a drop, which drops the watch.
        let end = match &item {
            Some(Ok(event)) if event.is_finish() => "finished",
            Some(Ok(_)) => return Poll::Ready(item),
            Some(Err(_)) => "failed",
            None => "truncated",
        };
        if let Some(mut watch) = this.watch.take() {
            watch.report(end);
            watch.stopped = true;
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

struct Watch {
    start: SystemTime,
    run: Run,
    stopped: bool,
}

impl Watch {
    fn report(&self, what: &str) {
        let passed = self
            .run
            .now()
            .duration_since(self.start)
            .unwrap_or_default();
        println!("timing: {what} after {} ms", passed.as_millis());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.stopped {
            self.report("dropped");
        }
    }
}
