//! Responses in the background.

use super::{
    approvals::{one, paying},
    responses::rebuild,
    stored::{Broken, Fault, echo, get, id, of, text, to},
    streams::{Driven, poll_once},
    *,
};
use crate::ag_ui_threads::shared::Faulty;
use concentric_core::{
    ThreadId,
    store::{EventKey, EventStore, Tenant, ThreadStore},
};
use concentric_http::Shutdown;
use concentric_store::MemoryStore;
use concentric_test::TestEnvironment;
use std::time::Duration;

fn background(fields: Value) -> http::Request<Full<Bytes>> {
    response(with(json!({"background": true}), fields))
}

fn events(id: &str, after: impl Into<Option<usize>>) -> http::Request<Full<Bytes>> {
    let after = after.into().map(|after| format!("&starting_after={after}"));
    let after = after.unwrap_or_default();
    get(&format!("{id}?stream=true{after}"))
}

fn cancel(id: &str) -> http::Request<Full<Bytes>> {
    to("POST", &format!("/responses/{id}/cancel"))
}

fn delete(id: &str) -> http::Request<Full<Bytes>> {
    to("DELETE", &format!("/responses/{id}"))
}

/// Lets the tasks run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The response once it has ended.
async fn ended(api: &OpenAi, id: &str) -> Value {
    for _ in 0..10_000 {
        let response = send(api, get(id)).await.json();
        if response["status"] != "in_progress" {
            return response;
        }
        tokio::task::yield_now().await;
    }
    panic!("{id} does not end");
}

/// A server over a store, with a clock.
fn process(driven: &Driven, store: &(impl ThreadStore + Clone), test: &TestEnvironment) -> OpenAi {
    let api = driven.api().threads(store.clone());
    api.environment(test.environment())
}

/// Starts a response, which has not ended.
async fn start(api: &OpenAi, fields: Value) -> String {
    let reply = send(api, background(fields)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let live = reply.json();
    let fields = ["status", "background", "store", "output", "error"].map(|field| &live[field]);
    let expected = [
        &json!("in_progress"),
        &json!(true),
        &json!(true),
        &json!([]),
        &json!(null),
    ];
    assert_eq!(fields, expected);
    id(&live)
}

fn number(event: &Value) -> usize {
    usize::try_from(event["sequence_number"].as_u64().unwrap()).unwrap()
}

#[tokio::test]
async fn a_background_response_is_polled_to_its_end() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let id = start(&api, json!({})).await;
    let live = send(&api, get(&id)).await.json();
    assert_eq!(live["status"], "in_progress");
    // It has no result to continue.
    let next = json!({"previous_response_id": id, "input": "more"});
    let reply = send(&api, response(next.clone())).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("previous_response_id"))
    );
    driven.emit(0, Event::text("done"));
    driven.emit(0, finish());
    let done = ended(&api, &id).await;
    assert_eq!(
        (&done["status"], text(&done)),
        (&json!("completed"), "done")
    );
    assert_eq!(done["usage"]["total_tokens"], 15);
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 1);
    // Its events were not requested.
    assert_eq!(send(&api, events(&id, None)).await.status, 400);
    let next = tokio::spawn({
        let api = api.clone();
        async move { send(&api, response(next)).await.json() }
    });
    settle().await;
    driven.emit(1, finish());
    assert_eq!(next.await.unwrap()["previous_response_id"], id);
}

#[tokio::test]
async fn a_background_response_continues_another() {
    let api = OpenAi::new().model("m", echo()).threads(MemoryStore::new());
    let first = start(&api, json!({})).await;
    ended(&api, &first).await;
    let second = start(&api, json!({"input": "two", "previous_response_id": first})).await;
    let second = ended(&api, &second).await;
    assert_eq!(text(&second), "User:hi|Assistant:User:hi|User:two");
    let fields = json!({"input": "end", "previous_response_id": id(&second)});
    let third = send(&api, response(fields)).await.json();
    let expected = format!(
        "User:hi|Assistant:User:hi|User:two|Assistant:{}|User:end",
        text(&second)
    );
    assert_eq!(text(&third), expected);
}

