//! Keeps a server connected.

use crate::{
    config::Config,
    definition::RefusedTool,
    drift::{Drift, drift},
    link::{Link, OpenLink},
    listing::{Definitions, Listing, list},
};
use concentric_core::{Error, ErrorKind, ToolSpec};
use rmcp::model::{ProtocolVersion, ServerNotification, SubscriptionFilter};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// A server, with the tools that it had when they were last listed.
pub(crate) struct Server {
    pub(crate) config: Config,
    state: Mutex<State>,
    status: watch::Sender<Status>,
    /// Starts another series of attempts to connect.
    wake: Notify,
    /// Counts the listings.
    listings: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    accepted: Definitions,
    offered: Definitions,
    refused: Vec<RefusedTool>,
}

#[derive(Clone)]
enum Status {
    Connected(Arc<Link>),
    Connecting,
    /// No further attempt is made until a call needs the server.
    Failed(Error),
    Closed,
}

impl Server {
    /// Connects for the first time, and lists the tools.
    pub(crate) async fn open(config: Config) -> Result<(Self, OpenLink), Error> {
        let (opened, listing) = connect(&config).await?;
        let accepted = match (&config.pins, config.accept_changes) {
            (Some(pins), false) => {
                let pinned = listing
                    .offered
                    .iter()
                    .filter(|(_, it)| pins.matches(&it.spec));
                pinned
                    .map(|(name, it)| (name.clone(), it.clone()))
                    .collect()
            }
            _ => listing.offered.clone(),
        };
        let state = State {
            accepted,
            offered: listing.offered,
            refused: listing.refused,
        };
        let (status, _) = watch::channel(Status::Connected(Arc::clone(&opened.link)));
        let server = Self {
            config,
            state: Mutex::new(state),
            status,
            wake: Notify::new(),
            listings: watch::channel(0).0,
        };
        server.report_drift();
        Ok((server, opened))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The accepted definitions.
    pub(crate) fn accepted(&self) -> Definitions {
        self.state().accepted.clone()
    }

    pub(crate) fn refused(&self) -> Vec<RefusedTool> {
        self.state().refused.clone()
    }

    pub(crate) fn drift(&self) -> Vec<Drift> {
        let state = self.state();
        drift(&state.accepted, &state.offered)
    }

    /// Accepts the differences that are still current. Returns whether all are.
    pub(crate) fn accept(&self, reviewed: &[Drift]) -> bool {
        let mut state = self.state();
        let State {
            accepted, offered, ..
        } = &mut *state;
        let mut are_all = true;
        for drift in reviewed {
            match drift {
                Drift::Added(spec) | Drift::Changed { current: spec, .. } => {
                    match offered.get(&spec.name) {
                        Some(current) if current.spec == *spec => {
                            accepted.insert(spec.name.clone(), current.clone());
                        }
                        _ => are_all = false,
                    }
                }
                Drift::Removed(spec) if !offered.contains_key(&spec.name) => {
                    accepted.remove(&spec.name);
                }
                Drift::Removed(_) => are_all = false,
            }
        }
        are_all
    }

    /// Receives a value after each listing.
    pub(crate) fn listings(&self) -> watch::Receiver<u64> {
        self.listings.subscribe()
    }

    /// Checks that a call of a tool may be sent: its definition is still the server's.
    ///
    /// # Errors
    ///
    /// The text for the model.
    pub(crate) fn check(&self, spec: &ToolSpec) -> Result<(), &'static str> {
        match self.state().offered.get(&spec.name) {
            None => Err("The call was not run: the server no longer offers the tool."),
            Some(current) if *current.spec != *spec && !self.config.accept_changes => Err(
                "The call was not run: the server has changed the tool's definition since it was reviewed.",
            ),
            Some(_) => Ok(()),
        }
    }

    /// The current connection. Waits for one that is being established.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connection`], or the kind of the last attempt.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Error> {
        let mut status = self.status.subscribe();
        let name = self.config.name.as_str();
        let mut is_woken = false;
        let connected = async {
            loop {
                let current = status.borrow_and_update().clone();
                match current {
                    Status::Connected(link) if !link.lost.is_cancelled() => return Ok(link),
                    Status::Failed(error) if is_woken => return Err(error),
                    Status::Failed(_) => {
                        is_woken = true;
                        self.wake.notify_one();
                    }
                    Status::Closed => return Err(closed(name)),
                    Status::Connected(_) | Status::Connecting => {}
                }
                if status.changed().await.is_err() {
                    return Err(closed(name));
                }
            }
        };
        let late = || {
            let what = format!("the MCP server `{name}` is not connected");
            Error::new(ErrorKind::Connection, what)
        };
        let limit = self.config.connect_timeout;
        timeout(limit, connected)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Waits until the connection was closed.
    pub(crate) async fn closed(&self) {
        let mut status = self.status.subscribe();
        let is_closed = |status: &Status| matches!(status, Status::Closed);
        let _ = status.wait_for(is_closed).await;
    }

