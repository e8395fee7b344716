use super::{RunClaim, StoreFuture, Tenant, shared};
use crate::state::StoredSlot;
use concentric_proto::{ErrorKind, Outcome, Str, ThreadId, Transcript, Turn, run_state::RunState};
use std::time::SystemTime;

shared! {
    /// Stores conversations.
    ///
    /// A conversation has a version, which each write changes: to a greater one than all that the conversations of
    /// the tenant have had, also those that are deleted. Versions are unique in a store. The bytes that a write stores depend on its
    /// [change](ThreadChange) only, not on the length of the conversation.
    pub trait ThreadStore: Send + Sync + 'static {
        /// Returns a conversation; `None` if it does not exist.
        fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>>;

        /// Returns the summary of a conversation, and at most `limit` of its turns, but at most 500: those
        /// from position `start` on, or else the newest ones. `None` if the conversation does not exist.
        ///
        /// With the limit 0, it returns the summary only. The cost depends on the returned turns, not on the
        /// length of the conversation. A store that detects damaged turns verifies the returned ones, and
        /// that they follow each other, but not the turns before and after them.
        fn turns(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            start: Option<usize>,
            limit: usize,
        ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>>;

        /// Applies `change` to a conversation, and returns its new version. With the version 0,
        /// creates it.
        ///
        /// A change with the [id](ThreadChange::id) of the last one is not applied again; its version
        /// is returned.
        ///
        /// # Errors
        ///
        /// [`StoreError::Moved`](super::StoreError::Moved) unless the stored version is `version`, or
        /// `version` is 0 and the conversation does not exist.
        /// [`StoreError::Stale`](super::StoreError::Stale) if another process has claimed the run that
        /// the change [ends](ThreadChange::ends), and [`StoreError::NotFound`](super::StoreError::NotFound) if
        /// that run was [deleted](Self::delete).
        /// [`StoreError::Unwritable`](super::StoreError::Unwritable) if the conversation exceeds a
        /// limit of the store, or has fewer turns than the change [keeps](ThreadChange::keep).
        fn append(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            version: u64,
            change: ThreadChange,
        ) -> StoreFuture<u64>;

        /// Creates the conversation `to` as a copy of `thread` with `change` applied, and returns its
        /// version. The turns that it keeps are shared; the slots are copied; a suspended turn is not.
        /// Later changes of either conversation do not affect the other.
        ///
        /// # Errors
        ///
        /// Those of [`append`](Self::append), and [`StoreError::Moved`](super::StoreError::Moved) if
        /// `to` exists.
        fn fork(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            version: u64,
            to: ThreadId,
            change: ThreadChange,
        ) -> StoreFuture<u64>;

        /// Returns at most `limit` conversations of a tenant: those that were written last, the newest first, or
        /// with `before`, those among the ones with lower versions. Turns are not loaded.
        ///
        /// With the version of the last one as `before`, a further call returns the next page, whether that
        /// conversation still exists or not. A conversation that is written meanwhile moves before the first page.
        fn list_threads(
            &self,
            tenant: Tenant,
            before: Option<u64>,
            limit: usize,
        ) -> StoreFuture<Vec<ThreadSummary>>;

        /// Deletes a conversation, and returns whether it existed. A store that also stores runs
        /// deletes those of the conversation, with their effects and the decisions for them, whether
        /// it existed or not; so does one that is a cache for the entries of the conversation.
        ///
        /// The process that drives a deleted run may not know of it yet. The store refuses the turn of that run, which
        /// would create the conversation again, for as long as the process may store it; the stores of this project
        /// do for an hour. A later run may create a conversation with the same id.
        ///
        /// A store may delete in steps, the conversation in the last one: after an error, or if the future is
        /// dropped, a further call deletes the rest.
        fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool>;

        /// Deletes everything that the store has of a tenant, and returns the number of its conversations.
        ///
        /// A store that implements several traits deletes all entries of the tenant: its runs, effects, used
        /// keys, decisions, memories and cached values as well.
        ///
        /// It deletes them in steps: after an error, or if the future is dropped, some may remain, and a
        /// further call deletes them. An entry that is written meanwhile may remain as well, so the tenant
        /// should have no running runs. The turns of its deleted runs are refused, as in [`delete`](Self::delete).
        ///
        /// ```
        /// use concentric_core::store::{StoreError, Tenant, ThreadStore};
        ///
        /// async fn close_account(store: &impl ThreadStore, tenant: Tenant) -> Result<(), StoreError> {
        ///     let deleted = store.delete_tenant(tenant).await?;
        ///     println!("{deleted} conversations were deleted");
        ///     Ok(())
        /// }
        /// ```
        fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64>;
    }
}

/// A stored conversation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoredThread {
    /// The version; 0 before the conversation is stored.
    pub version: u64,
    /// The finished turns.
    pub history: Transcript,
    /// The values of the conversation's slots, in the order of their names.
    pub slots: Vec<StoredSlot>,
    /// The suspended turn ([`RunState::to_json`]), and the conversation's slots as it left them.
    pub suspended: Option<(Box<RunState>, Vec<StoredSlot>)>,
    /// The id of the session: that of the conversation that it began with. `None` before the
    /// conversation is stored.
    pub session: Option<ThreadId>,
}

