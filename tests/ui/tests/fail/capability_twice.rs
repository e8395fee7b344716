//! Two layers provide the same.
use concentric_core::{Capability, Declares, Layers, capability::Provides};

#[derive(Clone)]
struct Store;

impl Capability for Store {}

struct StoreLayer;

impl Declares for StoreLayer {
    type Capabilities = Provides<Store>;
}

struct CacheLayer;

impl Declares for CacheLayer {
    type Capabilities = Provides<Store>;
}

fn main() {
    let _ = Layers::new().with(StoreLayer).with(CacheLayer);
}
