//! OpenAI's chat completions, and compatible servers.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, OpenAiLayer};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; this one always returns the same response.
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
//! # Lifecycle
//!
//! In addition to the [lifecycle of every model](crate::model):
//!
//! | moment | effect |
//! |---|---|
//! | first text, reasoning, refusal or tool call | the future resolves |
//! | an earlier error | the future fails: with the HTTP status, or with an error in a body of status 200 |
//! | end of the body, or `[DONE]`, after a finish reason | tool calls are emitted, then `Finish` |
//! | end of the body before one | `Truncated`, and no tool call |
//!
//! A response is complete after its finish reason; without streaming, if its JSON is complete. The
//! content of a response determines whether it is a stream, since some servers ignore the requested
//! format. Tool calls get ids of the run; the service's ids are available as
//! [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # Other services
//!
//! A [`Profile`] contains the base URL of a service and its differences from OpenAI's.
//! [`OpenAiLayer::profile`] and [`OpenAiLayer::from_env`] take a profile, and
//! [`OpenAiLayer::compatible`] finds it by the URL.
//!
//! # Schemas
//!
//! With `strict`, OpenAI's own service and Azure's accept only a subset of JSON Schema: a strict
//! output schema is converted to the subset, and sent without `strict` if it cannot be expressed
//! there. Schemas of tools are completed with the required keywords; names and schemas of tools
//! that the service does not accept in any form are rejected before they are sent. Other services
//! receive schemas unchanged ([`Profile::strict_subset`]).
//!
//! # Usage
//!
//! [`Usage`](concentric_core::Usage) has the same meaning for every service; counts with a
//! different meaning are converted:
//!
//! | chat completions | `Usage` |
//! |---|---|
//! | `prompt_tokens` | `input_tokens` |
//! | `audio_tokens` of the input | `input_audio_tokens` |
//! | the same, if the total counts them separately (Mistral) | added to `input_tokens` |
//! | `completion_tokens` | `output_tokens` |
//! | `audio_tokens` of the output | `output_audio_tokens` |
//! | `reasoning_tokens` | `reasoning_tokens` |
//! | the same, if the total counts them separately (xAI) or the profile requires it | added to `output_tokens` |
//! | `total_tokens` | `total_tokens`, unchanged |
//! | `cached_tokens`, `prompt_cache_hit_tokens` | `cached_input_tokens` |
//! | `cache_write_tokens`, `cache_creation_input_tokens` | `cache_write_tokens` |

mod chat;
mod decoder;
mod profile;
mod reasoning;
mod request;
pub(crate) mod schema;
mod wire;

pub(crate) use self::chat::Chat;
#[cfg(any(feature = "activities", feature = "responses"))]
pub(crate) use self::request::DataUrl;
pub use self::{
    chat::OpenAiLayer,
    profile::{Prefill, Profile, Reasoning, Turns},
};
#[cfg(feature = "responses")]
pub(crate) use self::{
    request::{Format, Metadata},
    wire::Details,
};
