use serde::{Deserialize, Serialize};

/// Which other calls a decision is to hold for, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remember {
    /// Which calls.
    pub what: RememberWhat,
    /// How long.
    #[serde(rename = "for")]
    pub span: RememberFor,
}

/// Which calls a remembered decision holds for, the fewest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RememberWhat {
    /// Those of the same tool with the same arguments.
    Arguments,
    /// Those of the same tool.
    Tool,
}

/// How long a decision is remembered, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RememberFor {
    /// In this run.
    Run,
    /// In this conversation.
    Thread,
    /// For whoever asks.
    Always,
}
