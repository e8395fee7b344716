use crate::agents::configuration;
use bytes::Bytes;
use concentric_core::{BoxError, Error};
use http_body_util::combinators::UnsyncBoxBody;
use restate_sdk::{endpoint::Endpoint, http_server::HttpServer};
use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    task::{Context, Poll},
};
use tokio::net::TcpListener;
use tower_service::Service;

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
    /// there are no [identity keys](crate::RestateAgents::identity_keys), so that anyone could call the service.
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
        let server = HttpServer::new(self.endpoint);
        server.serve_with_cancel(listener, shutdown).await;
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
