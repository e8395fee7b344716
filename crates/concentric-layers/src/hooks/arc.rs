use super::{Hooks, ModelFlow, RunFlow, Summary};
use crate::on_end::End;
use concentric_core::{
    BoxError, ChatRequest, Context, Error, Event, StepFinish, StepStart, ThreadId, ToolCall,
    ToolOutcome, ToolResult, Transcript,
    agent::{BeforeFinish, BeforeRound, BeforeStep, StepView},
};
use concentric_tools::{BeforeCall, Flow};
use std::{future::Future, sync::Arc, time::Duration};

impl<H> Hooks for Arc<H>
where
    H: Hooks,
{
    fn id(&self) -> &str {
        H::id(self)
    }

    fn before_run(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<RunFlow, BoxError>> + Send {
        H::before_run(self, request)
    }

    fn event(&self, event: &Event, context: &Context) {
        H::event(self, event, context);
    }

    fn step_started(
        &self,
        step: &StepStart,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::step_started(self, step, run)
    }

    fn step_finished(
        &self,
        step: &StepFinish,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::step_finished(self, step, run)
    }

    fn round_finished(
        &self,
        results: &[ToolResult],
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::round_finished(self, results, run)
    }

    fn after_run(
        &self,
        end: End<'_>,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::after_run(self, end, run)
    }

    fn before_step(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeStep, BoxError>> + Send {
        H::before_step(self, step)
    }

    fn before_round(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeRound, BoxError>> + Send {
        H::before_round(self, step)
    }

    fn before_finish(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeFinish, BoxError>> + Send {
        H::before_finish(self, step)
    }

    fn before_model(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<ModelFlow, BoxError>> + Send {
        H::before_model(self, request)
    }

    fn model_event(&self, event: &Event, context: &Context) {
        H::model_event(self, event, context);
    }

    fn after_model(
        &self,
        end: End<'_>,
        call: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::after_model(self, end, call)
    }

    fn before_call(
        &self,
        call: &mut BeforeCall,
    ) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        H::before_call(self, call)
    }

    fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        H::after_call(self, call, outcome, took)
    }

    fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        H::on_call_error(self, call, error, took)
    }

    fn call_cancelled(&self, call: &ToolCall) {
        H::call_cancelled(self, call);
    }

    fn session_started(
        &self,
        thread: &ThreadId,
        history: &Transcript,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        H::session_started(self, thread, history)
    }

    fn session_ended(&self, thread: &ThreadId, history: &Transcript) {
        H::session_ended(self, thread, history);
    }
}
