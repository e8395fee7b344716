mod body;
mod layer;
mod service;

pub use self::{body::ReplayBody, layer::ReplayLayer, service::Replay};
