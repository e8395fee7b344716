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

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::{BoxModel, EventStream, driver::Driver};

    // Larger allocations are not kept in glibc's lists per thread, which costs 200 instructions.
    #[test]
    fn a_driver_fits_the_fast_lists_of_the_allocator() {
        let size = size_of::<Driver<BoxModel, EventStream, Toolset, Outcomes>>();
        assert!(size <= 1032, "{size}");
    }
}
