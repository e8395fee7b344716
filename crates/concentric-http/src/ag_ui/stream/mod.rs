//! Translation of a run's events to protocol events.

mod interrupt;
mod lane;
mod state;
mod subagents;
mod translate;

pub(super) use self::{
    lane::{WireIds, push_turn},
    state::Operation,
    translate::{FORMAT, Translator, stopped_as},
};
