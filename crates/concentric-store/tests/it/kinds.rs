//! The kinds of stores, each of which passes the same tests.

#[cfg(feature = "postgres")]
use crate::common::postgres::{self, Emptied};
#[cfg(feature = "redis")]
use crate::common::redis;
use concentric_core::store::{
    BudgetStore, CacheStore, Decisions, Ledger, Memories, Once, QuotaStore, RunStore, ThreadStore,
};
#[cfg(feature = "postgres")]
use concentric_store::PostgresStore;
#[cfg(feature = "redis")]
use concentric_store::RedisStore;
#[cfg(feature = "sqlite")]
use concentric_store::SqliteStore;
use concentric_store::{MemoryStore, Options};
use concentric_test::{ManualClock, StoreHarness};
#[cfg(feature = "sqlite")]
use std::path::{Path, PathBuf};

/// A store with its `purge`.
pub(crate) trait Store:
    RunStore
    + Ledger
    + Once
    + Decisions
    + ThreadStore
    + Memories
    + CacheStore
    + QuotaStore
    + BudgetStore
    + Clone
{
    async fn expire(&self);
}

impl Store for MemoryStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

#[cfg(feature = "sqlite")]
impl Store for SqliteStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

#[cfg(feature = "postgres")]
impl Store for PostgresStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

#[cfg(feature = "redis")]
impl Store for RedisStore {
    async fn expire(&self) {
        self.purge().await.unwrap();
    }
}

/// An empty store of one kind.
pub(crate) trait Kind: StoreHarness<Store: Store> {
    async fn with(options: Options) -> Self;
}

/// Makes `$tests!(kind, ..)` for each kind, in a module of its own.
macro_rules! for_each_kind {
    ($tests:ident $(, $($arguments:tt)*)?) => {
        mod in_memory {
            $tests!(crate::kinds::Memory $(, $($arguments)*)?);
        }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            $tests!(crate::kinds::Sqlite $(, $($arguments)*)?);
        }

        #[cfg(feature = "sqlite")]
        mod sqlite_in_memory {
            $tests!(crate::kinds::SqliteInMemory $(, $($arguments)*)?);
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $tests!(crate::kinds::Postgres<false> $(, $($arguments)*)?);
        }

        #[cfg(feature = "postgres")]
        mod postgres_pooled {
            $tests!(crate::kinds::Postgres<true> $(, $($arguments)*)?);
        }

        #[cfg(feature = "redis")]
        mod redis {
            $tests!(crate::kinds::Redis<false> $(, $($arguments)*)?);
        }

        #[cfg(feature = "redis")]
        mod redis_cluster {
            $tests!(crate::kinds::Redis<true> $(, $($arguments)*)?);
        }
    };
}

macro_rules! harness {
    ($kind:ty, $store:ty, |$self:ident| $open:expr $(, $shared:item)?) => {
        impl StoreHarness for $kind {
            type Store = $store;

            async fn start(clock: ManualClock) -> Self {
                Self::with(Options::new().clock(clock)).await
            }

            async fn open(&$self) -> $store {
                $open
            }

            async fn purge(&self) {
                self.open().await.expire().await;
            }

            $($shared)?
        }
    };
}

pub(crate) struct Memory(MemoryStore);

impl Kind for Memory {
    async fn with(options: Options) -> Self {
        Self(MemoryStore::with_options(options))
    }
}

harness!(Memory, MemoryStore, |self| self.0.clone());

/// A file.
#[cfg(feature = "sqlite")]
pub(crate) struct Sqlite {
    dir: PathBuf,
    options: Options,
    // Of the process that has made it.
    _removed: Option<tempfile::TempDir>,
}

#[cfg(feature = "sqlite")]
impl Sqlite {
    /// A directory for the file. The contract has thousands of writes, which need not reach a disk.
    fn parent() -> PathBuf {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        }
    }
}

#[cfg(feature = "sqlite")]
impl Kind for Sqlite {
    async fn with(options: Options) -> Self {
        let dir = tempfile::tempdir_in(Self::parent()).unwrap();
        Self {
            dir: dir.path().to_owned(),
            options,
            _removed: Some(dir),
        }
    }
}

#[cfg(feature = "sqlite")]
harness!(
    Sqlite,
    SqliteStore,
    |self| {
        let path = self.dir.join("runs.db");
        SqliteStore::open_with(path, self.options.clone()).unwrap()
    },
    async fn shared(name: &str, clock: ManualClock) -> Option<Self> {
        let mut new = tempfile::Builder::new();
        let new = new.prefix(name).rand_bytes(0).tempdir_in(Self::parent());
        Some(Self {
            dir: Self::parent().join(name),
            options: Options::new().clock(clock),
            _removed: new.ok(),
        })
    }
);

