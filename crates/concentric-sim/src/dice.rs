//! Random numbers, all of which come from one seed.

/// Random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another source, whose numbers depend only on this one's and `n`.
    pub(crate) const fn fork(&self, n: u64) -> Self {
        let mut other = Self(self.0 ^ n.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        other.next();
        other
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `n`; 0 if `n` is 0.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        match n {
            0 => 0,
            n => self.next() % n,
        }
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Whether an event of this probability happens.
    pub(crate) const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from 0 to 1, without 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
