//! The events of runs, kept in memory.

mod body;
mod hub;
mod layer;
mod run_log;
mod writer;

pub use self::layer::{EventLog, EventLogLayer};
pub(super) use self::{
    hub::Hub,
    run_log::{After, Ending, Read, Reader, RunLog, Unreadable},
    writer::{Offer, Offered},
};
