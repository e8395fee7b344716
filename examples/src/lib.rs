//! Shared parts of the examples: local servers, a store, and stand-ins for the providers' services.

pub mod local;
pub mod services;
pub mod spans;
pub mod store;
