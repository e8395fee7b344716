//! Rules for the events of runs shared by the stores.

use crate::{Options, rules::check_total};
use concentric_core::store::{EventBatch, StoreError};
use std::time::Duration;

/// The size of the events of a page, in bytes, which one event may exceed.
pub(crate) const PAGE: usize = 1 << 20;

/// The time for which readers may lack events beyond the limits, and how many times the limits on events and bytes may be
/// exceeded meanwhile. Also in `redis/lua/events.lua`.
pub(crate) const BEHIND: (Duration, (u64, usize)) = (Duration::from_secs(2), (8, 3));

/// Checks a batch, which is read as a whole later.
pub(crate) fn check(batch: &EventBatch, options: &Options) -> Result<(), StoreError> {
    if batch.first == 0 {
        return Err(StoreError::unwritable("events are numbered from 1"));
    }
    check_total(batch.bytes(), options.max_state_bytes)
}
