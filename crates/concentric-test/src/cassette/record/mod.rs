mod body;
mod call;
mod future;
mod layer;
mod service;

pub use self::{body::RecordBody, future::RecordFuture, layer::RecordLayer, service::Record};
