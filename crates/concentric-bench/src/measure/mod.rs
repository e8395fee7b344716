//! Measurement of instructions, times and allocations.

pub(crate) mod heap;
pub(crate) mod instructions;
pub(crate) mod sdk;
pub(crate) mod time;
