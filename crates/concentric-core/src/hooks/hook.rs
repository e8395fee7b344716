use super::{BeforeCall, End, Flow, Interest, Summary};
use crate::{
    context::Context,
    request::ChatRequest,
    step_gate::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepView},
    tool_call::ToolCall,
};
use concentric_proto::{
    Error, Event, StepFinish, StepStart, Str, ThreadId, ToolOutcome, ToolResult, Transcript,
};
use std::{
    future::{Future, ready},
    time::Duration,
};
use tower::BoxError;

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

    /// Returns the methods that are implemented; asked once per layer. Others may not be called.
    ///
    /// With the default, all methods are called, which costs a boxed future for most of them.
    fn interest(&self) -> Interest {
        Interest::ALL
    }

    // ---- around a run ----

    /// Decides whether a run continues, and may change its request for the whole run.
    ///
    /// An answer is a text, which is added to the transcript. If the request resumes an interrupted
    /// run ([`ChatRequest::resume`]), an answer or a halt ends that run: the replies are consumed,
    /// the open round is closed, and the [`Finish`](crate::Finish) contains its transcript and
    /// usage. The calls of the round get these outcomes:
    ///
    /// | the call | outcome |
    /// |---|---|
    /// | done, failed, denied | unchanged |
    /// | executed by the client, with its result among the replies | that result |
    /// | indeterminate: started by a process that ended | [`Unknown`](crate::ToolStatus::Unknown) |
    /// | not executed, whatever was replied | [`Cancelled`](crate::ToolStatus::Cancelled) |
    ///
    /// The replies are validated as an agent does, and the run fails with the same errors. If an
    /// *inner* layer stores the run, the run remains suspended there and the end has no transcript.
    /// Hooks that answer or halt runs must therefore be inside such a layer, which then receives
    /// the end.
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
    ) -> impl Future<Output = Result<Flow<Str>, BoxError>> + Send {
        let _ = request;
        ready(Ok(Flow::Continue))
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
        ready(Ok(()))
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
        ready(Ok(()))
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
        ready(Ok(()))
    }

    /// Receives the end of a run.
    ///
    /// # When
    ///
    /// Exactly once per call of the layer, before the body yields its terminal item: a consumer
    /// that has received the end can rely on it. If the consumer disconnects ([`End::Dropped`]),
    /// after the inner service is dropped. Whether a finished run was completed, interrupted,
    /// halted, limited or aborted is its [`Finish::outcome`](crate::Finish::outcome).
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
        ready(Ok(()))
    }

    // ---- between the steps of a run ----

    /// Decides whether a run makes its next step: it may continue, insert messages, make edits that
    /// last, interrupt, finish or halt the run.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_step`](crate::agent::StepGate::before_step).
    fn before_step(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<StepDecision, BoxError>> + Send {
        let _ = draft;
        ready(Ok(StepDecision::Continue))
    }

    /// Decides whether a round of tool calls is executed.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_round`](crate::agent::StepGate::before_round).
    fn before_round(
        &self,
        view: &StepView,
    ) -> impl Future<Output = Result<RoundDecision, BoxError>> + Send {
        let _ = view;
        ready(Ok(RoundDecision::Continue))
    }

    /// Decides whether a run may end after the model's answer.
    ///
    /// # When and errors
    ///
    /// See [`StepGate::before_finish`](crate::agent::StepGate::before_finish).
    fn before_finish(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<FinishDecision, BoxError>> + Send {
        let _ = draft;
        ready(Ok(FinishDecision::Finish))
    }

    // ---- around a model call ----

    /// Decides whether a model is called, and may change the request for this one call.
    ///
    /// An answer is a list of events. If the last one is not an [`Event::Finish`], one is added that
    /// reports no tokens. After a halt, earlier messages and results are kept.
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
    ) -> impl Future<Output = Result<Flow<Vec<Event>>, BoxError>> + Send {
        let _ = request;
        ready(Ok(Flow::Continue))
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
        ready(Ok(()))
    }

    // ---- around a tool call ----

    /// Decides whether a tool call continues, and may change its arguments.
    ///
    /// # When
    ///
    /// Before anything inside of the hooks; once per call that reaches them, except for
    /// [settled](ToolCall::settled) and [refused](ToolCall::refusal) calls. The method starts when
    /// the service is called, even if the call's future is never polled.
    ///
    /// An answer that is [denied](ToolOutcome::denied), or a halt, states that the call was not
    /// run. If it may have executed earlier, its outcome becomes
    /// [`Unknown`](crate::ToolStatus::Unknown).
    ///
    /// # Errors
    ///
    /// The call is not run, and the model only reads that a check failed. An error that is
    /// [`fatal`](crate::fatal::fatal), [halts](Error::halted) the run or
    /// [suspends](Error::suspended) the call is propagated.
    fn before_call(
        &self,
        call: &mut BeforeCall,
    ) -> impl Future<Output = Result<Flow<ToolOutcome>, BoxError>> + Send {
        let _ = call;
        ready(Ok(Flow::Continue))
    }

    /// Receives the outcome of a tool call, and may replace it.
    ///
    /// # When
    ///
    /// After the call has an outcome of any [status](ToolOutcome::status). Hooks of a whole toolset
    /// are also called for calls that do not run ([`ToolCall::settled`]); the returned outcome is
    /// then ignored. `took` is the duration of everything inside of the hooks by the context's
    /// clock; zero if the call did not continue.
    ///
    /// # Errors
    ///
    /// Errors are reported, and the outcome is unchanged.
    fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, outcome, took);
        ready(Ok(None))
    }

    /// Receives the error of a tool call, and may convert it into an outcome. By default the error
    /// is propagated.
    ///
    /// # When
    ///
    /// After an inner layer or a tool service returned an error, or a tool a
    /// [`fatal`](crate::fatal::fatal) one. Other failures of a tool are outcomes.
    ///
    /// # Errors
    ///
    /// Errors are reported, and the original error is propagated.
    fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, error, took);
        ready(Ok(None))
    }

    /// Receives a tool call that was dropped before its end. The method must not block.
    ///
    /// # When
    ///
    /// After the call's future was dropped before an outcome or an error: the run was cancelled,
    /// its consumer is gone, or an outer layer abandoned the call. The inner futures are dropped
    /// already. The method is called while the call's future is dropped.
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
        ready(Ok(()))
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
