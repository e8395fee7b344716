use crate::{Error, Refusal, RoundCall, Settled, ToolRound, ToolSpecs};
use futures_core::Stream;
use std::{
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};
use tower_service::Service;

/// A [`RoundService`](crate::RoundService) that knows the tools it executes.
pub trait ToolSource {
    /// The tools.
    fn specs(&self) -> ToolSpecs;

    /// Whether they can be used. An agent asks when it is made, and each of its runs fails with the
    /// answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration); by default, if two tools have one name.
    fn check(&self) -> Result<(), Error> {
        self.specs().check()
    }
}

/// A round service with the tools it executes, for one under layers that hide them.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools, ToolSource, agent::WithSpecs};
/// use tower::ServiceBuilder;
///
/// let tools = NoTools;
/// let specs = tools.specs();
/// let rounds = ServiceBuilder::new().concurrency_limit(8).service(tools);
/// let layer = AgentLayer::new(WithSpecs::new(specs, rounds));
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct WithSpecs<R> {
    specs: ToolSpecs,
    inner: R,
}

impl<R> WithSpecs<R> {
    /// Says that `inner` executes the tools of `specs`.
    pub const fn new(specs: ToolSpecs, inner: R) -> Self {
        Self { specs, inner }
    }
}

impl<R> ToolSource for WithSpecs<R> {
    fn specs(&self) -> ToolSpecs {
        self.specs.clone()
    }
}

impl<R> Service<ToolRound> for WithSpecs<R>
where
    R: Service<ToolRound>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = R::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), R::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, round: ToolRound) -> R::Future {
        self.inner.call(round)
    }
}

/// No tools: the round service of an agent that only talks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTools;

impl ToolSource for NoTools {
    fn specs(&self) -> ToolSpecs {
        ToolSpecs::default()
    }
}

impl Service<ToolRound> for NoTools {
    type Response = NoOutcomes;
    type Error = Error;
    type Future = Ready<Result<NoOutcomes, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        ready(Ok(NoOutcomes {
            calls: round.calls.into_iter().enumerate(),
        }))
    }
}

/// The outcomes of [`NoTools`]: each call is refused.
#[derive(Debug)]
pub struct NoOutcomes {
    calls: std::iter::Enumerate<std::vec::IntoIter<RoundCall>>,
}

impl Stream for NoOutcomes {
    type Item = Result<Settled, Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(
            self.calls
                .next()
                .map(|(index, RoundCall { call, refusal, .. })| {
                    let refusal = refusal.unwrap_or(Refusal::NotOffered(Vec::new()));
                    Ok(Settled::new(index, refusal.outcome(&call)))
                }),
        )
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.calls.size_hint()
    }
}
