//! The state shared with a client's application: concurrent updates, and the events sent for them.

use crate::support::{Asked, Item, finish, input, post, real, send};
use axum::Router;
use concentric_core::{
    AgentLayer, ChatRequest, ChatResponse, CustomEvent, EmitError, Error, Event, NoTools,
};
use concentric_http::ag_ui::{AgUiLayer, AgUiState, StateError};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, mpsc},
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

#[tokio::test]
async fn an_update_at_a_path_changes_only_that_value() {
    let state = state_of(json!({"cart": {"n": 1}, "log": ["a"], "user": "u"})).await;
    let add = |n: &mut Value| *n = (n.as_u64().unwrap() + 1).into();
    assert_eq!(state.update_at("/cart/n", add).unwrap()["cart"]["n"], 2);
    state.update_at("/log/-", |new| *new = "b".into()).unwrap();
    state.update_at("/seen/at", |at| *at = 5.into()).unwrap();
    let expected = json!({"cart": {"n": 2}, "log": ["a", "b"], "user": "u", "seen": {"at": 5}});
    assert_eq!(*state.get(), expected);
    let got = state.update_at("/user/name", |name| *name = 1.into());
    assert_eq!(got, Err(StateError::NoSuchPath));
    assert_eq!(*state.get(), expected);
}

#[tokio::test]
async fn a_state_of_a_caller_is_never_changed() {
    let state = state_of(json!({"n": 1})).await;
    let before = state.get();
    state.update_at("/n", |n| *n = 2.into()).unwrap();
    assert_eq!(before["n"], 1);
    assert_eq!(state.get()["n"], 2);
}

#[tokio::test]
async fn the_limit_applies_to_the_whole_state() {
    let asked = Asked::default();
    let mut input = input();
    input["state"] = json!({"a": "12345", "n": 0});
    let service = AgUiLayer::new().state_limit(25).layer(asked.agent());
    send(service, post(input.to_string())).await.events();
    let context = asked.take().context;
    let state = context.extensions().get::<AgUiState>().unwrap();
    for n in 0..1000 {
        state.update_at("/n", |value| *value = n.into()).unwrap();
    }
    state.update_at("/b", |b| *b = 1.into()).unwrap_err();
    state.update_at("/n", |n| *n = 1.into()).unwrap();
    state.update_at("/b", |b| *b = 1.into()).unwrap();
    assert_eq!(state.get().to_string().len(), 25);
}

#[tokio::test]
async fn a_state_that_cannot_be_sent_is_unchanged() {
    let handle = Arc::new(Mutex::new(None));
    let kept = handle.clone();
    let model = service_fn(move |request: ChatRequest| {
        let state = request.context.extensions().get::<AgUiState>().cloned();
        *kept.lock().unwrap() = state;
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(vec![Ok(finish()) as Item]))) }
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    crate::support::run(agent, &input()).await;
    let state: AgUiState = handle.lock().unwrap().take().unwrap();
    let got = state.update_at("/n", |n| *n = 1.into());
    assert_eq!(got, Err(StateError::NotSent(EmitError::Ended)));
    assert_eq!(*state.get(), Value::Null);
}

// ---- events ----

#[tokio::test]
async fn unread_updates_are_sent_as_one() {
    let model = service_fn(async |request: ChatRequest| {
        let state = request.context.extensions().get::<AgUiState>().unwrap();
        for n in 0..101 {
            state.update_at("/n", |value| *value = n.into()).unwrap();
        }
        let note = Event::Custom(Box::new(CustomEvent::new("note", json!(1))));
        request.context.emit(note).unwrap();
        for n in 0..101 {
            state
                .update_at("/n", |value| *value = (n * 2).into())
                .unwrap();
        }
        Ok::<_, Error>(ChatResponse::new(stream::iter(vec![Ok(finish()) as Item])))
    });
    let mut input = input();
    input["state"] = json!({"n": null, "rest": "r".repeat(1000)});
    let agent = AgentLayer::new(NoTools).layer(model);
    let events = crate::support::run(agent, &input).await;
    let types: Vec<&str> = crate::support::types(&events)
        .into_iter()
        .filter(|of| of.starts_with("STATE") || *of == "CUSTOM")
        .collect();
    assert_eq!(types, ["STATE_SNAPSHOT", "CUSTOM", "STATE_DELTA"]);
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    let snapshot = json!({"n": 100, "rest": "r".repeat(1000)});
    assert_eq!(of("STATE_SNAPSHOT")["snapshot"], snapshot);
    let delta = json!([{"op": "replace", "path": "/n", "value": 200}]);
    assert_eq!(of("STATE_DELTA")["delta"], delta);
}

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

#[tokio::test]
async fn the_unmodified_client_has_the_final_state() {
    let Some(dir) = real::clients() else { return };
    let model = service_fn(async |request: ChatRequest| {
        let body = async_updates(request);
        Ok::<_, Error>(ChatResponse::new(Box::pin(body)))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let app = Router::new().route_service("/agent", AgUiLayer::new().layer(agent));
    let url = format!("http://{}/agent", real::serve(app).await);
    real::node(&dir, &["state.mjs", &url]).await;
}

/// Changes the state several times, with pauses, and emits the final state as a custom event.
fn async_updates(request: ChatRequest) -> impl Stream<Item = Item> + Send {
    type Change = fn(&AgUiState) -> Result<Arc<Value>, StateError>;
    let changes: [Change; 7] = [
        |state| state.update(|value| *value = json!({"a/b": {"~": [1, 2]}, "log": [], "n": 0})),
        |state| state.update_at("/a~1b/~0/1", |value| *value = json!({"x": null})),
        |state| state.update_at("/log/-", |value| *value = "first".into()),
        |state| state.update_at("/log/-", |value| *value = "second".into()),
        |state| state.update_at("/new/\u{e9}", |value| *value = json!([[]])),
        |state| {
            state.update_at("/a~1b/~0", |value| {
                drop(value.as_array_mut().unwrap().remove(0))
            })
        },
        |state| state.update(|value| drop(value.as_object_mut().unwrap().remove("n"))),
    ];
    let context = request.context;
    let changes = stream::iter(changes.into_iter().map(Some).chain([None]));
    changes.then(move |change| {
        let context = context.clone();
        async move {
            let state = context.extensions().get::<AgUiState>().unwrap();
            match change {
                Some(change) => drop(change(state).unwrap()),
                None => {
                    let value = Value::clone(&state.get());
                    let done = Event::Custom(Box::new(CustomEvent::new("state", value)));
                    context.emit(done).unwrap();
                    return Ok(finish());
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(Event::text("."))
        }
    })
}
