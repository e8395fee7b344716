//! Storing a conversation, so that another process can continue it.

use super::state::{Shared, Waits};
use concentric_core::{
    Error, Finish, Outcome, Transcript,
    state::{SlotError, Slots},
    store::{StoreFuture, StoredThread},
};

/// A turn that is being stored; it resolves to the new version of the conversation.
pub(super) type Saving = StoreFuture<u64>;

impl<A> Shared<A> {
    /// Stores the conversation as it is before a suspended turn resumes; `None` without a store.
    ///
    /// From here on, another process does not resume the turn, whose tools may have effects.
    pub(super) fn save_resumed(&self) -> Result<Option<Saving>, Error> {
        if self.keep.is_none() {
            return Ok(None);
        }
        let (version, history) = self.version_and_history();
        let stored = StoredThread::new(version, history, self.thread.snapshot()?);
        Ok(self.save(stored))
    }

    /// Stores the result of a turn that has left `slots`; `None` without a store, or if there is
    /// nothing to store.
    pub(super) fn save_finished(
        &self,
        finish: &Finish,
        slots: &Slots,
    ) -> Result<Option<Saving>, Error> {
        if self.keep.is_none() {
            return Ok(None);
        }
        let (version, mut history) = self.version_and_history();
        let mut suspended = None;
        let slots = if finish.outcome == Outcome::Interrupted {
            let Some(state) = &finish.state else {
                return Ok(None);
            };
            suspended = Some((state.clone(), slots.snapshot()?));
            self.thread.snapshot()?
        } else {
            let Some(transcript) = &finish.transcript else {
                return Ok(None);
            };
            history = transcript.clone();
            merged(&self.thread, slots)?
        };
        let mut stored = StoredThread::new(version, history, slots);
        stored.suspended = suspended;
        Ok(self.save(stored))
    }

    fn version_and_history(&self) -> (u64, Transcript) {
        let state = self.lock();
        (state.version, state.history.clone())
    }

    /// Stores the conversation.
    pub(super) fn save(&self, stored: StoredThread) -> Option<Saving> {
        let store = self.keep.as_ref()?;
        let id = self.thread_id.clone();
        Some(store.save(self.tenant.clone(), id, stored))
    }
}

/// The values of `thread` after the changes of a turn.
fn merged(
    thread: &Slots,
    turn: &Slots,
) -> Result<Vec<concentric_core::state::StoredSlot>, SlotError> {
    let next = thread.draft();
    drop(next.commit(turn));
    next.snapshot()
}

/// Restores the suspended turn of a stored conversation.
pub(super) fn suspended(stored: &mut StoredThread) -> Option<Waits> {
    let (state, slots) = stored.suspended.take()?;
    let slots = Slots::restore_draft(slots);
    Some(Waits { state, slots })
}
