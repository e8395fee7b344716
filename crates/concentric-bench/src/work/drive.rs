//! The consumer: starts runs, reads each to its end, and asserts its output.

use crate::bare;
use concentric_core::{ChatRequest, Error, Event, ModelService};
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};
use tower::ServiceExt;
use tower_service::Service;

/// The output of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) text_bytes: u64,
    pub(crate) results: u64,
    pub(crate) result_bytes: u64,
    pub(crate) finishes: u64,
}

/// Polls `future` until it is ready. Nothing in the workload waits, so no wakeup is needed.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// Executes `count` runs of `agent`, and asserts the output of each.
pub(crate) fn concentric<S>(mut agent: S, count: u64, expected: Seen)
where
    S: ModelService<Error = Error>,
{
    for _ in 0..count {
        let seen = block_on(async {
            let request = ChatRequest::user("hi");
            let response = agent.ready().await?.call(request).await?;
            let mut body = pin!(response.body);
            read::<S>(body.as_mut()).await
        });
        assert_eq!(seen.expect("the run must not fail"), expected);
    }
}

/// Generic in the service, so that it has one caller: a body is inlined into it as into a layer.
async fn read<S>(mut body: Pin<&mut S::Body>) -> Result<Seen, Error>
where
    S: ModelService,
{
    let mut seen = Seen::default();
    loop {
        match poll_fn(|cx| body.as_mut().poll_next(cx)).await {
            Some(Ok(Event::TextDelta(text))) => seen.text_bytes += text.len() as u64,
            Some(Ok(Event::ToolResult(result))) => {
                seen.results += 1;
                seen.result_bytes += result.outcome.content.text().len() as u64;
            }
            Some(Ok(Event::Finish(_))) => seen.finishes += 1,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Ok(seen),
        }
    }
}

/// Executes `count` runs of a bare agent, and asserts the output of each.
pub(crate) fn bare<S, B>(mut agent: S, count: u64, expected: Seen)
where
    S: Service<bare::Request, Response = B, Error = bare::Error>,
    B: Stream<Item = Result<bare::Event, bare::Error>>,
{
    for _ in 0..count {
        let seen = block_on(async {
            let request = bare::Request::user("hi");
            let mut body = pin!(agent.ready().await?.call(request).await?);
            read_bare(body.as_mut()).await
        });
        assert_eq!(seen.expect("the run must not fail"), expected);
    }
}

async fn read_bare<B>(mut body: Pin<&mut B>) -> Result<Seen, bare::Error>
where
    B: Stream<Item = Result<bare::Event, bare::Error>>,
{
    let mut seen = Seen::default();
    loop {
        match poll_fn(|cx| body.as_mut().poll_next(cx)).await {
            Some(Ok(bare::Event::Text(text))) => seen.text_bytes += text.len() as u64,
            Some(Ok(bare::Event::Result(result))) => {
                seen.results += 1;
                seen.result_bytes += result.content.len() as u64;
            }
            Some(Ok(bare::Event::Finish)) => seen.finishes += 1,
            Some(Ok(bare::Event::Call(_))) => {}
            Some(Err(error)) => return Err(error),
            None => return Ok(seen),
        }
    }
}
