use concentric_core::{Str, store::StoreError};
use std::{error::Error as StdError, fmt};

/// What is wrong with a store, or with what it is to keep; the source of a [`StoreError::Failed`] or
/// a [`StoreError::Unwritable`].
///
/// ```
/// use concentric_core::store::StoreError;
/// use concentric_store::Fault;
///
/// fn is_corrupt(error: &StoreError) -> bool {
///     matches!(error, StoreError::Failed(fault)
///         if matches!(fault.downcast_ref(), Some(Fault::Corrupt { .. })))
/// }
/// # let _ = is_corrupt;
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A row is not as it was written: it was torn, or somebody changed it. It is not used.
    Corrupt {
        /// What it is of.
        what: Str,
        /// What is wrong with it.
        why: Str,
    },
    /// A state, or the replies to it, have more bytes than [may be](crate::Options::max_state_bytes).
    /// They were not written ([`StoreError::Unwritable`]), or not read ([`StoreError::Failed`]: a
    /// store with another limit reads them).
    TooLarge {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// Something is nested so deep that it could not be read again. It was not written
    /// ([`StoreError::Unwritable`]).
    TooDeep,
    /// A newer version of this library has written the file.
    Newer {
        /// The version of its form.
        found: i64,
        /// The newest that this code knows.
        known: i64,
    },
    /// The file is another program's database.
    Foreign,
    /// The database failed.
    Database(Box<dyn StdError + Send + Sync>),
    /// The SQLite library that the program is linked with is too old: it may corrupt a database that
    /// several connections use (the WAL-reset bug).
    OldSqlite {
        /// The version of the library, as `sqlite3_libversion_number` returns it.
        found: i32,
        /// The oldest that is accepted.
        oldest: i32,
    },
    /// The store's thread panicked over this work, and goes on with a new connection. It is done or
    /// not, as a whole.
    Panicked,
    /// The store's thread is gone.
    Closed,
}

impl Fault {
    pub(crate) fn corrupt(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Corrupt {
            what: what.to_string().into(),
            why: why.to_string().into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt { what, why } => write!(f, "{what} is not as it was written: {why}"),
            Self::TooLarge { bytes, max } => {
                write!(f, "a state has {bytes} bytes, and may have {max}")
            }
            Self::TooDeep => f.write_str("a state is nested deeper than 127 levels"),
            Self::Newer { found, known } => write!(
                f,
                "the file is of version {found}, and this code knows version {known}"
            ),
            Self::Foreign => f.write_str("the file is another program's database"),
            Self::Database(_) => f.write_str("the database failed"),
            Self::OldSqlite { found, oldest } => write!(
                f,
                "SQLite {} is linked, which may corrupt the file; link {} or newer, or the bundled one",
                sqlite_version(*found),
                sqlite_version(*oldest)
            ),
            Self::Panicked => f.write_str("the store's thread panicked over this work"),
            Self::Closed => f.write_str("the store's thread is gone"),
        }
    }
}

fn sqlite_version(number: i32) -> String {
    let (major, minor, patch) = (number / 1_000_000, number / 1000 % 1000, number % 1000);
    format!("{major}.{minor}.{patch}")
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Database(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::failed(fault)
    }
}
