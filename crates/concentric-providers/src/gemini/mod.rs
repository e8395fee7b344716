//! Google's Gemini models with `generateContent`: the Gemini API and Vertex AI.
//!
//! ```
//! # use concentric_providers::{ApiKey, GeminiLayer};
//! let layer = GeminiLayer::new("gemini-3.5-flash", ApiKey::new("the key"));
//! ```
//!
//! # Lifecycle
//!
//! In addition to the [lifecycle of every model](crate::model):
//!
//! | moment | effect |
//! |---|---|
//! | first text, thought, call or medium | the future resolves |
//! | an earlier error | the future fails: with the HTTP status, or with an error in a body of status 200 |
//! | the prompt is blocked (`promptFeedback.blockReason`) | [`ErrorKind::ContentFilter`](concentric_core::ErrorKind::ContentFilter), with the reason as the code |
//! | the response is blocked (`SAFETY`, `RECITATION`, …) | [`FinishReason::ContentFilter`](concentric_core::FinishReason::ContentFilter), after the content that was not blocked |
//! | end of the body after a `finishReason` | tool calls are emitted, then `Finish` |
//! | end of the body before one | `Truncated`, and no tool call |
//!
//! A response is complete at the `finishReason` of the first candidate. Later chunks are still
//! processed up to the end of the body, since usage, sources and an updated reason may follow.
//! Without streaming, a response is complete if its JSON is. Event streams and JSON arrays are
//! detected by their content. Candidates other than the first are ignored.
//!
//! # Signatures
//!
//! A `thoughtSignature`, like all provider-specific fields of a part, is stored with the part and
//! sent back with the same part. A signed part is never merged with another. Gemini 3 and later
//! reject a call without a signature; for a call by another provider's model,
//! `skip_thought_signature_validator` is sent instead, as [documented by the
//! service](https://ai.google.dev/gemini-api/docs/thought-signatures). The Gemini API and Vertex AI
//! do not accept each other's signatures, and are separate providers.
//!
//! # Usage
//!
//! | Concentric | Gemini |
//! |---|---|
//! | `input_tokens` | `promptTokenCount`, including cached tokens |
//! | `output_tokens` | `candidatesTokenCount` + `thoughtsTokenCount` |
//! | `reasoning_tokens` | `thoughtsTokenCount` |
//! | `cached_input_tokens` | `cachedContentTokenCount` |
//! | `input_audio_tokens`, `output_audio_tokens` | those of the modality `AUDIO` in `promptTokensDetails` and `candidatesTokensDetails` |
//! | `total_tokens` | `totalTokenCount`, which includes `toolUsePromptTokenCount`, the input of the service's tools |
//!
//! # Request mapping
//!
//! The [`provider`](concentric_core::ChatOptions::provider) options are fields of the request;
//! those in `generationConfig` and `toolConfig` are merged with the generated ones, and take
//! precedence. Use them for `safetySettings`, `cachedContent`, `serviceTier` and `labels` of Vertex
//! AI. Metadata are not sent.
//!
//! [`reasoning_effort`](concentric_core::ChatOptions::reasoning_effort) becomes a `thinkingLevel`
//! for Gemini 3 and later, and a `thinkingBudget` for Gemini 2.5, with the values of Google's own
//! [OpenAI endpoint](https://ai.google.dev/gemini-api/docs/openai) (`none` 0, `minimal` and `low`
//! 1,024, `medium` 8,192, `high` 24,576). A number is a budget in tokens for both. With an effort,
//! thoughts are included in the response.
//!
//! From Gemini 2.5 on, schemas are sent unchanged (`parametersJsonSchema`, `responseJsonSchema`).
//! For older models, they are converted to the supported subset of OpenAPI; unsupported constraints
//! are added to the description. A message with [`Role::System`](concentric_core::Role::System)
//! within a conversation is sent as a user message.

mod api;
mod decoder;
mod family;
mod metadata;
mod partial;
mod request;
mod wire;

pub use self::api::GeminiLayer;
pub(crate) use self::api::GenerateContent;
