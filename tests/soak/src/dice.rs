//! Repeatable random choices (SplitMix64).

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a seed from the clock, if none is given.
pub(crate) fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Creates the choices of participant `number` for `seed`.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        Self(seed ^ number.wrapping_mul(0xA076_1D64_78BD_642F))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
