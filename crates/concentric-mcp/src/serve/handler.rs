//! Executes the calls of MCP clients.
#![expect(deprecated, reason = "log messages, which clients still request")]

use super::{
    convert::{definition, failed, result},
    events::{channel, forward},
    question::{Asked, ask, is_before_2026_07_28},
    waiting::{WaitingCall, WaitingCalls},
};
use concentric_core::{
    CallId, Context, Error, Message, Part, PartKind, Role, RunId, Str, ToolCallPart, ToolSource,
    store::Tenant,
};
use concentric_tools::{RoundEnd, ToolLifecycle, Toolset};
use rmcp::{
    ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InputRequiredResult,
        ListToolsResult, LoggingLevel, PaginatedRequestParams, ServerCapabilities, ServerConfig,
        SetLevelRequestMethod, SetLevelRequestParams, Tool,
    },
    service::{RequestContext, RoleServer},
};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// The times that one call is suspended and resumed.
const MAX_ROUNDS: usize = 8;

/// The calls that run at once; further ones are refused.
const MAX_CALLS: usize = 256;

/// Serves a toolset to one client.
#[derive(Clone)]
pub(super) struct ToolHandler {
    pub(super) name: Str,
    pub(super) tools: Toolset,
    /// Shared by all clients.
    running: Arc<Semaphore>,
    /// Shared by all clients.
    waiting: Arc<WaitingCalls>,
    /// The level that a client of a revision before 2026-07-28 has requested.
    level: Arc<Mutex<Option<LoggingLevel>>>,
}

impl ToolHandler {
    pub(super) fn new(name: Str, tools: Toolset) -> Self {
        Self {
            name,
            tools,
            running: Arc::new(Semaphore::new(MAX_CALLS)),
            waiting: Arc::default(),
            level: Arc::default(),
        }
    }

    /// The handler for another client.
    pub(super) fn for_client(&self) -> Self {
        Self {
            level: Arc::default(),
            ..self.clone()
        }
    }

    async fn execute(
        &self,
        request: CallToolRequestParams,
        client: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let resumed = match &request.request_state {
            Some(name) => {
                let tenant = Tenant::of(&run_context(client, None));
                let waiting = self.waiting.take(name, &tenant, &request);
                Some(waiting.ok_or_else(|| {
                    let what = "the request state is unknown, expired, used, or of another call";
                    ErrorData::invalid_params(what, None)
                })?)
            }
            None => None,
        };
        let run = run_context(client, resumed.as_ref().map(|it| it.run.clone()));
        let has_progress = client.meta.get_progress_token().is_some();
        let (take, events) = channel(run.clone(), has_progress);
        let mut lifecycle = ToolLifecycle::new(self.tools.clone())
            .with_context(run.clone())
            .on_event(take);
        let mut answers = request.input_responses.unwrap_or_default();
        let internal = |error: Error| {
            // The error may contain what the client must not read.
            tracing::error!(target: "concentric::mcp", parent: None, tool = %request.name, error = format!("{error:#}"), "a call of an MCP client failed");
            ErrorData::internal_error("the call failed", None)
        };
        let running = async {
            let mut end = match resumed {
                Some(waiting) => RoundEnd::Suspended(waiting.state),
                None => {
                    let arguments = request.arguments.unwrap_or_default();
                    let call = CallId::new(run.new_id("call_"));
                    let arguments = Value::Object(arguments).to_string();
                    let call = ToolCallPart::new(call, &*request.name, arguments);
                    let parts = vec![Part::new(PartKind::ToolCall(call))];
                    let message = Message::new(Role::Assistant, parts);
                    lifecycle.execute_round(message).await.map_err(internal)?
                }
            };
            for _ in 0..MAX_ROUNDS {
                let RoundEnd::Suspended(state) = end else {
                    break;
                };
                let replies = match ask(&state, &mut answers, client).await? {
                    Asked::Replied(replies) => replies,
                    Asked::Unanswered(why) => return Ok(failed(why).into()),
                    Asked::Required(requests) => {
                        let (run, tenant) = (run.run_id().clone(), Tenant::of(&run));
                        let waiting = WaitingCall { state, run, tenant };
                        return Ok(match self.waiting.insert(waiting) {
                            Ok(name) => InputRequiredResult::new(Some(requests), Some(name)).into(),
                            Err(why) => failed(why).into(),
                        });
                    }
                };
                end = lifecycle.resume(*state, replies).await.map_err(internal)?;
            }
            // Ends the events.
            drop(lifecycle);
            Ok(match end {
                RoundEnd::Closed(round) | RoundEnd::Ended { round, .. } => {
                    let results = round.results();
                    let tool = self.tools.iter().find(|it| it.spec().name == *request.name);
                    let spec = tool.map(|tool| &**tool.spec());
                    match results.first() {
                        Some(called) => result(&called.outcome, spec),
                        None => failed("The call has no result."),
                    }
                }
                _ => failed("The call was not run: it requires too many replies."),
            }
            .into())
        };
        let level = self.level(client);
        let (response, ()) = tokio::join!(running, forward(events, client, level, &run));
        response
    }

    /// The level from which on the client has requested log messages.
    fn level(&self, client: &RequestContext<RoleServer>) -> Option<LoggingLevel> {
        match is_before_2026_07_28(client) {
            true => *self.level.lock().unwrap_or_else(PoisonError::into_inner),
            false => client.meta.log_level(),
        }
    }
}

/// The context of a call, with the extensions of its HTTP request.
fn run_context(client: &RequestContext<RoleServer>, resumed: Option<RunId>) -> Context {
    let mut builder = Context::builder();
    if let Some(parts) = client.extensions.get::<http::request::Parts>() {
        builder = builder.extensions(parts.extensions.clone());
    }
    if let Some(run) = resumed {
        builder = builder.run_id(run);
    }
    builder.build()
}

impl ServerHandler for ToolHandler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_logging()
            .build();
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
        tokio::select! {
            response = self.execute(request, &context) => response,
            () = context.ct.cancelled() => Ok(failed("The call was cancelled.").into()),
        }
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !is_before_2026_07_28(&context) {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        *level = Some(request.level);
        Ok(())
    }
}
