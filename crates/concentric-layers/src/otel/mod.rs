//! Spans and metrics of OpenTelemetry, for runs, model calls and tool calls.
//!
//! The names are those of the [GenAI semantic conventions][conventions], version 1.41. The spans are spans of
//! [`tracing`]; a layer of `tracing-opentelemetry` in the application's subscriber exports them.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_layers::Otel;
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let otel = Otel::new().meter(&opentelemetry::global::meter("clerk"));
//! let search = tool("search", "Searches.", |NoArguments {}| async { "nothing" });
//! let agent = ServiceBuilder::new()
//!     .layer(otel.run())
//!     .layer(AgentLayer::new(Toolset::new().tool(search).hooks(otel.tool())))
//!     .layer(otel.model())
//!     .service(ScriptedModel::new().tool_call("search", json!({})).then().text("Nothing."));
//!
//! // invoke_agent
//! // ├── chat gpt-5.5
//! // ├── execute_tool search
//! // └── chat gpt-5.5
//! agent.oneshot(ChatRequest::user("Search.")).await?.collect().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The application chooses the SDK and the exporter, neither of which is a dependency of this crate. It installs,
//! for instance:
//!
//! ```
//! use opentelemetry::trace::TracerProvider;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use tracing_subscriber::{Layer, filter::filter_fn, layer::SubscriberExt};
//!
//! // With an exporter, such as one of `opentelemetry-otlp`.
//! let provider = SdkTracerProvider::builder().build();
//! let spans = tracing_opentelemetry::layer()
//!     .with_tracer(provider.tracer("clerk"))
//!     // Without log events; see "Content".
//!     .with_filter(filter_fn(|metadata| metadata.is_span()));
//! let subscriber = tracing_subscriber::registry().with(spans);
//! # let _ = subscriber;
//! ```
//!
//! The feature `reqwest-client` of `opentelemetry-otlp` requires a tokio runtime, which the SDK's thread for
//! batches does not have; its default, `reqwest-blocking-client`, does not.
//!
//! # Spans
//!
//! | layer | span | kind | one per |
//! |---|---|---|---|
//! | [`Otel::run`] | `invoke_agent {agent}` | internal | run, and each time it is resumed |
//! | [`Otel::model`] | `chat {model}` | client | model call; inside a retry or a fallback, attempt |
//! | [`Otel::tool`] | `execute_tool {tool}` | internal | tool call; if it is added with `Toolset::hooks`, also of calls that do not run because they were refused, denied or executed elsewhere ([`settled`](concentric_core::ToolCall::settled)), with `concentric.settled` |
//!
//! The target is `concentric::otel`, the level info. The parent is the current span: for a run, that of the
//! HTTP request, or that of the tool call that runs the agent. If the request names no model, the span of a
//! model call has the name of the model that answered. Waiting for a person is not part of a span.
//!
//! A span starts with the call, and ends with the terminal item of the body, with the outcome of the tool call,
//! with an error, or when the future or the body is dropped. It is the current span whenever the inner service
//! is called or polled, so a layer directly inside can add attributes to `Span::current()`:
//!
//! ```
//! use concentric_core::ChatRequest;
//! use concentric_layers::{Next, from_fn};
//! use tracing_opentelemetry::OpenTelemetrySpanExt;
//!
//! let plan = from_fn(async |request: ChatRequest, mut next: Next| {
//!     tracing::Span::current().set_attribute("app.plan", "free");
//!     next.run(request).await
//! });
//! # let _ = plan;
//! ```
//!
//! Other subscribers see the same spans, with the fields `otel.name`, `concentric.run.id`, `concentric.step`,
//! `concentric.cached` and `gen_ai.tool.call.id`; the other attributes are for OpenTelemetry only, so that they do
//! not fill log lines.
//!
//! ## Attributes
//!
//! An attribute without a value is absent. The levels are those of the conventions: *required*, *conditional*
//! (required if there is a value), *recommended*, and *opt-in* (see [below](#content)); *own* ones are not part
//! of them.
//!
#![doc = include_str!("attributes.md")]
//!
//! Of the conventions, these are not recorded: `server.address` and `server.port`, which the span of the HTTP
//! client has; the agent's `id`, `description` and `version`, and `data_source.id`, which agents do not have;
//! `request.choice.count`, which is always 1; `request.top_k`, which is no option of a request; and
//! `tool.definitions`.
//!
//! An attempt has no number and a retry no cause, since the failed attempt before it is a span with an
//! `error.type`. A gate has no attribute, since its verdict shows in the outcome: `waiting` or `denied`. An
//! answer of a [`ResponseCacheLayer`](crate::ResponseCacheLayer) has no span, since no model is called.
//!
//! The trace context is not sent to providers and MCP servers, since the application decides who may see it. A
//! layer around their HTTP client can send it: the span of the call is the current span there.
//!
//! ## Ends
//!
//! | end | `concentric.outcome` | status, `error.type` |
//! |---|---|---|
//! | finish of a run or a model call | `completed`, `interrupted`, `halted`, `aborted`, `step_limit`, `call_limit` | |
//! | outcome of a tool call | `done`, `denied`, `cancelled` | |
//! | | `failed` | error, `tool_error` |
//! | | `unknown` | error, `indeterminate` |
//! | a tool call waits for a reply | `waiting` | |
//! | error | `failed` | error, the [kind](concentric_core::ErrorKind::as_str) |
//! | error of a cancelled or halted call | `cancelled`, `halted` | |
//! | body without a finish | `truncated` | error, `truncated` |
//! | future or body dropped | `dropped` | |
//!
//! A status other than error is unset. `tracing-opentelemetry` also sets it to error if an event of the level
//! error is logged within the span; the filter above prevents that.
//!
//! ## Resumed runs
//!
//! A run that is interrupted and [resumed](concentric_core::ChatRequest::resume), perhaps days later and in
//! another process, has a span for each part, in the trace of each request. The span of a resumed run has a
//! link to those of the earlier parts, up to 128, whose contexts are kept in a durable
//! [slot](concentric_core::state) of the run. Attempts of a retry are siblings, without links.
//!
//! # Metrics
//!
//! Recorded with the instruments of a [`meter`](Otel::meter), each once per operation, with the boundaries of
//! buckets that the conventions advise. Those of agents and tools are from the version after 1.41, which has
//! none. Ids of runs, conversations and calls are never attributes of a metric, nor is the name of a tool that
//! does not exist.
//!
//! | histogram | unit | attributes |
//! |---|---|---|
//! | `gen_ai.client.operation.duration` | `s` | `gen_ai.operation.name`, `gen_ai.provider.name`, `gen_ai.request.model`, `gen_ai.response.model`, `error.type` |
//! | `gen_ai.client.token.usage` | `{token}` | the same without `error.type`; `gen_ai.token.type`: `input`, `output` |
//! | `gen_ai.client.operation.time_to_first_chunk` | `s` | the same without `error.type` |
//! | `gen_ai.client.operation.time_per_output_chunk` | `s` | the same; one value for each content event after the first |
//! | `gen_ai.invoke_agent.duration` | `s` | `gen_ai.agent.name`, `error.type` |
//! | `gen_ai.execute_tool.duration` | `s` | `gen_ai.tool.name`, `gen_ai.agent.name`, `error.type` |
//!
//! `gen_ai.execute_tool.duration` counts the tool calls of an agent; there is no metric of their number in a run.
//! The first four are of model calls; a tool call that is only observed, or that waits for a reply, has none.
//! The `error.type` of a dropped or cancelled operation is `cancelled`, so that its duration can be told apart.
//!
//! # Content
//!
//! By default no span contains text of a person, a model, a tool or a provider. With
//! [`content`](Otel::content), the attributes of the level opt-in are recorded, in the JSON of the conventions,
//! and the status has the message of the error. The variable `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`
//! is not read: the application can read it and call `content`. An attribute has up to a number of characters of
//! text; a text that is cut ends with `…`. Images, audio and files are recorded as `[image]`, `[audio]` and `[file]`.
//! [`redact`](Otel::redact) rewrites each text before it is cut; if the function panics, the attribute has
//! `[redaction_failed]` instead of the text. In arguments and results that are JSON, and in other JSON with escapes,
//! it rewrites each string, number and name, and then the whole. With the feature `guard`, credentials that its rules
//! `secrets` find are replaced as well.
//!
//! `tracing-opentelemetry` copies log events into the current span. Those of Concentric that contain texts of
//! tools, hooks and gates are logged outside all spans (`parent: None`), but those of a
//! [`LogLayer`](crate::LogLayer) or [`DebugLayer`](crate::DebugLayer) that logs content, and those of the
//! application and its libraries, are not: keep log events out of the exporter with the filter above, or
//! admit them by target.
//!
//! # Place in the stack
//!
//! See the [recommended order](crate::order). Around an agent, place `run` inside [`SuspendLayer`](crate::SuspendLayer), which
//! restores the slot with the links, and inside [`DetachLayer`](crate::DetachLayer), so that the span covers
//! the whole run. Around a model, place `model` inside a retry or a fallback. A nested agent's `run` is the
//! child of the call's span.
//!
//! # Backpressure, errors and cancellation
//!
//! Readiness is forwarded. Responses and errors pass unchanged. Dropping a future or a body drops the inner
//! one, and then ends the span. If no subscriber is interested in the target and no meter is set, a call costs
//! one check. If the slot cannot be used, a run is not linked, which is logged.
//!
//! [conventions]: https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0/docs/gen-ai

mod body;
mod content;
mod future;
mod genai;
mod layer;
mod links;
mod metrics;
mod model;
mod service;
mod tool;

pub use self::{
    body::OtelBody,
    future::{ResponseFuture, ToolFuture},
    layer::{Otel, OtelLayer},
    service::OtelService,
};
