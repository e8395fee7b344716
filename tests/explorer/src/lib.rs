//! An exhaustive exploration of [`Machine`](concentric_proto::machine::Machine).
//!
//! The explorer feeds the machine of `concentric-proto`, through its public API, every order of inputs
//! that a driver may produce within [`Bounds`], breadth first. The driver, the tools, the approvers, the
//! storage and crashes are modelled beside the machine. Each state and each transition is checked against
//! the properties of `model/properties.rs`. The path to a violation is one of the shortest.
//!
//! A machine cannot be copied. It is rebuilt from the stored text of the run and from the inputs since,
//! which works because the machine is deterministic. Two states are the same if the debug texts of their
//! machines, which show every private field, and the states of the model around them are the same.
//! Nothing is reduced by symmetry: calls of one round that do the same are different calls.
//!
//! The planted bugs are those of a copy of the sources: see `build.rs`.

#![allow(
    clippy::duplicate_mod,
    reason = "the model also runs against the machine with planted bugs"
)]

mod planted;
mod real;
mod seen;

pub use planted::BUGS;
use std::{fmt, time::Instant};

/// What the model, the tools, the approvers and the driver may do in the explored runs.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The tool calls of the model's answers; a round may also be a beginning of one of them.
    pub answers: &'static [&'static [Kind]],
    /// How many rounds a run has.
    pub rounds: u8,
    /// How many calls a run has.
    pub calls: u8,
    /// How often the round service suspends one call, up to 2.
    pub asks: u8,
    /// How often the round service suspends calls in a run, and how many it holds back.
    pub asks_in_run: u8,
    /// How often a step gate suspends a run.
    pub gate_asks: u8,
    /// How many processes crash.
    pub crashes: u8,
    /// Whether the driver may store the run at any time, not only before effects and at a suspension.
    pub saves: bool,
    /// Whether calls may wait for the decisions about others.
    pub holds: bool,
    /// Whether a tool itself may suspend its call.
    pub tool_asks: bool,
    /// Whether a call may fail, beside success and halt.
    pub failures: bool,
    /// Whether the driver decides when the run may finish.
    pub finish_gate: bool,
    /// Whether the round service accepts calls that waited: with both values, both are explored.
    pub resumes: &'static [bool],
    /// The number of states after which the exploration ends.
    pub max_states: usize,
}

/// The tool that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A tool with an effect.
    Effect,
    /// A read-only tool.
    ReadOnly,
    /// A tool that the client executes.
    Client,
    /// A tool that was not offered.
    Missing,
}

impl Bounds {
    /// One round of two calls, which are not suspended, and a crash.
    pub fn small() -> Self {
        use Kind::Effect;
        Self {
            answers: &[&[Effect, Effect]],
            rounds: 1,
            calls: 2,
            asks: 0,
            asks_in_run: 1,
            gate_asks: 0,
            crashes: 1,
            saves: false,
            holds: true,
            tool_asks: false,
            failures: false,
            finish_gate: false,
            resumes: &[true],
            max_states: usize::MAX,
        }
    }

    /// One call, which may be suspended, and a crash.
    pub fn single() -> Self {
        Self {
            calls: 1,
            asks: 1,
            ..Self::small()
        }
    }

    /// One call that is suspended twice, by its gate and by its tool, two crashes, and a driver that may
    /// store the run at any time.
    pub fn deep() -> Self {
        Self {
            calls: 1,
            asks: 2,
            asks_in_run: 2,
            gate_asks: 1,
            crashes: 2,
            saves: true,
            tool_asks: true,
            failures: true,
            finish_gate: true,
            resumes: &[true, false],
            ..Self::small()
        }
    }

    /// Two rounds and three calls, one of them suspended, and a step gate.
    pub fn gated() -> Self {
        use Kind::Effect;
        Self {
            answers: &[&[Effect, Effect, Effect]],
            rounds: 2,
            calls: 3,
            asks: 1,
            gate_asks: 1,
            ..Self::small()
        }
    }

    /// Two rounds and three calls of each kind, one of them suspended by its gate or by its tool.
    pub fn full() -> Self {
        use Kind::{Client, Effect, Missing, ReadOnly};
        Self {
            answers: &[
                &[Effect, Effect, Effect],
                &[Effect, Client],
                &[ReadOnly, Effect],
                &[Missing],
            ],
            gate_asks: 0,
            tool_asks: true,
            failures: true,
            ..Self::gated()
        }
    }
}

/// The result of an exploration.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The number of distinct states.
    pub states: usize,
    /// The number of transitions that were made and checked.
    pub transitions: usize,
    /// The number of distinct texts of stored runs; each was read back.
    pub stored: usize,
    /// The length of the longest of the shortest paths to a state.
    pub depth: usize,
    /// How many seconds it took.
    pub seconds: f64,
    /// Whether all states within the bounds were visited.
    pub complete: bool,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// A property that does not hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The name of the property.
    pub property: &'static str,
    /// A shortest path to it.
    pub path: Vec<String>,
    /// The machine at its end.
    pub machine: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} transitions, {} stored texts, depth {}, {:.1} s",
            self.states, self.transitions, self.stored, self.depth, self.seconds
        )?;
        if !self.complete {
            f.write_str(", not complete")?;
        }
        if let Some(violation) = &self.violation {
            write!(f, "\n{} does not hold:", violation.property)?;
            for (number, step) in violation.path.iter().enumerate() {
                write!(f, "\n  {:2}. {step}", number + 1)?;
            }
            write!(f, "\n{}", violation.machine)?;
        }
        Ok(())
    }
}

/// Explores the machine. `progress` receives the report after each depth.
pub fn explore(bounds: &Bounds, progress: impl FnMut(&Report)) -> Report {
    timed(|| real::model::explore(bounds, progress))
}

/// Explores the machine with the planted bug `bug`, one of [`BUGS`]; without a bug if it is empty.
pub fn explore_planted(bug: &'static str, bounds: &Bounds) -> Report {
    planted::choose(bug);
    timed(|| planted::model::explore(bounds, |_| {}))
}

/// Looks for the planted bug `bug`, one of [`BUGS`], in the small bounds.
pub fn find(bug: &'static str) -> Option<Violation> {
    let bounds = [Bounds::single(), Bounds::small()];
    let mut reports = bounds.iter().map(|bounds| explore_planted(bug, bounds));
    reports.find_map(|report| report.violation)
}

fn timed(explore: impl FnOnce() -> Report) -> Report {
    let began = Instant::now();
    let mut report = explore();
    report.seconds = began.elapsed().as_secs_f64();
    report
}