#[tokio::test]
async fn a_background_response_needs_a_store() {
    let driven = Driven::default();
    for (api, fields) in [
        (driven.api(), json!({})),
        (
            driven.api().threads(MemoryStore::new()),
            json!({"store": false}),
        ),
    ] {
        for is_streamed in [false, true] {
            let fields = with(fields.clone(), json!({"stream": is_streamed}));
            let reply = send(&api, background(fields)).await;
            assert_eq!(
                (reply.status, &reply.error()["param"]),
                (400, &json!("background"))
            );
        }
    }
    assert_eq!(driven.runs(), 0);
}

#[tokio::test]
async fn events_are_resumed_without_gap_or_repeat() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let mut stream = open(&api, background(json!({"stream": true}))).await;
    let first = next(&mut stream).await.unwrap().unwrap();
    assert!(first.starts_with("event: response.created\n"), "{first}");
    let response: Value = serde_json::from_str(
        first
            .lines()
            .nth(1)
            .unwrap()
            .strip_prefix("data: ")
            .unwrap(),
    )
    .unwrap();
    let id = id(&response["response"]);
    settle().await;
    driven.emit(0, Event::text("a"));
    next(&mut stream).await.unwrap().unwrap();
    // The client is disconnected, and the run continues.
    drop(stream);
    settle().await;
    let live: Vec<_> = [None, Some(0), Some(2), Some(3)]
        .map(|after| {
            let (api, id) = (api.clone(), id.clone());
            (
                after,
                tokio::spawn(async move { send(&api, events(&id, after)).await.events() }),
            )
        })
        .into();
    settle().await;
    for piece in ["b", "c"] {
        driven.emit(0, Event::text(piece));
        settle().await;
    }
    driven.emit(0, finish());
    let all = send(&api, events(&id, None)).await.events();
    rebuild(&all);
    assert_eq!(
        all.iter().map(number).collect::<Vec<_>>(),
        (0..all.len()).collect::<Vec<_>>()
    );
    for (after, events) in live {
        assert_eq!(
            events.await.unwrap(),
            all[after.map_or(0, |after| after + 1)..]
        );
    }
    // The same events after the end.
    for after in 0..all.len() {
        let reply = send(&api, events(&id, after)).await;
        assert!(reply.cut.is_none());
        let rest = if after + 1 < all.len() {
            reply.events()
        } else {
            Vec::new()
        };
        assert_eq!((reply.status, rest), (200, all[after + 1..].to_vec()));
    }
    let stored = send(&api, get(&id)).await.json();
    assert_eq!(stored, all.last().unwrap()["response"]);
    assert_eq!(text(&stored), "abc");

    for query in [
        format!("stream=true&starting_after={}", all.len()),
        "stream=true&starting_after=x".to_owned(),
        "stream=true&starting_after=-1".to_owned(),
        "stream=true&starting_after=18446744073709551615".to_owned(),
        "starting_after=1".to_owned(),
        "stream=false&starting_after=1".to_owned(),
    ] {
        let reply = send(&api, get(&format!("{id}?{query}"))).await;
        assert_eq!(reply.status, 400, "{query}: {}", reply.body);
        reply.error();
    }
    // Events of a response in the foreground are not kept.
    let whole = tokio::spawn({
        let api = api.clone();
        async move { send(&api, super::response(json!({}))).await.json() }
    });
    settle().await;
    driven.emit(1, finish());
    let foreground = super::stored::id(&whole.await.unwrap());
    assert_eq!(send(&api, events(&foreground, None)).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn events_are_resumed_in_another_process() {
    const TICK: Duration = Duration::from_millis(200);
    let (driven, store) = (Driven::default(), MemoryStore::new());
    let api = driven.api().threads(store.clone()).events(store.clone());
    let other = OpenAi::new().threads(store.clone()).events(store.clone());
    let mut stream = open(&api, background(json!({"stream": true}))).await;
    next(&mut stream).await.unwrap().unwrap();
    settle().await;
    let id = format!("resp_{}", driven.context(0).run_id());
    driven.emit(0, Event::text("a"));
    let read = next(&mut stream).await.unwrap().unwrap();
    drop(stream);
    let known = read.matches("sequence_number").count() + 2;
    // The store does not have the last events yet.
    let mut live = Vec::new();
    for after in std::iter::once(None).chain((0..known).map(Some)) {
        let (other, id) = (other.clone(), id.clone());
        let read = async move { send(&other, events(&id, after)).await.events() };
        live.push((after, tokio::spawn(read)));
    }
    for piece in ["b", "c"] {
        tokio::time::sleep(TICK).await;
        driven.emit(0, Event::text(piece));
    }
    tokio::time::sleep(TICK).await;
    driven.emit(0, finish());
    let all = send(&api, events(&id, None)).await.events();
    rebuild(&all);
    for (after, events) in live {
        let from = after.map_or(0, |after| after + 1);
        assert_eq!(events.await.unwrap(), all[from..], "{after:?}");
    }
    tokio::time::sleep(TICK).await;
    for after in 0..all.len() - 1 {
        let reply = send(&other, events(&id, after)).await;
        assert!(reply.cut.is_none());
        assert_eq!(reply.events(), all[after + 1..]);
    }
    let reply = send(&other, events(&id, all.len())).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("stream"))
    );
    let foreign = send(&other, of("b", events(&id, None))).await;
    assert_eq!(foreign.status, 404);
    // A response without `stream` has no events there, either.
    let silent = start(&api, json!({})).await;
    assert_eq!(send(&other, events(&silent, None)).await.status, 400);

    assert_eq!(send(&other, delete(&id)).await.status, 200);
    let key = EventKey::new(
        Tenant::default(),
        ThreadId::new(&*id),
        format!("openai:{id}"),
    );
    assert!(store.read_events(key, 0).await.unwrap().is_none());
}

