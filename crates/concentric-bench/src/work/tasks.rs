//! W6: runs as tasks, each of which has yielded its first chunk and waits for the model.

use super::{
    counters,
    script::{BareModel, CHUNK, Model, Script},
    stream::{agent, bare_model, count},
};
use crate::{bare, measure::heap};
use concentric_core::{AgentLayer, ChatRequest, Error, Event, ModelService, NoTools};
use concentric_layers::inspect_events;
use futures_core::Stream;
use std::{future::poll_fn, pin::pin};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tower::{ServiceBuilder, ServiceExt};
use tower_service::Service;

const RUNS: u64 = 10_000;
const WARM_UP: u64 = 200;

/// Returns the heap use of a task in bytes.
fn bytes<F: Future<Output = ()> + 'static>(start: impl Fn() -> F) -> f64 {
    counters::reset();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let tasks = LocalSet::new();
    let spawn = |runs: u64| {
        tasks.block_on(&runtime, async {
            for _ in 0..runs {
                spawn_local(start());
            }
            // Each turn of the set polls a limited number of its tasks.
            for _ in 0..RUNS {
                yield_now().await;
            }
        });
    };
    spawn(WARM_UP);
    let bytes = heap::kept(|| spawn(RUNS));
    counters::assert(5, (WARM_UP + RUNS) * CHUNK as u64, 0);
    bytes as f64 / RUNS as f64
}

async fn run<S>(mut agent: S)
where
    S: ModelService<Error = Error>,
{
    let agent = agent.ready().await.expect("the agent is ready");
    let response = agent.call(ChatRequest::user("hi")).await;
    let mut body = pin!(response.expect("the run must not fail").body);
    while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        if let Event::TextDelta(text) = event.expect("the run must not fail") {
            assert_eq!(text.len(), CHUNK);
        }
    }
}

async fn run_bare<S, B>(mut agent: S)
where
    S: Service<bare::Request, Response = B, Error = bare::Error>,
    B: Stream<Item = Result<bare::Event, bare::Error>>,
{
    let agent = agent.ready().await.expect("the agent is ready");
    let response = agent.call(bare::Request::user("hi")).await;
    let mut body = pin!(response.expect("the run must not fail"));
    while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        if let bare::Event::Text(text) = event.expect("the run must not fail") {
            assert_eq!(text.len(), CHUNK);
        }
    }
}

pub(crate) fn concentric() -> f64 {
    let agent = agent!(Script::Wait, 0, 1, 2, 3, 4);
    bytes(|| run(agent.clone()))
}

pub(crate) fn bare() -> f64 {
    let agent = bare_model!(Script::Wait, 0, 1, 2, 3, 4);
    bytes(|| run_bare(agent.clone()))
}
