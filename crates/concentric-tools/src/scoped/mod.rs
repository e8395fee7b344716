//! A layer that applies to some of the tool calls.
//!
//! ```
//! use concentric_tools::{Matcher, NoArguments, ScopedExt, Toolset, tool};
//! use std::time::Duration;
//! use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};
//!
//! let tools = Toolset::new()
//!     .tool(tool("search", "", |NoArguments {}| async { "found" }).read_only())
//!     .tool(tool("refund", "", |NoArguments {}| async { "paid" }))
//!     // Calls with side effects run one at a time.
//!     .layer(ConcurrencyLimitLayer::new(1).scoped(Matcher::effects()))
//!     .layer(TimeoutLayer::new(Duration::from_secs(5)).scoped("search"));
//! # let _ = tools;
//! ```
//!
//! | the call | path |
//! |---|---|
//! | matches | through the layer |
//! | does not match | directly to the inner service |
//! | makes the [matcher](crate::Matcher) fail | through the layer |
//!
//! # Place in the stack
//!
//! At the place of the wrapped layer. Refused and denied calls do not reach it. A layer for a
//! single tool can also be added to that tool ([`Tool::layer`](crate::Tool::layer)), and then
//! applies in every toolset.
//!
//! # Backpressure
//!
//! Always ready: the call determines which of two services is used. The call's future waits until a
//! clone of that service is ready, and holds no permit of the other.

mod future;
mod layer;
mod service;

pub use self::{
    future::ResponseFuture,
    layer::{ScopedExt, ScopedLayer},
    service::Scoped,
};

pub(crate) use self::service::applies;