#[tokio::test]
async fn events_are_kept_for_five_minutes_after_the_end() {
    let test = TestEnvironment::new();
    let driven = Driven::default();
    let api = driven
        .api()
        .threads(MemoryStore::new())
        .environment(test.environment());
    let stream = open(&api, background(json!({"stream": true}))).await;
    settle().await;
    drop(stream);
    driven.emit(0, finish());
    let done = ended(&api, "resp_run_1").await;
    test.advance(Duration::from_secs(299));
    assert_eq!(send(&api, events("resp_run_1", None)).await.status, 200);
    test.advance(Duration::from_secs(2));
    let reply = send(&api, events("resp_run_1", None)).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("stream"))
    );
    assert_eq!(send(&api, get("resp_run_1")).await.json(), done);
}

#[tokio::test]
async fn a_cancelled_response_has_that_status() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let stream = open(&api, background(json!({"stream": true}))).await;
    settle().await;
    let id = format!("resp_{}", driven.context(0).run_id());
    driven.emit(0, Event::text("a"));
    let first = send(&api, cancel(&id)).await.json();
    assert_eq!(
        (&first["status"], &first["error"]),
        (&json!("cancelled"), &json!(null))
    );
    assert!(driven.context(0).is_cancelled());
    for again in [cancel(&id), get(&id)] {
        assert_eq!(send(&api, again).await.json(), first);
    }
    // This model does not notice that it is cancelled; it is dropped, or its result is.
    driven.emit(0, finish());
    let (body, cut) = read(*Pin::into_inner(stream)).await;
    assert!(cut.is_none());
    let last = body.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&last["type"], &last["response"]),
        (&json!("response.failed"), &first)
    );
    assert_eq!(send(&api, get(&id)).await.json(), first);
    let fields = json!({"previous_response_id": id, "input": "more"});
    assert_eq!(send(&api, response(fields)).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_ignores_its_cancellation_is_dropped() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let id = start(&api, json!({})).await;
    settle().await;
    send(&api, cancel(&id)).await.json();
    settle().await;
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 0);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 1);
    assert_eq!(send(&api, get(&id)).await.json()["status"], "cancelled");
}

