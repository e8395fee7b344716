//! Anthropic's Messages API, and compatible services.
//!
//! ```
//! # use concentric_providers::{ApiKey, AnthropicLayer};
//! let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("the key"));
//! ```
//!
//! # Lifecycle
//!
//! In addition to the [lifecycle of every model](crate::model):
//!
//! | moment | effect |
//! |---|---|
//! | first text, thinking, tool call or opaque block | the future resolves |
//! | an earlier error | the future fails: with the HTTP status, or with an `error` event |
//! | end of a block | its signature or citations are emitted with the end of the part; a call that the service executes is emitted |
//! | `message_stop` | the loop's tool calls are emitted, then `Finish` |
//! | end of the body before it | `Truncated`, and no tool call for the loop |
//! | another `message_start` | an error: a gateway has started another response |
//!
//! A response is complete at `message_stop`; without streaming, if its JSON is complete. The
//! content of a response determines whether it is a stream. Tool calls get ids of the run; the
//! service's ids are available as [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # Request mapping
//!
//! | Concentric | Anthropic |
//! |---|---|
//! | system segments; a system message within the conversation | `system`, in order |
//! | [`max_output_tokens`](concentric_core::ChatOptions::max_output_tokens) | `max_tokens`; see [`AnthropicLayer::max_tokens`] for the default |
//! | [`reasoning_effort`](concentric_core::ChatOptions::reasoning_effort), a name | `thinking: adaptive` and `output_config.effort`; before Claude 4.6, a budget of 1,024 (`minimal`), 2,048 (`low`), 8,192 (`medium`), 16,384 (`high`) or 24,576 tokens (`max`), but less than `max_tokens` |
//! | a number | `thinking.budget_tokens`, if the model supports it |
//! | `none` | no `thinking`, or `disabled` for a model that thinks by default |
//! | [`output_schema`](concentric_core::ChatOptions::output_schema) | `output_config.format`: objects are closed, `oneOf` becomes `anyOf`, and constraints that the service does not enforce (a range, a pattern) are added to a description |
//! | `user_id` of the metadata | `metadata.user_id`; other metadata are not sent |
//! | [`provider`](concentric_core::ChatOptions::provider) options | the fields of the same names, which replace generated ones: `service_tier`, `mcp_servers`, `container`, `context_management`, `fallbacks`, `top_k` |
//!
//! [`provider_data`](concentric_core::Part::provider_data) of a part for `anthropic` is added to
//! the fields of its block, such as `{"citations": {"enabled": true}}` of a document; a
//! [`PartKind::Provider`](concentric_core::PartKind::Provider) for `anthropic` is sent as a block
//! unchanged.
//!
//! # Prompt caching
//!
//! The service caches a prompt from its start (tools, system, messages) to a breakpoint. At most
//! four breakpoints are set: at the end of the [fixed](concentric_core::Stability::Fixed) segments
//! (or of the tools, if there are none), of the segments that are stable for a thread, of those
//! that are stable for a run, and, unless a segment changes with each step, of the last message. A
//! segment after a less stable one gets no breakpoint of its own. [`PromptCache`] sets the time to
//! live or disables caching. Disable it for requests whose parts contain `cache_control`, since the
//! service limits the total number of breakpoints.
//!
//! # Replay of provider data
//!
//! Thinking is sent back with its signature, redacted or not, as are citations, blocks of server
//! tools, compactions and fallbacks, each in its original position. Reasoning of other providers'
//! models is not sent. A server tool call without its result (or a result without its call) is
//! omitted, except in the last turn.
//!
//! A round of tool calls that started without thinking, for example by another provider's model,
//! continues without it, since the service does not accept a budget there. Thinking is enabled
//! again with the next user message.
//!
//! The service's fields of a whole message (`container`, `context_management`, `stop_details`,
//! `stop_sequence`, `usage.iterations`, `usage.server_tool_use`) are the last
//! [`PartKind::Provider`](concentric_core::PartKind::Provider) of the response, with the type
//! `message`. The container is requested again while the model waits for tool results, or when a
//! paused turn continues.
//!
//! The finish reason `Other("pause_turn")` means that the service paused during the execution of
//! its own tools, and `Other("compaction")` that it compacted the context. The run ends at that
//! point; to continue, send the transcript again unchanged: the model then continues its last
//! message.
//!
//! # Usage
//!
//! | Concentric | Anthropic |
//! |---|---|
//! | `input_tokens` | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` |
//! | `cached_input_tokens` | `cache_read_input_tokens` |
//! | `cache_write_tokens` | `cache_creation_input_tokens` |
//! | `cache_write_1h_tokens` | `cache_creation.ephemeral_1h_input_tokens` |
//! | `output_tokens` | `output_tokens`, including thinking |
//! | `reasoning_tokens` | `output_tokens_details.thinking_tokens` |
//! | `total_tokens` | not reported |
//!
//! The usage of an advisor or a compaction is only in `usage.iterations`.

mod block;
mod decoder;
mod messages;
mod model;
mod request;
mod schema;
mod thinking;
mod wire;

pub(crate) use self::messages::Messages;
pub use self::messages::{AnthropicLayer, PromptCache};
