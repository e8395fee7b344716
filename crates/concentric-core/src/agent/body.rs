use super::{
    gate::{Deciding, Moment},
    run::{Foreign, Run, Stop, at, discard, guarded},
};
use crate::{
    request::ChatRequest, response::ChatResponse, service::BoxFuture, tool_call::ToolRound,
};
use concentric_proto::{
    Error, Event, Phase, RoundEvent,
    machine::{Action, Input},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// The response body of an [`Agent`](super::Agent), which drives the run.
    ///
    /// Polling the body advances the run. Dropping it stops the run and its running tools.
    #[must_use = "streams do nothing unless polled"]
    pub struct AgentBody<M, B, R, O>
    where
        M: Service<ChatRequest>,
        R: Service<ToolRound>,
    {
        run: Box<Run<M, R>>,
        #[pin]
        work: Work<M, B, R, O>,
    }
}

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
        Gates { deciding: Deciding, step: u32, round: Option<ToolRound> },
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

impl<M, B, R, O> AgentBody<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    pub(super) fn new(mut run: Box<Run<M, R>>, work: Work<M, B, R, O>) -> Self {
        run.commit();
        Self { run, work }
    }
}

impl<M, B, R, O> Stream for AgentBody<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: nearly all events of a run are text deltas, and they take this short path.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.as_mut().project();
        let run = &mut **this.run;
        if !run.is_called()
            && run.machine.is_reading()
            && let WorkProj::Body { body } = this.work.project()
        {
            let item = poll_model(body, cx);
            if let Poll::Ready(Some(Ok(event))) = &item
                && run.machine.delta(event)
            {
                run.count_event();
                return item;
            }
            return self.poll_run(cx, Some(item));
        }
        self.poll_run(cx, None)
    }
}

