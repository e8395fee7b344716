//! Support for hook traits with optional async methods: detects whether a method is implemented,
//! and catches its panics.
//!
//! A method that is not implemented returns an [`unset`] future. [`is_set`] recognizes the type of
//! that future, so callers can skip the method.
//!
//! ```
//! use concentric_core::method::{is_set, unset};
//! use std::future::Future;
//!
//! trait Hook {
//!     fn before(&self) -> impl Future<Output = bool> + Send {
//!         unset(|| true)
//!     }
//! }
//!
//! struct Nothing;
//! impl Hook for Nothing {}
//!
//! fn has_before<'a, H: Hook + 'a>() -> bool {
//!     fn returns<'a, H: 'a, F>(_: fn(&'a H) -> F) -> bool {
//!         is_set::<F>()
//!     }
//!     returns(H::before)
//! }
//! assert!(!has_before::<Nothing>());
//! ```

use concentric_proto::{Error, ErrorKind};
use std::{
    any::{Any, type_name},
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll},
};

/// The future of a method that is not implemented.
#[derive(Debug)]
pub struct Unset<F>(F);

/// Returns the default result of a method that is not implemented.
pub const fn unset<F, T>(f: F) -> Unset<F>
where
    F: Fn() -> T,
{
    Unset(f)
}

impl<F, T> Future for Unset<F>
where
    F: Fn() -> T,
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        Poll::Ready((self.0)())
    }
}

/// Returns whether `F`, the future of a method, is not [`Unset`].
///
/// The future borrows from its call, so it has no `TypeId`. An `Unset` is zero-sized, which few
/// futures are; the name of the type distinguishes it from those.
pub fn is_set<F>() -> bool {
    let unset = concat!(module_path!(), "::Unset<");
    size_of::<F>() > 0 || !type_name::<F>().starts_with(unset)
}

/// The payload of a panic.
pub struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// Returns the message of the panic, if it is text; for the log.
    pub fn text(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<&str>().copied();
        text.or_else(|| self.0.downcast_ref::<String>().map(String::as_str))
    }

    /// Converts the panic of a hook into an error.
    pub fn error(&self) -> Error {
        let text = self.text().unwrap_or("(no message)");
        Error::new(ErrorKind::Other, format!("panicked: {text}"))
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.text()).finish()
    }
}

/// Runs `work` and catches a panic.
///
/// State that a panicking `work` leaves behind must only be dropped, not used again.
///
/// # Errors
///
/// The closure panicked.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic)
}

/// Calls a method and waits for it. Panics of both, and of the future's drop, are caught.
///
/// # Errors
///
/// The method panicked, or its future did when it was polled.
pub async fn caught<F>(method: impl FnOnce() -> F) -> Result<F::Output, Panic>
where
    F: Future,
{
    let mut future = pin!(Some(catch(method)?));
    let output = poll_fn(|cx| {
        let polled = catch(|| future.as_mut().as_pin_mut().map(|f| f.poll(cx)));
        match polled {
            Ok(None | Some(Poll::Pending)) => Poll::Pending,
            Ok(Some(Poll::Ready(output))) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await;
    // A panic of the drop does not change the output.
    let _ = catch(|| future.set(None));
    output
}
