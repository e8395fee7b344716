//! The store of interrupted runs.

use concentric::{
    Error, ErrorKind,
    store::{Fault, Ledger, PostgresStore, RedisStore, RunStore, SqliteStore},
};
use std::{env, fs, path::PathBuf};

/// A store of runs, and of the effects of their tools.
pub trait Runs: RunStore + Ledger + Clone {}

impl<S: RunStore + Ledger + Clone> Runs for S {}

/// The server that `CONCENTRIC_DB` names, if it is a URL.
#[derive(Debug)]
pub enum Server {
    /// `postgres://..`
    Postgres(PostgresStore),
    /// `redis://..`
    Redis(RedisStore),
}

/// Opens the store in the server that `CONCENTRIC_DB` names; `None` if it is no URL.
///
/// # Errors
///
/// Returns an error if the server cannot be reached, or may lose writes.
pub async fn server() -> Result<Option<Server>, Error> {
    let failed = |e: Fault| {
        let message = "the store in the server cannot be opened";
        Error::new(ErrorKind::Configuration, message).with_source(e)
    };
    let Some(url) = env::var("CONCENTRIC_DB")
        .ok()
        .filter(|url| url.contains("://"))
    else {
        return Ok(None);
    };
    if url.starts_with("redis") {
        let store = RedisStore::open(&url).await.map_err(failed)?;
        return Ok(Some(Server::Redis(store)));
    }
    // The tables of this release, which a deployment creates before its processes start.
    PostgresStore::migrate(&url, "concentric")
        .await
        .map_err(failed)?;
    let store = PostgresStore::open(&url).await.map_err(failed)?;
    Ok(Some(Server::Postgres(store)))
}

/// Opens the file that `CONCENTRIC_DB` names, or else `target/.{name}.db`.
///
/// Each agent has a file of its own, because a run must be resumed with the tools it began with.
/// The file controls later runs, so it is hidden from the tools of [`files`](quickstart::files).
///
/// # Errors
///
/// Returns an error if the file cannot be opened.
pub fn open(name: &str) -> Result<SqliteStore, Error> {
    let path = match env::var_os("CONCENTRIC_DB").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            fs::create_dir_all("target")?;
            PathBuf::from(format!("target/.{name}.db"))
        }
    };
    SqliteStore::open(&path).map_err(|e| {
        let message = format!("the store {} cannot be opened", path.display());
        Error::new(ErrorKind::Configuration, message).with_source(e)
    })
}
