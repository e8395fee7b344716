//! Around a model: each call is reserved before it is made, and settled when its answer ends.

mod body;
mod future;
mod service;
mod spending;

pub use self::{body::ModelBudgetBody, future::ResponseFuture, service::ModelBudget};
