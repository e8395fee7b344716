//! The stored state of a suspended call.

use crate::Digest;
use concentric_core::{Arguments, Interrupt, Str, Suspension, call::CallState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// The stored state of a suspended call, except for its interrupts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SuspendRecord {
    /// The arguments with which the call enters the stack.
    pub(crate) arguments: Str,
    /// The arguments that were decided about, if a layer had changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arrived: Option<Str>,
    /// The check of the arguments when the call resumes.
    pub(crate) bound: Bound,
    /// The definition of the tool when the call was suspended.
    pub(crate) definition: Digest,
    /// The policy of the gates when the call was suspended.
    pub(crate) policy: Digest,
    /// The ledger key of an unknown effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<Str>,
    /// The tool's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inner: Option<Arc<Value>>,
}

/// The arguments that a suspended call may run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// Any arguments: there was no gate.
    No,
    /// The stored arguments, which the gates passed; the gates decide about others.
    ToGates,
    /// Only the arguments that were decided about.
    ToDecision,
}

impl SuspendRecord {
    /// Creates the suspension for `interrupts`.
    pub(crate) fn suspension(&self, interrupts: Vec<Interrupt>) -> Suspension {
        // A struct of strings always serializes to JSON.
        let state = serde_json::to_value(self).unwrap_or_default();
        Suspension::new(interrupts).with_state(state)
    }

    /// The record of the suspension that the replies to a call are for; `None` if no toolset
    /// suspended the call.
    pub(crate) fn of(state: &CallState) -> Option<Self> {
        Self::deserialize(&**state.resumed()?.on.state.as_ref()?).ok()
    }

    pub(crate) fn entering(&self) -> Arguments {
        Arguments::new(self.arguments.clone())
    }

    /// The arguments that were decided about.
    pub(crate) fn decided(&self) -> Arguments {
        Arguments::new(self.arrived.as_ref().unwrap_or(&self.arguments).clone())
    }
}
