use super::lines::ModelLines;
use crate::body::{Observed, body};

body! {
    /// Response body for [`Log`](super::Log): the items of the inner body, unchanged.
    pub struct LogBody<B>(Observed<B, ModelLines>);
}

impl<B> LogBody<B> {
    pub(super) const fn new(inner: B, lines: ModelLines) -> Self {
        let inner = Observed::new(inner, lines);
        Self { inner }
    }
}
