//! The lifecycle of a tool call, from the model's request to the outcome, for loops other than an
//! agent's.
//!
//! A round passes through four stages: prepare (decode, validate, edit), gate, execute (the layers
//! and the tool), settle. A resumed call passes through the same stages.

mod armed;
mod session;

pub use self::session::{RoundEnd, ToolLifecycle};
pub use crate::{pipeline::Outcomes, rules::SiblingPolicy};
