//! The counters of the middleware.
//!
//! They are statics, so that a layer costs one addition and nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The largest number of layers in a work.
const LAYERS: usize = 10;

static TEXT: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];
static BEFORE_TOOL: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];
static AFTER_TOOL: [AtomicU64; LAYERS] = [const { AtomicU64::new(0) }; LAYERS];

#[inline]
pub(crate) fn text<const I: usize>(bytes: usize) {
    add::<I>(&TEXT, bytes as u64);
}

#[inline]
pub(crate) fn before_tool<const I: usize>() {
    add::<I>(&BEFORE_TOOL, 1);
}

#[inline]
pub(crate) fn after_tool<const I: usize>() {
    add::<I>(&AFTER_TOOL, 1);
}

#[inline]
fn add<const I: usize>(counters: &[AtomicU64; LAYERS], n: u64) {
    // `I` is a constant, so the bounds check is optimized out.
    if let Some(counter) = counters.get(I) {
        counter.fetch_add(n, Relaxed);
    }
}

pub(crate) fn reset() {
    for counter in TEXT.iter().chain(&BEFORE_TOOL).chain(&AFTER_TOOL) {
        counter.store(0, Relaxed);
    }
}

/// Asserts the first `layers` counters of each kind, and that the others are zero.
pub(crate) fn assert(layers: usize, text: u64, calls: u64) {
    for (counters, expected) in [(&TEXT, text), (&BEFORE_TOOL, calls), (&AFTER_TOOL, calls)] {
        for (at, counter) in counters.iter().enumerate() {
            let expected = if at < layers { expected } else { 0 };
            assert_eq!(counter.load(Relaxed), expected, "counter {at}");
        }
    }
}
