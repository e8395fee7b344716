//! For traits of hooks, whose methods are optional, async, and a user's: whether an implementation
//! has one, and what comes of one that panics.
//!
//! A method that is not implemented returns an [`unset`] future, whose type [`is_set`] tells from
//! those of others, so that whoever would call the method need not.
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

/// The future of a method that is not there.
#[derive(Debug)]
pub struct Unset<F>(F);

/// What a method that is not there answers, if it is called all the same.
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

/// Whether `F`, the future of a method, is not [`Unset`].
///
/// The future borrows from its call, so that it has no `TypeId`. An `Unset` is empty, which few
/// futures are; of those its name tells it apart.
pub fn is_set<F>() -> bool {
    let unset = concat!(module_path!(), "::Unset<");
    size_of::<F>() > 0 || !type_name::<F>().starts_with(unset)
}

/// What was panicked with.
pub struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// What was said, if that is text; for the log.
    pub fn text(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<&str>().copied();
        text.or_else(|| self.0.downcast_ref::<String>().map(String::as_str))
    }

    /// The error that it is, of a hook.
    pub fn error(&self) -> Error {
        let text = self.text().unwrap_or("something that is not text");
        Error::new(ErrorKind::Other, format!("it panicked: {text}"))
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.text()).finish()
    }
}

/// Does `work`, and catches its panic.
///
/// What `work` leaves behind half done must not be used again but to be dropped.
///
/// # Errors
///
/// It panicked.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic)
}

/// Calls a method and waits for it; a panic of either, and of the drop of its future, is caught.
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
    // What it leaves behind does not change what it said.
    let _ = catch(|| future.set(None));
    output
}
