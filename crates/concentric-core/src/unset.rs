//! For traits whose methods are all optional and async: whether an implementation has one.
//!
//! A method that is not implemented returns an [`unset`] future, whose type [`is_set`] tells from
//! those of others, so that whoever would call the method need not.
//!
//! ```
//! use concentric_core::unset::{is_set, unset};
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

use std::{
    any::type_name,
    future::Future,
    pin::Pin,
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
