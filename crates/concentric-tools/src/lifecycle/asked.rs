use crate::Digest;
use concentric_core::{Arguments, Interrupt, Pending, Str, interrupt::SuspendedBy};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// What is written down of a call that waits, beside the question itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) why: Why,
    /// What the call enters the stack with.
    pub(super) arguments: Str,
    /// What was asked about, if a layer had changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arrived: Option<Str>,
    /// What it may run with.
    pub(super) bound: Bound,
    /// The tool, as it was then.
    pub(super) definition: Digest,
    /// The gates, as they were then.
    pub(super) policy: Digest,
    /// What the ledger calls that which nobody knows about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) effect: Option<Str>,
    /// What the tool itself needs to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) inner: Option<Arc<Value>>,
}

/// What a call that waits may run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// Whatever it arrives with: no gate was there.
    No,
    /// What it enters the stack with; the gates, which did not mind, are asked about the rest.
    ToGates,
    /// What was decided about.
    ToDecision,
}

/// Why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    /// A gate asks.
    Gate,
    /// A layer changed what was decided about.
    Changed,
    /// It was started, and nobody knows what it did.
    Effect,
    /// The tool itself asks.
    Tool,
}

impl Asked {
    /// What is written down about `interrupts`.
    pub(super) fn pending(&self, interrupts: Vec<Interrupt>) -> Pending {
        // A struct of strings is always JSON.
        let state = serde_json::to_value(self).unwrap_or_default();
        Pending::asking(interrupts)
            .with_state(state)
            .by(SuspendedBy::Lifecycle)
    }

    /// What was written down; `None` if it was not us who asked.
    pub(super) fn of(pending: &Pending) -> Option<Self> {
        match pending.by {
            // An older version did not say whose the state is.
            Some(SuspendedBy::Lifecycle) | None => {
                Self::deserialize(&**pending.state.as_ref()?).ok()
            }
            // The state is the tool's, whatever it looks like.
            _ => None,
        }
    }

    pub(super) fn entering(&self) -> Arguments {
        Arguments::new(self.arguments.clone())
    }

    /// What was asked about.
    pub(super) fn decided(&self) -> Arguments {
        Arguments::new(self.arrived.as_ref().unwrap_or(&self.arguments).clone())
    }
}
