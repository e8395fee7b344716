//! The state that a run shows: a client that applies what it is sent has the run's.
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event, FinishReason, Usage};
use concentric_fuzz::{Json, block_on, events};
use concentric_http::ag_ui::AgUiLayer;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use std::{future::ready, sync::Arc};
use tower::{Layer, ServiceExt, service_fn};

pub(crate) fn run(states: Vec<Json>) {
    let states: Vec<Value> = states.iter().take(16).map(Json::value).collect();
    let agent = {
        let states = states.clone();
        service_fn(move |_: ChatRequest| {
            let states = states.clone().into_iter();
            let mut items: Vec<_> = states
                .map(|state| Ok(Event::State(Arc::new(state))))
                .collect();
            items.push(Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))));
            let body = futures_util::stream::iter(items);
            ready(Ok::<_, Error>(ChatResponse::new(body)))
        })
    };
    let body =
        r#"{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":"a"}]}"#;
    let request = http::Request::post("/")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .expect("a request");
    let body = block_on(async {
        let Ok(response) = AgUiLayer::new()
            .keep_alive(None)
            .layer(agent)
            .oneshot(request)
            .await;
        let Ok(body) = response.into_body().collect().await;
        body.to_bytes()
    });
    let mut client = Value::Null;
    let mut shown = states.iter();
    for event in events(&body) {
        match event["type"].as_str() {
            Some("STATE_SNAPSHOT") => client = event["snapshot"].clone(),
            Some("STATE_DELTA") => {
                let delta = event["delta"].clone();
                let patch: json_patch::Patch = serde_json::from_value(delta).expect("a patch");
                json_patch::patch(&mut client, &patch).expect("a patch of the state");
            }
            _ => continue,
        }
        // A state that is as it was is not shown.
        assert!(shown.any(|state| *state == client), "no state: {client}");
    }
    if let Some(last) = states.last() {
        assert_eq!(client, *last);
    }
}
