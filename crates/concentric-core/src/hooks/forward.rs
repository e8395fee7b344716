use super::{BeforeCall, End, Flow, Hooks, Interest, Summary};
use crate::{
    context::Context,
    request::ChatRequest,
    step_gate::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepView},
    tool_call::ToolCall,
};
use concentric_proto::{
    Error, Event, StepFinish, StepStart, Str, ThreadId, ToolOutcome, ToolResult, Transcript,
};
use std::{future::Future, sync::Arc, time::Duration};
use tower::BoxError;

/// Implements [`Hooks`] for a pointer to hooks.
macro_rules! forward {
    (
        sync { $($method:ident($($arg:ident: $type:ty),*) $(-> $value:ty)?;)* }
        async { $($later:ident($($with:ident: $of:ty),*) -> $output:ty;)* }
    ) => {
        impl<H> Hooks for Arc<H>
        where
            H: Hooks,
        {
            $(
                fn $method(&self, $($arg: $type),*) $(-> $value)? {
                    H::$method(self, $($arg),*)
                }
            )*
            $(
                fn $later(
                    &self,
                    $($with: $of),*
                ) -> impl Future<Output = Result<$output, BoxError>> + Send {
                    H::$later(self, $($with),*)
                }
            )*
        }
    };
}

forward! {
    sync {
        id() -> &str;
        interest() -> Interest;
        event(event: &Event, context: &Context);
        model_event(event: &Event, context: &Context);
        call_cancelled(call: &ToolCall);
        session_ended(thread: &ThreadId, history: &Transcript);
    }
    async {
        before_run(request: &mut ChatRequest) -> Flow<Str>;
        step_started(step: &StepStart, run: &Summary) -> ();
        step_finished(step: &StepFinish, run: &Summary) -> ();
        round_finished(results: &[ToolResult], run: &Summary) -> ();
        after_run(end: End<'_>, run: &Summary) -> ();
        before_step(draft: &mut StepDraft) -> StepDecision;
        before_round(view: &StepView) -> RoundDecision;
        before_finish(draft: &mut StepDraft) -> FinishDecision;
        before_model(request: &mut ChatRequest) -> Flow<Vec<Event>>;
        after_model(end: End<'_>, call: &Summary) -> ();
        before_call(call: &mut BeforeCall) -> Flow<ToolOutcome>;
        after_call(call: &ToolCall, outcome: &ToolOutcome, took: Duration) -> Option<ToolOutcome>;
        on_call_error(call: &ToolCall, error: &Error, took: Duration) -> Option<ToolOutcome>;
        session_started(thread: &ThreadId, history: &Transcript) -> ();
    }
}
