//! OpenAI's Responses, and the servers that speak them.
//!
//! [`OpenAiResponsesLayer`] makes of an HTTP service a model: each call is one `POST`, whose answer
//! is read as it arrives. The layer retries nothing and follows no redirect: those are layers of
//! their own, above or below.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, OpenAiResponsesLayer};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; here one that always says the same.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert_eq!(request.uri(), "https://api.openai.com/v1/responses");
//!     let answer = r#"{"status": "completed", "output": [
//!         {"type": "message", "content": [{"type": "output_text", "text": "Hello!"}]}
//!     ]}"#;
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let model = ServiceBuilder::new()
//!     .layer(OpenAiResponsesLayer::new("gpt-5.5", ApiKey::new("the key")))
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
//! | first text, reasoning, refusal, tool call, whole item | the future resolves |
//! | an error before | the future fails: by the status, or by what the body says under a 200 |
//! | an error after (`error`, `response.failed`) | the body's last item |
//! | `response.completed`, `response.incomplete` | tool calls are emitted, then `Finish`; what comes behind is not read |
//! | the body ends before one | `Truncated`, and no tool call |
//! | nothing for too long ([`Timeouts`](crate::Timeouts)) | an error, by either way |
//! | dropped | so is the HTTP body |
//!
//! What counts as the end is one of these two events; of a unary answer, that its JSON is whole and
//! its status is not `queued` or `in_progress`. Whether an answer is a stream is told by its
//! content. What the deltas say is the answer; what the last event says counts where no delta said
//! anything, since some services leave it empty and others send no deltas. Events of unknown types
//! are passed over.
//!
//! # Items
//!
//! | item | becomes | goes back as |
//! |---|---|---|
//! | `message` | text and refusals, each with its annotations | a message of the text as it is by then |
//! | `reasoning` | reasoning: summaries and text | the item, if something follows it |
//! | `function_call`, `custom_tool_call` | a tool call; the input of a custom one is its arguments | the call and its result |
//! | `local_shell_call`, `shell_call`, `apply_patch_call` | a call of `local_shell`, `shell`, `apply_patch` | the call and its result |
//! | `web_search_call`, `file_search_call`, `code_interpreter_call`, `mcp_call`, `x_search_call`, `shell_call` in a container | a tool call that the provider executed | the item |
//! | `image_generation_call` | an image | the item |
//! | all others | a [`Provider`](concentric_core::PartKind::Provider) part | the item |
//!
//! Each part keeps `{item, index, response}` as its provider's data: so an answer goes back in the
//! order in which it came, though its calls are its last parts. A user's message can hold items as
//! well, as `Provider` parts with such data: an `mcp_approval_response`. Tool calls get ids of ours;
//! the service's are their [`provider_id`](concentric_core::ToolCallPart::provider_id). Of other
//! providers, only what was said and called is sent, and what a model made is named (`[image]`).
//!
//! # Without a memory
//!
//! Nothing is stored (`store: false`), and reasoning comes encrypted and goes back in its place
//! (`include: ["reasoning.encrypted_content"]`, for models that reason). Fields of the request's
//! own [`provider`](concentric_core::ChatOptions::provider) options replace those: with
//! `"store": true` the service keeps its answers, and with `previous_response_id` only what comes
//! behind that answer is sent. Of `text` and `reasoning`, they replace what they name and leave the
//! rest (`{"reasoning": {"summary": "auto"}}`).
//!
//! System segments are the `instructions`. With `prompt_cache_options` they are a message instead,
//! in which each run of segments of one [`Stability`](concentric_core::Stability) but the last, the
//! step's, ends with a breakpoint of the cache.
//!
//! # Schemas
//!
//! OpenAI and Azure hold the model to the schema of a tool, or of the output, if it can be said in
//! the subset that they take: objects take no further properties; optional properties that may be
//! null are required; `oneOf` becomes `anyOf`; and what restricts nothing is left out. Where a
//! schema would say something else then (other optional properties, maps, `allOf`, lengths of text,
//! a default) it is sent as it is, with `strict: false`. So are the tools of other services.
//!
//! # Usage
//!
//! | ours | theirs |
//! |---|---|
//! | `input_tokens` | `input_tokens`, which counts what was cached |
//! | `output_tokens` | `output_tokens`, which counts reasoning |
//! | `total_tokens` | `total_tokens` |
//! | `cached_input_tokens` | `input_tokens_details.cached_tokens` |
//! | `cache_write_tokens` | `input_tokens_details.cache_write_tokens` |
//! | `reasoning_tokens` | `output_tokens_details.reasoning_tokens` |
//!
//! # Place in the stack
//!
//! The innermost layer that knows of chats; under it are only layers of HTTP.

mod compat;
mod decoder;
mod items;
mod layer;
mod request;
mod tools;
mod wire;

pub use self::{
    compat::Compat,
    layer::{OpenAiResponses, OpenAiResponsesLayer, Responses},
};
