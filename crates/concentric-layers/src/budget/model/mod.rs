//! The layer around a model: reserves an estimate before each call, and settles it when the
//! response ends.

mod body;
mod future;
mod service;
mod spending;

pub use self::{body::ModelBudgetBody, future::ResponseFuture, service::ModelBudget};
