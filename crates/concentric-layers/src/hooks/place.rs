use super::{Hooks, ModelFlow, RunFlow, Summary};
use crate::on_end::End;
use concentric_core::{
    BoxError, ChatRequest, Context, Error, Event, Finish, FinishReason, Outcome, Phase, Resume,
    StepFinish, StepStart, Str, ToolResult, Usage,
    agent::resume,
    capability::{Around, Capabilities, InLoop, Within},
    machine::{Action, Machine, Rules},
    method::is_set,
};
use std::{fmt, future::Future, sync::Arc};

/// The methods of [`Hooks`] that a [`HooksLayer`](super::HooksLayer) calls: [`OnRun`] or
/// [`OnModel`].
///
/// Not part of the public API.
#[doc(hidden)]
pub trait Place: Clone + Send + Sync + 'static {
    /// The capabilities of the layer.
    type Capabilities: Capabilities;
    const PHASE: Phase;
    /// The names of the methods, for logs.
    const BEFORE: &'static str;
    const AFTER: &'static str;
    const EVENT: &'static str;

    fn id(&self) -> &str;

    fn has() -> Has;

    /// Returns the answer in place of the inner service, if any.
    fn before(
        &self,
        request: &mut ChatRequest,
    ) -> impl Future<Output = Result<Option<Vec<Event>>, BoxError>> + Send;

    fn event(&self, event: &Event, context: &Context);

    fn step_started(
        &self,
        step: &StepStart,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    fn step_finished(
        &self,
        step: &StepFinish,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    fn round_finished(
        &self,
        results: &[ToolResult],
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    fn after(
        &self,
        end: End<'_>,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// The methods that are implemented at a place.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    pub(super) before: bool,
    pub(super) step_started: bool,
    pub(super) step_finished: bool,
    pub(super) round_finished: bool,
    pub(super) after: bool,
}

impl Has {
    /// Returns whether any method receives a [`Summary`].
    pub(super) const fn is_told(self) -> bool {
        self.step_started || self.step_finished || self.round_finished || self.after
    }
}

fn before<'a, H: 'a, F>(_: fn(&'a H, &'a mut ChatRequest) -> F) -> bool {
    is_set::<F>()
}

fn of_step<'a, H: 'a, T: ?Sized + 'a, F>(_: fn(&'a H, &'a T, &'a Summary) -> F) -> bool {
    is_set::<F>()
}

fn after<'a, H: 'a, F>(_: fn(&'a H, End<'a>, &'a Summary) -> F) -> bool {
    is_set::<F>()
}

/// The run methods of [`Hooks`].
pub struct OnRun<H>(pub(super) Arc<H>);

impl<H> Place for OnRun<H>
where
    H: Hooks,
{
    type Capabilities = Around<InLoop>;
    const PHASE: Phase = Phase::Run;
    const BEFORE: &'static str = "before_run";
    const AFTER: &'static str = "after_run";
    const EVENT: &'static str = "event";

    fn id(&self) -> &str {
        self.0.id()
    }

    fn has() -> Has {
        Has {
            before: before(H::before_run),
            step_started: of_step(H::step_started),
            step_finished: of_step(H::step_finished),
            round_finished: of_step(H::round_finished),
            after: after(H::after_run),
        }
    }

    async fn before(&self, request: &mut ChatRequest) -> Result<Option<Vec<Event>>, BoxError> {
        Ok(match self.0.before_run(request).await? {
            RunFlow::Continue => None,
            RunFlow::Answer(text) => Some(of_run(request, Some(text), Outcome::Completed)?),
            RunFlow::Halt(reason) => Some(of_run(request, None, Outcome::Halted { reason })?),
        })
    }

    #[inline]
    fn event(&self, event: &Event, context: &Context) {
        self.0.event(event, context);
    }

    fn step_started(
        &self,
        step: &StepStart,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.step_started(step, summary)
    }

    fn step_finished(
        &self,
        step: &StepFinish,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.step_finished(step, summary)
    }

    fn round_finished(
        &self,
        results: &[ToolResult],
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.round_finished(results, summary)
    }

    fn after(
        &self,
        end: End<'_>,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.after_run(end, summary)
    }
}

/// The model methods of [`Hooks`].
pub struct OnModel<H>(pub(super) Arc<H>);

impl<H> Place for OnModel<H>
where
    H: Hooks,
{
    type Capabilities = Within<InLoop>;
    const PHASE: Phase = Phase::Model;
    const BEFORE: &'static str = "before_model";
    const AFTER: &'static str = "after_model";
    const EVENT: &'static str = "model_event";

    fn id(&self) -> &str {
        self.0.id()
    }

    fn has() -> Has {
        Has {
            before: before(H::before_model),
            after: after(H::after_model),
            ..Has::default()
        }
    }

    async fn before(&self, request: &mut ChatRequest) -> Result<Option<Vec<Event>>, BoxError> {
        Ok(match self.0.before_model(request).await? {
            ModelFlow::Continue => None,
            ModelFlow::Answer(mut events) => {
                if !events.last().is_some_and(Event::is_finish) {
                    let reason = match events.iter().any(|e| matches!(e, Event::ToolCall(_))) {
                        true => FinishReason::ToolCalls,
                        false => FinishReason::Stop,
                    };
                    events.push(Event::finish(reason, Usage::default()));
                }
                Some(events)
            }
            ModelFlow::Halt(reason) => {
                let finish = Finish::new(FinishReason::Stop, Usage::default());
                let halted = finish.with_outcome(Outcome::Halted { reason });
                Some(vec![Event::Finish(Box::new(halted))])
            }
        })
    }

    #[inline]
    fn event(&self, event: &Event, context: &Context) {
        self.0.model_event(event, context);
    }

    async fn step_started(&self, _: &StepStart, _: &Summary) -> Result<(), BoxError> {
        Ok(())
    }

    async fn step_finished(&self, _: &StepFinish, _: &Summary) -> Result<(), BoxError> {
        Ok(())
    }

    async fn round_finished(&self, _: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        Ok(())
    }

    fn after(
        &self,
        end: End<'_>,
        summary: &Summary,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.after_model(end, summary)
    }
}

/// Returns the events of a run that ends with `outcome`, and optionally with a text, without
/// calling the agent.
///
/// # Errors
///
/// The errors of [`resume`] if the request resumes a run.
pub(super) fn of_run(
    request: &mut ChatRequest,
    text: Option<Str>,
    outcome: Outcome,
) -> Result<Vec<Event>, Error> {
    let mut rules = Rules::default();
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

impl<H> Clone for OnRun<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H> Clone for OnModel<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H> fmt::Debug for OnRun<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnRun").finish_non_exhaustive()
    }
}

impl<H> fmt::Debug for OnModel<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnModel").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Hooks for Nothing {
        fn id(&self) -> &str {
            "nothing"
        }
    }

    struct AfterOnly;

    impl Hooks for AfterOnly {
        fn id(&self) -> &str {
            "after_only"
        }

        async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
            Ok(())
        }
    }

    #[test]
    fn a_method_that_hooks_do_not_have_is_known() {
        assert_eq!(OnRun::<Nothing>::has(), Has::default());
        assert_eq!(OnModel::<Nothing>::has(), Has::default());
        assert_eq!(OnModel::<Arc<AfterOnly>>::has(), Has::default());
        let after = Has {
            after: true,
            ..Has::default()
        };
        assert_eq!(OnRun::<AfterOnly>::has(), after);
        assert_eq!(OnRun::<Arc<Arc<AfterOnly>>>::has(), after);
        assert!(after.is_told() && !Has::default().is_told());
    }
}
