use super::{
    PostgresStore, column,
    pool::{Repeat, database},
    values::{now, params},
};
use crate::limits::{Next, State, read, write};
use concentric_core::{
    context::Environment,
    store::{StoreError, StoreFuture},
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

crate::limits::limits!(PostgresStore);

impl PostgresStore {
    pub(crate) fn change_limit<S: State, T: Send + 'static>(
        &self,
        name: String,
        change: impl Fn(&mut S, Duration) -> (T, Next) + Send + Sync + 'static,
    ) -> StoreFuture<T> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let began = Instant::now();
            for conflicts in 1_u32.. {
                let (kind, options) = (S::KIND, &db.options);
                let params = params![TEXT: kind, TEXT: name, INT8: now(options)];
                let row = db.call_one("limit_get", params, Repeat::Yes).await?;
                let before: Option<i64> = column(&row, 0)?;
                let json: Option<&[u8]> = column(&row, 1)?;
                let mut state = json.map_or_else(|| Ok(S::default()), |json| read(&name, json))?;
                let at = Duration::from_nanos(crate::columns::number(column(&row, 2)?));
                let (result, next) = change(&mut state, at);
                let (until, json, repeat) = match next {
                    Next::Same => return Ok(result),
                    // Kept until others that have read it have failed to write it.
                    Next::Removed => (Some(at.saturating_add(REMOVED)), None, Repeat::Yes),
                    Next::Kept => (None, Some(write(&state, options)?), Repeat::Yes),
                    Next::Once => (None, Some(write(&state, options)?), Repeat::No),
                    Next::Until(until) => (Some(until), Some(write(&state, options)?), Repeat::No),
                };
                let until = until.map(|it| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX));
                let random = Environment::system().random().next_u64();
                let version = i64::from_le_bytes(random.to_le_bytes());
                let params = params![
                    TEXT: kind,
                    TEXT: name,
                    INT8: before,
                    INT8: version,
                    INT8: now(options),
                    INT8: until,
                    BYTEA: json,
                ];
                let row = db.call_one("limit_put", params, repeat).await?;
                if column(&row, 0)? {
                    return Ok(result);
                }
                // Longer after each conflict, so that many callers succeed one after the other.
                let longest = 500 * u64::from(conflicts.min(40));
                let pause = Environment::system().random().next_u64() % longest;
                if began.elapsed() > options.pool_wait {
                    break;
                }
                sleep(Duration::from_micros(pause)).await;
            }
            Err(StoreError::from(database(
                "other processes changed the limit for longer than the wait of the pool",
            )))
        })
    }
}

/// The time for which a removed state has a row.
const REMOVED: Duration = Duration::from_secs(60);
