use super::turn::Turn;
use crate::body::{Observed, Observer, body};
use concentric_core::hooks::End;

body! {
    /// Response body for [`DynamicMemory`](super::DynamicMemory): the items of the inner body, unchanged.
    pub struct DynamicMemoryBody<B>(Observed<B, Open>);
}

impl<B> DynamicMemoryBody<B> {
    pub(super) const fn new(inner: B, turn: Option<Box<Turn>>) -> Self {
        let inner = Observed::new(inner, Open(turn));
        Self { inner }
    }
}

/// The turn until the terminal item. `None` for a run without an owner.
struct Open(Option<Box<Turn>>);

impl Observer for Open {
    fn end(&mut self, end: End<'_>) {
        if let Some(turn) = self.0.take()
            && let End::Finished(finish) = end
        {
            turn.finish(finish);
        }
    }
}
