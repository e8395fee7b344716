use crate::by_key::ByKey;
use concentric_core::{ChatRequest, Str};
use std::sync::Arc;
use tower::retry::budget::Budget;

pub(super) type Shared = Arc<dyn Budget + Send + Sync>;

/// The budgets of a policy and its clones.
#[derive(Clone)]
pub(super) enum Budgets {
    One(Shared),
    ByKey(Arc<Keyed>),
}

/// A budget for each key.
pub(super) struct Keyed {
    key: Box<dyn Fn(&ChatRequest) -> Str + Send + Sync>,
    make: Box<dyn Fn() -> Shared + Send + Sync>,
    budgets: ByKey<Shared>,
}

impl Budgets {
    pub(super) fn by_key<B>(
        key: impl Fn(&ChatRequest) -> Str + Send + Sync + 'static,
        make: impl Fn() -> B + Send + Sync + 'static,
    ) -> Self
    where
        B: Budget + Send + Sync + 'static,
    {
        Self::ByKey(Arc::new(Keyed {
            key: Box::new(key),
            make: Box::new(move || Arc::new(make())),
            budgets: ByKey::default(),
        }))
    }

    /// The budget for the calls of `request`'s key.
    pub(super) fn of(&self, request: &ChatRequest) -> Shared {
        match self {
            Self::One(budget) => Arc::clone(budget),
            Self::ByKey(keyed) => keyed.budgets.get((keyed.key)(request), &keyed.make),
        }
    }
}
