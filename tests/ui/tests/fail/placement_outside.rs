//! A layer is inside one that it must be outside of.
use concentric_core::{
    Declares, Layers,
    capability::{Encloses, Outside, Region},
};

enum Turn {}

impl Region for Turn {}

struct SessionLayer;

impl Declares for SessionLayer {
    type Capabilities = Encloses<Turn>;
}

struct DetachLayer;

impl Declares for DetachLayer {
    type Capabilities = Outside<Turn>;
}

fn main() {
    let _ = Layers::new().with(DetachLayer).with(SessionLayer);
    let _ = Layers::new().with(SessionLayer).with(DetachLayer);
}
