//! From the events of a run to those of the protocol.

mod interrupt;
mod lane;
mod names;
mod state;
mod subagents;
mod translate;

pub(super) use self::{
    lane::STATUS,
    names::{KnownCall, Names, RunIds, original},
    translate::Translator,
};
