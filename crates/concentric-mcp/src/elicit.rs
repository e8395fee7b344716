//! Questions of a server as interrupts.

use crate::text;
use concentric_core::{Interrupt, InterruptId, Reply, Str, interrupt::ReplyStatus};
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Map, Value};

/// The [reason](Interrupt::reason) of an interrupt for which a server requests input. The payload of the
/// reply is an object that matches the schema of the interrupt.
pub const ELICITATION: Str = Str::from_static("elicitation");

/// The longest question that is shown (bytes).
const MAX_MESSAGE: usize = 4 << 10;
/// The largest form (bytes).
const MAX_FORM: usize = 64 << 10;

/// The interrupt for a question; `None` if it is not a form, or one that is too large. A URL is never
/// shown: it may lead anywhere.
pub(crate) fn interrupt(
    server: &str,
    id: InterruptId,
    question: &ElicitRequestParams,
) -> Option<Interrupt> {
    let ElicitRequestParams::FormElicitationParams {
        message,
        requested_schema,
        ..
    } = question
    else {
        return None;
    };
    let schema = serde_json::to_value(requested_schema).ok()?;
    if schema.to_string().len() > MAX_FORM {
        return None;
    }
    let message = text::cut(text::visible(message), MAX_MESSAGE);
    let interrupt = Interrupt::new(id, ELICITATION)
        .with_message(format!(
            "The MCP server `{server}` requests input: {message}"
        ))
        .with_response_schema(schema)
        .with_metadata("server", server);
    Some(interrupt)
}

/// The answer to a question with this form. The payload of a reply is the content of the form, where
/// fields that are missing have their defaults; a cancellation is a refusal to answer.
pub(crate) fn answer(reply: Option<&Reply>, form: Option<&Value>) -> ElicitResult {
    match reply {
        Some(reply) if reply.status == ReplyStatus::Resolved => match &reply.payload {
            Some(Value::Object(content)) => {
                let content = with_defaults(content.clone(), form);
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(content))
            }
            _ => ElicitResult::new(ElicitationAction::Decline),
        },
        Some(_) => ElicitResult::new(ElicitationAction::Decline),
        None => ElicitResult::new(ElicitationAction::Cancel),
    }
}

fn with_defaults(mut content: Map<String, Value>, form: Option<&Value>) -> Map<String, Value> {
    let fields = form.and_then(|form| form.get("properties")?.as_object());
    for (name, field) in fields.into_iter().flatten() {
        if let Some(default) = field.get("default")
            && !content.contains_key(name)
        {
            content.insert(name.clone(), default.clone());
        }
    }
    content
}
