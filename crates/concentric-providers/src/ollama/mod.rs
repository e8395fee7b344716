//! Ollama's native API: `/api/chat` and `/api/generate`.
//!
//! The server also provides OpenAI's chat completions API. Only the native API has settings for the
//! time that a model stays loaded (`keep_alive`) and the context size (`options.num_ctx`), and
//! supports reasoning and tool results by name.
//!
//! ```
//! # use concentric_core::ChatRequest;
//! # use concentric_providers::OllamaLayer;
//! let layer = OllamaLayer::new("qwen3");
//! let mut request = ChatRequest::user("hi");
//! let options = serde_json::json!({"keep_alive": "10m", "options": {"num_ctx": 16_384}});
//! request.options_mut().provider = serde_json::from_value(options).unwrap();
//! ```
//!
//! # Lifecycle
//!
//! In addition to the [lifecycle of every model](crate::model):
//!
//! | moment | effect |
//! |---|---|
//! | first text, thinking or tool call | the future resolves |
//! | an earlier error | the future fails: with the HTTP status, or with an `error` line in a body of status 200 |
//! | a line with `done` | tool calls are emitted, then `Finish`; later lines are ignored |
//! | end of the body before one | `Truncated`, and no tool call |
//!
//! A tool call arrives complete, in a single line. It gets an id of the run; the server's id, which
//! older versions do not send, is available as
//! [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # Request mapping
//!
//! | Concentric | Ollama |
//! |---|---|
//! | `max_output_tokens` | `options.num_predict` |
//! | `temperature`, `top_p`, `seed`, `stop`, penalties | `options`, with the same names |
//! | `reasoning_effort` | `think`: `none` becomes `false`; `low`, `medium`, `high` and `max` are supported |
//! | `output_schema` | `format`; not supported with tools, since it would prevent calls |
//! | tools | their schemas, limited to the supported keywords, with references replaced |
//! | `ToolChoice::None` | the tools are omitted; a forced call is rejected |
//! | images | base64 only; they follow the text of their message |
//! | provider options | sent unchanged, and take precedence; `options` is merged field by field |
//!
//! # Usage
//!
//! | Ollama | [`Usage`](concentric_core::Usage) |
//! |---|---|
//! | `prompt_eval_count` | `input_tokens` |
//! | `prompt_eval_cached_count`, which is part of the former | `cached_input_tokens` |
//! | `eval_count`, including thinking | `output_tokens` |
//! | `*_duration` | not reported: a layer around the model can measure the time |
//!
//! Wire format: <https://docs.ollama.com/api/chat>.

mod api;
mod decoder;
mod host;
mod message;
mod request;
mod schema;
mod wire;

pub(crate) use self::api::Ollama;
pub use self::api::OllamaLayer;
