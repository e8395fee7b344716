//! The lifecycle of a tool call, from the model's request to the outcome.
//!
//! A round passes through four stages: prepare (decode, validate, edit), gate, execute (the layers
//! and the tool), settle. A resumed call passes through the same stages. The first two are
//! implemented here and driven by [`Toolset`](crate::Toolset).

mod asked;
mod changed;
mod client;
mod doubt;
mod effects;
mod gating;
#[cfg(feature = "approval-tokens")]
mod proof;
mod question;
mod record;
mod replied;
mod rule;
mod session;
mod told;
mod verify;

#[cfg(feature = "approval-tokens")]
pub use self::proof::Tokens;
pub use self::{
    record::{ProtocolEntry, ProtocolStep},
    rule::Siblings,
    session::{RoundEnd, ToolLifecycle},
};

#[cfg(feature = "agent-tool")]
pub(crate) use self::effects::goes_on;
pub(crate) use self::{
    changed::{Arrival, check_arrival, decide_changed},
    doubt::{find_outcome, is_recovered},
    effects::{Effects, run as run_with_ledger},
    gating::{Entry, Gated, LiveCall, Replied, gate_round, suspend_tool},
    record::Protocol,
    rule::{Prepare, Rules},
};
