use super::{Flow, Hooks, Interest, Summary};
use crate::{context::Context, driver::resume, end::End, request::ChatRequest, resume::Resume};
use concentric_proto::{
    Error, Event, Finish, FinishReason, Outcome, Phase, StepFinish, StepStart, Str, ToolResult,
    Usage,
    machine::{Action, Machine, RunLimits},
};
use std::sync::Arc;
use tower::BoxError;

/// The methods of hooks at one place: for runs, or for model calls.
pub(super) struct At<H> {
    hooks: Arc<H>,
    is_model: bool,
}

impl<H> At<H>
where
    H: Hooks,
{
    pub(super) const fn new(hooks: Arc<H>, is_model: bool) -> Self {
        Self { hooks, is_model }
    }

    pub(super) fn id(&self) -> &str {
        self.hooks.id()
    }

    pub(super) const fn phase(&self) -> Phase {
        match self.is_model {
            true => Phase::Model,
            false => Phase::Run,
        }
    }

    /// Returns the points of this place that the hooks use.
    pub(super) fn interest(&self) -> Interest {
        self.hooks.interest()
            & match self.is_model {
                true => Interest::MODEL,
                false => Interest::RUN,
            }
    }

    /// Returns the name of the method before the call, for logs.
    pub(super) const fn before_name(&self) -> &'static str {
        match self.is_model {
            true => "before_model",
            false => "before_run",
        }
    }

    /// Returns the name of the method after the call, for logs.
    pub(super) const fn after_name(&self) -> &'static str {
        match self.is_model {
            true => "after_model",
            false => "after_run",
        }
    }

    /// Returns the answer in place of the inner service, if any.
    pub(super) async fn before(
        &self,
        request: &mut ChatRequest,
    ) -> Result<Option<Vec<Event>>, BoxError> {
        if self.is_model {
            return Ok(model_answer(self.hooks.before_model(request).await?));
        }
        Ok(match self.hooks.before_run(request).await? {
            Flow::Continue => None,
            Flow::Answer(text) => Some(end_run(request, Some(text), Outcome::Completed)?),
            Flow::Halt(reason) => Some(end_run(request, None, Outcome::Halted { reason })?),
        })
    }

    #[inline]
    pub(super) fn event(&self, event: &Event, context: &Context) {
        self.hooks.event(event, context);
    }

    #[inline]
    pub(super) fn model_event(&self, event: &Event, context: &Context) {
        self.hooks.model_event(event, context);
    }

    pub(super) fn step_started(
        &self,
        step: &StepStart,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.hooks.step_started(step, run)
    }

    pub(super) fn step_finished(
        &self,
        step: &StepFinish,
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.hooks.step_finished(step, run)
    }

    pub(super) fn round_finished(
        &self,
        results: &[ToolResult],
        run: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.hooks.round_finished(results, run)
    }

    pub(super) async fn after(&self, end: End<'_>, summary: &Summary) -> Result<(), BoxError> {
        if self.is_model {
            self.hooks.after_model(end, summary).await
        } else {
            self.hooks.after_run(end, summary).await
        }
    }
}

impl<H> Clone for At<H> {
    fn clone(&self) -> Self {
        Self {
            hooks: Arc::clone(&self.hooks),
            is_model: self.is_model,
        }
    }
}

/// Returns the events of a model call that hooks answer or halt.
fn model_answer(flow: Flow<Vec<Event>>) -> Option<Vec<Event>> {
    match flow {
        Flow::Continue => None,
        Flow::Answer(mut events) => {
            if !events.last().is_some_and(Event::is_finish) {
                let reason = match events.iter().any(|e| matches!(e, Event::ToolCall(_))) {
                    true => FinishReason::ToolCalls,
                    false => FinishReason::Stop,
                };
                events.push(Event::finish(reason, Usage::default()));
            }
            Some(events)
        }
        Flow::Halt(reason) => {
            let finish = Finish::new(FinishReason::Stop, Usage::default());
            let halted = finish.with_outcome(Outcome::Halted { reason });
            Some(vec![Event::Finish(Box::new(halted))])
        }
    }
}

/// Returns the events of a run that ends with `outcome`, and optionally with a text, without
/// calling the agent.
///
/// # Errors
///
/// The errors of [`resume`] if the request resumes a run.
pub(super) fn end_run(
    request: &mut ChatRequest,
    text: Option<Str>,
    outcome: Outcome,
) -> Result<Vec<Event>, Error> {
    let mut rules = RunLimits::default();
    // The replies to calls and the decisions about them are not applied here.
    rules.resumes = true;
    let resumed = request.resume.take();
    // The inner layer that stores the run is not called, so the run remains suspended there.
    let is_elsewhere = resumed.as_ref().is_some_and(Resume::is_elsewhere);
    let mut machine = match resumed {
        Some(resumed) if !is_elsewhere => resume(request, &resumed, rules)?,
        _ => Machine::new(request.transcript.clone(), rules),
    };
    machine.finish_with(text, outcome);
    let mut events = Vec::new();
    while let Some(Action::Emit(mut event)) = machine.action() {
        if let Event::Finish(finish) = &mut event
            && is_elsewhere
        {
            finish.transcript = None;
        }
        events.push(event);
    }
    Ok(events)
}
