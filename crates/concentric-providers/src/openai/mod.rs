//! OpenAI's chat completions, and the many servers that speak them.
//!
//! [`OpenAiLayer`] makes of an HTTP service a model: each call is one `POST`, whose answer is read
//! as it arrives. The layer retries nothing and follows no redirect: those are layers of their own,
//! above or below.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, OpenAiLayer};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; here one that always says the same.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert_eq!(request.uri(), "https://api.openai.com/v1/chat/completions");
//!     let answer = r#"{"choices": [{"message": {"content": "Hello!"}, "finish_reason": "stop"}]}"#;
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let model = ServiceBuilder::new()
//!     .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("the key")))
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
//! | first text, reasoning, refusal, tool call | the future resolves |
//! | an error before | the future fails: by the status, or by what the body says under a 200 |
//! | an error after | the body's last item |
//! | the body ends, or says `[DONE]`, after a finish reason | tool calls are emitted, then `Finish` |
//! | the body ends before one | `Truncated`, and no tool call |
//! | nothing for too long ([`Timeouts`](crate::Timeouts)) | an error, by either way |
//! | dropped | so is the HTTP body |
//!
//! What counts as the end is the finish reason; of a unary answer, that its JSON is whole. Whether
//! an answer is a stream is told by its content, since servers answer one where the other was asked
//! for. Tool calls get ids of ours; the service's are their
//! [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # Other services
//!
//! [`Profile`] says of each where it is, and where it differs; [`OpenAiLayer::profile`] and
//! [`OpenAiLayer::from_env`] take one, [`OpenAiLayer::compatible`] finds it by the address.
//!
//! # Schemas
//!
//! OpenAI's own service, and Azure's, take with `strict` a subset of JSON Schema only: an output schema
//! that is to be held to is rewritten in it, and sent without `strict` if it says what the subset can't.
//! A tool's schema is given the properties that the service wants to see; names and schemas of tools that
//! it takes in no form are refused before they are sent. Other services get schemas as they are
//! ([`Profile::strict_subset`]).
//!
//! # Usage
//!
//! [`Usage`](concentric_core::Usage) means the same of every service; what one counts otherwise is
//! converted:
//!
//! | of the answer | in `Usage` |
//! |---|---|
//! | `prompt_tokens` | `input_tokens` |
//! | the input's `audio_tokens` | `input_audio_tokens` |
//! | those, where the total has them besides (Mistral) | in `input_tokens` too |
//! | `completion_tokens` | `output_tokens` |
//! | the output's `audio_tokens` | `output_audio_tokens` |
//! | `reasoning_tokens` | `reasoning_tokens` |
//! | those, where the total has them besides (xAI), or the profile says so | in `output_tokens` too |
//! | `total_tokens` | `total_tokens`, as it is |
//! | `cached_tokens`, `prompt_cache_hit_tokens` | `cached_input_tokens` |
//! | `cache_write_tokens`, `cache_creation_input_tokens` | `cache_write_tokens` |
//!
//! # Place in the stack
//!
//! The innermost layer that knows of chats; under it are only layers of HTTP.

mod chat;
mod decoder;
mod profile;
mod reasoning;
mod request;
pub(crate) mod schema;
mod wire;

pub use self::{
    chat::{Chat, OpenAi, OpenAiLayer},
    profile::{Files, Prefill, Profile, Reasoning, Turns},
};
pub(crate) use self::{
    decoder::name,
    request::{DataUrl, Metadata, Tools},
};
