//! Rules for the events of runs shared by the stores.

use crate::{Options, rules::check_total};
use concentric_core::store::{EventBatch, StoreError};

/// The size of the events of a page, in bytes, which one event may exceed.
pub(crate) const PAGE: usize = 1 << 20;

/// Checks a batch, which is read as a whole later.
pub(crate) fn check(batch: &EventBatch, options: &Options) -> Result<(), StoreError> {
    if batch.first == 0 {
        return Err(StoreError::unwritable("events are numbered from 1"));
    }
    check_total(batch.bytes(), options.max_state_bytes)
}
