//! The state shared with a client's application: concurrent updates, and the events sent for them.

use crate::support::{Asked, Item, finish, input, post, send};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_http::ag_ui::{AgUiLayer, AgUiState, StateError};
use futures_util::stream;
use serde_json::{Value, json};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tower::{Layer, service_fn};

/// The state handle of a run with this input state.
async fn state_of(value: Value) -> AgUiState {
    let asked = Asked::default();
    let mut input = input();
    input["state"] = value;
    let service = AgUiLayer::new().layer(asked.agent());
    send(service, post(input.to_string())).await.events();
    let context = asked.take().context;
    context.extensions().get::<AgUiState>().unwrap().clone()
}

/// Fails if `work` blocks its thread.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    let answer = wait.recv_timeout(Duration::from_secs(20));
    answer.expect("the thread is blocked")
}

#[tokio::test]
async fn a_change_may_read_the_state() {
    let state = state_of(json!({"n": 1})).await;
    let changed = state.clone();
    let got = in_time(move || {
        let inner = state.clone();
        state.update(move |value| {
            assert_eq!(inner.get()["n"], 1);
            assert!(format!("{inner:?}").contains("\"n\""));
            value["n"] = 2.into();
        })
    });
    assert_eq!(got.unwrap()["n"], 2);
    assert_eq!(changed.get()["n"], 2);
}

#[tokio::test]
async fn a_change_may_update_the_state() {
    let state = state_of(json!({})).await;
    let got = in_time(move || {
        let inner = state.clone();
        state.update(move |value| {
            inner.update(|value| value["inner"] = true.into()).unwrap();
            value["outer"] = true.into();
        })
    });
    // Neither change is lost.
    assert_eq!(*got.unwrap(), json!({"inner": true, "outer": true}));
}

#[tokio::test]
async fn a_change_that_never_settles_is_an_error() {
    let state = state_of(json!({"n": 0})).await;
    let got = in_time(move || {
        let inner = state.clone();
        let mut tries = 0;
        let got = state.update(|value| {
            tries += 1;
            let _ = inner.update(|value| value["n"] = tries.into());
            value["mine"] = true.into();
        });
        (got, tries)
    });
    let (Err(StateError::Contended | StateError::NotSent(_)), tries) = got else {
        panic!("{got:?}")
    };
    assert!(tries <= 1024);
}

#[tokio::test]
async fn concurrent_changes_are_all_applied() {
    let state = state_of(json!({"n": 0})).await;
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let state = state.clone();
            thread::spawn(move || {
                for _ in 0..20 {
                    let change = |value: &mut Value| {
                        value["n"] = (value["n"].as_u64().unwrap() + 1).into();
                    };
                    state.update(change).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(state.get()["n"], 160);
}

#[tokio::test]
async fn a_panicking_change_leaves_the_state_unchanged() {
    let state = state_of(json!({"n": 1})).await;
    let panics = state.clone();
    let panicked = thread::spawn(move || {
        let _ = panics.update(|value| {
            value["n"] = 2.into();
            panic!("no");
        });
    });
    assert!(panicked.join().is_err());
    assert_eq!(state.get()["n"], 1);
    assert!(state.update(|value| value["n"] = 3.into()).is_ok());
}

// ---- events ----

/// The events for a sequence of states.
async fn sent(states: &[Value]) -> Vec<Value> {
    let states: Vec<Item> = states
        .iter()
        .map(|state| Ok(Event::State(Arc::new(state.clone()))))
        .chain([Ok(finish())])
        .collect();
    let events = crate::support::events(states).await;
    let is_state = |event: &Value| event["type"].as_str().unwrap().starts_with("STATE");
    events.into_iter().filter(is_state).collect()
}

#[tokio::test]
async fn a_patch_contains_only_the_changes() {
    let before = json!({"a/b": {"~": [1, 2, 3, {"x": 1}]}, "gone": 1, "same": [0]});
    let after = json!({"a/b": {"~": [1, 5]}, "same": [0], "new": null});
    let events = sent(&[before, after]).await;
    let mut delta = events[1]["delta"].as_array().unwrap().clone();
    delta.sort_by_key(Value::to_string);
    let mut expected = [
        json!({"op": "replace", "path": "/a~1b/~0/1", "value": 5}),
        json!({"op": "remove", "path": "/a~1b/~0/2"}),
        json!({"op": "remove", "path": "/a~1b/~0/2"}),
        json!({"op": "remove", "path": "/gone"}),
        json!({"op": "add", "path": "/new", "value": null}),
    ];
    expected.sort_by_key(Value::to_string);
    assert_eq!(delta, expected);
}

#[tokio::test]
async fn a_patch_is_not_much_longer_than_the_state() {
    // Each operation repeats its path, so under a long key a patch grows with the product.
    let long = "k".repeat(100_000);
    let state = |n: u64| {
        let fields: Value = (0..10_000)
            .map(|at| (format!("f{at}"), Value::from(n)))
            .collect();
        json!({(&long): fields})
    };
    let service = |states: Vec<Value>| async move {
        let events: Vec<Item> = states
            .into_iter()
            .map(|state| Ok(Event::State(Arc::new(state))))
            .chain([Ok(finish())])
            .collect();
        let agent = service_fn(move |_: ChatRequest| {
            let events = events.clone();
            async move { Ok::<_, Error>(ChatResponse::new(stream::iter(events))) }
        });
        let service = AgUiLayer::new().layer(agent);
        send(service, post(input().to_string())).await.body.len()
    };
    let one = service(vec![state(1)]).await;
    let two = service(vec![state(1), state(2)]).await;
    assert!(two < 3 * one, "{one} and then {two} bytes");
}
