//! A layer requires what no layer provides.
use concentric_core::{
    Capability, Declares, Layers,
    capability::{Provides, Requires},
};

#[derive(Clone)]
struct Clock;

impl Capability for Clock {}

#[derive(Clone)]
struct Store;

impl Capability for Store {}

struct ClockLayer;

impl Declares for ClockLayer {
    type Capabilities = Provides<Clock>;
}

struct RecallLayer;

impl Declares for RecallLayer {
    type Capabilities = (Requires<Clock>, Requires<Store>);
}

fn main() {
    let _ = Layers::new().with(ClockLayer).with(RecallLayer);
}
