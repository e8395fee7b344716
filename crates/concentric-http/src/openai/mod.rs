//! An OpenAI-compatible server in front of models and agents.
//!
//! [`OpenAi`] answers OpenAI's clients, and those of the many compatible services, with any
//! [model service](concentric_core::ModelService): an agent, or a model with its layers.
//!
//! ```no_run
//! use axum::Router;
//! use concentric_core::BoxModel;
//! use concentric_http::openai::OpenAi;
//!
//! fn app(clerk: BoxModel, model: BoxModel) -> Router {
//!     let api = OpenAi::new()
//!         .model("clerk", clerk)
//!         .model("gpt-5.5", model)
//!         .alias("gpt-4o", "gpt-5.5")
//!         .default_model("clerk");
//!     Router::new().nest_service("/v1", api)
//! }
//! # let _ = app;
//! ```
//!
//! # Routes
//!
//! | route | response |
//! |---|---|
//! | `POST /chat/completions` | an answer, whole or streamed |
//! | `POST /responses` | an answer, whole or streamed, which is [stored](#stored-responses) if there is a store |
//! | `GET /responses/{id}`, `DELETE /responses/{id}` | a stored response, and its deletion |
//! | `GET /responses/{id}?stream=true`, and `&starting_after={n}` | the events of a [background response](#background-responses), and those after number n |
//! | `POST /responses/{id}/cancel` | cancels a background response |
//! | `GET /models`, `GET /models/{id}` | the models and their aliases |
//! | any other | `404` in OpenAI's format |
//!
//! # Behavior
//!
//! | event | behavior |
//! |---|---|
//! | the request is invalid or violates the [`ClientPolicy`](crate::ClientPolicy) | `400`, with the field in `param` |
//! | the body is too large, or does not arrive within 30 seconds ([`OpenAi::upload_timeout`]) | `413`, `408` |
//! | the model fails before the answer has text, a refusal, a call or reasoning that is shown | the status of the [error](#errors), also for a stream |
//! | a streamed answer has the first of these | `200`, and the stream |
//! | a streamed answer has none after 10 seconds | `200`, and the stream begins |
//! | the stream is silent | a comment every 15 seconds |
//! | the run ends | the last events; `[DONE]` in a chat only |
//! | the run fails after the stream began | an event with the error (`error` in a chat, `response.failed`), and then an error of the body, so that the connection is cut |
//! | the client disconnects | drops the run, and with it the provider's stream and the running tools, unless it is in the [background](#background-responses) |
//! | the client of a stream reads nothing for 60 seconds ([`OpenAi::read_timeout`]) | drops the run; the body ends with an error when it is polled again |
//! | the server shuts down ([`Shutdown`](crate::Shutdown)) | answers new requests with `503`, and ends the runs after a grace period |
//! | the model or a layer panics | as a failure with the status `500`; the panic message is only logged |
//!
//! # Answers
//!
//! | run | client |
//! |---|---|
//! | text, refusal | the same. Between the texts of two steps of an agent, a chat has a blank line, and a response a new message |
//! | calls of the tools of the request | `tool_calls`, `function_call`. The client sends their results with the whole conversation |
//! | reasoning | not shown. With [`OpenAi::reasoning`], it is the `reasoning_content` of a chat's message, and a response has an item of the type `reasoning` for each piece |
//! | calls of the agent's own tools, events of sub-agents, media | not shown |
//! | a call that a loop makes | is sent at the end of the run, unless the run has its result; a plain model's calls are sent as the model writes them |
//! | a reset of text or calls that a stream has sent | the stream fails, with the code `upstream_protocol`; a whole answer has the new content only |
//! | ended at a limit on output | `finish_reason` `length`; status `incomplete`, also of the item that the limit has cut off |
//! | [`Halted`](concentric_core::Outcome::Halted), [`StepLimit`](concentric_core::Outcome::StepLimit), [`CallLimit`](concentric_core::Outcome::CallLimit) | `stop`, and `concentric.outcome` |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted) by the client's tools only | the calls |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted) by approvals, of a response, in a [layer that stores the run](concentric_core::store::Resumable) | an item `mcp_approval_request` for each [approval](#approvals) |
//! | [`Interrupted`](concentric_core::Outcome::Interrupted) otherwise | an error, `409` with the code `approval_required` |
//!
//! An answer of more than 32 MiB fails. The id of a call has a number appended if the conversation
//! already has a call of that id.
//!
//! # Stored responses
//!
//! With [`OpenAi::threads`], a response is stored before its end is sent, unless the request has
//! `"store": false`. Its owner is the [`Tenant`](concentric_core::store::Tenant) of the request; others get
//! the response of an unknown id, `404`.
//!
//! A request with `previous_response_id` continues the conversation with that response, including the
//! rounds of an agent's own tools and the data that the provider needs. Several requests may continue the
//! same response. `instructions` apply to one response only; system text in `input` applies to the following
//! ones too.
//!
//! An `item_reference` in `input` is replaced by the item of a stored response with this id, as if the client had sent
//! it: unlike `previous_response_id`, it has no rounds of an agent's own tools. The limit of a body's size
//! applies to the request with these items. A response keeps the items that its request refers to, so that mostly one
//! response is read; at most 32 are. An unknown item, one of another tenant or of a response that was not stored, and one
//! that the request refers to twice are answered with `404`, `item_not_found`. A reference to an approval request has no
//! effect of its own, and its item need not exist.
//!
//! | event | behavior |
//! |---|---|
//! | the run fails, or its client disconnects | the response is not stored |
//! | the store fails, or does not write within 30 seconds | the response is delivered with `"store": false`, and the error is logged |
//! | a response is deleted | later responses of the conversation remain complete, and a waiting run still accepts its approvals |
//!
//! Each response is a conversation of its own in the store, which shares its turns with the one before.
//! Responses do not expire. The store may have other conversations, but listings then have both. The
//! [thread](concentric_core::Context::thread_id) of the runs of a conversation is `conv_` and the id of its first run, also
//! without a store. It is no response, so runs that a layer has stored in the same store outlive deleted responses. A `ConversationLayer` has
//! no place in these stacks: it would add the history again.
//!
//! # Background responses
//!
//! With `"background": true`, the run of a response continues without its client. The response is stored before the run
//! begins, and sent with the status `in_progress`, or as a stream whose client may disconnect. `GET` returns the current
//! state, without output until the end.
//!
//! | event | response |
//! |---|---|
//! | the run ends, also with calls of the client's tools or an `mcp_approval_request` | `completed`, `incomplete` |
//! | the run fails or panics, with any of the [errors](#errors) | `failed`, with `error` |
//! | the run takes more than an hour ([`OpenAi::background_timeout`]) | `failed`, `timeout` |
//! | the server shuts down, and the grace period ends | `failed`, `shutting_down` |
//! | `POST /responses/{id}/cancel`, in any process | `cancelled`; one that has ended is returned as it is. Calls of tools stop, and a run that has not ended 5 seconds later is dropped |
//! | `DELETE`, in any process | none; the run is cancelled |
//! | the process stops | `failed`, `server_error`, 60 seconds after its last sign of life |
//! | the store does not accept the end within 30 seconds | `failed`, `server_error` |
//! | the store fails at the beginning | the request is answered with `500`, and no run starts |
//! | the process has 1,024 such runs ([`OpenAi::background_runs`]) | the request is answered with `503` |
//! | the tenant has as many such runs in the process as [`OpenAi::background_runs_per_tenant`] allows | the request is answered with `429`; without a tenant, with `503` |
//! | there is no store, or `store` is `false` | the request is answered with `400` |
//!
//! The process of a run renews a lease in the stored response every 10 seconds, and notices then that another
//! process has cancelled or deleted the response; in the same process, it notices that at once. The first write of
//! an end wins: the result of a run is discarded if the response was cancelled before, or was found without a
//! lease. The clocks of the processes may differ by 20 seconds. A process whose lease has expired may still run
//! tools, until it reaches the store.
//!
//! The last 4,096 events of a response with `stream`, up to 1 MiB, are kept in the memory of the process until 5 minutes
//! after the end, and 256 MiB of all responses. Events that a connected client lacks are kept as well. With
//! [`OpenAi::events`], other processes read them from a store, within its limits.
//!
//! | event | client of a stream |
//! |---|---|
//! | the response has failed or was cancelled | the last event is `response.failed`, with the stored response; the connection is not cut |
//! | the client disconnects, and requests the events after the last one that it has received | receives the others, without gap or repeat, in any process that has them |
//! | the requested events are not kept, or the response was created without `stream` | `400` |
//! | the response has ended with the event `starting_after` | a stream without events |
//! | the client is too slow for the limit of all responses, the response is deleted, or its process stops | the connection is cut |
//! | 256 clients read the events of a response | `503` for the next one |
//!
//! # Approvals
//!
//! An `mcp_approval_response` in `input`, with or without `previous_response_id`, resumes the run that waits. Those before
//! an answer of the model are history, and those of calls that are settled have no effect beside others. Only runs inside a `SuspendLayer` of `concentric-layers` can wait. Approvals
//! of a round may come in several requests. The results of the client's tools in the same round need `previous_response_id`.
//!
//! | approval | response |
//! |---|---|
//! | of an unknown run or call, or of one of another tenant | `404`, `run_not_found` |
//! | of a run that has ended or continues | `409`, `run_ended` or `already_resumed` |
//! | which nothing has taken: the model is no agent, or a layer has answered instead | `409`, `conflict`; the run still waits |
//! | of another conversation than `previous_response_id`, or of several | `400` |
//!
//! # Requests
//!
//! | field | effect |
//! |---|---|
//! | system and developer messages, `instructions` | [system text](concentric_core::ChatRequest::system) at the start, messages of [`Role::System`](concentric_core::Role::System) later; a [policy](crate::ClientPolicy::system_messages) may reject them |
//! | images, audio, files | if inline; URLs of hosts that the [policy](crate::ClientPolicy::media_host) lists |
//! | `tools` of type `function` | tools that the client executes; other types are rejected |
//! | `tool_choice`, `parallel_tool_calls`, `response_format`, `text.format`, `temperature`, `top_p`, the penalties, `max_tokens`, `max_completion_tokens`, `max_output_tokens`, `stop`, `seed`, `reasoning_effort`, `metadata` | the [options](concentric_core::ChatOptions) of the request |
//! | `tool_choice` that names no tool of `tools`, or is `required` without `tools` | rejected, so that clients do not call or find the tools of an agent |
//! | `n` other than 1, log probabilities, `logit_bias`, audio output, `functions`, `max_tool_calls` | rejected |
//! | `conversation`, `prompt`; `background`, `previous_response_id` and `item_reference` without a store | rejected |
//! | reasoning items, `reasoning_content` | omitted: a model cannot use reasoning without its provider's signature |
//! | any other | ignored; this includes `store` of a chat |
//!
//! # Errors
//!
//! `{"error": {"message", "type", "param", "code"}}`. `message` is [one
//! sentence](OpenAi::error_message) for the kind of the error.
//!
//! | error of the run | status | `code` |
//! |---|---|---|
//! | invalid request, context window, content filter | 400 | `invalid_request`, `context_length_exceeded`, `content_filter` |
//! | a client tool has the name of an agent's tool | 400 | `tool_name_taken` |
//! | conflict, waiting | 409 | `conflict` or the reason, `approval_required` |
//! | too large | 413 | `too_large` |
//! | rate limited | 429 | `rate_limit_exceeded` |
//! | a budget is used up | 429 | `insufficient_quota` |
//! | cancelled | 499 | `cancelled` |
//! | configuration, tool, halted, other | 500 | the kind |
//! | the provider rejected the key or the model, has failed, or its answer was cut off | 502 | `upstream_` and the kind |
//! | overloaded, shutting down | 503 | `overloaded`, `shutting_down` |
//! | timeout | 504 | `timeout` |
//!
//! `retry-after` and `retry-after-ms` are set if the error has a delay, and `x-should-retry: false` if
//! another attempt cannot succeed. `x-ratelimit-limit-`, `-remaining-` and `-reset-` of `requests` and
//! `tokens` are set for a `429` if the error has [rate limits](concentric_core::Error::rate_limits).
//!
//! The clients repeat a failed request by themselves: those of OpenAI twice. If the tools of a run may
//! have taken [effect](concentric_core::Context::effect_count), a status that clients repeat is replaced
//! by `424`, and `x-should-retry` is `false`; the code remains. A client that gives up waiting, or loses
//! its connection, repeats the request as well, and nothing in it shows that it is the same: use
//! streams for agents with effects, whose clients do not repeat a request that has begun to answer, or
//! set the client's timeout and number of retries.
//!
//! # Place in the stack
//!
//! HTTP layers go outside, layers of the run inside each model.
//!
//! The host authenticates the caller, in a layer around this service, such as [`VirtualKeys`]. The extensions of the HTTP request
//! become extensions of the run's [`Context`](concentric_core::Context), where every layer and tool can
//! read them. The owner of a run is the [`Tenant`](concentric_core::store::Tenant) that the host puts
//! there; without it, all callers share one owner. Headers are not passed on. The request id is the header
//! `x-request-id`, and all responses have it.
//!
//! A timeout around this service bounds the time to the head of a stream, and the run of a whole answer. A
//! concurrency limit around it does not count background runs.
//!
//! # Backpressure
//!
//! The service is always ready; each request waits until its model is ready. A stream is driven by its
//! client's reading, and holds no more than one chunk of about 16 KiB and the text of the answer. A background run is
//! driven by a task.

mod answer;
mod approval;
mod background;
mod body;
mod chat;
mod content;
mod encode;
mod failure;
mod follow;
mod history;
mod input;
mod keys;
mod respond;
mod responses;
mod run;
mod service;
mod stored;
mod tools;

pub use self::{
    body::ResponseBody,
    keys::{CheckKey, NewKey, VirtualKey, VirtualKeys},
    service::OpenAi,
};