#[tokio::test]
async fn a_running_tool_is_cancelled() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (started, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (start_count, stop_count) = (started.clone(), stopped.clone());
    let wait = tool("wait", "Waits.", move |_: Value| {
        start_count.fetch_add(1, Ordering::SeqCst);
        let dropped = Dropped(stop_count.clone());
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<String, ToolError>>().await
        }
    });
    let model = service_fn(|_: ChatRequest| async {
        let end = finish_by(FinishReason::ToolCalls);
        Ok::<_, Error>(ChatResponse::new(stream::iter(ok([
            call("call_0", "wait", "{}"),
            end,
        ]))))
    });
    let agent = AgentLayer::new(Toolset::new().tool(wait)).layer(model);
    let api = OpenAi::new().model("m", agent).threads(MemoryStore::new());
    let id = start(&api, json!({})).await;
    settle().await;
    assert_eq!(started.load(Ordering::SeqCst), 1);
    let cancelled = send(&api, cancel(&id)).await.json();
    settle().await;
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
    assert_eq!(ended(&api, &id).await, cancelled);
}

#[tokio::test]
async fn only_background_responses_are_cancelled() {
    let api = OpenAi::new().model("m", echo()).threads(MemoryStore::new());
    let foreground = id(&send(&api, response(json!({}))).await.json());
    assert_eq!(send(&api, cancel(&foreground)).await.status, 400);
    // One that has ended remains as it is.
    let background = start(&api, json!({})).await;
    let done = ended(&api, &background).await;
    assert_eq!(send(&api, cancel(&background)).await.json(), done);
    assert_eq!(send(&api, cancel("resp_no")).await.status, 404);
}

#[tokio::test]
async fn another_process_cancels_and_deletes() {
    for is_deleted in [false, true] {
        let test = TestEnvironment::new();
        let (driven, store) = (Driven::default(), MemoryStore::new());
        let api = process(&driven, &store, &test);
        let other = OpenAi::new()
            .threads(store.clone())
            .environment(test.environment());
        let stream = open(&api, background(json!({"stream": true}))).await;
        settle().await;
        let id = "resp_run_1";
        match is_deleted {
            true => assert_eq!(send(&other, delete(id)).await.json()["deleted"], true),
            false => assert_eq!(send(&other, cancel(id)).await.json()["status"], "cancelled"),
        }
        settle().await;
        assert!(!driven.context(0).is_cancelled());
        // The next renewal.
        test.advance(Duration::from_secs(10));
        settle().await;
        assert!(driven.context(0).is_cancelled());
        test.advance(Duration::from_secs(5));
        settle().await;
        assert_eq!(driven.dropped.load(Ordering::SeqCst), 1);
        let (body, cut) = read(*Pin::into_inner(stream)).await;
        assert_eq!(cut.is_some(), is_deleted);
        let is_told = body.contains("event: response.failed\n");
        assert_eq!(is_told, !is_deleted, "{body}");
        let reply = send(&api, get(id)).await;
        match is_deleted {
            true => assert_eq!(reply.status, 404),
            false => assert_eq!(reply.json()["status"], "cancelled"),
        }
        let threads = store
            .list_threads(Tenant::default(), None, 10)
            .await
            .unwrap();
        assert_eq!(threads.len(), usize::from(!is_deleted));
    }
}

