//! Drives a run: performs the actions of its [`Machine`], and reports their results.
//!
//! An [`Agent`](crate::Agent) has a driver for each run. [`Driver::for_rounds`] drives the rounds of
//! another loop, which calls its model itself, as `ToolLifecycle` of `concentric-tools` does.

mod checkpoint;
mod claim;
mod commit;
mod gates;
mod guard;
mod nested;
mod resume;
mod run;
mod stop;
mod trace;
mod usage;
mod work;

pub(crate) use self::guard::{Foreign, attempt, discard};
pub use self::resume::resume;

use self::{
    claim::Claim,
    guard::{failed, guarded},
    run::{Run, offer, resumed},
    work::Work,
};
use crate::{
    context::Context,
    request::ChatRequest,
    response::ChatResponse,
    service::{BoxModel, EventStream},
    step_gate::StepGates,
    tool_call::ToolRound,
};
use concentric_proto::{
    Error, ErrorKind, Event, Phase, RoundEvent, Str, ToolSpecs, Transcript,
    machine::{Machine, RunLimits},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::ready,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};
use tower::{BoxError, service_fn};
use tower_service::Service;

/// The parts of an agent that drive one of its runs.
pub(crate) struct DriverParts<M, R> {
    pub(crate) model: M,
    pub(crate) rounds: R,
    /// The tools that the run is offered.
    pub(crate) specs: ToolSpecs,
    pub(crate) rules: Arc<RunLimits>,
    /// The step gates of the run and of its agent.
    pub(crate) gates: StepGates,
    /// The names of the run's overrides.
    pub(crate) overrides: Vec<Str>,
}

impl<M, R> DriverParts<M, R> {
    /// Makes the machine ask the gates that decide before a round or the end of the run.
    fn ask_gates(&mut self) {
        let (gates, rules) = (&self.gates, &mut self.rules);
        let (to_finish, before_round) = (gates.ask_to_finish(), gates.ask_before_round());
        if (to_finish && !rules.asks_to_finish) || (before_round && !rules.asks_before_round) {
            let rules = Arc::make_mut(rules);
            rules.asks_to_finish |= to_finish;
            rules.asks_before_round |= before_round;
        }
    }
}

/// A driver that a response future hands over to its body by pointer.
pub(crate) type BoxDriver<M, B, R, O> = Pin<Box<Driver<M, B, R, O>>>;

pin_project! {
    /// Drives one run: the run, and the work that it waits for.
    ///
    /// Dropping it drops the work in progress.
    pub struct Driver<M, B, R, O>
    where
        M: Service<ChatRequest>,
        R: Service<ToolRound>,
    {
        // Dropped before the run, which releases its claim when it is dropped.
        #[pin]
        work: Work<M, B, R, O>,
        run: Run<M, R>,
    }
}

impl<M, B, R, O> Driver<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    /// Begins a run, or resumes the one that `request` refers to.
    ///
    /// # Errors
    ///
    /// The request does not fit the agent, or the run can't be resumed.
    pub(crate) fn new(
        mut parts: DriverParts<M, R>,
        mut request: ChatRequest,
    ) -> Result<Pin<Box<Self>>, Error> {
        parts.ask_gates();
        let client_tools = offer(&mut request, std::mem::take(&mut parts.specs))?;
        let resumed = resumed(&mut request, &parts.rules, &parts.overrides)?;
        let overrides = std::mem::take(&mut parts.overrides);
        // Inside another loop's model call, the claim belongs to that loop.
        let claim = (request.context.phase() == Phase::Run).then(|| Claim::new(&request.context));
        let mut driver = Self::begin(parts, request, client_tools, resumed, claim);
        if !overrides.is_empty() {
            let run = driver.as_mut().project().run;
            run.machine.set_overrides(&overrides);
        }
        Ok(driver)
    }
}

