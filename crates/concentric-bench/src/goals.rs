//! What Concentric is to keep to. Times are for people to read: no test asserts one.

use crate::table::{Quantity, Row};
use Quantity::{Allocations, Bytes, Instructions, Microseconds, Nanoseconds};

/// The most that a figure may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// So much.
    Most(f64),
    /// So many times the bare stack's.
    Times(f64),
    /// So much more than the bare stack's.
    More(f64),
}

impl Goal {
    pub(crate) fn is_met(self, row: &Row) -> bool {
        match self {
            Self::Most(most) => row.concentric <= most,
            Self::More(more) => row.bare.is_some_and(|bare| row.concentric <= bare + more),
            Self::Times(times) => row.bare.is_some_and(|bare| row.concentric <= times * bare),
        }
    }
}

/// A layer more: the tenth part of ten layers.
pub(crate) const LAYER: &str = "w1-layer";

/// An iteration at 100 turns against one at 10.
pub(crate) const GROWTH: &str = "w2-growth";

/// What the names of the works that decode a stream begin with.
const DECODE: &str = "decode";

/// What the names of those end with that decode recorded streams.
const RECORDED: &str = "-recorded";

pub(crate) fn of(work: &str, quantity: Quantity) -> Option<Goal> {
    Some(match (work, quantity) {
        ("w1-k0", Instructions) => Goal::Most(200.0),
        (LAYER, Instructions) => Goal::Most(3.0),
        (LAYER, Allocations) => Goal::Most(0.0),
        (
            "w2-k5" | "w2-k5-each" | "w2-k5-fn" | "w3-k5" | "w3-k5-each" | "w3-k5-fn",
            Instructions,
        ) => Goal::Most(12_000.0),
        // A history that is copied shows as several times; the buckets of an allocator don't.
        (GROWTH, Instructions) => Goal::Most(1.05),
        ("w4a-k0" | "w4a-k5", Bytes) => Goal::Most(2_048.0),
        ("w4b-k0" | "w4b-k5", Instructions) => Goal::Most(8_000.0),
        // Beside the same toolset without: what a gate, hooks and a lifecycle cost a call.
        ("gate-w2" | "gate-w3", Allocations) => Goal::More(5.0),
        ("gate-w2" | "gate-w3", Nanoseconds) => Goal::More(3_000.0),
        (decode, Instructions) if decode.starts_with(DECODE) => Goal::Times(1.5),
        // Recorded events are not all deltas of text: citations and calls are kept as they came.
        (recorded, Allocations) if recorded.ends_with(RECORDED) => return None,
        // One for a text that is longer than what a `Str` holds in itself; and of the run's own,
        // which are some dozens, the thousandth part.
        (decode, Allocations) if decode.starts_with(DECODE) => Goal::Most(1.1),
        ("encode", Instructions) => Goal::Most(500.0),
        // What implements nothing costs less than what two samples of a time differ by.
        ("hooks-empty-k1", Instructions) => Goal::Times(1.05),
        (
            "hooks-empty-k1" | "hooks-empty-k10" | "hooks-empty-model" | "hooks-empty-trivial",
            Allocations,
        ) => Goal::More(0.0),
        ("disconnect-p99", Microseconds) => Goal::Most(100_000.0),
        _ => return None,
    })
}
