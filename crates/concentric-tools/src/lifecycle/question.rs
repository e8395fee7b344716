//! The questions that are asked about calls.

use crate::Digest;
use crate::approval::Ask;
use concentric_core::{
    Arguments, Interrupt, InterruptId, Str, ToolCall,
    interrupt::{self, Remember, RememberFor, RememberWhat},
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

/// The schema of a reply to a question whether a call may run.
static APPROVAL: LazyLock<Arc<Value>> = LazyLock::new(|| {
    let mut schema = Value::clone(&REMEMBERED);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("remember");
    }
    Arc::new(schema)
});

/// The same, where a decision can be remembered.
static REMEMBERED: LazyLock<Arc<Value>> = LazyLock::new(|| {
    Arc::new(json!({
        "type": "object",
        "properties": {
            "approved": {"type": "boolean", "description": "Whether the call may run."},
            "editedArgs": {"type": "object", "description": "What it is to run with instead."},
            "reason": {"type": "string", "description": "Why it may not run."},
            "result": {"description": "The call's result, instead of running it."},
            "remember": {
                "type": "object",
                "description": "Which other calls this holds for.",
                "properties": {
                    "what": {"enum": ["arguments", "tool"]},
                    "for": {"enum": ["run", "thread", "always"]}
                },
                "required": ["what", "for"],
                "additionalProperties": false
            }
        },
        "additionalProperties": false
    }))
});

/// The same, where it can be remembered for no more than `most`.
fn remembered_at_most(most: Remember) -> Arc<Value> {
    let what = [RememberWhat::Arguments, RememberWhat::Tool];
    let what: Vec<_> = what.into_iter().filter(|it| *it <= most.what).collect();
    let span = [RememberFor::Run, RememberFor::Thread, RememberFor::Always];
    let span: Vec<_> = span.into_iter().filter(|it| *it <= most.span).collect();
    let mut schema = Value::clone(&REMEMBERED);
    for (name, allowed) in [("what", json!(what)), ("for", json!(span))] {
        let at = format!("/properties/remember/properties/{name}/enum");
        if let Some(all) = schema.pointer_mut(&at) {
            *all = allowed;
        }
    }
    Arc::new(schema)
}

/// The schema of a reply to a question what a call did.
static EFFECT: LazyLock<Arc<Value>> = LazyLock::new(|| {
    Arc::new(json!({
        "type": "object",
        "properties": {"result": {"description": "What came of the call."}},
        "required": ["result"],
        "additionalProperties": false
    }))
});

/// Asks whether `call` may run.
pub(super) fn approval(
    call: &ToolCall,
    id: InterruptId,
    ask: &Ask,
    message: Option<Str>,
    expires_after: Option<Duration>,
) -> Interrupt {
    let message = message.unwrap_or_else(|| format!("May `{}` be called?", call.name()).into());
    let schema = match (&ask.decisions, ask.remember_at_most) {
        (None, _) => Arc::clone(&APPROVAL),
        (Some(_), None) => Arc::clone(&REMEMBERED),
        (Some(_), Some(most)) => remembered_at_most(most),
    };
    about(call, id, interrupt::TOOL_CALL, message, expires_after).with_response_schema(schema)
}

/// Asks what `call` did.
pub(super) fn effect(call: &ToolCall, id: InterruptId) -> Interrupt {
    let message = format!(
        "`{}` was started, and its process ended before it was done. What came of it?",
        call.name()
    );
    about(call, id, interrupt::UNKNOWN_EFFECT, message.into(), None)
        .with_response_schema(Arc::clone(&EFFECT))
}

fn about(
    call: &ToolCall,
    id: InterruptId,
    reason: Str,
    message: Str,
    expires_after: Option<Duration>,
) -> Interrupt {
    let text = call.arguments().as_str();
    // What was validated is JSON. What is nested deep could not be read again where this is kept.
    let arguments: Value = serde_json::from_str(text)
        .ok()
        .filter(|arguments| !is_deeper_than(MAX_DEPTH, arguments))
        .unwrap_or_else(|| text.into());
    let is_exact = Digest::of_json(text).is_ok_and(|exact| exact == Digest::of_value(&arguments));
    let mut interrupt = Interrupt::new(id, reason)
        .about(call.id().clone())
        .with_message(message)
        .with_metadata("tool", call.name().as_str())
        .with_metadata("arguments", arguments);
    if !is_exact {
        // They are deep, or a number has more digits than a value keeps: this is what runs.
        interrupt = interrupt.with_metadata("argumentsText", text);
    }
    match expires_after.and_then(|after| whole(call.context.now()).checked_add(after)) {
        Some(expires_at) => interrupt.until(expires_at),
        None => interrupt,
    }
}

/// How deep arguments are nested at the most that are shown as a value.
const MAX_DEPTH: usize = 32;

fn is_deeper_than(levels: usize, value: &Value) -> bool {
    let within = |value: &Value| levels == 0 || is_deeper_than(levels - 1, value);
    match value {
        Value::Array(items) => items.iter().any(within),
        Value::Object(fields) => fields.values().any(within),
        _ => false,
    }
}

/// The arguments that were asked about.
pub(super) fn arguments(asked: &Interrupt) -> Option<Arguments> {
    Some(match asked.metadata.get("argumentsText") {
        Some(text) => Arguments::new(text.as_str()?),
        None => Arguments::new(asked.metadata.get("arguments")?.to_string()),
    })
}

/// A time in whole milliseconds, as it is written down.
fn whole(time: SystemTime) -> SystemTime {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The id of what is asked about `call`; `kind` tells a second question about it apart.
pub(super) fn id(call: &ToolCall, kind: &str) -> InterruptId {
    let id = call.context.interrupt_id();
    let id = id.map_or_else(|| call.id().to_string(), |id| id.to_string());
    InterruptId::new(id + kind)
}
