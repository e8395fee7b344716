//! Questions that a run waits for the answer of, and the answers.
//!
//! A run that ends with [`Outcome::Interrupted`](crate::Outcome::Interrupted) has asked something:
//! [`MachineState::interrupts`](crate::machine::MachineState::interrupts) says what. It goes on by a
//! request that holds its state and the replies (`ChatRequest::resume`).
//!
//! ```
//! use concentric_proto::{Interrupt, InterruptId, Reply, interrupt};
//! use serde_json::json;
//!
//! let ask = Interrupt::new(InterruptId::new("msg_1/0/call_1"), interrupt::TOOL_CALL)
//!     .with_message("May I pay the money back?");
//!
//! let reply = Reply::approve(ask.id.clone());
//! assert_eq!(reply.payload, Some(json!({"approved": true})));
//! ```

mod millis;
mod pending;
mod reply;
mod scope;
#[cfg(test)]
mod tests;

pub use self::{
    pending::{Answered, Pending, SuspendedBy},
    reply::{Reply, ReplyError, ReplyKind, ReplyStatus, Ruling},
    scope::{Remember, RememberFor, RememberWhat},
};

use crate::{
    id::{CallId, InterruptId},
    text::Str,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

/// The [reason](Interrupt::reason) of a question whether a tool call may run.
pub const TOOL_CALL: Str = Str::from_static("tool_call");

/// The [reason](Interrupt::reason) of a question what came of a call that was started, when the
/// process died.
pub const UNKNOWN_EFFECT: Str = Str::from_static("unknown_effect");

/// The [reason](Interrupt::reason) of a call of a tool that the client executes.
pub const CLIENT_TOOL: Str = Str::from_static("client_tool");

/// The metadata of a question that lists the kinds of reply that it accepts.
const REPLIES: &str = "replies";

/// A question that a run waits for the answer of (AG-UI `Interrupt`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Interrupt {
    /// Names the question; no other question of any run has the same id.
    pub id: InterruptId,
    /// What kind of question it is: [`TOOL_CALL`], [`UNKNOWN_EFFECT`], [`CLIENT_TOOL`], or another.
    pub reason: Str,
    /// The question, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Str>,
    /// The call it is about.
    #[serde(
        default,
        rename = "toolCallId",
        skip_serializing_if = "Option::is_none"
    )]
    pub call_id: Option<CallId>,
    /// The JSON Schema of a reply's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Arc<Value>>,
    /// Until when it can be answered.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<SystemTime>,
    /// What else there is to know: the tool and its arguments, a token.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Interrupt {
    /// Creates a question.
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

    /// Says what is asked.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Str>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Says which call it is about.
    #[must_use]
    pub fn about(mut self, call: CallId) -> Self {
        self.call_id = Some(call);
        self
    }

    /// Says what a reply's payload is to be.
    #[must_use]
    pub fn with_response_schema(mut self, schema: impl Into<Arc<Value>>) -> Self {
        self.response_schema = Some(schema.into());
        self
    }

    /// Says until when it can be answered.
    #[must_use]
    pub fn until(mut self, expires_at: SystemTime) -> Self {
        self.expires_at = Some(expires_at);
        self
    }

    /// Adds something to know.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Sets the kinds of reply that the question accepts; by default, all. A cancellation is always
    /// accepted.
    #[must_use]
    pub fn with_replies(self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        let kinds: BTreeSet<ReplyKind> = kinds.into_iter().collect();
        self.with_metadata(REPLIES, json!(kinds))
    }

    /// Whether the question accepts replies of that kind, by its metadata (`replies`).
    ///
    /// A question that lists no kinds, as one that an older version stored, accepts all of them.
    pub fn accepts(&self, kind: ReplyKind) -> bool {
        let Some(kinds) = self.metadata.get(REPLIES) else {
            return true;
        };
        let mut kinds = kinds.as_array().into_iter().flatten();
        kinds.any(|it| it.as_str() == Some(kind.as_str()))
    }

    /// Whether the question lists the kinds of reply that it accepts.
    pub fn lists_replies(&self) -> bool {
        self.metadata.contains_key(REPLIES)
    }

    /// The tool that it asks about.
    pub fn tool(&self) -> Option<&str> {
        self.metadata.get("tool")?.as_str()
    }

    /// What the tool is to be called with.
    pub fn arguments(&self) -> Option<&Value> {
        self.metadata.get("arguments")
    }

    /// Checks that `reply` is of a form that this question can be answered in, and in time: to deny a
    /// call, or to give it up, it is never too late.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn check(&self, reply: &Reply, now: SystemTime) -> Result<(), ReplyError> {
        let late = self.expires_at.is_some_and(|expires_at| expires_at <= now);
        let expired = || Err(ReplyError::Expired(self.id.clone()));
        if ![TOOL_CALL, UNKNOWN_EFFECT, CLIENT_TOOL].contains(&self.reason) {
            return match reply.status {
                ReplyStatus::Cancelled if reply.payload.is_some() => {
                    Err(reply.malformed("a cancellation has no payload"))
                }
                ReplyStatus::Resolved if late => expired(),
                _ => Ok(()),
            };
        }
        let ruling = reply.ruling()?;
        let fits = match &ruling {
            Ruling::Cancelled | Ruling::Answered(_) => true,
            Ruling::Denied { .. } => self.reason != UNKNOWN_EFFECT,
            // Only who ran a call can say that it failed.
            Ruling::Failed(_) => self.reason == CLIENT_TOOL,
            // Only an executor of ours can be told to run.
            Ruling::Approved { .. } => self.reason == TOOL_CALL,
        };
        if !fits {
            return Err(reply.malformed("this question is not answered that way"));
        }
        if let Some(kind) = ruling.kind()
            && !self.accepts(kind)
        {
            let kind = kind.as_str();
            return Err(reply.malformed(format!("the question does not accept the reply `{kind}`")));
        }
        match &ruling {
            Ruling::Approved { remember, .. } | Ruling::Denied { remember, .. }
                if remember.is_some_and(|remember| !self.allows(remember)) =>
            {
                Err(reply.malformed("it is to hold for more than the question allows"))
            }
            Ruling::Cancelled | Ruling::Denied { .. } => Ok(()),
            _ if late => expired(),
            _ => Ok(()),
        }
    }

    /// Whether a reply may hold for other calls as `remember` says: the schema of the reply offers it.
    /// A question without a schema accepts it.
    fn allows(&self, remember: Remember) -> bool {
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
