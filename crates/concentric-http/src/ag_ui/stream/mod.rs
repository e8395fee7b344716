//! From the events of a run to those of the protocol.

mod names;
mod state;
mod translate;

pub(super) use self::{
    names::{Names, RunIds},
    translate::{STATUS, Translator},
};
