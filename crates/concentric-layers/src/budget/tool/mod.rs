//! Around a tool: each call is reserved before it is made, and settled when it is over.

mod future;
mod service;

pub use self::{future::ResponseFuture, service::ToolBudget};
