//! OpenAI's Responses API, and compatible servers.
//!
//! ```
//! # use concentric_providers::{ApiKey, OpenAiResponsesLayer};
//! let layer = OpenAiResponsesLayer::new("gpt-5.5", ApiKey::new("the key"));
//! ```
//!
//! # Lifecycle
//!
//! In addition to the [lifecycle of every model](crate::model):
//!
//! | moment | effect |
//! |---|---|
//! | first text, reasoning, refusal, tool call or complete item | the future resolves |
//! | an earlier error | the future fails: with the HTTP status, or with an error in a body of status 200 |
//! | a later error (`error`, `response.failed`) | the last item of the body |
//! | `response.completed`, `response.incomplete` | tool calls are emitted, then `Finish`; later events are ignored |
//! | end of the body before one | `Truncated`, and no tool call |
//!
//! A response is complete at one of these two events; without streaming, if its JSON is complete
//! and its status is not `queued` or `in_progress`. The content of a response determines whether it
//! is a stream. Content is taken from the deltas; the last event only provides content without
//! deltas, since some services leave it empty and others send no deltas. Events of unknown types
//! are ignored.
//!
//! # Items
//!
//! | item | converted to | sent back as |
//! |---|---|---|
//! | `message` | text and refusals, each with its annotations | a message with the current text |
//! | `reasoning` | reasoning: summaries and text | the item, if another item follows it |
//! | `function_call`, `custom_tool_call` | a tool call; the input of a custom call is its arguments | the call and its result |
//! | `local_shell_call`, `shell_call`, `apply_patch_call` | a call of `local_shell`, `shell`, `apply_patch` | the call and its result |
//! | `web_search_call`, `file_search_call`, `code_interpreter_call`, `mcp_call`, `x_search_call`, `shell_call` in a container | a tool call that the provider executed | the item |
//! | `image_generation_call` | an image | the item |
//! | all others | a [`Provider`](concentric_core::PartKind::Provider) part | the item |
//!
//! Each part contains `{item, index, response}` as provider data, so that a response is sent back
//! in its original order, although calls are its last parts. A user message may also contain items
//! as `Provider` parts with such data, such as an `mcp_approval_response`. Tool calls get ids of
//! the run; the service's ids are available as
//! [`provider_id`](concentric_core::ToolCallPart::provider_id). Of messages from other providers,
//! only texts and calls are sent; media that a model generated are replaced with a name
//! (`[image]`).
//!
//! # Stateless by default
//!
//! Responses are not stored (`store: false`), and reasoning is returned encrypted and sent back in
//! its original position (`include: ["reasoning.encrypted_content"]`, for models that reason). The
//! request's [`provider`](concentric_core::ChatOptions::provider) options replace these fields:
//! with `"store": true` the service stores its responses, and with `previous_response_id` only the
//! turns after that response are sent. Options in `text` and `reasoning` are merged with the
//! generated fields (`{"reasoning": {"summary": "auto"}}`).
//!
//! System segments are sent as `instructions`. With `prompt_cache_options`, they are sent as a
//! message, in which each group of consecutive segments with the same
//! [`Stability`](concentric_core::Stability), except the least stable one, ends with a cache
//! breakpoint.
//!
//! # Schemas
//!
//! OpenAI and Azure enforce the schema of a tool or of the output if it can be expressed in their
//! subset: objects are closed, optional properties that may be null become required, `oneOf`
//! becomes `anyOf`, and keywords that do not restrict values are removed. A schema whose meaning
//! would change (other optional properties, maps, `allOf`, string lengths, a default) is sent
//! unchanged, with `strict: false`. Tools are always sent with `strict: false` to other services.
//!
//! # Usage
//!
//! | Concentric | Responses |
//! |---|---|
//! | `input_tokens` | `input_tokens`, including cached tokens |
//! | `output_tokens` | `output_tokens`, including reasoning |
//! | `total_tokens` | `total_tokens` |
//! | `cached_input_tokens` | `input_tokens_details.cached_tokens` |
//! | `cache_write_tokens` | `input_tokens_details.cache_write_tokens` |
//! | `reasoning_tokens` | `output_tokens_details.reasoning_tokens` |

mod compat;
mod decoder;
mod items;
mod layer;
mod request;
mod tools;
mod wire;

pub(crate) use self::layer::Responses;
pub use self::{compat::Compat, layer::OpenAiResponsesLayer};
