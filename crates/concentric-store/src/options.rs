use crate::MemoryStore;
use std::time::Duration;

/// How a store keeps what it is given.
///
/// ```no_run
/// use concentric_store::{Options, SqliteStore};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), concentric_store::Fault> {
/// let store: SqliteStore = Options::new()
///     .max_state_bytes(8 << 20)
///     .keep_ended(Duration::from_secs(24 * 60 * 60))
///     .open("runs.db")?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) max_state_bytes: usize,
    pub(crate) keep_waiting: Duration,
    pub(crate) keep_ended: Duration,
    pub(crate) keep_effects: Duration,
    pub(crate) keep_used_keys: usize,
    pub(crate) max_waiting_per_thread: usize,
    pub(crate) max_waiting_per_tenant: usize,
    #[cfg(feature = "sqlite")]
    pub(crate) busy_timeout: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Options {
    fn default() -> Self {
        Self {
            max_state_bytes: 64 << 20,
            keep_waiting: DAY.saturating_mul(90),
            keep_ended: DAY.saturating_mul(7),
            keep_effects: DAY.saturating_mul(30),
            keep_used_keys: 100_000,
            max_waiting_per_thread: 32,
            max_waiting_per_tenant: 10_000,
            #[cfg(feature = "sqlite")]
            busy_timeout: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes of JSON a state may have; 64 MiB by default. A larger one is neither written
    /// nor read; with 0, none is.
    #[must_use]
    pub const fn max_state_bytes(mut self, bytes: usize) -> Self {
        self.max_state_bytes = bytes;
        self
    }

    /// How long a run waits for somebody, or for a process that takes it up; 90 days by default, and
    /// [`Duration::MAX`] is for ever. Then it is over, and a late reply is told so.
    ///
    /// Every tab that is closed on a question leaves a run that nobody replies to, so most that wait
    /// for long wait in vain; and whoever would reply may be away for weeks.
    #[must_use]
    pub const fn keep_waiting(mut self, time: Duration) -> Self {
        self.keep_waiting = time;
        self
    }

    /// How long a run is kept after its end, with the effects of its tools and what was decided for
    /// it; 7 days by default, and [`Duration::MAX`] is for ever. Until then a late reply fails with
    /// [`StoreError::Ended`](concentric_core::store::StoreError::Ended). With zero, it is forgotten
    /// as it ends.
    #[must_use]
    pub const fn keep_ended(mut self, time: Duration) -> Self {
        self.keep_ended = time;
        self
    }

    /// How long the effects of tools are kept whose run is in no store; 30 days by default, from when
    /// the store next forgets things, and [`Duration::MAX`] is for ever. With zero, they are forgotten
    /// as soon as the store looks: calls are then not protected from running twice.
    #[must_use]
    pub const fn keep_effects(mut self, time: Duration) -> Self {
        self.keep_effects = time;
        self
    }

    /// How many of the keys that were used last ([`Once`](concentric_core::store::Once), so approval
    /// tokens) are kept although their time is over; 100,000 by default. A clock that is set ahead for
    /// a while does not have these forgotten, so that they count as used once it is set back. With 0,
    /// a key is forgotten after its time; [`usize::MAX`] keeps all for ever.
    #[must_use]
    pub const fn keep_used_keys(mut self, keys: usize) -> Self {
        self.keep_used_keys = keys;
        self
    }

    /// How many runs of one conversation may wait for replies; 32 by default. A run counts from when
    /// it first waits until it is over. One more fails with
    /// [`StoreError::TooManyWaiting`](concentric_core::store::StoreError::TooManyWaiting): with 0, no
    /// run may wait; [`usize::MAX`] is no limit.
    #[must_use]
    pub const fn max_waiting_per_thread(mut self, runs: usize) -> Self {
        self.max_waiting_per_thread = runs;
        self
    }

    /// How many runs of one tenant may wait for replies, over all its conversations; 10,000 by
    /// default, as [`max_waiting_per_thread`](Self::max_waiting_per_thread) otherwise. All runs of an
    /// application without tenants are of one.
    #[must_use]
    pub const fn max_waiting_per_tenant(mut self, runs: usize) -> Self {
        self.max_waiting_per_tenant = runs;
        self
    }

    /// How long to wait for another process that writes; 5 seconds by default. With zero, a write
    /// fails at once while another process writes. Longer than `i32::MAX` milliseconds (24 days) is
    /// as long as that.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub const fn busy_timeout(mut self, time: Duration) -> Self {
        self.busy_timeout = time;
        self
    }

    /// Opens a file, or creates it; see [`SqliteStore::open`](crate::SqliteStore::open).
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(feature = "sqlite")]
    pub fn open(
        self,
        path: impl AsRef<std::path::Path>,
    ) -> Result<crate::SqliteStore, crate::Fault> {
        crate::SqliteStore::with(self, Some(path.as_ref()))
    }

    /// Creates a database in memory; see
    /// [`SqliteStore::open_in_memory`](crate::SqliteStore::open_in_memory).
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(feature = "sqlite")]
    pub fn open_in_memory(self) -> Result<crate::SqliteStore, crate::Fault> {
        crate::SqliteStore::with(self, None)
    }

    /// Creates a store in memory.
    pub fn in_memory(self) -> MemoryStore {
        MemoryStore::with(self)
    }
}
