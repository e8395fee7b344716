//! The built-in layers of Concentric.
//!
//! One feature and one module each; none is on by default, and `full` turns on all of them.
//!
//! | layer | feature | does |
//! |---|---|---|
//! | `InFlightLimitLayer` | `in-flight` | limits calls until their bodies end |
//! | `SuspendLayer` | `suspend` | has runs that wait, or whose process dies, gone on with elsewhere |
//!
//! tower's own layers work on models and agents too, and end where the stream begins: a
//! `ConcurrencyLimit` counts a call until its first token, a `Timeout` times the first token. The
//! layers here are for what must hold until the last one.

#[cfg(feature = "in-flight")]
pub mod in_flight;
#[cfg(feature = "suspend")]
pub mod suspend;

#[cfg(feature = "in-flight")]
pub use self::in_flight::InFlightLimitLayer;
#[cfg(feature = "suspend")]
pub use self::suspend::SuspendLayer;
