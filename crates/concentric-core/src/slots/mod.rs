//! Slots: typed places for values, and the values in them.

mod values;

pub use self::values::{SessionSlots, Slots, ThreadSlots};

use concentric_proto::{Error, ErrorKind, Str};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{error::Error as StdError, fmt, sync::Arc};
use tower::BoxError;

/// A typed place for a value.
///
/// See the [module docs](crate::state).
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

    /// Creates the error of a slot whose scope does not exist here.
    pub(crate) const fn not_here(slot: &'static str, scope: Scope) -> Self {
        Self::new(slot, Fault::NotHere(scope))
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
