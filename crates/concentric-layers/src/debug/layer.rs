use super::{Debug, calls::DebugCalls};
use concentric_core::{
    Str,
    agent::{Installer, Plugin},
};
use tower_layer::Layer;

/// [`Layer`] that logs requests and events ([`Debug`](super::Debug)), and a plugin that logs those of
/// each layer of an agent, and each tool call.
///
/// See the [module docs](super) for an example.
#[derive(Clone, std::fmt::Debug)]
pub struct DebugLayer {
    place: Place,
}

/// The fields that are logged with each line.
#[derive(Clone, std::fmt::Debug)]
pub(super) struct Place {
    pub(super) place: &'static str,
    // Only for the layers of the plugin.
    pub(super) layer: Option<Str>,
}

impl DebugLayer {
    /// Creates a layer that logs `place` with each request and event.
    pub const fn new(place: &'static str) -> Self {
        let layer = None;
        Self {
            place: Place { place, layer },
        }
    }
}

/// Logs the requests and events of the agent, of its model, and of each layer that a plugin or a
/// single run adds, and each tool call.
impl Plugin for DebugLayer {
    fn install(self, at: &mut Installer<'_>) {
        let place = self.place.place;
        at.each_layer(move |phase, name| Self {
            place: Place {
                place,
                layer: Some(Str::concat([phase.as_str(), " ", name])),
            },
        });
        at.hooks(DebugCalls { place }, |calls| calls);
    }
}

impl<S> Layer<S> for DebugLayer {
    type Service = Debug<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Debug::new(inner, self.place.clone())
    }
}
