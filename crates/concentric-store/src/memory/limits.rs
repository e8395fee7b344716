use super::MemoryStore;
use crate::limits::{Next, State, read, since_1970, write};
use concentric_core::store::StoreFuture;
use std::time::Duration;

/// The JSON of a limit, and when it can be forgotten.
pub(super) struct Limit {
    pub(super) until: Option<Duration>,
    json: Vec<u8>,
}

crate::limits::limits!(MemoryStore);

impl MemoryStore {
    pub(crate) fn change_limit<S: State, T: Send + 'static>(
        &self,
        name: String,
        change: impl Fn(&mut S, Duration) -> (T, Next) + Send + Sync + 'static,
    ) -> StoreFuture<T> {
        let options = self.options.clone();
        self.work(move |kept| {
            let key = (S::KIND, name);
            let limit = kept.limits.get(&key);
            let state = limit.map(|limit| read(&key.1, &limit.json));
            let mut state = state.unwrap_or_else(|| Ok(S::default()))?;
            let (result, next) = change(&mut state, since_1970(options.now()));
            let until = match next {
                Next::Same => return Ok(result),
                Next::Removed => {
                    kept.limits.remove(&key);
                    return Ok(result);
                }
                Next::Kept | Next::Once => None,
                Next::Until(until) => Some(until),
            };
            let json = write(&state, &options)?;
            kept.limits.insert(key, Limit { until, json });
            Ok(result)
        })
    }
}
