//! A group of layers is added where nobody provides what it was given.
use concentric_core::{Capability, Declares, Layers, capability::Requires};

#[derive(Clone)]
struct Store;

impl Capability for Store {}

struct RecallLayer;

impl Declares for RecallLayer {
    type Capabilities = Requires<Store>;
}

fn main() {
    let memory = Layers::new().given::<Store>().with(RecallLayer);
    let _ = Layers::new().and(memory);
}
