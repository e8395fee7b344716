//! Slots: typed storage locations and their values.

mod values;

pub use self::values::Slots;

use concentric_proto::{Error, ErrorKind, Str};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{error::Error as StdError, fmt, sync::Arc};
use tower::BoxError;

/// A typed storage location for a value.
///
/// See the [module docs](crate::state).
pub trait Slot: 'static {
    /// The type of the value. An unset slot has the default value.
    type Value: Default + Send + Sync + 'static;

    /// [`Transient`] or [`Durable`].
    type Keep: Keep<Self::Value>;

    /// The name of the slot in errors and in the stored form. Prefix it with your crate's name.
    const NAME: &'static str;

    /// The scope of the value.
    const SCOPE: Scope;

    /// The version of the stored form; 1 by default.
    const VERSION: u32 = 1;

    /// Converts the stored form of another version to a value.
    ///
    /// # Errors
    ///
    /// The conversion is not possible; by default, it never is.
    fn migrate(version: u32, value: Value) -> Result<Self::Value, BoxError> {
        drop(value);
        Err(format!(
            "version {version} can't be migrated to version {}",
            Self::VERSION
        )
        .into())
    }
}

/// The scope of the value of a [`Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// One value per tool call, which is kept when the call is resumed.
    Call,
    /// One value per round of tool calls.
    Round,
    /// One value per run. The run of a sub-agent has its own.
    Run,
    /// One value per conversation
    /// ([`Context::set_thread_slots`](crate::Context::set_thread_slots)); by default, per run.
    Thread,
    /// One value per session, across the forks of its conversation
    /// ([`Context::set_session_slots`](crate::Context::set_session_slots)); by default, per conversation.
    Session,
}

/// Whether and how the values of a slot are persisted: [`Transient`] or [`Durable`].
#[diagnostic::on_unimplemented(
    message = "a durable slot can't hold `{V}`, which can't be serialized and deserialized",
    label = "requires `{V}: Serialize + DeserializeOwned`",
    note = "derive `serde::Serialize` and `serde::Deserialize` for it, or make the slot `Transient`"
)]
pub trait Keep<V> {
    /// Whether values are persisted.
    const DURABLE: bool;

    /// Serializes a value; `None` if values are not persisted.
    fn write(value: &V) -> Option<Result<Value, serde_json::Error>>;

    /// Deserializes a stored value; `None` if values are not persisted.
    fn read(value: Value) -> Option<Result<V, serde_json::Error>>;
}

/// A slot whose values are lost with the process.
#[derive(Clone, Copy, Debug)]
pub struct Transient;

/// A slot whose values are persisted.
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

/// The error of reading or updating a slot.
#[derive(Clone, Debug)]
pub struct SlotError {
    slot: &'static str,
    fault: Fault,
}

#[derive(Clone, Debug)]
enum Fault {
    /// This scope does not exist here.
    NotHere(Scope),
    /// Another slot has the same name.
    Name,
    /// The stored form can't be read.
    Read(u32, Arc<dyn StdError + Send + Sync>),
    /// The value can't be serialized.
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

    /// Returns the [name](Slot::NAME) of the slot.
    pub const fn slot(&self) -> &'static str {
        self.slot
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot;
        match &self.fault {
            Fault::NotHere(Scope::Call) => {
                write!(f, "the slot `{slot}` can be used only inside a tool call")
            }
            Fault::NotHere(_) => {
                write!(
                    f,
                    "the slot `{slot}` can be used only inside a round of tool calls"
                )
            }
            Fault::Name => write!(
                f,
                "two slots are named `{slot}`; give each slot its own name"
            ),
            Fault::Read(version, _) => write!(
                f,
                "the value stored by version {version} of the slot `{slot}` can't be read"
            ),
            Fault::Write(_) => write!(f, "the value of the slot `{slot}` can't be serialized"),
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
