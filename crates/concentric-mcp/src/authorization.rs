//! Calls that wait for the authorization of a user.

use crate::{
    oauth::{AUTHORIZATION, AuthorizationRequired, UNKNOWN_STATE},
    supervisor::Server,
};
use concentric_core::{
    Error, InterruptId, Suspension, ToolCall, ToolOutcome, interrupt::ReplyStatus,
};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

/// The authorizations that one call waits for.
const MAX_AUTHORIZATIONS: u64 = 3;

/// Suspends a call that the server has not executed. It keeps the answers to the server's questions.
pub(crate) fn suspend(
    required: &AuthorizationRequired,
    call: &ToolCall,
    params: &CallToolRequestParams,
    rounds: u64,
) -> Result<ToolOutcome, Error> {
    let authorizations = authorizations(call);
    if authorizations >= MAX_AUTHORIZATIONS {
        return Ok(ToolOutcome::failed(
            "The call was not run: the server requires the authorization of a user again and again.",
        ));
    }
    let id = match call.context.interrupt_id() {
        Some(id) => format!("{}/mcp-authorization-{authorizations}", id.as_str()),
        None => call.context.new_id("authorization_").to_string(),
    };
    let interrupt = required.interrupt(InterruptId::new(id));
    let state = json!({
        "authorizations": authorizations + 1,
        "responses": params.input_responses,
        "state": params.request_state,
        "rounds": rounds,
    });
    let suspension = Suspension::new(vec![interrupt.about(call.id().clone())]);
    Err(Error::suspended(suspension.with_state(state)))
}

fn authorizations(call: &ToolCall) -> u64 {
    let state = call.resumed().and_then(|it| it.on.state.as_deref());
    let count = state.and_then(|it| it.get("authorizations")?.as_u64());
    count.unwrap_or_default()
}

/// Stores the tokens for the callback in the reply, if the call waited for one.
///
/// # Errors
///
/// The text for the model.
pub(crate) async fn finish(server: &Server, call: &ToolCall) -> Result<(), &'static str> {
    const REFUSED: &str = "The call was not run: the user did not authorize it.";
    const FAILED: &str = "The call was not run: the authorization failed.";
    let Some(resumed) = call.resumed() else {
        return Ok(());
    };
    let mut interrupts = resumed.on.interrupts.iter();
    let Some(interrupt) = interrupts.find(|it| it.reason == AUTHORIZATION) else {
        return Ok(());
    };
    let mut replies = resumed.replies.iter();
    let reply = replies.find(|it| it.interrupt_id == interrupt.id);
    let Some(reply) = reply.filter(|it| it.status == ReplyStatus::Resolved) else {
        return Err(REFUSED);
    };
    let payload = reply.payload.as_ref();
    let callback = payload
        .and_then(|it| it.get("callback"))
        .and_then(Value::as_str);
    let (Some(callback), Ok(Some(authorizer))) = (callback, server.config.authorizer()) else {
        return Ok(());
    };
    match authorizer.finish(callback).await {
        Ok(()) => Ok(()),
        // Another call has waited for it, too.
        Err(error) if error.code() == Some(UNKNOWN_STATE) => Ok(()),
        Err(error) => {
            let server = server.config.name.as_str();
            let error = format!("{error:#}");
            tracing::warn!(target: "concentric::mcp", parent: None, server, error, "the authorization for a call failed");
            Err(FAILED)
        }
    }
}
