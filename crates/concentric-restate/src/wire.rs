//! The inputs and results of the handlers.

use concentric_core::{
    Error, ErrorKind, Interrupt, Message, Outcome, Reply, RunId, SideEffects, Str, Usage,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The input of `run`: a turn of the user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunInput {
    /// The new messages of the conversation.
    pub messages: Vec<Message>,
    /// The owner of the run, as authenticated by the caller.
    pub tenant: Str,
    /// Whether a run of the conversation that waits for replies ends, as withdrawn. Otherwise the new run fails with
    /// [`ErrorKind::Conflict`] and the code `run_waiting`.
    pub withdraw: bool,
}

impl RunInput {
    /// Creates a turn of `messages`.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// Creates a turn of one message.
    pub fn user(text: impl Into<Str>) -> Self {
        Self::new(vec![Message::user(text)])
    }

    /// Sets the owner of the run.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<Str>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Ends a run that waits for replies.
    #[must_use]
    pub const fn withdrawing(mut self) -> Self {
        self.withdraw = true;
        self
    }
}

/// The input of `reply`: replies to the interrupts of the waiting run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ReplyInput {
    /// The replies.
    pub replies: Vec<Reply>,
    /// Messages that the user sent with them.
    pub messages: Vec<Message>,
    /// The owner of the run, as authenticated by the caller; replies of another one are refused.
    pub tenant: Str,
}

impl ReplyInput {
    /// Creates the input.
    pub fn new(replies: Vec<Reply>) -> Self {
        Self {
            replies,
            ..Self::default()
        }
    }

    /// Sets the owner of the run.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<Str>) -> Self {
        self.tenant = tenant.into();
        self
    }
}

/// The result of `run` and `reply`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunOutput {
    /// The id of the run.
    pub run: RunId,
    /// The outcome; `None` if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The text of the last answer.
    #[serde(default)]
    pub text: Str,
    /// The interrupts that the run waits on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<Interrupt>,
    /// The tokens that the run has used.
    #[serde(default)]
    pub usage: Usage,
    /// The error of a run that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
}

impl RunOutput {
    pub(crate) fn failed(run: RunId, error: &Error) -> Self {
        Self {
            run,
            outcome: None,
            text: Str::default(),
            interrupts: Vec::new(),
            usage: Usage::default(),
            error: Some(RunFailure::new(error)),
        }
    }
}

/// The error of a run, without the texts of providers and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunFailure {
    /// The category.
    pub kind: ErrorKind,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Str>,
    /// The description.
    pub message: Str,
    /// Whether tools may have had side effects.
    #[serde(default)]
    pub effects: SideEffects,
}

impl RunFailure {
    fn new(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            code: error.code().map(Str::from),
            message: error.message().into(),
            effects: error.effects(),
        }
    }
}

/// The result of `state`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ThreadState {
    /// The id of the invocation that drives a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driving: Option<Str>,
    /// The interrupts that the waiting run has; the run has a tenant, whose caller may see them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<Interrupt>,
    /// The number of turns of the conversation.
    pub turns: usize,
}

/// A run that waits, in the state of its object, beside the [state](concentric_core::run_state::RunState) of the run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) run: RunId,
    pub(crate) tenant: Str,
    /// The invocation that awaits the replies, with `Waits::Await`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) awaited: Option<Awaited>,
    /// Whether an invocation has begun to drive the run with replies, and has not ended that part.
    #[serde(default)]
    pub(crate) is_taken: bool,
}

/// An invocation that awaits replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Awaited {
    /// The awakeable, whose id is known to the service only.
    pub(crate) awakeable: Str,
    pub(crate) invocation: Str,
}

/// The input of `deliver`: replies for an invocation that awaits them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Deliver {
    pub(crate) awaited: Awaited,
    /// The invocation of `reply`, since the first one of several that reply to a wait delivers.
    pub(crate) by: Str,
    /// When the replies were accepted, in milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) input: ReplyInput,
}

/// The result of `deliver`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delivered {
    pub(crate) by: Str,
    /// The result for the caller; `None` if the invocation ended without it.
    #[serde(default)]
    pub(crate) output: Option<RunOutput>,
    /// Whether the invocation took the replies and was killed.
    #[serde(default)]
    pub(crate) is_lost: bool,
}

/// The input of `resume`: replies to a run that no invocation drives.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resume {
    pub(crate) input: ReplyInput,
    /// The invocation that took the replies and was killed: they are refused, and later ones accepted.
    #[serde(default)]
    pub(crate) lost: Option<Awaited>,
}

/// The value of the awakeable.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) at: u64,
    /// The [`ReplyInput`], of code that may be newer than the waiting invocation.
    pub(crate) input: Box<RawValue>,
    /// The awakeable of `deliver`, for the result.
    pub(crate) result: Str,
}