    fn listed(&self, listing: Listing) {
        {
            let mut state = self.state();
            if self.config.accept_changes {
                state.accepted = listing.offered.clone();
            }
            state.offered = listing.offered;
            state.refused = listing.refused;
        }
        self.report_drift();
        self.listings
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    fn report_drift(&self) {
        let server = self.config.name.as_str();
        for drift in self.drift() {
            let (change, spec) = match &drift {
                Drift::Added(spec) => ("added", spec),
                Drift::Changed { current, .. } => ("changed", current),
                Drift::Removed(spec) => ("removed", spec),
            };
            let tool = spec.name.as_str();
            tracing::warn!(target: "concentric::mcp", parent: None, server, tool, change, "a definition differs from the accepted one");
        }
    }
}

fn closed(name: &str) -> Error {
    let what = format!("the connection to the MCP server `{name}` was closed");
    Error::new(ErrorKind::Connection, what)
}

/// Connects, and lists the tools.
async fn connect(config: &Config) -> Result<(OpenLink, Listing), Error> {
    let connecting = async {
        let opened = OpenLink::open(config).await?;
        let listing = list(&opened.link, config).await?;
        Ok((opened, listing))
    };
    timeout(config.connect_timeout, connecting)
        .await
        .unwrap_or_else(|_| {
            let (name, limit) = (&config.name, config.connect_timeout);
            let what = format!("the MCP server `{name}` was not connected after {limit:?}");
            Err(Error::new(ErrorKind::Timeout, what))
        })
}

/// The attempts to connect before the server counts as unavailable.
const ATTEMPTS: u32 = 10;

/// Keeps the server connected until `stop` is cancelled.
pub(crate) async fn supervise(server: Arc<Server>, first: OpenLink, stop: CancellationToken) {
    let mut opened = first;
    loop {
        let link = Arc::clone(&opened.link);
        tokio::select! {
            () = opened.run(&stop) => {}
            () = watch_tools(&server, &link) => {}
        }
        if stop.is_cancelled() {
            break;
        }
        let name = server.config.name.as_str();
        tracing::warn!(target: "concentric::mcp", parent: None, server = name, "the connection to a server ended");
        server.status.send_replace(Status::Connecting);
        tokio::select! {
            () = stop.cancelled() => break,
            again = reconnect(&server) => opened = again,
        }
    }
    server.status.send_replace(Status::Closed);
}

async fn reconnect(server: &Server) -> OpenLink {
    let mut attempt = 0;
    loop {
        sleep(delay(attempt)).await;
        match connect(&server.config).await {
            Ok((opened, listing)) => {
                server.listed(listing);
                let link = Arc::clone(&opened.link);
                server.status.send_replace(Status::Connected(link));
                return opened;
            }
            Err(error) => {
                let (name, error_text) = (server.config.name.as_str(), error.to_string());
                tracing::warn!(target: "concentric::mcp", parent: None, server = name, error = error_text, "cannot connect to a server");
                attempt += 1;
                if needs_user(&error) || attempt >= ATTEMPTS {
                    server.status.send_replace(Status::Failed(error));
                    server.wake.notified().await;
                    server.status.send_replace(Status::Connecting);
                    attempt = 0;
                }
            }
        }
    }
}

/// Returns whether a further attempt fails, too, until a user has authorized the application.
#[cfg(feature = "oauth")]
fn needs_user(error: &Error) -> bool {
    crate::oauth::AuthorizationRequired::of(error).is_some()
}

#[cfg(not(feature = "oauth"))]
const fn needs_user(_: &Error) -> bool {
    false
}

/// A random part of a delay that doubles with each attempt, from half a second to a minute.
fn delay(attempt: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(60);
    let longest = FIRST.saturating_mul(1 << attempt.min(16)).min(LONGEST);
    let random = RandomState::new().build_hasher().finish();
    let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(random % longest_ms.max(1))
}

/// The time from a notification to the listing, which covers further ones.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// Lists the tools again whenever the server reports a change, at most once a second. Never ends.
async fn watch_tools(server: &Server, link: &Link) {
    let listing = async {
        loop {
            link.list_changed.notified().await;
            sleep(DEBOUNCE).await;
            match timeout(server.config.connect_timeout, list(link, &server.config)).await {
                Ok(Ok(listing)) => server.listed(listing),
                Ok(Err(error)) => not_listed(server, &error.to_string()),
                Err(_) => not_listed(server, "no answer"),
            }
            sleep(DEBOUNCE).await;
        }
    };
    tokio::join!(listing, subscribe(link));
}

fn not_listed(server: &Server, error: &str) {
    let name = server.config.name.as_str();
    tracing::warn!(target: "concentric::mcp", parent: None, server = name, error, "the changed tools of a server were not listed");
}

/// Subscribes to changes of the tools, which servers of 2026-07-28 do not report otherwise. A
/// subscription that ends is renewed.
async fn subscribe(link: &Link) {
    let Some(info) = link.peer.peer_info() else {
        return;
    };
    let tools = info.capabilities.tools.as_ref();
    let reports = tools.is_some_and(|tools| tools.list_changed == Some(true));
    if !reports || info.protocol_version < ProtocolVersion::V_2026_07_28 {
        return;
    }
    let mut attempt = 0_u32;
    loop {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        if let Ok(mut subscription) = link.peer.listen(filter).await {
            if attempt > 0 {
                // Changes in between were not reported.
                link.list_changed.notify_one();
            }
            while let Ok(Some(notification)) = subscription.next().await {
                if let ServerNotification::ToolListChangedNotification(_) = notification {
                    attempt = 0;
                    link.list_changed.notify_one();
                }
            }
        }
        attempt = attempt.saturating_add(1);
        sleep(RENEWAL + delay(attempt)).await;
    }
}

/// The shortest time from the end of a subscription to the next one.
const RENEWAL: Duration = Duration::from_secs(1);
