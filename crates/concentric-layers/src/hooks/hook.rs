use super::{ModelFlow, RunFlow, Summary};
use concentric_core::{
    BoxError, ChatRequest, Context, Error, Event, StepFinish, StepStart, ThreadId, ToolCall,
    ToolOutcome, ToolResult, Transcript,
    agent::{BeforeFinish, BeforeRound, BeforeStep, StepView},
    layers::End,
    method::unset,
};
use concentric_tools::{BeforeCall, Flow};
use std::{future::Future, time::Duration};

/// What is to be done around runs, model calls and tool calls.
///
/// See the [module docs](super) for an example, and for when each method is called. An
/// implementation may answer with `async fn`s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of hooks",
    label = "not a `Hooks`",
    note = "implement `Hooks`, of which only `id` is required"
)]
pub trait Hooks: Send + Sync + 'static {
    /// Names the hooks, for the log and for [`HookFailures`](super::HookFailures).
    fn id(&self) -> &str;

    // ---- around a run ----

    /// Decides whether a run goes on, and may change its request; a change lasts for the run.
    ///
    /// # When
    ///
    /// Before anything inside of this place is called, once per run. One that hangs is given up when
    /// the run is cancelled or late: without a [deadline](Context::deadline) nothing limits it.
    ///
    /// # Errors
    ///
    /// The run fails with the error, and nothing inside of this place is called.
    fn before_run(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<RunFlow, BoxError>> + Send {
        let _ = request;
        unset(|| Ok(RunFlow::Continue))
    }

    /// Sees an event of a run, as the consumer will. It must not block.
    ///
    /// # When
    ///
    /// Before each event of the body is handed on, [`Event::Finish`] included.
    fn event(&self, event: &Event, context: &Context) {
        let _ = (event, context);
    }

    /// Sees that a step begins.
    ///
    /// # When
    ///
    /// Before [`Event::StepStart`] is handed on: before the step's model is called, from the second
    /// step on and in the first one of a run that resumes an open round. The first step of any
    /// other run is shown with the commit point, once its model answers; use
    /// [`before_model`](Self::before_model) to be called before each model call.
    ///
    /// # Errors
    ///
    /// They are told, and change nothing.
    fn step_started(
        &self,
        step: &StepStart,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (step, run);
        unset(|| Ok(()))
    }

    /// Sees that a step's model call is over, and what it used.
    ///
    /// # When
    ///
    /// Before [`Event::StepFinish`] is handed on, and before the tools of the step run.
    ///
    /// # Errors
    ///
    /// They are told, and change nothing.
    fn step_finished(
        &self,
        step: &StepFinish,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (step, run);
        unset(|| Ok(()))
    }

    /// Sees what came of a round of tool calls.
    ///
    /// # When
    ///
    /// Before its last [`Event::ToolResult`] is handed on, and so before the next step begins or
    /// the run ends. Of a round that began before the run was taken up: before the next
    /// [`Event::StepStart`] or the last item is handed on.
    ///
    /// # Errors
    ///
    /// They are told, and change nothing.
    fn round_finished(
        &self,
        results: &[ToolResult],
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (results, run);
        unset(|| Ok(()))
    }

    /// Sees how a run ended.
    ///
    /// # When
    ///
    /// Exactly once per call of this place, before the last item is handed on; so a consumer that
    /// has seen the end may rely on it. If the consumer is gone ([`End::Dropped`]), once what ran
    /// inside is dropped. Whether a whole run was interrupted, halted, limited or aborted is in its
    /// [`Finish::outcome`](concentric_core::Finish::outcome).
    ///
    /// # Errors
    ///
    /// They are told, and change nothing.
    fn after_run(
        &self,
        end: End<'_>,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (end, run);
        unset(|| Ok(()))
    }

    // ---- between the steps of a run ----

    /// Votes on whether a run makes its next step, and how: it may put in a message, have somebody
    /// asked, finish or halt the run.
    ///
    /// # When, errors
    ///
    /// Those of [`StepGate::before_step`](concentric_core::agent::StepGate::before_step).
    fn before_step(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeStep, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeStep::Continue))
    }

    /// Decides whether a round of tool calls is run.
    ///
    /// # When, errors
    ///
    /// Those of [`StepGate::before_round`](concentric_core::agent::StepGate::before_round).
    fn before_round(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeRound, BoxError>> + Send {
        let _ = step;
        unset(|| Ok(BeforeRound::Continue))
    }

    /// Decides whether a run may come to its own end.
    ///
    /// # When, errors
    ///
    /// Those of [`StepGate::before_finish`](concentric_core::agent::StepGate::before_finish).
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
    /// Before anything inside of this place is called, once per model call.
    ///
    /// # Errors
    ///
    /// The model call fails with the error, and nothing inside of this place is called.
    fn before_model(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<ModelFlow, BoxError>> + Send {
        let _ = request;
        unset(|| Ok(ModelFlow::Continue))
    }

    /// Sees an event of a model's answer. It must not block.
    ///
    /// # When
    ///
    /// Before each event of the body is handed on, [`Event::Finish`] included.
    fn model_event(&self, event: &Event, context: &Context) {
        let _ = (event, context);
    }

    /// Sees how a model call ended.
    ///
    /// # When
    ///
    /// Exactly once per call of this place, before the last item is handed on; or once what ran
    /// inside is dropped.
    ///
    /// # Errors
    ///
    /// They are told, and change nothing.
    fn after_model(
        &self,
        end: End<'_>,
        call: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (end, call);
        unset(|| Ok(()))
    }

    // ---- around a tool call ----

    /// Decides whether a tool call goes on, and may change its arguments.
    ///
    /// # When, errors
    ///
    /// Those of [`ToolHooks::before`](concentric_tools::ToolHooks::before).
    fn before_call(
        &self,
        call: &mut BeforeCall,
    ) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        let _ = call;
        unset(|| Ok(Flow::Continue))
    }

    /// Sees what came of a tool call, and may put another outcome in its place.
    ///
    /// # When, errors
    ///
    /// Those of [`ToolHooks::after`](concentric_tools::ToolHooks::after).
    fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, outcome, took);
        unset(|| Ok(None))
    }

    /// Sees that a tool call failed, and may make an outcome of it.
    ///
    /// # When, errors
    ///
    /// Those of [`ToolHooks::on_error`](concentric_tools::ToolHooks::on_error).
    fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, error, took);
        unset(|| Ok(None))
    }

    /// Is told that a tool call was given up. It must not block.
    ///
    /// # When
    ///
    /// That of [`ToolHooks::cancelled`](concentric_tools::ToolHooks::cancelled).
    fn call_cancelled(&self, call: &ToolCall) {
        let _ = call;
    }

    // ---- around a conversation ----

    /// Decides whether a session begins.
    ///
    /// # When
    ///
    /// Before the session is made, with what was said in the conversation before.
    ///
    /// # Errors
    ///
    /// The session is refused with the error.
    fn session_started(
        &self,
        thread: &ThreadId,
        history: &Transcript,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (thread, history);
        unset(|| Ok(()))
    }

    /// Is told that a session is over. It must not block or panic.
    ///
    /// # When
    ///
    /// Exactly once for each `session_started` that was called, also if that, or one of another
    /// hook, refused the session; and once for each fork.
    fn session_ended(&self, thread: &ThreadId, history: &Transcript) {
        let _ = (thread, history);
    }
}
