//! The state of an agent in the model's place.

use super::{Data, MachineState, Slot, Stage};
use crate::{
    id::CallId,
    message::{Executor, Message, Part, PartKind, Role},
    usage::Usage,
};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The answer of an agent in the model's place, which waits for replies, or is to run its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inner {
    pub(crate) state: Data,
    pub(crate) said: Said,
}

/// What an agent in the model's place has said so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) message: Message,
    // Those of its calls that this loop runs once it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<Slot>,
    // The tokens used before it began: its own count goes on where it was.
    pub(crate) used: Usage,
}

impl Inner {
    /// The calls that it has yet to tell the results of, and that a layer around it held back when
    /// this was written: a result is to have its call before it.
    pub(crate) fn unsaid(&self) -> HashMap<CallId, Part> {
        let message = match &self.state.stage {
            Stage::Round(round) => &round.message,
            Stage::Inner(inner) => &inner.said.message,
            Stage::Model | Stage::Ended => return HashMap::new(),
        };
        let said: HashSet<&CallId> = self
            .said
            .message
            .tool_calls()
            .map(|call| &call.id)
            .collect();
        let unsaid = message.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) if !said.contains(&call.id) => {
                let mut part = part.clone();
                part.kind = PartKind::ToolCall(call.clone().executed_by(Executor::Agent));
                Some((call.id.clone(), part))
            }
            _ => None,
        });
        unsaid.collect()
    }
}

impl Said {
    pub(crate) const fn new(message: Message, slots: Vec<Slot>, used: Usage) -> Self {
        Self {
            message,
            slots,
            used,
        }
    }

    pub(crate) const fn nothing(used: Usage) -> Self {
        let message = Message {
            id: None,
            role: Role::Assistant,
            parts: Vec::new(),
        };
        Self::new(message, Vec::new(), used)
    }
}

impl Data {
    /// Returns the state of a run in this state, whose model has written `said` so far and is an agent in the
    /// state `inner`.
    pub(crate) fn around(mut self, said: Said, MachineState(inner): MachineState) -> MachineState {
        self.usage = said.used;
        self.usage += inner.usage;
        self.stage = Stage::Inner(Box::new(Inner { state: inner, said }));
        MachineState(self)
    }
}
