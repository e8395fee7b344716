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
                .map(|(index, RoundCall { call, refusal })| {
                    let refusal = refusal.unwrap_or(Refusal::NotOffered(Vec::new()));
                    Ok(Settled::new(index, refusal.outcome(&call)))
                }),
        )
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.calls.size_hint()
    }
}
