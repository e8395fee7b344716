use super::{Interrupt, Reply, millis};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::SystemTime};

/// What a call waits for, as its round service has it written down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Pending {
    /// What is asked. Nothing: the call waits until the others of its round have been answered.
    ///
    /// Serialized without their approval tokens (`metadata.token`): whoever reads a stored state must
    /// not be able to answer its questions.
    #[serde(serialize_with = "without_tokens")]
    pub interrupts: Vec<Interrupt>,
    /// Whether all questions of the round are to be answered together.
    pub together: bool,
    /// Whether it is the tool that asks, which may have done something by now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
    /// Who suspended the call; `None` in what an older version stored, and in what a tool returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<SuspendedBy>,
    /// What whoever asked needs to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<Value>>,
}

/// Who suspended a call, and so whose the [state](Pending::state) of its suspension is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SuspendedBy {
    /// The round service, on behalf of the call: a gate asks, or the outcome is unknown.
    Lifecycle,
    /// The tool.
    Tool,
}

/// The key of an interrupt's metadata with its approval token.
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
    /// A call that waits for the others of its round.
    pub fn held() -> Self {
        Self::default()
    }

    /// A call that waits for replies to `interrupts`.
    pub fn asking(interrupts: Vec<Interrupt>) -> Self {
        Self {
            interrupts,
            ..Self::default()
        }
    }

    /// Keeps what is needed to go on.
    #[must_use]
    pub fn with_state(mut self, state: impl Into<Arc<Value>>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// Sets who suspended the call.
    #[must_use]
    pub fn by(mut self, by: SuspendedBy) -> Self {
        self.by = Some(by);
        self
    }

    /// Has all questions of the round answered together.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Whether the call only waits for others.
    pub fn is_held(&self) -> bool {
        self.interrupts.is_empty()
    }
}

/// What became of a call that waited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Answered {
    /// A process that took it up has died since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_up: bool,
    /// What it waited for, as it was written down. `None`: a history claims that it waited, and
    /// nobody that can be trusted has recorded it, so the replies need a proof.
    pub pending: Option<Pending>,
    /// The replies. None, and nothing it waited for either: a history claims that the call is open.
    /// It may be asked about (again); nothing says that it may run.
    pub replies: Vec<Reply>,
    /// When the replies were accepted: they were in time then, and are not late later.
    #[serde(with = "millis", skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<SystemTime>,
}

impl Answered {
    /// Creates what became of a call.
    pub fn new(pending: Option<Pending>, replies: Vec<Reply>) -> Self {
        Self {
            taken_up: false,
            pending,
            replies,
            accepted_at: None,
        }
    }

    /// Says when the replies were accepted; it is kept in whole milliseconds.
    #[must_use]
    pub fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = millis::from(millis::since(time));
        self
    }
}
