use crate::shared::configuration;
use bytes::Bytes;
use concentric_core::{BoxError, Error};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::graceful::GracefulShutdown,
};
use restate_sdk::{endpoint::Endpoint, hyper::HyperEndpoint};
use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::net::TcpListener;
use tower_service::Service;

/// How long a server that shuts down waits for the invocations.
const GRACE: Duration = Duration::from_secs(10);

/// The endpoint that Restate calls: a service for a server of HTTP/2, with [one of its own](Self::serve).
#[derive(Clone)]
pub struct RestateEndpoint {
    endpoint: Endpoint,
    is_checked: bool,
}

impl RestateEndpoint {
    pub(crate) const fn new(endpoint: Endpoint, is_checked: bool) -> Self {
        Self {
            endpoint,
            is_checked,
        }
    }

    /// Serves HTTP/2 without TLS on `listener` until `shutdown` resolves; then waits up to 10 seconds for the
    /// invocations, which continue elsewhere or later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration): the address is not a loopback one, and
    /// there are no [identity keys](crate::RestateAgents::identity_keys), so that every host in the network could call the service.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let address = listener.local_addr().map_err(|error| Error::of(&error))?;
        if !address.ip().is_loopback() && !self.is_checked {
            let why = format!(
                "`{address}` is not a loopback address; set the identity keys of the Restate servers that may call"
            );
            return Err(configuration(why).with_code("identity_keys"));
        }
        let endpoint = HyperEndpoint::new(self.endpoint);
        let connections = GracefulShutdown::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let stream = tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "a connection of Restate was not accepted");
                        // Such as too many open files.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            // Records are small, and the run waits for each of them.
            let _ = stream.set_nodelay(true);
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), endpoint.clone());
            let connection = connections.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection of Restate ended");
                }
            });
        }
        let _ = tokio::time::timeout(GRACE, connections.shutdown()).await;
        Ok(())
    }
}

impl<B> Service<http::Request<B>> for RestateEndpoint
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    type Response = http::Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let response = self.endpoint.handle(request);
        ready(Ok(response.map(|body| {
            UnsyncBoxBody::new(http_body_util::BodyExt::map_err(body, BoxError::from))
        })))
    }
}

concentric_core::opaque_debug!(RestateEndpoint);
