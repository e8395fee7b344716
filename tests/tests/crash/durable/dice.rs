//! Settings and random numbers of a test.

use std::{
    hash::{BuildHasher, RandomState},
    str::FromStr,
};

/// A setting from the environment.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value}")),
        Err(_) => default,
    }
}

/// Random numbers (SplitMix64) from `CONCENTRIC_SEED`, or a seed that is printed.
pub struct Dice(u64);

impl Dice {
    pub fn cast() -> Self {
        let seed = setting("CONCENTRIC_SEED", RandomState::new().hash_one(0));
        println!("CONCENTRIC_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Another, whose numbers depend only on this one's and `n`.
    pub fn fork(&self, n: u64) -> Self {
        let mut other = Self(self.0 ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93));
        other.next();
        other
    }
}
