//! State that layers and tools share: typed places for values, each of a call, a round, a run, a
//! conversation or a session.
//!
//! A [`Slot`] names a place and says what stands in it; [`Context::state`] reads it, and
//! [`Context::update_state`] puts another value there, which the next reader sees. One layer value
//! serves many runs at once, and each has its own values.
//!
//! ```
//! use concentric_core::{Context, state::{Durable, Scope, Slot, SlotError}};
//!
//! /// How many files the run has written.
//! struct Written;
//!
//! impl Slot for Written {
//!     type Value = u32;
//!     type Keep = Durable; // It is there after a suspension, and after a crash.
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
//! A value is never changed in place: a reader keeps the one it has read. An update makes the next
//! one of the last; if another update came between, it is made again of that one, so that none is
//! lost, whichever calls of a round run side by side. No lock is held meanwhile.
//!
//! # What is kept
//!
//! A [`Durable`] slot is written down with the run whenever its state is
//! ([`MachineState`](crate::machine::MachineState)): when it waits, and before its tools start. A
//! crash loses what was written to it after that, as it loses the rest of the step. Slots of a
//! conversation are kept by whoever keeps the conversation, in [`Slots`]; and a value is of a
//! [version](Slot::VERSION), so that newer code can read what older code has written.
//!
//! A durable slot whose value can't be written down does not compile:
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

pub use crate::slots::{
    Durable, Keep, Scope, SessionSlots, Slot, SlotError, Slots, ThreadSlots, Transient,
};
pub use concentric_proto::run_state::{RoundPlace, SlotPlace, StoredSlot};

use crate::context::Context;
use std::sync::Arc;

impl Context {
    /// The value in a slot, as it is now.
    ///
    /// # Errors
    ///
    /// There is nothing here that the slot is [of](Slot::SCOPE), as there is no call outside of
    /// one; or what was written down is not of this slot.
    pub fn state<S>(&self) -> Result<Arc<S::Value>, SlotError>
    where
        S: Slot,
    {
        let (slots, place) = self.slots::<S>()?;
        slots.get::<S>(place)
    }

    /// Puts into a slot what `update` makes of the value in it, and returns that.
    ///
    /// `update` is called again if somebody else was faster.
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
        slots.update::<S>(place, update)
    }

    /// The values of the run's own durable slots, to be stored with its state
    /// ([`MachineState::with_slots`](crate::machine::MachineState::with_slots)). For drivers of loops
    /// of their own: an agent stores them itself.
    ///
    /// # Errors
    ///
    /// A value can't be written.
    pub fn stored_state(&self) -> Result<Vec<StoredSlot>, SlotError> {
        self.slots_of_run()
            .map_or_else(|| Ok(Vec::new()), Slots::snapshot)
    }

    /// Puts stored values into the run's own durable slots
    /// ([`MachineState::slots`](crate::machine::MachineState::slots)), the first time it is called.
    pub fn restore_state(&self, stored: &[StoredSlot]) {
        if !stored.is_empty() {
            self.run_slots().resume(stored.iter().cloned());
        }
    }

    /// What keeps the values of a slot here, and for what.
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