#[tokio::test]
async fn a_deleted_response_is_not_stored_again() {
    let driven = Driven::default();
    let store = MemoryStore::new();
    let api = driven.api().threads(store.clone());
    let stream = open(&api, background(json!({"stream": true}))).await;
    settle().await;
    let id = format!("resp_{}", driven.context(0).run_id());
    assert_eq!(send(&api, delete(&id)).await.json()["deleted"], true);
    assert!(driven.context(0).is_cancelled());
    driven.emit(0, finish());
    settle().await;
    for request in [get(&id), delete(&id), cancel(&id), events(&id, None)] {
        assert_eq!(send(&api, request).await.status, 404);
    }
    // The events are removed.
    let (_, cut) = read(*Pin::into_inner(stream)).await;
    assert!(cut.is_some());
    assert!(
        store
            .list_threads(Tenant::default(), None, 10)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn the_response_of_a_dead_process_fails() {
    let store = MemoryStore::new();
    let (test, driven) = (TestEnvironment::new(), Driven::default());
    let api = process(&driven, &store, &test);
    let id = std::thread::spawn(move || {
        let process = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        process.block_on(async {
            let id = start(&api, json!({})).await;
            settle().await;
            id
        })
    });
    let id = id.join().unwrap();
    assert_eq!(
        (driven.runs(), driven.dropped.load(Ordering::SeqCst)),
        (1, 1)
    );
    let other = OpenAi::new().threads(store).environment(test.environment());
    test.advance(Duration::from_secs(59));
    assert_eq!(send(&other, get(&id)).await.json()["status"], "in_progress");
    test.advance(Duration::from_secs(1));
    let failed = send(&other, get(&id)).await.json();
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "server_error");
    for request in [get(&id), cancel(&id)] {
        assert_eq!(send(&other, request).await.json(), failed);
    }
}

#[tokio::test]
async fn the_first_end_of_a_response_wins() {
    let store = MemoryStore::new();
    let (test, driven) = (TestEnvironment::new(), Driven::default());
    let api = process(&driven, &store, &test);
    let stream = open(&api, background(json!({"stream": true}))).await;
    settle().await;
    // The process is suspended, or its clock is behind.
    let ahead = TestEnvironment::new();
    ahead.advance(Duration::from_secs(61));
    let other = OpenAi::new()
        .threads(store)
        .environment(ahead.environment());
    let failed = send(&other, get("resp_run_1")).await.json();
    assert_eq!(failed["status"], "failed");
    // It comes back with a result.
    driven.emit(0, Event::text("late"));
    driven.emit(0, finish());
    let (body, _) = read(*Pin::into_inner(stream)).await;
    let last = body.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&last["type"], &last["response"]),
        (&json!("response.failed"), &failed)
    );
    for api in [&api, &other] {
        assert_eq!(send(api, get("resp_run_1")).await.json(), failed);
    }
}

