use super::AgentBody;
use crate::{
    driver::{BoxDriver, Foreign, Stop, Work, at, discard, poll_call},
    request::ChatRequest,
    response::ChatResponse,
    step_gate::{Deciding, Moment},
    tool_call::ToolRound,
};
use concentric_proto::{
    Error, ErrorKind, Event, Head, Phase, RoundEvent,
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
    /// Response future for [`Agent`](super::Agent).
    ///
    /// It resolves when the first model call does, or at once for a run that resumes an open round.
    /// No event is emitted before it resolves, including [`Event::StepStart`] of the first step, so
    /// a retry around the agent repeats only that model call.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<M, B, R, O>
    where
        M: Service<ChatRequest>,
        R: Service<ToolRound>,
    {
        // Taken when the future resolves.
        driver: Begun<M, B, R, O>,
        // The gates deciding about the first step.
        deciding: Option<(Deciding, u32)>,
        #[pin]
        call: Option<Oneshot<M, ChatRequest>>,
    }
}

impl<M, B, R, O> ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    pub(super) const fn new(driver: Result<BoxDriver<M, B, R, O>, Error>) -> Self {
        Self {
            driver: Some(driver),
            deciding: None,
            call: None,
        }
    }
}

impl<M, B, R, O> Future for ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Output = Result<ChatResponse<AgentBody<M, B, R, O>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(Ok(driver)) = this.driver else {
            let failed = this.driver.take().and_then(Result::err);
            return Poll::Ready(Err(failed.expect("polled after completion")));
        };
        let run = driver.as_mut().run();

        // A run that resumes, or that was cancelled before it began, has a body at once.
        let mut answer = Head::default();
        let mut work = Work::Idle;
        let has_begun = this.call.is_some() || this.deciding.is_some();
        if !run.check_cancelled() && (has_begun || run.machine.is_model_next()) {
            if !has_begun && run.context().is_late() {
                *this.driver = None;
                return Poll::Ready(Err(Error::deadline().with_phase(Phase::Run)));
            }
            if !has_begun && let Some(Action::CallModel { step, resume }) = run.machine.action() {
                let deciding = match resume {
                    None => run.decide(Moment::Step, step),
                    Some(_) => None,
                };
                match deciding {
                    Some(deciding) => *this.deciding = Some((deciding, step)),
                    None => match run.model_call(step, resume) {
                        Ok(call) => this.call.set(Some(call)),
                        Err(error) => return failed(this.driver, error),
                    },
                }
            }
            if let Some((Deciding::Step(deciding), step)) = this.deciding
                && let Poll::Ready(said) = deciding.as_mut().poll(cx)
            {
                let step = *step;
                *this.deciding = None;
                match said {
                    Err(error) if error.kind() != ErrorKind::Halted => {
                        return failed(this.driver, error);
                    }
                    said => {
                        if run.before_step(said) {
                            match run.model_call(step, None) {
                                Ok(call) => this.call.set(Some(call)),
                                Err(error) => return failed(this.driver, error),
                            }
                        }
                    }
                }
            }
            let polled = match this.call.as_mut().as_pin_mut() {
                Some(call) => poll_call(Foreign::Model, call, cx).map(Some),
                None if this.deciding.is_some() => Poll::Pending,
                // The gates decided against a first step.
                None => Poll::Ready(None),
            };
            match polled {
                Poll::Ready(None) => {}
                Poll::Ready(Some(Ok(ChatResponse { head, body, .. }))) => {
                    if let Err(error) = run.check_layers() {
                        let error = error.with_effects(run.machine.effects());
                        *this.driver = None;
                        discard(|| this.call.set(None));
                        return Poll::Ready(Err(at(error, Phase::Model)));
                    }
                    run.model_started(head.clone());
                    answer = head;
                    // These are the tools of this loop, not those of a loop around it.
                    answer.tools = None;
                    work = Work::Body { body };
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.kind() != ErrorKind::Halted {
                        // If the run was resumed, the effects of its earlier rounds count as well.
                        let effects = run.machine.effects().max(error.effects());
                        *this.driver = None;
                        discard(|| this.call.set(None));
                        let error = error.with_effects(effects);
                        return Poll::Ready(Err(at(error, Phase::Model)));
                    }
                    run.machine.input(Input::ModelFailed(error));
                }
                // Events emitted now are yielded by the body.
                Poll::Pending => match ready!(run.poll_stop(cx)) {
                    Stop::Late => {
                        *this.driver = None;
                        discard(|| this.call.set(None));
                        return Poll::Ready(Err(Error::deadline().with_phase(Phase::Model)));
                    }
                    stop => run.stop(stop),
                },
            }
        }
        discard(|| this.call.set(None));
        *this.deciding = None;
        match this.driver.take() {
            Some(Ok(mut driver)) => {
                driver.as_mut().commit(work);
                let body = AgentBody::new(driver);
                Poll::Ready(Ok(ChatResponse::new(body).with_head(answer)))
            }
            _ => Poll::Pending,
        }
    }
}

type Begun<M, B, R, O> = Option<Result<BoxDriver<M, B, R, O>, Error>>;

/// Ends a run before it has a body. The error includes the effects of earlier rounds.
fn failed<M, B, R, O, T>(driver: &mut Begun<M, B, R, O>, error: Error) -> Poll<Result<T, Error>>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    let effects = match driver.take() {
        Some(Ok(mut driver)) => driver.as_mut().run().machine.effects().max(error.effects()),
        _ => error.effects(),
    };
    Poll::Ready(Err(error.with_effects(effects)))
}

impl<M, B, R, O> fmt::Debug for ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
