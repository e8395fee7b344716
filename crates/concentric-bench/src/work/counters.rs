//! What the middleware of the workload counts.
//!
//! Statics, so that a layer more is an addition more and nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most layers of a work.
pub(crate) const LAYERS: usize = 10;

static TEXT: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];
static BEFORE_TOOL: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];
static AFTER_TOOL: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];

#[inline]
pub(crate) fn text<const I: usize>(bytes: usize) {
    TEXT[I].fetch_add(bytes as u64, Relaxed);
}

#[inline]
pub(crate) fn before_tool<const I: usize>() {
    BEFORE_TOOL[I].fetch_add(1, Relaxed);
}

#[inline]
pub(crate) fn after_tool<const I: usize>() {
    AFTER_TOOL[I].fetch_add(1, Relaxed);
}

pub(crate) fn reset() {
    for counter in TEXT.iter().chain(&BEFORE_TOOL).chain(&AFTER_TOOL) {
        counter.store(0, Relaxed);
    }
}

/// Asserts what the first `layers` counters of each kind say, and that the others say nothing.
pub(crate) fn assert(layers: usize, text: u64, calls: u64) {
    for (counters, expected) in [(&TEXT, text), (&BEFORE_TOOL, calls), (&AFTER_TOOL, calls)] {
        for (at, counter) in counters.iter().enumerate() {
            let expected = if at < layers { expected } else { 0 };
            assert_eq!(counter.load(Relaxed), expected, "counter {at}");
        }
    }
}
