use super::{DecisionScope, ScopeCalls, ScopeLifetime};
use crate::{id::InterruptId, text::Str};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::{error::Error as StdError, fmt};

/// The reply to one [`Interrupt`](super::Interrupt) (AG-UI `ResumeEntry`). Its `Debug` output hides
/// the approval token.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Reply {
    /// The interrupt that the reply is for.
    pub interrupt_id: InterruptId,
    /// Whether the interrupt was resolved or cancelled.
    pub status: ReplyStatus,
    /// The payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The approval token, which proves that the interrupt was raised if no store has recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Str>,
    /// Who replied, if the server knows it. It is stored with the run; a server does not take it from a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Str>,
}

/// Whether an interrupt was resolved or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyStatus {
    /// The reply contains an answer.
    Resolved,
    /// The interrupt was dismissed without an answer.
    Cancelled,
}

impl Reply {
    /// Creates a reply with a payload.
    pub fn resolve(to: InterruptId, payload: Value) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Resolved,
            payload: Some(payload),
            token: None,
            by: None,
        }
    }

    /// Approves a call.
    pub fn approve(to: InterruptId) -> Self {
        Self::resolve(to, json!({"approved": true}))
    }

    /// Approves a call with other arguments, which must be an object.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the reply is made of it, as by `resolve`"
    )]
    pub fn approve_edited(to: InterruptId, arguments: Value) -> Self {
        Self::resolve(to, json!({"approved": true, "editedArgs": arguments}))
    }

    /// Denies a call. The model receives the reason.
    pub fn deny(to: InterruptId, reason: impl Into<String>) -> Self {
        Self::resolve(to, json!({"approved": false, "reason": reason.into()}))
    }

    /// Supplies the result of a call, which is then not executed.
    pub fn answer(to: InterruptId, result: impl Into<Value>) -> Self {
        Self::resolve(to, json!({"result": result.into()}))
    }

    /// Reports that a client tool ([`CLIENT_TOOL`](super::CLIENT_TOOL)) failed. The model receives
    /// the error.
    pub fn answer_failed(to: InterruptId, error: impl Into<String>) -> Self {
        Self::resolve(to, json!({"error": error.into()}))
    }

    /// Cancels an interrupt.
    pub fn cancel(to: InterruptId) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Cancelled,
            payload: None,
            token: None,
            by: None,
        }
    }

    /// Applies an approval or a denial to other calls as well. The interrupt's schema must allow
    /// `remember`.
    #[must_use]
    pub fn remembered(mut self, what: ScopeCalls, span: ScopeLifetime) -> Self {
        if let Some(Value::Object(payload)) = &mut self.payload {
            payload.insert("remember".to_owned(), json!({"what": what, "for": span}));
        }
        self
    }

    /// Sets the approval token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Str>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Deserializes the payload.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: there is no payload, or it is not a valid `T`.
    pub fn read<T>(&self) -> Result<T, ReplyError>
    where
        T: DeserializeOwned,
    {
        let payload = self.payload.as_ref();
        let payload = payload.filter(|_| self.status == ReplyStatus::Resolved);
        let payload = payload.ok_or_else(|| self.malformed("the payload is missing"))?;
        T::deserialize(payload).map_err(|error| self.malformed(format!("invalid payload: {error}")))
    }

    /// The decision about a tool call that the reply contains.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: the payload contains no decision, or contradicts itself.
    pub fn decision(&self) -> Result<Decision, ReplyError> {
        let payload = match (self.status, &self.payload) {
            (ReplyStatus::Cancelled, None) => return Ok(Decision::Cancelled),
            (ReplyStatus::Cancelled, Some(_)) => {
                return Err(self.malformed("a cancellation must not have a payload"));
            }
            (ReplyStatus::Resolved, None) => return Err(self.malformed("the payload is missing")),
            (ReplyStatus::Resolved, Some(payload)) => payload,
        };
        let payload = Payload::deserialize(payload)
            .map_err(|error| self.malformed(format!("invalid payload: {error}")))?;
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
                true => Ok(Decision::Failed(error)),
                false => Err(self.malformed("the fields contradict each other")),
            };
        }
        match (approved, result) {
            (None | Some(true), Some(result))
                if edited_args.is_none() && reason.is_none() && remember.is_none() =>
            {
                Ok(Decision::Answered(result))
            }
            (Some(true), None) if reason.is_none() => Ok(Decision::Approved {
                edited: edited_args,
                remember,
            }),
            (Some(false), None) if edited_args.is_none() => {
                Ok(Decision::Denied { reason, remember })
            }
            (None, None) => {
                Err(self.malformed("one of `approved`, `result` and `error` is required"))
            }
            _ => Err(self.malformed("the fields contradict each other")),
        }
    }

    pub(super) fn malformed(&self, why: impl Into<Str>) -> ReplyError {
        ReplyError::Malformed {
            id: self.interrupt_id.clone(),
            why: why.into(),
        }
    }
}

