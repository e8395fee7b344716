use super::{Interrupt, Reply, millis};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::SystemTime};

/// The suspension of a call, as its round service stores it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Pending {
    /// The interrupts that the call waits on. If empty, the call waits until the other calls of its
    /// round have been replied to.
    ///
    /// Serialized without their approval tokens (`metadata.token`), so that a reader of a stored
    /// state cannot reply to them.
    #[serde(serialize_with = "without_tokens")]
    pub interrupts: Vec<Interrupt>,
    /// Whether all interrupts of the round must be replied to together.
    pub together: bool,
    /// Whether the tool itself suspended the call, after it may already have had side effects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
    /// The origin of the suspension; `None` in states of older versions and in suspensions that a
    /// tool returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<SuspendedBy>,
    /// The data that the tool or the round service requires to resume the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<Value>>,
}

/// The origin of a suspension, which owns its [state](Pending::state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SuspendedBy {
    /// The round service, because a gate requires approval or the outcome is unknown.
    Lifecycle,
    /// The tool.
    Tool,
}

/// The metadata key for the approval token of an interrupt.
const TOKEN: &str = "token";

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

impl Pending {
    /// Creates the suspension of a call that waits for the other calls of its round.
    pub fn held() -> Self {
        Self::default()
    }

    /// Creates the suspension of a call that waits for replies to `interrupts`.
    pub fn asking(interrupts: Vec<Interrupt>) -> Self {
        Self {
            interrupts,
            ..Self::default()
        }
    }

    /// Sets the data that is required to resume the call.
    #[must_use]
    pub fn with_state(mut self, state: impl Into<Arc<Value>>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// Sets the origin of the suspension.
    #[must_use]
    pub fn by(mut self, by: SuspendedBy) -> Self {
        self.by = Some(by);
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

/// The suspension of a call and the replies to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Answered {
    /// Whether a process resumed the call and then ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_up: bool,
    /// The suspension as it was stored. `None` if only a history from a client claims that the call
    /// was suspended; then the replies must contain approval tokens.
    pub pending: Option<Pending>,
    /// The replies. If there are neither replies nor a suspension, only a history claims that the
    /// call is open: approval for it may be requested again, but it must not run.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted, which is the time at which their expiry was
    /// checked.
    #[serde(with = "millis", skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<SystemTime>,
}

impl Answered {
    /// Creates a value for a call that was suspended.
    pub fn new(pending: Option<Pending>, replies: Vec<Reply>) -> Self {
        Self {
            taken_up: false,
            pending,
            replies,
            accepted_at: None,
        }
    }

    /// Sets the time at which the replies were accepted, truncated to milliseconds.
    #[must_use]
    pub fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = millis::from(millis::since(time));
        self
    }
}
