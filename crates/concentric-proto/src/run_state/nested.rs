//! The state of a nested agent, which is used as the model of another agent.

use super::{Data, RunState, Stage, StoredCall};
use crate::{
    id::CallId,
    message::{Executor, Message, Part, PartKind, Role},
    usage::Usage,
};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The answer of a nested agent that waits for replies or is about to run its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inner {
    pub(crate) state: Data,
    pub(crate) said: Said,
}

/// The part of a nested agent's answer that was received so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) message: Message,
    // The calls for this loop, which it runs once the answer is complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<StoredCall>,
    // The tokens used before the answer began. The nested agent's own count includes those of the
    // answer.
    pub(crate) used: Usage,
}

impl Inner {
    /// The open calls of the nested agent that a layer around it has not passed on yet. They are
    /// emitted before their results.
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
    pub(crate) const fn new(message: Message, calls: Vec<StoredCall>, used: Usage) -> Self {
        Self {
            message,
            calls,
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
    /// Returns the state of the outer run while its nested agent is in the state `inner` and has
    /// written `said`.
    pub(crate) fn around(mut self, said: Said, RunState(inner): RunState) -> RunState {
        self.usage = said.used;
        self.usage += inner.usage;
        self.stage = Stage::Inner(Box::new(Inner { state: inner, said }));
        RunState(self)
    }
}
