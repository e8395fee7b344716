//! Shared parts of the examples: tools over a folder of files, the choice of a model, an offline
//! model, and terminal output.

pub mod files;
pub mod local;
pub mod model;
pub mod offline;
pub mod provider;
pub mod services;
pub mod store;
pub mod terminal;
