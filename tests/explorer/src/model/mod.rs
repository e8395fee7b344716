//! The breadth-first exploration.

mod op;
mod properties;
mod stored;
mod world;

use super::proto;

use self::{
    op::Op,
    properties::{KEPT, LATE, PROPERTIES, View},
    stored::Stored,
    world::{Mode, World},
};
use crate::{
    Bounds, Report, Violation,
    seen::{Encoding, Index, Seen, append_sorted},
};
use proto::machine::Machine;
use std::fmt::Write;

pub(crate) fn explore(bounds: &Bounds, mut progress: impl FnMut(&Report)) -> Report {
    let mut explorer = Explorer {
        bounds,
        seen: Seen::new(),
        stored: Stored::new(bounds),
        text: String::new(),
        encoding: Encoding::default(),
        report: Report::default(),
    };
    let mut layer = Vec::new();
    for resumes in bounds.resumes {
        let world = World::new(*resumes);
        let machine = world.build(&explorer.stored);
        let hash = explorer.hash(&world, &machine);
        if let Some(index) = explorer.seen.insert(hash, None, Op::Take) {
            layer.push((index, world));
        }
    }
    while !layer.is_empty() && explorer.seen.len() < bounds.max_states {
        let mut next = Vec::new();
        for (index, world) in std::mem::take(&mut layer) {
            if let Err(violation) = explorer.expand(index, &world, &mut next) {
                explorer.report.violation = Some(violation);
                explorer.count();
                return explorer.report;
            }
        }
        explorer.report.depth += usize::from(!next.is_empty());
        explorer.count();
        progress(&explorer.report);
        layer = next;
    }
    explorer.report.complete = layer.is_empty();
    explorer.report
}

struct Explorer<'a> {
    bounds: &'a Bounds,
    seen: Seen<Op>,
    stored: Stored,
    text: String,
    encoding: Encoding,
    report: Report,
}

impl Explorer<'_> {
    fn count(&mut self) {
        self.report.states = self.seen.len();
        self.report.stored = self.stored.len();
    }

    /// Makes each transition of a state.
    fn expand(
        &mut self,
        index: Index,
        world: &World,
        next: &mut Vec<(Index, World)>,
    ) -> Result<(), Violation> {
        let mut taken = None;
        for op in world.ops(self.bounds, &self.stored) {
            self.report.transitions += 1;
            let mut machine = world.build(&self.stored);
            let mut after = world.clone();
            let violation = |property, machine: &Machine, seen: &Seen<Op>| Violation {
                property,
                path: seen
                    .path(index)
                    .iter()
                    .skip(1)
                    .chain([&op])
                    .map(|op| format!("{op:?}"))
                    .collect(),
                machine: format!("{machine:?}"),
            };
            let fed = after
                .apply(&mut machine, op, &mut self.stored)
                .map_err(|property| violation(property, &machine, &self.seen))?;
            let view = View {
                before: world,
                after: &after,
                op,
                fed: &fed,
                machine: &machine,
            };
            if let Some((name, _)) = PROPERTIES.iter().find(|(_, holds)| !holds(&view)) {
                return Err(violation(name, &machine, &self.seen));
            }
            // A late report in a round may fill a set that the machine derives from its state.
            if let (Op::Late | Op::Repeat(_), Mode::Round { .. }) = (op, world.mode) {
                if world.build(&self.stored).state() != machine.state() {
                    let late = if op == Op::Late { LATE } else { KEPT };
                    return Err(violation(late, &machine, &self.seen));
                }
                continue;
            }
            let hash = self.hash(&after, &machine);
            match op {
                Op::Take => taken = Some(hash),
                Op::Late if taken.or(self.seen.hash(index)) != Some(hash) => {
                    return Err(violation(LATE, &machine, &self.seen));
                }
                _ => {}
            }
            if let Some(new) = self.seen.insert(hash, Some(index), op) {
                next.push((new, after));
            }
        }
        Ok(())
    }

    fn hash(&mut self, world: &World, machine: &Machine) -> u128 {
        self.text.clear();
        self.encoding.0.clear();
        // Writing to a string does not fail.
        let _ = write!(self.text, "{machine:?}");
        match world.has_asked() {
            true => append_sorted(&self.text, &mut self.encoding.0),
            false => self.encoding.0.extend_from_slice(self.text.as_bytes()),
        }
        world.encode(&mut self.encoding);
        self.encoding.digest()
    }
}
