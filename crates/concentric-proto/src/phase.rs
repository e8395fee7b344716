use serde::{Deserialize, Serialize};

/// The part of a run that an error or a layer belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// Outside the loop: once per user turn.
    #[default]
    Run,
    /// Inside the loop: once per model call.
    Model,
    /// Around one round of tool calls.
    Round,
    /// Around one tool call.
    Call,
}

impl Phase {
    /// The serialized name of the phase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Model => "model",
            Self::Round => "round",
            Self::Call => "call",
        }
    }
}
