//! W6: a tool changes one field of a large AG-UI state 101 times before the stream is written.
//!
//! Bare: the state is parsed, changed in place and written once.

use super::drive::block_on;
use crate::measure::heap;
use bytes::Bytes;
use concentric_core::{
    AgentLayer, ChatRequest, ChatResponse, Error, Event, FinishReason, NoTools, Usage,
};
use concentric_http::{
    ClientPolicy,
    ag_ui::{AgUiLayer, AgUiState},
};
use futures_util::stream;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    hint::black_box,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tower::{ServiceBuilder, ServiceExt, service_fn};

/// The size of the state as JSON, in bytes.
const SIZE: usize = 800_000;

const UPDATES: u64 = 101;

/// A request with the state.
static INPUT: LazyLock<Bytes> = LazyLock::new(|| {
    let item =
        |n| json!({"id": n, "name": format!("item {n}"), "done": n % 2 == 0, "tags": ["a", "b"]});
    let len = item(1_000).to_string().len() + 1;
    let items: Vec<Value> = (0..SIZE / len).map(item).collect();
    let input = json!({
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "u", "role": "user", "content": "hi"}],
        "state": {"items": items, "n": 0},
    });
    input.to_string().into()
});

/// The heap bytes in use after the updates, relative to those before the request.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Returns the heap bytes that a run holds after the updates.
pub(crate) fn held(side: fn(u64)) -> f64 {
    side(1);
    side(1);
    HELD.load(Relaxed) as f64
}

pub(crate) fn concentric(count: u64) {
    let model = service_fn(async |request: ChatRequest| {
        let state = request.context.extensions().get::<AgUiState>();
        let state = state.expect("the request has a state");
        for n in 1..=UPDATES {
            let updated = state.update_at("/n", |value| *value = n.into());
            updated.expect("the state may be updated");
        }
        HELD.store(heap::in_use(), Relaxed);
        let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
        Ok::<_, Error>(ChatResponse::new(stream::iter([Ok::<_, Error>(finish)])))
    });
    let service = ServiceBuilder::new()
        .layer(AgUiLayer::new().client_policy(ClientPolicy::new().max_values(usize::MAX)))
        .layer(AgentLayer::new(NoTools))
        .service(model);
    for _ in 0..count {
        let request = Request::post("/agent")
            .header("content-type", "application/json")
            .body(Full::new(INPUT.clone()))
            .expect("a valid request");
        let before = heap::in_use();
        let body = block_on(async {
            let response = service.clone().oneshot(request).await;
            let body = response.expect("a response").into_body().collect().await;
            body.expect("a response").to_bytes()
        });
        HELD.store(HELD.load(Relaxed).saturating_sub(before), Relaxed);
        check(&body);
    }
}

pub(crate) fn bare(count: u64) {
    for _ in 0..count {
        let before = heap::in_use();
        let mut input: Value = serde_json::from_slice(&INPUT).expect("valid JSON");
        for n in 1..=UPDATES {
            if let Some(value) = input.pointer_mut("/state/n") {
                *value = black_box(n).into();
            }
        }
        HELD.store(heap::in_use().saturating_sub(before), Relaxed);
        check(input.to_string().as_bytes());
    }
}

fn check(body: &[u8]) {
    assert!(memchr::memmem::find(body, br#""n":101}"#).is_some());
}