impl StoredThread {
    /// Creates a conversation of this version, without a suspended turn.
    pub const fn new(version: u64, history: Transcript, slots: Vec<StoredSlot>) -> Self {
        Self {
            version,
            history,
            slots,
            suspended: None,
            session: None,
        }
    }

    /// Returns the change from this conversation to one with `history` and `slots`, without a
    /// suspended turn. It contains only the new turns and the changed slots.
    ///
    /// ```
    /// use concentric_core::{Transcript, store::StoredThread};
    ///
    /// let mut history = Transcript::new();
    /// history.push_user("hi");
    /// let stored = StoredThread::new(1, history.clone(), Vec::new());
    /// history.push_user("and again");
    /// let change = stored.change_to(&history, &[]);
    /// assert_eq!((change.keep, change.turns.len()), (1, 1));
    /// ```
    pub fn change_to(&self, history: &Transcript, slots: &[StoredSlot]) -> ThreadChange {
        let keep = history.common_len(&self.history);
        let has_place =
            |of: &StoredSlot, slot: &StoredSlot| (&of.slot, &of.place) == (&slot.slot, &slot.place);
        let is_in_new = |old: &StoredSlot| slots.iter().any(|slot| has_place(slot, old));
        let clear_slots = !self.slots.iter().all(is_in_new);
        let is_changed = |slot: &&StoredSlot| clear_slots || !self.slots.contains(slot);
        ThreadChange {
            id: None,
            ends: None,
            keep,
            turns: history.turns_after(keep),
            clear_slots,
            slots: slots.iter().filter(is_changed).cloned().collect(),
            suspended: None,
            session: None,
        }
    }
}

/// A change of a conversation ([`ThreadStore::append`]).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadChange {
    /// The id of the change, so that it is applied once if it is repeated.
    pub id: Option<Str>,
    /// The claim of the run that ends with the change, and its outcome.
    ///
    /// A store that has the run [ends](super::RunStore::end) it in the same write, so that a run whose turn is
    /// stored is not resumed, and refuses the change if the claim is lost, or the run was
    /// [deleted](ThreadStore::delete). With [`Outcome::Interrupted`], it refuses the change in the same cases, and the
    /// run does not end. Other stores, and forks, ignore it.
    pub ends: Option<(RunClaim, Result<Outcome, ErrorKind>)>,
    /// The number of turns that the conversation keeps. Further stored turns are removed.
    pub keep: usize,
    /// The turns that are appended after those.
    pub turns: Vec<Turn>,
    /// Whether all stored slots are removed before `slots` are stored.
    pub clear_slots: bool,
    /// The slots that are stored; others keep their values.
    pub slots: Vec<StoredSlot>,
    /// The suspended turn from now on, if there is one.
    pub suspended: Option<SuspendedTurn>,
    /// The id of the session of a conversation that is created; by default that of the conversation
    /// itself, or of the one it is a fork of.
    pub session: Option<ThreadId>,
}

impl ThreadChange {
    /// Adds a suspended turn, and the conversation's slots as it left them, to the change to a
    /// conversation with `history`.
    #[must_use]
    pub fn suspend(
        mut self,
        history: &Transcript,
        state: Box<RunState>,
        slots: Vec<StoredSlot>,
    ) -> Self {
        let shared = state.transcript().common_len(history);
        let own = state.transcript().turns_after(shared);
        let state = Box::new(state.with_transcript(own.into_iter().collect()));
        self.suspended = Some(SuspendedTurn {
            shared,
            state,
            slots,
        });
        self
    }
}

/// A suspended turn as it is stored: without the turns of its conversation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SuspendedTurn {
    /// The number of turns of the conversation with which the transcript of the state begins.
    pub shared: usize,
    /// The state, with the rest of its transcript.
    pub state: Box<RunState>,
    /// The conversation's slots as the turn left them.
    pub slots: Vec<StoredSlot>,
}

impl SuspendedTurn {
    /// Creates a suspended turn from its stored parts.
    pub const fn new(shared: usize, state: Box<RunState>, slots: Vec<StoredSlot>) -> Self {
        Self {
            shared,
            state,
            slots,
        }
    }

    /// Returns the state with its whole transcript, in a conversation with `history`.
    pub fn into_state(self, history: &Transcript) -> Box<RunState> {
        let mut transcript = history.prefix(self.shared);
        transcript.extend(self.state.transcript().iter().cloned());
        Box::new(self.state.with_transcript(transcript))
    }
}

/// A stored conversation, without its turns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadSummary {
    /// The id of the conversation.
    pub thread: ThreadId,
    /// The id of its session.
    pub session: ThreadId,
    /// The version.
    pub version: u64,
    /// The number of finished turns.
    pub turns: usize,
    /// The time of the last write.
    pub at: SystemTime,
}

impl ThreadSummary {
    /// Creates a summary.
    pub const fn new(
        thread: ThreadId,
        session: ThreadId,
        version: u64,
        turns: usize,
        at: SystemTime,
    ) -> Self {
        Self {
            thread,
            session,
            version,
            turns,
            at,
        }
    }
}
