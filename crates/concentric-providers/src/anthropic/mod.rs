//! Anthropic's Messages API, and the services that speak it.
//!
//! [`AnthropicLayer`] makes of an HTTP service a model: each call is one `POST`, whose answer is
//! read as it arrives. The layer retries nothing and follows no redirect: those are layers of their
//! own, above or below.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{AnthropicLayer, ApiKey};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; here one that always says the same.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert_eq!(request.uri(), "https://api.anthropic.com/v1/messages");
//!     let answer = r#"{"type": "message", "content": [{"type": "text", "text": "Hello!"}]}"#;
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let model = ServiceBuilder::new()
//!     .layer(AnthropicLayer::new("claude-opus-4-8", ApiKey::new("the key")))
//!     .service(http);
//! assert_eq!(model.oneshot(ChatRequest::user("hi")).await?.text().await?, "Hello!");
//! # Ok(())
//! # }
//! ```
//!
//! # When
//!
//! | moment | what happens |
//! |---|---|
//! | `call` | the HTTP service is called at once, with its readiness |
//! | first text, thinking, tool call, block of the service's own | the future resolves |
//! | an error before | the future fails: by the status, or by an `error` event |
//! | an error after | the body's last item |
//! | the end of a block | its signature or its citations, with the part's end; a call that the service executes itself |
//! | `message_stop` | the loop's tool calls are emitted, then `Finish` |
//! | the body ends before it | `Truncated`, and no tool call for the loop |
//! | another `message_start` | an error: a gateway has begun another answer |
//! | nothing for too long ([`Timeouts`](crate::Timeouts)) | an error, by either way |
//! | dropped | so is the HTTP body |
//!
//! What counts as the end is `message_stop`; of a unary answer, that its JSON is whole. Whether an
//! answer is a stream is told by its content. Tool calls get ids of ours; the service's are their
//! [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # What a request becomes
//!
//! | here | there |
//! |---|---|
//! | system segments; a system message within the conversation | `system`, in order |
//! | [`max_output_tokens`](concentric_core::ChatOptions::max_output_tokens) | `max_tokens`; see [`AnthropicLayer::max_tokens`] for what goes without |
//! | [`reasoning_effort`](concentric_core::ChatOptions::reasoning_effort), a word | `thinking: adaptive` and `output_config.effort`; before Claude 4.6, a budget of 1,024 (`minimal`), 2,048 (`low`), 8,192 (`medium`), 16,384 (`high`) or 24,576 tokens (`max`), but less than `max_tokens` |
//! | a number | `thinking.budget_tokens`, where the model takes one |
//! | `none` | no `thinking`, or `disabled` of a model that thinks by itself |
//! | [`output_schema`](concentric_core::ChatOptions::output_schema) | `output_config.format`: objects are closed, `oneOf` is `anyOf`, and what the service does not enforce (a range, a pattern) is part of a description |
//! | the metadata's `user_id` | `metadata.user_id`; nothing else of it is sent |
//! | [`provider`](concentric_core::ChatOptions::provider) options | the fields of that name, instead of ours: `service_tier`, `mcp_servers`, `container`, `context_management`, `fallbacks`, `top_k` |
//!
//! What a part's [`provider_data`](concentric_core::Part::provider_data) says for `anthropic` becomes
//! fields of its block, as `{"citations": {"enabled": true}}` of a document; a
//! [`PartKind::Provider`](concentric_core::PartKind::Provider) for it is a block as it stands.
//!
//! # Caching
//!
//! The service caches a prompt from its beginning (tools, system, messages) up to where it is told.
//! It is told at the end of the segments that are [fixed](concentric_core::Stability::Fixed) (or of the
//! tools, if there are none), of those that stay for a thread, of those that stay for a run, and of
//! the last message, unless a segment before it changes with each step: four places at most. A segment
//! behind one that is less stable is not worth a place. [`PromptCache`] says for how long, or
//! not at all: so for requests whose parts say `cache_control` themselves, since the service counts
//! all places together.
//!
//! # What is sent back
//!
//! Thinking goes back with its signature, redacted or not, and so do citations, blocks of the
//! service's tools, compactions and fallbacks, each where it was; what other providers' models
//! thought does not go along. Of the service's own tools, a call without its result (or a result
//! without its call) is left out, except in the last turn.
//!
//! A round of tools that was begun without thinking, as by another provider's model, is gone on with
//! without: the service takes no budget for it there. When the user speaks again, the model thinks
//! again.
//!
//! What the service says of a message as a whole (`container`, `context_management`, `stop_details`,
//! `stop_sequence`, `usage.iterations`, `usage.server_tool_use`) is the last
//! [`PartKind::Provider`](concentric_core::PartKind::Provider) of the answer, of the type `message`. A
//! container is asked for again while the model waits for its tools, or is to go on.
//!
//! The finish reason `Other("pause_turn")` says that the service stopped in the midst of its own
//! tools, and `Other("compaction")` that it has made room. The run ends there; to go on, send its
//! transcript again as it is: the model then continues its last message.
//!
//! # Usage
//!
//! | here | there |
//! |---|---|
//! | `input_tokens` | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` |
//! | `cached_input_tokens` | `cache_read_input_tokens` |
//! | `cache_write_tokens` | `cache_creation_input_tokens` |
//! | `cache_write_1h_tokens` | `cache_creation.ephemeral_1h_input_tokens` |
//! | `output_tokens` | `output_tokens`, thinking included |
//! | `reasoning_tokens` | `output_tokens_details.thinking_tokens` |
//! | `total_tokens` | not said |
//!
//! What an advisor or a compaction used is in `usage.iterations` only.
//!
//! # Place in the stack
//!
//! The innermost layer that knows of chats; under it are only layers of HTTP.

mod block;
mod decoder;
mod messages;
mod model;
mod request;
mod schema;
mod thinking;
mod wire;

pub use self::messages::{Anthropic, AnthropicLayer, Messages, PromptCache};
