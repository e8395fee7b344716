use super::{Remember, RememberFor, RememberWhat};
use crate::{id::InterruptId, text::Str};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::{error::Error as StdError, fmt};

/// The answer to one [`Interrupt`](super::Interrupt) (AG-UI `ResumeEntry`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Reply {
    /// The question.
    pub interrupt_id: InterruptId,
    /// Whether it was answered at all.
    pub status: ReplyStatus,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The proof that the question was asked, if whoever asked keeps no record of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Str>,
}

/// Whether a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyStatus {
    /// It was.
    Resolved,
    /// Nobody wanted to answer.
    Cancelled,
}

impl Reply {
    /// Creates an answer.
    pub fn resolve(to: InterruptId, payload: Value) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Resolved,
            payload: Some(payload),
            token: None,
        }
    }

    /// Lets a call run as it is.
    pub fn approve(to: InterruptId) -> Self {
        Self::resolve(to, json!({"approved": true}))
    }

    /// Lets a call run with other arguments, an object.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the reply is made of it, as by `resolve`"
    )]
    pub fn approve_edited(to: InterruptId, arguments: Value) -> Self {
        Self::resolve(to, json!({"approved": true, "editedArgs": arguments}))
    }

    /// Does not let a call run; the model is told why.
    pub fn deny(to: InterruptId, reason: impl Into<String>) -> Self {
        Self::resolve(to, json!({"approved": false, "reason": reason.into()}))
    }

    /// Answers a call with a result, and does not run it.
    pub fn answer(to: InterruptId, result: impl Into<Value>) -> Self {
        Self::resolve(to, json!({"result": result.into()}))
    }

    /// Says that the client ran a call of its own ([`CLIENT_TOOL`](super::CLIENT_TOOL)), and that it failed; the model is
    /// told how.
    pub fn answer_failed(to: InterruptId, error: impl Into<String>) -> Self {
        Self::resolve(to, json!({"error": error.into()}))
    }

    /// Gives the question up.
    pub fn cancel(to: InterruptId) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Cancelled,
            payload: None,
            token: None,
        }
    }

    /// Says that an approval or a denial holds for more than its call, where the question's schema
    /// has `remember`.
    #[must_use]
    pub fn remembered(mut self, what: RememberWhat, span: RememberFor) -> Self {
        if let Some(Value::Object(payload)) = &mut self.payload {
            payload.insert("remember".to_owned(), json!({"what": what, "for": span}));
        }
        self
    }

    /// Adds the proof that the question was asked.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Str>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The answer, as a `T`.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: there is none, or it is not a `T`.
    pub fn read<T>(&self) -> Result<T, ReplyError>
    where
        T: DeserializeOwned,
    {
        let payload = self.payload.as_ref();
        let payload = payload.filter(|_| self.status == ReplyStatus::Resolved);
        let payload = payload.ok_or_else(|| self.malformed("it has no payload"))?;
        T::deserialize(payload).map_err(|error| self.malformed(format!("its payload: {error}")))
    }

    /// What the reply says about a tool call.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: it says nothing, or contradicts itself.
    pub fn ruling(&self) -> Result<Ruling, ReplyError> {
        let payload = match (self.status, &self.payload) {
            (ReplyStatus::Cancelled, None) => return Ok(Ruling::Cancelled),
            (ReplyStatus::Cancelled, Some(_)) => {
                return Err(self.malformed("a cancellation has no payload"));
            }
            (ReplyStatus::Resolved, None) => return Err(self.malformed("it has no payload")),
            (ReplyStatus::Resolved, Some(payload)) => payload,
        };
        let payload = Payload::deserialize(payload)
            .map_err(|error| self.malformed(format!("its payload: {error}")))?;
        let Payload {
            approved,
            edited_args,
            reason,
            result,
            error,
            remember,
        } = payload;
        if let Some(error) = error {
            let alone = approved.is_none()
                && edited_args.is_none()
                && reason.is_none()
                && result.is_none()
                && remember.is_none();
            return match alone {
                true => Ok(Ruling::Failed(error)),
                false => Err(self.malformed("its parts contradict each other")),
            };
        }
        match (approved, result) {
            (None | Some(true), Some(result))
                if edited_args.is_none() && reason.is_none() && remember.is_none() =>
            {
                Ok(Ruling::Answered(result))
            }
            (Some(true), None) if reason.is_none() => Ok(Ruling::Approved {
                edited: edited_args,
                remember,
            }),
            (Some(false), None) if edited_args.is_none() => Ok(Ruling::Denied { reason, remember }),
            (None, None) => Err(self.malformed("it says none of `approved`, `result` and `error`")),
            _ => Err(self.malformed("its parts contradict each other")),
        }
    }

    pub(super) fn malformed(&self, why: impl Into<Str>) -> ReplyError {
        ReplyError::Malformed {
            id: self.interrupt_id.clone(),
            why: why.into(),
        }
    }
}

