use super::spending::Spending;
use crate::body::{Observed, Observer, body};
use concentric_core::{Event, hooks::End};

body! {
    /// Response body for [`ModelBudget`](super::ModelBudget): the items of the inner body, unchanged.
    pub struct ModelBudgetBody<B>(Observed<B, Open>);
}

impl<B> ModelBudgetBody<B> {
    pub(super) fn new(inner: B, spending: Option<Spending>) -> Self {
        let counts = spending.as_ref().is_some_and(Spending::counts);
        let inner = Observed::new(inner, Open { spending, counts });
        Self { inner }
    }
}

/// The spending until the terminal item.
struct Open {
    // Settled on drop: at the terminal item, or earlier.
    spending: Option<Spending>,
    // Whether a limit depends on the number of received bytes.
    counts: bool,
}

impl Observer for Open {
    #[inline(always)]
    fn reads_events(&self) -> bool {
        self.counts
    }

    fn event(&mut self, event: &Event) {
        if let Some(spending) = &mut self.spending {
            spending.saw(event);
        }
    }

    fn end(&mut self, end: End<'_>) {
        if let Some(mut spending) = self.spending.take()
            && let End::Finished(finish) = end
        {
            spending.used(finish.attempt_usage());
        }
    }
}
