use super::OfRun;
use crate::{
    capability::{Declares, InLoop, Within},
    service::ModelService,
};
use tower_layer::Layer;

/// [`Layer`] that applies the layers of each run to its model calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfRunLayer(());

impl OfRunLayer {
    /// Creates the layer.
    pub const fn new() -> Self {
        Self(())
    }
}

impl Declares for OfRunLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for OfRunLayer
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Service = OfRun<S>;

    fn layer(&self, inner: S) -> OfRun<S> {
        OfRun::new(inner)
    }
}
