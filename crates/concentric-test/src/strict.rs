use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;
use tower_service::Service;

/// A middleware that enforces the contract of [`Service`]: it panics if it is called without having
/// been polled ready.
///
/// Readiness belongs to one value: a clone starts without it, and a call consumes it. It is counted
/// from `poll_ready` to the call or the drop, so that a test can detect a layer that keeps it.
///
/// ```
/// use concentric_core::{ChatRequest, Error};
/// use concentric_test::{ScriptedModel, Strict};
/// use tower::{Service, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let mut model = Strict::new(ScriptedModel::new().text("hi"));
/// model.ready().await?;
/// assert_eq!(model.reserved(), 1);
/// let call = model.call(ChatRequest::user("hello"));
/// assert_eq!((model.reserved(), model.running()), (0, 1));
/// # drop(call);
///
/// model.ready().await?;
/// let clone = model.clone();
/// drop(model);
/// assert_eq!(clone.reserved(), 0);
/// # Ok(())
/// # }
/// ```
///
/// ```should_panic
/// use concentric_core::ChatRequest;
/// use concentric_test::{ScriptedModel, Strict};
/// use tower::Service;
///
/// let mut model = Strict::new(ScriptedModel::new());
/// let _ = model.call(ChatRequest::user("hello")); // `poll_ready` was not called
/// ```
#[derive(Debug)]
pub struct Strict<S> {
    inner: S,
    shared: Arc<Shared>,
    permits: PollSemaphore,
    // `Some` once a permit is held; `ready` once the inner service is ready as well.
    permit: Option<Counted>,
    ready: bool,
}

#[derive(Debug, Default)]
struct Shared {
    reserved: AtomicUsize,
    running: AtomicUsize,
    calls: AtomicUsize,
}

/// A permit that is counted while it is held.
#[derive(Debug)]
struct Counted {
    shared: Arc<Shared>,
    count: fn(&Shared) -> &AtomicUsize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Counted {
    fn new(
        shared: &Arc<Shared>,
        permit: Option<OwnedSemaphorePermit>,
        count: fn(&Shared) -> &AtomicUsize,
    ) -> Self {
        count(shared).fetch_add(1, Ordering::SeqCst);
        Self {
            shared: Arc::clone(shared),
            count,
            permit,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.count)(&self.shared).fetch_sub(1, Ordering::SeqCst);
    }
}

impl<S> Strict<S> {
    /// Wraps `inner`.
    pub fn new(inner: S) -> Self {
        Self::with_capacity(inner, Semaphore::MAX_PERMITS)
    }

    /// Wraps `inner`, and is ready for at most `capacity` callers at once: those that hold
    /// readiness, and those whose future is neither complete nor dropped.
    pub fn with_capacity(inner: S, capacity: usize) -> Self {
        Self {
            inner,
            shared: Arc::default(),
            permits: PollSemaphore::new(Arc::new(Semaphore::new(capacity))),
            permit: None,
            ready: false,
        }
    }

    /// Returns the number of clones that hold unused readiness.
    pub fn reserved(&self) -> usize {
        self.shared.reserved.load(Ordering::SeqCst)
    }

    /// Returns the number of calls whose future is neither complete nor dropped.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Clone for Strict<S>
where
    S: Clone,
{
    /// Clones the service; the clone is not ready, even if this service is.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
            permits: self.permits.clone(),
            permit: None,
            ready: false,
        }
    }
}

impl<S, R> Service<R> for Strict<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = StrictFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.permit.is_none() {
            let permit = ready!(self.permits.poll_acquire(cx));
            self.permit = Some(Counted::new(&self.shared, permit, |s| &s.reserved));
        }
        let result = ready!(self.inner.poll_ready(cx));
        self.ready = result.is_ok();
        if result.is_err() {
            self.permit = None;
        }
        Poll::Ready(result)
    }

    /// Calls the inner service.
    ///
    /// # Panics
    ///
    /// Panics if this value has not been polled ready since its last call.
    fn call(&mut self, request: R) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "the service was called without being ready: `poll_ready` must return `Ready(Ok(()))` before each `call`"
        );
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        let permit = self.permit.take().and_then(|mut held| held.permit.take());
        StrictFuture {
            inner: self.inner.call(request),
            running: Some(Counted::new(&self.shared, permit, |s| &s.running)),
        }
    }
}

pin_project! {
    /// Response future for [`Strict`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct StrictFuture<F> {
        #[pin]
        inner: F,
        // Taken when `inner` resolves.
        running: Option<Counted>,
    }
}

impl<F: Future> Future for StrictFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let output = ready!(this.inner.poll(cx));
        *this.running = None;
        Poll::Ready(output)
    }
}
