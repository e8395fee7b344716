//! The goals for Concentric's figures. No test asserts a time.

use crate::table::{Quantity, Row};
use Quantity::{Allocations, Bytes, Instructions, Microseconds, Nanoseconds};

/// The upper limit of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// An absolute limit.
    Most(f64),
    /// A factor of the bare stack's figure.
    Times(f64),
    /// A limit on the difference to the bare stack's figure.
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

/// One additional layer: a tenth of the cost of ten layers.
pub(crate) const LAYER: &str = "w1-layer";

/// The ratio of a step with 100 turns to one with 10.
pub(crate) const GROWTH: &str = "w2-growth";

/// The prefix of the works that decode a stream.
const DECODE: &str = "decode";

/// The suffix of the works that decode recorded streams.
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
        // A copied history would multiply the cost; the size classes of an allocator do not.
        (GROWTH, Instructions) => Goal::Most(1.05),
        ("w4a-k0" | "w4a-k5", Bytes) => Goal::Most(2_048.0),
        ("w4b-k0" | "w4b-k5", Instructions) => Goal::Most(8_000.0),
        // The cost per call of a gate, hooks and the call lifecycle, relative to the same toolset.
        ("gate-w2" | "gate-w3", Allocations) => Goal::More(5.0),
        ("gate-w2" | "gate-w3", Nanoseconds) => Goal::More(3_000.0),
        (decode, Instructions) if decode.starts_with(DECODE) => Goal::Times(1.5),
        // Recorded events are not only text deltas: citations and calls are stored as received.
        (recorded, Allocations) if recorded.ends_with(RECORDED) => return None,
        // One allocation for a text that exceeds the inline capacity of `Str`, and a thousandth of
        // the few dozen allocations of the run itself.
        (decode, Allocations) if decode.starts_with(DECODE) => Goal::Most(1.1),
        ("encode", Instructions) => Goal::Most(500.0),
        // Empty hooks cost less than the variance of the times, so instructions are compared.
        ("hooks-empty-k1", Instructions) => Goal::Times(1.05),
        (
            "hooks-empty-k1" | "hooks-empty-k10" | "hooks-empty-model" | "hooks-empty-trivial",
            Allocations,
        ) => Goal::More(0.0),
        // 20 bytes of text, searched by 12 rules.
        ("guard-12" | "guard-12-split", Instructions) => Goal::More(1_000.0),
        // A layer that has nothing to do, without the cost of its call.
        (idle, Instructions) if idle.starts_with("idle-") => Goal::More(3.0),
        (idle, Allocations) if idle.starts_with("idle-") => Goal::More(0.01),
        // A layer that reads each event.
        ("busy-rate-limit", Instructions) => Goal::More(20.0),
        ("busy-rate-limit", Allocations) => Goal::More(0.01),
        ("otel-call" | "otel-run" | "otel-tool", Instructions) => Goal::More(300.0),
        ("otel-call" | "otel-run" | "otel-tool" | "log-call", Allocations) => Goal::More(0.0),
        ("plan-10000", Nanoseconds) => Goal::Most(5e6),
        ("tokens-bpe", Nanoseconds) => Goal::Most(50e6),
        // A box costs an indirect call for each event.
        ("w1-box", Instructions) => Goal::More(30.0),
        ("busy-budget" | "busy-transform", Instructions) => Goal::More(30.0),
        (busy, Allocations) if busy.starts_with("busy-") => Goal::More(0.01),
        ("w4b-box", Instructions) => Goal::More(600.0),
        // The run's ten values are stored once, and shared by its steps.
        ("w6-extensions", Allocations) => Goal::More(5.0),
        // The history is not read in each step.
        (budgets, Nanoseconds) if budgets.starts_with("w6-budgets") => Goal::Times(2.0),
        // The turns are written once, but read by each resume.
        ("store-suspend", Nanoseconds) => Goal::Times(3.0),
        ("store-step", Nanoseconds) => Goal::Times(1.3),
        ("w6-state", Microseconds) => Goal::Most(50_000.0),
        // The state itself, which the bare side holds as well.
        ("w6-state", Bytes) => Goal::Times(1.1),
        ("w5-closed", Microseconds) => Goal::Times(0.65),
        ("w5-paced-first", Microseconds) => Goal::Times(1.25),
        // 0.2 CPU seconds for 1,000 answers.
        ("gateway-closed", Microseconds) => Goal::Most(200.0),
        ("gateway-paced-first", Microseconds) => Goal::Most(2_000.0),
        ("disconnect-p99", Microseconds) => Goal::Most(100_000.0),
        _ => return None,
    })
}
