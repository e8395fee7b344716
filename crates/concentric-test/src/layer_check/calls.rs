//! The calls that the checks make, and how they fail.

use crate::{ScriptedModel, Strict};
use concentric_core::{ChatRequest, ChatResponse, Error, ErrorKind, Event, service::SharedModel};
use futures_util::{
    Stream,
    future::{Either, select},
};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};
use tokio::time::sleep;
use tower::util::Oneshot;
use tower_layer::Layer;

pub(super) const ANSWER: [&str; 3] = ["Hello. ", "It is ", "me."];

pub(super) fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

pub(super) fn broken() -> Error {
    // A kind that no policy retries.
    Error::new(ErrorKind::InvalidRequest, "this is wrong").with_code("E7")
}

#[track_caller]
pub(super) fn assert_same(error: &Error) {
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::InvalidRequest, Some("E7")),
        "the layer replaced the error: {error:?}"
    );
}

pub(super) fn call<L>(layer: &L, model: &ScriptedModel) -> Oneshot<L::Service, ChatRequest>
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    Oneshot::new(layer.layer(Strict::new(model.clone())), request())
}

pub(super) async fn finish<B, E>(result: Result<ChatResponse<B>, E>)
where
    B: Stream<Item = Result<Event, Error>>,
    E: Into<concentric_core::BoxError>,
{
    match result {
        Ok(response) => {
            crate::assert_finishes(response.body).await;
        }
        Err(error) => fail(&format!("the call failed: {}", Error::from(error.into()))),
    }
}

#[track_caller]
#[expect(clippy::panic, reason = "an assertion")]
pub(super) fn fail(message: &str) -> ! {
    panic!("{message}")
}

/// The time limit of a check, by the clock of the runtime.
const LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn in_time(what: &str, check: impl Future<Output = ()>) {
    // The timeout is polled first, so that its own wakeup does not drive the check.
    if let Either::Left(_) = select(pin!(sleep(LIMIT)), pin!(check)).await {
        fail(&format!("{what}: the check timed out; was a wakeup lost?"));
    }
}

/// Lets tasks that a layer has spawned run.
pub(super) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// Polls `future` at most 32 times, and lets other tasks run in between.
pub(super) async fn for_a_while<F>(mut future: F) -> Option<F::Output>
where
    F: Future + Unpin,
{
    for _ in 0..32 {
        let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
        if let Poll::Ready(output) = poll {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}
