//! What the fuzz targets share: answers and requests of any bytes, and what must hold of them.
//!
//! `.ci/fuzz` says how they are run.

mod answer;
mod body;
mod input;
mod json;
mod script;
mod served;
/// What each provider accepts.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../crates/concentric-providers/tests/it/common/strict.rs"]
mod strict_rules;
/// The rules of AG-UI.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../crates/concentric-http/tests/it/support/verify.rs"]
mod verify;

pub use self::{
    answer::{ask, check, raw},
    body::Cut,
    input::Input,
    json::{Json, key},
    script::{Script, Style},
    served::{Came, Endpoint, Provider, block_on, data, events, served},
};

/// The rules of the providers' request formats.
pub mod strict {
    use serde_json::Value;

    /// What is wrong with a request to `api`; empty, if nothing is.
    pub fn faults(api: &str, request: &Value) -> Vec<String> {
        super::strict_rules::faults(api, request)
    }
}
