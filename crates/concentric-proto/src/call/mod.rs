//! Tool calls: their state, and the calls of a round as the loop passes them to a round service.

mod clearance;
mod decide;
mod refusal;
mod round;
mod state;
#[cfg(test)]
mod tests;

pub use self::{
    clearance::Clearance,
    refusal::{LimitScope, Refusal},
    round::{Delivery, RoundCall, RoundEvent},
    state::{CallResume, CallStage, CallState, EarlierAttempt, Unverified},
};
