use super::{runs, values::Failed};
use crate::{Fault, Options};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// "CCTR", the SQLite application id of a store's file.
const APPLICATION_ID: i64 = 0x4343_5452;

/// The migrations from version `n` to version `n + 1`, in order.
const MIGRATIONS: &[(&str, Fill)] = &[
    (include_str!("schema.sql"), |_| Ok(())),
    (include_str!("schema2.sql"), runs::fill_messages),
    (include_str!("schema3.sql"), |_| Ok(())),
    (include_str!("schema4.sql"), |_| Ok(())),
    (include_str!("schema5.sql"), runs::split_states),
    (include_str!("schema6.sql"), |_| Ok(())),
    (include_str!("schema7.sql"), |_| Ok(())),
    (include_str!("schema8.sql"), |_| Ok(())),
    (include_str!("schema9.sql"), |_| Ok(())),
];

/// The part of a migration that SQL cannot express.
type Fill = fn(&Transaction<'_>) -> Result<(), Failed>;

/// The oldest SQLite without the WAL-reset bug, which may corrupt the file when connections write
/// and checkpoint at the same time.
const OLDEST_SQLITE: i32 = 3_051_003;

/// The longest busy timeout that SQLite accepts.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// The newest schema version.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Opens a database and migrates it to the newest version; without a `path`, creates one in memory.
pub(super) fn open(options: &Options, path: Option<&Path>) -> Result<Connection, Failed> {
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
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

/// Opens another connection to a file that is already of the newest version.
pub(super) fn open_again(options: &Options, path: &Path) -> Result<Connection, Failed> {
    let db = connect(path, OpenFlags::empty())?;
    set_up(&db, options)?;
    set_durable(&db)?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

fn set_durable(db: &Connection) -> Result<(), Failed> {
    db.pragma_update(None, "synchronous", "FULL")?;
    // On macOS, a plain `fsync` leaves data in the disk's cache. Elsewhere these have no effect.
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

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, Failed> {
    // Without `SQLITE_OPEN_URI`, so that a path cannot carry parameters.
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(path, flags)?)
}

fn set_up(db: &Connection, options: &Options) -> Result<(), Failed> {
    db.busy_timeout(options.busy_timeout.min(LONGEST_WAIT))?;
    // Disables functions that the schema of an untrusted file may call.
    db.pragma_update(None, "trusted_schema", false)?;
    check_owner(db)
}

/// Copies the file at `path` to a new file. It uses its own connection, so that no writer waits.
pub(super) fn copy_file(options: &Options, path: &Path, to: &Path) -> Result<(), Failed> {
    let db = connect(path, OpenFlags::empty())?;
    set_up(&db, options)?;
    copy(&db, to)
}

/// Copies a database to a new file.
pub(super) fn copy(db: &Connection, to: &Path) -> Result<(), Failed> {
    create_private(to);
    let to = to
        .to_str()
        .ok_or_else(|| Fault::Database("the path of the copy is not valid UTF-8".into()))?;
    db.execute("VACUUM INTO ?1", [to])?;
    Ok(())
}

/// Creates the file with access for its owner only, since states contain conversations.
///
/// An existing file is unchanged. A failure is ignored here, since opening the file reports it.
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

/// Rejects a database of another program or of a newer version, before any change to it.
fn check_owner(db: &Connection) -> Result<(), Failed> {
    let id: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let found = version(db)?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match id {
        APPLICATION_ID if found > VERSION => Err(newer(found)),
        APPLICATION_ID => Ok(()),
        0 if found == 0 && tables == 0 => Ok(()),
        _ => Err(Failed(Fault::Foreign)),
    }
}

const fn newer(found: i64) -> Failed {
    Failed(Fault::Newer {
        found,
        known: VERSION,
    })
}

fn version(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Enables the write-ahead log. SQLite does not apply the busy timeout to this, so it is retried
/// here while another process that opens the file holds the lock.
fn set_wal(db: &Connection, patience: Duration) -> Result<(), Failed> {
    let since = Instant::now();
    loop {
        let set =
            db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match set {
            Ok(mode) if mode == "wal" || mode == "memory" => return Ok(()),
            Ok(mode) => {
                let why =
                    format!("cannot enable the write-ahead log: the journal mode is `{mode}`");
                return Err(Failed(Fault::Database(why.into())));
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

fn migrate(db: &mut Connection) -> Result<(), Failed> {
    if version(db)? == VERSION {
        return Ok(());
    }
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated the file in the meantime.
    let found = version(&tx)?;
    let done = usize::try_from(found).ok();
    let Some(todo) = done.and_then(|done| MIGRATIONS.get(done..)) else {
        return Err(newer(found));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_syncs_through_the_cache_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        let options = Options::new();
        let first = open(&options, Some(&path)).unwrap();
        let again = open_again(&options, &path).unwrap();
        for db in [first, again] {
            // The last two have an effect on macOS only.
            for (name, expected) in [
                ("synchronous", 2),
                ("fullfsync", 1),
                ("checkpoint_fullfsync", 1),
            ] {
                let value = db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
                assert_eq!(value.unwrap(), expected, "{name}");
            }
        }
    }

    #[test]
    fn a_library_that_may_corrupt_the_file_is_rejected() {
        for found in [3_007_000, 3_050_004, 3_051_002] {
            let error = check_library(found).unwrap_err();
            assert!(matches!(error, Fault::OldSqlite { .. }), "{found}");
        }
        check_library(3_051_003).unwrap();
        check_library(rusqlite::version_number()).unwrap();
        let message = check_library(3_050_004).unwrap_err().to_string();
        assert_eq!(
            message,
            "the linked SQLite 3.50.4 may corrupt the file; link 3.51.3 or newer, or the bundled \
             version"
        );
    }
}
