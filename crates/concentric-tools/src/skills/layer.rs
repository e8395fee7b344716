use super::{catalogue::Catalogue, service::WithSkills};
use concentric_core::{
    ChatRequest, Declares, Str,
    capability::{InLoop, Within},
};
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that applies [`WithSkills`]; created by [`Skills::wrap`](super::Skills::wrap).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing unless it is inside an agent"]
pub struct SkillsLayer {
    pub(super) catalogue: Arc<Catalogue>,
}

impl SkillsLayer {
    /// Applies the layer to a request; returns the offered tools, if not all.
    pub(crate) fn apply(&self, request: &mut ChatRequest) -> Option<Arc<[Str]>> {
        self.catalogue.tell(request)
    }
}

impl Declares for SkillsLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for SkillsLayer {
    type Service = WithSkills<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WithSkills::new(inner, Arc::clone(&self.catalogue))
    }
}
