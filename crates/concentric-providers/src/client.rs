//! A default HTTP client.
//!
//! [`HttpClient`] is hyper's client over rustls, with ring and Mozilla's roots (`webpki-roots`).
//!
//! | | |
//! |---|---|
//! | connections | kept for 90 seconds and shared by clones; TCP keep-alive after 15 seconds |
//! | protocol | HTTP/1.1: a connection for each call in flight; [`http2`](Builder::http2) offers HTTP/2 |
//! | redirects | none is followed, since the key would go along |
//! | compression | none is asked for |
//! | proxies | those of the environment; see [`proxy_from_env`](Builder::proxy_from_env) |
//! | time | 10 seconds to connect; see [`connect_timeout`](Builder::connect_timeout) |
//!
//! # Beside other crates
//!
//! The client changes no state of the process, and enables no feature of a crate that changes what
//! another client does: an application's own `reqwest` stays as it is. One thing is rustls's own: a
//! program in which both its `ring` (as here) and its `aws_lc_rs` are enabled must choose one
//! (`CryptoProvider::install_default`) before it calls `rustls::ClientConfig::builder()`, which panics
//! otherwise. reqwest and this client choose for themselves. Without the feature `client` nothing of
//! rustls is enabled, and any `Service<http::Request<_>>` can take this client's place.

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
    fmt,
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

/// An HTTP client to end a provider's stack with.
///
/// It follows no redirect, and changes no state of the process. Cloning is cheap, and clones share
/// their connections. See the [module docs](self) for what it does.
///
/// It runs on tokio: calls need a runtime with I/O and time enabled.
#[derive(Clone)]
pub struct HttpClient {
    inner: legacy::Client<Connector, Full<Bytes>>,
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
}

impl Builder {
    /// Sets how long it may take to connect: to find the address, to open the connection, and for the
    /// handshakes of a proxy and of TLS. The default is 10 seconds; zero fails every call for which
    /// there is no connection already. Tokio counts in milliseconds, and rounds up.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a response may be silent; it may for ever by default. Zero fails every response
    /// that is not there at once.
    ///
    /// A provider's layer has [`Timeouts`](crate::Timeouts) of its own, which tell a service that
    /// stalls from a consumer that takes its time. This one does not.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = Some(timeout);
        self
    }

    /// Whether to use the proxies that the environment names, which is the default: `HTTPS_PROXY`,
    /// `HTTP_PROXY` and `ALL_PROXY`, but not for the hosts in `NO_PROXY`, each also in lower case, as
    /// curl reads them. They are read when the client is built.
    ///
    /// A proxy sees which hosts are called; of calls without TLS, all. It is reached by HTTP
    /// (`http://`): one of another scheme fails each call with
    /// [`ErrorKind::Configuration`].
    pub fn proxy_from_env(mut self, proxies: bool) -> Self {
        self.proxy_from_env = proxies;
        self
    }

    /// Whether to offer HTTP/2 to servers, by ALPN. The default is not to: over HTTP/2 all calls to a
    /// host share one connection, and wait for each other where the server takes no more streams
    /// (often 100), which streamed answers use up for minutes.
    pub fn http2(mut self, http2: bool) -> Self {
        self.http2 = http2;
        self
    }

    /// Creates the client.
    ///
    /// # Errors
    ///
    /// If TLS can't be set up.
    pub fn build(self) -> Result<HttpClient, Error> {
        let roots = rustls::RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        // Given by hand, since rustls's own way looks at the whole process.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(
                    ErrorKind::Configuration,
                    "TLS can't be set up for the HTTP client",
                )
                .with_source(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        if self.http2 {
            tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(15)));
        let proxies = self.proxy_from_env.then(|| Arc::new(Matcher::from_env()));
        let connector = Connector {
            http,
            tls: Arc::new(tls),
            proxies: proxies.clone(),
            timeout: self.connect_timeout,
        };
        let inner = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .build(connector);
        Ok(HttpClient {
            inner,
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
    /// If TLS can't be set up.
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Creates a client step by step.
    pub const fn builder() -> Builder {
        Builder {
            connect_timeout: Duration::from_secs(10),
            read_timeout: None,
            proxy_from_env: true,
            http2: false,
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
        // A proxy for calls without TLS is sent the call itself.
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

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

fn intercept(proxies: Option<&Matcher>, uri: &http::Uri) -> Option<Intercept> {
    proxies.and_then(|proxies| proxies.intercept(uri))
}

/// Takes a name and a password out of an address: HTTP/2 would send them, as would a call by a proxy.
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

/// How long to wait for what comes next.
#[derive(Debug)]
struct Silence {
    timeout: Option<Duration>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    const fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            alarm: None,
        }
    }

    /// Something came.
    fn end(&mut self) {
        self.alarm = None;
    }

    /// Nothing is there yet: ready when that has been so for too long.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let Some(timeout) = self.timeout else {
            return Poll::Pending;
        };
        if timeout.is_zero() {
            return Poll::Ready(timed_out());
        }
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(after(timeout))));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(timed_out())
    }
}

/// When that time is over. A longer one counts as a year, since no clock counts to all of them.
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
            Ok(response) => Ok(response.map(|inner| Body { inner, silence })),
            Err(error) => Err(classify(error)),
        })
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// Response body of [`HttpClient`].
    pub struct Body {
        #[pin]
        inner: Incoming,
        silence: Silence,
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.project();
        let Poll::Ready(frame) = this.inner.poll_frame(cx) else {
            return this.silence.poll(cx).map(|error| Some(Err(error)));
        };
        this.silence.end();
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::Timeout, "the provider did not answer in time")
}

fn broken(error: hyper::Error) -> Error {
    let what = "the connection to the provider broke";
    Error::new(ErrorKind::Connection, what).with_source(error)
}

/// An error without the address, which may hold a secret.
fn classify(error: legacy::Error) -> Error {
    let mut sources =
        std::iter::successors(std::error::Error::source(&error), |error| error.source());
    // One of the connector's is of a kind already.
    if let Some(ours) = sources.find_map(|source| source.downcast_ref::<Error>()) {
        return ours.clone();
    }
    let what = match error.is_connect() {
        true => "no connection to the provider",
        false => "the connection to the provider broke",
    };
    Error::new(ErrorKind::Connection, what).with_source(error)
}

/// Connects to a service, by a proxy or without one.
#[derive(Clone)]
struct Connector {
    http: HttpConnector,
    tls: Arc<rustls::ClientConfig>,
    proxies: Option<Arc<Matcher>>,
    timeout: Duration,
}

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

impl Connector {
    fn connect(&self, to: http::Uri) -> Connecting<Stream> {
        let (http, tls) = (self.http.clone(), Arc::clone(&self.tls));
        let Some(proxy) = intercept(self.proxies.as_deref(), &to) else {
            let direct = HttpsConnector::from((http, tls)).call(to);
            return Box::pin(async { Ok(Stream::new(direct.await?, false)) });
        };
        if proxy.uri().scheme_str() != Some("http") {
            let what = "the proxy that the environment names is not reached by `http://`; other schemes are not supported";
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
        if timeout.is_zero() {
            return Box::pin(async { Err(timed_out().into()) });
        }
        let connecting = self.connect(to);
        Box::pin(async move {
            let connected = tokio::time::timeout_at(after(timeout), connecting);
            connected.await.unwrap_or_else(|_| Err(timed_out().into()))
        })
    }
}

pin_project! {
    /// A connection.
    struct Stream {
        #[pin]
        inner: MaybeHttpsStream<TokioIo<TcpStream>>,
        // Whether the other side is a proxy that is sent calls as they are.
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
