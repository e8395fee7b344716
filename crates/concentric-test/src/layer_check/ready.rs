//! The readiness of a layer's service.

use super::calls::{fail, for_a_while, in_time, settle};
use crate::Strict;
use concentric_core::{BoxError, Error};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::pin::pin;
use tower::{ServiceExt, util::Oneshot};
use tower_layer::Layer;
use tower_service::Service;

/// The result of a call of the service that `L` makes of `I`.
type Answer<L, I, R> = Result<
    <<L as Layer<Strict<I>>>::Service as Service<R>>::Response,
    <<L as Layer<Strict<I>>>::Service as Service<R>>::Error,
>;

async fn ready<S, R>(service: &mut S) -> &mut S
where
    S: Service<R, Error: Into<BoxError>>,
{
    match service.ready().await {
        Ok(service) => service,
        Err(error) => fail(&format!("not ready: {}", Error::from(error.into()))),
    }
}

/// Checks that a layer calls only services that are ready, and leaks no readiness. `finish` asserts that a call
/// has succeeded; `unready` is a service that fails to become ready.
pub(super) async fn readiness_of<L, I, R>(
    layer: &L,
    service: impl Fn() -> I,
    unready: I,
    request: impl Fn() -> R,
    finish: impl AsyncFn(Answer<L, I, R>),
) where
    I: Service<R, Error: Into<BoxError>> + Clone,
    L: Layer<Strict<I>, Service: Service<R, Error: Into<BoxError>> + Clone>,
{
    let strict = || Strict::new(service());

    in_time("three calls of one service", async {
        let mut service = layer.layer(strict());
        for _ in 0..3 {
            let call = ready(&mut service).await.call(request());
            finish(call.await).await;
        }
    })
    .await;

    in_time("a service that is polled ready twice", async {
        let mut service = layer.layer(strict());
        ready(&mut service).await;
        let call = ready(&mut service).await.call(request());
        finish(call.await).await;
    })
    .await;

    in_time("a clone of a ready service", async {
        let mut service = layer.layer(strict());
        let mut clone = ready(&mut service).await.clone();
        drop(service);
        let call = ready(&mut clone).await.call(request());
        finish(call.await).await;
    })
    .await;

    in_time("a service whose clone was called", async {
        let inner = strict();
        let mut service = layer.layer(inner);
        let mut clone = service.clone();
        let call = ready(&mut clone).await.call(request());
        finish(call.await).await;
        let call = ready(&mut service).await.call(request());
        finish(call.await).await;
    })
    .await;

    in_time("a ready service that is dropped", async {
        let inner = strict();
        let mut service = layer.layer(inner.clone());
        ready(&mut service).await;
        drop(service);
        settle().await;
        assert_eq!(
            inner.reserved(),
            0,
            "the layer keeps the inner service's readiness after it was dropped"
        );
    })
    .await;

    in_time("an inner service that becomes ready later", async {
        let inner = Strict::with_capacity(service(), 1);
        let mut holder = inner.clone();
        ready(&mut holder).await;
        // `FuturesUnordered` polls the call only after a wakeup.
        let mut calls = FuturesUnordered::new();
        calls.push(Oneshot::new(layer.layer(inner), request()));
        let early = for_a_while(calls.next()).await;
        drop(holder);
        let response = match early {
            // The layer responds without the inner service.
            Some(response) => response,
            None => calls.next().await,
        };
        match response {
            Some(response) => finish(response).await,
            None => fail("the call ended without a result"),
        }
    })
    .await;

    in_time("a call that is dropped while it waits", async {
        let inner = Strict::with_capacity(service(), 1);
        let mut holder = inner.clone();
        ready(&mut holder).await;
        {
            let mut call = pin!(Oneshot::new(layer.layer(inner.clone()), request()));
            let _ = for_a_while(call.as_mut()).await;
        }
        drop(holder);
        settle().await;
        assert_eq!(
            (inner.reserved(), inner.running()),
            (0, 0),
            "the layer keeps state of a call that was dropped"
        );
        let mut again = inner.clone();
        ready(&mut again).await;
    })
    .await;

    in_time("an inner service that fails to become ready", async {
        let inner = Strict::new(unready);
        let result = Oneshot::new(layer.layer(inner.clone()), request()).await;
        assert!(
            result.is_err() || inner.calls() == 0,
            "the layer called a service whose readiness had failed"
        );
    })
    .await;
}
