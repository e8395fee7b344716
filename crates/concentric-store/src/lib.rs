//! Stores for Concentric: runs that wait or whose process died, the effects of tools, decisions.
//!
//! [`SqliteStore`] keeps them in one file, which any number of processes on one machine share;
//! [`MemoryStore`] in memory, for tests. Both implement [`RunStore`], [`Ledger`], [`Once`] and
//! [`Decisions`] of `concentric-core`, in the same way, which one suite of tests holds them to.
//!
//! ```
//! use concentric_core::{
//!     RunId, ThreadId, Transcript,
//!     machine::{Machine, Rules},
//!     store::{RunKey, RunStore, StoreError, Tenant},
//! };
//! use concentric_store::SqliteStore;
//! use std::time::{Duration, SystemTime};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("runs.db");
//! let store = SqliteStore::open(&path)?;
//! let key = RunKey::new(Tenant("acme".into()), ThreadId::new("thread_1"), RunId::new("run_1"));
//! # let machine = Machine::new(Transcript::new(), Rules::default());
//! # let state = || machine.state().ok_or("a model stream is half read");
//! let (now, lease) = (SystemTime::now(), Duration::from_secs(30));
//! // The id that the client gave its request may repeat; the key may not.
//! let client_id = RunId::new("run_of_a_client");
//! let fence = store.begin(key.clone(), client_id, state()?, now + lease).await?;
//!
//! // This process is held up, and another one takes the run over when the lease is over.
//! let later = now + lease;
//! let other = SqliteStore::open(&path)?;
//! let left = other.abandoned(later, 10).await?;
//! let version = left[0].version;
//! let taken = other.claim(key.clone(), version, vec![], later, later + lease).await?;
//! assert!(taken.fence > fence);
//!
//! // What this one writes now is refused.
//! let zombie = store.save(key, fence, state()?, later + lease).await;
//! assert!(matches!(zombie, Err(StoreError::Stale)));
//! # Ok(())
//! # }
//! ```
//!
//! Most programs do not call a store, but give it to a layer: `SuspendLayer` of `concentric-layers`,
//! or the approvals and the ledger of `concentric-tools`.
//!
//! # What is durable when
//!
//! | | |
//! |---|---|
//! | a write's future has resolved | it is on the disk, and outlives the process and the machine (SQLite's write-ahead log, `synchronous=FULL`, and `fullfsync` where that matters) |
//! | a write's future was polled, and then dropped | it is done or not, as a whole |
//! | a write's future was never polled | it is not done |
//! | the last handle is dropped | what was asked for by then is done, and the threads end |
//! | a read and a write are under way at once | the read waits for no write, and sees what was acknowledged before it was asked for |
//! | the work panics | nothing is written: [`Fault::Panicked`]; the store goes on with a new connection |
//! | a row was torn, or changed by hand | a run is refused as [`Fault::Corrupt`]: its names, state and replies have a SHA-256 sum, which tells accidents, and not whoever can write the file, who decides what runs. It does not hide the others: it is logged, and left out of [`RunStore::abandoned`] |
//! | a state is over the [limit](Options::max_state_bytes), or nested too deep to be read again | it is not written, however often that is tried: [`StoreError::Unwritable`], for [`Fault::TooLarge`] or [`Fault::TooDeep`] |
//! | the disk is full, or another process writes for longer than the [time to wait](Options::busy_timeout) | nothing is written: [`Fault::Database`] |
//!
//! # Fences
//!
//! Whoever drives a run has claimed it, until a time that it puts off as long as it lives (the
//! lease). Clocks differ and processes sleep, so a lease alone keeps nobody from writing: each claim
//! has a number, greater than all before (the *fence*), each write names its claim's, and one with
//! an older fence is refused ([`StoreError::Stale`]). [`Ledger::begin`] compares it in the same
//! transaction, so that a process whose run was taken over starts no tool. A tool hands it on to a
//! service of its own as [`RunClaim::fence`].
//!
//! A claim names the version of the run that it has seen, and of several that name the same, one is
//! granted: the others learn [`StoreError::Taken`].
//!
//! Leases are renewed by a thread and a connection of their own, all that wait in one transaction, and
//! before the next write of this process: no read or write of a large state delays them.
//!
//! # Limits
//!
//! | | default | beyond it |
//! |---|---|---|
//! | [bytes of a state](Options::max_state_bytes) | 64 MiB | [`StoreError::Unwritable`] |
//! | runs that wait for replies [in a conversation](Options::max_waiting_per_thread) | 32 | [`StoreError::TooManyWaiting`] |
//! | the same [of a tenant](Options::max_waiting_per_tenant) | 10,000 | the same |
//!
//! A run counts as waiting from when it first waits until it is over. Lists of runs
//! ([`RunStore::of_thread`]) read no states, and questions are looked up in one query
//! ([`RunStore::asking`]).
//!
//! # Several processes
//!
//! Each opens the file. A write waits for the others' (`BEGIN IMMEDIATE`), reads wait for nobody. All
//! times are the callers': their clocks are to agree, to less than a lease. The file is to be on a
//! local disk, since the locks of network file systems do not hold.
//!
//! One that dies in the middle of a write has not written, and keeps nobody waiting. One that is
//! stopped there (`SIGSTOP`, a frozen container) has SQLite's lock until it goes on or is killed:
//! the others' writes fail meanwhile, with [`Fault::Database`].
//!
//! A newer release migrates the file when it opens it, and an older one refuses it from then on
//! ([`Fault::Newer`]). A program that is linked with a SQLite older than 3.51.3 (the bundled one is
//! not) is refused with [`Fault::OldSqlite`]: connections that write and checkpoint at once could
//! corrupt the file.
//!
//! # What is forgotten
//!
//! | | when |
//! |---|---|
//! | a run that waits, for somebody or to be taken up | it is over after [90 days](Options::keep_waiting) |
//! | a run that is over, with what it asked, the effects of its tools and the decisions for it | [a week](Options::keep_ended) after its end |
//! | the effects of a run that is in no store | [a month](Options::keep_effects) after the store has first looked |
//! | a key that was used once | after its time, if [100,000](Options::keep_used_keys) others were used since |
//! | a decision for a conversation or for always | never |
//!
//! The store looks at the end of each run, for up to a hundred of each, and for all of them in
//! [`purge`](SqliteStore::purge).
//!
//! # Backups
//!
//! [`SqliteStore::back_up`] copies the database while it is in use; leases are renewed meanwhile. A copy of the file alone misses
//! what is still in the log beside it (`-wal`). Whoever goes back to a copy takes up runs as they
//! were then: what tools have done since is not in its ledger, so calls of
//! tools that are not idempotent may be made again.
//!
//! # Place in the stack
//!
//! It is in none: clone the handle into every layer that needs it. Features: `sqlite` (default), with
//! SQLite compiled in. Beside sqlx, which holds an older `libsqlite3-sys`, cargo picks `rusqlite`
//! 0.39.
//!
//! [`Decisions`]: concentric_core::store::Decisions
//! [`Ledger`]: concentric_core::store::Ledger
//! [`Ledger::begin`]: concentric_core::store::Ledger::begin
//! [`Once`]: concentric_core::store::Once
//! [`RunClaim::fence`]: concentric_core::store::RunClaim::fence
//! [`RunStore`]: concentric_core::store::RunStore
//! [`RunStore::asking`]: concentric_core::store::RunStore::asking
//! [`RunStore::abandoned`]: concentric_core::store::RunStore::abandoned
//! [`RunStore::of_thread`]: concentric_core::store::RunStore::of_thread
//! [`StoreError::Stale`]: concentric_core::store::StoreError::Stale
//! [`StoreError::Taken`]: concentric_core::store::StoreError::Taken
//! [`StoreError::TooManyWaiting`]: concentric_core::store::StoreError::TooManyWaiting
//! [`StoreError::Unwritable`]: concentric_core::store::StoreError::Unwritable

mod fault;
mod memory;
mod options;
mod rules;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use self::{fault::Fault, memory::MemoryStore, options::Options};

#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