/// The payload of a reply about a tool call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    approved: Option<bool>,
    edited_args: Option<Map<String, Value>>,
    reason: Option<Str>,
    // `null` is a result, too.
    #[serde(default, deserialize_with = "some")]
    result: Option<Value>,
    error: Option<Str>,
    remember: Option<Remember>,
}

fn some<'de, D>(deserializer: D) -> Result<Option<Value>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Value::deserialize(deserializer).map(Some)
}

/// What a [`Reply`] says about a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ruling {
    /// It may run.
    Approved {
        /// With these arguments, if they were changed.
        edited: Option<Map<String, Value>>,
        /// What it is to mean for other calls.
        remember: Option<Remember>,
    },
    /// It may not run.
    Denied {
        /// Why.
        reason: Option<Str>,
        /// What it is to mean for other calls.
        remember: Option<Remember>,
    },
    /// It is not to run; this is its result.
    Answered(Value),
    /// The client ran it, and it failed.
    Failed(Str),
    /// Nobody decided.
    Cancelled,
}

impl Ruling {
    /// The kind of reply that it is; `None` for a cancellation, and for a client's own failure.
    pub const fn kind(&self) -> Option<ReplyKind> {
        Some(match self {
            Self::Approved { edited: None, .. } => ReplyKind::Approve,
            Self::Approved {
                edited: Some(_), ..
            } => ReplyKind::Edit,
            Self::Denied { .. } => ReplyKind::Deny,
            Self::Answered(_) => ReplyKind::Answer,
            Self::Failed(_) | Self::Cancelled => return None,
        })
    }
}

/// A kind of reply to the question whether a tool call may run.
///
/// See [`Interrupt::accepts`](super::Interrupt::accepts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyKind {
    /// Lets the call run as it is ([`Reply::approve`]).
    Approve,
    /// Does not let the call run ([`Reply::deny`]).
    Deny,
    /// Lets the call run with other arguments ([`Reply::approve_edited`]).
    Edit,
    /// Gives the call a result instead of running it ([`Reply::answer`]).
    Answer,
}

impl ReplyKind {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
            Self::Edit => "edit",
            Self::Answer => "answer",
        }
    }
}

/// Why replies were not taken: nothing was run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyError {
    /// No question of that id waits.
    Unknown(InterruptId),
    /// Two replies are to one question.
    Duplicate(InterruptId),
    /// The questions of this run are answered together, and this one was not.
    Missing(InterruptId),
    /// It came too late.
    Expired(InterruptId),
    /// It is not of the form that the question asks for.
    Malformed {
        /// The question.
        id: InterruptId,
        /// What is wrong.
        why: Str,
    },
}

impl ReplyError {
    /// The question it is about.
    pub fn interrupt_id(&self) -> &InterruptId {
        match self {
            Self::Unknown(id)
            | Self::Duplicate(id)
            | Self::Missing(id)
            | Self::Expired(id)
            | Self::Malformed { id, .. } => id,
        }
    }

    /// A name of what is wrong, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_interrupt",
            Self::Duplicate(_) => "duplicate_reply",
            Self::Missing(_) => "missing_reply",
            Self::Expired(_) => "expired",
            Self::Malformed { .. } => "malformed_reply",
        }
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "no question `{id}` waits for a reply"),
            Self::Duplicate(id) => write!(f, "two replies are to the question `{id}`"),
            Self::Missing(id) => {
                write!(f, "the question `{id}` is to be answered with the others")
            }
            Self::Expired(id) => write!(
                f,
                "the reply to `{id}` came too late: the call can only be denied or cancelled"
            ),
            Self::Malformed { id, why } => write!(f, "the reply to `{id}`: {why}"),
        }
    }
}

impl StdError for ReplyError {}
