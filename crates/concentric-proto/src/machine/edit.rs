//! Lasting edits between two steps.

use super::Machine;
use crate::{
    event::Event,
    run_state::{RunEdits, Stage},
    text::Str,
    transcript::{Transcript, Turn},
};
use std::sync::Arc;

impl Machine {
    /// The lasting edits of the run. The driver [applies](RunEdits::apply) them to the request of
    /// each model call.
    pub fn edits(&self) -> Option<&RunEdits> {
        self.state.edits.as_deref()
    }

    /// Adds lasting `edits`. A rewritten conversation replaces that of the run, which emits
    /// [`Event::TranscriptReplaced`]. Returns `false`, and changes nothing, if the machine is not
    /// between two steps, or the edits rewrite another conversation than that of the run.
    pub fn edit(&mut self, mut edits: RunEdits) -> bool {
        if !self.is_between_steps() {
            return false;
        }
        let Some(transcript) = edits.take_rewrites(&self.state.transcript) else {
            return false;
        };
        if transcript != self.state.transcript {
            edits.shortened_by = len(&self.state.transcript) - len(&transcript);
            self.emit(Event::TranscriptReplaced(transcript.clone()));
            self.state.transcript = transcript;
        }
        self.state.edits.get_or_insert_default().extend(edits);
        true
    }

    /// Sets the [names](crate::run_state::RunState::overrides) of the overrides that the run has.
    pub fn set_overrides(&mut self, names: &[Str]) {
        self.state.overrides = (!names.is_empty()).then(|| Arc::new(names.to_vec()));
    }

    /// The number of turns of the conversation, including those that rewrites have removed.
    pub fn turns(&self) -> usize {
        let shortened_by = self.edits().map_or(0, |edits| edits.shortened_by);
        let turns = len(&self.state.transcript).saturating_add(shortened_by);
        usize::try_from(turns).unwrap_or_default()
    }

    /// Appends `turn` to the conversation; returns `false` if the machine is not between two steps.
    pub fn push(&mut self, turn: Turn) -> bool {
        let is_between = self.is_between_steps();
        if is_between {
            self.state.transcript.push(turn);
        }
        is_between
    }

    fn is_between_steps(&self) -> bool {
        self.stream.is_none() && self.state.stage == Stage::Model
    }
}

fn len(transcript: &Transcript) -> i64 {
    i64::try_from(transcript.len()).unwrap_or(i64::MAX)
}
