use super::answer::written;
use concentric_core::{
    BoxError, Context as RunContext, Error, RoundEvent, ToolOutcome, ToolRound, ToolSource,
    ToolSpecs,
    agent::ToolParts,
    durable::{
        BeforeStep, JournalHandle, Recorded, RecordedError, StepAttempt, StepChanges, StepName,
    },
    interrupt::{SuspendedBy, Suspension},
    machine::RunLimits,
    service::{BoxFuture, CloneService},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use serde::{Deserialize, Serialize};
use std::{
    any::Any,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};
use tower::{ServiceExt, util::Oneshot};
use tower_service::Service;

/// Tools whose rounds are durable steps.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct DurableTools<R> {
    inner: R,
}

impl<R> DurableTools<R> {
    /// Makes the rounds of `tools`, such as a `Toolset` of `concentric-tools`, durable.
    pub const fn new(tools: R) -> Self {
        Self { inner: tools }
    }

    /// Gets a reference to the tools.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }
}

impl<R> ToolSource for DurableTools<R>
where
    R: ToolSource,
{
    fn specs(&self) -> ToolSpecs {
        self.inner.specs()
    }

    fn check(&self) -> Result<(), Error> {
        self.inner.check()
    }

    fn check_run(&self, context: &RunContext) -> Result<(), Error> {
        self.inner.check_run(context)
    }

    fn offers(&self, tool: &str, context: &RunContext) -> bool {
        self.inner.offers(tool, context)
    }

    fn install(&mut self, parts: ToolParts) -> Result<(), Error> {
        self.inner.install(parts)
    }

    fn source_mut(&mut self) -> &mut dyn Any
    where
        Self: Sized + 'static,
    {
        &mut self.inner
    }

    fn install_for_run(&mut self, parts: &ToolParts) -> Result<(), Error> {
        self.inner.install_for_run(parts)
    }

    fn rules(&self) -> RunLimits {
        self.inner.rules()
    }
}

impl<R, O> Service<ToolRound> for DurableTools<R>
where
    R: Service<ToolRound, Response = O> + CloneService + Send + 'static,
    R::Error: Into<BoxError>,
    R::Future: Send + 'static,
    O: Stream<Item = Result<RoundEvent, Error>> + Send + 'static,
{
    type Response = DurableOutcomes<O>;
    type Error = Error;
    type Future = RoundFuture<R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        // Not ready: the future waits for the readiness of a clone.
        let inner = self.inner.clone();
        let stage = match round.context.capability::<JournalHandle>().cloned() {
            None => Stage::Passed {
                call: Oneshot::new(inner, round),
            },
            Some(journal) => Stage::Step {
                call: Box::pin(step(inner, round, journal)),
            },
        };
        RoundFuture { stage }
    }
}

/// The outcomes of a round.
#[derive(Serialize, Deserialize)]
struct Outcomes {
    events: Vec<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<RecordedError>,
    #[serde(default)]
    changes: StepChanges,
    // The number of effects that the round has counted.
    #[serde(default)]
    effects: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Settled(usize, ToolOutcome),
    Suspended(usize, Box<Suspension>, SuspendedBy),
}

impl Outcome {
    fn new(event: RoundEvent) -> Option<Self> {
        match event {
            RoundEvent::Settled { index, outcome } => Some(Self::Settled(index, outcome)),
            RoundEvent::Suspended { index, on, by } => Some(Self::Suspended(index, on, by)),
            // The loop settles a call without an event as unknown.
            _ => None,
        }
    }

    fn into_event(self) -> RoundEvent {
        match self {
            Self::Settled(index, outcome) => RoundEvent::settled(index, outcome),
            Self::Suspended(index, on, by) => RoundEvent::suspended(index, on, by),
        }
    }
}

async fn step<R, O>(inner: R, round: ToolRound, journal: JournalHandle) -> Result<Ended, Error>
where
    R: Service<ToolRound, Response = O> + Send + 'static,
    R::Error: Into<BoxError>,
    R::Future: Send + 'static,
    O: Stream<Item = Result<RoundEvent, Error>> + Send + 'static,
{
    // The calls are counted when they start, or when a replay yields their outcomes.
    round.counts_effects();
    let context = round.context.clone();
    let before = context.effect_count();
    let name = StepName::Round(context.step());
    let work = move |attempt| -> Pin<Box<dyn Future<Output = _> + Send>> {
        Box::pin(record(inner, round, attempt))
    };
    let recorded = journal.step(name, Box::new(work)).await?;
    let outcomes: Outcomes = recorded.read()?;
    for _ in (context.effect_count() - before)..outcomes.effects {
        context.count_effect();
    }
    outcomes.changes.apply(&context, false);
    Ok(Ended {
        events: outcomes.events.into_iter(),
        error: outcomes.error.map(|error| error.to_error()),
    })
}

