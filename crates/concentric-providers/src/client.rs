//! A default HTTP client.
//!
//! [`HttpClient`] is hyper's client over rustls, with ring and Mozilla's roots (`webpki-roots`).
//!
//! | | |
//! |---|---|
//! | connections | kept alive for 90 seconds and shared by clones; TCP keep-alive after 15 seconds |
//! | protocol | HTTP/1.1: a connection for each call in flight; [`http2`](Builder::http2) offers HTTP/2 |
//! | streams | over HTTP/1.1, a task per response reads about 64 KiB ahead; see [`Body`] |
//! | heads of responses | over HTTP/1.1, at most 64 KiB |
//! | redirects | not followed, since a redirect would forward the key |
//! | compression | not requested |
//! | proxies | read from the environment; see [`proxy_from_env`](Builder::proxy_from_env) |
//! | timeouts | 10 seconds to connect; see [`connect_timeout`](Builder::connect_timeout) |
//! | addresses | any; see [`public_addresses_only`](Builder::public_addresses_only) |
//!
//! An error of a call that was not sent, since there was no connection, has the code `not_connected`: a
//! `RateLimitLayer` returns what such a call has taken.
//!
//! # Compatibility with other crates
//!
//! The client does not change process-wide state, and does not enable crate features that affect
//! other clients, such as an application's own `reqwest`. One restriction comes from rustls: a
//! program in which both its `ring` (used here) and its `aws_lc_rs` features are enabled must
//! install a provider (`CryptoProvider::install_default`) before it calls
//! `rustls::ClientConfig::builder()`, which panics otherwise. reqwest and this client select a
//! provider explicitly. Without the feature `client`, no feature of rustls is enabled, and any
//! `Service<http::Request<_>>` can replace this client.

mod address;
mod read_ahead;

use self::{
    address::{Resolver, is_public},
    read_ahead::ReadAhead,
};
use bytes::Bytes;
use concentric_core::{BoxError, Error, ErrorKind};
use http_body::Frame;
use http_body_util::Full;
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::{
        legacy::{
            self,
            connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    time::{Instant, Sleep},
};
use tower_service::Service;

/// The largest head of a response over HTTP/1.1, and the largest chunk of its body that is passed on, in bytes.
const BUFFER: usize = 64 << 10;

/// The code of an error of a call that was not sent.
const NOT_CONNECTED: &str = "not_connected";

/// An HTTP client: the innermost service of a provider stack.
///
/// Does not follow redirects, and does not change process-wide state. Cloning is cheap, and clones
/// share their connections. See the [module docs](self) for its behavior.
///
/// Calls must run in a tokio runtime with I/O and time enabled.
#[derive(Clone)]
pub struct HttpClient {
    // One clone per call: a stack clones its services as well.
    inner: Arc<legacy::Client<Connector, Full<Bytes>>>,
    proxies: Option<Arc<Matcher>>,
    read_timeout: Option<Duration>,
}

/// Builder of an [`HttpClient`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Builder {
    connect_timeout: Duration,
    read_timeout: Option<Duration>,
    proxy_from_env: bool,
    http2: bool,
    public_only: bool,
}

impl Builder {
    /// Sets the timeout for establishing a connection: name resolution, connecting, and the
    /// handshakes of a proxy and of TLS. The default is 10 seconds. Zero fails every call that
    /// cannot reuse a connection. Tokio's resolution is one millisecond, rounded up.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a response may be silent; unlimited by default. Zero fails every response that
    /// is not available immediately.
    ///
    /// [`Timeouts`](crate::Timeouts) of a provider layer distinguish a stalled service from a slow
    /// consumer. This timeout does not.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = Some(timeout);
        self
    }

    /// Sets whether to use the proxies that are configured in the environment; enabled by default.
    /// The variables are `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY`, with exceptions in
    /// `NO_PROXY`, each also in lower case, as in curl. They are read when the client is built.
    ///
    /// A proxy sees the hosts of TLS calls, and the full content of calls without TLS. Only
    /// `http://` proxies are supported: any other scheme fails each call with
    /// [`ErrorKind::Configuration`].
    pub fn proxy_from_env(mut self, proxies: bool) -> Self {
        self.proxy_from_env = proxies;
        self
    }

    /// Sets whether to offer HTTP/2 through ALPN; disabled by default. Over HTTP/2, all calls to a
    /// host share one connection, and wait for each other when the server's limit of concurrent
    /// streams is reached (often 100). Streamed responses occupy a stream for minutes.
    pub fn http2(mut self, http2: bool) -> Self {
        self.http2 = http2;
        self
    }

    /// Sets whether to connect only to public addresses; disabled by default. Use it for URLs that
    /// others supply, so that they cannot reach services of the local network.
    ///
    /// Each address that a connection would use is checked, after name resolution. A call to a
    /// loopback, private, link-local or otherwise reserved address fails with
    /// [`ErrorKind::Permission`]. Proxies are not used, since they resolve names themselves.
    pub fn public_addresses_only(mut self, public_only: bool) -> Self {
        self.public_only = public_only;
        self
    }

    /// Creates the client.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Configuration`] if TLS cannot be set up.
    pub fn build(self) -> Result<HttpClient, Error> {
        let roots = rustls::RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        // Passed explicitly, since the rustls default depends on process-wide state.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(
                    ErrorKind::Configuration,
                    "TLS cannot be set up for the HTTP client",
                )
                .with_source(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        if self.http2 {
            tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        let mut http = HttpConnector::new_with_resolver(Resolver::new(self.public_only));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(15)));
        let uses_proxies = self.proxy_from_env && !self.public_only;
        let proxies = uses_proxies.then(|| Arc::new(Matcher::from_env()));
        let connector = Connector {
            http,
            tls: Arc::new(tls),
            proxies: proxies.clone(),
            timeout: self.connect_timeout,
            public_only: self.public_only,
        };
        let inner = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_buf_size(BUFFER)
            .build(connector);
        Ok(HttpClient {
            inner: Arc::new(inner),
            proxies,
            read_timeout: self.read_timeout,
        })
    }
}

