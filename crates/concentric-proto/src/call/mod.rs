//! Tool calls: their state, and the calls of a round as the loop passes them to a round service.

mod decide;
mod permit;
mod refusal;
mod round;
mod state;
#[cfg(test)]
mod tests;

pub use self::{
    permit::Permit,
    refusal::{LimitOf, Refusal},
    round::{Origin, RoundCall, RoundEvent},
    state::{CallResume, CallStage, CallState, EarlierAttempt, Unverified},
};
