//! Interrupts as questions to the user of a client.

use crate::elicit::ELICITATION;
use concentric_core::{Interrupt, Reply, interrupt::TOOL_CALL, machine::RunState};
use rmcp::{
    model::{
        ClientCapabilities, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ErrorData, FormElicitationCapability, InputRequest, InputRequests,
        InputResponses, ProtocolVersion,
    },
    service::{RequestContext, RoleServer},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The time until a question during a call must be answered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// The replies to the interrupts of a suspended call, or why there are none yet.
pub(super) enum Asked {
    Replied(Vec<Reply>),
    /// The client repeats the call with the answers.
    Required(InputRequests),
    /// The text of the result.
    Unanswered(String),
}

/// Requests the replies to all interrupts of a call from the client. A client of the revision 2026-07-28
/// has sent its `answers` with the call.
///
/// # Errors
///
/// The client of that revision cannot show forms.
pub(super) async fn ask(
    state: &RunState,
    answers: &mut InputResponses,
    client: &RequestContext<RoleServer>,
) -> Result<Asked, ErrorData> {
    let interrupts = state.interrupts();
    if is_before_2026_07_28(client) {
        let mut replies = Vec::new();
        for interrupt in interrupts {
            match ask_now(interrupt, client).await {
                Ok(reply) => replies.push(reply),
                Err(why) => return Ok(Asked::Unanswered(why)),
            }
        }
        return Ok(Asked::Replied(replies));
    }
    let mut requests = InputRequests::new();
    let mut replies = Vec::new();
    for interrupt in interrupts {
        let form = match form(interrupt) {
            Ok(form) => form,
            Err(why) => return Ok(Asked::Unanswered(why)),
        };
        if !can_show_forms(client) {
            let capabilities = ClientCapabilities::builder()
                .enable_elicitation_with(
                    ElicitationCapability::default()
                        .with_form(FormElicitationCapability::default()),
                )
                .build();
            let mut error = ErrorData::missing_required_client_capability(capabilities);
            error.message = not_run(interrupt, "the client cannot ask for it").into();
            return Err(error);
        }
        let id = interrupt.id.as_str();
        let answer = answers.get(id).cloned().map(serde_json::from_value);
        if let Some(Ok(answer)) = answer {
            replies.push(reply(interrupt, answer));
        }
        let request = InputRequest::Elicitation(ElicitRequest::new(form));
        requests.insert(id.to_owned(), request);
    }
    if replies.len() < requests.len() {
        return Ok(Asked::Required(requests));
    }
    // The next questions may have the same names.
    answers.clear();
    Ok(Asked::Replied(replies))
}

/// Requests the reply to an interrupt from the client, during the call.
///
/// # Errors
///
/// The text of the result, if the client cannot be asked or does not answer.
pub(super) async fn ask_now(
    interrupt: &Interrupt,
    client: &RequestContext<RoleServer>,
) -> Result<Reply, String> {
    let form = form(interrupt)?;
    if !can_show_forms(client) || !is_before_2026_07_28(client) {
        return Err(not_run(interrupt, "the client cannot ask for it"));
    }
    let peer = &client.peer;
    let answer = peer.create_elicitation_with_timeout(form, Some(ANSWER_TIMEOUT));
    match answer.await {
        Ok(answer) => Ok(reply(interrupt, answer)),
        Err(_) => Err(not_run(interrupt, "the client did not answer")),
    }
}

/// Returns whether the client is of a revision whose servers send requests during a call.
pub(super) fn is_before_2026_07_28(client: &RequestContext<RoleServer>) -> bool {
    let version = client.protocol_version();
    version.is_some_and(|version| version < ProtocolVersion::V_2026_07_28)
}

fn can_show_forms(client: &RequestContext<RoleServer>) -> bool {
    client.client_capabilities().is_some_and(|client| {
        let forms = client.elicitation;
        forms.is_some_and(|it| it.form.is_some() || it.url.is_none())
    })
}

fn not_run(interrupt: &Interrupt, why: &str) -> String {
    let message = interrupt.message.as_deref().unwrap_or_default();
    match interrupt.reason == TOOL_CALL {
        true => {
            let tool = interrupt.tool().unwrap_or("the tool");
            format!("The call was not run: `{tool}` requires an approval, and {why}. ({message})")
        }
        false => format!("The call requires input, and {why}. ({message})"),
    }
}

/// The form of the reply to an interrupt.
///
/// # Errors
///
/// The text of the result, if there is none.
fn form(interrupt: &Interrupt) -> Result<ElicitRequestParams, String> {
    let message = interrupt.message.as_deref();
    let (message, schema) = if interrupt.reason == TOOL_CALL {
        let tool = interrupt.tool().unwrap_or("the tool");
        let message = message.unwrap_or("Approve the call?");
        let arguments = interrupt.arguments().map(Value::to_string);
        let message = format!("{message}\n{tool} {}", arguments.unwrap_or_default());
        let schema = json!({
            "type": "object",
            "properties": {"approved": {"type": "boolean", "title": "Approve the call"}},
            "required": ["approved"],
        });
        (message, schema)
    } else if interrupt.reason == ELICITATION {
        let none = || json!({"type": "object", "properties": {}});
        let schema = interrupt.response_schema.as_deref().cloned();
        let message = message.unwrap_or("The tool requires input.");
        (message.to_owned(), schema.unwrap_or_else(none))
    } else {
        let reason = &interrupt.reason;
        return Err(format!(
            "The call waits for a reply of the kind `{reason}`, which cannot be given over MCP."
        ));
    };
    let requested_schema = serde_json::from_value(schema).map_err(|_| {
        "The call requires input for a form that MCP clients cannot show.".to_owned()
    })?;
    Ok(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema,
    })
}

/// The reply that the user has given in a form.
fn reply(interrupt: &Interrupt, answer: ElicitResult) -> Reply {
    let id = interrupt.id.clone();
    let is_accepted = answer.action == ElicitationAction::Accept;
    let content = answer.content.filter(|_| is_accepted);
    if interrupt.reason == TOOL_CALL {
        let approved = content.as_ref().and_then(|it| it.get("approved"));
        return match approved.and_then(Value::as_bool) {
            Some(true) => Reply::approve(id),
            _ => Reply::deny(id, "The user of the client denied the call."),
        };
    }
    match is_accepted {
        true => Reply::resolve(id, content.unwrap_or_else(|| json!({}))),
        false => Reply::cancel(id),
    }
}