impl HttpClient {
    /// Creates a client with the default settings.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Configuration`] if TLS cannot be set up.
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Creates a builder with the default settings.
    pub const fn builder() -> Builder {
        Builder {
            connect_timeout: Duration::from_secs(10),
            read_timeout: None,
            proxy_from_env: true,
            http2: false,
            public_only: false,
        }
    }
}

impl Service<http::Request<Full<Bytes>>> for HttpClient {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Full<Bytes>>) -> Self::Future {
        without_user(request.uri_mut());
        // A proxy receives calls without TLS directly, not through a tunnel.
        if request.uri().scheme_str() == Some("http")
            && let Some(proxy) = intercept(self.proxies.as_deref(), request.uri())
            && let Some(auth) = proxy.basic_auth()
        {
            let mut auth = auth.clone();
            auth.set_sensitive(true);
            let name = http::header::PROXY_AUTHORIZATION;
            request.headers_mut().entry(name).or_insert(auth);
        }
        ResponseFuture {
            response: self.inner.request(request),
            silence: Silence::new(self.read_timeout),
        }
    }
}

concentric_core::opaque_debug!(HttpClient);

fn intercept(proxies: Option<&Matcher>, uri: &http::Uri) -> Option<Intercept> {
    proxies.and_then(|proxies| proxies.intercept(uri))
}

/// Removes user information from a URL: HTTP/2 and calls through a proxy would send it.
fn without_user(uri: &mut http::Uri) {
    let Some(authority) = uri.authority().map(http::uri::Authority::as_str) else {
        return;
    };
    let Some((_, address)) = authority.rsplit_once('@') else {
        return;
    };
    let mut parts = uri.clone().into_parts();
    parts.authority = address.parse().ok();
    if let Ok(bare) = http::Uri::from_parts(parts) {
        *uri = bare;
    }
}

/// Detects a response that is silent for too long.
#[derive(Debug)]
struct Silence {
    timeout: Option<Duration>,
    alarm: Option<Pin<Box<Sleep>>>,
    // Whether the time was over at the last poll.
    is_late: bool,
}

impl Silence {
    const fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            alarm: None,
            is_late: false,
        }
    }

    /// Resets the timeout after data has arrived.
    fn end(&mut self) {
        self.alarm = None;
        self.is_late = false;
    }

    /// Resolves to a timeout error if no data has arrived for too long. The connection is polled once more after that,
    /// since what has arrived may be in a task that was woken and waits for its turn.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let Some(timeout) = self.timeout else {
            return Poll::Pending;
        };
        if timeout.is_zero() {
            return Poll::Ready(timed_out());
        }
        if !self.is_late {
            let alarm = self
                .alarm
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(after(timeout))));
            ready!(alarm.as_mut().poll(cx));
            self.is_late = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(timed_out())
    }
}

/// The instant at which `timeout` ends. A longer timeout is limited to a year, since `Instant`
/// cannot represent every duration.
fn after(timeout: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_hours(24 * 365);
    Instant::now() + timeout.min(LONGEST)
}

pin_project! {
    /// Response future of [`HttpClient`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture {
        #[pin]
        response: legacy::ResponseFuture,
        silence: Silence,
    }
}

impl Future for ResponseFuture {
    type Output = Result<http::Response<Body>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Poll::Ready(result) = this.response.poll(cx) else {
            return this.silence.poll(cx).map(Err);
        };
        let silence = Silence::new(this.silence.timeout);
        Poll::Ready(match result {
            Ok(response) => Ok(read(response, silence)),
            Err(error) => Err(classify(error)),
        })
    }
}

concentric_core::opaque_debug!(ResponseFuture);

