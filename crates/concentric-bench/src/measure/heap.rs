//! Allocations and heap bytes, counted by the allocator.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the allocations of one operation, as the difference between two numbers of runs, which
/// excludes one-time allocations. A reallocation counts as one allocation.
pub(crate) fn allocations(run: fn(u64), ops: u64) -> f64 {
    const RUNS: u64 = 10;
    let of = |runs| {
        let region = Region::new(ALLOCATOR);
        run(runs);
        let stats = region.change();
        stats.allocations + stats.reallocations
    };
    let once = of(RUNS);
    let twice = of(2 * RUNS);
    (twice as f64 - once as f64) / (RUNS * ops) as f64
}

/// Returns the number of bytes in use.
pub(crate) fn in_use() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.bytes_allocated - stats.bytes_deallocated) as u64
}

/// Returns the number of bytes that `work` allocates and does not free.
pub(crate) fn kept(work: impl FnOnce()) -> u64 {
    let region = Region::new(ALLOCATOR);
    work();
    let stats = region.change();
    (stats.bytes_allocated - stats.bytes_deallocated) as u64
}