impl<R, O> Driver<BoxModel, EventStream, R, O>
where
    R: Service<ToolRound, Response = O>,
{
    /// Creates a driver of the rounds of `machine`, whose model is called elsewhere: the caller
    /// passes the model's answers to the [machine](Self::machine_mut), and polls the driver until
    /// the machine [requests](Machine::is_model_next) the next one.
    ///
    /// The driver does not take the events that are [emitted](Context::poll_emitted) into the run,
    /// and does not end the run of `context`.
    pub fn for_rounds(
        machine: Machine,
        rounds: R,
        tools: ToolSpecs,
        context: Context,
    ) -> Pin<Box<Self>> {
        let mut request = ChatRequest::new(Transcript::new()).with_context(context);
        request.tools = tools;
        let model = BoxModel::new(service_fn(|_: ChatRequest| {
            let why = "the driver of the rounds has no model";
            ready(Err::<ChatResponse<EventStream>, _>(Error::new(
                ErrorKind::Configuration,
                why,
            )))
        }));
        let parts = DriverParts {
            model,
            rounds,
            specs: ToolSpecs::default(),
            rules: Arc::default(),
            gates: StepGates::default(),
            overrides: Vec::new(),
        };
        let machine = Some(Box::new(machine));
        Self::begin(parts, request, Arc::default(), machine, None)
    }

    /// The machine of the run.
    pub fn machine(&self) -> &Machine {
        &self.run.machine
    }

    /// The machine of the run, to pass the model's answers to it.
    pub fn machine_mut(self: Pin<&mut Self>) -> &mut Machine {
        &mut self.project().run.machine
    }
}

impl<M, B, R, O> Driver<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    /// Returns the next event of the run; `None` after the last one.
    // Inlined always: nearly all events of a run are text deltas, and they take this short path.
    #[inline(always)]
    pub fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Event, Error>>> {
        let this = self.as_mut().project();
        let run = this.run;
        if !run.is_called()
            && let Some(message) = run.machine.message()
            && let Some(body) = this.work.as_body()
        {
            let mut item = guarded(Foreign::Model, || body.poll_next(cx), failed);
            // Not borrowed by a call, so that the event stays where the body wrote it.
            match &item {
                Poll::Ready(Some(Ok(event))) if message.push_more(event) => run.count_event(),
                _ => item = self.poll_run(cx, Some(item)),
            }
            return item;
        }
        self.poll_run(cx, None)
    }

    /// Advances the run. `read` is the result of the caller's poll of the model's body, if any.
    // Cold, so that the compiler inlines all of the short path, also where it has many conditions.
    #[cold]
    #[inline(never)]
    fn poll_run(
        self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        mut read: Option<Poll<Option<Result<Event, Error>>>>,
    ) -> Poll<Option<Result<Event, Error>>> {
        let mut this = self.project();
        let run = this.run;
        match read {
            // Reasoning, a refusal, or the begin of a part.
            Some(Poll::Ready(Some(Ok(event))))
                if run
                    .machine
                    .message()
                    .is_some_and(|message| message.push_delta(&event)) =>
            {
                run.count_event();
                return Poll::Ready(Some(Ok(event)));
            }
            other => read = other,
        }
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
                && let Some(body) = this.work.as_mut().as_body()
            {
                // A closure of its own: the guard of the short path is inlined only if it is not
                // shared.
                let poll = || guarded(Foreign::Model, || body.poll_next(cx), failed);
                if let Poll::Ready(item) = read.take().unwrap_or_else(poll) {
                    if let Some(event) = run.take_in(item) {
                        run.count_event();
                        return Poll::Ready(Some(Ok(event)));
                    }
                    continue;
                }
            } else if let Some(event) = run.machine.take_event() {
                run.count_event();
                return Poll::Ready(Some(Ok(event)));
            } else if let Some(action) = run.machine.action() {
                if let Some(item) = this.work.as_mut().perform(run, action) {
                    return Poll::Ready(Some(item));
                }
                continue;
            } else if this.work.as_mut().poll(run, None, cx).is_ready() {
                continue;
            } else if run.machine.is_ended() {
                return Poll::Ready(None);
            }
            match run.poll_stop(cx) {
                Poll::Ready(stop) => this.work.as_mut().stop(run, stop, cx),
                Poll::Pending => {
                    let event = task::ready!(run.poll_emitted(cx));
                    run.count_event();
                    return Poll::Ready(Some(Ok(event)));
                }
            }
        }
    }
}

impl<M, B, R, O> fmt::Debug for Driver<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
