use super::layer::Options;
use crate::cache_scope::Owner;
use concentric_core::{Str, ToolCall, interrupt::SuspendedBy, panic::catch};
use serde_json::{Map, Value};
use std::sync::Arc;

pub(super) type KeyFn = dyn Fn(&ToolCall) -> Option<Value> + Send + Sync;

/// What equal calls have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    owner: Owner,
    tool: Str,
    // A change of the schema may change the meaning of the arguments.
    schema: Arc<Value>,
    // Objects are equal whatever the order of their keys.
    arguments: Value,
}

impl Key {
    /// Returns the key of a call; `None` if the call is not cached.
    pub(super) fn of(options: &Options, call: &ToolCall) -> Option<Self> {
        let spec = call.spec()?;
        let is_named = options.tools.iter().any(|name| name == call.name());
        let is_cached = is_named || options.tools.is_empty() && spec.annotations.read_only;
        if !is_cached || call.settled().is_some() || call.refusal().is_some() || has_replies(call) {
            return None;
        }
        let arguments = match &options.key {
            Some(key) => catch(|| key(call)).unwrap_or_else(|panic| {
                let panic = panic.text();
                tracing::warn!(target: "concentric::tool_cache", panic, "the key of a tool call panicked");
                None
            })?,
            None => {
                let mut arguments = serde_json::from_str(call.arguments().as_str()).ok()?;
                add_defaults(&mut arguments, &spec.input_schema);
                arguments
            }
        };
        Some(Self {
            owner: options.scope.owner(&call.context)?,
            tool: call.name().clone(),
            schema: Arc::clone(&spec.input_schema),
            arguments,
        })
    }
}

/// Whether the tool itself waited for replies that the call now has.
fn has_replies(call: &ToolCall) -> bool {
    match call.resumed() {
        Some(resumed) => resumed.by != SuspendedBy::Gate,
        None => !call.replies().is_empty(),
    }
}

/// Adds the defaults of absent properties, at all depths of nested objects.
fn add_defaults(value: &mut Value, schema: &Value) {
    let (Value::Object(object), Some(Value::Object(properties))) =
        (value, schema.get("properties"))
    else {
        return;
    };
    add_to(object, properties);
}

fn add_to(object: &mut Map<String, Value>, properties: &Map<String, Value>) {
    for (name, schema) in properties {
        match (object.get_mut(name), schema.get("default")) {
            (Some(value), _) => add_defaults(value, schema),
            (None, Some(default)) => drop(object.insert(name.clone(), default.clone())),
            (None, None) => {}
        }
    }
}
