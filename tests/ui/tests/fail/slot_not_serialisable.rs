//! A durable slot whose value can't be serialized.

use concentric_core::state::{Durable, Scope, Slot};

#[derive(Default)]
struct Connection;

struct Database;

impl Slot for Database {
    type Value = Connection;
    type Keep = Durable;
    const NAME: &'static str = "example/database";
    const SCOPE: Scope = Scope::Run;
}

fn main() {}
