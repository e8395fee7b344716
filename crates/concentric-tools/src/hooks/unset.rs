use std::{
    any::type_name,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The future of a method that a hook does not have. A layer can tell, and need not call it.
pub(super) struct Unset<F>(F);

/// What a method that is not there answers, if it is called all the same.
pub(super) const fn unset<F, T>(f: F) -> Unset<F>
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
pub(super) fn is_set<F>() -> bool {
    let unset = concat!(module_path!(), "::Unset<");
    size_of::<F>() > 0 || !type_name::<F>().starts_with(unset)
}
