//! The operation that a run waits for.

use super::{
    guard::{Foreign, at, discard, guarded},
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
        /// Persisting the run's state before the round.
        Save { save: BoxFuture<()>, round: Option<ToolRound> },
        /// The call of the round service.
        Round { #[pin] call: Oneshot<R, ToolRound> },
        /// The next outcome of the round.
        Outcomes { #[pin] outcomes: O },
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
            run.keep_slots(finish)?;
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

    /// Runs a round, after its state is persisted if the run has a checkpoint.
    fn round(run: &mut Run<M, R>, round: ToolRound) -> Self {
        if round.calls.is_empty() {
            // All calls of the round are executed by the client.
            run.machine.input(Input::RoundEnded);
            return Self::Idle;
        }
        match run.checkpoint() {
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

    /// Runs a round whose state was persisted.
    fn after_save(run: &mut Run<M, R>, round: Result<Option<ToolRound>, Error>) -> Self {
        match round {
            Ok(Some(round)) => Self::saved_round(run, round),
            Ok(None) => Self::Idle,
            Err(error) => {
                let error = at(error, Phase::Round);
                run.machine.input(Input::RoundRefused(error));
                Self::Idle
            }
        }
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

    /// Polls any pending work except the model's body, and passes the result to the machine.
    /// `commits` receives the head of the model's answer.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        run: &mut Run<M, R>,
        commits: Option<&mut ResponseHead>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
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
                let answer = ready!(poll_call(Foreign::Model, call, cx));
                match answer.and_then(|answer| run.check_layers().map(|()| answer)) {
                    Ok(answer) => Self::body(run, answer, commits),
                    Err(error) => {
                        let error = at(error, Phase::Model);
                        run.machine.input(Input::ModelFailed(error));
                        return Poll::Ready(());
                    }
                }
            }
            WorkProj::Save { save, round } => {
                let saved = guarded(Foreign::Store, || save.as_mut().poll(cx), Err);
                let round = ready!(saved).map(|()| round.take());
                Self::after_save(run, round)
            }
            WorkProj::Round { call } => {
                let polled = poll_call(Foreign::Tools, call, cx);
                run.count_effects();
                match ready!(polled) {
                    Ok(outcomes) => Self::Outcomes { outcomes },
                    Err(error) => {
                        let error = at(error, Phase::Round);
                        run.machine.input(Input::RoundFailed(error));
                        return Poll::Ready(());
                    }
                }
            }
            WorkProj::Outcomes { outcomes } => {
                run.machine.input(match ready!(poll_tools(outcomes, cx)) {
                    Some(item) => Input::of_round(item.map_err(|error| at(error, Phase::Round))),
                    None => Input::RoundEnded,
                });
                return Poll::Ready(());
            }
        };
        self.set(next);
        Poll::Ready(())
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

/// Polls the model's body.
#[inline(always)]
pub(super) fn poll_model<B>(
    body: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Event, Error>>>
where
    B: Stream<Item = Result<Event, Error>>,
{
    let fail = |error| Some(Err(error));
    guarded(Foreign::Model, || body.poll_next(cx), fail)
}

/// Polls the outcomes of a round.
fn poll_tools<O>(
    outcomes: Pin<&mut O>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<RoundEvent, Error>>>
where
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    let fail = |error| Some(Err(error));
    guarded(Foreign::Tools, || outcomes.poll_next(cx), fail)
}

/// Polls the call of a model or of a round service.
fn poll_call<S, Q>(
    part: Foreign,
    call: Pin<&mut Oneshot<S, Q>>,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Response, Error>>
where
    S: Service<Q>,
    S::Error: Into<BoxError>,
{
    let poll = || call.poll(cx).map_err(|error| Error::from(error.into()));
    guarded(part, poll, Err)
}
