//! Durable stores for Concentric: suspended and abandoned runs, conversations, memories, caches, the
//! ledger of tool effects, used keys and stored decisions.
//!
//! [`SqliteStore`] stores them in one file that any number of processes on one machine share.
//! [`PostgresStore`] stores them in a database that any number of machines share, [`RedisStore`] in a Redis
//! server or cluster, and [`MemoryStore`] in memory, for tests. All implement [`RunStore`], [`ThreadStore`],
//! [`Memories`], [`CacheStore`], [`Ledger`], [`Once`], [`Decisions`], [`QuotaStore`] and [`BudgetStore`] of
//! `concentric-core`, and pass the tests of
//! `concentric-test` (`store_suite!`), which a store of another program passes as well. [`RedisStore`] and
//! [`MemoryStore`] also implement [`EventStore`].
//!
//! ```
//! use concentric_core::{
//!     RunId, ThreadId, Transcript,
//!     machine::{Machine, RunLimits},
//!     store::{RunKey, RunStore, StoreError, Tenant},
//! };
//! use concentric_store::SqliteStore;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("runs.db");
//! let store = SqliteStore::open(&path)?;
//! let key = RunKey::new(Tenant("acme".into()), ThreadId::new("thread_1"), RunId::new("run_1"));
//! # let machine = Machine::new(Transcript::new(), RunLimits::default());
//! # let state = || machine.state().ok_or("a model stream is half read");
//! // A client may reuse the id of its request; the key is unique.
//! let client_id = RunId::new("run_of_a_client");
//! // The lease of this claim expires at once.
//! let fence = store.begin(key.clone(), client_id, state()?.into(), Duration::ZERO).await?;
//!
//! // Another process takes the abandoned run over.
//! let other = SqliteStore::open(&path)?;
//! let lease = Duration::from_secs(30);
//! let abandoned = other.claim_abandoned(10, lease).await?;
//! assert!(abandoned[0].fence > fence);
//!
//! // The store rejects writes of the first process from then on.
//! let zombie = store.save(key, fence, state()?.into(), lease).await;
//! assert!(matches!(zombie, Err(StoreError::Stale)));
//! # Ok(())
//! # }
//! ```
//!
//! Most programs do not call a store directly. They pass it to a layer: `SuspendLayer` of
//! `concentric-layers`, or the approvals and the ledger of `concentric-tools`.
//!
//! # Durability
//!
//! | event | effect |
//! |---|---|
//! | the future of a write resolves | the write is on disk and survives a crash of the process or the machine (SQLite's write-ahead log, `synchronous=FULL`, and `fullfsync` on macOS) |
//! | the future of a write is dropped after its first poll | the write is applied completely or not at all; deletions of many entries, in part |
//! | the future of a write is dropped before its first poll | nothing is written |
//! | the last handle is dropped | the threads finish the queued work and exit |
//! | a read runs concurrently with a write | the read does not wait, and sees every write acknowledged before it started |
//! | the work panics | nothing is written; the call fails with [`Fault::Panicked`], and the store continues with a new connection |
//! | a row is torn, or was edited by hand | loading the run fails with [`Fault::Corrupt`]. A SHA-256 checksum covers its key, state, turns and replies; it detects accidents, not tampering: a writer of the file controls which runs execute. [`RunStore::claim_abandoned`] logs and skips the run, and still returns the others |
//! | a state exceeds the [size limit](Options::max_state_bytes), or is nested too deeply to be parsed again | every attempt to write it fails with [`StoreError::Unwritable`], caused by [`Fault::TooLarge`] or [`Fault::TooDeep`] |
//! | the disk is full, or another process holds the write lock for longer than the [busy timeout](Options::busy_timeout) | nothing is written; the call fails with [`Fault::Database`] |
//!
//! These are the rows of [`PostgresStore`] that differ:
//!
//! | event | effect |
//! |---|---|
//! | the future of a write resolves | the transaction is committed, and survives a crash of the server (`synchronous_commit`). A renewal may be lost in a crash: its run is abandoned earlier, and later writes of its owner fail with [`StoreError::Stale`] once it is claimed |
//! | the future of a write of a cache resolves | the transaction is committed, and may be lost in a crash of the server |
//! | the server fails over to a replica | with synchronous replication, acknowledged writes are kept. Without it, the last ones are lost, and fences may repeat: set `synchronous_standby_names` where a failover is automatic |
//! | the connection is lost, or a transaction conflicts with another one | the statement is repeated up to three times within the [wait of the pool](Options::pool_wait), without counting attempts to connect to a server that is starting, and is applied once. Methods that return how many entries they have removed fail with [`Fault::Database`] if the connection is lost |
//! | the last handle is dropped | the connections are closed |
//! | all connections are in use for the [wait of the pool](Options::pool_wait) | nothing is written; the call fails with [`Fault::Busy`] |
//! | a statement exceeds its [timeout](Options::statement_timeout) | it is cancelled, and the call fails with [`Fault::Database`]; the write may have been applied |
//! | an id contains the character 0, or the ids of a key have more than about 2,600 bytes together | every attempt to write it fails with [`StoreError::Unwritable`] |
//!
//! These are the rows of [`RedisStore`] that differ:
//!
//! | event | effect |
//! |---|---|
//! | the future of a write resolves | the write is on disk: a server without `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no` is refused ([`Fault::Volatile`]), unless [its loss is accepted](Options::accept_loss). The settings are checked when the store is opened, on the nodes of a cluster that are known then; those of a node that joins later are not |
//! | a value is damaged, or was edited by hand | as above, with another checksum: SHA-1, over SHA-256 digests of the key, the state, each turn and the replies. A run without all of its fields is also logged and omitted in lists |
//! | the memory of the server is full | writes fail with [`Fault::Database`]. Runs can still be ended, withdrawn and [purged](concentric_core::store::RunStore::purge), so that a shorter retention frees memory |
//! | the server fails over to a replica | the last acknowledged writes are lost, and fences may repeat: replication is asynchronous |
//! | the connection is lost, or the server starts | the script is executed again up to three times within the [wait of the pool](Options::pool_wait), and is applied once. Methods that return how many entries they have removed fail with [`Fault::Database`] if the connection is lost |
//! | the last handle is dropped | the connections are closed |
//! | 64 requests for each connection to a node are under way for the [wait of the pool](Options::pool_wait) | nothing is written; the call fails with [`Fault::Busy`] |
//! | a script exceeds its [timeout](Options::statement_timeout) | the call fails with [`Fault::Database`]; the write may have been applied |
//! | a hash slot is moved to another node of a cluster | calls for its tenants fail until it is moved |
//!
//! # Fences
//!
//! A process claims a run before it drives it, and renews the claim's lease while it does. A lease
//! alone cannot stop a late writer, since clocks differ and processes sleep. Each claim therefore
//! has a number greater than all before it, the *fence*. Each write carries the fence of its claim,
//! and a write with an older fence fails with [`StoreError::Stale`]. [`Ledger::begin`] compares the
//! fence in the same transaction, so that a process that lost its run starts no tool. A tool passes
//! the fence to a service of its own as [`RunClaim::fence`].
//!
//! A claim names the version of the run that it is based on. Of several claims of the same version,
//! one succeeds; the others fail with [`StoreError::Taken`].
//!
//! A dedicated thread with its own connection renews leases, all queued renewals in one transaction, and before
//! the next write of this process. Reads do not delay renewals. A write does for the time of its statements: states
//! are serialized, and large ones get their checksums, before its transaction. In [`PostgresStore`], a task does, in
//! one statement; in [`RedisStore`], each renewal is a request on a connection of their own. In both, a renewal does
//! not change the version of a run.
//!
//! # Turns
//!
//! A turn of a run or of a conversation is written once, when it is new; later writes replace only the rest
//! of the state, so their bytes do not depend on the length of the transcript. The first write of a run stores
//! its whole transcript, without the turns of its conversation if the conversation is stored and the transcript
//! begins with it. A checksum of each turn covers those before it: a run or a conversation with a
//! changed or missing turn fails to load with [`Fault::Corrupt`]. A page of a conversation
//! ([`ThreadStore::turns`]) is read without the other turns, and verified from the stored checksum of the turn
//! before it: a page fails if one of its turns, or that checksum, was changed or is missing, but not if an earlier
//! turn was changed, which `load` detects.
//!
//! A fork of a conversation refers to the turns of its origin and copies none, except after 16 forks of
//! forks, where one copies them. Deleting a conversation removes the turns that no fork has, and the runs
//! of the conversation.
//!
//! # Memories
//!
//! A search compares the words of all memories of an owner with those of the query: a rare word counts
//! for more than a common one, and of equal matches the newest is first. An owner has at most 1,000
//! memories of at most 8 KiB; the oldest are removed.
//!
//! # Caches
//!
//! A cache has entries until their time has passed. Beyond its limits, those that expire first are removed.
//! [`PostgresStore`] checks the limits of all entries at one of 16 writes, and at each purge; [`RedisStore`]
//! those of each tenant.
//!
//! # Quotas and budgets
//!
//! | store | one call of a [`QuotaStore`] or a [`BudgetStore`] | durability |
//! |---|---|---|
//! | [`RedisStore`] | one script, which no other command interrupts. A bucket has a hash slot, and so have the budgets of a tenant | that of the server: for quotas alone, one with its defaults is the right one ([`Options::accept_loss`]) |
//! | [`PostgresStore`] | the state is read, changed by the caller, and written if no other process has changed it in between; otherwise again, after a random pause, within the [wait of the pool](Options::pool_wait). Each statement locks one row, so none waits for another, and a process that stops holds no lock. For up to about 500 calls in a second of one bucket or tenant | budgets as other writes; quotas may be lost in a crash of the server |
//! | [`SqliteStore`] | one transaction | as other writes |
//!
//! A state has the use of the last period and the calls that wait; or the budgets of a tenant and their open reservations.
//! One larger than the [limit](Options::max_state_bytes) is not written.
//!
//! # Events of runs
//!
//! The events of a run ([`EventStore`]) are what clients of other processes read while it is driven, and may be lost: a
//! Redis server with its default settings is enough ([`Options::accept_loss`]). A log in Redis is a stream, of which each
//! entry has the events that were written together, and a hash. Each write and each read is one script. Neither
//! [`PostgresStore`] nor [`SqliteStore`] has them: readers poll, and each batch would be a transaction.
//!
//! # Limits
//!
//! | limit | default | error |
//! |---|---|---|
//! | [bytes of a state, and of all turns of a conversation](Options::max_state_bytes) | 64 MiB | [`StoreError::Unwritable`] |
//! | waiting runs [per conversation](Options::max_waiting_per_thread) | 32 | [`StoreError::TooManyWaiting`] |
//! | waiting runs [per tenant](Options::max_waiting_per_tenant) | 10,000 | [`StoreError::TooManyWaiting`] |
//! | [bytes of a cached value](Options::max_cached_value_bytes) | 4 MiB | [`StoreError::Unwritable`] |
//! | [entries of the cache](Options::max_cache_entries), and [their bytes](Options::max_cache_bytes) | 10,000; 256 MiB | none: the first to expire are removed |
//! | [events of a run](Options::max_log_events), and [their bytes](Options::max_log_bytes) | 4,096; 1 MiB | none: the oldest are removed, and those written last are kept |
//!
//! A run counts as waiting from its first suspension until it ends. Lists of runs
//! ([`RunStore::list_by_thread`]) do not read states, and one query finds the run of any number of
//! interrupts ([`RunStore::find_by_interrupt`]).
//!
//! # Several processes
//!
//! Each process opens the file or the database. A PostgreSQL database serves all machines that can connect to
//! it, and its clock measures the leases, so those of the machines do not matter. Each write locks the row of
//! its run or its conversation only. [`PostgresStore::migrate`] prepares the schema for a release; processes of
//! the release before may run meanwhile. A Redis server executes one script at a time; a tenant is on one node
//! of a cluster. The rest of this section is about SQLite.
//!
//! Writes of different processes are serialized (`BEGIN IMMEDIATE`);
//! reads do not wait. The time is that of the machine ([`Options::clock`]), which is the same for all of
//! them. The file must be on a local disk, since the locks of network file systems are
//! unreliable.
//!
//! If a process dies during a write, the write is rolled back and its lock is released. A process
//! that is stopped during a write (`SIGSTOP`, a frozen container) holds SQLite's lock until it
//! continues or is killed; meanwhile, writes of other processes fail with [`Fault::Database`].
//!
//! A newer release migrates the file when it opens it, and older releases refuse the file from then
//! on ([`Fault::Newer`]). Opening fails with [`Fault::OldSqlite`] if the program is linked with a
//! SQLite older than 3.51.3 (the bundled one is newer): concurrent writes and checkpoints could
//! corrupt the file.
//!
//! # Retention
//!
//! | entry | retention |
//! |---|---|
//! | a run that waits for replies, or was abandoned | ends after [90 days](Options::keep_waiting) |
//! | an ended run, with its interrupts, tool effects and run-scoped decisions | removed [7 days](Options::keep_ended) after its end |
//! | the effects of a run that is in no store | removed [30 days](Options::keep_effects) after a purge first saw them |
//! | a used key | removed when its time has passed and [100,000](Options::keep_used_keys) keys (in Redis, of the tenant) were used after it |
//! | a decision for a conversation or for the tenant | kept until it is revoked |
//! | an entry of the cache | removed when its time has passed, and with its conversation |
//! | a conversation | kept until it is [deleted](concentric_core::store::ThreadStore::delete) |
//! | that a run was deleted, with its conversation or its tenant | a digest of its ids for an hour, and none if it ended an hour before. Meanwhile its process cannot bring the conversation back |
//! | a memory | kept until its owner has 1,000 newer ones, or it is [forgotten](concentric_core::store::Memories::forget) |
//! | the events of a run | removed [an hour](Options::keep_logs) after the last write, and with its conversation; the ids of a removed one are kept for an hour, so that its process does not write it again |
//! | the use of a quota, permits | removed when the period, or the lease, is over |
//! | the spending of a budget | kept for its window; without one, until its tenant is deleted |
//! | everything of a tenant | kept as above, or until the tenant is [deleted](concentric_core::store::ThreadStore::delete_tenant) |
//!
//! The end of each run removes up to a hundred expired entries of each kind;
//! [`purge`](concentric_core::store::RunStore::purge) removes all of them. In Redis, the end of a run removes up to
//! 25 expired runs of its tenant.
//!
//! # Backups
//!
//! [`SqliteStore::back_up`] copies the database while it is in use, and leases are still renewed. A
//! plain copy of the file lacks the part that is still in the log beside it (`-wal`). After a
//! backup is restored, runs resume from their state at that time. Its ledger lacks the effects
//! since then, so calls of tools that are not idempotent may be repeated.
//!
//! # Place in the stack
//!
//! A store is not a layer: clone the handle into every layer that needs it.
//!
//! # Features
//!
//! `sqlite` (default) compiles SQLite in. In a workspace with sqlx, which requires an older
//! `libsqlite3-sys`, cargo selects `rusqlite` 0.39.
//!
//! `postgres` adds [`PostgresStore`], with `tokio-postgres`. It requires PostgreSQL 14 or newer.
//!
//! `redis` adds [`RedisStore`], with the crate `redis`. It requires Redis 7.0 or newer.
//!
//! [`CacheStore`]: concentric_core::store::CacheStore
//! [`BudgetStore`]: concentric_core::store::BudgetStore
//! [`EventStore`]: concentric_core::store::EventStore
//! [`QuotaStore`]: concentric_core::store::QuotaStore
//! [`Decisions`]: concentric_core::store::Decisions
//! [`Ledger`]: concentric_core::store::Ledger
//! [`Ledger::begin`]: concentric_core::store::Ledger::begin
//! [`Once`]: concentric_core::store::Once
//! [`RunClaim::fence`]: concentric_core::store::RunClaim::fence
//! [`RunStore`]: concentric_core::store::RunStore
//! [`RunStore::find_by_interrupt`]: concentric_core::store::RunStore::find_by_interrupt
//! [`RunStore::claim_abandoned`]: concentric_core::store::RunStore::claim_abandoned
//! [`RunStore::list_by_thread`]: concentric_core::store::RunStore::list_by_thread
//! [`Memories`]: concentric_core::store::Memories
//! [`ThreadStore`]: concentric_core::store::ThreadStore
//! [`ThreadStore::turns`]: concentric_core::store::ThreadStore::turns
//! [`StoreError::Stale`]: concentric_core::store::StoreError::Stale
//! [`StoreError::Taken`]: concentric_core::store::StoreError::Taken
//! [`StoreError::TooManyWaiting`]: concentric_core::store::StoreError::TooManyWaiting
//! [`StoreError::Unwritable`]: concentric_core::store::StoreError::Unwritable

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cache;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod columns;
mod events;
mod fault;
mod limits;
mod memories;
mod memory;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod rules;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use self::{fault::Fault, memory::MemoryStore, options::Options};

#[cfg(feature = "postgres")]
pub use self::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
