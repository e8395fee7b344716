//! Google's Gemini models, by `generateContent`: the Gemini API, and Vertex AI.
//!
//! [`GeminiLayer`] makes of an HTTP service a model: each call is one `POST`, whose answer is read
//! as it arrives. The layer retries nothing and follows no redirect: those are layers of their own,
//! above or below.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, GeminiLayer};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; here one that always says the same.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert!(request.uri().path().ends_with("/models/gemini-3.5-flash:streamGenerateContent"));
//!     let answer = r#"{"candidates": [{"content": {"parts": [{"text": "Hello!"}]}, "finishReason": "STOP"}]}"#;
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let model = ServiceBuilder::new()
//!     .layer(GeminiLayer::new("gemini-3.5-flash", ApiKey::new("the key")))
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
//! | first text, thought, call, media | the future resolves |
//! | an error before | the future fails: by the status, or by what the body says under a 200 |
//! | the prompt is blocked (`promptFeedback.blockReason`) | [`ErrorKind::ContentFilter`](concentric_core::ErrorKind::ContentFilter), the reason as its code |
//! | the answer is blocked (`SAFETY`, `RECITATION`, …) | [`FinishReason::ContentFilter`](concentric_core::FinishReason::ContentFilter), after what was let through |
//! | an error after | the body's last item |
//! | the body ends after a `finishReason` | tool calls are emitted, then `Finish` |
//! | the body ends before one | `Truncated`, and no tool call |
//! | nothing for too long ([`Timeouts`](crate::Timeouts)) | an error, by either way |
//! | dropped | so is the HTTP body |
//!
//! What counts as the end is the first candidate's `finishReason`; what follows it still counts, up
//! to the end of the body, since usage, sources and a second thought about the reason come last. An
//! answer that was not asked for as a stream is whole when its JSON is. Event streams and JSON
//! arrays are told by their content. Other candidates than the first are not read.
//!
//! # Signatures
//!
//! A `thoughtSignature`, and whatever else the service sends with a part that is nobody else's to
//! understand, is kept with the part and sent back on the same one. A signed part is never joined
//! with another. Gemini 3 and later refuse a call without one; where somebody else made the call,
//! `skip_thought_signature_validator` stands in its place, as
//! [the service wants it](https://ai.google.dev/gemini-api/docs/thought-signatures). The Gemini API
//! and Vertex AI do not take each other's signatures, and are two providers.
//!
//! # Usage
//!
//! | ours | the service's |
//! |---|---|
//! | `input_tokens` | `promptTokenCount`, the cached ones among them |
//! | `output_tokens` | `candidatesTokenCount` + `thoughtsTokenCount` |
//! | `reasoning_tokens` | `thoughtsTokenCount` |
//! | `cached_input_tokens` | `cachedContentTokenCount` |
//! | `input_audio_tokens`, `output_audio_tokens` | those of the modality `AUDIO` in `promptTokensDetails` and `candidatesTokensDetails` |
//! | `total_tokens` | `totalTokenCount`, in which `toolUsePromptTokenCount` is counted too: what the service's own tools read |
//!
//! # Requests
//!
//! The [`provider`](concentric_core::ChatOptions::provider) options are fields of the request;
//! those of `generationConfig` and `toolConfig` are joined with ours, and win. `safetySettings`,
//! `cachedContent`, `serviceTier` and Vertex's `labels` are set so. Metadata is not sent.
//!
//! [`reasoning_effort`](concentric_core::ChatOptions::reasoning_effort) is a `thinkingLevel` for
//! Gemini 3 and later; for Gemini 2.5 it is the `thinkingBudget` that Google's own
//! [OpenAI endpoint](https://ai.google.dev/gemini-api/docs/openai) takes it for (`none` 0, `minimal`
//! and `low` 1,024, `medium` 8,192, `high` 24,576). A number is a budget in tokens for both. Where
//! there is an effort, the service is asked to show its thoughts.
//!
//! Schemas go out as they are from Gemini 2.5 on (`parametersJsonSchema`, `responseJsonSchema`).
//! Older models are told in the subset of OpenAPI that they know; what is not in it is said in the
//! description. A message by [`Role::System`](concentric_core::Role::System) within a conversation
//! is sent as the user's.
//!
//! # Place in the stack
//!
//! The innermost layer that knows of chats; under it are only layers of HTTP.

mod api;
mod decoder;
mod family;
mod metadata;
mod partial;
mod request;
mod wire;

pub use self::api::{Gemini, GeminiLayer, GenerateContent};
