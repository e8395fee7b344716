//! Identifiers of runs, conversations, messages, calls and interrupts.
//!
//! Concentric assigns these ids. Ids from providers are mapped at the edge, because they repeat
//! across providers and runs.

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
            /// Creates an id from any text.
            pub fn new(id: impl Into<Str>) -> Self {
                Self(id.into())
            }

            /// The id as a string slice.
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
    /// The id of a run: one turn of a conversation, from request to outcome (AG-UI `runId`).
    RunId
}
id! {
    /// The id of a conversation (AG-UI `threadId`, `gen_ai.conversation.id`).
    ThreadId
}
id! {
    /// The id of an incoming HTTP request.
    RequestId
}
id! {
    /// The id of an outgoing event stream.
    StreamId
}
id! {
    /// The id of a message (AG-UI `messageId`).
    MessageId
}
id! {
    /// The id of an interrupt (AG-UI `interruptId`).
    InterruptId
}
id! {
    /// The id of a tool call (AG-UI `toolCallId`, `gen_ai.tool.call.id`).
    ///
    /// A call id is unique within its run, but not across runs.
    CallId
}

impl InterruptId {
    /// Creates the id of the first interrupt for a tool call: the `position`th call of `message`.
    ///
    /// A run that is resumed from a client's history derives the same id from the history alone.
    pub fn for_call(message: Option<&MessageId>, position: usize, call: &CallId) -> Self {
        let message = message.map_or("-", MessageId::as_str);
        Self::new(format!("{message}/{position}/{call}"))
    }

    /// Returns the position in `message` of the call that this interrupt is for, if
    /// [`for_call`](Self::for_call) may have created the id.
    pub fn call_position(&self, message: Option<&MessageId>) -> Option<usize> {
        let message = message.map_or("-", MessageId::as_str);
        let rest = self.as_str().strip_prefix(message)?.strip_prefix('/')?;
        rest.split_once('/')?.0.parse().ok()
    }
}
