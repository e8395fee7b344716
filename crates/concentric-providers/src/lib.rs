//! Model providers for Concentric: each is a layer that turns an HTTP service into a model.
//!
//! A provider layer wraps any `Service<http::Request<Full<Bytes>>>`, so middleware of the HTTP
//! ecosystem (tracing, signing, proxies, recording, a test double) can be added below it.
//! [`HttpClient`] (feature `client`) is the default innermost service.
//!
//! ```no_run
//! # #[cfg(all(feature = "client", feature = "openai"))]
//! # mod example {
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, HttpClient, OpenAiLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # async fn example() -> Result<(), Error> {
//! let model = ServiceBuilder::new()
//!     .layer(OpenAiLayer::new("gpt-5.5", ApiKey::from_env("OPENAI_API_KEY")?))
//!     .service(HttpClient::new()?);
//! let answer = model.oneshot(ChatRequest::user("hi")).await?.text().await?;
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `client` (default) | [`HttpClient`] |
//! | `openai` | `OpenAiLayer`: chat completions of OpenAI and compatible services |
//! | `responses` | `OpenAiResponsesLayer`: OpenAI's Responses API; implies `openai` |
//! | `anthropic` | `AnthropicLayer` |
//! | `gemini` | `GeminiLayer` |
//! | `ollama` | `OllamaLayer` |
//! | `activities` | embeddings, images, moderation, speech and transcription; implies `openai` |
//! | `full` | all of these |
//!
//! The future of a call resolves when the first content of the model arrives. Until then, errors (a
//! rejected key, a rate limit, a broken connection) are returned by the future; later errors are
//! the last item of the body. A body that ends without the service's terminal event fails with
//! [`ErrorKind::Truncated`](concentric_core::ErrorKind::Truncated), even if the connection was
//! closed cleanly.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, reason = "one API uses a part of what all of them share")
)]
#![allow(
    unnameable_types,
    reason = "the API types are an implementation detail of the models"
)]

#[cfg(feature = "activities")]
pub mod activity;
#[cfg(feature = "anthropic")]
pub mod anthropic;
mod api;
mod calls;
mod capabilities;
pub mod catalogue;
#[cfg(feature = "client")]
pub mod client;
mod data_url;
mod failure;
mod fields;
mod functions;
#[cfg(feature = "gemini")]
pub mod gemini;
mod history;
mod key;
mod lenient;
mod limits;
pub mod model;
#[cfg(feature = "ollama")]
pub mod ollama;
#[cfg(feature = "openai")]
pub mod openai;
mod rate_limits;
mod repair;
#[cfg(feature = "responses")]
pub mod responses;
mod retry_after;
mod schema;
mod scrub;
mod sound;
mod sse;
#[doc = include_str!("support.md")]
#[doc = include_str!("sent.md")]
pub mod support {}
pub mod supports;
mod timeouts;

#[cfg(feature = "anthropic")]
pub use self::anthropic::AnthropicLayer;
#[cfg(feature = "client")]
pub use self::client::HttpClient;
#[cfg(feature = "gemini")]
pub use self::gemini::GeminiLayer;
#[cfg(feature = "ollama")]
pub use self::ollama::OllamaLayer;
#[cfg(feature = "openai")]
pub use self::openai::OpenAiLayer;
#[cfg(feature = "responses")]
pub use self::responses::OpenAiResponsesLayer;
pub use self::{
    capabilities::{Capabilities, Sources, Unsupported},
    catalogue::Catalogue,
    key::ApiKey,
    limits::Limits,
    model::{Model, ProviderLayer},
    timeouts::Timeouts,
};
