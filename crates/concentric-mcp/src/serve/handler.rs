//! Executes the calls of MCP clients.

use super::convert::{definition, failed, result};
use crate::pending::PROGRESS;
use concentric_core::{
    CallId, Context, Error, Event, Interrupt, Message, Part, PartKind, Reply, Role, Str,
    ToolCallPart, ToolSource, interrupt::TOOL_CALL, machine::RunState,
};
use concentric_tools::{RoundEnd, ToolLifecycle, Toolset};
use rmcp::{
    ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ElicitRequestParams,
        ElicitationAction, ElicitationSchema, ErrorData, Implementation, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ProtocolVersion,
        ServerCapabilities, ServerConfig, Tool,
    },
    service::{Peer, RequestContext, RoleServer},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::{Semaphore, mpsc};

/// The rounds of approvals in one call.
const MAX_APPROVALS: usize = 8;
/// The time until an approval must be answered.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(300);
/// The progress notifications that wait for the client; further ones are dropped.
const MAX_PROGRESS: usize = 16;

/// The calls that run at once; further ones are refused.
const MAX_CALLS: usize = 256;

/// Serves a toolset to one client.
#[derive(Clone)]
pub(super) struct ToolHandler {
    pub(super) name: Str,
    pub(super) tools: Toolset,
    /// Shared by all clients.
    running: Arc<Semaphore>,
}

impl ToolHandler {
    pub(super) fn new(name: Str, tools: Toolset) -> Self {
        Self {
            name,
            tools,
            running: Arc::new(Semaphore::new(MAX_CALLS)),
        }
    }

