use crate::body::{Passed, body};
use concentric_core::EventStream;

body! {
    /// Response body for [`Fallback`](super::Fallback): the items of the model that answers, unchanged.
    pub struct FallbackBody<B>(Passed<B, EventStream>);
}

impl<B> FallbackBody<B> {
    pub(super) const fn first(body: B) -> Self {
        let inner = Passed::Inner { body };
        Self { inner }
    }

    pub(super) const fn other(body: EventStream) -> Self {
        let inner = Passed::Other { body };
        Self { inner }
    }
}
