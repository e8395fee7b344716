//! Embeddings, images, speech and transcription at services with OpenAI's API.
//!
//! Each is a service from a typed request to an [`ActivityResponse`], over the same HTTP services as
//! the models: recordings, timeouts, limits, errors and secrets are handled in the same way.
//!
//! ```
//! use concentric_core::Error;
//! use concentric_providers::{ApiKey, OpenAiLayer, activity::EmbeddingRequest};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; this one always returns the same response.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert_eq!(request.uri(), "https://api.openai.com/v1/embeddings");
//!     let answer = r#"{"data": [{"index": 0, "embedding": [0.5, -1.0]}],
//!                      "usage": {"prompt_tokens": 2, "total_tokens": 2}}"#;
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let layer = OpenAiLayer::new("text-embedding-3-small", ApiKey::new("the key")).embeddings();
//! let embeddings = ServiceBuilder::new().layer(layer).service(http);
//! let response = embeddings.oneshot(EmbeddingRequest::new(["hi"])).await?;
//! assert_eq!(response.output, [[0.5, -1.0]]);
//! assert_eq!(response.usage.input_tokens(), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! | layer | request | path | output |
//! |---|---|---|---|
//! | [`OpenAiLayer::embeddings`] | [`EmbeddingRequest`] | `/embeddings` | a vector per input |
//! | [`OpenAiLayer::images`] | [`ImageRequest`] | `/images/generations` | media |
//! | [`OpenAiLayer::speech`] | [`SpeechRequest`] | `/audio/speech` | bytes of audio |
//! | [`OpenAiLayer::transcription`] | [`TranscriptionRequest`] | `/audio/transcriptions` | text |
//!
//! The settings of [`ProviderLayer`](crate::ProviderLayer) apply, except `streaming` and
//! `capabilities`. `observe` of `concentric-layers` and tower's layers work around these services.
//!
//! # Errors
//!
//! A request that is invalid, or that the service is known not to
//! [support](ActivityLayer::is_supported), fails before it is sent. Other errors are those of a model;
//! the future resolves when the response is complete.
//!
//! # Cancel safety
//!
//! Dropping the future drops the HTTP call. The deadline of the request's context applies.

mod future;
mod layer;
mod request;

pub use self::{
    future::ActivityFuture,
    layer::{Activity, ActivityLayer},
    request::{
        ActivityRequest, ActivityResponse, EmbeddingRequest, ImageRequest, SpeechRequest,
        TranscriptionRequest,
    },
};
#[cfg(doc)]
use crate::OpenAiLayer;
