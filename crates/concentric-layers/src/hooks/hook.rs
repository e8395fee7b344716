use super::{ModelFlow, RunFlow, Summary};
use crate::on_end::End;
use concentric_core::{
    BoxError, ChatRequest, Context, Error, Event, StepFinish, StepStart, ThreadId, ToolCall,
    ToolOutcome, ToolResult, Transcript,
    agent::{BeforeFinish, BeforeRound, BeforeStep, StepView},
    method::unset,
};
use concentric_tools::{BeforeCall, Flow};
use std::{future::Future, time::Duration};

/// Callbacks for runs, steps, model calls, tool calls and sessions. All methods except `id` are
/// optional.
///
/// See the [module docs](super) for an example and the times of the calls. Methods that return
/// futures can be implemented as `async fn`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Hooks`",
    label = "missing implementation of `Hooks`",
    note = "only the method `id` of `Hooks` is required"
)]
pub trait Hooks: Send + Sync + 'static {
    /// Returns the name of the hooks, for logs and for [`HookFailures`](super::HookFailures).
    fn id(&self) -> &str;

    // ---- around a run ----

    /// Decides whether a run continues, and may change its request for the whole run.
    ///
    /// # When
    ///
    /// Before the inner service is called, once per run. The method is dropped when the run is
    /// cancelled or its [deadline](Context::deadline) passes; without a deadline, its time is not
    /// limited.
    ///
    /// # Errors
    ///
    /// The run fails with the error, and the inner service is not called.
    fn before_run(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<RunFlow, BoxError>> + Send {
        let _ = request;
        unset(|| Ok(RunFlow::Continue))
    }

    /// Receives each event of a run before the consumer. The method must not block.
    ///
    /// # When
    ///
    /// Before the body yields an event, including [`Event::Finish`].
    fn event(&self, event: &Event, context: &Context) {
        let _ = (event, context);
    }

    /// Receives the start of a step.
    ///
    /// # When
    ///
    /// Before the body yields [`Event::StepStart`]. For the second and later steps, and for the
    /// first step of a run that resumes an open round, this is before the step's model is called.
    /// For the first step of any other run, it is at the commit point, when its model answers. To
    /// be called before each model call, use [`before_model`](Self::before_model).
    ///
    /// # Errors
    ///
    /// Errors are reported and do not change the outcome.
    fn step_started(
        &self,
        step: &StepStart,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (step, run);
        unset(|| Ok(()))
    }

    /// Receives the end of a step's model call, with its usage.
    ///
    /// # When
    ///
    /// Before the body yields [`Event::StepFinish`], and before the tools of the step are called.
    ///
    /// # Errors
    ///
    /// Errors are reported and do not change the outcome.
    fn step_finished(
        &self,
        step: &StepFinish,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (step, run);
        unset(|| Ok(()))
    }

    /// Receives the results of a round of tool calls.
    ///
    /// # When
    ///
    /// Before the body yields the round's last [`Event::ToolResult`], and therefore before the next
    /// step begins or the run ends. For a round that began before the run was resumed, before the
    /// body yields the next [`Event::StepStart`] or its terminal item.
    ///
    /// # Errors
    ///
    /// Errors are reported and do not change the outcome.
    fn round_finished(
        &self,
        results: &[ToolResult],
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (results, run);
        unset(|| Ok(()))
    }

    /// Receives the end of a run.
    ///
    /// # When
    ///
    /// Exactly once per call of the layer, before the body yields its terminal item: a consumer
    /// that has received the end can rely on it. If the consumer disconnects ([`End::Dropped`]),
    /// after the inner service is dropped. Whether a finished run was completed, interrupted,
    /// halted, limited or aborted is its [`Finish::outcome`](concentric_core::Finish::outcome).
    ///
    /// # Errors
    ///
    /// Errors are reported and do not change the outcome.
    fn after_run(
        &self,
        end: End<'_>,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (end, run);
        unset(|| Ok(()))
    }

    // ---- between the steps of a run ----

    /// Decides whether a run makes its next step: it may continue, insert a message, interrupt,
    /// finish or halt the run.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_step`](concentric_core::agent::StepGate::before_step).
    fn before_step(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeStep, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeStep::Continue))
    }

    /// Decides whether a round of tool calls is executed.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_round`](concentric_core::agent::StepGate::before_round).
    fn before_round(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeRound, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeRound::Continue))
    }

    /// Decides whether a run may end after the model's answer.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_finish`](concentric_core::agent::StepGate::before_finish).
    fn before_finish(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeFinish, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeFinish::Finish))
    }

    // ---- around a model call ----

    /// Decides whether a model is called, and may change the request for this one call.
    ///
    /// # When
    ///
    /// Before the inner service is called, once per model call.
    ///
    /// # Errors
    ///
    /// The model call fails with the error, and the inner service is not called.
    fn before_model(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<ModelFlow, BoxError>> + Send {
        let _ = request;
        unset(|| Ok(ModelFlow::Continue))
    }

    /// Receives each event of a model's answer. The method must not block.
    ///
    /// # When
    ///
    /// Before the body yields an event, including [`Event::Finish`].
    fn model_event(&self, event: &Event, context: &Context) {
        let _ = (event, context);
    }

    /// Receives the end of a model call.
    ///
    /// # When
    ///
    /// Exactly once per call of the layer, before the body yields its terminal item; if the
    /// consumer disconnects, after the inner service is dropped.
    ///
    /// # Errors
    ///
    /// Errors are reported and do not change the outcome.
    fn after_model(
        &self,
        end: End<'_>,
        call: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (end, call);
        unset(|| Ok(()))
    }

    // ---- around a tool call ----

    /// Decides whether a tool call continues, and may change its arguments.
    ///
    /// # When and errors
    ///
    /// See [`ToolHooks::before`](concentric_tools::ToolHooks::before).
    fn before_call(
        &self,
        call: &mut BeforeCall,
    ) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        let _ = call;
        unset(|| Ok(Flow::Continue))
    }

    /// Receives the outcome of a tool call, and may replace it.
    ///
    /// # When and errors
    ///
    /// See [`ToolHooks::after`](concentric_tools::ToolHooks::after).
    fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, outcome, took);
        unset(|| Ok(None))
    }

    /// Receives the error of a tool call, and may convert it into an outcome.
    ///
    /// # When and errors
    ///
    /// See [`ToolHooks::on_error`](concentric_tools::ToolHooks::on_error).
    fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, error, took);
        unset(|| Ok(None))
    }

    /// Receives a tool call that was dropped before its end. The method must not block.
    ///
    /// # When
    ///
    /// See [`ToolHooks::cancelled`](concentric_tools::ToolHooks::cancelled).
    fn call_cancelled(&self, call: &ToolCall) {
        let _ = call;
    }

    // ---- around a conversation ----

    /// Decides whether a session begins.
    ///
    /// # When
    ///
    /// Before the session is created, with the earlier turns of the conversation.
    ///
    /// # Errors
    ///
    /// An error refuses the session.
    fn session_started(
        &self,
        thread: &ThreadId,
        history: &Transcript,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (thread, history);
        unset(|| Ok(()))
    }

    /// Receives the end of a session. The method must not block or panic.
    ///
    /// # When
    ///
    /// Exactly once for each call of `session_started`, even if that call or another hook refused
    /// the session, and once for each fork.
    fn session_ended(&self, thread: &ThreadId, history: &Transcript) {
        let _ = (thread, history);
    }
}
