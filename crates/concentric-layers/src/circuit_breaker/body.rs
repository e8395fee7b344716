use super::call::Call;
use crate::body::{Observed, Observer, body};
use concentric_core::{Error, hooks::End};

body! {
    /// Response body for [`CircuitBreaker`](super::CircuitBreaker): the inner body's items, unchanged.
    pub struct CircuitBreakerBody<B>(Observed<B, Open>);
}

impl<B> CircuitBreakerBody<B> {
    pub(super) const fn new(inner: B, call: Call) -> Self {
        let inner = Observed::new(inner, Open(Some(call)));
        Self { inner }
    }
}

/// A call until its terminal item.
struct Open(Option<Call>);

impl Observer for Open {
    fn end(&mut self, end: End<'_>) {
        if let Some(call) = self.0.take() {
            match end {
                End::Finished(_) => call.succeeded(),
                End::Failed(error) => call.failed(error),
                End::Truncated | End::Dropped => call.failed(&Error::truncated()),
            }
        }
    }
}
