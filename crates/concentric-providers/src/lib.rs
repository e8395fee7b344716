//! Model providers for Concentric: each a layer that makes a model of an HTTP service.
//!
//! A provider's layer goes over any `Service<http::Request<Full<Bytes>>>`, so that whatever the
//! HTTP ecosystem has (tracing, signing, proxies, recording, a test double) stands under it as one
//! more layer. [`HttpClient`] (feature `client`) is a default to end the stack with.
//!
//! ```no_run
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
//! ```
//!
//! The future of a call resolves when the model's first content is there, and until then an error
//! is the future's: a refused key, a full rate limit, a connection that breaks. After that it is
//! the last item of the body. A body that ends without the service's terminal event fails with
//! [`ErrorKind::Truncated`](concentric_core::ErrorKind::Truncated), however cleanly the connection
//! was closed.

#![allow(
    unnameable_types,
    reason = "what an API is to a model is nobody else's to name"
)]

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
pub mod gemini;
mod history;
mod key;
mod lenient;
mod limits;
pub mod model;
pub mod ollama;
pub mod openai;
mod repair;
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

#[cfg(feature = "client")]
pub use self::client::HttpClient;
pub use self::{
    anthropic::AnthropicLayer,
    capabilities::{Capabilities, Sources, Unsupported},
    catalogue::Catalogue,
    gemini::GeminiLayer,
    key::ApiKey,
    limits::Limits,
    model::{Model, ProviderLayer},
    ollama::OllamaLayer,
    openai::OpenAiLayer,
    responses::OpenAiResponsesLayer,
    timeouts::Timeouts,
};
