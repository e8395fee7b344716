//! What happens to a tool call between the model's wish and its outcome.
//!
//! A round goes through four stages, and a call that is taken up after it waited goes through the
//! same: prepare (decode, validate, edit), gate, execute (the layers and the tool), settle. The
//! first two are here; [`Toolset`](crate::Toolset) drives them.

mod asked;
mod changed;
mod client;
mod doubt;
mod effects;
mod gating;
mod proof;
mod question;
mod record;
mod replied;
mod rule;
mod session;
mod told;

pub use self::{
    proof::Tokens,
    record::{ProtocolEntry, ProtocolStep},
    rule::Siblings,
    session::{RoundEnd, ToolLifecycle},
};

pub(crate) use self::{
    changed::{Arrival, check_arrival, decide_changed},
    doubt::{find_outcome, is_recovered, not_gone_on, unknown_at_best},
    effects::{Effects, goes_on, run as run_with_ledger},
    gating::{Entry, Gated, LiveCall, Replied, gate_round, suspend_tool},
    record::Protocol,
    rule::{Prepare, Rules},
};
