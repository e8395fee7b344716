//! Approvals as items of responses.

use std::fmt;

use concentric_core::{Interrupt, InterruptId, Reply, Str, ThreadId, interrupt::TOOL_CALL};
use serde_json::Value;

use super::stored::{conversation, conversation_key};
use crate::refused::Refused;

/// The start of the ids of approval requests.
pub(super) const PREFIX: &str = "mcpr_";

/// A call that waits for an approval.
pub(super) struct Approval {
    pub(super) id: Str,
    pub(super) name: Str,
    /// The arguments, as JSON.
    pub(super) arguments: String,
}

impl Approval {
    /// The approval that an interrupt of a run in `conversation` asks for; `None` if it asks for
    /// something else.
    pub(super) fn new(interrupt: &Interrupt, conversation: &ThreadId) -> Option<Self> {
        if interrupt.reason != TOOL_CALL {
            return None;
        }
        let field = |name: &str| interrupt.metadata.get(name);
        let key = conversation_key(conversation.as_str());
        Some(Self {
            id: Str::concat([PREFIX, key, "/", interrupt.id.as_str()]),
            name: field("tool")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .into(),
            arguments: match (field("argumentsText"), field("arguments")) {
                (Some(Value::String(text)), _) | (None, Some(Value::String(text))) => text.clone(),
                (_, Some(arguments)) => arguments.to_string(),
                (_, None) => "{}".to_owned(),
            },
        })
    }
}

/// The id of the first run of the conversation, and that of the interrupt, of an approval request.
fn parts(id: &str) -> Option<(&str, &str)> {
    id.strip_prefix(PREFIX)?.split_once('/')
}

/// Whether a reply is to the approval request `id`.
pub(super) fn is_about(reply: &Reply, id: &str) -> bool {
    parts(id).is_some_and(|(_, interrupt)| interrupt == reply.interrupt_id.as_str())
}

/// An item with an approval or a denial.
pub(super) struct Decision {
    pub(super) request: Str,
    pub(super) approve: bool,
    pub(super) reason: Option<String>,
}

impl Decision {
    /// The reply, and the conversation with the run that waits for it.
    pub(super) fn reply(self, field: fmt::Arguments<'_>) -> Result<(ThreadId, Reply), Refused> {
        let Some((key, id)) = parts(&self.request) else {
            let field = format!("{field}.approval_request_id");
            return Err(Refused::field(
                &field,
                "expected the id of an approval request",
            ));
        };
        let id = InterruptId::new(id);
        let reply = match self.approve {
            true => Reply::approve(id),
            false => Reply::deny(id, self.reason.unwrap_or_default()),
        };
        Ok((conversation(key), reply))
    }
}
