//! The interrupts that are raised for calls.

use crate::Digest;
use crate::gate::Ask;
use concentric_core::{
    Arguments, Interrupt, InterruptId, ReplyKind, Str, ToolCall,
    interrupt::{self, DecisionScope, ScopeCalls, ScopeLifetime},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

/// The schema of a reply to an approval interrupt: the fields of the accepted kinds of reply.
fn reply_schema(ask: &Ask) -> Arc<Value> {
    static DEFAULT: LazyLock<Arc<Value>> =
        LazyLock::new(|| Arc::new(schema_of(&Ask::default().accepted(), None)));
    let accepted = ask.accepted();
    if ask.decisions.is_none() && accepted == Ask::default().accepted() {
        return Arc::clone(&DEFAULT);
    }
    let most = DecisionScope {
        what: ScopeCalls::Tool,
        span: ScopeLifetime::Always,
    };
    let remember = ask
        .decisions
        .as_ref()
        .map(|_| ask.remember_at_most.unwrap_or(most));
    Arc::new(schema_of(&accepted, remember))
}

fn schema_of(accepted: &BTreeSet<ReplyKind>, remember: Option<DecisionScope>) -> Value {
    let accepts = |kind| accepted.contains(&kind);
    let runs = accepts(ReplyKind::Approve) || accepts(ReplyKind::Edit);
    let denies = accepts(ReplyKind::Deny);
    let mut properties = Map::new();
    let mut put = |name: &str, schema: Value| properties.insert(name.to_owned(), schema);
    if runs || denies {
        let description = "Whether the call may run.";
        let approved = match runs && denies {
            true => json!({"type": "boolean", "description": description}),
            false => json!({"const": runs, "description": description}),
        };
        put("approved", approved);
        // A scope needs a decision to approve or deny.
        if let Some(most) = remember {
            put("remember", remember_schema(most));
        }
    }
    if accepts(ReplyKind::Edit) {
        let description = "The arguments that replace those of the call.";
        put(
            "editedArgs",
            json!({"type": "object", "description": description}),
        );
    }
    if denies {
        let description = "The reason for denying the call.";
        put(
            "reason",
            json!({"type": "string", "description": description}),
        );
    }
    if accepts(ReplyKind::Answer) {
        let description = "The result of the call; the call is not run.";
        put("result", json!({"description": description}));
    }
    let decides = (runs || denies) && !accepts(ReplyKind::Answer);
    let required: &[&str] = match decides {
        true => &["approved"],
        false => &[],
    };
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false
    })
}

/// The schema of the scope of a decision, up to `most`.
fn remember_schema(most: DecisionScope) -> Value {
    let what = [ScopeCalls::Arguments, ScopeCalls::Tool];
    let what: Vec<_> = what.into_iter().filter(|it| *it <= most.what).collect();
    let span = [
        ScopeLifetime::Run,
        ScopeLifetime::Thread,
        ScopeLifetime::Session,
        ScopeLifetime::Always,
    ];
    let span: Vec<_> = span.into_iter().filter(|it| *it <= most.span).collect();
    json!({
        "type": "object",
        "description": "The further calls that this decision applies to.",
        "properties": {"what": {"enum": what}, "for": {"enum": span}},
        "required": ["what", "for"],
        "additionalProperties": false
    })
}

/// The schema of a reply that reports the outcome of a call.
static EFFECT: LazyLock<Arc<Value>> = LazyLock::new(|| {
    Arc::new(json!({
        "type": "object",
        "properties": {"result": {"description": "The result of the call."}},
        "required": ["result"],
        "additionalProperties": false
    }))
});

/// The interrupt that asks whether `call` may run.
pub(crate) fn approval(
    call: &ToolCall,
    id: InterruptId,
    ask: &Ask,
    message: Option<Str>,
    expires_after: Option<Duration>,
) -> Interrupt {
    let message = message.unwrap_or_else(|| format!("Allow the call of `{}`?", call.name()).into());
    let accepted = ask.accepted();
    let edits = accepted.contains(&ReplyKind::Edit);
    let interrupt = about(call, id, interrupt::TOOL_CALL, message, expires_after)
        .with_response_schema(reply_schema(ask))
        .with_replies(accepted);
    match call.spec() {
        // For forms that edit the arguments.
        Some(spec) if edits => {
            interrupt.with_metadata("argumentsSchema", Value::clone(&spec.input_schema))
        }
        _ => interrupt,
    }
}

/// The interrupt that asks for the outcome of `call`, which was abandoned or whose process ended.
pub(crate) fn effect(call: &ToolCall, id: InterruptId) -> Interrupt {
    let message = format!(
        "`{}` was started, and its outcome is unknown. Enter its result.",
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
    // Validated arguments are JSON. Deeply nested ones could not be parsed again from a store.
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
        // Too deep, or with a number that a `Value` cannot represent: this text is what runs.
        interrupt = interrupt.with_metadata("argumentsText", text);
    }
    match expires_after.and_then(|after| whole(call.context.now()).checked_add(after)) {
        Some(expires_at) => interrupt.until(expires_at),
        None => interrupt,
    }
}

/// The nesting limit of arguments that are sent as a value.
const MAX_DEPTH: usize = 32;

fn is_deeper_than(levels: usize, value: &Value) -> bool {
    let within = |value: &Value| levels == 0 || is_deeper_than(levels - 1, value);
    match value {
        Value::Array(items) => items.iter().any(within),
        Value::Object(fields) => fields.values().any(within),
        _ => false,
    }
}

/// The arguments in an interrupt.
pub(crate) fn arguments(asked: &Interrupt) -> Option<Arguments> {
    Some(match asked.metadata.get("argumentsText") {
        Some(text) => Arguments::new(text.as_str()?),
        None => Arguments::new(asked.metadata.get("arguments")?.to_string()),
    })
}

/// A time truncated to milliseconds, as it is stored.
fn whole(time: SystemTime) -> SystemTime {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The interrupt id for `call`; `kind` distinguishes a second interrupt for it.
pub(crate) fn id(call: &ToolCall, kind: &str) -> InterruptId {
    let id = call.context.interrupt_id();
    let id = id.map_or_else(|| call.id().to_string(), |id| id.to_string());
    InterruptId::new(id + kind)
}

/// The interrupt id for an edit of `call`, which replied to `answered`: each edit has its own.
pub(crate) fn edited_id(call: &ToolCall, answered: &InterruptId) -> InterruptId {
    let (before, count) = edit_of(call, answered).unwrap_or((answered.as_str(), 0));
    InterruptId::new(format!("{before}{EDIT}{}", count.saturating_add(1)))
}

/// Whether `id` is that of an interrupt about an edit of `call`.
pub(crate) fn is_edit(call: &ToolCall, id: &InterruptId) -> bool {
    edit_of(call, id).is_some()
}

const EDIT: &str = "#edit-";

/// The id of the edited interrupt, and the number of the edit.
fn edit_of<'a>(call: &ToolCall, id: &'a InterruptId) -> Option<(&'a str, u64)> {
    let first = self::id(call, "");
    // The prefix contains text that the model controls.
    let kind = id.as_str().strip_prefix(first.as_str())?;
    let (kind, count) = kind.rsplit_once(EDIT)?;
    let before = id.as_str().get(..first.as_str().len() + kind.len())?;
    Some((before, count.parse().ok()?))
}
