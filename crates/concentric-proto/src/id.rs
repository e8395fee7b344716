//! Identifiers.
//!
//! Ids are ours: a provider's own ids are mapped at its edge, since they repeat across providers
//! and runs.

use crate::text::Str;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Str);

        impl $name {
            /// Takes `id` as it is.
            pub fn new(id: impl Into<Str>) -> Self {
                Self(id.into())
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$name> for Str {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

id! {
    /// Names one run: one turn of a conversation, from request to outcome (AG-UI `runId`).
    RunId
}
id! {
    /// Names a conversation (AG-UI `threadId`, `gen_ai.conversation.id`).
    ThreadId
}
id! {
    /// Names one HTTP request that came in.
    RequestId
}
id! {
    /// Names one event stream that goes out.
    StreamId
}
id! {
    /// Names one message (AG-UI `messageId`).
    MessageId
}
id! {
    /// Names a question that a run waits for the answer of (AG-UI `interruptId`).
    InterruptId
}
id! {
    /// Names one tool call (AG-UI `toolCallId`, `gen_ai.tool.call.id`).
    ///
    /// It is unique within its run; two runs may use the same one.
    CallId
}

impl InterruptId {
    /// Creates the id of the first interrupt about a tool call: the `position`th call of `message`.
    ///
    /// A run that is resumed from a client's history derives the same id from the history alone.
    pub fn for_call(message: Option<&MessageId>, position: usize, call: &CallId) -> Self {
        let message = message.map_or("-", MessageId::as_str);
        Self::new(format!("{message}/{position}/{call}"))
    }

    /// Returns the position of the call of `message` that this interrupt is about, if
    /// [`for_call`](Self::for_call) may have created its id.
    pub fn call_position(&self, message: Option<&MessageId>) -> Option<usize> {
        let message = message.map_or("-", MessageId::as_str);
        let rest = self.as_str().strip_prefix(message)?.strip_prefix('/')?;
        rest.split_once('/')?.0.parse().ok()
    }
}
