//! Embeddings, images, moderation, speech and transcription at services with OpenAI's API.
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
//! | [`OpenAiLayer::moderation`] | [`ModerationRequest`] | `/moderations` | [`Moderation`]s |
//! | [`OpenAiLayer::speech`] | [`SpeechRequest`] | `/audio/speech` | bytes of audio |
//! | [`OpenAiLayer::transcription`] | [`TranscriptionRequest`] | `/audio/transcriptions` | text |
//!
//! The settings of [`ProviderLayer`](crate::ProviderLayer) apply, except `streaming` and
//! `capabilities`. `observe` of `concentric-layers` and tower's layers work around these services.
//!
//! # Moderation
//!
//! With tower's `map_request` and `map_response`, moderation is a classifier of `GuardrailLayer`, in
//! `concentric-layers`. A threshold per category is the caller's choice:
//!
//! ```
//! use concentric_core::{BoxModel, Str};
//! use concentric_layers::guardrail::{Assessment, GuardrailLayer, Input, Output, Subject};
//! use concentric_providers::OpenAiLayer;
//! use concentric_providers::activity::{ActivityResponse, Moderation, ModerationRequest};
//! use tower::{ServiceBuilder, service_fn};
//!
//! fn threshold(category: &str) -> Option<f64> {
//!     match category {
//!         "self-harm/intent" => Some(0.2),
//!         "violence" => Some(0.8),
//!         // As the service decides.
//!         _ => None,
//!     }
//! }
//!
//! fn request(subject: Subject) -> ModerationRequest {
//!     ModerationRequest::new([subject.text]).images(subject.images).with_context(subject.context)
//! }
//!
//! fn assessment(response: ActivityResponse<Vec<Moderation>>) -> Assessment {
//!     let categories: Vec<Str> = response.output.iter().flat_map(|it| it.over(threshold)).collect();
//!     match categories.is_empty() {
//!         true => Assessment::Pass,
//!         false => Assessment::Block(categories),
//!     }
//! }
//!
//! # use concentric_core::{ChatRequest, Error};
//! # use concentric_layers::guardrail::BLOCKED;
//! # use concentric_providers::ApiKey;
//! # use concentric_test::ScriptedModel;
//! # use http_body_util::Full;
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! # let key = ApiKey::new("the key");
//! # let http = service_fn(async |_: http::Request<Full<bytes::Bytes>>| {
//! #     let answer = r#"{"results": [{"flagged": false, "categories": {"violence": false},
//! #                                   "category_scores": {"violence": 0.9}}]}"#;
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! # });
//! # let agent = BoxModel::new(ScriptedModel::new().text("hi"));
//! let moderation = ServiceBuilder::new()
//!     .map_request(request)
//!     .map_response(assessment)
//!     // Layers here, such as a limit on concurrent calls, apply to the moderation.
//!     .layer(OpenAiLayer::new("omni-moderation-latest", key).moderation())
//!     .service(http);
//! let agent = ServiceBuilder::new()
//!     .layer(
//!         GuardrailLayer::new("moderation", moderation)
//!             .input(Input::Parallel)
//!             .output(Output::windows(400, 100)),
//!     )
//!     .service(agent);
//! # let error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
//! # assert_eq!(error.code(), Some(BLOCKED));
//! # Ok(())
//! # }
//! ```
//!
//! OpenAI accepts one image in a request, of up to 20 MB. A subject with more cannot be judged: by default, the
//! guardrail blocks it.
//!
//! # Errors
//!
//! A request that is invalid, or that the service is known not to [support](ActivityLayer::is_supported), fails
//! before it is sent. So does a text to moderate of more than 1 MiB, with
//! [`TooLarge`](concentric_core::ErrorKind::TooLarge): a part of a text is not judged in its place. Other errors are
//! those of a model; the future resolves when the response is complete.
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
        ActivityRequest, ActivityResponse, EmbeddingRequest, ImageRequest, Moderation,
        ModerationRequest, SpeechRequest, TranscriptionRequest,
    },
};
#[cfg(doc)]
use crate::OpenAiLayer;
