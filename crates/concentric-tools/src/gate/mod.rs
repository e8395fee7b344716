//! Gates of toolsets.
//!
//! [`Approval`](crate::Approval) requires human approval, [`ToolPins`] deny calls of changed tools, and
//! [`gate_fn`] decides by a function. Gates are added by [`Toolset::gate`](crate::Toolset::gate).

mod pins;

pub use self::pins::ToolPins;
pub use concentric_core::gate::{ApprovalEvent, Ask, Decided, Gate, Verdict, gate_fn};
