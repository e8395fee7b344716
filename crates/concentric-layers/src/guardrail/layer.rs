use super::{Assessment, ResponseFuture, Subject};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event, Str};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::util::BoxCloneSyncService;
use tower_layer::Layer;
use tower_service::Service;

/// When the input is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// Before the inner service is called.
    Blocking,
    /// While the inner service is called.
    Parallel,
}

/// Which pieces of an answer are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// All of it at once.
    Whole,
    /// Pieces of at least `chars` characters. Each is judged with up to `overlap` characters before it.
    Windows {
        /// The characters that are collected; 0 judges each event.
        chars: usize,
        /// The characters before them that are judged again.
        overlap: usize,
    },
}

impl Output {
    /// Pieces of at least `chars` characters, each with up to `overlap` characters before it.
    pub const fn windows(chars: usize, overlap: usize) -> Self {
        Self::Windows { chars, overlap }
    }
}

/// What becomes of a call whose subject is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBlock {
    /// It fails.
    Fail,
    /// The run is halted, for a layer inside the loop.
    Halt,
    /// A text takes the place of what was not released, and the answer ends with
    /// [`FinishReason::ContentFilter`](concentric_core::FinishReason::ContentFilter). Around an agent, the run
    /// is dropped, and the finish has no transcript.
    Replace(Str),
}

/// [`Layer`] that has inputs and answers judged ([`Guardrail`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct GuardrailLayer(Guard);

#[derive(Clone)]
pub(super) struct Guard {
    pub(super) name: Str,
    pub(super) classifier: BoxCloneSyncService<Subject, Assessment, BoxError>,
    pub(super) input: Option<Input>,
    pub(super) output: Option<Output>,
    pub(super) on_block: OnBlock,
    pub(super) timeout: Duration,
    pub(super) is_open: bool,
    pub(super) limit: usize,
}

impl GuardrailLayer {
    /// Creates a layer named `name`, which judges nothing until [`input`](Self::input) or
    /// [`output`](Self::output) is set.
    ///
    /// Each judgement calls a clone of `classifier`.
    pub fn new<C>(name: impl Into<Str>, classifier: C) -> Self
    where
        C: Service<Subject, Response = Assessment> + Clone + Send + Sync + 'static,
        C::Error: Into<BoxError>,
        C::Future: Send + 'static,
    {
        use tower::ServiceExt;
        Self(Guard {
            name: name.into(),
            classifier: BoxCloneSyncService::new(classifier.map_err(Into::into)),
            input: None,
            output: None,
            on_block: OnBlock::Fail,
            timeout: Duration::from_secs(10),
            is_open: false,
            limit: 1 << 20,
        })
    }

    /// Judges the input.
    #[must_use]
    pub fn input(mut self, input: Input) -> Self {
        self.0.input = Some(input);
        self
    }

    /// Judges the answer.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.0.output = Some(output);
        self
    }

    /// Sets what becomes of a blocked call; by default, it fails.
    #[must_use]
    pub fn on_block(mut self, on_block: OnBlock) -> Self {
        self.0.on_block = on_block;
        self
    }

    /// Sets the time for a judgement, by the clock of the run; the default is 10 seconds. With zero, only a
    /// classifier that answers at once is in time.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Releases what cannot be judged because the classifier fails.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.0.is_open = true;
        self
    }

    /// Sets the maximum number of bytes of held events; the default is 1 MiB.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.0.limit = bytes;
        self
    }
}

impl fmt::Debug for GuardrailLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardrailLayer")
            .field("name", &self.0.name)
            .field("input", &self.0.input)
            .field("output", &self.0.output)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GuardrailLayer {
    type Service = Guardrail<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guardrail {
            inner,
            guard: Arc::new(self.0.clone()),
        }
    }
}

/// Middleware that has inputs and answers judged.
#[derive(Clone)]
pub struct Guardrail<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S> Guardrail<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for Guardrail<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guardrail")
            .field("inner", &self.inner)
            .field("name", &self.guard.name)
            .finish_non_exhaustive()
    }
}

impl<S, B> Service<ChatRequest> for Guardrail<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<super::GuardrailBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        ResponseFuture::new(self.inner.clone(), request, &self.guard)
    }
}
