use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::json::json_len;

/// The state last sent to the client.
///
/// The input's state does not count, since not every client keeps the state it sent.
#[derive(Debug, Default)]
pub(super) struct State {
    sent: Option<Arc<Value>>,
}

/// The event that updates the client's state.
pub(super) enum Update {
    Snapshot,
    Delta(Vec<Operation>),
}

impl State {
    /// The update of the client's state to `next`; `None` if it is unchanged.
    pub(super) fn update(&mut self, next: &Arc<Value>) -> Option<Update> {
        let Some(sent) = self.sent.replace(Arc::clone(next)) else {
            return Some(Update::Snapshot);
        };
        if Arc::ptr_eq(&sent, next) {
            return None;
        }
        if !matches!(
            (&*sent, &**next),
            (Value::Object(_), Value::Object(_)) | (Value::Array(_), Value::Array(_))
        ) {
            return (sent != *next).then_some(Update::Snapshot);
        }
        match Patch::between(&sent, next) {
            Some(delta) if delta.is_empty() => None,
            Some(delta) => Some(Update::Delta(delta)),
            // For example, inserting an element at the front of a list changes all later elements.
            None => Some(Update::Snapshot),
        }
    }
}

/// The number of operations that are sent even if they are longer than a snapshot.
const MANY: usize = 8;

/// The approximate length of an operation without its path and value.
const OVERHEAD: usize = r#"{"op":"remove","path":"","value":},"#.len();

/// One operation of a JSON Patch (RFC 6902); the path is a JSON Pointer (RFC 6901).
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(in crate::ag_ui) enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
}

/// A JSON Patch under construction.
///
/// Each operation repeats its path, so a patch can be many times as long as the states it connects.
/// Construction stops as soon as the patch would be longer than a snapshot.
struct Patch {
    operations: Vec<Operation>,
    /// The current path (RFC 6901).
    path: String,
    size: usize,
    limit: usize,
}

/// The patch is longer than a snapshot.
struct TooLong;

impl Patch {
    fn between(left: &Value, right: &Value) -> Option<Vec<Operation>> {
        let mut patch = Self {
            operations: Vec::new(),
            path: String::new(),
            size: 0,
            limit: json_len(right, usize::MAX)?,
        };
        patch.values(left, right).ok()?;
        Some(patch.operations)
    }

    fn values(&mut self, left: &Value, right: &Value) -> Result<(), TooLong> {
        match (left, right) {
            (Value::Object(left), Value::Object(right)) => self.objects(left, right),
            (Value::Array(left), Value::Array(right)) => self.arrays(left, right),
            _ if left == right => Ok(()),
            _ => self.put(right, |path, value| Operation::Replace { path, value }),
        }
    }

    fn objects(
        &mut self,
        left: &Map<String, Value>,
        right: &Map<String, Value>,
    ) -> Result<(), TooLong> {
        for (key, value) in right {
            self.at(key, |patch| match left.get(key) {
                Some(left) => patch.values(left, value),
                None => patch.put(value, |path, value| Operation::Add { path, value }),
            })?;
        }
        for key in left.keys().filter(|key| !right.contains_key(*key)) {
            self.at(key, Self::remove)?;
        }
        Ok(())
    }

    fn arrays(&mut self, left: &[Value], right: &[Value]) -> Result<(), TooLong> {
        for (index, value) in right.iter().enumerate() {
            self.at(&index.to_string(), |patch| match left.get(index) {
                Some(left) => patch.values(left, value),
                None => patch.put(value, |path, value| Operation::Add { path, value }),
            })?;
        }
        for _ in right.len()..left.len() {
            self.at(&right.len().to_string(), Self::remove)?;
        }
        Ok(())
    }

    /// Runs `work` with `token` appended to the path.
    fn at(
        &mut self,
        token: &str,
        work: impl FnOnce(&mut Self) -> Result<(), TooLong>,
    ) -> Result<(), TooLong> {
        let len = self.path.len();
        self.path.push('/');
        for c in token.chars() {
            match c {
                '~' => self.path.push_str("~0"),
                '/' => self.path.push_str("~1"),
                c => self.path.push(c),
            }
        }
        let done = work(self);
        self.path.truncate(len);
        done
    }

    fn put(
        &mut self,
        value: &Value,
        operation: impl FnOnce(String, Value) -> Operation,
    ) -> Result<(), TooLong> {
        self.grow(json_len(value, usize::MAX).unwrap_or_default())?;
        let operation = operation(self.path.clone(), value.clone());
        self.operations.push(operation);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), TooLong> {
        self.grow(0)?;
        let path = self.path.clone();
        self.operations.push(Operation::Remove { path });
        Ok(())
    }

    fn grow(&mut self, value: usize) -> Result<(), TooLong> {
        let len = self.path.len().saturating_add(value);
        self.size = self.size.saturating_add(len).saturating_add(OVERHEAD);
        if self.operations.len() >= MANY && self.size > self.limit {
            return Err(TooLong);
        }
        Ok(())
    }
}
