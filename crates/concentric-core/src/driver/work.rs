//! The operation that a run waits for.

use super::{
    guard::{Foreign, at, discard, failed, guarded},
    run::Run,
    stop::Stop,
};
use crate::{
    request::ChatRequest,
    response::ChatResponse,
    service::BoxFuture,
    step_gate::{Decided, Moment, PendingDecision},
    tool_call::ToolRound,
};
use concentric_proto::{
    Error, Event, Phase, ResponseHead, RoundEvent,
    machine::{Action, Input, ModelResume},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// The operation that a run waits for.
    #[project = WorkProj]
    pub(super) enum Work<M, B, R, O>
    where
        M: Service<ChatRequest>,
        R: Service<ToolRound>,
    {
        /// No operation; the machine determines the next action.
        Idle,
        /// Gates deciding about the next action; before a round, about these calls.
        Gates {
            pending: PendingDecision<'static, Decided>,
            moment: Moment,
            step: u32,
            round: Option<ToolRound>,
        },
        /// The call of the model.
        Model { #[pin] call: Oneshot<M, ChatRequest> },
        /// The next event of the model's answer.
        Body { #[pin] body: B },
        /// What the round waits for: effects that an outer layer holds, and the persisted state.
        Save { save: BoxFuture<()>, round: Option<ToolRound> },
        /// The call of the round service.
        Round { #[pin] call: Oneshot<R, ToolRound> },
        /// The next outcome of the round.
        Outcomes { #[pin] outcomes: O },
    }
}

impl<M, B, R, O> Work<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    /// The body of the model's answer, if the run waits for its next event.
    // Inlined always, and checked before the projection, which goes through all variants.
    #[inline(always)]
    pub(super) fn as_body(self: Pin<&mut Self>) -> Option<Pin<&mut B>> {
        if !matches!(*self, Self::Body { .. }) {
            return None;
        }
        match self.project() {
            WorkProj::Body { body } => Some(body),
            _ => None,
        }
    }
}

impl<M, B, R, O> Work<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    /// Performs an action of the machine, and returns the item to yield, if any.
    pub(super) fn perform(
        mut self: Pin<&mut Self>,
        run: &mut Run<M, R>,
        action: Action,
    ) -> Option<Result<Event, Error>> {
        let work = match action {
            Action::Emit(event) => return Some(self.emit(run, event)),
            Action::Fail(error) => {
                run.keep_closed_transcript();
                self.end(run);
                return Some(Err(error));
            }
            Action::CallModel { step, resume: None }
                if let Some(pending) = run.decide(Moment::Step, step) =>
            {
                Self::gates(pending, Moment::Step, step, None)
            }
            Action::CallModel { step, resume } => Self::model(run, step, resume),
            Action::MayFinish => {
                let step = run.machine.last_step();
                let Some(pending) = run.decide(Moment::Finish, step) else {
                    run.machine.input(Input::Finish);
                    return None;
                };
                Self::gates(pending, Moment::Finish, step, None)
            }
            Action::RunTools {
                step,
                message_id,
                calls,
            } => {
                let round = run.round(step, message_id, calls);
                match run.decide(Moment::Round, step) {
                    Some(pending) => Self::gates(pending, Moment::Round, step, Some(round)),
                    None => Self::round(run, round),
                }
            }
            _ => return None,
        };
        self.set(work);
        None
    }

    fn emit(self: Pin<&mut Self>, run: &mut Run<M, R>, mut event: Event) -> Result<Event, Error> {
        if let Event::Finish(finish) = &mut event {
            self.end(run);
            run.complete(finish)?;
        }
        run.count_event();
        Ok(event)
    }

    /// Drops the completed work before the run is released.
    fn end(mut self: Pin<&mut Self>, run: &mut Run<M, R>) {
        discard(|| self.set(Self::Idle));
        run.end();
    }

    const fn gates(
        pending: PendingDecision<'static, Decided>,
        moment: Moment,
        step: u32,
        round: Option<ToolRound>,
    ) -> Self {
        Self::Gates {
            pending,
            moment,
            step,
            round,
        }
    }

    /// Calls the model. The start of the step is emitted before the call.
    fn model(run: &mut Run<M, R>, step: u32, resume: Option<Box<ModelResume>>) -> Self {
        // A `Oneshot` does nothing before its first poll.
        match run.model_call(step, resume) {
            Ok(call) => {
                run.step_started();
                Self::Model { call }
            }
            Err(error) => {
                run.machine.input(Input::ModelFailed(error));
                Self::Idle
            }
        }
    }

    /// Runs a round, once no outer layer holds its effects, and after its state is persisted if the run has a
    /// checkpoint.
    fn round(run: &mut Run<M, R>, round: ToolRound) -> Self {
        run.trace_round(&round);
        if round.calls.is_empty() {
            // All calls of the round are executed by the client.
            run.spend_choice();
            run.machine.input(Input::RoundEnded);
            return Self::Idle;
        }
        match run.before_round() {
            Some(save) => Self::Save {
                save,
                round: Some(round),
            },
            None => Self::saved_round(run, round),
        }
    }

    /// Runs a round without persisting its state.
    fn saved_round(run: &mut Run<M, R>, round: ToolRound) -> Self {
        let call = run.round_call(round);
        call.map_or(Self::Idle, |call| Self::Round { call })
    }

    /// Reads the model's answer. `commits` receives its head.
    fn body(
        run: &mut Run<M, R>,
        answer: ChatResponse<B>,
        commits: Option<&mut ResponseHead>,
    ) -> Self {
        if let Some(commits) = commits {
            commits.clone_from(&answer.head);
        }
        run.model_started(answer.head);
        Self::Body { body: answer.body }
    }

    /// Drops the pending work and stops the machine.
    pub(super) fn stop(
        mut self: Pin<&mut Self>,
        run: &mut Run<M, R>,
        stop: Stop,
        cx: &mut Context<'_>,
    ) {
        run.cancel_tools(stop);
        // The round service knows which calls have started; it settles the others as cancelled.
        while let WorkProj::Outcomes { outcomes } = self.as_mut().project()
            && run.machine.has_running()
            && let Poll::Ready(Some(Ok(event))) = poll_tools(outcomes, cx)
        {
            run.machine.input(Input::of_round(Ok(event)));
        }
        run.stop(stop, self.phase());
        discard(|| self.set(Self::Idle));
    }

    const fn phase(&self) -> Phase {
        match self {
            Self::Idle | Self::Gates { .. } => Phase::Run,
            Self::Model { .. } | Self::Body { .. } => Phase::Model,
            Self::Save { .. } | Self::Round { .. } | Self::Outcomes { .. } => Phase::Round,
        }
    }

    const fn part(&self) -> Foreign {
        match self {
            Self::Idle | Self::Gates { .. } => Foreign::Context,
            Self::Model { .. } | Self::Body { .. } => Foreign::Model,
            Self::Save { .. } => Foreign::Store,
            Self::Round { .. } | Self::Outcomes { .. } => Foreign::Tools,
        }
    }

    /// Polls any pending work except the model's body, and passes the result to the machine.
    /// `commits` receives the head of the model's answer.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        run: &mut Run<M, R>,
        commits: Option<&mut ResponseHead>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // One guard around all of it, so that an answer is not moved out of a guard.
        let part = self.part();
        let poll = || self.as_mut().poll_part(run, commits, cx);
        if let Err(error) = ready!(guarded(part, poll, Err)) {
            // A round service that panicked may have started its calls.
            run.count_effects();
            let error = at(error, self.phase());
            run.machine.input(match &*self {
                Self::Idle | Self::Gates { .. } => Input::Failed(error),
                Self::Model { .. } | Self::Body { .. } => Input::ModelFailed(error),
                Self::Save { .. } => Input::RoundRefused(error),
                Self::Round { .. } | Self::Outcomes { .. } => Input::RoundFailed(error),
            });
        }
        Poll::Ready(())
    }

    fn poll_part(
        mut self: Pin<&mut Self>,
        run: &mut Run<M, R>,
        commits: Option<&mut ResponseHead>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let next = match self.as_mut().project() {
            WorkProj::Idle | WorkProj::Body { .. } => return Poll::Pending,
            WorkProj::Gates {
                pending,
                moment,
                step,
                round,
            } => {
                let decided = ready!(pending.as_mut().poll(cx));
                Self::after_gates(run, *moment, *step, round.take(), decided)
            }
            WorkProj::Model { call } => {
                let mut answer =
                    ready!(call.poll(cx)).map_err(|error| Error::from(error.into()))?;
                run.context.check_expectations()?;
                run.take_edits(&mut answer.extensions)?;
                Self::body(run, answer, commits)
            }
            WorkProj::Save { save, round } => {
                ready!(save.as_mut().poll(cx))?;
                let round = round.take();
                round.map_or(Self::Idle, |round| Self::saved_round(run, round))
            }
            WorkProj::Round { call } => {
                let polled = call.poll(cx);
                run.count_effects();
                let outcomes = ready!(polled).map_err(|error| Error::from(error.into()))?;
                Self::Outcomes { outcomes }
            }
            WorkProj::Outcomes { outcomes } => {
                run.machine.input(match ready!(outcomes.poll_next(cx)) {
                    Some(event) => Input::of_round(Ok(event?)),
                    None => Input::RoundEnded,
                });
                return Poll::Ready(Ok(()));
            }
        };
        self.set(next);
        Poll::Ready(Ok(()))
    }

    /// Returns the work that follows the decision of the gates.
    fn after_gates(
        run: &mut Run<M, R>,
        moment: Moment,
        step: u32,
        round: Option<ToolRound>,
        decided: Result<Decided, Error>,
    ) -> Self {
        match (run.apply(moment, decided), round) {
            (true, None) => Self::model(run, step, None),
            (true, Some(round)) => Self::round(run, round),
            (false, _) => Self::Idle,
        }
    }
}

/// Polls the outcomes of a round.
fn poll_tools<O>(
    outcomes: Pin<&mut O>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<RoundEvent, Error>>>
where
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    guarded(Foreign::Tools, || outcomes.poll_next(cx), failed)
}
