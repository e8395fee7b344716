//! What the examples share: tools over a folder of files, a model that runs offline, and a terminal
//! to show a run in.

pub mod files;
pub mod local;
pub mod model;
pub mod offline;
pub mod provider;
pub mod services;
pub mod store;
pub mod terminal;
