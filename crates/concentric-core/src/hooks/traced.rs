//! The steps of a trace that are events of the run.

use super::{End, Flow, Hooks, Interest, Summary};
use crate::{
    context::Context,
    request::ChatRequest,
    trace::{Trace, TraceEntry, TraceStep},
};
use concentric_proto::{Delivery, Event, Outcome, Str};
use tower::BoxError;

impl Hooks for Trace {
    fn id(&self) -> &str {
        "trace"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_RUN | Interest::EVENT | Interest::AFTER_RUN
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        let delivery = match request.resume {
            Some(_) => Delivery::Resumed,
            None => Delivery::First,
        };
        request.context.set_trace(self.clone());
        let turns = request.transcript.len();
        let entry = TraceEntry::new(&request.context, TraceStep::Started { turns });
        self.record(entry.with_delivery(delivery));
        Ok(Flow::Continue)
    }

    fn event(&self, event: &Event, context: &Context) {
        let step = match event {
            Event::StepFinish(finish) => TraceStep::ModelEnded {
                step: finish.step,
                reason: finish.reason.clone(),
            },
            Event::ToolResult(result) => {
                let step = TraceStep::Result(result.outcome.status);
                let entry = TraceEntry::new(context, step);
                return self.record(entry.for_call(result.call_id.clone(), result.name.clone()));
            }
            Event::Reset => TraceStep::Reset,
            Event::TranscriptReplaced(transcript) => TraceStep::TranscriptReplaced {
                turns: transcript.len(),
            },
            _ => return,
        };
        self.record(TraceEntry::new(context, step));
    }

    async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
        let how = match end {
            End::Finished(finish) => match &finish.outcome {
                Outcome::Completed => "completed",
                Outcome::Interrupted => "interrupted",
                Outcome::Halted { .. } => "halted",
                Outcome::Aborted { .. } => "aborted",
                Outcome::StepLimit => "step_limit",
                Outcome::CallLimit => "call_limit",
                _ => "finished",
            },
            End::Failed(_) => "failed",
            End::Truncated => "truncated",
            End::Dropped => "dropped",
        };
        self.record(TraceEntry::new(run.context(), TraceStep::Ended(how)));
        Ok(())
    }
}
