use crate::{
    message::{ToolCallPart, ToolOutcome},
    text::Str,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The reason why the loop refuses to run a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The step did not offer a tool with this name. Contains the offered names.
    NotOffered(Arc<[Str]>),
    /// Another call of the same answer has the same id.
    DuplicateId,
    /// The answer was truncated before the arguments of the call.
    #[serde(rename = "cut_short")]
    Truncated,
    /// The call exceeds a limit on calls.
    Limit {
        /// The limit.
        calls: u32,
        /// The scope of the limit.
        of: LimitScope,
    },
}

/// The scope of a limit on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitScope {
    /// All calls of a run.
    Run,
    /// All calls of a round.
    Round,
    /// The calls of one tool in a run.
    Tool,
}

impl Refusal {
    /// Creates the outcome that the model receives.
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
                "The call was not run: another call in the same answer has the same id.".to_owned()
            }
            Self::Truncated => {
                "The call was not run: the answer was truncated before its arguments.".to_owned()
            }
            Self::Limit { calls, of } => format!(
                "The call was not run: the limit is {calls} calls {}.",
                match of {
                    LimitScope::Run => "in total".to_owned(),
                    LimitScope::Round => "in one answer".to_owned(),
                    LimitScope::Tool => format!("of `{}`", call.name),
                }
            ),
        })
    }
}
