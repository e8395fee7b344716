use crate::{
    message::{ToolCallPart, ToolOutcome},
    text::Str,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why the loop does not let a call run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The step did not offer a tool of that name. These it did.
    NotOffered(Arc<[Str]>),
    /// Another call of the same answer has the same id.
    DuplicateId,
    /// The answer was cut off before the first of its arguments.
    CutShort,
    /// As many calls were made as may be.
    Limit {
        /// How many may be.
        calls: u32,
        /// Of what.
        of: LimitOf,
    },
}

/// What a limit on calls counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitOf {
    /// The calls of a run.
    Run,
    /// The calls of a round.
    Round,
    /// The calls of a tool in a run.
    Tool,
}

impl Refusal {
    /// What the model is told.
    pub fn outcome(&self, call: &ToolCallPart) -> ToolOutcome {
        ToolOutcome::failed(match self {
            Self::NotOffered(offered) if offered.is_empty() => {
                format!("There is no tool `{}`. No tools are available.", call.name)
            }
            Self::NotOffered(offered) => {
                let names: Vec<&str> = offered.iter().map(Str::as_str).collect();
                format!(
                    "There is no tool `{}`. Available tools: {}.",
                    call.name,
                    names.join(", ")
                )
            }
            Self::DuplicateId => {
                "Two calls of this answer have the same id, so none of them was run.".to_owned()
            }
            Self::CutShort => {
                "The answer was cut off before the arguments of this call, so it was not run."
                    .to_owned()
            }
            Self::Limit { calls, of } => format!(
                "The call was not run: the limit is {calls} calls {}.",
                match of {
                    LimitOf::Run => "in total".to_owned(),
                    LimitOf::Round => "in one answer".to_owned(),
                    LimitOf::Tool => format!("of `{}`", call.name),
                }
            ),
        })
    }
}
