use concentric_core::{
    ChatRequest, ChatResponse, Context as RunContext, Error, Event,
    service::{BoxModel, EventStream, ModelService},
};
use futures_core::Stream;
use std::{
    future::{Future, poll_fn},
    marker::PhantomData,
    mem,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Creates a layer from an async function of a request and the [`Next`] service.
///
/// See the [module docs](super) for an example.
pub const fn from_fn<F>(f: F) -> FromFnLayer<F> {
    FromFnLayer { f }
}

/// The rest of the stack.
#[derive(Debug)]
pub struct Next {
    inner: BoxModel,
    // Whether `inner` has been polled ready since it was last called.
    ready: bool,
    // Until the first call, to disable the check of expected inner layers.
    uncalled: Option<RunContext>,
}

impl Next {
    /// Calls the rest of the stack. Calls after the first wait until it is ready.
    ///
    /// # Errors
    ///
    /// The error of the rest of the stack.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future cancels the call; `run` can then be called again.
    pub async fn run(&mut self, request: ChatRequest) -> Result<ChatResponse<EventStream>, Error> {
        self.uncalled = None;
        if !mem::take(&mut self.ready) {
            poll_fn(|cx| self.inner.poll_ready(cx)).await?;
        }
        self.inner.call(request).await
    }
}

/// A function that has not called the rest of the stack answers in its place.
impl Drop for Next {
    fn drop(&mut self) {
        if let Some(context) = &self.uncalled {
            context.skip_stack_check();
        }
    }
}

/// [`Layer`] created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFnLayer<F> {
    f: F,
}

// The inner service is erased here rather than in `call`, so that the trait bounds of `FromFn` do
// not depend on its type. `S` is kept only for `describe`.
impl<S, F> Layer<S> for FromFnLayer<F>
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
    F: Clone,
{
    type Service = FromFn<F, S>;

    fn layer(&self, inner: S) -> Self::Service {
        FromFn {
            inner: Arc::new(BoxModel::new(inner)),
            ready: None,
            f: self.f.clone(),
            of: PhantomData,
        }
    }
}

concentric_core::opaque_debug!(FromFnLayer<F>);

/// Middleware created by [`from_fn`].
pub struct FromFn<F, S> {
    // Never polled, and shared between clones of the middleware; calls use a clone of it.
    inner: Arc<BoxModel>,
    // Polled, until it is called. Not cloned: each clone of the middleware has its own readiness.
    ready: Option<BoxModel>,
    f: F,
    of: PhantomData<fn() -> S>,
}

impl<F, S, Fut, B> Service<ChatRequest> for FromFn<F, S>
where
    F: FnMut(ChatRequest, Next) -> Fut,
    Fut: Future<Output = Result<ChatResponse<B>, Error>>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<B>;
    type Error = Error;
    type Future = Fut;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.ready
            .get_or_insert_with(|| BoxModel::clone(&self.inner))
            .poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let inner = self
            .ready
            .take()
            .expect("`poll_ready` must return `Ready(Ok(()))` before `call`");
        let next = Next {
            inner,
            ready: true,
            uncalled: Some(request.context.clone()),
        };
        (self.f)(request, next)
    }
}

impl<F, S> Clone for FromFn<F, S>
where
    F: Clone,
{
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            ready: None,
            f: self.f.clone(),
            of: PhantomData,
        }
    }
}

concentric_core::opaque_debug!(FromFn<F, S>);
