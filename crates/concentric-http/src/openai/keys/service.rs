use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::store::StoreError;
use http::{HeaderValue, header};
use tower_service::Service;

use super::{VirtualKey, VirtualKeys};
use crate::{openai::failure::Failure, store_call::store_call};

/// The maximum time that a request waits for the store.
const WITHIN: Duration = Duration::from_secs(10);

/// Service that checks the key of each request.
///
/// [`VirtualKeys`] makes it. It is as ready as the inner service; while the store is read, the request holds
/// the inner service's permit. Dropping the future drops the read.
#[derive(Clone)]
pub struct CheckKey<S> {
    keys: VirtualKeys,
    inner: S,
}

impl<S> CheckKey<S> {
    pub(super) const fn new(keys: VirtualKeys, inner: S) -> Self {
        Self { keys, inner }
    }
}

impl<S, RB, B> Service<http::Request<RB>> for CheckKey<S>
where
    S: Service<http::Request<RB>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    RB: Send + 'static,
    B: From<Bytes>,
{
    type Response = http::Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<RB>) -> Self::Future {
        // The ready service is called, and a clone of it remains.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let keys = self.keys.clone();
        Box::pin(async move {
            let header = request.headers_mut().remove(header::AUTHORIZATION);
            let checked = checked(&keys, header.as_ref()).await;
            let failure = match checked {
                Ok(Some(key)) => {
                    let extensions = request.extensions_mut();
                    extensions.insert(key.tenant.clone());
                    extensions.insert(key);
                    return inner.call(request).await;
                }
                Ok(None) => Failure::invalid_key(),
                Err(error) => {
                    tracing::error!(?error, "the store of the virtual keys failed");
                    Failure::keys_unavailable()
                }
            };
            Ok(failure.into_response().map(B::from))
        })
    }
}

/// Checks a header within [`WITHIN`].
async fn checked(
    keys: &VirtualKeys,
    header: Option<&HeaderValue>,
) -> Result<Option<VirtualKey>, StoreError> {
    let Some(header) = header else {
        return Ok(None);
    };
    let check = || keys.check(header.as_bytes());
    store_call(&keys.environment, WITHIN, check).await
}

impl<S> fmt::Debug for CheckKey<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckKey").finish_non_exhaustive()
    }
}
