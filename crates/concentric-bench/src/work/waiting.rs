//! W4a: runs that have yielded their first chunk and wait for the model.

use super::{
    counters,
    script::{BareModel, CHUNK, Model, Script},
    stream,
};
use crate::{bare, measure::heap};
use concentric_core::{AgentLayer, ChatRequest, Error, Event, ModelService, NoTools};
use concentric_layers::inspect_events;
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Waker},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_service::Service;

const RUNS: u64 = 10_000;
const WARM_UP: u64 = 200;

type Run = Pin<Box<dyn Future<Output = ()>>>;

/// Returns the heap use of one waiting run in bytes, including the future that reads the run.
fn bytes(layers: usize, start: impl Fn() -> Run) -> f64 {
    counters::reset();
    let mut cx = Context::from_waker(Waker::noop());
    let mut wait = |runs: u64| -> Vec<Run> {
        (0..runs)
            .map(|_| {
                let mut run = start();
                assert!(run.as_mut().poll(&mut cx).is_pending());
                run
            })
            .collect()
    };
    drop(wait(WARM_UP));
    let mut runs = Vec::new();
    let bytes = heap::kept(|| runs = wait(RUNS));
    counters::assert(layers, (WARM_UP + RUNS) * CHUNK as u64, 0);
    // The list of runs belongs to the benchmark.
    (bytes as f64 - (runs.capacity() * size_of::<Run>()) as f64) / RUNS as f64
}

fn concentric<S>(agent: &S) -> Run
where
    S: ModelService<Error = Error> + Clone + 'static,
{
    let mut agent = agent.clone();
    Box::pin(async move {
        let request = ChatRequest::user("hi");
        let response = match agent.ready().await {
            Ok(agent) => agent.call(request).await,
            Err(error) => Err(error),
        };
        let mut body = pin!(response.expect("the run must not fail").body);
        while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
            if let Event::TextDelta(text) = event.expect("the run must not fail") {
                assert_eq!(text.len(), CHUNK);
            }
        }
    })
}

fn bare<S, B>(model: &S) -> Run
where
    S: Service<bare::Request, Response = B, Error = bare::Error> + Clone + 'static,
    B: Stream<Item = Result<bare::Event, bare::Error>>,
{
    let mut model = model.clone();
    Box::pin(async move {
        let request = bare::Request::user("hi");
        let response = match model.ready().await {
            Ok(model) => model.call(request).await,
            Err(error) => Err(error),
        };
        let mut body = pin!(response.expect("the run must not fail"));
        while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
            if let bare::Event::Text(text) = event.expect("the run must not fail") {
                assert_eq!(text.len(), CHUNK);
            }
        }
    })
}

macro_rules! sides {
    ($name:ident, $k:literal $(, $i:literal)*) => {
        pub(crate) mod $name {
            #[allow(unused_imports, reason = "there may be no layers")]
            use super::{
                stream::{agent, bare_model, count},
                *,
            };

            pub(crate) fn concentric() -> f64 {
                let agent = agent!(Script::Wait $(, $i)*);
                bytes($k, || super::concentric(&agent))
            }

            pub(crate) fn bare() -> f64 {
                let model = bare_model!(Script::Wait $(, $i)*);
                bytes($k, || super::bare(&model))
            }
        }
    };
}

sides!(k0, 0);
sides!(k5, 5, 0, 1, 2, 3, 4);
