//! The store of interrupted runs.

use concentric::{Error, ErrorKind, store::SqliteStore};
use std::{env, fs, path::PathBuf};

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
