//! A layer stands outside of the one that provides what it requires.
use concentric_core::{
    Capability, Declares, Layers,
    capability::{Provides, Requires},
};

#[derive(Clone)]
struct Store;

impl Capability for Store {}

struct StoreLayer;

impl Declares for StoreLayer {
    type Capabilities = Provides<Store>;
}

struct RecallLayer;

impl Declares for RecallLayer {
    type Capabilities = Requires<Store>;
}

fn main() {
    let _ = Layers::new().with(RecallLayer).with(StoreLayer);
}
