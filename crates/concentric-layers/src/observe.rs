//! A layer that observes the calls of any service: models, tools, embeddings, HTTP clients.
//!
//! ```
//! use concentric_core::{BoxError, hooks::End};
//! use concentric_layers::observe;
//! use std::time::Instant;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let length = ServiceBuilder::new()
//!     .layer(observe(|text: &String| {
//!         let (begun, size) = (Instant::now(), text.len());
//!         move |end: End<'_, usize, BoxError>| println!("{size} bytes, {:?}: {end:?}", begun.elapsed())
//!     }))
//!     .service(service_fn(async |text: String| Ok::<_, BoxError>(text.len())));
//! assert_eq!(length.oneshot("hi".to_owned()).await?, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # When the functions are called
//!
//! The first one receives each request before the inner service is called. The function that it returns
//! receives the end of the call, exactly once: when the future resolves, or is dropped. It must not block;
//! a panic while a future is dropped is logged. An observer that needs no end returns `|_| {}`.
//!
//! For a service whose response is a stream, this is the end of the future, not that of the body; see
//! [`on_end`](crate::on_end()) for models.
//!
//! # Backpressure
//!
//! Readiness is forwarded.

use concentric_core::{hooks::End, panic::catch};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_layer::Layer;
use tower_service::Service;

/// Creates a layer that calls `f` with each request, and the function that it returns with the end of
/// the call.
///
/// See the [module docs](self) for an example.
pub const fn observe<F>(f: F) -> ObserveLayer<F> {
    ObserveLayer { f }
}

/// [`Layer`] that observes the calls of a service ([`Observe`]).
#[derive(Clone, Copy)]
pub struct ObserveLayer<F> {
    f: F,
}

impl<S, F> Layer<S> for ObserveLayer<F>
where
    F: Clone,
{
    type Service = Observe<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let f = self.f.clone();
        Observe { inner, f }
    }
}

/// Middleware that observes calls.
#[derive(Clone, Copy)]
pub struct Observe<S, F> {
    inner: S,
    f: F,
}

impl<S, R, F, C> Service<R> for Observe<S, F>
where
    S: Service<R>,
    F: Fn(&R) -> C,
    C: FnOnce(End<'_, S::Response, S::Error>),
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ObserveFuture<S::Future, C, S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let ended = Ended::new((self.f)(&request));
        ObserveFuture {
            inner: self.inner.call(request),
            ended,
        }
    }
}

pin_project! {
    /// Response future for [`Observe`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ObserveFuture<Fut, C, T, E>
    where
        C: FnOnce(End<'_, T, E>),
    {
        // Dropped before the end is reported.
        #[pin]
        inner: Fut,
        ended: Ended<C, T, E>,
    }
}

/// Calls a function at most once: with the first end, or when dropped.
struct Ended<C, T, E>
where
    C: FnOnce(End<'_, T, E>),
{
    f: Option<C>,
    of: std::marker::PhantomData<fn(T, E)>,
}

impl<C, T, E> Ended<C, T, E>
where
    C: FnOnce(End<'_, T, E>),
{
    const fn new(f: C) -> Self {
        Self {
            f: Some(f),
            of: std::marker::PhantomData,
        }
    }
}

impl<C, T, E> Drop for Ended<C, T, E>
where
    C: FnOnce(End<'_, T, E>),
{
    fn drop(&mut self) {
        // A panic that leaves a drop aborts the process if another panic is unwinding.
        if let Some(f) = self.f.take()
            && let Err(panic) = catch(|| f(End::Dropped))
        {
            let panic = panic.text();
            tracing::error!(panic, "the function of an `observe` layer panicked");
        }
    }
}

impl<Fut, C, T, E> Future for ObserveFuture<Fut, C, T, E>
where
    Fut: Future<Output = Result<T, E>>,
    C: FnOnce(End<'_, T, E>),
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        if let Some(f) = this.ended.f.take() {
            f(match &result {
                Ok(response) => End::Finished(response),
                Err(error) => End::Failed(error),
            });
        }
        Poll::Ready(result)
    }
}

impl<Fut, C, T, E> fmt::Debug for ObserveFuture<Fut, C, T, E>
where
    C: FnOnce(End<'_, T, E>),
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveFuture").finish_non_exhaustive()
    }
}

concentric_core::opaque_debug!(ObserveLayer<F>);
concentric_core::opaque_debug!(Observe<S, F>);
