use super::{body::read, handler::ToolHandler};
use bytes::Bytes;
use concentric_core::Str;
use concentric_tools::Toolset;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower_service::Service;

/// The sessions of clients of earlier revisions; further ones are refused.
const MAX_SESSIONS: usize = 10_000;
/// The time without a request after which a session ends.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// A toolset as an HTTP service: an MCP server over streamable HTTP.
///
/// See the [module docs](super). Mount it with `route_service` of axum. Put authentication into a
/// layer around it: the service itself accepts every request of an allowed host and origin. The
/// extensions of a request, such as the user that such a layer finds, are in the
/// [context](concentric_core::Context::extensions) of its calls.
#[derive(Clone)]
pub struct McpService {
    handler: ToolHandler,
    config: StreamableHttpServerConfig,
    sessions: Arc<LocalSessionManager>,
    inner: StreamableHttpService<ToolHandler, LocalSessionManager>,
}

impl McpService {
    /// Creates the service of a server with this name.
    ///
    /// It accepts requests for the local machine only, and none that a web page sends: see
    /// [`allow_hosts`](Self::allow_hosts) and [`allow_origins`](Self::allow_origins). An invalid
    /// [toolset](Toolset::check) fails each call.
    ///
    /// At most 256 calls of all clients run at once; the result of a further one is an error.
    pub fn new(name: impl Into<Str>, tools: Toolset) -> Self {
        let config = StreamableHttpServerConfig::default().enforce_origin_validation();
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        let handler = ToolHandler::new(name.into(), tools);
        Self::build(handler, config, Arc::new(sessions))
    }

    fn build(
        handler: ToolHandler,
        config: StreamableHttpServerConfig,
        sessions: Arc<LocalSessionManager>,
    ) -> Self {
        let served = handler.clone();
        let inner = StreamableHttpService::new(
            move || Ok(served.for_client()),
            Arc::clone(&sessions),
            config.clone(),
        );
        Self {
            handler,
            config,
            sessions,
            inner,
        }
    }

    /// Sets the values of the `Host` header that are accepted, with or without a port. By default
    /// those of the local machine, so that a page whose name was rebound to it cannot reach it. An
    /// empty list changes nothing: the check cannot be turned off.
    #[must_use]
    pub fn allow_hosts<H>(self, hosts: impl IntoIterator<Item = H>) -> Self
    where
        H: Into<String>,
    {
        let hosts: Vec<String> = hosts.into_iter().map(Into::into).collect();
        if hosts.is_empty() {
            return self;
        }
        let config = self.config.with_allowed_hosts(hosts);
        Self::build(self.handler, config, self.sessions)
    }

    /// Sets the origins of web pages whose requests are accepted, such as
    /// `https://app.example.com:443`; none by default. A request without the header `Origin`, which is
    /// not sent by a page, is accepted.
    #[must_use]
    pub fn allow_origins<O>(self, origins: impl IntoIterator<Item = O>) -> Self
    where
        O: Into<String>,
    {
        let origins: Vec<String> = origins.into_iter().map(Into::into).collect();
        let config = self.config.with_allowed_origins(origins);
        Self::build(self.handler, config, self.sessions)
    }
}

impl<B> Service<Request<B>> for McpService
where
    B: Body<Data: Send + 'static, Error: fmt::Display> + Send + 'static,
{
    type Response = Response<BoxBody<Bytes, Infallible>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self {
            sessions, inner, ..
        } = self.clone();
        Box::pin(async move {
            let is_new = !request.headers().contains_key("mcp-session-id");
            if is_new && sessions.sessions.read().await.len() >= MAX_SESSIONS {
                return Ok(refused(StatusCode::SERVICE_UNAVAILABLE));
            }
            if request.method() != Method::POST {
                return Ok(inner.handle(request).await);
            }
            let (parts, body) = request.into_parts();
            Ok(match read(body).await {
                Ok(message) => {
                    let request = Request::from_parts(parts, Full::new(message));
                    inner.handle(request).await
                }
                Err(status) => refused(status),
            })
        })
    }
}

fn refused(status: StatusCode) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Empty::new().boxed());
    *response.status_mut() = status;
    response
}

impl fmt::Debug for McpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpService")
            .field("name", &self.handler.name)
            .field("tools", &self.handler.tools)
            .finish_non_exhaustive()
    }
}
