use super::limit::Permit;
use crate::body::{Observed, Observer, body};
use concentric_core::hooks::End;

body! {
    /// Response body for [`InFlightLimit`](super::InFlightLimit): the inner body's items,
    /// unchanged.
    pub struct InFlightBody<B>(Observed<B, Held>);
}

impl<B> InFlightBody<B> {
    pub(super) const fn new(inner: B, permit: Option<Permit>) -> Self {
        let inner = Observed::new(inner, Held(permit));
        Self { inner }
    }
}

/// A permit, which is released at the terminal item or on drop.
struct Held(Option<Permit>);

impl Observer for Held {
    fn end(&mut self, _: End<'_>) {
        self.0 = None;
    }
}
