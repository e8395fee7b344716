//! The limit on concurrent responses, with a limit of one.

use super::source::InFlightLimitLayer;
use crate::{block_on, poll_once};
use concentric_core::{ChatRequest, ChatResponse, Error, Event, FinishReason, Usage};
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use loom::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};
use std::{pin::pin, sync::Arc};
use tower::Service;
use tower_layer::Layer;

/// A response body in progress.
struct Arriving(Arc<AtomicUsize>);

impl Arriving {
    fn new(arriving: &Arc<AtomicUsize>) -> Self {
        assert_eq!(
            arriving.fetch_add(1, Ordering::SeqCst),
            0,
            "two concurrent responses"
        );
        Self(Arc::clone(arriving))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A model behind the limit, which fails if two of its responses are in progress.
#[derive(Clone)]
struct Model {
    layer: InFlightLimitLayer,
    arriving: Arc<AtomicUsize>,
}

impl Model {
    fn new(layer: InFlightLimitLayer) -> Self {
        let arriving = Arc::new(AtomicUsize::new(0));
        Self { layer, arriving }
    }

    fn call(
        &self,
    ) -> impl Future<Output = Result<impl Stream<Item = Result<Event, Error>> + use<>, Error>> + use<>
    {
        let arriving = Arc::clone(&self.arriving);
        let model = tower::service_fn(move |_: ChatRequest| {
            let arriving = Arriving::new(&arriving);
            async move {
                Ok::<_, Error>(ChatResponse::new(Box::pin(stream::once(async move {
                    drop(arriving);
                    Ok(Event::finish(FinishReason::Stop, Usage::default()))
                }))))
            }
        });
        let answer = self.layer.layer(model).call(ChatRequest::user("hi"));
        async move { answer.await.map(|answer| answer.body) }
    }

    /// Calls the model, and reads the whole response.
    fn read(&self) {
        let mut body = pin!(block_on(self.call()).unwrap());
        assert!(block_on(body.next()).is_some());
    }
}

pub(crate) fn one_response_at_a_time() {
    let model = Model::new(InFlightLimitLayer::new(1));
    let readers = [model.clone(), model.clone()].map(|model| thread::spawn(move || model.read()));
    model.read();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(model.layer.available(), 1);
}

pub(crate) fn a_dropped_waiter_passes_on_its_turn() {
    let model = Model::new(InFlightLimitLayer::new(1));
    let mut first = block_on(model.call()).unwrap();
    let leaver = thread::spawn({
        let model = model.clone();
        move || {
            let _ = poll_once(pin!(model.call())).is_pending();
        }
    });
    let reader = thread::spawn({
        let model = model.clone();
        move || model.read()
    });
    assert!(block_on(first.next()).is_some());
    leaver.join().unwrap();
    reader.join().unwrap();
    assert_eq!(model.layer.available(), 1);
}

pub(crate) fn the_queue_is_bounded() {
    let model = Model::new(InFlightLimitLayer::new(1).queue(1));
    let first = block_on(model.call()).unwrap();
    let callers = [model.clone(), model.clone()].map(|model| {
        thread::spawn(move || {
            let mut call = Box::pin(model.call());
            let waits = poll_once(call.as_mut()).is_pending();
            (waits, call)
        })
    });
    let calls = callers.map(|caller| caller.join().unwrap());
    assert_eq!(calls.iter().filter(|(waits, _)| *waits).count(), 1);
    drop(calls);
    assert!(poll_once(pin!(model.call())).is_pending());
    drop(first);
    assert_eq!(model.layer.available(), 1);
}
