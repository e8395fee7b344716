use concentric_core::{Str, store::StoreError};
use std::{error::Error as StdError, fmt};

/// Failure of a store, the source of a [`StoreError::Failed`] or a [`StoreError::Unwritable`].
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
    /// A row was torn, or changed by another program. It was not used.
    Corrupt {
        /// The row, for example the run it belongs to.
        what: Str,
        /// The reason.
        why: Str,
    },
    /// A state, its replies or a conversation exceed [`Options::max_state_bytes`](crate::Options::max_state_bytes),
    /// or a memory or a cached value exceeds its limit.
    ///
    /// They were not written ([`StoreError::Unwritable`]) or not read ([`StoreError::Failed`]; a
    /// store with a larger limit can read them).
    TooLarge {
        /// The size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A value is nested too deeply to be parsed again. It was not written
    /// ([`StoreError::Unwritable`]).
    TooDeep,
    /// The tables are those of an older version of this crate, or do not exist: the schema was not
    /// [migrated](crate::PostgresStore::migrate).
    #[cfg(feature = "postgres")]
    Outdated {
        /// The schema version of the database; 0 if there are no tables.
        found: i64,
        /// The schema version that this version of the crate requires.
        needed: i64,
    },
    /// The file or the schema was written by a newer version of this crate.
    Newer {
        /// The schema version of the file or the database.
        found: i64,
        /// The newest schema version that this version of the crate supports.
        known: i64,
    },
    /// The file or the schema belongs to another program.
    Foreign,
    /// All connections of the pool were in use for the [whole time](crate::Options::pool_wait) that a
    /// statement waits for one. Nothing was written.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    Busy,
    /// The certificate of the server is expired, has another name, or is of no trusted authority
    /// ([`Options::root_certificates`](crate::Options)).
    #[cfg(any(feature = "postgres", feature = "redis"))]
    Untrusted(Box<dyn StdError + Send + Sync>),
    /// The Redis server loses acknowledged writes when it crashes, or evicts keys, and the caller has not
    /// [accepted that](crate::Options::accept_loss).
    #[cfg(feature = "redis")]
    Volatile {
        /// The setting of the server.
        setting: Str,
        /// Its value; empty if the server does not return it.
        found: Str,
        /// The value that the store requires.
        needed: Str,
    },
    /// The database failed.
    Database(Box<dyn StdError + Send + Sync>),
    /// The linked SQLite library is too old: it may corrupt a database that several connections use
    /// (the WAL-reset bug).
    OldSqlite {
        /// The version of the library, as returned by `sqlite3_libversion_number`.
        found: i32,
        /// The oldest accepted version.
        oldest: i32,
    },
    /// The store's thread panicked during this operation, which was applied completely or not at
    /// all. The store continues with a new connection.
    Panicked,
    /// The store's thread or task has exited.
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
            Self::Corrupt { what, why } => write!(f, "{what} is corrupt: {why}"),
            Self::TooLarge { bytes, max } => {
                write!(f, "value of {bytes} bytes exceeds the limit of {max} bytes")
            }
            Self::TooDeep => f.write_str("state is nested deeper than 127 levels"),
            #[cfg(feature = "postgres")]
            Self::Outdated { found, needed } => write!(
                f,
                "the database has schema version {found}, but this version of concentric-store requires \
                 {needed}; call `PostgresStore::migrate`"
            ),
            Self::Newer { found, known } => write!(
                f,
                "the store has schema version {found}, but this version of concentric-store supports \
                 only up to {known}; upgrade concentric-store"
            ),
            Self::Foreign => f.write_str("the database belongs to another program"),
            #[cfg(feature = "redis")]
            Self::Volatile {
                setting,
                found,
                needed,
            } => write!(
                f,
                "the server may lose acknowledged writes: its `{setting}` is `{found}` instead of \
                 `{needed}`; change it, or set `Options::accept_loss`"
            ),
            #[cfg(any(feature = "postgres", feature = "redis"))]
            Self::Busy => f.write_str(
                "all connections to the database are in use; increase the pool's size or its wait",
            ),
            #[cfg(any(feature = "postgres", feature = "redis"))]
            Self::Untrusted(_) => f.write_str("the certificate of the server is not trusted"),
            Self::Database(_) => f.write_str("the database failed"),
            Self::OldSqlite { found, oldest } => write!(
                f,
                "the linked SQLite {} may corrupt the file; link {} or newer, or the bundled version",
                sqlite_version(*found),
                sqlite_version(*oldest)
            ),
            Self::Panicked => f.write_str("the store's thread panicked during the operation"),
            Self::Closed => f.write_str("the store's thread or task has exited"),
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
            #[cfg(any(feature = "postgres", feature = "redis"))]
            Self::Untrusted(error) => Some(&**error),
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
