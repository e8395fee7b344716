//! Lasting edits between two steps.

use super::Machine;
use crate::{
    event::Event,
    run_state::{RunEdits, Stage},
    transcript::{Transcript, Turn},
};

impl Machine {
    /// The lasting edits of the run. The driver [applies](RunEdits::apply) them to the request of
    /// each model call.
    pub fn edits(&self) -> Option<&RunEdits> {
        self.state.edits.as_deref()
    }

    /// Adds lasting `edits`, and replaces the conversation by `transcript`, if there is one, which
    /// emits [`Event::TranscriptReplaced`]. Returns `false`, and changes nothing, if the machine is
    /// not between two steps.
    pub fn edit(&mut self, mut edits: RunEdits, transcript: Option<Transcript>) -> bool {
        let is_between = self.is_between_steps();
        if is_between {
            if let Some(transcript) = transcript {
                edits.shortened_by = len(&self.state.transcript) - len(&transcript);
                self.emit(Event::TranscriptReplaced(transcript.clone()));
                self.state.transcript = transcript;
            }
            self.state.edits.get_or_insert_default().extend(edits);
        }
        is_between
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
