//! The built-in layers of Concentric.
//!
//! One feature and one module each; none is on by default, and `full` turns on all of them.
//!
//! | layer | feature | does |
//! |---|---|---|
//! | `BudgetLayer` | `budget` | limits what runs spend: money, tokens, calls, time |
//! | `DetachLayer` | `detach` | has a run come to its end when its consumer leaves |
//! | `HooksLayer` | `hooks` | has one value told of runs, model calls and tool calls |
//! | `InFlightLimitLayer` | `in-flight` | limits calls until their bodies end |
//! | `Sessions` | `session` | keeps a conversation, one turn at a time |
//! | `Steering` | `steering` | puts messages into a run that runs |
//! | `StopWhen`, `LoopDetector` and others in `stop` | `stop` | end a run, or don't let it end yet |
//! | `SuspendLayer` | `suspend` | has runs that wait, or whose process dies, gone on with elsewhere |
//!
//! tower's own layers work on models and agents too, and end where the stream begins: a
//! `ConcurrencyLimit` counts a call until its first token, a `Timeout` times the first token. The
//! layers here are for what must hold until the last one.

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