/// Executes a round, and returns its outcomes.
async fn record<R, O>(inner: R, mut round: ToolRound, attempt: StepAttempt) -> Recorded
where
    R: Service<ToolRound, Response = O>,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    // Inside a step there are no steps.
    round.context.extensions_mut().remove::<JournalHandle>();
    if attempt.is_repeated {
        for call in &mut round.calls {
            call.state.mark_lost();
        }
    }
    let context = round.context.clone();
    let (before, effects) = (BeforeStep::new(&context), context.effect_count());
    let mut outcomes = Outcomes {
        events: Vec::new(),
        error: None,
        changes: StepChanges::default(),
        effects: 0,
    };
    let called = match before {
        Ok(before) => {
            let called = call(inner, round, &mut outcomes.events).await;
            let changes = before.changes().map_err(Error::from);
            called.and_then(|()| changes.map(|changes| outcomes.changes = changes))
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = called {
        tracing::warn!(parent: None, %error, "a durable round failed");
        outcomes.error = Some(RecordedError::new(&error));
    }
    outcomes.effects = context.effect_count().saturating_sub(effects);
    written(&outcomes)
}

async fn call<R, O>(inner: R, round: ToolRound, events: &mut Vec<Outcome>) -> Result<(), Error>
where
    R: Service<ToolRound, Response = O>,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    let outcomes = inner.oneshot(round).await;
    let outcomes = outcomes.map_err(|error| Error::from(error.into()))?;
    let mut outcomes = pin!(outcomes);
    while let Some(event) = poll_fn(|cx| outcomes.as_mut().poll_next(cx)).await {
        events.extend(Outcome::new(event?));
    }
    Ok(())
}

pin_project! {
    /// Future of a round of [`DurableTools`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct RoundFuture<R>
    where
        R: Service<ToolRound>,
    {
        #[pin]
        stage: Stage<R>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<R>
    where
        R: Service<ToolRound>,
    {
        Passed { #[pin] call: Oneshot<R, ToolRound> },
        Step { call: BoxFuture<Ended> },
    }
}

impl<R, O> Future for RoundFuture<R>
where
    R: Service<ToolRound, Response = O>,
    R::Error: Into<BoxError>,
{
    type Output = Result<DurableOutcomes<O>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = match self.project().stage.project() {
            StageProj::Passed { call } => match ready!(call.poll(cx)) {
                Ok(outcomes) => Either::Passed { outcomes },
                Err(error) => return Poll::Ready(Err(Error::from(error.into()))),
            },
            StageProj::Step { call } => match ready!(call.as_mut().poll(cx)) {
                Ok(ended) => Either::Step { ended },
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        Poll::Ready(Ok(DurableOutcomes { inner }))
    }
}

pin_project! {
    /// The outcomes of a round of [`DurableTools`].
    #[must_use = "streams do nothing unless polled"]
    pub struct DurableOutcomes<O> {
        #[pin]
        inner: Either<O>,
    }
}

pin_project! {
    #[project = EitherProj]
    enum Either<O> {
        Passed { #[pin] outcomes: O },
        Step { ended: Ended },
    }
}

/// The outcomes of a round that has ended.
struct Ended {
    events: std::vec::IntoIter<Outcome>,
    error: Option<Error>,
}

impl Ended {
    fn next(&mut self) -> Option<Result<RoundEvent, Error>> {
        match self.events.next() {
            Some(event) => Some(Ok(event.into_event())),
            None => self.error.take().map(Err),
        }
    }

    fn len(&self) -> usize {
        self.events.len() + usize::from(self.error.is_some())
    }
}

impl<O> Stream for DurableOutcomes<O>
where
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Item = O::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().inner.project() {
            EitherProj::Passed { outcomes } => outcomes.poll_next(cx),
            EitherProj::Step { ended } => Poll::Ready(ended.next()),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Either::Passed { outcomes } => outcomes.size_hint(),
            Either::Step { ended } => (ended.len(), Some(ended.len())),
        }
    }
}

concentric_core::opaque_debug!(DurableOutcomes<O>);

impl<R> std::fmt::Debug for RoundFuture<R>
where
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoundFuture").finish_non_exhaustive()
    }
}
