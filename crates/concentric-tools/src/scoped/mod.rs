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
//! # Hooks
//!
//! A scoped [`Hooks`](concentric_core::Hooks) value is a plugin. Its methods for tool calls are
//! called for the calls that match; the others, which have no call, are called as always:
//!
//! ```
//! # #[cfg(feature = "skills")]
//! # mod example {
//! use concentric_core::{AgentLayer, Hooks};
//! use concentric_tools::{Matcher, ScopedExt, Skills, Toolset};
//!
//! fn agent(tools: Toolset, skills: &Skills, audit: impl Hooks + Clone) {
//!     let global = AgentLayer::new(tools.clone()).with(audit.clone());
//!     let group = AgentLayer::new(tools.clone()).with(audit.clone().scoped(Matcher::group("files")));
//!     let skill = AgentLayer::new(tools.clone()).with(audit.clone().scoped(skills.active("review")));
//!     let function = AgentLayer::new(tools).with(audit.scoped("read_file"));
//! #   let _ = (global, group, skill, function);
//! }
//! # }
//! ```
//!
//! An empty list, and a name or a pattern that no tool of the toolset has, are configuration errors
//! for hooks ([`Toolset::check`](crate::Toolset::check)). Other layers are not checked: a layer with
//! such a scope is never called.
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

use self::service::applies;
