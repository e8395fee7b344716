//! Agents as tools.
//!
//! [`agent_tool`] creates a tool from an agent: the model sends a task, and receives the agent's
//! answer. The run of the nested agent is part of the run that makes the call:
//!
//! - its events are in the outer run's stream, each in an [`Event::SubAgent`];
//! - it is cancelled with the outer run, and has its deadline, environment and extensions;
//! - the gates of the outer toolset and its own decide about its tool calls, at every level;
//! - its interrupts also interrupt the outer run, its state is stored in the outer run's state, and
//!   a reply is routed by the interrupt's id;
//! - its usage and the id of its run are the data of the result, or, if the tool has an [output
//!   schema](Tool::output_schema), the agent's typed answer (of `output`);
//! - a tool that calls an agent is not offered beyond the depth [`Tool::max_depth`], so that the
//!   nesting of agents is finite.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{Toolset, agent_tool};
//! use tower::ServiceBuilder;
//!
//! fn editor(model: BoxModel, researcher: BoxModel) -> BoxModel {
//!     let tools = Toolset::new().tool(agent_tool(
//!         "research",
//!         "Researches a subject and returns a report.",
//!         researcher,
//!     ));
//!     BoxModel::new(ServiceBuilder::new().layer(AgentLayer::new(tools)).service(model))
//! }
//! # let _ = editor;
//! ```

use crate::{Tool, error::AGENT_FAILED, outcome::VALUE_COMPLETE};
use concentric_core::{
    ChatRequest, ChatResponse, CustomEvent, Error, ErrorKind, Event, Finish, Interrupt,
    MessageBuilder, Outcome, ReplyError, RunId, Str, SubAgentEvent, Suspension, ToolCall,
    ToolOutcome, ToolSpec, call::CallResume, interrupt::SuspendedBy, machine::RunState,
};
use futures_core::Stream;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{error::Error as _, pin::pin, sync::Arc};
use tower::{BoxError, ServiceExt, service_fn};
use tower_service::Service;

/// The limit of the state of a nested run (bytes).
const MAX_STATE: usize = 64 * 1024 * 1024;

/// The arguments of a nested agent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Task {
    /// The task, with all necessary context: the agent does not receive this conversation.
    task: String,
}

/// Creates a tool from an agent, which receives a task as text.
///
/// See the [module docs](self).
///
/// # Cancel safety
///
/// Dropping the call drops the agent's run.
pub fn agent_tool<S, B>(name: impl Into<Str>, description: impl Into<Str>, agent: S) -> Tool
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    agent_tool_with(name, description, agent, |Task { task }| {
        ChatRequest::user(task)
    })
}

/// Creates a tool from an agent that is called with the request that `request` creates from the
/// arguments.
///
/// The request's context is replaced by that of the nested run. See [`agent_tool`] for the rest.
pub fn agent_tool_with<S, B, A, F>(
    name: impl Into<Str>,
    description: impl Into<Str>,
    agent: S,
    request: F,
) -> Tool
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A) -> ChatRequest + Send + Sync + 'static,
{
    let name = name.into();
    let schema = crate::arguments::generate::<A>().schema;
    let spec = ToolSpec::new(name.clone(), description, schema);
    let request = Arc::new(request);
    let service = service_fn(move |call: ToolCall| {
        let (agent, request, name) = (agent.clone(), Arc::clone(&request), name.clone());
        async move {
            let inner = match Inner::of(&call, name, &*request) {
                Ok(inner) => inner,
                Err(outcome) => return Ok(outcome),
            };
            inner.run(agent).await
        }
    });
    Tool::new(spec, service).calling_agent()
}

/// The nested run of a call.
struct Inner {
    call: ToolCall,
    agent: Str,
    run_id: RunId,
    request: ChatRequest,
}

