//! The stored states of runs.

use super::proto::{
    Interrupt, Transcript,
    machine::{Machine, RunLimits, RunState},
};
use crate::{Bounds, seen::Encoding};
use std::{collections::HashMap, hash::Hasher, sync::Arc};

/// The name of the property that a stored state means the same once it is read. (Law 4: the state is
/// plain versioned data.)
pub(super) const PROPERTY: &str = "a_state_survives_its_text";

/// The distinct states that were stored, as they were read back from their texts.
pub(super) struct Stored {
    rules: [Arc<RunLimits>; 2],
    by_text: HashMap<u128, u32>,
    states: Vec<(RunState, Box<[Interrupt]>)>,
}

impl Stored {
    #[allow(
        clippy::field_reassign_with_default,
        reason = "the real rules are not exhaustive"
    )]
    pub(super) fn new(bounds: &Bounds) -> Self {
        let rules = [false, true].map(|resumes| {
            let mut rules = RunLimits::default();
            rules.steps = u32::from(bounds.rounds) + 1;
            rules.resumes = resumes;
            rules.ledger = true;
            rules.asks_to_finish = bounds.finish_gate;
            rules.asks_before_round = bounds.gate_asks > 0;
            Arc::new(rules)
        });
        Self {
            rules,
            by_text: HashMap::new(),
            states: Vec::new(),
        }
    }

    /// The machine of a stored run, or of a new one.
    pub(super) fn machine(&self, number: Option<u32>, resumes: bool) -> Machine {
        let [settles, resuming] = &self.rules;
        let rules = Arc::clone(if resumes { resuming } else { settles });
        let stored = number.and_then(|number| self.states.get(number as usize));
        match stored {
            Some((state, _)) => Machine::restore(state.clone(), rules),
            None => Machine::new(Transcript::new(), rules),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Stores the text of a state, reads it, and returns its number.
    pub(super) fn save(&mut self, state: &RunState) -> Result<u32, &'static str> {
        let text = state.to_json().map_err(|_| PROPERTY)?;
        let mut encoding = Encoding::default();
        encoding.write(text.as_bytes());
        let hash = encoding.digest();
        if let Some(number) = self.by_text.get(&hash) {
            return Ok(*number);
        }
        let read = RunState::from_json(text.as_bytes(), 1 << 20).map_err(|_| PROPERTY)?;
        if read != *state {
            return Err(PROPERTY);
        }
        let number = u32::try_from(self.states.len()).map_err(|_| PROPERTY)?;
        let asked = read.interrupts().into_iter().cloned().collect();
        self.states.push((read, asked));
        self.by_text.insert(hash, number);
        Ok(number)
    }

    /// The questions that a stored run waits for.
    pub(super) fn asked(&self, number: u32) -> &[Interrupt] {
        self.states
            .get(number as usize)
            .map_or(&[], |(_, asked)| asked)
    }
}
