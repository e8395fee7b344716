//! The handle of a connected server.

use crate::{
    call::call,
    config::Config,
    definition::RefusedTool,
    drift::Drift,
    listing::Definition,
    supervisor::{Server, supervise},
};
use concentric_core::{Error, Str, ToolCall, ToolOutcome, ToolSpecs, service::BoxFuture};
use concentric_tools::{Tool, ToolPins};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

/// A connected MCP server; created by [`McpServer::connect`](crate::McpServer::connect).
///
/// Cloning is cheap. The connection is closed, and the process of the server ended, when the last
/// clone and the last of its [tools](Self::tools) are dropped.
#[derive(Clone)]
pub struct McpConnection {
    server: Arc<Server>,
    stop: CancellationToken,
    // Shared with the tools.
    open: Arc<DropGuard>,
}

impl McpConnection {
    pub(crate) async fn open(config: Config) -> Result<Self, Error> {
        let (server, opened) = Server::open(config).await?;
        let (server, stop) = (Arc::new(server), CancellationToken::new());
        tokio::spawn(supervise(Arc::clone(&server), opened, stop.clone()));
        Ok(Self {
            server,
            open: Arc::new(stop.clone().drop_guard()),
            stop,
        })
    }

    /// Returns whether another handle or a tool of the connection exists.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }

    /// The name of the server.
    pub fn name(&self) -> &Str {
        &self.server.config.name
    }

    /// The tools with accepted definitions, for a [`Toolset`](concentric_tools::Toolset).
    ///
    /// The list of a toolset never changes by itself, so that a model is not offered other tools in
    /// the middle of a run. After [`accept`](Self::accept), or with
    /// [`accept_changes`](crate::McpServer::accept_changes), this method returns the new list: build
    /// the next toolset with it, or pass the tools to single runs by
    /// [`RunOverrides::shadow`](concentric_core::RunOverrides::shadow).
    pub fn tools(&self) -> Vec<Tool> {
        let accepted = self.server.accepted();
        let limit = self.server.config.limits.max_result_bytes;
        let tools = accepted.into_values().map(|definition| {
            let spec = (*definition.spec).clone();
            let service = McpTool {
                connection: self.clone(),
                definition: Arc::new(definition),
            };
            Tool::new(spec, service).max_result_bytes(limit)
        });
        tools.collect()
    }

    /// The tools of the server that are not offered because their definitions are invalid.
    pub fn refused(&self) -> Vec<RefusedTool> {
        self.server.refused()
    }

    /// The differences between the accepted definitions and the current ones, by name. New and
    /// changed tools cannot be called before they are [accepted](Self::accept).
    pub fn drift(&self) -> Vec<Drift> {
        self.server.drift()
    }

    /// Accepts differences that were reviewed, all or some of the [drift](Self::drift).
    ///
    /// Returns `false` if the server has changed some of them since the review. These are not
    /// accepted, and are in the next drift.
    ///
    /// ```no_run
    /// use concentric_mcp::{Drift, McpConnection};
    ///
    /// fn review(server: &McpConnection, is_harmless: impl Fn(&Drift) -> bool) {
    ///     let mut drift = server.drift();
    ///     drift.retain(is_harmless);
    ///     if !server.accept(&drift) {
    ///         eprintln!("{} has changed its tools again", server.name());
    ///     }
    /// }
    /// ```
    #[must_use = "a difference that has changed since the review is not accepted"]
    pub fn accept(&self, reviewed: &[Drift]) -> bool {
        self.server.accept(reviewed)
    }

    /// The pins of the accepted definitions, to be stored and passed to
    /// [`McpServer::pins`](crate::McpServer::pins).
    pub fn pins(&self) -> ToolPins {
        let specs = self.server.accepted().into_values().map(|it| it.spec);
        ToolPins::of(&ToolSpecs::from(specs.collect::<Vec<_>>()))
    }

    /// Waits until the tools were listed again, because the server reported a change or was
    /// reconnected.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped. A listing between two calls of this method is missed.
    pub async fn listed_again(&self) {
        // The sender lives as long as the server.
        let _ = self.server.listings().changed().await;
    }

    /// Closes the connection, and waits until the process of the server has ended. Calls in progress
    /// and later calls fail.
    pub async fn close(self) {
        self.stop.cancel();
        self.server.closed().await;
    }
}

/// The service of a tool.
#[derive(Clone)]
struct McpTool {
    connection: McpConnection,
    definition: Arc<Definition>,
}

impl Service<ToolCall> for McpTool {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = BoxFuture<ToolOutcome>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ToolCall) -> Self::Future {
        let Self {
            connection,
            definition,
        } = self.clone();
        Box::pin(async move {
            let Definition { remote, spec } = &*definition;
            call(&connection.server, remote, spec, request).await
        })
    }
}

impl fmt::Debug for McpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.server.accepted();
        f.debug_struct("McpConnection")
            .field("name", self.name())
            .field("tools", &tools.keys())
            .finish_non_exhaustive()
    }
}
