//! Where the examples keep runs that wait.

use concentric::{Error, ErrorKind, store::SqliteStore};
use std::{env, fs, path::PathBuf};

/// Opens the file that `CONCENTRIC_DB` names, or else a hidden one of that name in `target`.
///
/// One agent has one file: whoever goes on with a run has its tools. What is in it decides what runs;
/// that it is hidden keeps the tools of [`files`](crate::files) from
/// it.
///
/// # Errors
///
/// It cannot be opened.
pub fn open(name: &str) -> Result<SqliteStore, Error> {
    let path = match env::var_os("CONCENTRIC_DB").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            fs::create_dir_all("target")?;
            PathBuf::from(format!("target/.{name}.db"))
        }
    };
    SqliteStore::open(&path).map_err(|e| {
        let said = format!("the store {} cannot be opened", path.display());
        Error::new(ErrorKind::Configuration, said).with_source(e)
    })
}
