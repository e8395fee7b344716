use super::Outcomes;
use crate::toolset::Toolset;
use concentric_core::{Error, Phase, ToolRound};
use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};
use tower_service::Service;

impl Service<ToolRound> for Toolset {
    type Response = Outcomes;
    type Error = Error;
    type Future = Ready<Result<Outcomes, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        round.counts_effects();
        ready(match self.check() {
            Ok(()) => Ok(Outcomes::new(self.clone(), round)),
            Err(fault) => Err(Error::from(fault).with_phase(Phase::Round)),
        })
    }
}
