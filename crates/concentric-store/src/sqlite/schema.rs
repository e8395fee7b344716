use super::runs;
use crate::{Fault, Options};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// "CCTR": marks a file as ours.
const APPLICATION_ID: i64 = 0x4343_5452;

/// What makes a file of version `n` one of version `n + 1`, for each `n`.
const MIGRATIONS: &[(&str, Fill)] = &[
    (include_str!("schema.sql"), |_| Ok(())),
    (include_str!("schema2.sql"), runs::fill_messages),
];

/// What a migration cannot do in SQL.
type Fill = fn(&Transaction<'_>) -> Result<(), Fault>;

/// The oldest SQLite without the WAL-reset bug, by which connections that write and checkpoint at the
/// same time may corrupt the file.
const OLDEST_SQLITE: i32 = 3_051_003;

/// The longest that SQLite waits for another connection.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// The version of the newest form that this code knows.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Opens a database of the newest form; in memory without a `path`.
pub(super) fn open(options: &Options, path: Option<&Path>) -> Result<Connection, Fault> {
    check_library(rusqlite::version_number())?;
    let mut db = match path {
        None => Connection::open_in_memory()?,
        Some(path) => {
            create_private(path);
            connect(path, OpenFlags::SQLITE_OPEN_CREATE)?
        }
    };
    set_up(&db, options)?;
    set_wal(&db, options.busy_timeout)?;
    set_durable(&db)?;
    migrate(&mut db)?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

/// Opens another connection to a file that is of the newest form.
pub(super) fn open_again(options: &Options, path: &Path) -> Result<Connection, Fault> {
    let db = connect(path, OpenFlags::empty())?;
    set_up(&db, options)?;
    set_durable(&db)?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

fn set_durable(db: &Connection) -> Result<(), Fault> {
    db.pragma_update(None, "synchronous", "FULL")?;
    // Without them, `fsync` leaves what is written in the disk's own cache on macOS. Elsewhere they
    // do nothing.
    db.pragma_update(None, "fullfsync", true)?;
    db.pragma_update(None, "checkpoint_fullfsync", true)?;
    Ok(())
}

const fn check_library(found: i32) -> Result<(), Fault> {
    match found < OLDEST_SQLITE {
        true => Err(Fault::OldSqlite {
            found,
            oldest: OLDEST_SQLITE,
        }),
        false => Ok(()),
    }
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, Fault> {
    // Not a URI: a path says where the file is, and nothing else.
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(path, flags)?)
}

fn set_up(db: &Connection, options: &Options) -> Result<(), Fault> {
    db.busy_timeout(options.busy_timeout.min(LONGEST_WAIT))?;
    // No function runs that somebody has put into the file's schema.
    db.pragma_update(None, "trusted_schema", false)?;
    check_owner(db)
}

/// Copies the file at `path` into a new one, over a connection of its own: to read holds no writer
/// up.
pub(super) fn copy_file(options: &Options, path: &Path, to: &Path) -> Result<(), Fault> {
    let db = connect(path, OpenFlags::empty())?;
    set_up(&db, options)?;
    copy(&db, to)
}

/// Copies a database into a new file.
pub(super) fn copy(db: &Connection, to: &Path) -> Result<(), Fault> {
    create_private(to);
    let to = to
        .to_str()
        .ok_or_else(|| Fault::Database("the name of the copy is not Unicode".into()))?;
    db.execute("VACUUM INTO ?1", [to])?;
    Ok(())
}

/// Creates the file so that others cannot read it: states hold conversations. One that is there is
/// left as it is, and if this fails, opening it says why.
fn create_private(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::OpenOptions::new();
        let _ = file.write(true).create_new(true).mode(0o600).open(path);
    }
    #[cfg(not(unix))]
    let _ = path;
}

/// Refuses another program's database, and one of a newer form, before anything is changed.
fn check_owner(db: &Connection) -> Result<(), Fault> {
    let id: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let found = version(db)?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match id {
        APPLICATION_ID if found > VERSION => Err(Fault::Newer {
            found,
            known: VERSION,
        }),
        APPLICATION_ID => Ok(()),
        0 if found == 0 && tables == 0 => Ok(()),
        _ => Err(Fault::Foreign),
    }
}

fn version(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Of several processes that open a new file, one sets this, and SQLite does not have the others wait.
fn set_wal(db: &Connection, patience: Duration) -> Result<(), Fault> {
    let since = Instant::now();
    loop {
        let set =
            db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match set {
            Ok(mode) if mode == "wal" || mode == "memory" => return Ok(()),
            Ok(mode) => {
                let why = format!("the file does not take a write-ahead log, but `{mode}`");
                return Err(Fault::Database(why.into()));
            }
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                    if since.elapsed() < patience =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return Err(error.into()),
            },
        }
    }
}

fn migrate(db: &mut Connection) -> Result<(), Fault> {
    if version(db)? == VERSION {
        return Ok(());
    }
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let found = version(&tx)?;
    let done = usize::try_from(found).ok();
    let Some(todo) = done.and_then(|done| MIGRATIONS.get(done..)) else {
        return Err(Fault::Newer {
            found,
            known: VERSION,
        });
    };
    for (step, fill) in todo {
        tx.execute_batch(step)?;
        fill(&tx)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()?;
    Ok(())
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Self::corrupt("a row", error),
            error => Self::Database(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_may_corrupt_the_file_is_refused() {
        for found in [3_007_000, 3_050_004, 3_051_002] {
            let error = check_library(found).unwrap_err();
            assert!(matches!(error, Fault::OldSqlite { .. }), "{found}");
        }
        check_library(3_051_003).unwrap();
        check_library(rusqlite::version_number()).unwrap();
        let said = check_library(3_050_004).unwrap_err().to_string();
        assert_eq!(
            said,
            "SQLite 3.50.4 is linked, which may corrupt the file; link 3.51.3 or newer, or the \
             bundled one"
        );
    }
}
