//! Translation of a run's events to protocol events.

mod interrupt;
mod lane;
mod names;
mod state;
mod subagents;
mod translate;

pub(super) use self::{
    lane::{STATUS, WireIds, push_turn},
    names::{KnownCall, Names, RunIds, original},
    state::Operation,
    translate::{Translator, conflict, name_taken, stopped},
};
