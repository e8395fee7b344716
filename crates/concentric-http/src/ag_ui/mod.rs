//! The AG-UI protocol, version 1.0: its events, its request body, its rules and its encoding.
//!
//! The types are our own because the two crates on crates.io lack parts of 1.0 (interrupts,
//! sub-agents, the `cancelled` outcome) or refuse identifiers that are not UUIDs. They follow
//! `https://ag-ui.com/spec/1.0/schema.json`, and are written for a strict reader: the reference
//! client ends a run over a `null` where a field may only be absent, so nothing here writes one.
//!
//! ```
//! use concentric_http::ag_ui::{Event, RunFinished, RunFinishedOutcome, RunStarted, Verifier, encode};
//!
//! let mut verifier = Verifier::new();
//! let mut frames = Vec::new();
//! for event in [
//!     Event::from(RunStarted::new("thread-1", "run-1")),
//!     Event::from(RunFinished::new("thread-1", "run-1").outcome(RunFinishedOutcome::success())),
//! ] {
//!     verifier.verify(&event)?;
//!     encode::event(&event, &mut frames);
//! }
//! verifier.finish()?;
//! assert!(frames.starts_with(b"data: {\"type\":\"RUN_STARTED\",\"threadId\":\"thread-1\""));
//! # Ok::<(), concentric_http::ag_ui::VerifyError>(())
//! ```
//!
//! | part | for |
//! |---|---|
//! | [`Event`] | the 31 events that a server may send, and those that we do not know |
//! | [`RunAgentInput`] | the body of a request, with errors that name the field |
//! | [`Verifier`] | the order that events must keep |
//! | [`encode`] | one event as one frame of a `text/event-stream` |

pub mod encode;
mod event;
mod input;
mod message;
mod verify;

pub use self::event::{
    ActivityDelta, ActivitySnapshot, Custom, EncryptedEntity, Event, Interrupt, MessagesSnapshot,
    PatchOperation, Raw, ReasoningEncryptedValue, ReasoningEnd, ReasoningMessageChunk,
    ReasoningMessageContent, ReasoningMessageEnd, ReasoningMessageStart, ReasoningRole,
    ReasoningStart, RunError, RunFinished, RunFinishedOutcome, RunStarted, StateDelta,
    StateSnapshot, StepFinished, StepStarted, SubagentError, SubagentFinished, SubagentOutcome,
    SubagentStarted, TextMessageChunk, TextMessageContent, TextMessageEnd, TextMessageRole,
    TextMessageStart, Timestamp, TokenUsage, ToolCallArgs, ToolCallChunk, ToolCallEnd,
    ToolCallResult, ToolCallStart, ToolRole, UnknownEvent,
};
pub use self::input::{Context, InputError, ResumeEntry, ResumeStatus, RunAgentInput, Tool};
pub use self::message::{
    ActivityMessage, AssistantMessage, Content, ContentPart, DeveloperMessage, FunctionCall,
    MediaPart, Message, PartSource, ReasoningMessage, SystemMessage, TextPart, ToolCall,
    ToolCallType, ToolMessage, UserMessage,
};
pub use self::verify::{Entity, Verifier, VerifyError};

/// The version of the protocol that these types follow.
pub const PROTOCOL_VERSION: &str = "1.0";

/// Extra information on an event, a message, a tool, an interrupt or a resume entry.
///
/// Any JSON value may stand under a key, `null` too; the key `ag-ui` is the protocol's own.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// Declares a wire type: required fields are the arguments of `new`, optional ones have a setter
/// of their name, and an optional field that is absent (or a JSON `null`) is not written.
macro_rules! wire {
    (
        $(#[$meta:meta])*
        $name:ident;
        required { $( $(#[$rmeta:meta])* $rfield:ident: $rty:ty, )* }
        optional { $( $(#[$ometa:meta])* $ofield:ident: $oty:ty, )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[$rmeta])* pub $rfield: $rty, )*
            $(
                $(#[$ometa])*
                #[serde(default, skip_serializing_if = "crate::ag_ui::is_absent")]
                pub $ofield: Option<$oty>,
            )*
        }

        impl $name {
            /// Creates the value from what the protocol requires of it.
            // Types without a required field also have a `Default`, given where they are declared.
            #[allow(clippy::new_without_default)]
            pub fn new($( $rfield: impl Into<$rty> ),*) -> Self {
                Self {
                    $( $rfield: $rfield.into(), )*
                    $( $ofield: None, )*
                }
            }

            $(
                $(#[$ometa])*
                #[must_use]
                pub fn $ofield(mut self, $ofield: impl Into<$oty>) -> Self {
                    self.$ofield = Some($ofield.into());
                    self
                }
            )*
        }
    };
}
use wire;

/// Whether an optional field is to be left out: absent, or a JSON `null`, which the protocol takes
/// for an error where a field is optional.
fn is_absent<T: Optional>(field: &Option<T>) -> bool {
    field.as_ref().is_none_or(Optional::is_null)
}

/// What may stand in an optional field.
trait Optional {
    fn is_null(&self) -> bool {
        false
    }
}

impl Optional for serde_json::Value {
    fn is_null(&self) -> bool {
        self.is_null()
    }
}
impl Optional for bool {}
impl Optional for String {}
impl Optional for Metadata {}
impl<T> Optional for Vec<T> {}
impl<T> Optional for Box<T> {}
