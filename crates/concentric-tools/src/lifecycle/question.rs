//! The questions that are asked about calls.

use crate::Digest;
use crate::approval::Ask;
use concentric_core::{
    Arguments, Interrupt, InterruptId, ReplyKind, Str, ToolCall,
    interrupt::{self, Remember, RememberFor, RememberWhat},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

/// The schema of a reply to the question whether a call may run: the fields of the kinds that the
/// question accepts.
fn reply_schema(ask: &Ask) -> Arc<Value> {
    static DEFAULT: LazyLock<Arc<Value>> =
        LazyLock::new(|| Arc::new(schema_of(&Ask::default().accepted(), None)));
    let accepted = ask.accepted();
    if ask.decisions.is_none() && accepted == Ask::default().accepted() {
        return Arc::clone(&DEFAULT);
    }
    let most = Remember {
        what: RememberWhat::Tool,
        span: RememberFor::Always,
    };
    let remember = ask
        .decisions
        .as_ref()
        .map(|_| ask.remember_at_most.unwrap_or(most));
    Arc::new(schema_of(&accepted, remember))
}

fn schema_of(accepted: &BTreeSet<ReplyKind>, remember: Option<Remember>) -> Value {
    let accepts = |kind| accepted.contains(&kind);
    let runs = accepts(ReplyKind::Approve) || accepts(ReplyKind::Edit);
    let mut properties = Map::new();
    let mut put = |name: &str, schema: Value| properties.insert(name.to_owned(), schema);
    let description = "Whether the call may run.";
    match (runs, accepts(ReplyKind::Deny)) {
        (true, true) => {
            put(
                "approved",
                json!({"type": "boolean", "description": description}),
            );
        }
        (false, false) => {}
        (only, _) => {
            put(
                "approved",
                json!({"const": only, "description": description}),
            );
        }
    }
    if accepts(ReplyKind::Edit) {
        put(
            "editedArgs",
            json!({"type": "object", "description": "The arguments to run the call with instead."}),
        );
    }
    if accepts(ReplyKind::Deny) {
        put(
            "reason",
            json!({"type": "string", "description": "Why the call may not run."}),
        );
    }
    if accepts(ReplyKind::Answer) {
        put(
            "result",
            json!({"description": "The result of the call, instead of running it."}),
        );
    }
    // Who may neither approve nor deny has nothing to be remembered.
    if let Some(most) = remember.filter(|_| runs || accepts(ReplyKind::Deny)) {
        let what = [RememberWhat::Arguments, RememberWhat::Tool];
        let what: Vec<_> = what.into_iter().filter(|it| *it <= most.what).collect();
        let span = [RememberFor::Run, RememberFor::Thread, RememberFor::Always];
        let span: Vec<_> = span.into_iter().filter(|it| *it <= most.span).collect();
        put(
            "remember",
            json!({
                "type": "object",
                "description": "Which other calls this holds for.",
                "properties": {"what": {"enum": what}, "for": {"enum": span}},
                "required": ["what", "for"],
                "additionalProperties": false
            }),
        );
    }
    let decides = (runs || accepts(ReplyKind::Deny)) && !accepts(ReplyKind::Answer);
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
    let accepted = ask.accepted();
    let edits = accepted.contains(&ReplyKind::Edit);
    let interrupt = about(call, id, interrupt::TOOL_CALL, message, expires_after)
        .with_response_schema(reply_schema(ask))
        .with_replies(accepted);
    match call.spec() {
        // So that a form can offer them.
        Some(spec) if edits => {
            interrupt.with_metadata("argumentsSchema", Value::clone(&spec.input_schema))
        }
        _ => interrupt,
    }
}

/// Asks what `call` did, which was given up, or whose process ended.
pub(super) fn effect(call: &ToolCall, id: InterruptId) -> Interrupt {
    let message = format!(
        "`{}` was started, and did not report an outcome. What happened?",
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

/// The id of the question about an edit of `call`, which came as the reply to `answered`: each edit
/// is another question.
pub(super) fn edited_id(call: &ToolCall, answered: &InterruptId) -> InterruptId {
    let (before, count) = edit_of(call, answered).unwrap_or((answered.as_str(), 0));
    InterruptId::new(format!("{before}{EDIT}{}", count.saturating_add(1)))
}

/// Whether `id` is that of a question about an edit of `call`.
pub(super) fn is_edit(call: &ToolCall, id: &InterruptId) -> bool {
    edit_of(call, id).is_some()
}

const EDIT: &str = "#edit-";

/// The id of the question that was edited, and the number of the edit.
fn edit_of<'a>(call: &ToolCall, id: &'a InterruptId) -> Option<(&'a str, u64)> {
    let first = self::id(call, "");
    // What stands before is the model's to choose.
    let kind = id.as_str().strip_prefix(first.as_str())?;
    let (kind, count) = kind.rsplit_once(EDIT)?;
    let before = id.as_str().get(..first.as_str().len() + kind.len())?;
    Some((before, count.parse().ok()?))
}
