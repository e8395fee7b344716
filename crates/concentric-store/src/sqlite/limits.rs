use super::{
    SqliteStore,
    values::{execute, find_row, nanos},
};
use crate::{
    limits::{Next, State, read, since_1970, write},
    rules::end_of,
};
use concentric_core::store::StoreFuture;
use rusqlite::params;
use std::time::{Duration, SystemTime};

crate::limits::limits!(SqliteStore);

impl SqliteStore {
    pub(crate) fn change_limit<S: State, T: Send + 'static>(
        &self,
        name: String,
        change: impl Fn(&mut S, Duration) -> (T, Next) + Send + Sync + 'static,
    ) -> StoreFuture<T> {
        self.write(move |tx, options| {
            let find = "SELECT state FROM limits WHERE kind = ?1 AND name = ?2";
            let json = find_row(tx, find, params![S::KIND, name], |row| {
                row.get::<_, Vec<u8>>(0)
            })?;
            let mut state = json.map_or_else(|| Ok(S::default()), |json| read(&name, &json))?;
            let (result, next) = change(&mut state, since_1970(options.now()));
            let until = match next {
                Next::Same => return Ok(result),
                Next::Removed => {
                    let delete = "DELETE FROM limits WHERE kind = ?1 AND name = ?2";
                    execute(tx, delete, params![S::KIND, name])?;
                    return Ok(result);
                }
                Next::Kept | Next::Once => None,
                Next::Until(until) => Some(nanos(end_of(SystemTime::UNIX_EPOCH, until))),
            };
            let put = "INSERT INTO limits (kind, name, until, state) VALUES (?1, ?2, ?3, ?4)
                       ON CONFLICT DO UPDATE SET until = excluded.until, state = excluded.state";
            execute(
                tx,
                put,
                params![S::KIND, name, until, write(&state, options)?],
            )?;
            Ok(result)
        })
    }
}
