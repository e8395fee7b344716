//! A layer that would use what another provides stands outside of it, and would never see it.
use concentric_core::{
    Capability, Declares, Layers,
    capability::{Optional, Provides},
};

#[derive(Clone)]
struct Metrics;

impl Capability for Metrics {}

struct MetricsLayer;

impl Declares for MetricsLayer {
    type Capabilities = Provides<Metrics>;
}

struct RecallLayer;

impl Declares for RecallLayer {
    type Capabilities = Optional<Metrics>;
}

fn main() {
    let _ = Layers::new().with(RecallLayer).with(MetricsLayer);
}