/// The payload of a reply that decides about a tool call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    approved: Option<bool>,
    edited_args: Option<Map<String, Value>>,
    reason: Option<Str>,
    // `null` is a valid result.
    #[serde(default, deserialize_with = "some")]
    result: Option<Value>,
    error: Option<Str>,
    remember: Option<DecisionScope>,
}

fn some<'de, D>(deserializer: D) -> Result<Option<Value>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Value::deserialize(deserializer).map(Some)
}

/// The decision about a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decision {
    /// The call may run.
    Approved {
        /// The new arguments, if they were edited.
        edited: Option<Map<String, Value>>,
        /// The other calls that the approval applies to.
        remember: Option<DecisionScope>,
    },
    /// The call must not run.
    Denied {
        /// The reason for the denial.
        reason: Option<Str>,
        /// The other calls that the denial applies to.
        remember: Option<DecisionScope>,
    },
    /// The call does not run, and this is its result.
    Answered(Value),
    /// The client executed the call, and it failed.
    Failed(Str),
    /// The interrupt was cancelled without a decision.
    Cancelled,
}

impl Decision {
    /// The kind of reply; `None` for a cancellation and for a failure that the client reports.
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

/// A kind of reply to an interrupt that requests approval for a tool call.
///
/// See [`Interrupt::accepts`](super::Interrupt::accepts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyKind {
    /// Approves the call ([`Reply::approve`]).
    Approve,
    /// Denies the call ([`Reply::deny`]).
    Deny,
    /// Approves the call with other arguments ([`Reply::approve_edited`]).
    Edit,
    /// Supplies a result instead of running the call ([`Reply::answer`]).
    Answer,
}

impl ReplyKind {
    /// The name of the kind on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
            Self::Edit => "edit",
            Self::Answer => "answer",
        }
    }
}

/// The error for replies that a run rejects. No call is run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyError {
    /// No interrupt with this id waits for a reply.
    Unknown(InterruptId),
    /// Two replies have the same interrupt id.
    Duplicate(InterruptId),
    /// The interrupts of the run must be replied to together, and the reply to this one is missing.
    Missing(InterruptId),
    /// The reply is too late.
    Expired(InterruptId),
    /// The reply does not have the form that the interrupt requires.
    Malformed {
        /// The interrupt.
        id: InterruptId,
        /// The reason.
        why: Str,
    },
}

impl ReplyError {
    /// The id of the interrupt that the error is for.
    pub fn interrupt_id(&self) -> &InterruptId {
        match self {
            Self::Unknown(id)
            | Self::Duplicate(id)
            | Self::Missing(id)
            | Self::Expired(id)
            | Self::Malformed { id, .. } => id,
        }
    }

    /// A stable code for the error, for programs.
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
            Self::Unknown(id) => write!(f, "no interrupt `{id}` waits for a reply"),
            Self::Duplicate(id) => write!(f, "duplicate reply for interrupt `{id}`"),
            Self::Missing(id) => {
                write!(
                    f,
                    "the reply for interrupt `{id}` is missing; reply to all together"
                )
            }
            Self::Expired(id) => write!(
                f,
                "the reply for interrupt `{id}` is too late; deny or cancel the call instead"
            ),
            Self::Malformed { id, why } => {
                write!(f, "the reply for interrupt `{id}` is invalid: {why}")
            }
        }
    }
}

impl StdError for ReplyError {}
