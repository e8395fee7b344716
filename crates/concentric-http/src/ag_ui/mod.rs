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
//! | has the body | checks it against the [`ClientPolicy`], and answers `422` if it is not within it |
//! | has a run | polls the agent once; if a client's tool has the name of one of the agent's, and the agent says so at once, answers `422` with the name |
//! | else | answers `200`, and its stream begins with `RUN_STARTED`, even if the agent is not ready |
//! | waits for the agent, in its stream | is silent, but for a comment every 15 seconds |
//! | reads an [`Event`](concentric_core::Event) | writes what it is to the client; events that are ready together go out in one piece |
//! | reads [`Finish`](concentric_core::Event::Finish) | closes what is open, and writes `RUN_FINISHED` |
//! | reads an error, or a body that ends early | closes what is open, and writes `RUN_ERROR` |
//! | catches a panic of the agent or of a layer of it | logs it, drops the run, closes what is open, and writes `RUN_ERROR`, without what the panic says |
//! | is dropped, since the client went away | drops the run, and with it the provider's stream and the running tools |
//! | is shut down ([`Shutdown`]) | answers `503`, and ends its streams after a grace |
//!
//! # Place in the stack
//!
//! Outermost: HTTP layers go around it, and layers of the run inside. What an HTTP layer puts into
//! the request's extensions is in those of the run's [`Context`](concentric_core::Context), and so
//! within reach of every layer and tool; the headers are not, unless
//! [asked for](AgUiLayer::keep_headers). A timeout around it bounds the upload only, since the
//! response begins at once; a limit on the time of a run belongs inside, and a limit on how many there
//! are is an [`AdmissionLayer`](crate::admission::AdmissionLayer) around it. The [`Context`](concentric_core::Context)
//! also has the input's `state` ([`AgUiState`]), `context` ([`AgUiContext`]) and `forwardedProps`
//! ([`AgUiForwardedProps`]); its run is named by `runId`, its thread by `threadId`, and its request
//! by the header `x-request-id`. Whose run it is, is the [`Tenant`](concentric_core::store::Tenant)
//! that the host's authentication puts into the request's extensions; without one, all callers are
//! the same. Thread and run ids do not say it: clients choose them, and may choose another's.
//!
//! The service is always ready, and waits for the agent's readiness in the stream.
//!
//! # What the agent is sent
//!
//! | of the input | is |
//! |---|---|
//! | `system` and `developer` messages | if the [policy](ClientPolicy::system_messages) accepts them: at the start, segments of [`ChatRequest::system`](concentric_core::ChatRequest::system); later, messages of [`Role::System`](concentric_core::Role::System) |
//! | `reasoning` and `activity` messages | left out: a model has no use for the one without its provider's signature, and the other is for people |
//! | messages of sub-agents | left out |
//! | calls without a result | before a newer message, or of the server's own tools: closed as [unknown](concentric_core::ToolStatus::Unknown); of the client's tools in the last message: the run waits for them again |
//! | `tools` | [`ChatRequest::tools`](concentric_core::ChatRequest::tools), which the client executes |
//! | `resume` | [replies](concentric_core::Reply); see [below](#questions-and-answers) |
//!
//! All of it is written by the client: a server that relies on the history keeps it itself. The
//! [`ClientPolicy`] limits how much a client may send, and refuses system texts, media at arbitrary
//! URLs and file ids.
//!
//! # What the client is sent
//!
//! | of the run | is |
//! |---|---|
//! | text, and a refusal | one text message for a step, and another for what it says after a tool call or reasoning |
//! | a tool call | its preview, as it is written; what a layer changes in a call afterwards the client does not see, so such a layer holds the preview back too |
//! | a call whose preview stops | a result that says so, as a client takes an unanswered call for one of its own |
//! | a tool's result | `TOOL_CALL_RESULT`; `metadata` has its `status` unless it is done, `source: "person"` if a person supplied it in the tool's place (which is never read from a history), and its `data` |
//! | an image, sound or document | `CUSTOM` `concentric.part`, with the content part |
//! | [`State`](concentric_core::Event::State) | `STATE_SNAPSHOT` at first, since not every client keeps what it has sent; then `STATE_DELTA` |
//! | [`Reset`](concentric_core::Event::Reset) | `CUSTOM` `concentric.reset`, with the `messageIds` that are void; calls get a result |
//! | [`Completed`](concentric_core::Outcome::Completed) | `success`; calls that nobody executed are in `pendingToolCallIds` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), by the client's tools alone | `success`, with `pendingToolCallIds` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), by questions | `interrupt`, with the questions; `metadata` of the event has `pendingToolCallIds` if client's tools are called, too |
//! | [`Aborted`](concentric_core::Outcome::Aborted) | `cancelled`; `metadata.reason` says by whom |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), by a question whose [reply nothing would accept](#questions-and-answers) | `RUN_ERROR`, `code` `configuration` |
//! | [`Halted`](concentric_core::Outcome::Halted), [`StepLimit`](concentric_core::Outcome::StepLimit), [`CallLimit`](concentric_core::Outcome::CallLimit) | `success`; `metadata.outcome` is `halted`, with a `reason`, `step_limit` or `call_limit` |
//! | an event of a [sub-agent](#sub-agents) | the same events, with its `subagentRunId` |
//! | an error | `RUN_ERROR`; `code` is its [kind](concentric_core::ErrorKind), `message` [one sentence](AgUiLayer::error_message) |
//! | a tool of the client that has the name of one of the agent's, found later than at once | `RUN_ERROR`, `code` `tool_name_taken` |
//! | a run that is in progress already, or is not resumed | `RUN_ERROR`; `code` says why: `run_live`, `unknown_interrupt`, `duplicate_reply`, `missing_reply`, `expired`, `malformed_reply` ([`ReplyError`](concentric_core::ReplyError)), `already_resumed`, `run_ended`, `run_not_found` and the like ([`StoreError`](concentric_core::store::StoreError)), or `conflict` |
//!
//! Identifiers are kept, unless one is in use already, in the input or in this run: then a number
//! is appended. When a round is taken up, its calls have their own identifiers again, and the client
//! is told of them by those that it knows.
//!
//! # Questions and answers
//!
//! A run that waits for somebody ends with the outcome `interrupt`. What came of those of its calls
//! that are done goes out before that, so that the client's history has it. The client then starts
//! another run, whose `resume` has an answer to each question, by its `interruptId`:
//!
//! | `status` | `payload` | the call |
//! |---|---|---|
//! | `resolved` | `{"approved": true}` | runs |
//! | `resolved` | `{"approved": true, "editedArgs": {..}}` | runs with these arguments, unless a gate denies them or asks about them anew |
//! | `resolved` | `{"approved": false, "reason": ".."}` | does not run |
//! | `resolved` | `{"result": ..}` | does not run; this is its result |
//! | `resolved` | `{"error": ".."}` | of a client's tool, failed |
//! | `cancelled` | | does not run |
//!
//! Whether a question about a call accepts edits and results is for its gate to say: the `replies` of its
//! `metadata` list the kinds (`approve`, `deny`, `edit`, `answer`), its `responseSchema` has their
//! fields, and `argumentsSchema` of its `metadata` is the schema of the edited arguments.
//!
//! The `token` of the question's `metadata`, if it has one, goes back in the payload or in the
//! `metadata` of the answer. Results of the client's own tools stand in the history, as ever.
//!
//! | the history | the agent is called with |
//! |---|---|
//! | ends with calls that are open, and `resume` has answers | [`Suspended::Claimed`](concentric_core::Suspended::Claimed): the history's round, in which the client's results are, and the replies |
//! | has nothing open, and `resume` has answers | [`Suspended::Elsewhere`](concentric_core::Suspended::Elsewhere), and the replies |
//! | ends with results of the client's tools | the conversation; a layer that has the run written down (`SuspendLayer` of `concentric-layers`) finds the results as [`Round::client_replies`](concentric_core::transcript::Round::client_replies) of its last round, and goes on with that run |
//! | has a newer message behind open calls | the conversation; the calls are closed as unknown |
//!
//! A question that is left out is asked again. Of a history's open calls, those that no gate asks
//! about are not run, but left to the model to be made again.
//!
//! The client may be hostile: it writes the history, the ids and the answers, so none of them is
//! believed by itself. A call runs if the run's state, from a store that only the server writes, says
//! that it was asked about, or if a token says so, which is a MAC over the tenant, the message, the
//! call, the tool, the policy and the arguments, and is spent when it is used; what does not fit is
//! denied, and the client and the log are told (`CUSTOM` `approval-invalid`). Whoever is
//! authenticated as the tenant and holds the question may answer it: who of them may approve what is
//! for the host to decide, in a layer around this one.
//!
//! A reply is accepted where the run is stored ([`Resumable`](concentric_core::store::Resumable); a
//! `SuspendLayer` or a session of `concentric-layers`, or a layer of the host), or where the question
//! has a token (`Toolset::tokens` of `concentric-tools`); the question of a sub-agent, only where the
//! run is stored. The log has the interrupt and what to add.
//!
//! `@ag-ui/client` does not start a run before all questions are answered. `@tanstack/ai-client`
//! makes one message of all steps of a run, which is put back as it was by what the answers name. Each
//! interrupt has the metadata that its own forms need (`tanstack:interruptBinding`): its
//! `getInterrupts()` lists them as resolvable, `resolveInterrupt(payload)` takes a payload of the table
//! above, and it sends the token back by itself.
//!
//! # Sub-agents
//!
//! What an agent says that is a tool is in [`Event::SubAgent`](concentric_core::Event::SubAgent), and
//! may be inside another's. Each has its own messages, steps and calls, so that several may work side
//! by side.
//!
//! | when | the client is sent |
//! |---|---|
//! | a sub-agent says something for the first time | `SUBAGENT_STARTED`, with the call that it is, the message of that, and whose sub-agent it is; its `subagentRunId` is its run's id |
//! | it goes on with a run that waited | the same once more, with the id that it had |
//! | its call has a result | `SUBAGENT_FINISHED`, and then the result; if that is not done, `SUBAGENT_ERROR`, whose `code` is the result's `status` |
//! | the run ends as interrupted | `SUBAGENT_FINISHED`, `suspended`; `interruptIds` are the questions of it, and of its own sub-agents |
//! | the run fails, is cancelled or is stopped | `SUBAGENT_ERROR` |
//!
//! Those that work for a sub-agent end before it does. A question says by `subagentRunId` who asks it.
//! Calls of a client's tools that a sub-agent makes are questions, too, and are answered by `resume`:
//! what sub-agents have said is in the client's history, but not in the agent's conversation.
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
mod policy;
mod reply;
mod resume;
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
pub use self::policy::ClientPolicy;
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
