//! The built-in layers of Concentric.
//!
//! Each layer has its own module and feature. No feature is on by default; `full` enables all of
//! them.
//!
//! | layer | feature | purpose |
//! |---|---|---|
//! | `BudgetLayer` | `budget` | limits the cost, tokens, calls and time of runs |
//! | `DetachLayer` | `detach` | continues a run to its end after its consumer disconnects |
//! | `HooksLayer` | `hooks` | calls one value at the lifecycle points of runs, model calls and tool calls |
//! | `InFlightLimitLayer` | `in-flight` | limits concurrent responses until their bodies end |
//! | `Sessions` | `session` | keeps a conversation and runs one turn at a time |
//! | `Steering` | `steering` | inserts messages into an active run |
//! | `StopWhen`, `LoopDetector` and others in `stop` | `stop` | end a run, or prevent it from ending |
//! | `SuspendLayer` | `suspend` | resumes suspended and abandoned runs, also in another process |
//!
//! tower's layers can wrap models and agents, but they stop observing a call when its response
//! future resolves: `ConcurrencyLimit` counts a call until its first token, and `Timeout` limits
//! the time to the first token. The layers of this crate observe a call until its body ends.

#[cfg(feature = "budget")]
pub mod budget;
#[cfg(feature = "detach")]
pub mod detach;
#[cfg(feature = "hooks")]
pub mod hooks;
#[cfg(feature = "in-flight")]
pub mod in_flight;
#[cfg(feature = "session")]
pub mod session;
#[cfg(feature = "steering")]
pub mod steering;
#[cfg(feature = "stop")]
pub mod stop;
#[cfg(feature = "suspend")]
pub mod suspend;
#[cfg(any(
    feature = "detach",
    feature = "in-flight",
    feature = "session",
    feature = "suspend"
))]
mod wait;

#[cfg(feature = "budget")]
pub use self::budget::{Budget, BudgetLayer};
#[cfg(feature = "detach")]
pub use self::detach::DetachLayer;
#[cfg(feature = "hooks")]
pub use self::hooks::{Hooks, hooks};
#[cfg(feature = "in-flight")]
pub use self::in_flight::InFlightLimitLayer;
#[cfg(feature = "session")]
pub use self::session::{Session, Sessions};
#[cfg(feature = "steering")]
pub use self::steering::Steering;
#[cfg(feature = "stop")]
pub use self::stop::StopWhen;
#[cfg(feature = "suspend")]
pub use self::suspend::SuspendLayer;
