//! The AG-UI protocol, version 1.0, and agents behind it.
//!
//! [`AgUiLayer`] makes of an agent an HTTP service: a run is a `POST` of a [`RunAgentInput`], and
//! its answer a stream of server-sent [`Event`]s.
//!
//! ```no_run
//! use axum::Router;
//! use concentric_core::BoxModel;
//! use concentric_http::ag_ui::AgUiLayer;
//! use tower_layer::Layer;
//!
//! fn app(agent: BoxModel) -> Router {
//!     Router::new().route_service("/agent", AgUiLayer::new().layer(agent))
//! }
//! # let _ = app;
//! ```
//!
//! # When what happens
//!
//! | | the service |
//! |---|---|
//! | is called | reads the body; answers what is no run with a status and a JSON error that names the field |
//! | has the body | answers `200`, and its stream begins with `RUN_STARTED`, before the agent is even ready |
//! | waits for the agent, in its stream | is silent, but for a comment every 15 seconds |
//! | reads an [`Event`](concentric_core::Event) | writes what it is to the client; events that are ready together go out in one piece |
//! | reads [`Finish`](concentric_core::Event::Finish) | closes what is open, and writes `RUN_FINISHED` |
//! | reads an error, or a body that ends early | closes what is open, and writes `RUN_ERROR` |
//! | is dropped, since the client went away | drops the run, and with it the provider's stream and the running tools |
//! | is shut down ([`Shutdown`]) | answers `503`, and ends its streams after a grace |
//!
//! # Place in the stack
//!
//! Outermost: HTTP layers go around it, and layers of the run inside. What an HTTP layer puts into
//! the request's extensions is in those of the run's [`Context`](concentric_core::Context), and so
//! within reach of every layer and tool; the headers are not, unless
//! [asked for](AgUiLayer::keep_headers). A timeout around it bounds the upload only, since the
//! response begins at once; a limit on the run belongs inside. The [`Context`](concentric_core::Context)
//! also has the input's `state` ([`AgUiState`]), `context` ([`AgUiContext`]) and `forwardedProps`
//! ([`AgUiForwardedProps`]); its run is named by `runId`, its thread by `threadId`, and its request
//! by the header `x-request-id`.
//!
//! The service is always ready, and waits for the agent's readiness in the stream.
//!
//! # What the agent is sent
//!
//! | of the input | is |
//! |---|---|
//! | `system` and `developer` messages | at the start, segments of [`ChatRequest::system`](concentric_core::ChatRequest::system); later, messages of [`Role::System`](concentric_core::Role::System) |
//! | `reasoning` and `activity` messages | left out: a model has no use for the one without its provider's signature, and the other is for people |
//! | calls without a result | before a newer message, or of the server's own tools: closed as [unknown](concentric_core::ToolStatus::Unknown); of the client's tools in the last message: the run waits for them again |
//! | `tools` | [`ChatRequest::tools`](concentric_core::ChatRequest::tools), which the client executes |
//! | `resume` | refused with `422`, unless it is empty |
//!
//! All of it is the client's word: a server that lets others in and relies on its system texts or
//! on the history keeps them itself.
//!
//! # What the client is sent
//!
//! | of the run | is |
//! |---|---|
//! | text, and a refusal | one text message for a step, and another for what it says after a tool call or reasoning |
//! | a tool call | its preview, as it is written; what a layer changes in a call afterwards the client does not see, so such a layer holds the preview back too |
//! | a call whose preview stops | a result that says so, as a client takes an unanswered call for one of its own |
//! | a tool's result | `TOOL_CALL_RESULT`; `metadata` has its `status` unless it is done, and its `data` |
//! | an image, sound or document | `CUSTOM` `concentric.part`, with the content part |
//! | [`State`](concentric_core::Event::State) | `STATE_SNAPSHOT` at first, since not every client keeps what it has sent; then `STATE_DELTA` |
//! | [`Reset`](concentric_core::Event::Reset) | `CUSTOM` `concentric.reset`, with the `messageIds` that are void; calls get a result |
//! | [`Completed`](concentric_core::Outcome::Completed) | `success`; calls that nobody executed are in `pendingToolCallIds` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted) | `success`, with `pendingToolCallIds`; if it waits for somebody else than the client, `RUN_ERROR` |
//! | [`Aborted`](concentric_core::Outcome::Aborted) | `cancelled`; `metadata.reason` says by whom |
//! | [`Halted`](concentric_core::Outcome::Halted), [`StepLimit`](concentric_core::Outcome::StepLimit) | `success`; `metadata.outcome` is `halted`, with a `reason`, or `step_limit` |
//! | an error | `RUN_ERROR`; `code` is its [kind](concentric_core::ErrorKind), `message` [one sentence](AgUiLayer::error_message) |
//!
//! Identifiers are kept, unless one is in use already, in the input or in this run: then a number
//! is appended.
//!
//! # The protocol by itself
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

mod body;
pub mod encode;
mod event;
mod future;
mod input;
mod layer;
mod map;
mod message;
mod reply;
mod service;
mod shutdown;
mod state;
mod stream;
mod verify;

pub use self::body::ResponseBody;
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
pub use self::future::ResponseFuture;
pub use self::input::{Context, InputError, ResumeEntry, ResumeStatus, RunAgentInput, Tool};
pub use self::layer::AgUiLayer;
pub use self::message::{
    ActivityMessage, AssistantMessage, Content, ContentPart, DeveloperMessage, FunctionCall,
    MediaPart, Message, PartSource, ReasoningMessage, SystemMessage, TextPart, ToolCall,
    ToolCallType, ToolMessage, UserMessage,
};
pub use self::service::AgUi;
pub use self::shutdown::Shutdown;
pub use self::state::{AgUiContext, AgUiForwardedProps, AgUiState, StateError};
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