    async fn execute(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Error> {
        let arguments = Value::Object(request.arguments.unwrap_or_default()).to_string();
        let run = run_context(context);
        let call = CallId::new(run.new_id("call_"));
        let call = ToolCallPart::new(call, &*request.name, arguments);
        let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
        let (progress, received) = mpsc::channel(MAX_PROGRESS);
        let mut lifecycle = ToolLifecycle::new(self.tools.clone())
            .with_context(run)
            .on_event(move |event| {
                if let Event::Custom(event) = event
                    && event.name == PROGRESS
                {
                    // The client misses progress that it does not read in time.
                    let _ = progress.try_send(event.value);
                }
            });
        let running = async {
            let mut end = lifecycle.execute_round(message).await?;
            for _ in 0..MAX_APPROVALS {
                let RoundEnd::Suspended(state) = end else {
                    break;
                };
                let replies = match replies(&state, context).await {
                    Ok(replies) => replies,
                    Err(why) => return Ok(failed(why)),
                };
                end = lifecycle.resume(*state, replies).await?;
            }
            drop(lifecycle);
            Ok(match end {
                RoundEnd::Closed(round) | RoundEnd::Ended { round, .. } => {
                    let results = round.results();
                    let outcome = results.first().map(|it| &it.outcome);
                    outcome.map_or_else(|| failed("The call has no result."), result)
                }
                _ => failed("The call was not run: it requires too many approvals."),
            })
        };
        let reporting = report(received, context.meta.get_progress_token(), &context.peer);
        let (result, ()) = tokio::join!(running, reporting);
        result
    }
}

/// The context of a call, with the extensions of its HTTP request.
fn run_context(context: &RequestContext<RoleServer>) -> Context {
    let parts = context.extensions.get::<http::request::Parts>();
    let builder = Context::builder();
    match parts {
        Some(parts) => builder.extensions(parts.extensions.clone()).build(),
        None => builder.build(),
    }
}

/// Sends progress to the client. Ends with the call.
async fn report(
    mut progress: mpsc::Receiver<Value>,
    token: Option<ProgressToken>,
    client: &Peer<RoleServer>,
) {
    let mut last = 0.0;
    while let Some(value) = progress.recv().await {
        let Some(token) = &token else {
            continue;
        };
        let number = |name: &str| value.get(name).and_then(Value::as_f64);
        // It must increase with each notification.
        last = number("progress")
            .filter(|it| *it > last)
            .unwrap_or(last + 1.0);
        let mut notification = ProgressNotificationParam::new(token.clone(), last);
        notification.total = number("total");
        let message = value.get("message").and_then(Value::as_str);
        notification.message = message.map(str::to_owned);
        if client.notify_progress(notification).await.is_err() {
            return;
        }
    }
}

/// Requests the approvals that a call waits for.
///
/// # Errors
///
/// The text of the result, if the client cannot be asked or does not answer.
async fn replies(
    state: &RunState,
    context: &RequestContext<RoleServer>,
) -> Result<Vec<Reply>, String> {
    let mut replies = Vec::new();
    for interrupt in state.interrupts() {
        replies.push(reply(interrupt, context).await?);
    }
    Ok(replies)
}

async fn reply(
    interrupt: &Interrupt,
    context: &RequestContext<RoleServer>,
) -> Result<Reply, String> {
    let tool = interrupt.tool().unwrap_or("the tool");
    let message = interrupt.message.as_deref().unwrap_or("Approve the call?");
    let not_run = |why: &str| {
        format!("The call was not run: `{tool}` requires an approval, and {why}. ({message})")
    };
    if interrupt.reason != TOOL_CALL {
        let reason = &interrupt.reason;
        return Err(format!(
            "The call waits for a reply of the kind `{reason}`, which cannot be given over MCP."
        ));
    }
    let can_show = context.client_capabilities().is_some_and(|client| {
        let forms = client.elicitation;
        forms.is_some_and(|it| it.form.is_some() || it.url.is_none())
    });
    let version = context.protocol_version();
    let can_ask = version.is_some_and(|version| version < ProtocolVersion::V_2026_07_28);
    if !can_show || !can_ask {
        return Err(not_run("the client cannot ask for it"));
    }
    let arguments = interrupt
        .arguments()
        .map(Value::to_string)
        .unwrap_or_default();
    let message = format!("{message}\n{tool} {arguments}");
    let schema = json!({
        "type": "object",
        "properties": {"approved": {"type": "boolean", "title": "Approve the call"}},
        "required": ["approved"],
    });
    let schema: ElicitationSchema =
        serde_json::from_value(schema).map_err(|_| not_run("the form is invalid"))?;
    let form = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema: schema,
    };
    let limit = Some(APPROVAL_TIMEOUT);
    let answer = context
        .peer
        .create_elicitation_with_timeout(form, limit)
        .await;
    let answer = answer.map_err(|_| not_run("the client did not answer"))?;
    let approved = answer.content.as_ref().and_then(|it| it.get("approved"));
    let is_approved = answer.action == ElicitationAction::Accept
        && approved.and_then(Value::as_bool) == Some(true);
    Ok(match is_approved {
        true => Reply::approve(interrupt.id.clone()),
        false => Reply::deny(
            interrupt.id.clone(),
            "The user of the client denied the call.",
        ),
    })
}

impl ServerHandler for ToolHandler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let mut config = ServerConfig::new(capabilities);
        config.server_info = Implementation::new(self.name.as_str(), env!("CARGO_PKG_VERSION"));
        config
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let specs = self.tools.specs();
        let spec = specs.iter().find(|spec| spec.name == *name);
        spec.map(|spec| definition(spec))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let specs = self.tools.specs();
        let tools = specs.iter().map(|spec| definition(spec)).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self
            .tools
            .iter()
            .any(|tool| tool.spec().name == *request.name)
        {
            return Err(ErrorData::invalid_params(
                "there is no tool of this name",
                None,
            ));
        }
        let Ok(_permit) = self.running.try_acquire() else {
            let why = "The call was not run: too many calls are running. Try again later.";
            return Ok(failed(why).into());
        };
        let name = request.name.clone();
        let result = tokio::select! {
            result = self.execute(request, &context) => result,
            () = context.ct.cancelled() => return Ok(failed("The call was cancelled.").into()),
        };
        match result {
            Ok(result) => Ok(result.into()),
            Err(error) => {
                // The error may contain what the client must not read.
                tracing::error!(target: "concentric::mcp", parent: None, tool = %name, error = format!("{error:#}"), "a call of an MCP client failed");
                Err(ErrorData::internal_error("the call failed", None))
            }
        }
    }
}
