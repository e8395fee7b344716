//! A layer that declares nothing is added by what it declares.
use concentric_core::Layers;
use concentric_layers::RequestDefaultsLayer;

fn main() {
    let _ = Layers::new().with(RequestDefaultsLayer::new());
}
