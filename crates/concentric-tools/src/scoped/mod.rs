//! A layer for some of the tool calls.
//!
//! ```
//! use concentric_tools::{Matcher, NoArguments, ScopedExt, Toolset, tool};
//! use std::time::Duration;
//! use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};
//!
//! let tools = Toolset::new()
//!     .tool(tool("search", "", |NoArguments {}| async { "found" }).read_only())
//!     .tool(tool("refund", "", |NoArguments {}| async { "paid" }))
//!     // What may change something runs one by one.
//!     .layer(ConcurrencyLimitLayer::new(1).scoped(Matcher::effects()))
//!     .layer(TimeoutLayer::new(Duration::from_secs(5)).scoped("search"));
//! # let _ = tools;
//! ```
//!
//! | the call | goes |
//! |---|---|
//! | matches | through the layer |
//! | does not | straight to what is inside of it |
//! | is one that the [matcher](crate::Matcher) fails on | through the layer |
//!
//! # Place in the stack
//!
//! Where the layer would stand. Calls that the loop refused, or that were denied, do not come here. A
//! layer for one tool can also be given to
//! that tool ([`Tool::layer`](crate::Tool::layer)), which then is called with it wherever it is.
//!
//! # Backpressure
//!
//! It is always ready: which of two services a call goes to is not known before there is one. The
//! call's future waits until a clone of that service is ready, and holds no permit of the other.

mod future;
mod layer;
mod service;

pub use self::{
    future::ResponseFuture,
    layer::{ScopedExt, ScopedLayer},
    service::Scoped,
};
