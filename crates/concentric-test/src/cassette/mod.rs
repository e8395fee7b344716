//! Recording HTTP traffic to a file, and replaying it in tests.
//!
//! [`RecordLayer`] wraps the HTTP client, inside the provider's layer, and records each request and
//! its response in a file. [`ReplayLayer`] takes the same place and responds from the file.
//!
//! ```
//! use bytes::Bytes;
//! use concentric_core::{ChatRequest, Error};
//! use concentric_providers::{ApiKey, OpenAiLayer};
//! use concentric_test::cassette::{RecordLayer, ReplayLayer};
//! use http_body_util::Full;
//! use std::convert::Infallible;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = std::env::temp_dir().join(format!("concentric-cassette-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir)?;
//! # let path = dir.join("hello.jsonl");
//! // Any HTTP service: a client, or the whole stack under the provider.
//! let client = service_fn(|_: http::Request<Full<Bytes>>| async {
//!     let json = r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#;
//!     Ok::<_, Infallible>(http::Response::new(Full::from(json)))
//! });
//! let recorder = RecordLayer::new(&path);
//! let model = ServiceBuilder::new()
//!     .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("sk-a-real-key")))
//!     .layer(recorder.clone())
//!     .service(client);
//! let answer = model.oneshot(ChatRequest::user("hi")).await?.text().await?;
//! recorder.save()?;
//!
//! // In a test, with no network and no key.
//! let replay = ReplayLayer::load(&path)?;
//! let model = ServiceBuilder::new()
//!     .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("none")))
//!     .layer(replay.clone())
//!     .service(());
//! assert_eq!(model.oneshot(ChatRequest::user("hi")).await?.text().await?, answer);
//! assert_eq!(replay.unused(), 0);
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Recordings
//!
//! The file has one line of JSON per call, in the order of the calls. It is replaced atomically
//! whenever a call ends, so that it is complete at any time.
//!
//! | the call | is recorded as |
//! |---|---|
//! | reads its body to the end | finished |
//! | fails, before the response head or after | failed, with the kind of the [`Error`](concentric_core::Error) and its message |
//! | is dropped before its end | dropped, with the bytes received until then |
//! | has a body that is compressed or larger than 64 MiB | lost, without its body |
//!
//! A provider's layer does not read beyond the terminal event of a stream, so a complete response
//! may be recorded as dropped. It is replayed in the same way: the layer does not read the rest.
//!
//! Bodies are passed on in the same chunks as they arrive. The boundaries of the chunks are
//! recorded; their times are recorded [on request](RecordLayer::times).
//!
//! # Secrets
//!
//! [`Redaction`] removes secrets before anything is written. A secret in a response is found if it
//! is contiguous, not if it is spread over several events. Compressed bodies, of requests and
//! responses, cannot be searched and are not recorded.
//!
//! # Matching
//!
//! A request matches a recording with the same method, path, query (in any order) and body; JSON
//! bodies are compared by value. Host and headers do not count. Equal requests are answered in the
//! order of their recordings, and each recording is used once unless [`reuse`](ReplayLayer::reuse)
//! is set. Parts that change with every request can be [ignored](ReplayLayer::ignore). A request
//! without a match fails with
//! [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration) and the code
//! `no_recording`; the message has the first difference to the nearest recording, as a JSON pointer
//! and both values.

mod canonical;
mod record;
mod redaction;
mod replay;
mod scan;
mod tape;

pub use self::{
    record::{Record, RecordBody, RecordFuture, RecordLayer},
    redaction::Redaction,
    replay::{Replay, ReplayBody, ReplayLayer},
};
