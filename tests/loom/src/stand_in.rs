//! Stand-ins for the imports of the included sources: the same names, with loom's types for shared
//! state.
//!
//! tokio's own types are used unchanged, since tokio has models of them: each operation is one
//! step, and [`Steps`] lets loom schedule steps of other threads before it.

use loom::sync::atomic::{AtomicUsize, Ordering};

pub(crate) mod std {
    pub(crate) use ::std::{any, collections, error, fmt, future, pin, task, time};

    pub(crate) mod sync {
        pub(crate) use super::super::OnceLock;
        pub(crate) use ::std::sync::{Arc, PoisonError};
        pub(crate) use loom::sync::{Arc as CountedArc, Mutex, MutexGuard};

        pub(crate) mod atomic {
            pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        }
    }
}

pub(crate) mod tokio {
    pub(crate) mod sync {
        pub(crate) use super::super::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
    }
}

pub(crate) mod tokio_util {
    pub(crate) mod sync {
        pub(crate) use super::super::PollSemaphore;
    }
}

/// The steps on one object that loom does not know.
#[derive(Debug, Default)]
struct Steps(AtomicUsize);

impl Steps {
    fn next(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// `tokio::sync::Notify`.
#[derive(Default)]
pub(crate) struct Notify {
    steps: Steps,
    inner: ::tokio::sync::Notify,
}

impl Notify {
    /// Registers immediately rather than at the first poll, as in tokio.
    pub(crate) fn notified(&self) -> impl Future<Output = ()> + '_ {
        self.steps.next();
        let mut notified = Box::pin(self.inner.notified());
        ::std::future::poll_fn(move |cx| {
            self.steps.next();
            notified.as_mut().poll(cx)
        })
    }

    pub(crate) fn notify_one(&self) {
        self.steps.next();
        self.inner.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        self.steps.next();
        self.inner.notify_waiters();
    }
}

/// `tokio::sync::oneshot`.
pub(crate) mod oneshot {
    use super::Steps;
    use ::std::{
        pin::Pin,
        sync::Arc,
        task::{Context, Poll},
    };
    use ::tokio::sync::oneshot;

    pub(crate) struct Sender<T>(Arc<Steps>, oneshot::Sender<T>);

    pub(crate) struct Receiver<T>(Arc<Steps>, oneshot::Receiver<T>);

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (steps, (sender, receiver)) = (Arc::<Steps>::default(), oneshot::channel());
        (
            Sender(Arc::clone(&steps), sender),
            Receiver(steps, receiver),
        )
    }

    impl<T> Sender<T> {
        pub(crate) fn send(self, value: T) -> Result<(), T> {
            self.0.next();
            self.1.send(value)
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn close(&mut self) {
            self.0.next();
            self.1.close();
        }

        pub(crate) fn try_recv(&mut self) -> Result<T, oneshot::error::TryRecvError> {
            self.0.next();
            self.1.try_recv()
        }
    }

    impl<T> Future for Receiver<T> {
        type Output = Result<T, oneshot::error::RecvError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            self.0.next();
            Pin::new(&mut self.1).poll(cx)
        }
    }
}

/// `tokio::sync::Semaphore`.
#[derive(Debug)]
pub(crate) struct Semaphore {
    steps: Steps,
    inner: ::std::sync::Arc<::tokio::sync::Semaphore>,
}

impl Semaphore {
    pub(crate) const MAX_PERMITS: usize = ::tokio::sync::Semaphore::MAX_PERMITS;

    pub(crate) fn new(permits: usize) -> Self {
        Self {
            steps: Steps::default(),
            inner: ::std::sync::Arc::new(::tokio::sync::Semaphore::new(permits)),
        }
    }

    pub(crate) fn available_permits(&self) -> usize {
        self.steps.next();
        self.inner.available_permits()
    }

    pub(crate) fn try_acquire_owned(
        self: ::std::sync::Arc<Self>,
    ) -> Result<OwnedSemaphorePermit, ::tokio::sync::TryAcquireError> {
        self.steps.next();
        let permit = ::std::sync::Arc::clone(&self.inner).try_acquire_owned()?;
        Ok(OwnedSemaphorePermit(self, Some(permit)))
    }
}

/// `tokio::sync::OwnedSemaphorePermit`.
#[derive(Debug)]
pub(crate) struct OwnedSemaphorePermit(
    ::std::sync::Arc<Semaphore>,
    Option<::tokio::sync::OwnedSemaphorePermit>,
);

impl OwnedSemaphorePermit {
    pub(crate) fn forget(mut self) {
        self.0.steps.next();
        if let Some(permit) = self.1.take() {
            permit.forget();
        }
    }
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.0.steps.next();
        self.1 = None;
    }
}

/// `tokio_util::sync::PollSemaphore`.
pub(crate) struct PollSemaphore(
    ::std::sync::Arc<Semaphore>,
    Option<::tokio_util::sync::PollSemaphore>,
);

impl PollSemaphore {
    pub(crate) fn new(semaphore: ::std::sync::Arc<Semaphore>) -> Self {
        let inner =
            ::tokio_util::sync::PollSemaphore::new(::std::sync::Arc::clone(&semaphore.inner));
        Self(semaphore, Some(inner))
    }

    pub(crate) fn poll_acquire(
        &mut self,
        cx: &mut ::std::task::Context<'_>,
    ) -> ::std::task::Poll<Option<OwnedSemaphorePermit>> {
        self.0.steps.next();
        let permit = match &mut self.1 {
            Some(inner) => ::std::task::ready!(inner.poll_acquire(cx)),
            None => None,
        };
        let semaphore = &self.0;
        let permit = permit
            .map(|permit| OwnedSemaphorePermit(::std::sync::Arc::clone(semaphore), Some(permit)));
        ::std::task::Poll::Ready(permit)
    }
}

impl Drop for PollSemaphore {
    fn drop(&mut self) {
        self.0.steps.next();
        self.1 = None;
    }
}

/// `std::sync::OnceLock`.
pub(crate) struct OnceLock<T>(Steps, ::std::sync::OnceLock<T>);

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self(Steps::default(), ::std::sync::OnceLock::new())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.next();
        self.1.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.0.next();
        self.1.set(value)
    }
}

impl<T> ::std::fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
        f.debug_struct("OnceLock").finish_non_exhaustive()
    }
}

/// `tokio_util::sync::CancellationToken`.
#[derive(Default)]
pub(crate) struct Token(Steps, ::tokio_util::sync::CancellationToken);

impl Token {
    pub(crate) fn cancel(&self) {
        self.0.next();
        self.1.cancel();
    }

    pub(crate) async fn cancelled(&self) {
        let mut cancelled = ::std::pin::pin!(self.1.cancelled());
        ::std::future::poll_fn(|cx| {
            self.0.next();
            cancelled.as_mut().poll(cx)
        })
        .await;
    }
}
