//! A copy of the machine with planted bugs.

use std::cell::Cell;

include!(concat!(env!("OUT_DIR"), "/planted.rs"));

#[path = "model/mod.rs"]
pub(crate) mod model;

thread_local! {
    static BUG: Cell<&'static str> = const { Cell::new("") };
}

/// Chooses the bug of the machines of this thread.
pub(crate) fn choose(bug: &'static str) {
    BUG.set(bug);
}

/// Whether the bug `name` was chosen.
fn is(name: &str) -> bool {
    BUG.get() == name
}
