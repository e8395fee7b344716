//! The machine of `concentric-proto`.

use concentric_proto as proto;

#[path = "model/mod.rs"]
pub(crate) mod model;
