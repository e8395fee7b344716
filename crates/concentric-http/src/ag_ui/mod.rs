//! The AG-UI protocol, version 1.0, and a layer that serves an agent over it.
//!
//! [`AgUiLayer`] turns an agent into an HTTP service: a run is a `POST` of a `RunAgentInput`, and
//! the response is a stream of server-sent events.
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
//! # Behavior
//!
//! | event | behavior |
//! |---|---|
//! | the service is called | reads the body; an invalid one is answered with a status and a JSON error that names the field |
//! | the body does not arrive within 30 seconds ([`AgUiLayer::upload_timeout`]) | answers `408` |
//! | the request violates the [`ClientPolicy`](crate::ClientPolicy) | answers `422` |
//! | the request is valid | polls the agent once; while a layer of the agent [holds back](concentric_core::Context::hold_head) the response head, keeps polling for up to 5 seconds |
//! | the agent rejects the request by then, because a client tool has the name of an agent's tool | answers `422` with the name |
//! | the agent rejects a new run by then, because it [conflicts](concentric_core::ErrorKind::Conflict) with another, such as a live run of the same id | answers `409`; `code` is one of those [below](#response-events) |
//! | otherwise | answers `200`; the stream begins with `RUN_STARTED`, even if the agent is not ready |
//! | the agent is silent | sends a comment every 15 seconds |
//! | the agent emits an [`Event`](concentric_core::Event) | sends the corresponding events; those that are ready together form one chunk |
//! | the agent emits [`Finish`](concentric_core::Event::Finish) | closes open messages, calls and steps, and sends `RUN_FINISHED` |
//! | the body fails or ends early | closes open messages, calls and steps, and sends `RUN_ERROR` |
//! | the agent or one of its layers panics | logs the panic, drops the run, closes open messages, calls and steps, and sends `RUN_ERROR` without the panic message |
//! | the client disconnects | drops the run, and with it the provider's stream and the running tools |
//! | the server shuts down ([`Shutdown`](crate::Shutdown)) | answers new requests with `503`, and ends open streams after a grace period |
//!
//! # Place in the stack
//!
//! HTTP layers go outside, layers of the run inside.
//!
//! The extensions of the HTTP request become extensions of the run's
//! [`Context`](concentric_core::Context), where every layer and tool can read them. Headers do not,
//! unless [`AgUiLayer::keep_headers`] is set. The context also contains the input's `state`
//! ([`AgUiState`]), and its `context` and `forwardedProps` ([`AgUiContext`]). The
//! run id is `runId`, the thread id is `threadId`, and the request id is the header `x-request-id`.
//!
//! The owner of a run is the [`Tenant`](concentric_core::store::Tenant) that the host's
//! authentication puts into the request's extensions; without it, all callers share one owner.
//! Thread and run ids do not identify an owner: clients choose them, and may choose those of
//! another client.
//!
//! A timeout around this service bounds the upload and the acceptance of a request, not the run. A
//! time limit for runs goes inside; [`AdmissionLayer`](crate::admission::AdmissionLayer) around
//! this service limits the number of concurrent runs.
//!
//! # Backpressure
//!
//! The service is always ready; the response stream waits until the agent is ready.
//!
//! # Request mapping
//!
//! | input | agent's request |
//! |---|---|
//! | `system` and `developer` messages | if the [policy](crate::ClientPolicy::system_messages) accepts them: segments of [`ChatRequest::system`](concentric_core::ChatRequest::system) at the start of the history, messages of [`Role::System`](concentric_core::Role::System) later |
//! | `reasoning` and `activity` messages | omitted: a model cannot use reasoning without its provider's signature, and activities are for display |
//! | messages of sub-agents | omitted |
//! | calls without a result | closed as [unknown](concentric_core::ToolStatus::Unknown) if a newer message follows or the tool is the server's; calls of client tools in the last message are waited for again |
//! | `tools` | [`ChatRequest::tools`](concentric_core::ChatRequest::tools), which the client executes |
//! | `resume` | [replies](concentric_core::Reply); see [below](#interrupts-and-replies) |
//!
//! The client controls all of this input. A server that relies on the history must store it itself.
//! The [`ClientPolicy`](crate::ClientPolicy) limits the size of a request, and rejects system texts, media at arbitrary
//! URLs and file ids.
//!
//! # Response events
//!
//! | run | client |
//! |---|---|
//! | text, refusal | one text message per step, and another for text after a tool call or reasoning |
//! | tool call | its preview while the model writes it. Later changes by a layer are not sent, so a layer that changes calls holds back the preview too |
//! | tool call whose preview stops | a result with status `cancelled`, since a client takes an unanswered call for one of its own |
//! | tool result | `TOOL_CALL_RESULT`; `metadata` has the `status` unless it is done, the `data`, and `source: "person"` if a person supplied the result (ignored in a history) |
//! | image, audio or document | `CUSTOM` `concentric.part`, with the content part |
//! | [`State`](concentric_core::Event::State) | `STATE_SNAPSHOT` first, since not every client keeps the state it sent; then `STATE_DELTA` where it is shorter |
//! | [`Reset`](concentric_core::Event::Reset) | `CUSTOM` `concentric.reset`, with the invalid `messageIds`; their calls get a result |
//! | [`TranscriptReplaced`](concentric_core::Event::TranscriptReplaced), not of a sub-agent | `MESSAGES_SNAPSHOT`, with the system messages of the client; earlier answers of this run get new ids |
//! | [`Completed`](concentric_core::Outcome::Completed) | `success`; `pendingToolCallIds` lists the calls that were not executed |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), by client tools only | `success`, with `pendingToolCallIds` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), otherwise | `interrupt`, with the interrupts; the event's `metadata` has `pendingToolCallIds` if client tools are called too |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted), by an interrupt whose [reply could not be accepted](#interrupts-and-replies) | `RUN_ERROR`, `code` `configuration` |
//! | [`Aborted`](concentric_core::Outcome::Aborted) | `cancelled`; `metadata.reason` names the cause |
//! | [`Halted`](concentric_core::Outcome::Halted), [`StepLimit`](concentric_core::Outcome::StepLimit), [`CallLimit`](concentric_core::Outcome::CallLimit) | `success`; `metadata.outcome` is `halted` (with a `reason`), `step_limit` or `call_limit` |
//! | event of a [sub-agent](#sub-agents) | the same events, with its `subagentRunId` |
//! | error | `RUN_ERROR`; `code` is its [kind](concentric_core::ErrorKind), `message` [one sentence](AgUiLayer::error_message) |
//! | client tool with the name of an agent's tool, detected after the stream began | `RUN_ERROR`, `code` `tool_name_taken` |
//! | rejected resume, or a run found to be in progress after the stream began | `RUN_ERROR`; `code` is `run_live`, `unknown_interrupt`, `duplicate_reply`, `missing_reply`, `expired`, `malformed_reply` ([`ReplyError`](concentric_core::ReplyError)), `already_resumed`, `run_ended`, `run_not_found` or another code of [`StoreError`](concentric_core::store::StoreError), or `conflict` |
//!
//! Ids are sent unchanged, except that a number is appended to an id that is already in use in the
//! input or in this run. A resumed round has the original ids of its calls again; the client still
//! gets the ids that it knows.
//!
//! # Interrupts and replies
//!
//! A run that waits for replies ends with the outcome `interrupt`. Before that, the client gets the
//! outcomes of the finished calls, so that its history contains them. It then starts another run,
//! whose `resume` has an entry for each interrupt, with its `interruptId`:
//!
//! | `status` | `payload` | effect on the call |
//! |---|---|---|
//! | `resolved` | `{"approved": true}` | runs |
//! | `resolved` | `{"approved": true, "editedArgs": {..}}` | runs with these arguments, unless a gate denies them or raises a new interrupt; the reply is rejected if the arguments do not match the tool's schema |
//! | `resolved` | `{"approved": false, "reason": ".."}` | does not run |
//! | `resolved` | `{"result": ..}` | does not run; this is its result |
//! | `resolved` | `{"error": ".."}` | fails; for client tools only |
//! | `cancelled` | | does not run |
//!
//! The gate decides whether an interrupt about a call accepts edits and results: `replies` in the
//! interrupt's `metadata` lists the accepted kinds (`approve`, `deny`, `edit`, `answer`),
//! `responseSchema` has their fields, and `argumentsSchema` in the `metadata` is the schema of
//! edited arguments.
//!
//! If the interrupt's `metadata` has a `token`, the client returns it in the payload or in the
//! `metadata` of the entry. Results of client tools are part of the history, as usual.
//!
//! | history | agent's request |
//! |---|---|
//! | ends with open calls, and `resume` has entries | [`ResumePoint::UnverifiedHistory`](concentric_core::ResumePoint::UnverifiedHistory) with the round of the history, including results of client tools, and the replies |
//! | has no open calls, and `resume` has entries | [`ResumePoint::InStore`](concentric_core::ResumePoint::InStore) and the replies |
//! | ends with results of client tools | the conversation; a layer that has stored the run (`SuspendLayer` of `concentric-layers`) finds the results as [`Round::client_replies`](concentric_core::transcript::Round::client_replies) of the last round, and resumes that run |
//! | has a newer message after open calls | the conversation; the calls are closed as unknown |
//!
//! `resume` may be accompanied by user or system messages after the last assistant message
//! ([`Resume::messages`](concentric_core::Resume::messages)). The run adds them once the answered
//! round is closed. Since clients send their whole history, a message whose id the run knows is not
//! added again. A run that cannot take messages where it waits (before its end, or in an agent used
//! as a model) ends with `RUN_ERROR`, `code` `unexpected_message`, and the error has the message's
//! id.
//!
//! A client that may have missed the interrupts, after a lost connection or a restart, sends
//! `resume: []` with its history or with no messages. If the history has no newer user message, the
//! response is the outcome `interrupt` of the stored waiting run (of several, the newest), preceded by
//! those messages of its open calls that the history lacks. These interrupts have no tokens, since
//! replies to a stored run need none. Such a request calls no agent and does not conflict with a
//! reply. If no run waits and the history ends with an answer, the code is `run_not_found`
//! ([`OpenInterrupts::Show`](concentric_core::store::OpenInterrupts::Show)).
//!
//! A user message without `resume` replaces the replies: where a `SuspendLayer` stores runs, it
//! withdraws the open interrupts of the thread and tenant, and a late reply ends with `RUN_ERROR`,
//! `code` `run_ended`
//! ([`OpenInterrupts::Withdraw`](concentric_core::store::OpenInterrupts::Withdraw)).
//!
//! An interrupt without an entry is raised again. Open calls of a history without an interrupt are
//! not executed; the model may make them again.
//!
//! ## Security
//!
//! The history, the ids and the replies come from the client, which may be hostile, so none of them
//! is trusted alone. A call runs only if the stored state of the run, which only the server writes,
//! contains its interrupt, or if the reply has a token that proves it: a MAC over the tenant, the
//! message, the call, the tool, the policy and the arguments, which is valid once. A reply that
//! does not match is denied, and reported to the client (`CUSTOM` `approval-invalid`) and in the
//! log. Any caller that is authenticated as the tenant and has the interrupt may reply. The host
//! decides which of them may approve a call, in a layer around this one.
//!
//! A reply is accepted if the run is stored ([`Resumable`](concentric_core::store::Resumable), set
//! by `SuspendLayer` or a session of `concentric-layers`, or by a layer of the host), or if the
//! interrupt has a token (`Toolset::tokens` of `concentric-tools`). For an interrupt of a
//! sub-agent, the run must be stored. Otherwise, the log names the interrupt and the layer to add.
//! A toolset with a ledger does not raise an interrupt about [an unknown
//! effect](concentric_core::interrupt::UNKNOWN_EFFECT) unless the run is stored, since a token does
//! not contain the state for it; the model reads that the outcome is unknown.
//!
//! ## Clients
//!
//! `@ag-ui/client` starts a run only after all interrupts are answered.
//!
//! `@tanstack/ai-client` merges the steps of a run into one message; the messages are restored from
//! the ids in the replies. Each interrupt has the metadata that its forms need
//! (`tanstack:interruptBinding`): `getInterrupts()` lists it as resolvable,
//! `resolveInterrupt(payload)` takes a payload of the table above, and the client returns the token
//! by itself.
//!
//! # Sub-agents
//!
//! Events of an agent that is used as a tool arrive in
//! [`Event::SubAgent`](concentric_core::Event::SubAgent), which may be nested. Each sub-agent has
//! its own messages, steps and calls, so several can run concurrently.
//!
//! | event | client |
//! |---|---|
//! | first event of a sub-agent | `SUBAGENT_STARTED`, with its call, the message of the call and its parent sub-agent; `subagentRunId` is the id of its run |
//! | first event after it resumed | `SUBAGENT_STARTED` again, with the same id |
//! | result of its call | `SUBAGENT_FINISHED`, then the result; unless the call is done, `SUBAGENT_ERROR` with the result's `status` as its `code` |
//! | the run ends as interrupted | `SUBAGENT_FINISHED`, `suspended`; `interruptIds` lists the interrupts of it and of its own sub-agents |
//! | the run fails, is cancelled or is stopped | `SUBAGENT_ERROR` |
//!
//! A sub-agent ends after its own sub-agents. `subagentRunId` of an interrupt names the sub-agent
//! that raised it. Calls of client tools by a sub-agent are interrupts too, and are answered by
//! `resume`, since the client's history contains the messages of sub-agents but the agent's
//! conversation does not.

pub mod encode;
mod event;
mod input;
mod layer;
mod log;
mod policy;
mod service;
mod stream;
mod threads;

pub use self::{
    layer::AgUiLayer,
    log::{EventLog, EventLogLayer},
    service::AgUi,
    threads::{Threads, ThreadsBody, ThreadsFuture},
};
pub use crate::run::{AgUiContext, AgUiState, Context, ResponseBody, ResponseFuture, StateError};

/// The version of the protocol that this endpoint follows.
const PROTOCOL_VERSION: &str = "1.0";
