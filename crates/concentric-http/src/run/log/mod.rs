//! The events of runs, kept in memory.

mod body;
mod hub;
mod remote;
mod run_log;
mod share;
mod writer;

pub(crate) use self::{
    body::LogBody,
    hub::{Hub, Limits},
    remote::{Found, Remote},
    run_log::{After, Format, Read, Reader, RunLog, Unreadable},
    share::{Shared, share},
    writer::{Offer, Writer},
};
pub(super) use self::{
    run_log::Ending,
    writer::{Offered, take},
};
