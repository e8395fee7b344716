use super::Interrupt;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The interrupts that a suspended call waits on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Suspension {
    /// The interrupts; never empty.
    ///
    /// Serialized without their approval tokens (`metadata.token`), so that a reader of a stored
    /// state cannot reply to them.
    #[serde(serialize_with = "without_tokens")]
    pub interrupts: Vec<Interrupt>,
    /// Whether all interrupts of the round must be replied to together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// The data that the component that suspended the call requires to resume it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<Value>>,
}

/// The component that suspended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SuspendedBy {
    /// A gate, before the call started.
    Gate,
    /// The round service, because a layer changed the arguments after the decision.
    Change,
    /// The tool, or a layer on it, after the call started.
    Tool,
    /// The round service, because an earlier attempt has no known outcome.
    UnknownEffect,
    /// The loop, because the client executes the call.
    Client,
}

impl SuspendedBy {
    /// Returns whether the call had started before it was suspended.
    pub(crate) const fn is_after_start(self) -> bool {
        matches!(self, Self::Tool | Self::UnknownEffect)
    }
}

/// The metadata key for the approval token of an interrupt.
const TOKEN: &str = "token";

pub(super) fn without_tokens<S>(interrupts: &[Interrupt], serializer: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
{
    serializer.collect_seq(interrupts.iter().map(|interrupt| {
        let mut interrupt = Cow::Borrowed(interrupt);
        if interrupt.metadata.contains_key(TOKEN) {
            interrupt.to_mut().metadata.remove(TOKEN);
        }
        interrupt
    }))
}
