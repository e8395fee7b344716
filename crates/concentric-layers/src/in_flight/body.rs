use crate::body::{Observed, Observer, body};
use concentric_core::hooks::End;
use tokio::sync::OwnedSemaphorePermit;

body! {
    /// Response body for [`InFlightLimit`](super::InFlightLimit): the inner body's items,
    /// unchanged.
    pub struct InFlightBody<B>(Observed<B, Permit>);
}

impl<B> InFlightBody<B> {
    pub(super) const fn new(inner: B, permit: Option<OwnedSemaphorePermit>) -> Self {
        let inner = Observed::new(inner, Permit(permit));
        Self { inner }
    }
}

/// A permit, which is released at the terminal item or on drop.
struct Permit(Option<OwnedSemaphorePermit>);

impl Observer for Permit {
    fn end(&mut self, _: End<'_>) {
        self.0 = None;
    }
}
