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

mod slots;

pub use self::slots::{SessionSlots, Slots, StoredSlot, ThreadSlots};

pub(crate) use self::slots::{Place, RoundPlace};

use crate::{BoxError, Context, Error, ErrorKind, Str};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{error::Error as StdError, fmt, sync::Arc};

/// A typed place for a value.
///
/// See the [module docs](self).
pub trait Slot: 'static {
    /// What stands there; its default, before anything was put there.
    type Value: Default + Send + Sync + 'static;

    /// [`Transient`] or [`Durable`].
    type Keep: Keep<Self::Value>;

    /// Names the slot: in errors, and where it is written down. Put your crate's name in front.
    const NAME: &'static str;

    /// What has a value of its own.
    const SCOPE: Scope;

    /// The version of what is written down; 1 by default.
    const VERSION: u32 = 1;

    /// Makes a value of what another version has written down.
    ///
    /// # Errors
    ///
    /// It can't be made; by default, it never can.
    fn migrate(version: u32, value: Value) -> Result<Self::Value, BoxError> {
        drop(value);
        Err(format!(
            "there is no way from version {version} to {}",
            Self::VERSION
        )
        .into())
    }
}

/// What has a value of its own in a [`Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Each tool call, also when it is resumed.
    Call,
    /// Each batch of tool calls.
    Round,
    /// Each run. A sub-agent's run is another one.
    Run,
    /// Each conversation. Where nobody keeps conversations ([`ThreadSlots`]), each run.
    Thread,
    /// Each session, over the forks of its conversation. Where nobody keeps sessions
    /// ([`SessionSlots`]), each conversation.
    Session,
}

/// Whether, and how, a slot's values are written down: [`Transient`] or [`Durable`].
#[diagnostic::on_unimplemented(
    message = "a durable slot can't hold `{V}`, which can't be written down and read again",
    label = "this needs `{V}: Serialize + DeserializeOwned`",
    note = "derive `serde::Serialize` and `serde::Deserialize` for it, or make the slot `Transient`"
)]
pub trait Keep<V> {
    /// Whether values are written down.
    const DURABLE: bool;

    /// What is written down of a value, if anything is.
    fn write(value: &V) -> Option<Result<Value, serde_json::Error>>;

    /// The value that was written down so; `None`, if none is.
    fn read(value: Value) -> Option<Result<V, serde_json::Error>>;
}

/// A slot whose values are gone with the process.
#[derive(Clone, Copy, Debug)]
pub struct Transient;

/// A slot whose values are written down.
#[derive(Clone, Copy, Debug)]
pub struct Durable;

impl<V> Keep<V> for Transient {
    const DURABLE: bool = false;

    fn write(_: &V) -> Option<Result<Value, serde_json::Error>> {
        None
    }

    fn read(_: Value) -> Option<Result<V, serde_json::Error>> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<V> Keep<V> for Durable
where
    V: Serialize + DeserializeOwned,
{
    const DURABLE: bool = true;

    fn write(value: &V) -> Option<Result<Value, serde_json::Error>> {
        Some(serde_json::to_value(value))
    }

    fn read(value: Value) -> Option<Result<V, serde_json::Error>> {
        Some(serde_json::from_value(value))
    }
}

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
    fn slots<S>(&self) -> Result<(&Slots, Place), SlotError>
    where
        S: Slot,
    {
        let nowhere = || SlotError::new(S::NAME, Fault::NotHere(S::SCOPE));
        let shared = || self.extensions().get::<ThreadSlots>().map(|slots| &slots.0);
        Ok(match S::SCOPE {
            Scope::Call => (self.run_slots(), self.place_of_call().ok_or_else(nowhere)?),
            Scope::Round => (self.run_slots(), self.place_of_round().ok_or_else(nowhere)?),
            Scope::Run => (self.run_slots(), Place::Whole),
            Scope::Thread => (shared().unwrap_or_else(|| self.run_slots()), Place::Whole),
            Scope::Session => {
                let session = self.extensions().get::<SessionSlots>();
                let slots = session.map(|slots| &slots.0).or_else(shared);
                (slots.unwrap_or_else(|| self.run_slots()), Place::Whole)
            }
        })
    }
}

/// Why there is no value to be had from a slot.
#[derive(Clone, Debug)]
pub struct SlotError {
    slot: &'static str,
    fault: Fault,
}

#[derive(Clone, Debug)]
enum Fault {
    /// Nothing here is of that scope.
    NotHere(Scope),
    /// Another slot has the name.
    Name,
    /// What was written down can't be read.
    Read(u32, Arc<dyn StdError + Send + Sync>),
    /// The value can't be written down.
    Write(Arc<dyn StdError + Send + Sync>),
}

impl SlotError {
    const fn new(slot: &'static str, fault: Fault) -> Self {
        Self { slot, fault }
    }

    /// The [name](Slot::NAME) of the slot.
    pub const fn slot(&self) -> &'static str {
        self.slot
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot;
        match &self.fault {
            Fault::NotHere(Scope::Call) => {
                write!(f, "the slot `{slot}` is of a tool call, and this is none")
            }
            Fault::NotHere(_) => {
                write!(
                    f,
                    "the slot `{slot}` is of a round of tool calls, and this is none"
                )
            }
            Fault::Name => write!(f, "two slots are named `{slot}`"),
            Fault::Read(version, _) => write!(
                f,
                "what version {version} of the slot `{slot}` has written down can't be read"
            ),
            Fault::Write(_) => write!(f, "the value of the slot `{slot}` can't be written down"),
        }
    }
}

impl StdError for SlotError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.fault {
            Fault::Read(_, error) | Fault::Write(error) => Some(&**error),
            Fault::NotHere(_) | Fault::Name => None,
        }
    }
}

impl From<SlotError> for Error {
    fn from(error: SlotError) -> Self {
        Self::new(ErrorKind::Configuration, Str::from(error.to_string()))
            .with_code("slot")
            .with_source(error)
    }
}
