//! A connection per tenant.

use crate::{connection::McpConnection, server::McpServer};
use concentric_core::{Error, ErrorKind, service::BoxFuture, store::Tenant};
use futures_util::future::{FutureExt, Shared, WeakShared};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Connections to one server, one for each tenant, so that no tenant shares a session, a token or a
/// process with another.
///
/// Clones share the connections.
///
/// # When
///
/// | event | effect |
/// |---|---|
/// | a tenant has no connection | one is established; requests of the tenant in the meantime wait for it |
/// | it cannot be established | all that wait receive the error, and the next request tries again |
/// | all that wait are dropped | connecting ends |
/// | the pool is full | the connection whose last use is the longest ago is closed, of those that are not in use |
/// | all of them are in use | the request fails with [`ErrorKind::Overloaded`] |
/// | a connection is not used for the [idle time](Self::idle_timeout) | it is closed, and its process ended |
/// | the pool is dropped | those that are not in use are closed, the others with their last handle |
///
/// A connection is in use while a handle or one of its tools exists.
///
/// ```no_run
/// use concentric_core::{Error, store::Tenant};
/// use concentric_mcp::{McpPool, McpServer};
/// use concentric_tools::Toolset;
/// use std::process::Command;
///
/// fn pool(token_of: fn(&Tenant) -> String) -> McpPool {
///     McpPool::new(move |tenant| {
///         let mut command = Command::new("/usr/bin/github-mcp-server");
///         command.arg("stdio").env("TOKEN", token_of(tenant));
///         McpServer::stdio("github", &command)
///     })
/// }
///
/// async fn tools(pool: &McpPool, tenant: &Tenant) -> Result<Toolset, Error> {
///     Ok(Toolset::new().tools(pool.get(tenant).await?.tools()))
/// }
/// # let _ = (pool, tools);
/// ```
#[derive(Clone)]
pub struct McpPool {
    max: usize,
    idle: Duration,
    shared: Arc<Pool>,
}

struct Pool {
    server: Box<dyn Fn(&Tenant) -> McpServer + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Tenant, Entry>,
    is_swept: bool,
}

type Connecting = BoxFuture<McpConnection>;

enum Entry {
    /// Held by the requests that wait for it.
    Connecting(WeakShared<Connecting>),
    Open(McpConnection, Instant),
}

impl McpPool {
    /// Creates a pool of the connections to the server that `server` returns for each tenant.
    pub fn new<F>(server: F) -> Self
    where
        F: Fn(&Tenant) -> McpServer + Send + Sync + 'static,
    {
        let shared = Arc::new(Pool {
            server: Box::new(server),
            state: Mutex::default(),
        });
        Self {
            max: 200,
            idle: Duration::from_secs(600),
            shared,
        }
    }

    /// Sets the number of connections; 200 by default, and at least one. For a pool that is not yet used.
    #[must_use]
    pub fn max_connections(mut self, max: usize) -> Self {
        self.max = max.max(1);
        self
    }

    /// Sets the time after which a connection that is not used is closed; 10 minutes by default. For a
    /// pool that is not yet used.
    #[must_use]
    pub fn idle_timeout(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Returns the connection of a tenant, which is established if there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overloaded`]: all connections are in use by other tenants. Others are those of
    /// [`McpServer::connect`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped. Connecting ends with the last request that waits for it.
    pub async fn get(&self, tenant: &Tenant) -> Result<McpConnection, Error> {
        let connecting = {
            let mut state = self.shared.state();
            self.sweep(&mut state);
            match state.entries.get_mut(tenant) {
                Some(Entry::Open(connection, used)) => {
                    *used = Instant::now();
                    return Ok(connection.clone());
                }
                Some(Entry::Connecting(waiting)) => waiting.upgrade(),
                None => None,
            }
            .map_or_else(|| self.connect(&mut state, tenant), Ok)?
        };
        let connected = connecting.clone().await;
        let mut state = self.shared.state();
        if let Some(Entry::Connecting(waiting)) = state.entries.get(tenant)
            && waiting.upgrade().is_some_and(|it| it.ptr_eq(&connecting))
        {
            match &connected {
                Ok(connection) => {
                    let entry = Entry::Open(connection.clone(), Instant::now());
                    state.entries.insert(tenant.clone(), entry);
                }
                Err(_) => drop(state.entries.remove(tenant)),
            }
        }
        connected
    }

    /// Closes the connection of a tenant, and waits until its process has ended. Calls in progress fail.
    pub async fn close(&self, tenant: &Tenant) {
        let removed = self.shared.state().entries.remove(tenant);
        if let Some(Entry::Open(connection, _)) = removed {
            connection.close().await;
        }
    }

    /// Begins to connect, after another connection is closed if the pool is full.
    fn connect(&self, state: &mut State, tenant: &Tenant) -> Result<Shared<Connecting>, Error> {
        state.entries.remove(tenant);
        let replaced = match state.entries.len() >= self.max {
            true => Some(state.evict().ok_or_else(|| {
                let what = "all connections of the pool of MCP servers are in use";
                Error::new(ErrorKind::Overloaded, what)
            })?),
            false => None,
        };
        let (shared, of) = (Arc::clone(&self.shared), tenant.clone());
        let connecting = async move {
            if let Some(Entry::Open(replaced, _)) = replaced {
                replaced.close().await;
            }
            (shared.server)(&of).connect().await
        };
        let connecting = (Box::pin(connecting) as Connecting).shared();
        if let Some(waiting) = connecting.downgrade() {
            let entry = Entry::Connecting(waiting);
            state.entries.insert(tenant.clone(), entry);
        }
        Ok(connecting)
    }

    /// Starts the task that closes the connections that are not used. It ends with the pool.
    fn sweep(&self, state: &mut State) {
        if state.is_swept {
            return;
        }
        state.is_swept = true;
        let (pool, idle) = (Arc::downgrade(&self.shared), self.idle);
        tokio::spawn(sweep(pool, idle));
    }
}

/// The bounds of the time between two rounds of the sweeper.
const MIN_SWEEP: Duration = Duration::from_millis(10);
const MAX_SWEEP: Duration = Duration::from_secs(30);

async fn sweep(pool: Weak<Pool>, idle: Duration) {
    loop {
        sleep((idle / 4).clamp(MIN_SWEEP, MAX_SWEEP)).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        pool.state().expire(idle);
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Closes the connections that were not used for the time `idle`.
    fn expire(&mut self, idle: Duration) {
        let now = Instant::now();
        self.entries.retain(|_, entry| match entry {
            Entry::Connecting(waiting) => waiting.upgrade().is_some(),
            Entry::Open(connection, used) => {
                if connection.is_in_use() {
                    *used = now;
                }
                now.duration_since(*used) < idle
            }
        });
    }

    /// Removes the entry whose last use is the longest ago, if one is not in use.
    fn evict(&mut self) -> Option<Entry> {
        let free = self.entries.iter().filter_map(|(tenant, entry)| {
            let used = match entry {
                Entry::Connecting(waiting) => {
                    let is_abandoned = waiting.upgrade().is_none();
                    is_abandoned.then_some(None)
                }
                Entry::Open(connection, used) => (!connection.is_in_use()).then_some(Some(*used)),
            };
            Some((used?, tenant))
        });
        let tenant = free.min_by_key(|(used, _)| *used)?.1.clone();
        self.entries.remove(&tenant)
    }
}

impl fmt::Debug for McpPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpPool")
            .field("max", &self.max)
            .field("idle", &self.idle)
            .field("connections", &self.shared.state().entries.len())
            .finish_non_exhaustive()
    }
}
