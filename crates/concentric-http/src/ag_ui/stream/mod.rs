//! From the events of a run to those of the protocol.

mod interrupt;
mod names;
mod state;
mod translate;

pub(super) use self::{
    names::{KnownCall, Names, RunIds, original},
    translate::{STATUS, Translator},
};
