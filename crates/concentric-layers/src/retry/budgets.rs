use concentric_core::{ChatRequest, Str};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tower::retry::budget::Budget;

pub(super) type Shared = Arc<dyn Budget + Send + Sync>;

/// The number of keys whose budgets are kept.
const KEYS: usize = 1_024;

/// The budgets of a policy and its clones.
#[derive(Clone)]
pub(super) enum Budgets {
    One(Shared),
    ByKey(Arc<ByKey>),
}

/// A budget for each key.
pub(super) struct ByKey {
    key: Box<dyn Fn(&ChatRequest) -> Str + Send + Sync>,
    make: Box<dyn Fn() -> Shared + Send + Sync>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    // Each with the time of its last use.
    budgets: HashMap<Str, (u64, Shared)>,
    uses: u64,
}

impl Budgets {
    pub(super) fn by_key<B>(
        key: impl Fn(&ChatRequest) -> Str + Send + Sync + 'static,
        make: impl Fn() -> B + Send + Sync + 'static,
    ) -> Self
    where
        B: Budget + Send + Sync + 'static,
    {
        Self::ByKey(Arc::new(ByKey {
            key: Box::new(key),
            make: Box::new(move || Arc::new(make())),
            kept: Mutex::default(),
        }))
    }

    /// The budget for the calls of `request`'s key.
    pub(super) fn of(&self, request: &ChatRequest) -> Shared {
        match self {
            Self::One(budget) => Arc::clone(budget),
            Self::ByKey(by_key) => by_key.of((by_key.key)(request)),
        }
    }
}

impl ByKey {
    fn of(&self, key: Str) -> Shared {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        if let Some((used, budget)) = kept.budgets.get_mut(&key) {
            *used = now;
            return Arc::clone(budget);
        }
        if kept.budgets.len() >= KEYS {
            let oldest = kept.budgets.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                kept.budgets.remove(&oldest);
            }
        }
        let budget = (self.make)();
        kept.budgets.insert(key, (now, Arc::clone(&budget)));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Free;

    impl Budget for Free {
        fn deposit(&self) {}

        fn withdraw(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_least_recently_used_budget_is_evicted() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let budgets = Budgets::by_key(
            |request| request.options.model.clone().unwrap_or_default(),
            move || {
                count.fetch_add(1, Ordering::Relaxed);
                Free
            },
        );
        let using = |key: usize| {
            let mut request = ChatRequest::user("hi");
            request.options_mut().model = Some(key.to_string().into());
            budgets.of(&request);
            made.load(Ordering::Relaxed)
        };
        for key in 0..KEYS {
            assert_eq!(using(key), key + 1);
        }
        // 0 is used again, so 1 makes room.
        assert_eq!(using(0), KEYS);
        assert_eq!(using(KEYS), KEYS + 1);
        assert_eq!(using(0), KEYS + 1);
        assert_eq!(using(1), KEYS + 2);
    }
}