/// Response body of [`HttpClient`].
///
/// A response of unknown size over HTTP/1.1 is read about 64 KiB ahead of its consumer, by a task of the runtime in which
/// the future of the response was polled, so that a consumer that waits is woken once for all chunks that are ready
/// together. The body ends with an error if that runtime does. Dropping the body ends the request.
pub struct Body {
    source: Source,
    silence: Silence,
}

enum Source {
    Incoming(Incoming),
    ReadAhead(ReadAhead),
}

/// Returns a response that is read ahead if it is a stream over HTTP/1.1. Its connection passes on one chunk
/// each time that the body is polled, unlike the connections of later versions.
fn read(response: http::Response<Incoming>, silence: Silence) -> http::Response<Body> {
    let is_http1 = response.version() <= http::Version::HTTP_11;
    response.map(|body| {
        let source = match is_http1 && http_body::Body::size_hint(&body).exact().is_none() {
            true => Source::ReadAhead(ReadAhead::new(body)),
            false => Source::Incoming(body),
        };
        Body { source, silence }
    })
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = match &mut self.source {
            Source::Incoming(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|error| broken().with_source(error)),
            Source::ReadAhead(body) => body.poll_frame(cx),
        };
        match polled {
            Poll::Ready(_) => self.silence.end(),
            Poll::Pending => return self.silence.poll(cx).map(|error| Some(Err(error))),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Incoming(body) => body.is_end_stream(),
            Source::ReadAhead(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match &self.source {
            Source::Incoming(body) => body.size_hint(),
            Source::ReadAhead(_) => http_body::SizeHint::default(),
        }
    }
}

concentric_core::opaque_debug!(Body);

fn timed_out() -> Error {
    Error::new(ErrorKind::Timeout, "the provider did not answer in time")
}

fn broken() -> Error {
    Error::new(
        ErrorKind::Connection,
        "the connection to the provider broke",
    )
}

/// Converts an error, without the URL, which may contain a secret.
fn classify(error: legacy::Error) -> Error {
    let mut sources =
        std::iter::successors(std::error::Error::source(&error), |error| error.source());
    // Errors of the connector already have a kind.
    if let Some(ours) = sources.find_map(|source| source.downcast_ref::<Error>()) {
        return ours.clone();
    }
    match error.is_connect() {
        true => {
            let what = "cannot connect to the provider";
            let failed = Error::new(ErrorKind::Connection, what).with_code(NOT_CONNECTED);
            failed.with_source(error)
        }
        false => broken().with_source(error),
    }
}

/// Connects to a service, directly or through a proxy.
#[derive(Clone)]
struct Connector {
    http: HttpConnector<Resolver>,
    tls: Arc<rustls::ClientConfig>,
    proxies: Option<Arc<Matcher>>,
    timeout: Duration,
    public_only: bool,
}

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

impl Connector {
    fn connect(&self, to: http::Uri) -> Connecting<Stream> {
        // An address in the URL is not resolved.
        if self.public_only
            && let Some(ip) = address::literal(&to)
            && !is_public(ip)
        {
            return Box::pin(async move { Err(address::refused(ip).into()) });
        }
        let (http, tls) = (self.http.clone(), Arc::clone(&self.tls));
        let Some(proxy) = intercept(self.proxies.as_deref(), &to) else {
            let direct = HttpsConnector::from((http, tls)).call(to);
            return Box::pin(async { Ok(Stream::new(direct.await?, false)) });
        };
        if proxy.uri().scheme_str() != Some("http") {
            let what = "the proxy from the environment is not an `http://` URL; other schemes are not supported";
            return Box::pin(async move { Err(Error::new(ErrorKind::Configuration, what).into()) });
        }
        if to.scheme_str() == Some("http") {
            let proxied = HttpsConnector::from((http, tls)).call(proxy.uri().clone());
            return Box::pin(async { Ok(Stream::new(proxied.await?, true)) });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), http);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        let tunnelled = HttpsConnector::from((tunnel, tls)).call(to);
        Box::pin(async { Ok(Stream::new(tunnelled.await?, false)) })
    }
}

impl Service<http::Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Connecting<Stream>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: http::Uri) -> Self::Future {
        let timeout = self.timeout;
        let late = || BoxError::from(timed_out().with_code(NOT_CONNECTED));
        if timeout.is_zero() {
            return Box::pin(async move { Err(late()) });
        }
        let connecting = self.connect(to);
        Box::pin(async move {
            let connected = tokio::time::timeout_at(after(timeout), connecting);
            connected.await.unwrap_or_else(|_| Err(late()))
        })
    }
}

pin_project! {
    /// A connection.
    struct Stream {
        #[pin]
        inner: MaybeHttpsStream<TokioIo<TcpStream>>,
        // Whether the peer is a proxy that receives calls directly.
        is_proxy: bool,
    }
}

impl Stream {
    const fn new(inner: MaybeHttpsStream<TokioIo<TcpStream>>, is_proxy: bool) -> Self {
        Self { inner, is_proxy }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.inner.connected().proxy(self.is_proxy)
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().inner.poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.project().inner.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().inner.poll_write_vectored(cx, buffers)
    }
}
