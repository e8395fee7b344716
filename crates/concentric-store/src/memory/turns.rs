//! The turns of a run or of a conversation.

use crate::rules::{check_keep, check_total, write_turn};
use concentric_core::{Transcript, Turn, store::StoreError};

#[derive(Clone, Default)]
pub(super) struct Turns {
    // Forks share their turns.
    pub(super) list: Transcript,
    // The bytes of all turns as JSON.
    pub(super) bytes: usize,
}

impl Turns {
    /// Replaces the turns after the first `keep`.
    pub(super) fn replace(
        &mut self,
        keep: usize,
        new: Vec<Turn>,
        max: usize,
    ) -> Result<(), StoreError> {
        let len = self.list.len();
        check_keep(len, keep)?;
        let mut next = self.clone();
        if keep < len {
            next.list = self.list.prefix(keep);
            next.bytes = 0;
            for turn in next.list.rev() {
                next.bytes += write_turn(turn, max)?.len();
            }
        }
        for turn in new {
            let json = write_turn(&turn, max)?;
            next.bytes = next.bytes.saturating_add(json.len());
            next.list.push(turn);
        }
        check_total(next.bytes, max)?;
        *self = next;
        Ok(())
    }
}