/// The stored state of a suspended run.
#[derive(Serialize, Deserialize)]
struct Written {
    run_id: RunId,
    state: Value,
    // The number of refused replies: each new suspension is another effect of the call.
    #[serde(default, skip_serializing_if = "is_zero")]
    refused: u32,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is required by serde"
)]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Inner {
    /// Creates a new run, or one that resumes.
    fn of<A>(
        call: &ToolCall,
        agent: Str,
        request: impl Fn(A) -> ChatRequest,
    ) -> Result<Self, ToolOutcome>
    where
        A: DeserializeOwned,
    {
        // Replies to a gate of the call do not belong to the nested run.
        let resumed = call
            .resumed()
            .filter(|resume| resume.by == SuspendedBy::Tool);
        let waited = resumed.and_then(|resume| Some((resume.on.state.as_ref()?, resume)));
        let (run_id, request) = match waited {
            Some((state, resume)) => resume_run(state, resume).map_err(|error| {
                // Not within the current span, into which its exporter would copy the text.
                tracing::error!(parent: None, %error, %agent, "resuming the run of a nested agent failed");
                ToolOutcome::failed(Str::from_static("The agent could not be resumed."))
            })?,
            None => {
                let arguments = serde_json::from_str(call.arguments().as_str())
                    .map_err(|error| ToolOutcome::failed(error.to_string()))?;
                let run_id = RunId::new(call.context.new_id("run_"));
                (run_id, request(arguments))
            }
        };
        let child = call.context.child();
        let context = child.agent(agent.clone()).run_id(run_id.clone()).build();
        Ok(Self {
            call: call.clone(),
            agent,
            run_id,
            request: request.with_context(context),
        })
    }

    async fn run<S, B>(self, agent: S) -> Result<ToolOutcome, Error>
    where
        S: Service<ChatRequest, Response = ChatResponse<B>>,
        S::Error: Into<BoxError>,
        B: Stream<Item = Result<Event, Error>>,
    {
        let response = match agent.oneshot(self.request.clone()).await {
            Ok(response) => response,
            Err(error) => {
                let error = Error::from(error.into());
                return match self.refused(&error) {
                    Some(on) => Err(Error::suspended(on)),
                    None => Err(failed(error)),
                };
            }
        };
        let mut message = MessageBuilder::new(&response.head);
        let mut body = pin!(response.body);
        let has_schema = self
            .call
            .spec()
            .is_some_and(|it| it.output_schema.is_some());
        let mut value = None;
        while let Some(event) = body.next().await {
            match event {
                Ok(Event::Finish(finish)) => return self.end(&finish, &message, has_schema, value),
                Ok(event) => {
                    if has_schema
                        && let Event::Custom(event) = &event
                        && event.name == VALUE_COMPLETE
                    {
                        value = event.value.get("object").cloned();
                    }
                    message.push(&event);
                    self.show(event).await;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(Error::new(
            ErrorKind::Truncated,
            "the agent's response ended early",
        )))
    }

    /// Emits an event of the nested run in the outer run's stream.
    async fn show(&self, event: Event) {
        let event = SubAgentEvent::new(
            self.run_id.clone(),
            Some(self.agent.clone()),
            Some(self.call.id().clone()),
            event,
        );
        // The send fails if the outer run has ended, which needs no handling.
        let _ = self
            .call
            .context
            .send(Event::SubAgent(Box::new(event)))
            .await;
    }

    fn end(
        &self,
        finish: &Finish,
        message: &MessageBuilder,
        has_schema: bool,
        value: Option<Value>,
    ) -> Result<ToolOutcome, Error> {
        // Without a typed answer, the text must match the schema.
        let data = match has_schema {
            true => value,
            false => Some(json!({"runId": self.run_id, "usage": finish.usage})),
        };
        let text = || message.answer_text();
        let outcome = match &finish.outcome {
            Outcome::Completed => ToolOutcome::done(text()),
            Outcome::Interrupted => return Err(self.waiting(finish)),
            Outcome::Halted { reason } => {
                ToolOutcome::failed(format!("The agent was stopped: {reason}"))
            }
            Outcome::Aborted { .. } => ToolOutcome::cancelled("The agent was cancelled."),
            _ => ToolOutcome::failed("The agent reached its limit before it completed the task."),
        };
        Ok(match data {
            Some(data) => outcome.with_data(data),
            None => outcome,
        })
    }

    /// The error that suspends the call with the nested run.
    fn waiting(&self, finish: &Finish) -> Error {
        let written = finish
            .state
            .as_ref()
            .ok_or_else(|| "the finish event has no state".into())
            .and_then(|state| written(self.run_id.clone(), state));
        let state: Value = match written {
            Ok(state) => state,
            Err(error) => {
                tracing::error!(%error, "serializing the state of a nested agent failed");
                return Error::new(
                    ErrorKind::Tool,
                    "the agent is suspended, and serializing its state failed",
                );
            }
        };
        let interrupts = finish.interrupts().into_iter().cloned();
        let named = interrupts.map(|interrupt| self.named(interrupt));
        let on = Suspension::new(named.collect()).with_state(state);
        let state = finish.state.as_deref();
        Error::suspended(match state.is_some_and(RunState::asks_together) {
            true => on.together(),
            false => on,
        })
    }

    /// The suspension of the nested run, if it refused the reply.
    fn refused(&self, error: &Error) -> Option<Suspension> {
        let source = error.source()?.downcast_ref();
        let Some(ReplyError::Malformed { .. }) = source else {
            return None;
        };
        let waited = &self.call.resumed()?.on;
        let mut written = Written::deserialize(&**waited.state.as_ref()?).ok()?;
        written.refused = written.refused.saturating_add(1);
        let state = serde_json::to_value(written).ok()?;
        // Not within the current span, into which its exporter would copy the text.
        tracing::warn!(parent: None, %error, agent = %self.agent, "a nested agent refused a reply");
        let value = json!({"tool": self.agent, "code": error.code()});
        let event = CustomEvent::new("approval-invalid", value);
        // The outcome does not depend on a slow consumer.
        let _ = self.call.context.emit(event);
        let mut on = Suspension::new(waited.interrupts.clone()).with_state(state);
        on.together = waited.together;
        Some(on)
    }

    /// Adds the id of the run to an interrupt, unless a more deeply nested run did.
    fn named(&self, interrupt: Interrupt) -> Interrupt {
        if interrupt.metadata.contains_key("subagentRunId") {
            return interrupt;
        }
        interrupt
            .with_metadata("subagentRunId", self.run_id.as_str())
            .with_metadata("agent", self.agent.as_str())
    }
}

fn written(run_id: RunId, state: &RunState) -> Result<Value, BoxError> {
    let state = serde_json::from_str(&state.to_json()?)?;
    let refused = 0;
    Ok(serde_json::to_value(Written {
        run_id,
        state,
        refused,
    })?)
}

fn resume_run(state: &Value, resume: &CallResume) -> Result<(RunId, ChatRequest), BoxError> {
    let Written { run_id, state, .. } = Written::deserialize(state)?;
    let state = RunState::from_json(state.to_string().as_bytes(), MAX_STATE)?;
    let mut request = ChatRequest::resume(state, resume.replies.clone());
    if let Some(at) = resume.accepted_at {
        request.resume = request.resume.map(|resume| resume.accepted_at(at));
    }
    Ok((run_id, request))
}

/// The error of a tool whose agent failed. An error of the nested run is not fatal to the outer run.
fn failed(error: Error) -> Error {
    let failed = Error::new(ErrorKind::Tool, Str::from_static("the nested agent failed"));
    failed.with_code(AGENT_FAILED).with_source(error)
}
