use super::{Interrupt, Reply};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The suspension of a call, or of a run between two steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Suspension {
    /// The interrupts that must be replied to. If empty, the call waits until the other calls of its
    /// round have been replied to.
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

impl Suspension {
    /// Creates a suspension until replies to `interrupts` arrive.
    pub fn new(interrupts: Vec<Interrupt>) -> Self {
        Self {
            interrupts,
            ..Self::default()
        }
    }

    /// Creates the suspension of a call until the other calls of its round have been replied to.
    pub fn held() -> Self {
        Self::default()
    }

    /// Sets the data that is required to resume the call.
    #[must_use]
    pub fn with_state(mut self, state: impl Into<Arc<Value>>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// Requires that all interrupts of the round are replied to together.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Returns whether the call only waits for other calls.
    pub fn is_held(&self) -> bool {
        self.interrupts.is_empty()
    }
}

/// The replies to the interrupts that step gates raised, with the suspension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepResume {
    pub(crate) on: Suspension,
    // Empty until they arrive.
    pub(crate) replies: Vec<Reply>,
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
pub(super) const TOKEN: &str = "token";

fn without_tokens<S>(interrupts: &[Interrupt], serializer: S) -> Result<S::Ok, S::Error>
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
