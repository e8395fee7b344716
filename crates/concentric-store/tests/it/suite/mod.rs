//! The contract of a store, checked for each implementation.

macro_rules! suite {
    ($($name:ident)*) => {
        mod in_memory {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let clock = clock();
                super::$name(MemoryStore::with_options(options(&clock)), clock).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("runs.db");
                let clock = clock();
                let store = SqliteStore::open_with(path, options(&clock)).unwrap();
                super::$name(store, clock).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite_in_memory {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let clock = clock();
                let store = SqliteStore::open_in_memory_with(options(&clock)).unwrap();
                super::$name(store, clock).await;
            })*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let clock = clock();
                let store = crate::common::postgres::store(options(&clock)).await;
                if let Some((store, _schema)) = store {
                    super::$name(store, clock).await;
                }
            })*
        }

        #[cfg(feature = "postgres")]
        mod postgres_pooled {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let clock = clock();
                let store = crate::common::postgres::pooled(options(&clock)).await;
                if let Some((store, _schema)) = store {
                    super::$name(store, clock).await;
                }
            })*
        }
    };
}

mod conversations;
mod decisions;
mod effects;
mod limits;
mod memories;
mod records;
mod retention;
mod threads;

use crate::common::{at, client, clock, key, question, running, secs, set, tenant, waiting};
use concentric_core::{
    MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    store::{
        Decisions, EffectKey, Intent, Ledger, LedgerEntry, Memories, Once, Renewed, RunClaim,
        RunKey, RunStatus, RunStore, StoreError, StoredDecision, StoredScope, Tenant, ThreadStore,
    },
};
#[cfg(feature = "sqlite")]
use concentric_store::SqliteStore;
use concentric_store::{Fault, MemoryStore, Options};
use concentric_test::ManualClock;
use serde_json::{Value, json};
use std::time::Duration;

/// A store, with its `purge`.
trait Store: RunStore + Ledger + Once + Decisions + ThreadStore + Memories + Clone {
    async fn expire(&self);
}

impl Store for MemoryStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

#[cfg(feature = "sqlite")]
impl Store for concentric_store::SqliteStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

#[cfg(feature = "postgres")]
impl Store for concentric_store::PostgresStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

/// Removes the entries that have expired at `seconds`.
async fn expire<S: Store>(store: &S, clock: &ManualClock, seconds: u64) {
    set(clock, seconds);
    store.expire().await;
}

fn options(clock: &ManualClock) -> Options {
    Options::new()
        .clock(clock.clone())
        .max_state_bytes(100_000)
        .keep_waiting(Duration::from_secs(2_000_000))
        .keep_ended(Duration::from_secs(1000))
        .keep_effects(Duration::from_secs(2000))
        .keep_used_keys(2)
        .max_waiting_per_thread(3)
        .max_waiting_per_tenant(5)
}

fn code<T: std::fmt::Debug>(result: Result<T, StoreError>) -> &'static str {
    result.unwrap_err().code()
}

fn approve(id: &str) -> Vec<Reply> {
    vec![Reply::approve(question(id))]
}

/// Creates a run that waits for a reply to the interrupt `id`; returns its version.
async fn suspended<S: Store>(store: &S, run: &str, id: &str) -> u64 {
    let fence = RunStore::begin(store, key(run), client(run), running("hi").into(), secs(30))
        .await
        .unwrap();
    store
        .suspend(key(run), fence, waiting("hi", id).into())
        .await
        .unwrap();
    store.get(key(run)).await.unwrap().version
}

/// Begins a run with the client id `name`.
async fn begin_as<S: Store>(store: &S, run: &str, name: &str) -> Result<u64, StoreError> {
    RunStore::begin(
        store,
        key(run),
        client(name),
        running("hi").into(),
        secs(30),
    )
    .await
}
