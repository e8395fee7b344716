//! The calls of a round, as the loop hands them out.

mod permit;
mod refusal;
mod round;

pub use self::{
    permit::Permit,
    refusal::{LimitOf, Refusal},
    round::{Origin, RoundCall, RoundEvent},
};