#[cfg(feature = "sqlite")]
pub(crate) struct SqliteInMemory(SqliteStore);

#[cfg(feature = "sqlite")]
impl Kind for SqliteInMemory {
    async fn with(options: Options) -> Self {
        Self(SqliteStore::open_in_memory_with(options).unwrap())
    }
}

#[cfg(feature = "sqlite")]
harness!(SqliteInMemory, SqliteStore, |self| self.0.clone());

/// The server that `.ci/postgres` starts, behind pgbouncer in transaction mode if it is `POOLED`.
#[cfg(feature = "postgres")]
pub(crate) struct Postgres<const POOLED: bool> {
    url: String,
    options: Options,
    schema: Emptied,
}

#[cfg(feature = "postgres")]
impl<const POOLED: bool> Postgres<POOLED> {
    fn url() -> Option<String> {
        match POOLED {
            true => postgres::url("CONCENTRIC_PGBOUNCER"),
            false => postgres::direct(),
        }
    }

    fn of(schema: Emptied, options: Options) -> Self {
        let options = options.pool_size(4).schema(schema.name());
        // The name under which the connections are cut.
        let url = format!(
            "{}?application_name={}",
            Self::url().unwrap(),
            schema.name()
        );
        Self {
            url,
            options: options.prepared(!POOLED),
            schema,
        }
    }
}

#[cfg(feature = "postgres")]
impl<const POOLED: bool> Kind for Postgres<POOLED> {
    async fn with(options: Options) -> Self {
        let (_, schema) = Emptied::new().await.unwrap();
        Self::of(schema, options)
    }
}

#[cfg(feature = "postgres")]
impl<const POOLED: bool> StoreHarness for Postgres<POOLED> {
    type Store = PostgresStore;

    fn is_available() -> bool {
        Self::url().is_some()
    }

    async fn start(clock: ManualClock) -> Self {
        Self::with(Options::new().clock(clock)).await
    }

    async fn open(&self) -> PostgresStore {
        let store = PostgresStore::open_with(&self.url, self.options.clone());
        store.await.unwrap()
    }

    async fn purge(&self) {
        self.open().await.expire().await;
    }

    async fn shared(name: &str, clock: ManualClock) -> Option<Self> {
        let schema = Emptied::named(name).await;
        Some(Self::of(schema, Options::new().clock(clock)))
    }

    async fn cut_connections(&self) {
        let cut = postgres::cut(self.schema.name()).await;
        // Behind pgbouncer, the connections of this store may have the names of others.
        assert!(POOLED || cut > 0, "no connection was cut");
    }
}

/// A server that `.ci/redis` starts, in a cluster if it is `CLUSTERED`.
#[cfg(feature = "redis")]
pub(crate) struct Redis<const CLUSTERED: bool> {
    url: String,
    schema: String,
    options: Options,
}

#[cfg(feature = "redis")]
impl<const CLUSTERED: bool> Redis<CLUSTERED> {
    fn url() -> Option<String> {
        match CLUSTERED {
            true => redis::url("CONCENTRIC_REDIS_CLUSTER"),
            false => redis::url("CONCENTRIC_REDIS"),
        }
    }

    fn of(schema: String, options: Options) -> Self {
        Self {
            url: Self::url().unwrap(),
            options: options.pool_size(2).schema(schema.as_str()),
            schema,
        }
    }
}

#[cfg(feature = "redis")]
impl<const CLUSTERED: bool> Kind for Redis<CLUSTERED> {
    async fn with(options: Options) -> Self {
        Self::of(redis::schema(), options)
    }
}

#[cfg(feature = "redis")]
impl<const CLUSTERED: bool> StoreHarness for Redis<CLUSTERED> {
    type Store = RedisStore;

    fn is_available() -> bool {
        Self::url().is_some()
    }

    async fn start(clock: ManualClock) -> Self {
        Self::with(Options::new().clock(clock)).await
    }

    async fn open(&self) -> RedisStore {
        let store = RedisStore::open_with(&self.url, self.options.clone());
        store.await.unwrap()
    }

    async fn purge(&self) {
        self.open().await.expire().await;
    }

    async fn shared(name: &str, clock: ManualClock) -> Option<Self> {
        Some(Self::of(name.to_owned(), Options::new().clock(clock)))
    }

    async fn cut_connections(&self) {
        redis::cut(&self.url, &self.schema).await;
    }
}
