//! The layer around a tool: reserves each call before it starts, and settles it when it ends.

mod future;
mod service;

pub use self::{future::ResponseFuture, service::ToolBudget};