impl<M, B, R, O> AgentBody<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    /// Advances the run. `read` is the result of the caller's poll of the model's body, if any.
    #[inline(never)]
    fn poll_run(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut read: Option<Poll<Option<Result<Event, Error>>>>,
    ) -> Poll<Option<Result<Event, Error>>> {
        let mut this = self.project();
        let run = &mut **this.run;
        loop {
            if read.is_none() {
                if let Some(stop) = run.stops() {
                    this.work.as_mut().stop(run, stop, cx);
                }
                // Emitted events precede the next action of the machine.
                if let Some(event) = run.emitted() {
                    run.count_event();
                    return Poll::Ready(Some(Ok(event)));
                }
            }

            if run.machine.is_reading()
                && let WorkProj::Body { body } = this.work.as_mut().project()
            {
                if let Poll::Ready(item) = read.take().unwrap_or_else(|| poll_model(body, cx)) {
                    if let Some(event) = run.take_in(item) {
                        run.count_event();
                        return Poll::Ready(Some(Ok(event)));
                    }
                    continue;
                }
            } else {
                if let Some(stop) = run.is_late() {
                    this.work.as_mut().stop(run, stop, cx);
                }
                match run.machine.action() {
                    Some(Action::Emit(mut event)) => {
                        if let Event::Finish(finish) = &mut event {
                            discard(|| this.work.set(Work::Idle));
                            run.end();
                            if let Err(error) = run.keep_slots(finish) {
                                return Poll::Ready(Some(Err(error)));
                            }
                        }
                        run.count_event();
                        return Poll::Ready(Some(Ok(event)));
                    }
                    Some(Action::Fail(error)) => {
                        discard(|| this.work.set(Work::Idle));
                        run.end();
                        return Poll::Ready(Some(Err(error)));
                    }
                    Some(Action::CallModel { step, resume: None })
                        if let Some(deciding) = run.decide(Moment::Step, step) =>
                    {
                        this.work.set(Work::Gates {
                            deciding,
                            step,
                            round: None,
                        });
                    }
                    Some(Action::CallModel { step, resume }) => {
                        let call = run.shown_model_call(step, resume);
                        let work = call.map_or(Work::Idle, |call| Work::Model { call });
                        this.work.set(work);
                        continue;
                    }
                    Some(Action::MayFinish) => {
                        let step = run.machine.last_step();
                        match run.decide(Moment::Finish, step) {
                            Some(deciding) => this.work.set(Work::Gates {
                                deciding,
                                step,
                                round: None,
                            }),
                            None => run.machine.input(Input::Finish),
                        }
                        continue;
                    }
                    Some(Action::RunTools {
                        step,
                        message_id,
                        calls,
                    }) => {
                        let round = run.round(step, message_id, calls);
                        let work = match run.decide(Moment::Round, step) {
                            Some(deciding) => Work::Gates {
                                deciding,
                                step,
                                round: Some(round),
                            },
                            None => Work::of_round(run, round),
                        };
                        this.work.set(work);
                        // The round may have ended already.
                        continue;
                    }
                    _ => {}
                }
                if this.work.as_mut().poll(run, cx).is_ready() {
                    continue;
                }
                if run.machine.is_ended() {
                    return Poll::Ready(None);
                }
            }
            match run.poll_stop(cx) {
                Poll::Ready(stop) => this.work.as_mut().stop(run, stop, cx),
                Poll::Pending => {
                    let event = ready!(run.poll_emitted(cx));
                    run.count_event();
                    return Poll::Ready(Some(Ok(event)));
                }
            }
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
    /// Runs a round, after its state is persisted if the run has a checkpoint.
    fn of_round(run: &mut Run<M, R>, round: ToolRound) -> Self {
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
            None => Self::start(run, round),
        }
    }

    /// Runs a round without persisting its state.
    fn start(run: &mut Run<M, R>, round: ToolRound) -> Self {
        let call = run.round_call(round);
        call.map_or(Self::Idle, |call| Self::Round { call })
    }

    /// Drops the pending work and stops the machine.
    fn stop(mut self: Pin<&mut Self>, run: &mut Run<M, R>, stop: Stop, cx: &mut Context<'_>) {
        run.cancel_tools(stop);
        // The round service knows which calls have started; it settles the others as cancelled.
        while let WorkProj::Outcomes { outcomes } = self.as_mut().project()
            && run.machine.has_running()
            && let Poll::Ready(Some(Ok(event))) = poll_tools(outcomes, cx)
        {
            run.machine.input(Input::of_round(Ok(event)));
        }
        run.stop(stop);
        discard(|| self.set(Self::Idle));
    }

    /// Polls any pending work except the model's body, and passes the result to the machine.
    fn poll(mut self: Pin<&mut Self>, run: &mut Run<M, R>, cx: &mut Context<'_>) -> Poll<()> {
        match self.as_mut().project() {
            WorkProj::Idle | WorkProj::Body { .. } => return Poll::Pending,
            WorkProj::Gates {
                deciding,
                step,
                round,
            } => {
                let next = match deciding {
                    Deciding::Step(deciding) => {
                        let said = ready!(deciding.as_mut().poll(cx));
                        let call = match run.before_step(said) {
                            true => run.shown_model_call(*step, None),
                            false => None,
                        };
                        call.map(|call| Self::Model { call })
                    }
                    Deciding::Round(deciding) => {
                        let said = ready!(deciding.as_mut().poll(cx));
                        let round = round.take();
                        let round = round.filter(|_| run.before_round(said));
                        round.map(|round| Self::of_round(run, round))
                    }
                    Deciding::Finish(deciding) => {
                        run.before_finish(ready!(deciding.as_mut().poll(cx)));
                        None
                    }
                };
                self.set(next.unwrap_or(Self::Idle));
            }
            WorkProj::Model { call } => match ready!(poll_call(Foreign::Model, call, cx)) {
                Ok(ChatResponse { head, body, .. }) => match run.check_layers() {
                    Ok(()) => {
                        run.model_started(&head);
                        self.set(Self::Body { body });
                    }
                    Err(error) => {
                        let error = at(error, Phase::Model);
                        run.machine.input(Input::ModelFailed(error));
                    }
                },
                Err(error) => {
                    let error = at(error, Phase::Model);
                    run.machine.input(Input::ModelFailed(error));
                }
            },
            WorkProj::Save { save, round } => {
                let saved = guarded(Foreign::Store, || save.as_mut().poll(cx), Err);
                match (ready!(saved), round.take()) {
                    (Ok(()), Some(round)) => {
                        let work = Self::start(run, round);
                        self.set(work);
                    }
                    (Err(error), _) => {
                        run.machine
                            .input(Input::RoundRefused(at(error, Phase::Round)));
                        self.set(Self::Idle);
                    }
                    (Ok(()), None) => self.set(Self::Idle),
                }
            }
            WorkProj::Round { call } => {
                let polled = poll_call(Foreign::Tools, call, cx);
                run.count_effects();
                match ready!(polled) {
                    Ok(outcomes) => self.set(Self::Outcomes { outcomes }),
                    Err(error) => {
                        let error = at(error, Phase::Round);
                        run.machine.input(Input::RoundFailed(error));
                    }
                }
            }
            WorkProj::Outcomes { outcomes } => {
                run.machine.input(match ready!(poll_tools(outcomes, cx)) {
                    Some(item) => Input::of_round(item.map_err(|error| at(error, Phase::Round))),
                    None => Input::RoundEnded,
                });
            }
        }
        Poll::Ready(())
    }
}

/// Polls the model's body.
#[inline]
fn poll_model<B>(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>>
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
pub(super) fn poll_call<S, Q>(
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

impl<M, B, R, O> fmt::Debug for AgentBody<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBody").finish_non_exhaustive()
    }
}
