//! The UI message stream of the Vercel AI SDK, and a layer that serves an agent to its `useChat`.
//!
//! [`UiMessagesLayer`] turns an agent into the endpoint that `DefaultChatTransport` of `ai` 7 and 6 calls:
//!
//! ```no_run
//! use axum::Router;
//! use concentric_core::{AgentLayer, BoxModel, NoTools};
//! use concentric_http::{ag_ui::EventLogLayer, ui_messages::UiMessagesLayer};
//! use concentric_layers::{ConversationLayer, DetachLayer, SuspendLayer, conversation::Merge};
//! use concentric_store::SqliteStore;
//! use std::sync::Arc;
//! use tower::ServiceBuilder;
//!
//! fn app(model: BoxModel, store: SqliteStore) -> Router {
//!     let log = EventLogLayer::new();
//!     let agent = ServiceBuilder::new()
//!         .layer(UiMessagesLayer::new().events(&log))
//!         .layer(DetachLayer::new())
//!         .layer(log)
//!         .layer(SuspendLayer::new(Arc::new(store.clone())))
//!         .layer(ConversationLayer::new(store).history(Merge::ServerWins))
//!         .layer(AgentLayer::new(NoTools))
//!         .service(model);
//!     Router::new().nest_service("/api/chat", agent)
//! }
//! # let _ = app;
//! ```
//!
//! The client controls the history that it sends. With a `ConversationLayer`, the server has the history, and the client
//! sends its last message only:
//!
//! ```js
//! const { messages, sendMessage, addToolApprovalResponse } = useChat({
//!   id,
//!   messages: stored,
//!   resume: true,
//!   sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
//!   transport: new DefaultChatTransport({
//!     api: "/api/chat",
//!     prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
//!       body: { ...body, id, trigger, messageId, messages: messages.slice(-1) },
//!     }),
//!   }),
//! });
//! ```
//!
//! # Routes
//!
//! Paths are those below the mount point.
//!
//! | request | response |
//! |---|---|
//! | `POST /` | runs the agent: a stream of chunks, or a JSON error, as that of [AG-UI](crate::ag_ui#behavior) |
//! | `GET /{chat}/stream` | the stream of the chat's newest run, from its first chunk; see [below](#resume) |
//! | `DELETE /{chat}/stream` | `202`, and the run is cancelled; `204` without a run |
//!
//! Limits, timeouts, panics, disconnected clients and the shutdown have the [behavior of AG-UI](crate::ag_ui#behavior):
//! the errors of a run are one sentence per kind, and a run without a `DetachLayer` ends with its client.
//!
//! # Place in the stack
//!
//! As for [AG-UI](crate::ag_ui#place-in-the-stack): HTTP layers go outside, layers of the run inside, and the owner of a
//! run is the [`Tenant`](concentric_core::store::Tenant) that the host's authentication puts into the request's
//! extensions. The thread id of a run is the id of the chat; the run has an id of its own.
//!
//! # Backpressure
//!
//! The service is always ready; the response stream waits until the agent is ready.
//!
//! # Requests
//!
//! | input | agent's request |
//! |---|---|
//! | `system` messages | as the [policy](crate::ClientPolicy::system_messages) states |
//! | text and files of the user | the message. URLs other than `data:` are accepted for the [hosts of the policy](crate::ClientPolicy::media_host) |
//! | text and tool calls of an answer | one message per step, with the results of its calls. A call without a result is closed as [unknown](concentric_core::ToolStatus::Unknown) if a newer message follows |
//! | reasoning, sources, data, files of an answer, parts of unknown types | omitted |
//! | outputs of [client tools](UiMessagesLayer::client_tool) in the last message | their results |
//! | calls of the last message in the state `approval-responded` | [replies](concentric_core::Reply) |
//! | `resume` | replies in the [form of AG-UI](crate::ag_ui#interrupts-and-replies), such as an approval with edits, for which the protocol has no form |
//! | `trigger: "regenerate-message"`, or the `messageId` of the last message | [`Regenerate`](concentric_core::store::Regenerate): the answer replaces those to the last message, also in a stored conversation |
//! | other fields | `forwarded_props` of [`AgUiContext`](crate::ag_ui::AgUiContext), an extension of the run's context |
//!
//! # Chunks
//!
//! | run | chunks |
//! |---|---|
//! | begins | `start`, with the id of the message: a new one, or that of the answer in the last message, which continues |
//! | step | `start-step`, `finish-step` |
//! | text, refusal; reasoning | `text-start`, `text-delta`, `text-end`; `reasoning-start` and so on, unless [disabled](UiMessagesLayer::reasoning) |
//! | tool call | `tool-input-start`, `tool-input-delta`, `tool-input-available` |
//! | call whose arguments are not JSON | `tool-input-error`, once it has a result |
//! | custom event `progress` of a call | `tool-output-available`, `preliminary` |
//! | result: done | `tool-output-available`, with the [data](concentric_core::ToolOutcome::data), or else the text |
//! | result: denied, after an approval was requested | `tool-output-denied` |
//! | any other result, and a call that is withdrawn | `tool-output-error` |
//! | [`Reset`](concentric_core::Event::Reset) | `reset-step`; for [`Sdk::V6`], `data-reset` |
//! | image, audio, file | `file`, unless it is in a provider's store |
//! | [`Completed`](concentric_core::Outcome::Completed) | `finish`; `messageMetadata` has the `usage` |
//! | [`Halted`](concentric_core::Outcome::Halted), [`StepLimit`](concentric_core::Outcome::StepLimit), [`CallLimit`](concentric_core::Outcome::CallLimit) | `finish` with the reason `other`; `messageMetadata` has the `outcome` and its `reason` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted) | the interrupts, then `finish` with the reason `tool-calls` |
//! | [`Aborted`](concentric_core::Outcome::Aborted) | `abort` |
//! | error | `data-error` with its `code`, transient, then `error` |
//!
//! A stream ends with `[DONE]`, which clients ignore.
//!
//! ## Data and sources
//!
//! | run | chunk |
//! |---|---|
//! | [`State`](concentric_core::Event::State) | `data-state`, with the whole state; the id `state` |
//! | custom event `source-url`, with `url`, `title?`, `sourceId?` | `source-url`, unless [disabled](UiMessagesLayer::sources) |
//! | custom event `source-document`, with `title`, `mediaType`, `filename?`, `sourceId?` | `source-document`, likewise |
//! | custom event `NAME` | `data-NAME`; by [option](UiMessagesLayer::transient), transient |
//! | sub-agent | `data-agent`, with its `runId`, `name?`, `parentRunId?`, `toolCallId?` and `status`: `running`, `waiting`, `done`, `failed` or `stopped` |
//! | text, reasoning and calls of a sub-agent | `data-agent-delta`, transient |
//!
//! # Interrupts and replies
//!
//! An interrupt about a call is a `tool-approval-request`: `approvalId` is its id, `signature` its token,
//! `approvalDescriptor` the interrupt. Any other interrupt, and a second one about a call, is `data-interrupt`.
//!
//! `addToolApprovalResponse` puts the decision into the history. It is not trusted alone: as for
//! [AG-UI](crate::ag_ui#security), a call runs only if the stored state of the run contains its interrupt
//! (`SuspendLayer`), or if the signature is a valid token (`Toolset::tokens` of `concentric-tools`). A forged decision
//! is denied, and reported as `data-approval-invalid` or `error`. A run whose interrupts no reply could answer fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! # Resume
//!
//! With [`events`](UiMessagesLayer::events) and a `DetachLayer`, a run continues when its client disconnects, and any
//! client of the tenant can resume its stream: `useChat` with `resume`, or another tab.
//!
//! | the chat | response |
//! |---|---|
//! | has a live run in this process, or in another one whose log is [shared](crate::ag_ui::EventLogLayer#several-processes) | `200`, all chunks; those of an answer that continues follow its earlier parts |
//! | has none | `204`: the client reads the conversation |
//! | has a run whose first chunks are [not kept](crate::ag_ui::EventLogLayer::events), or whose answer began with parts that take more than its [log](crate::ag_ui::EventLogLayer::bytes) | `410`, `events_gone` |
//! | has a run with 256 readers | `429`, `too_many_readers` |
//!
//! `stop` of `useChat` closes the connection, like a lost one. To stop a run that a `DetachLayer` continues, the client
//! sends the `DELETE` request. A run that another process has resumed after a crash has no stream for `useChat`.

mod agents;
mod calls;
mod chunk;
mod convert;
mod encode;
mod input;
mod layer;
mod service;
mod translate;

pub use self::{
    layer::{Sdk, UiMessagesLayer},
    service::UiMessages,
};
pub use crate::run::{ResponseBody, ResponseFuture};
