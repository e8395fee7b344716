//! State shared by layers and tools: typed values with the scope of a call, a round, a run, a
//! conversation or a session.
//!
//! A [`Slot`] is a named storage location for a value of one type. [`Context::state`] reads it, and
//! [`Context::update_state`] replaces its value for later readers. A single layer serves many runs
//! at once, and each run has its own values.
//!
//! ```
//! use concentric_core::{Context, state::{Durable, Scope, Slot, SlotError}};
//!
//! /// The number of files the run has written.
//! struct Written;
//!
//! impl Slot for Written {
//!     type Value = u32;
//!     type Keep = Durable; // Survives a suspension or a crash.
//!     const NAME: &'static str = "example/written";
//!     const SCOPE: Scope = Scope::Run;
//! }
//!
//! # fn main() -> Result<(), SlotError> {
//! let context = Context::new();
//! context.update_state::<Written>(|written| written + 1)?;
//! assert_eq!(*context.state::<Written>()?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Updates
//!
//! Values are immutable: a reader keeps the value it has read. An update computes the next value
//! from the current one. If another update happens in the meantime, it is computed again from the
//! new value, so no update is lost when calls of a round run concurrently. No lock is held
//! meanwhile.
//!
//! # Persistence
//!
//! A [`Durable`] slot is persisted together with the run's state
//! ([`RunState`](crate::machine::RunState)): when the run waits, and before its tools
//! start. A crash loses later changes, as it loses the rest of the step. The slots of a
//! conversation are stored in [`Slots`], by the host that stores the conversation. Each stored
//! value has a [version](Slot::VERSION), so that newer code can read values of older code.
//!
//! A durable slot whose value can't be serialized does not compile:
//!
//! ```compile_fail,E0277
//! # use concentric_core::state::{Durable, Scope, Slot};
//! #[derive(Default)]
//! struct NotSerialisable;
//!
//! struct Mine;
//!
//! impl Slot for Mine {
//!     type Value = NotSerialisable;
//!     type Keep = Durable;
//!     const NAME: &'static str = "example/mine";
//!     const SCOPE: Scope = Scope::Run;
//! }
//! ```

pub use crate::slots::{Durable, Keep, Scope, Slot, SlotError, Slots, Transient};
pub use concentric_proto::run_state::{RoundPlace, SlotPlace, StoredSlot};

use crate::{context::Context, trace::TraceStep};
use concentric_proto::ThreadId;
use std::sync::Arc;

// Extensions of a context.
#[derive(Clone)]
struct ThreadSlots(Slots);
#[derive(Clone)]
struct SessionSlots(Slots);
#[derive(Clone)]
struct SessionId(ThreadId);

impl Context {
    /// Sets the slots of the run's conversation.
    pub fn set_thread_slots(&mut self, slots: Slots) {
        self.extensions_mut().insert(ThreadSlots(slots));
    }

    /// Sets the slots of the run's session.
    pub fn set_session_slots(&mut self, slots: Slots) {
        self.extensions_mut().insert(SessionSlots(slots));
    }

    /// The id of the run's session: that of the conversation that the session began with, also in a
    /// fork. `None` outside a session.
    pub fn session_id(&self) -> Option<&ThreadId> {
        self.extensions().get::<SessionId>().map(|id| &id.0)
    }

    /// Sets the id of the run's session, such as `Session` of `concentric-layers` does.
    pub fn set_session_id(&mut self, id: ThreadId) {
        self.extensions_mut().insert(SessionId(id));
    }

    /// Returns the current value of a slot.
    ///
    /// # Errors
    ///
    /// The [scope](Slot::SCOPE) of the slot does not exist here, as that of a call outside calls,
    /// or the stored value is not valid for this slot.
    pub fn state<S>(&self) -> Result<Arc<S::Value>, SlotError>
    where
        S: Slot,
    {
        let (slots, place) = self.slots::<S>()?;
        slots.get::<S>(place)
    }

    /// Replaces the value of a slot with the result of `update`, and returns the new value.
    ///
    /// `update` is called again if another update of the slot happened in the meantime.
    ///
    /// # Errors
    ///
    /// Those of [`state`](Self::state).
    pub fn update_state<S>(
        &self,
        update: impl FnMut(&S::Value) -> S::Value,
    ) -> Result<Arc<S::Value>, SlotError>
    where
        S: Slot,
    {
        let (slots, place) = self.slots::<S>()?;
        let value = slots.update::<S>(place, update)?;
        self.record(|| TraceStep::StateChanged {
            slot: S::NAME,
            value: S::Keep::write(&value).and_then(Result::ok),
        });
        Ok(value)
    }

    /// Serializes the values of the run's own durable slots, to be stored with its state
    /// ([`RunState::with_slots`](crate::machine::RunState::with_slots)). Only for custom
    /// loops: an agent stores them itself.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    pub fn stored_state(&self) -> Result<Vec<StoredSlot>, SlotError> {
        self.slots_of_run()
            .map_or_else(|| Ok(Vec::new()), Slots::snapshot)
    }

    /// Restores the run's own durable slots
    /// ([`RunState::slots`](crate::machine::RunState::slots)). Only the first call has an
    /// effect.
    pub fn restore_state(&self, stored: &[StoredSlot]) {
        if !stored.is_empty() {
            self.run_slots().resume(stored.iter().cloned());
        }
    }

    /// Returns the slots that contain the value of `S`, and its place in them.
    fn slots<S>(&self) -> Result<(&Slots, SlotPlace), SlotError>
    where
        S: Slot,
    {
        let nowhere = || SlotError::not_here(S::NAME, S::SCOPE);
        let shared = || self.extensions().get::<ThreadSlots>().map(|slots| &slots.0);
        Ok(match S::SCOPE {
            Scope::Call => (self.run_slots(), self.place_of_call().ok_or_else(nowhere)?),
            Scope::Round => (self.run_slots(), self.place_of_round().ok_or_else(nowhere)?),
            Scope::Run => (self.run_slots(), SlotPlace::Whole),
            Scope::Thread => (
                shared().unwrap_or_else(|| self.run_slots()),
                SlotPlace::Whole,
            ),
            Scope::Session => {
                let session = self.extensions().get::<SessionSlots>();
                let slots = session.map(|slots| &slots.0).or_else(shared);
                (slots.unwrap_or_else(|| self.run_slots()), SlotPlace::Whole)
            }
        })
    }
}
