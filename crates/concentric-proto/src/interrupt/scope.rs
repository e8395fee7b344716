use serde::{Deserialize, Serialize};

/// The scope of a decision that also applies to other calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionScope {
    /// The calls that the decision applies to.
    pub what: ScopeCalls,
    /// The lifetime of the decision.
    #[serde(rename = "for")]
    pub span: ScopeLifetime,
}

/// The calls that a stored decision applies to, ordered from the narrowest scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeCalls {
    /// Calls of the same tool with the same arguments.
    Arguments,
    /// Calls of the same tool.
    Tool,
}

/// The lifetime of a stored decision, ordered from the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeLifetime {
    /// The current run.
    Run,
    /// The current conversation.
    Thread,
    /// The current session: the conversation that it began with, and its forks. Outside a session, this
    /// is the current conversation.
    Session,
    /// All conversations of the same principal.
    Always,
}
