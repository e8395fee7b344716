use crate::{lazy::OfferToolsLayer, lifecycle::ToolLifecycle};
use concentric_core::ChatRequest;

impl ToolLifecycle {
    /// The request to call the model with, which lists `skills` and offers the tools of those that
    /// the model has loaded. A call of another tool is refused in the next round.
    pub fn apply_skill_loads(&mut self, skills: &OfferToolsLayer) -> ChatRequest {
        self.offer(|request| skills.apply(request))
    }
}
