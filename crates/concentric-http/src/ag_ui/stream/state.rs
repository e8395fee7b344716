use std::sync::Arc;

use json_patch::PatchOperation as Operation;
use serde_json::Value;

use super::super::{Event, PatchOperation, StateDelta, StateSnapshot};

/// What the client knows of the state.
///
/// The input's state does not count: not every client keeps what it sends.
#[derive(Debug, Default)]
pub(super) struct State {
    sent: Option<Arc<Value>>,
}

impl State {
    /// The event that makes the client's state `next`; none if it is that already.
    pub(super) fn event(&mut self, next: &Arc<Value>) -> Option<Event> {
        let sent = self.sent.replace(Arc::clone(next));
        let snapshot = || Event::from(StateSnapshot::new(Value::clone(next)));
        let Some(sent) = sent else {
            return Some(snapshot());
        };
        if !matches!(
            (&*sent, &**next),
            (Value::Object(_), Value::Object(_)) | (Value::Array(_), Value::Array(_))
        ) {
            return (sent != *next).then(snapshot);
        }
        let delta: Vec<PatchOperation> = json_patch::diff(&sent, next)
            .0
            .into_iter()
            .map(operation)
            .collect();
        if delta.is_empty() {
            return None;
        }
        // An element that is put in the front of a list changes all that stand behind it.
        if delta.len() > MANY && size(&delta) > super::super::state::json_len(next, usize::MAX)? {
            return Some(snapshot());
        }
        Some(StateDelta::new(delta).into())
    }
}

/// How many operations may be worth less than a snapshot.
const MANY: usize = 8;

fn size(delta: &[PatchOperation]) -> usize {
    delta
        .iter()
        .map(|operation| match operation {
            PatchOperation::Add { path, value } | PatchOperation::Replace { path, value } => {
                let len = super::super::state::json_len(value, usize::MAX);
                path.len() + len.unwrap_or_default() + OVERHEAD
            }
            PatchOperation::Remove { path } => path.len() + OVERHEAD,
            _ => OVERHEAD,
        })
        .sum()
}

/// What an operation has besides its path and its value.
const OVERHEAD: usize = r#"{"op":"remove","path":"","value":},"#.len();

fn operation(operation: Operation) -> PatchOperation {
    match operation {
        Operation::Add(op) => PatchOperation::Add {
            path: op.path.to_string(),
            value: op.value,
        },
        Operation::Remove(op) => PatchOperation::Remove {
            path: op.path.to_string(),
        },
        Operation::Replace(op) => PatchOperation::Replace {
            path: op.path.to_string(),
            value: op.value,
        },
        Operation::Move(op) => PatchOperation::Move {
            from: op.from.to_string(),
            path: op.path.to_string(),
        },
        Operation::Copy(op) => PatchOperation::Copy {
            from: op.from.to_string(),
            path: op.path.to_string(),
        },
        Operation::Test(op) => PatchOperation::Test {
            path: op.path.to_string(),
            value: op.value,
        },
    }
}
