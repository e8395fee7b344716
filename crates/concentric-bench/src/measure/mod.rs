//! How it is measured.

pub(crate) mod heap;
pub(crate) mod instructions;
pub(crate) mod sdk;
pub(crate) mod time;
