//! Ollama's own API: `/api/chat`, and `/api/generate`.
//!
//! [`OllamaLayer`] makes of an HTTP service a model: each call is one `POST`, whose answer is read
//! line by line as it arrives. The server also speaks OpenAI's chat completions; its own API has
//! what those have not: how long a model stays loaded (`keep_alive`), the size of its context
//! (`options.num_ctx`), what it thinks, and tools' results by name.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::OllamaLayer;
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Any HTTP client that is a service; here one that always says the same.
//! let http = service_fn(async |request: http::Request<Full<bytes::Bytes>>| {
//!     assert_eq!(request.uri(), "http://localhost:11434/api/chat");
//!     let answer = concat!(
//!         r#"{"message": {"role": "assistant", "content": "Hel"}, "done": false}"#, "\n",
//!         r#"{"message": {"role": "assistant", "content": "lo!"}, "done": true}"#, "\n",
//!     );
//!     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
//! });
//! let model = ServiceBuilder::new()
//!     .layer(OllamaLayer::new("qwen3"))
//!     .service(http);
//! let mut request = ChatRequest::user("hi");
//! let options = serde_json::json!({"keep_alive": "10m", "options": {"num_ctx": 16_384}});
//! request.options_mut().provider = serde_json::from_value(options).unwrap();
//! assert_eq!(model.oneshot(request).await?.text().await?, "Hello!");
//! # Ok(())
//! # }
//! ```
//!
//! # When
//!
//! | moment | what happens |
//! |---|---|
//! | `call` | the HTTP service is called at once, with its readiness |
//! | first text, thinking, tool call | the future resolves |
//! | an error before | the future fails: by the status, or by a line with `error` under a 200 |
//! | an error after | the body's last item |
//! | a line that is `done` | tool calls are emitted, then `Finish`; what follows is not read |
//! | the body ends before one | `Truncated`, and no tool call |
//! | nothing for too long ([`Timeouts`](crate::Timeouts)) | an error, by either way |
//! | dropped | so is the HTTP body, on which the server stops to write |
//!
//! A tool call comes whole, in one line. It gets an id of ours; the server's, which older versions
//! do not give, is its [`provider_id`](concentric_core::ToolCallPart::provider_id).
//!
//! # What is asked for, and how
//!
//! | of a request | on the wire |
//! |---|---|
//! | `max_output_tokens` | `options.num_predict` |
//! | `temperature`, `top_p`, `seed`, `stop`, penalties | `options`, under their names |
//! | `reasoning_effort` | `think`: `none` is `false`; `low`, `medium`, `high`, `max`; no other |
//! | `output_schema` | `format`; not beside tools, since it would keep the model from calling one |
//! | tools | their schemas in the words that the server reads; references are written out |
//! | `ToolChoice::None` | the tools are left out; to be told to call one is refused |
//! | images | in base64 only; they follow the text of their message |
//! | provider options | as they are, and they win; those in `options` one by one |
//!
//! # Usage
//!
//! | of the answer | in [`Usage`](concentric_core::Usage) |
//! |---|---|
//! | `prompt_eval_count` | `input_tokens` |
//! | `prompt_eval_cached_count`, which the former includes | `cached_input_tokens` |
//! | `eval_count`, thinking included | `output_tokens` |
//! | `*_duration` | nowhere: a layer around the model can take the time |
//!
//! Wire format: <https://docs.ollama.com/api/chat>.
//!
//! # Place in the stack
//!
//! The innermost layer that knows of chats; under it are only layers of HTTP.

mod api;
mod decoder;
mod host;
mod message;
mod request;
mod schema;
mod wire;

pub use self::api::{Ollama, OllamaLayer, OllamaModel};
