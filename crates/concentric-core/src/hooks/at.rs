use super::{Flow, Hooks, Interest, Summary};
use crate::{context::Context, end::End, request::ChatRequest, take_up::take_up};
use concentric_proto::{
    Error, Event, Finish, FinishReason, Head, MessageBuilder, Outcome, Phase, StepFinish,
    StepStart, Str, ToolResult, Turn, Usage,
    machine::{Action, Input, Rules},
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
/// The errors of [`take_up`] if the request resumes a run.
pub(super) fn end_run(
    request: &mut ChatRequest,
    text: Option<Str>,
    outcome: Outcome,
) -> Result<Vec<Event>, Error> {
    let mut events = Vec::new();
    let mut finish = Box::new(Finish::new(FinishReason::Stop, Usage::default()));
    match request.resume.take() {
        None => finish.transcript = Some(request.transcript.clone()),
        // The inner layer that stores the run is not called, so the run remains suspended there.
        Some(resume) if resume.is_elsewhere() => {}
        Some(resume) => {
            let mut rules = Rules::default();
            // The replies to calls and the decisions about them are not applied here.
            rules.resumes = true;
            let mut machine = take_up(request, &resume, rules)?;
            machine.input(Input::Halt(Str::default()));
            while let Some(action) = machine.action() {
                match action {
                    Action::Emit(Event::Finish(end)) => finish = end,
                    Action::Emit(event) => events.push(event),
                    _ => {}
                }
            }
        }
    }
    if let Some(text) = text {
        let event = Event::TextDelta(text);
        let mut message = MessageBuilder::new(&Head::default());
        message.push(&event);
        let message = message.build();
        if let Some(transcript) = &mut finish.transcript
            && !message.parts.is_empty()
            && let Ok(turn) = Turn::message(message)
        {
            transcript.push(turn);
        }
        finish.reason = FinishReason::Stop;
        finish.provider_reason = None;
        events.push(event);
    }
    finish.outcome = outcome;
    events.push(Event::Finish(finish));
    Ok(events)
}