#[tokio::test]
async fn a_live_process_renews_its_lease() {
    let store = Broken::new(|write| [None, Some(Fault::Lost), Some(Fault::Fails)][write % 3]);
    let (test, driven) = (TestEnvironment::new(), Driven::default());
    let api = process(&driven, &store, &test);
    let id = start(&api, json!({})).await;
    for _ in 0..60 {
        settle().await;
        test.advance(Duration::from_secs(10));
        settle().await;
        assert_eq!(send(&api, get(&id)).await.json()["status"], "in_progress");
    }
    driven.emit(0, finish());
    settle().await;
    test.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(send(&api, get(&id)).await.json()["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn no_run_starts_without_its_stored_response() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::Panics, Fault::TooLarge] {
        let driven = Driven::default();
        let api = driven.api().threads(Broken::new(move |_| Some(fault)));
        let reply = send(&api, background(json!({}))).await;
        assert_eq!(
            (reply.status, &reply.error()["type"]),
            (500, &json!("server_error"))
        );
        settle().await;
        assert_eq!(driven.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_is_stored_again_after_a_fault() {
    for fault in [Fault::Fails, Fault::Lost, Fault::Waits] {
        let store = Broken::new(move |write| (1..4).contains(&write).then_some(fault));
        let api = OpenAi::new().model("m", echo()).threads(store);
        let id = start(&api, json!({})).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let done = send(&api, get(&id)).await.json();
        assert_eq!(
            (&done["status"], text(&done)),
            (&json!("completed"), "User:hi")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_stored_has_failed() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::Panics, Fault::TooLarge] {
        let store = Broken::new(move |write| (write > 0).then_some(fault));
        let api = OpenAi::new().model("m", echo()).threads(store);
        let mut events = send(&api, background(json!({"stream": true})))
            .await
            .events();
        let last = events.pop().unwrap();
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"]["error"]["code"], "server_error");
    }
}

#[tokio::test]
async fn a_result_that_is_too_large_is_stored_as_a_failure() {
    let store = Broken::new(|write| (write == 1).then_some(Fault::TooLarge));
    let api = OpenAi::new().model("m", echo()).threads(store);
    let id = start(&api, json!({})).await;
    let failed = ended(&api, &id).await;
    assert_eq!(
        (&failed["status"], &failed["output"]),
        (&json!("failed"), &json!([]))
    );
    assert_eq!(failed["error"]["code"], "server_error");
}

#[tokio::test]
async fn a_failed_run_is_stored_as_failed() {
    let error = Error::new(concentric_core::ErrorKind::Server, "down");
    let failing = slow_api(vec![Ok(Event::text("a")), Err(error)]);
    let panicking = OpenAi::new().model(
        "m",
        service_fn(
            async |_: ChatRequest| -> Result<ChatResponse<concentric_core::EventStream>, Error> {
                panic!("a model's panic")
            },
        ),
    );
    for (api, code) in [(failing, "upstream_server"), (panicking, "internal")] {
        let api = api.threads(MemoryStore::new());
        for is_streamed in [false, true] {
            let id = match is_streamed {
                false => start(&api, json!({})).await,
                true => {
                    let reply = send(&api, background(json!({"stream": true}))).await;
                    // All events are read.
                    assert!(reply.cut.is_none());
                    let last = reply.events().pop().unwrap();
                    assert_eq!(last["type"], "response.failed");
                    id(&last["response"])
                }
            };
            let failed = ended(&api, &id).await;
            assert_eq!(
                (&failed["status"], &failed["error"]["code"]),
                (&json!("failed"), &json!(code))
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_has_a_time_limit() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let api = api.background_timeout(Duration::from_secs(25));
    let id = start(&api, json!({})).await;
    tokio::time::sleep(Duration::from_secs(24)).await;
    assert_eq!(send(&api, get(&id)).await.json()["status"], "in_progress");
    tokio::time::sleep(Duration::from_secs(7)).await;
    let failed = send(&api, get(&id)).await.json();
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("timeout"))
    );
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_number_of_runs_is_limited() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new()).background_runs(2);
    let first = start(&api, json!({})).await;
    start(&api, json!({})).await;
    settle().await;
    let reply = send(&api, background(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (503, &json!("overloaded"))
    );
    driven.emit(0, finish());
    ended(&api, &first).await;
    settle().await;
    start(&api, json!({})).await;
}

#[tokio::test]
async fn the_number_of_runs_of_a_tenant_is_limited() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let api = api.background_runs_per_tenant(1).background_runs(2);
    let first = send(&api, of("a", background(json!({})))).await.json();
    settle().await;
    let reply = send(&api, of("a", background(json!({})))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (429, &json!("rate_limit_exceeded"))
    );
    assert_eq!(reply.error()["type"], "requests");
    assert_eq!(reply.headers["retry-after"], "1");
    let other = send(&api, of("b", background(json!({})))).await;
    assert_eq!(other.status, 200, "{}", other.body);
    settle().await;
    // A request that finds no place in the process takes none of its tenant.
    for _ in 0..2 {
        let reply = send(&api, of("c", background(json!({})))).await;
        assert_eq!(reply.status, 503);
    }
    driven.emit(0, finish());
    let path = format!("/responses/{}", id(&first));
    while send(&api, of("a", to("GET", &path))).await.json()["status"] == "in_progress" {
        tokio::task::yield_now().await;
    }
    settle().await;
    let reply = send(&api, of("c", background(json!({})))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_background_runs() {
    let shutdown = Shutdown::new();
    let driven = Driven::default();
    let api = driven
        .api()
        .threads(MemoryStore::new())
        .shutdown(shutdown.clone());
    let id = start(&api, json!({})).await;
    settle().await;
    shutdown.begin(Duration::from_secs(20));
    assert_eq!(send(&api, background(json!({}))).await.status, 503);
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(send(&api, get(&id)).await.json()["status"], "in_progress");
    shutdown.drained().await;
    let failed = send(&api, get(&id)).await.json();
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("shutting_down"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_streams_of_runs_that_continue() {
    let (driven, store, shutdown) = (Driven::default(), MemoryStore::new(), Shutdown::new());
    let api = driven.api().threads(store.clone()).events(store.clone());
    let other = OpenAi::new().threads(store.clone()).events(store.clone());
    let other = other.shutdown(shutdown.clone());
    let _stream = open(&api, background(json!({"stream": true}))).await;
    settle().await;
    let id = format!("resp_{}", driven.context(0).run_id());
    driven.emit(0, Event::text("a"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut stream = open(&other, events(&id, None)).await;
    let read_by_other = tokio::spawn(async move {
        let mut read = String::new();
        loop {
            match next(&mut stream).await {
                Some(Ok(more)) => read.push_str(&more),
                Some(Err(_)) => return (read, true),
                None => return (read, false),
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(shutdown.streams(), 1);
    shutdown.begin(Duration::from_secs(20));
    assert_eq!(send(&other, events(&id, None)).await.status, 503);
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert!(!read_by_other.is_finished());
    shutdown.drained().await;
    let (read, cut) = read_by_other.await.unwrap();
    assert!(read.contains("response.output_text.delta") && cut, "{read}");
    assert!(!driven.context(0).is_cancelled());
    assert_eq!(send(&api, get(&id)).await.json()["status"], "in_progress");
}

#[tokio::test]
async fn a_response_of_another_tenant_is_unknown() {
    let driven = Driven::default();
    let api = driven.api().threads(MemoryStore::new());
    let live = send(&api, of("a", background(json!({"stream": false}))))
        .await
        .json();
    let id = id(&live);
    let unknown = id.replace("resp_", "resp_x");
    for make in [get as fn(&str) -> _, cancel, delete, |id: &str| {
        events(id, 0)
    }] {
        let other = send(&api, of("b", make(&id))).await;
        let none = send(&api, of("a", make(&unknown))).await;
        assert_eq!((other.status, none.status), (404, 404));
        assert_eq!(other.body.replace(&id, &unknown), none.body);
    }
    settle().await;
    assert!(!driven.context(0).is_cancelled());
    assert_eq!(send(&api, of("a", get(&id))).await.json(), live);
}

#[tokio::test]
async fn an_approval_ends_a_background_response() {
    let (api, paid) = paying(one(), true);
    let asked = start(&api, json!({})).await;
    let asked = ended(&api, &asked).await;
    assert_eq!(asked["status"], "completed");
    let request = asked["output"].as_array().unwrap().last().unwrap();
    assert_eq!(request["type"], "mcp_approval_request");
    let approval = json!({
        "type": "mcp_approval_response", "approval_request_id": request["id"], "approve": true,
    });
    let fields = json!({"input": [approval], "previous_response_id": asked["id"]});
    let done = start(&api, fields).await;
    let done = ended(&api, &done).await;
    assert!(text(&done).starts_with("paid"), "{done}");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_tool_ends_a_background_response() {
    let api = OpenAi::new().model("m", echo()).threads(MemoryStore::new());
    let asked = start(
        &api,
        json!({"input": "look", "tools": response_tools(&["look"])}),
    )
    .await;
    let asked = ended(&api, &asked).await;
    let call = asked["output"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("look"))
    );
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "here"});
    let fields = json!({"input": [output], "previous_response_id": asked["id"]});
    let done = start(&api, fields).await;
    assert!(text(&ended(&api, &done).await).contains("=here"));
}

#[tokio::test]
async fn a_large_answer_has_all_events() {
    let pieces: Vec<Event> = (0..64).map(|_| Event::text("x".repeat(64 << 10))).collect();
    let api = slow_api(ok(pieces.into_iter().chain([finish()]))).threads(MemoryStore::new());
    let mut slow = open(&api, background(json!({"stream": true}))).await;
    let first = next(&mut slow).await.unwrap().unwrap();
    let id = first
        .split('"')
        .find(|it| it.starts_with("resp_"))
        .unwrap()
        .to_owned();
    let done = ended(&api, &id).await;
    assert_eq!(text(&done).len(), 4 << 20);
    // A client that reads after the end of the run has missed nothing.
    let (rest, cut) = read(*Pin::into_inner(slow)).await;
    assert!(cut.is_none());
    let reply = Reply {
        status: 200,
        headers: http::HeaderMap::from_iter([(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("text/event-stream"),
        )]),
        body: first + &rest,
        cut,
    };
    let all = reply.events();
    rebuild(&all);
    assert_eq!(all.last().unwrap()["response"], done);
    // Most of the events exceed the limit for a client that comes later.
    assert_eq!(send(&api, events(&id, 0)).await.status, 400);
    let last = all.len() - 2;
    assert_eq!(
        send(&api, events(&id, last)).await.events(),
        all[last + 1..]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_event_store_does_not_keep_all_events() {
    let pieces: Vec<Event> = (0..64).map(|_| Event::text("x".repeat(64 << 10))).collect();
    let store = Faulty::new();
    store.set("fails");
    let api = slow_api(ok(pieces.into_iter().chain([finish()])));
    let api = api.threads(MemoryStore::new()).events(store);
    let mut stream = open(&api, background(json!({"stream": true}))).await;
    let first = next(&mut stream).await.unwrap().unwrap();
    drop(stream);
    let id = first.split('"').find(|it| it.starts_with("resp_")).unwrap();
    let done = ended(&api, id).await;
    assert_eq!(text(&done).len(), 4 << 20);
    assert_eq!(send(&api, events(id, 0)).await.status, 500);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_its_stream_only() {
    let driven = Driven::default();
    let api = driven
        .api()
        .threads(MemoryStore::new())
        .read_timeout(Duration::from_secs(5));
    let mut stream = open(&api, background(json!({"stream": true}))).await;
    next(&mut stream).await.unwrap().unwrap();
    settle().await;
    driven.emit(0, Event::text("a"));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(next(&mut stream).await.unwrap().is_err());
    let id = format!("resp_{}", driven.context(0).run_id());
    driven.emit(0, finish());
    assert_eq!(text(&ended(&api, &id).await), "a");
}

#[tokio::test]
async fn a_dropped_request_leaves_no_live_response() {
    // The number of polls before the request is dropped.
    for polls in 0..40 {
        let driven = Driven::default();
        let store = Broken::new(|_| Some(Fault::Waits));
        let api = driven.api().threads(store.clone());
        let mut request = Box::pin(api.clone().oneshot(background(json!({}))));
        for _ in 0..polls {
            if poll_once(&mut request).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(request);
        settle().await;
        for run in 0..driven.runs() {
            driven.emit(run, finish());
        }
        settle().await;
        let threads = store
            .list_threads(Tenant::default(), None, 10)
            .await
            .unwrap();
        // The response was removed, or has ended.
        assert_eq!(threads.len(), driven.runs());
        for thread in threads {
            let response = send(&api, get(thread.thread.as_str())).await.json();
            assert_eq!(response["status"], "completed");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_and_the_end_agree() {
    for round in 0..100 {
        let driven = Driven::default();
        let store = Broken::new(|_| Some(Fault::Waits));
        let api = driven.api().threads(store);
        let stream = open(&api, background(json!({"stream": true}))).await;
        while driven.runs() == 0 {
            tokio::task::yield_now().await;
        }
        let id = format!("resp_{}", driven.context(0).run_id());
        driven.emit(0, Event::text("a"));
        let cancel = tokio::spawn({
            let (api, id) = (api.clone(), id.clone());
            async move {
                for _ in 0..round % 10 {
                    tokio::task::yield_now().await;
                }
                send(&api, cancel(&id)).await.json()
            }
        });
        driven.emit(0, finish());
        let (body, _) = read(*Pin::into_inner(stream)).await;
        let last = body.trim_end().rsplit("data: ").next().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        let reply = cancel.await.unwrap();
        assert_eq!(reply, last["response"], "round {round}");
        assert_eq!(send(&api, get(&id)).await.json(), reply, "round {round}");
    }
}
