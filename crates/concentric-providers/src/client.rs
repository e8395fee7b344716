//! A default HTTP client.

use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use http_body::Frame;
use http_body_util::Full;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower_service::Service;

/// An HTTP client to end a provider's stack with: reqwest, with rustls and Mozilla's roots.
///
/// It follows no redirect, and changes no state of the process. Cloning is cheap, and clones share
/// their connections.
#[derive(Clone)]
pub struct HttpClient {
    inner: reqwest::Client,
}

/// Builder of an [`HttpClient`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Builder {
    connect_timeout: Duration,
    read_timeout: Option<Duration>,
}

impl Builder {
    /// Sets how long it may take to connect. The default is 10 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a response may be silent; it may for ever by default.
    ///
    /// A provider's layer has [`Timeouts`](crate::Timeouts) of its own, which know a service that
    /// stalls from a consumer that takes its time. This one, which is reqwest's, does not.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = Some(timeout);
        self
    }

    /// Creates the client.
    ///
    /// # Errors
    ///
    /// If TLS can't be set up.
    pub fn build(self) -> Result<HttpClient, Error> {
        let wrong = |error: concentric_core::BoxError| {
            Error::new(ErrorKind::Configuration, "the HTTP client can't be set up")
                .with_source(error)
        };
        let roots = rustls::RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        // Given by hand, since reqwest's own way panics unless the process has installed a
        // provider for everybody.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.into()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout);
        if let Some(timeout) = self.read_timeout {
            client = client.read_timeout(timeout);
        }
        let inner = client
            .build()
            .map_err(|error| wrong(error.without_url().into()))?;
        Ok(HttpClient { inner })
    }
}

impl HttpClient {
    /// Creates a client with the default timeouts.
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

    fn call(&mut self, request: http::Request<Full<Bytes>>) -> Self::Future {
        let request = request.map(reqwest::Body::wrap);
        let state = match reqwest::Request::try_from(request) {
            Ok(request) => State::Sent {
                response: Box::pin(self.inner.execute(request)),
            },
            Err(error) => State::Failed {
                error: Some(classify(error)),
            },
        };
        ResponseFuture { state }
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

type Execute = Pin<Box<dyn Future<Output = Result<reqwest::Response, reqwest::Error>> + Send>>;

/// Response future of [`HttpClient`].
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ResponseFuture {
    state: State,
}

enum State {
    // Boxed: `Client::execute` is a function whose future has no name.
    Sent { response: Execute },
    Failed { error: Option<Error> },
}

impl Future for ResponseFuture {
    type Output = Result<http::Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Sent { response } => {
                let result = ready!(response.as_mut().poll(cx));
                Poll::Ready(match result {
                    Ok(response) => {
                        Ok(http::Response::<reqwest::Body>::from(response)
                            .map(|inner| Body { inner }))
                    }
                    Err(error) => Err(classify(error)),
                })
            }
            State::Failed { error } => Poll::Ready(Err(error.take().unwrap_or_else(|| {
                Error::new(ErrorKind::Other, "the future was polled after it was done")
            }))),
        }
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
        inner: reqwest::Body,
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.project().inner.poll_frame(cx).map_err(classify)
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

/// An error without the address, which may hold a secret.
fn classify(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let (kind, what) = if error.is_timeout() {
        (ErrorKind::Timeout, "the provider did not answer in time")
    } else if error.is_connect() {
        (ErrorKind::Connection, "no connection to the provider")
    } else if error.is_builder() {
        (ErrorKind::Configuration, "the request can't be sent")
    } else {
        (
            ErrorKind::Connection,
            "the connection to the provider broke",
        )
    };
    Error::new(kind, what).with_source(error)
}
