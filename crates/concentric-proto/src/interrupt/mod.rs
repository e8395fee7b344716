//! Interrupts, which a run waits on, and the replies to them.
//!
//! A run whose outcome is [`Outcome::Interrupted`](crate::Outcome::Interrupted) waits for replies
//! to its [interrupts](crate::machine::RunState::interrupts). To resume it, send a request with
//! its state and the replies (`ChatRequest::resume`).
//!
//! ```
//! use concentric_proto::{Interrupt, InterruptId, Reply, interrupt};
//! use serde_json::json;
//!
//! let ask = Interrupt::new(InterruptId::new("msg_1/0/call_1"), interrupt::TOOL_CALL)
//!     .with_message("Refund the payment?");
//!
//! let reply = Reply::approve(ask.id.clone());
//! assert_eq!(reply.payload, Some(json!({"approved": true})));
//! ```

mod debug;
pub(crate) mod millis;
mod reply;
mod scope;
mod suspension;
#[cfg(test)]
mod tests;

pub use self::{
    reply::{Decision, Reply, ReplyError, ReplyKind, ReplyStatus},
    scope::{DecisionScope, ScopeCalls, ScopeLifetime},
    suspension::{SuspendedBy, Suspension},
};

pub(crate) use self::suspension::StepResume;

use crate::{
    id::{CallId, InterruptId},
    text::Str,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

/// The [reason](Interrupt::reason) of an interrupt that requests approval for a tool call.
pub const TOOL_CALL: Str = Str::from_static("tool_call");

/// The [reason](Interrupt::reason) of an interrupt that requests the outcome of a call that may
/// already have executed, because its process ended after it was started.
pub const UNKNOWN_EFFECT: Str = Str::from_static("unknown_effect");

/// The [reason](Interrupt::reason) of an interrupt that requests the result of a client tool.
pub const CLIENT_TOOL: Str = Str::from_static("client_tool");

/// The metadata key for the kinds of reply that an interrupt accepts.
const REPLIES: &str = "replies";

/// A question that a run waits on (AG-UI `Interrupt`). Its `Debug` output hides the approval token.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Interrupt {
    /// The id of the interrupt, unique across all runs.
    pub id: InterruptId,
    /// The kind of question: [`TOOL_CALL`], [`UNKNOWN_EFFECT`], [`CLIENT_TOOL`], or another.
    pub reason: Str,
    /// The question as text for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Str>,
    /// The tool call that the interrupt is for.
    #[serde(
        default,
        rename = "toolCallId",
        skip_serializing_if = "Option::is_none"
    )]
    pub call_id: Option<CallId>,
    /// The JSON Schema of a reply's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Arc<Value>>,
    /// The time after which replies are too late.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<SystemTime>,
    /// Further data: the tool and its arguments, an approval token.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Interrupt {
    /// Creates an interrupt.
    pub fn new(id: InterruptId, reason: impl Into<Str>) -> Self {
        Self {
            id,
            reason: reason.into(),
            message: None,
            call_id: None,
            response_schema: None,
            expires_at: None,
            metadata: Map::new(),
        }
    }

    /// Sets the question text.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Str>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets the tool call that the interrupt is for.
    #[must_use]
    pub fn about(mut self, call: CallId) -> Self {
        self.call_id = Some(call);
        self
    }

    /// Sets the JSON Schema of a reply's payload.
    #[must_use]
    pub fn with_response_schema(mut self, schema: impl Into<Arc<Value>>) -> Self {
        self.response_schema = Some(schema.into());
        self
    }

    /// Sets the time after which replies are too late.
    #[must_use]
    pub fn until(mut self, expires_at: SystemTime) -> Self {
        self.expires_at = Some(expires_at);
        self
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Restricts the kinds of reply that the interrupt accepts. By default it accepts all kinds. A
    /// cancellation is always accepted.
    #[must_use]
    pub fn with_replies(self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        let kinds: BTreeSet<ReplyKind> = kinds.into_iter().collect();
        self.with_metadata(REPLIES, json!(kinds))
    }

    /// Returns whether the interrupt accepts replies of this kind, by its metadata (`replies`).
    ///
    /// An interrupt without this metadata, such as one that an older version stored, accepts all
    /// kinds.
    pub fn accepts(&self, kind: ReplyKind) -> bool {
        let Some(kinds) = self.metadata.get(REPLIES) else {
            return true;
        };
        let mut kinds = kinds.as_array().into_iter().flatten();
        kinds.any(|it| it.as_str() == Some(kind.as_str()))
    }

    /// Returns whether the interrupt restricts the kinds of reply.
    pub fn lists_replies(&self) -> bool {
        self.metadata.contains_key(REPLIES)
    }

    /// The name of the tool that the interrupt is for.
    pub fn tool(&self) -> Option<&str> {
        self.metadata.get("tool")?.as_str()
    }

    /// The arguments of the tool call.
    pub fn arguments(&self) -> Option<&Value> {
        self.metadata.get("arguments")
    }

    /// Checks that `reply` is valid for this interrupt at the time `now`.
    ///
    /// Denials and cancellations of a call are never too late.
    ///
    /// # Errors
    ///
    /// The reply is malformed, of a kind that the interrupt does not accept, or too late.
    pub fn check(&self, reply: &Reply, now: SystemTime) -> Result<(), ReplyError> {
        let late = self.expires_at.is_some_and(|expires_at| expires_at <= now);
        let expired = || Err(ReplyError::Expired(self.id.clone()));
        if ![TOOL_CALL, UNKNOWN_EFFECT, CLIENT_TOOL].contains(&self.reason) {
            return match reply.status {
                ReplyStatus::Cancelled if reply.payload.is_some() => {
                    Err(reply.malformed("a cancellation must not have a payload"))
                }
                ReplyStatus::Resolved if late => expired(),
                _ => Ok(()),
            };
        }
        let decision = reply.decision()?;
        let fits = match &decision {
            Decision::Cancelled | Decision::Answered(_) => true,
            Decision::Denied { .. } => self.reason != UNKNOWN_EFFECT,
            // Only the client that executed the call can report its failure.
            Decision::Failed(_) => self.reason == CLIENT_TOOL,
            // Only calls that this process executes can be approved.
            Decision::Approved { .. } => self.reason == TOOL_CALL,
        };
        if !fits {
            return Err(reply.malformed("this decision is not valid for this interrupt"));
        }
        if let Some(kind) = decision.kind()
            && !self.accepts(kind)
        {
            let kind = kind.as_str();
            return Err(
                reply.malformed(format!("the interrupt does not accept the reply `{kind}`"))
            );
        }
        match &decision {
            Decision::Approved { remember, .. } | Decision::Denied { remember, .. }
                if remember.is_some_and(|remember| !self.allows(remember)) =>
            {
                Err(reply.malformed("the interrupt does not allow this `remember` scope"))
            }
            Decision::Cancelled | Decision::Denied { .. } => Ok(()),
            _ if late => expired(),
            _ => Ok(()),
        }
    }

    /// Returns whether the schema of the reply allows the scope `remember`. Without a schema, all
    /// scopes are allowed.
    fn allows(&self, remember: DecisionScope) -> bool {
        let Some(schema) = self.response_schema.as_deref() else {
            return true;
        };
        let Some(offered) = schema.pointer("/properties/remember") else {
            return false;
        };
        let among = |name: &str, value: Value| {
            let at = format!("/properties/{name}/enum");
            let all = offered.pointer(&at).and_then(Value::as_array);
            all.is_none_or(|all| all.contains(&value))
        };
        among("what", json!(remember.what)) && among("for", json!(remember.span))
    }
}
