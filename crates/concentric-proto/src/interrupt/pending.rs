use super::{Interrupt, Reply, SuspendedBy, UNKNOWN_EFFECT, millis, suspension::without_tokens};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{sync::Arc, time::SystemTime};

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
    /// The component that suspended the call; `None` in suspensions that a tool returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<SuspendedBy>,
    /// The data that the tool or the round service requires to resume the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<Value>>,
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

    /// Sets the component that suspended the call.
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

    /// The component that suspended the call. A round service other than a toolset may omit it.
    pub(crate) fn origin(&self) -> SuspendedBy {
        let asks_for_effect = || {
            let mut asked = self.interrupts.iter();
            asked.any(|asked| asked.reason == UNKNOWN_EFFECT)
        };
        match self.by {
            Some(by) => by,
            None if asks_for_effect() => SuspendedBy::UnknownEffect,
            None => SuspendedBy::Gate,
        }
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
    /// Whether a process resumed the call with these replies and then ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_up: bool,
    /// The suspension as it was stored. `None` if only a history from a client claims that the call
    /// was suspended; then the replies must contain approval tokens.
    #[serde(rename = "on")]
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
