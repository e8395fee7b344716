//! One connection to a server.

#[cfg(feature = "oauth")]
use crate::oauth::Authorizer;
use crate::{
    config::{Config, Place},
    handler::Handler,
    http_client::{HttpServer, transport_error},
    pending::PendingCalls,
    stdio::ChildGuard,
};
use concentric_core::{Error, ErrorKind};
use concentric_providers::client::HttpClient;
use rmcp::{
    ClientCacheConfig,
    model::ProtocolVersion,
    service::{
        ClientInitializeError, ClientLifecycleMode, Peer, RoleClient, RunningService,
        serve_client_with_lifecycle,
    },
    transport::{
        async_rw::AsyncRwTransport,
        streamable_http_client::{
            StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
        },
    },
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The part of a connection that calls use.
pub(crate) struct Link {
    pub(crate) peer: Peer<RoleClient>,
    pub(crate) calls: Arc<PendingCalls>,
    /// Cancelled once the connection cannot be used any more.
    pub(crate) lost: CancellationToken,
    /// Notified when the server reports other tools.
    pub(crate) list_changed: Arc<Notify>,
}

/// A connection, with the parts that keep it open.
pub(crate) struct OpenLink {
    pub(crate) link: Arc<Link>,
    running: RunningService<RoleClient, Handler>,
    child: Option<ChildGuard>,
}

/// The time for the end of a connection, such as the deletion of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

impl OpenLink {
    /// Connects to a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the process of the server.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        let mut opened = Self::open_as(config, newest()).await?;
        // Some servers of earlier revisions have a result for each method.
        if let Err(
            ClientInitializeError::ExpectedInitResult(_)
            | ClientInitializeError::NoCompatibleProtocolVersion { .. },
        ) = opened
        {
            opened = Self::open_as(config, ClientLifecycleMode::Initialize).await?;
        }
        opened.map_err(|error| not_connected(config, error))
    }

    async fn open_as(
        config: &Config,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Result<Self, ClientInitializeError>, Error> {
        let calls = Arc::<PendingCalls>::default();
        let list_changed = Arc::<Notify>::default();
        let handler = Handler::new(
            config.clone(),
            Arc::clone(&calls),
            Arc::clone(&list_changed),
        );
        let max = config.limits.max_message_bytes;
        let (running, child) = match &config.place {
            Place::Stdio(command) => {
                let process = command.spawn(&config.name, max)?;
                let transport = AsyncRwTransport::new_client(process.output, process.input);
                // The limit of the process ends the connection first.
                let transport = transport.with_max_line_length(max.saturating_add(1));
                let serving = serve_client_with_lifecycle(handler, transport, lifecycle).await;
                (serving, Some(process.child))
            }
            Place::Http {
                url,
                bearer,
                allow_private,
                ..
            } => {
                let client = http_client(config, *allow_private)?;
                let client = HttpServer::new(client, bearer.as_ref(), max)?;
                #[cfg(feature = "oauth")]
                let client = match config.authorizer()? {
                    Some(authorizer) => client.authorized_by(authorizer),
                    None => client,
                };
                let mut settings =
                    StreamableHttpClientTransportConfig::with_uri(url.as_str().to_owned());
                settings.max_sse_event_size = max;
                settings.max_json_response_size = max;
                settings.max_concurrent_requests = MAX_REQUESTS;
                // The call decides whether it is sent again in a new session.
                settings.reinit_on_expired_session = false;
                let transport = StreamableHttpClientTransport::with_client(client, settings);
                let serving = serve_client_with_lifecycle(handler, transport, lifecycle).await;
                (serving, None)
            }
        };
        let running = match running {
            Ok(running) => running,
            Err(error) => return Ok(Err(error)),
        };
        // A listing must be the server's current one, and a cache would keep each page.
        let no_cache = ClientCacheConfig::disabled();
        running.peer().set_response_cache_config(no_cache).await;
        let link = Link {
            peer: running.peer().clone(),
            calls,
            lost: CancellationToken::new(),
            list_changed,
        };
        Ok(Ok(Self {
            link: Arc::new(link),
            running,
            child,
        }))
    }

    /// Waits until the connection ends or `stop` is cancelled, and ends it.
    pub(crate) async fn run(self, stop: &CancellationToken) {
        let Self {
            link,
            running,
            child,
        } = self;
        let end = running.cancellation_token();
        let mut ended = Box::pin(running.waiting());
        tokio::select! {
            _ = &mut ended => {}
            () = link.lost.cancelled() => {
                end.cancel();
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
            }
            () = stop.cancelled() => {
                end.cancel();
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
            }
        }
        link.lost.cancel();
        if let Some(child) = child {
            child.end().await;
        }
    }
}

#[cfg(feature = "oauth")]
impl Config {
    /// The authorizer of the server, if it has one.
    pub(crate) fn authorizer(&self) -> Result<Option<Authorizer>, Error> {
        let Place::Http {
            url,
            allow_private,
            oauth: Some(oauth),
            ..
        } = &self.place
        else {
            return Ok(None);
        };
        let (oauth, client) = ((**oauth).clone(), http_client(self, *allow_private)?);
        let (name, url) = (self.name.clone(), url.clone());
        Ok(Some(Authorizer::new(
            oauth,
            name,
            url,
            client,
            *allow_private,
        )))
    }
}

/// The client for a server, or for its authorization server.
fn http_client(config: &Config, allow_private: bool) -> Result<HttpClient, Error> {
    HttpClient::builder()
        .connect_timeout(config.connect_timeout)
        .public_addresses_only(!allow_private)
        .build()
}

/// The requests in progress over HTTP; others wait.
const MAX_REQUESTS: usize = 64;

/// The newest revision, or an earlier one if the server rejects it.
fn newest() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: None,
    }
}

fn not_connected(config: &Config, error: ClientInitializeError) -> Error {
    let what = format!("cannot connect to the MCP server `{}`", config.name);
    // The client's own error has the reason, and less noise.
    let ours = match client_error(&error) {
        Some(StreamableHttpError::Client(ours)) => Some(ours.clone()),
        _ => None,
    };
    match ours {
        Some(ours) => Error::new(ours.kind(), what).with_source(ours),
        None => Error::new(ErrorKind::Connection, what).with_source(error),
    }
}

/// The error of the HTTP client that failed the initialization.
fn client_error(error: &ClientInitializeError) -> Option<&StreamableHttpError<Error>> {
    match error {
        ClientInitializeError::TransportError { error, .. } => transport_error(&*error.error),
        ClientInitializeError::LegacyFallbackFailed { discover, fallback } => {
            client_error(fallback).or_else(|| client_error(discover))
        }
        _ => None,
    }
}
