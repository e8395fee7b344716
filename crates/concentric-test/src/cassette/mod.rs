//! Traffic with a real service, recorded once and replayed ever after.
//!
//! [`RecordLayer`] stands around the HTTP client, under the provider's layer, and keeps each request
//! and its answer in a file. [`ReplayLayer`] stands in the same place and answers from the file.
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
//! # What is recorded
//!
//! The file is of lines of JSON, one for each call, in the order of the calls. Whenever a call is over
//! it is written anew beside the old one and put in its place, so that it is whole at any time.
//!
//! | the call | is kept as |
//! |---|---|
//! | ends with its body | finished |
//! | fails, before its head or after | failed, with the kind of the [`Error`](concentric_core::Error) and its message |
//! | is dropped before its end | dropped, with what came until then |
//! | has a body that is compressed or larger than 64 MiB | lost, without its body |
//!
//! A provider's layer reads no further than the service's last word, so that an answer may be whole
//! and dropped. It is replayed in the same way: what comes after the last word is not read.
//!
//! Bodies are handed on as they come, in the same pieces; where these ended is recorded, and when
//! they came [if asked](RecordLayer::times).
//!
//! # Secrets
//!
//! [`Redaction`] takes out what must not be kept before anything is written. A secret that a model
//! repeats is found if it is whole, and not if it comes in several events. In a compressed body none
//! is found, so that it is not kept, neither a request's nor an answer's.
//!
//! # Which recording answers
//!
//! One whose request is the same: by method, path, query in any order, and body, if it is JSON by its
//! meaning. Host and headers don't count. Equal requests are answered in the order in which they were
//! recorded, each recording once unless [told otherwise](ReplayLayer::reuse). What differs each time
//! can be [ignored](ReplayLayer::ignore). Where there is none, the call fails with
//! [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration), the code
//! `no_recording`, and the first difference to the nearest one: a JSON pointer and both values.

mod canonical;
mod record;
mod redaction;
mod replay;
mod tape;

pub use self::{
    record::{Record, RecordBody, RecordFuture, RecordLayer},
    redaction::Redaction,
    replay::{Replay, ReplayBody, ReplayLayer},
};
