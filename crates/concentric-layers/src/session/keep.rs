//! Storing a conversation, so that another process can continue it.

use super::state::{Shared, Waits};
use concentric_core::{
    Error, Finish, Outcome, Transcript,
    state::{SlotError, Slots, StoredSlot},
    store::{StoreError, StoreFuture, StoredThread, ThreadChange},
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// A turn that is being stored.
pub(super) struct Saving {
    work: StoreFuture<u64>,
    // The conversation without its new version. Taken when it is stored.
    next: StoredThread,
}

impl Saving {
    /// Resolves to the stored conversation.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<StoredThread, StoreError>> {
        let version = Pin::new(&mut self.work).poll(cx);
        version.map_ok(|version| {
            let mut stored = std::mem::take(&mut self.next);
            stored.version = version;
            stored
        })
    }
}

impl<A> Shared<A> {
    /// Stores the conversation as it is before a suspended turn resumes; `None` without a store.
    ///
    /// From here on, another process does not resume the turn, whose tools may have effects.
    pub(super) fn save_resumed(&self) -> Result<Option<Saving>, Error> {
        if self.keep.is_none() {
            return Ok(None);
        }
        let (stored, history) = self.stored_and_history();
        let slots = self.thread.snapshot()?;
        let change = stored.change_to(&history, &slots);
        Ok(self.save(&stored, change, history, slots))
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
        let (stored, history) = self.stored_and_history();
        if finish.outcome == Outcome::Interrupted {
            let Some(state) = &finish.state else {
                return Ok(None);
            };
            let left = slots.snapshot()?;
            let slots = self.thread.snapshot()?;
            let change = stored.change_to(&history, &slots);
            let change = change.suspend(&history, state.clone(), left);
            return Ok(self.save(&stored, change, history, slots));
        }
        let Some(transcript) = &finish.transcript else {
            return Ok(None);
        };
        let slots = merged(&self.thread, slots)?;
        let change = stored.change_to(transcript, &slots);
        Ok(self.save(&stored, change, transcript.clone(), slots))
    }

    fn stored_and_history(&self) -> (StoredThread, Transcript) {
        let state = self.lock();
        (state.stored.clone(), state.history.clone())
    }

    /// Applies a change to the stored conversation, which then has `history` and `slots`.
    fn save(
        &self,
        stored: &StoredThread,
        mut change: ThreadChange,
        history: Transcript,
        slots: Vec<StoredSlot>,
    ) -> Option<Saving> {
        let store = self.keep.as_ref()?;
        change.session = Some(self.session_id.clone());
        let (tenant, thread) = (self.tenant.clone(), self.thread_id.clone());
        Some(Saving {
            work: store.append(tenant, thread, stored.version, change),
            next: StoredThread::new(0, history, slots),
        })
    }
}

/// The values of `thread` after the changes of a turn.
fn merged(thread: &Slots, turn: &Slots) -> Result<Vec<StoredSlot>, SlotError> {
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
