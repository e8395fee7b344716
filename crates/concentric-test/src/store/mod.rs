//! The contract of stores, as tests of any implementation.
//!
//! A store implements some of the traits of [`concentric_core::store`]. This module tests what they
//! specify: that one process resumes a run and later writes of others fail, that nothing acknowledged
//! is lost or applied twice, and that tenants do not see each other's entries.
//!
//! Implement [`StoreHarness`], and let [`store_suite!`](crate::store_suite) make a test of each case:
//!
//! ```
//! # use concentric_core::{Str, store::{Once, StoreFuture, Tenant}};
//! # use std::{fs, path::PathBuf, sync::atomic::{AtomicUsize, Ordering}};
//! # #[derive(Clone)]
//! # struct MyStore(PathBuf);
//! # impl MyStore {
//! #     fn new(clock: ManualClock) -> Self {
//! #         static NEXT: AtomicUsize = AtomicUsize::new(0);
//! #         let n = NEXT.fetch_add(1, Ordering::Relaxed);
//! #         Self::open(&format!("doc_{}_{n}", std::process::id()), clock)
//! #     }
//! #     fn open(name: &str, _: ManualClock) -> Self {
//! #         let folder = std::env::temp_dir().join(name);
//! #         let _ = fs::create_dir_all(&folder);
//! #         Self(folder)
//! #     }
//! # }
//! # impl Once for MyStore {
//! #     fn once(&self, tenant: Tenant, key: Str, _: std::time::Duration) -> StoreFuture<bool> {
//! #         let name: String = format!("{tenant:?}{key}").bytes().map(|it| format!("{it:x}")).collect();
//! #         let first = fs::create_dir(self.0.join(name)).is_ok();
//! #         Box::pin(async move { Ok(first) })
//! #     }
//! # }
//! use concentric_test::{ManualClock, StoreHarness};
//!
//! struct Harness(MyStore);
//!
//! impl StoreHarness for Harness {
//!     type Store = MyStore;
//!     async fn start(clock: ManualClock) -> Self { Self(MyStore::new(clock)) }
//!     async fn open(&self) -> MyStore { self.0.clone() }
//!     // For processes that share a store, and are killed while they write.
//!     async fn shared(name: &str, clock: ManualClock) -> Option<Self> { Some(Self(MyStore::open(name, clock))) }
//! }
//!
//! // Without `only`, the store must implement all traits but `EventStore`.
//! concentric_test::store_suite!(Harness, only = [once]);
//! # fn main() {}
//! ```
//!
//! | `only` | the store implements |
//! |---|---|
//! | `runs` | [`RunStore`](concentric_core::store::RunStore) |
//! | `ledger` | [`Ledger`](concentric_core::store::Ledger) |
//! | `once` | [`Once`](concentric_core::store::Once) |
//! | `decisions` | [`Decisions`](concentric_core::store::Decisions) |
//! | `threads` | [`ThreadStore`](concentric_core::store::ThreadStore) |
//! | `memories` | [`Memories`](concentric_core::store::Memories) |
//! | `cache` | [`CacheStore`](concentric_core::store::CacheStore) |
//! | `quotas` | [`QuotaStore`](concentric_core::store::QuotaStore) |
//! | `budgets` | [`BudgetStore`](concentric_core::store::BudgetStore) |
//! | `events` | [`EventStore`](concentric_core::store::EventStore) |
//!
//! Cases that need several traits run if all of them are selected.
//!
//! # Requirements
//!
//! The cases need the usual limits of a store: it accepts states and conversations of 5 MiB, cached values of
//! 1 MiB and at least 8 waiting runs per conversation, and keeps entries for at least a day, also those of a cache, and the events of a run for
//! an hour. The clock of the suite moves by
//! minutes in most cases, and by 100 years in one.
//!
//! # Random cases and races
//!
//! Random operations are compared with those of a [`MemoryStore`](crate::MemoryStore), and several handles of the store
//! compete for one run, key or version. Failures print their seed.
//!
//! # Crashes
//!
//! If processes can share the store ([`StoreHarness::shared`]), the cases of crashes start their test again
//! ([`std::env::current_exe`], with the arguments of Rust's test harness) and kill it while it writes, at a random time.
//! Then the store must have each acknowledged write, and the write that was under way completely or not at all. These
//! cases exist for runs, conversations, effects and used keys. They do not show what a store keeps when its server or
//! machine crashes.
//!
//! # Variables
//!
//! | variable | default | effect |
//! |---|---|---|
//! | `CONCENTRIC_STORE_ROUNDS` | 10 | the number of races of each kind, of killed processes, and of random sequences |
//! | `CONCENTRIC_STORE_SEED` | 1 | the seed of the first random sequence; each next one has the next seed |

#[macro_use]
mod suite;

mod budgets;
mod cache;
mod crashes;
mod decisions;
mod events;
mod kit;
mod leases;
mod ledger;
mod memories;
mod model;
mod once;
mod quotas;
mod races;
mod runs;
mod tenants;
mod threads;
#[doc(hidden)]
pub mod values;

pub use self::suite::StoreHarness;

#[doc(hidden)]
pub mod cases {
    //! The cases, as functions without arguments for the tests that the macro makes.

    pub use super::{
        budgets::budgets,
        cache::{cache, cache_of_threads},
        crashes::{crashes, crashes_of_ledger, crashes_of_once, crashes_of_threads},
        decisions::decisions,
        events::{events, events_of_threads},
        leases::leases,
        ledger::{ledger, ledger_of_runs},
        memories::memories,
        model::{model, model_of_ledger, model_of_threads},
        once::once,
        quotas::quotas,
        races::{races, races_of_ledger, races_of_once, races_of_threads},
        runs::runs,
        tenants::{
            tenants_of_all, tenants_of_every, tenants_of_ledger, tenants_of_runs,
            tenants_of_threads,
        },
        threads::{threads, threads_of_runs},
    };
}
