//! A declaration says what it lists, but not whether it is provided or required.
use concentric_core::{Capability, Declares};

#[derive(Clone)]
struct Store;

impl Capability for Store {}

struct Budget;

struct RecallLayer;

impl Declares for RecallLayer {
    type Capabilities = (Store,);
}

struct BudgetPlugin;

impl Declares for BudgetPlugin {
    type Capabilities = concentric_core::capability::Provides<Budget>;
}

fn main() {}
