//! Limits on concurrent runs, from the request to the end of the response body.

mod limits;

use crate::support::{finish, input, post, send};
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event, store::Tenant};
use concentric_http::{
    admission::{Admission, AdmissionBody, AdmissionLayer},
    ag_ui::AgUiLayer,
};
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;
use std::{
    collections::HashMap,
    convert::Infallible,
    future::{Future, pending, ready},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

/// A body whose frames are sent by a test.
type Frames = UnsyncBoxBody<Bytes, BoxError>;

/// Sends a frame or an error.
type Sender = mpsc::UnboundedSender<Result<(), BoxError>>;

#[derive(Clone, Default)]
struct Streams(Arc<Mutex<Vec<Sender>>>);

impl Streams {
    fn begun(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The sender of the stream number `at`.
    fn of(&self, at: usize) -> Sender {
        self.0.lock().unwrap()[at].clone()
    }

    /// Ends the stream number `at`.
    fn end(&self, at: usize) {
        let (gone, _) = mpsc::unbounded_channel();
        self.0.lock().unwrap()[at] = gone;
    }
}

impl Service<Request<()>> for Streams {
    type Response = Response<Frames>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().push(sender);
        let frames = stream::unfold(receiver, |mut receiver| async move {
            let item: Result<(), BoxError> = receiver.recv().await?;
            let frame = item.map(|()| http_body::Frame::data(Bytes::from_static(b"x")));
            Some((frame, receiver))
        });
        ready(Ok(Response::new(StreamBody::new(frames).boxed_unsync())))
    }
}

type Limited = Admission<Streams>;
type Answer = Response<AdmissionBody<Frames>>;
type Asked = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

fn of(tenant: &str) -> Request<()> {
    let mut request = Request::new(());
    let tenant = Tenant(tenant.into());
    request.extensions_mut().insert(tenant);
    request
}

fn ask(service: &Limited, tenant: &str) -> task::Spawn<Asked> {
    task::spawn(Box::pin(service.clone().oneshot(of(tenant))))
}

#[track_caller]
fn admitted(asked: &mut task::Spawn<Asked>) -> task::Spawn<AdmissionBody<Frames>> {
    let answer = assert_ready!(asked.poll()).unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    task::spawn(answer.into_body())
}

#[track_caller]
fn refused(asked: &mut task::Spawn<Asked>) -> (u16, String) {
    let answer = assert_ready!(asked.poll()).unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let after = answer.headers()["retry-after"].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let mut body = task::spawn(answer.into_body());
    let data = assert_ready!(frame(&mut body)).unwrap().unwrap();
    let error: Value = serde_json::from_slice(&data.into_data().unwrap()).unwrap();
    let code = match status {
        429 => "too_many_runs_of_tenant",
        _ => "too_many_runs",
    };
    assert_eq!(error["error"]["code"], code);
    assert!(assert_ready!(frame(&mut body)).is_none());
    (status, after)
}

type Frame = Option<Result<http_body::Frame<Bytes>, BoxError>>;

fn frame(body: &mut task::Spawn<AdmissionBody<Frames>>) -> Poll<Frame> {
    body.enter(|cx, body| http_body::Body::poll_frame(body, cx))
}

#[tokio::test]
async fn a_run_counts_until_its_body_ends() {
    let streams = Streams::default();
    let layer = AdmissionLayer::new(1);
    let service = layer.layer(streams.clone());
    let mut body = admitted(&mut ask(&service, "a"));
    assert_eq!((layer.running(), layer.waiting()), (1, 0));

    let mut second = ask(&service, "a");
    assert_pending!(second.poll());
    streams.of(0).send(Ok(())).unwrap();
    assert!(assert_ready!(frame(&mut body)).unwrap().is_ok());
    assert_pending!(second.poll());
    assert_eq!(
        (layer.running(), layer.waiting(), streams.begun()),
        (1, 1, 1)
    );

    streams.end(0);
    assert!(assert_ready!(frame(&mut body)).is_none());
    // The ended body no longer holds a permit, even before it is dropped.
    assert!(second.is_woken());
    let _second = admitted(&mut second);
    assert_eq!(
        (layer.running(), layer.waiting(), streams.begun()),
        (1, 0, 2)
    );
}

#[tokio::test]
async fn a_run_counts_until_its_body_fails_or_is_dropped() {
    let streams = Streams::default();
    let layer = AdmissionLayer::new(1);
    let service = layer.layer(streams.clone());
    let mut body = admitted(&mut ask(&service, "a"));
    streams.of(0).send(Err("reset".into())).unwrap();
    assert!(assert_ready!(frame(&mut body)).unwrap().is_err());
    assert_eq!(layer.running(), 0);
    let body = admitted(&mut ask(&service, "a"));
    assert_eq!(layer.running(), 1);
    drop(body);
    assert_eq!((layer.running(), layer.tenants()), (0, 0));
}

#[tokio::test]
async fn each_tenant_has_its_own_limit() {
    let layer = AdmissionLayer::new(10).per_tenant(1).queue(0);
    let service = layer.layer(Streams::default());
    let _a = admitted(&mut ask(&service, "a"));
    assert_eq!(refused(&mut ask(&service, "a")).0, 429);
    let _b = admitted(&mut ask(&service, "b"));
    assert_eq!(refused(&mut ask(&service, "b")).0, 429);
}

#[tokio::test]
async fn a_full_server_answers_503() {
    let layer = AdmissionLayer::new(1).per_tenant(1).queue(0);
    let service = layer.layer(Streams::default());
    let _a = admitted(&mut ask(&service, "a"));
    assert_eq!(refused(&mut ask(&service, "b")), (503, "5".to_owned()));
}

#[tokio::test]
async fn a_tenant_at_its_limit_does_not_delay_others() {
    let layer = AdmissionLayer::new(2).per_tenant(1);
    let service = layer.layer(Streams::default());
    let a = admitted(&mut ask(&service, "a"));
    let mut again = ask(&service, "a");
    assert_pending!(again.poll());
    let _b = admitted(&mut ask(&service, "b"));
    let mut c = ask(&service, "c");
    assert_pending!(c.poll());
    // `a` arrived first, but `c` may run before it while `a` is at its limit.
    let mut b = ask(&service, "b");
    assert_pending!(b.poll());
    drop(a);
    assert!(again.is_woken() && !b.is_woken() && !c.is_woken());
    let again = admitted(&mut again);
    drop(again);
    assert!(c.is_woken() && !b.is_woken());
    let _c = admitted(&mut c);
}

#[tokio::test]
async fn both_queues_are_bounded() {
    let layer = AdmissionLayer::new(1).queue(3).queue_per_tenant(2);
    let service = layer.layer(Streams::default());
    let _running = admitted(&mut ask(&service, "a"));
    let mut waiting: Vec<_> = ["a", "a", "b"].map(|tenant| ask(&service, tenant)).into();
    for asked in &mut waiting {
        assert_pending!(asked.poll());
    }
    assert_eq!(layer.waiting(), 3);
    assert_eq!(refused(&mut ask(&service, "c")).0, 503);
    waiting.pop();
    assert_eq!(refused(&mut ask(&service, "a")).0, 429);
    assert_pending!(ask(&service, "c").poll());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_is_rejected_after_the_timeout() {
    let layer = AdmissionLayer::new(1)
        .per_tenant(1)
        .queue_timeout(Duration::from_secs(3))
        .retry_after(Duration::from_millis(7001));
    let service = layer.layer(Streams::default());
    let _running = admitted(&mut ask(&service, "a"));
    let (mut a, mut b) = (ask(&service, "a"), ask(&service, "b"));
    assert_pending!(a.poll());
    assert_pending!(b.poll());
    tokio::time::advance(Duration::from_millis(2999)).await;
    assert_pending!(a.poll());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(a.is_woken());
    assert_eq!(refused(&mut a), (429, "8".to_owned()));
    assert_eq!(refused(&mut b), (503, "8".to_owned()));
    assert_eq!((layer.waiting(), layer.tenants()), (0, 1));
}

#[tokio::test]
async fn a_dropped_request_releases_its_place() {
    let layer = AdmissionLayer::new(1);
    let service = layer.layer(Streams::default());

    // Before the first poll.
    drop(ask(&service, "a"));
    assert_eq!((layer.running(), layer.tenants()), (0, 0));
    // While waiting.
    let running = admitted(&mut ask(&service, "a"));
    let mut waits = ask(&service, "b");
    assert_pending!(waits.poll());
    drop(waits);
    assert_eq!((layer.waiting(), layer.tenants()), (0, 1));
    // After admission but before the next poll: the next request gets its place.
    let (mut first, mut second) = (ask(&service, "b"), ask(&service, "c"));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(running);
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    assert!(second.is_woken());
    drop(admitted(&mut second));
    assert_eq!((layer.running(), layer.tenants()), (0, 0));

    // Before the inner service is ready, and before it responds.
    let never = layer.layer(service_fn(|_: Request<()>| {
        pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    let mut asked = task::spawn(Box::pin(never.oneshot(of("a"))));
    assert_pending!(asked.poll());
    assert_eq!(layer.running(), 1);
    drop(asked);
    assert_eq!((layer.running(), layer.tenants()), (0, 0));
}

#[tokio::test]
async fn a_failed_request_releases_its_place() {
    let layer = AdmissionLayer::new(1);
    let fails = layer.layer(service_fn(async |_: Request<()>| {
        Err::<Response<Full<Bytes>>, _>("down")
    }));
    assert_eq!(fails.oneshot(of("a")).await.unwrap_err(), "down");
    assert_eq!((layer.running(), layer.tenants()), (0, 0));
}

#[tokio::test]
async fn a_waiting_request_stores_its_newest_waker() {
    let layer = AdmissionLayer::new(1);
    let service = layer.layer(Streams::default());
    let running = admitted(&mut ask(&service, "a"));
    let mut future = Box::pin(service.clone().oneshot(of("a")));
    let (mut first, mut second) = (task::spawn(()), task::spawn(()));
    assert_pending!(first.enter(|cx, _| future.as_mut().poll(cx)));
    assert_pending!(second.enter(|cx, _| future.as_mut().poll(cx)));
    drop(running);
    assert!(second.is_woken());
    assert!(second.enter(|cx, _| future.as_mut().poll(cx)).is_ready());
}

#[tokio::test]
async fn the_host_determines_the_tenant() {
    let layer = AdmissionLayer::new(10)
        .per_tenant(1)
        .queue(0)
        .tenant(|parts| Tenant(parts.uri.path().into()));
    let service = layer.layer(Streams::default());
    let request = |path: &str| Request::get(path).body(()).unwrap();
    let first = service.clone().oneshot(request("/a")).await.unwrap();
    let status = async |path| {
        service
            .clone()
            .oneshot(request(path))
            .await
            .unwrap()
            .status()
    };
    assert_eq!(status("/a").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("/b").await, StatusCode::OK);
    drop(first);
    assert_eq!(status("/a").await, StatusCode::OK);
}

#[tokio::test]
async fn requests_without_a_tenant_share_one() {
    let layer = AdmissionLayer::new(10).per_tenant(1).queue(0);
    let service = layer.layer(Streams::default());
    let ask = || service.clone().oneshot(Request::new(()));
    let _running = ask().await.unwrap();
    // The limit is shared, so the caller is not at fault.
    let refused = ask().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let named = service.clone().oneshot(of("a")).await.unwrap();
    assert_eq!(named.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_tenant_are_rejected_with_503() {
    let layer = AdmissionLayer::new(1).queue_per_tenant(1);
    let service = layer.layer(Streams::default());
    let ask = || service.clone().oneshot(Request::new(()));
    let _running = ask().await.unwrap();
    let mut waits = task::spawn(ask());
    assert_pending!(waits.poll());
    let refused = ask().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let late = waits.await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
}
