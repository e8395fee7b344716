//! The events of runs, kept in memory.

mod body;
mod hub;
mod run_log;
mod writer;

pub(crate) use self::{
    body::LogBody,
    hub::{Hub, Limits},
    run_log::{After, Format, Read, Reader, RunLog, Unreadable},
    writer::{Offer, Writer},
};
pub(super) use self::{
    run_log::Ending,
    writer::{Offered, take},
};
