//! The calls of a round, as the loop passes them to a round service.

mod permit;
mod refusal;
mod round;

pub use self::{
    permit::Permit,
    refusal::{LimitOf, Refusal},
    round::{Origin, RoundCall, RoundEvent},
};
