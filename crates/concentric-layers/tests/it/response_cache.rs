//! Answers that are used again, and calls that several requests share.

use concentric_core::{
    AgentLayer, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, CustomEvent, Error,
    ErrorKind, Event, EventStream, Finish, FinishReason, NoTools, Outcome, Part, PartKind,
    ResponseHead, SideEffects, Str, ThreadId, ToolCallDelta, ToolCallPart, ToolCallStart, Usage,
    run_state::RunEdits, store::Tenant,
};
use concentric_layers::{
    SuspendLayer,
    budget::{Amounts, Budget, BudgetPlugin, Limits},
    response_cache::{CacheControl, CacheScope, LAGGED, Replayed, ResponseCacheLayer},
};
use concentric_store::MemoryStore;
use concentric_test::{
    Gate, ScriptedModel, TestEnvironment, check_layer, drop_at_each_wait, text_of,
};
use futures_util::{FutureExt, Stream, StreamExt, future::join_all, stream};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn shared() -> ResponseCacheLayer {
    ResponseCacheLayer::new(CacheScope::Shared)
}

/// A layer that stores nothing, so that each request needs a call.
fn unstored() -> ResponseCacheLayer {
    shared().ttl(Duration::ZERO)
}

/// The items of the answer to a request, with an error of the future as the last one.
async fn items<S, B>(service: S, request: ChatRequest) -> Vec<Result<Event, Error>>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: Stream<Item = Result<Event, Error>>,
{
    match service.oneshot(request).await {
        Ok(response) => response.body.collect().await,
        Err(error) => vec![Err(error)],
    }
}

fn events(items: Vec<Result<Event, Error>>) -> Vec<Event> {
    items.into_iter().map(Result::unwrap).collect()
}

fn usage(items: &[Event]) -> Usage {
    match items.last() {
        Some(Event::Finish(finish)) => finish.usage,
        other => panic!("no finish, but {other:?}"),
    }
}

const ZERO: Usage = Usage::new(0, 0);

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    // Most requests of the check are equal, so that without the first two most of it reads stored answers.
    check_layer(unstored()).await;
    check_layer(ResponseCacheLayer::new(CacheScope::Run)).await;
    check_layer(ResponseCacheLayer::new(CacheScope::Thread)).await;
    check_layer(shared()).await;
}

#[tokio::test]
async fn a_repeated_request_is_answered_without_a_call() {
    let env = TestEnvironment::new();
    let mut head = ResponseHead::new("scripted", "scripted-1");
    head.id = Some("resp_1".into());
    head.request_id = Some("req_1".into());
    let model = ScriptedModel::new()
        .head(head)
        .reasoning("Hm")
        .reasoning(", well.")
        .deltas(["A ", "ca", "t."])
        .usage(Usage::new(100, 20));
    let service = shared().layer(model.clone());
    let first = service.clone().oneshot(env.request("hi")).await.unwrap();
    assert_eq!(first.head.id.as_deref(), Some("resp_1"));
    assert!(first.extensions.get::<Replayed>().is_none());
    assert_eq!(
        usage(&events(first.body.collect().await)),
        Usage::new(100, 20)
    );

    env.advance(SECOND);
    let hit = service
        .oneshot(env.request("hi"))
        .now_or_never()
        .unwrap()
        .unwrap();
    let replayed = hit.extensions.get::<Replayed>().unwrap();
    assert_eq!(
        (replayed.usage, replayed.age),
        (Usage::new(100, 20), SECOND)
    );
    assert_eq!(hit.head.model.as_deref(), Some("scripted-1"));
    assert_eq!((&hit.head.id, &hit.head.request_id), (&None, &None));
    assert_eq!(hit.body.size_hint(), (3, Some(3)));
    let items = events(hit.body.collect().await);
    assert_eq!(items.len(), 3);
    assert_eq!(items[0], Event::ReasoningDelta("Hm, well.".into()));
    assert_eq!(text_of(&items), "A cat.");
    assert_eq!((usage(&items), model.calls()), (ZERO, 1));
}

// Case F052.
#[tokio::test]
async fn f052_incomplete_and_flagged_answers_are_not_stored() {
    let text = || ScriptedModel::new().text("A");
    let finish = |reason| Finish::new(reason, Usage::new(1, 1));
    let refusal = Part::new(PartKind::Refusal("no".into()));
    let call = ToolCallPart::new(CallId::new("c1"), "look", "{}");
    let scripts = [
        text().end_early(),
        text().error(Error::new(ErrorKind::Server, "broke")),
        text().error(Error::new(ErrorKind::Halted, "enough")),
        text().finish(finish(FinishReason::Length)),
        text().finish(finish(FinishReason::ContentFilter)),
        text().finish(finish(FinishReason::Other("pause".into()))),
        text().finish(finish(FinishReason::Stop).with_outcome(Outcome::StepLimit)),
        text().event(Event::RefusalDelta("no".into())),
        text().event(Event::Part(Box::new(refusal))),
        text().event(Event::Reset),
        text().event(CustomEvent::new("x", json!(1)).into()),
        text().event(Event::tool_call(call)),
        text().tool_call("look", json!({})),
        text().text("x".repeat(1 << 20)),
        ScriptedModel::new().finish(finish(FinishReason::Stop)),
    ];
    for script in scripts {
        let env = TestEnvironment::new();
        let model = script.repeat();
        let service = shared().layer(model.clone());
        let one = items(service.clone(), env.request("hi")).await;
        let two = items(service, env.request("hi")).await;
        assert_eq!(format!("{one:?}"), format!("{two:?}"));
        assert_eq!((model.calls(), model.live()), (2, 0), "{one:?}");
    }
}

#[tokio::test]
async fn a_dropped_answer_is_not_stored() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().deltas(["A ", "cat."]).repeat();
    let service = shared().layer(model.clone());
    let response = service.clone().oneshot(env.request("hi")).await.unwrap();
    let mut body = response.body;
    body.next().await.unwrap().unwrap();
    drop(body);
    let items = items(service, env.request("hi")).await;
    assert_eq!(
        (text_of(&events(items)), model.calls()),
        ("A cat.".to_owned(), 2)
    );
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

// Case C102.
#[tokio::test]
async fn c102_an_answer_expires_after_it_was_stored() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().text("A").repeat();
    let service = shared()
        .ttl(Duration::from_millis(100))
        .layer(model.clone());
    let mut calls = Vec::new();
    for _ in 0..3 {
        items(service.clone(), env.request("hi")).await;
        calls.push(model.calls());
        env.advance(Duration::from_millis(80));
    }
    // At 0, 80 and 160 ms.
    assert_eq!(calls, [1, 1, 2]);
}

#[tokio::test]
async fn the_least_recently_used_answer_is_evicted() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().text("x".repeat(10_000)).repeat();
    let service = shared().total_bytes(25_000).layer(model.clone());
    let mut calls = Vec::new();
    // 1 is used after 2, so 3 evicts 2.
    for text in ["1", "2", "1", "3", "1", "2"] {
        items(service.clone(), env.request(text)).await;
        calls.push(model.calls());
    }
    assert_eq!(calls, [1, 2, 2, 3, 3, 4]);
}

#[tokio::test]
async fn concurrent_misses_share_one_call_and_its_events() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let pieces = ["A ", "c", "a", "t", "."];
    let model = ScriptedModel::new()
        .wait(&gate)
        .deltas(pieces)
        .pause()
        .reasoning("Hm.")
        .usage(Usage::new(9, 2));
    let service = shared().layer(model.clone());
    let calls = (0..50).map(|_| tokio::spawn(items(service.clone(), env.request("hi"))));
    let calls: Vec<_> = calls.collect();
    gate.reached().await;
    gate.open();
    let mut answers = Vec::new();
    for call in join_all(calls).await {
        answers.push(events(call.unwrap()));
    }
    // One run has used the tokens, and the events are equal otherwise.
    let used: Vec<_> = answers.iter().filter(|it| usage(it) != ZERO).collect();
    assert_eq!((used.len(), usage(used[0])), (1, Usage::new(9, 2)));
    let mut expected = used[0].clone();
    expected.pop();
    assert_eq!(expected.len(), 6);
    for mut answer in answers {
        assert!(answer.pop().unwrap().is_finish());
        assert_eq!(answer, expected);
    }
    assert_eq!((model.calls(), model.live()), (1, 0));
}

#[tokio::test]
async fn a_later_request_receives_a_call_in_progress_from_its_start() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let model = ScriptedModel::new()
        .deltas(["A ", "cat"])
        .wait(&gate)
        .text(".");
    let service = unstored().layer(model.clone());
    let mut first = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    assert_eq!(first.next().await.unwrap().unwrap(), Event::text("A "));
    assert_eq!(first.next().await.unwrap().unwrap(), Event::text("cat"));
    let mut second = service.oneshot(env.request("hi")).await.unwrap().body;
    let mut first_end = task::spawn(first.next());
    assert_pending!(first_end.poll());
    assert_eq!(second.next().await.unwrap().unwrap(), Event::text("A "));
    assert_eq!(second.next().await.unwrap().unwrap(), Event::text("cat"));
    assert!(second.next().now_or_never().is_none());
    gate.open();
    // Either may poll the call; here the second one does.
    assert_eq!(second.next().await.unwrap().unwrap(), Event::text("."));
    assert!(first_end.is_woken());
    assert_eq!(
        assert_ready!(first_end.poll()).unwrap().unwrap(),
        Event::text(".")
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn the_call_survives_the_run_that_makes_it() {
    // Dropped while it waits, before its first event, and in the middle.
    for taken in 0..3 {
        let (env, gate) = (TestEnvironment::new(), Gate::new());
        let model = ScriptedModel::new()
            .pause()
            .deltas(["A ", "cat"])
            .wait(&gate)
            .text(".")
            .usage(Usage::new(9, 2));
        let service = unstored().layer(model.clone());
        let mut first = task::spawn(items(service.clone(), env.request("hi")));
        assert_pending!(first.poll());
        let mut others: Vec<_> = (0..3)
            .map(|_| task::spawn(items(service.clone(), env.request("hi"))))
            .collect();
        for other in &mut others {
            assert_pending!(other.poll());
        }
        for _ in 0..taken {
            assert_pending!(first.poll());
        }
        drop(first);
        assert_eq!(model.live(), 1);
        gate.open();
        let mut used = 0;
        for other in others {
            let items = events(other.await);
            assert_eq!(text_of(&items), "A cat.");
            used += usage(&items).output_tokens().unwrap();
        }
        // Reported by one of the others, as the first run has no finish.
        assert_eq!((model.calls(), model.live(), used), (1, 0, 2));
    }
}

#[tokio::test]
async fn the_last_reader_drops_the_call() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().text("A").never().repeat();
    let service = unstored().layer(model.clone());
    let mut readers: Vec<_> = (0..4)
        .map(|_| task::spawn(items(service.clone(), env.request("hi"))))
        .collect();
    for reader in &mut readers {
        assert_pending!(reader.poll());
    }
    while let Some(reader) = readers.pop() {
        assert_eq!((model.calls(), model.live()), (1, 1));
        drop(reader);
    }
    assert_eq!(model.live(), 0);
    // It is not joined afterwards.
    let mut next = task::spawn(items(service, env.request("hi")));
    assert_pending!(next.poll());
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_failure_before_the_first_event_is_not_shared() {
    let broken = || Error::new(ErrorKind::Server, "broke");
    for fails in [
        ScriptedModel::new().pause().error(broken()),
        ScriptedModel::new().pause().end_early(),
        ScriptedModel::new()
            .event(Event::Reset)
            .pause()
            .error(broken()),
    ] {
        let (env, gate) = (TestEnvironment::new(), Gate::new());
        let model = fails.then().wait(&gate).text("A");
        let service = shared().layer(model.clone());
        let calls = (0..5).map(|_| tokio::spawn(items(service.clone(), env.request("hi"))));
        let calls: Vec<_> = calls.collect();
        gate.reached().await;
        gate.open();
        let results: Vec<_> = join_all(calls)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let done = results
            .iter()
            .filter(|items| items.iter().all(Result::is_ok));
        let done = done.filter(|items| matches!(items.last(), Some(Ok(Event::Finish(_)))));
        assert_eq!((done.count(), model.calls()), (4, 2));
    }
}

#[tokio::test]
async fn a_later_failure_ends_the_answers_that_have_begun() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let model = ScriptedModel::new()
        .text("A")
        .wait(&gate)
        .error(Error::new(ErrorKind::Connection, "reset"))
        .then()
        .text("B");
    let service = shared().layer(model.clone());
    let one = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    let two = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    // Has not received anything.
    let three = service.clone().oneshot(env.request("hi"));
    gate.open();
    for body in [one, two] {
        let items: Vec<_> = body.collect().await;
        assert_eq!(*items[0].as_ref().unwrap(), Event::text("A"));
        assert_eq!(items[1].as_ref().unwrap_err().kind(), ErrorKind::Connection);
        assert_eq!(items.len(), 2);
    }
    let items = three.await.unwrap().body.collect().await;
    assert_eq!(
        (text_of(&events(items)), model.calls()),
        ("B".to_owned(), 2)
    );
}

#[tokio::test]
async fn a_call_with_possible_effects_is_not_repeated() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let error = Error::new(ErrorKind::Server, "broke").with_effects(SideEffects::Possible);
    let model = ScriptedModel::new().wait(&gate).error(error);
    let service = shared().layer(model.clone());
    let calls = (0..5).map(|_| tokio::spawn(items(service.clone(), env.request("hi"))));
    let calls: Vec<_> = calls.collect();
    tokio::task::yield_now().await;
    gate.open();
    for result in join_all(calls).await {
        let error = result.unwrap().pop().unwrap().unwrap_err();
        assert_eq!(error.effects(), SideEffects::Possible);
    }
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_panic_of_the_model_is_a_failure_of_the_run_that_made_the_call() {
    let env = TestEnvironment::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let model = service_fn(move |_: ChatRequest| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::task::yield_now().await;
            assert_ne!(call, 0, "of the test");
            let events = [
                Ok(Event::text("A")),
                Ok(Event::finish(FinishReason::Stop, ZERO)),
            ];
            Ok::<_, Error>(ChatResponse::new(EventStream::new(stream::iter(events))))
        }
    });
    let service = shared().layer(model);
    let both = [(); 2].map(|()| items(service.clone(), env.request("hi")));
    let mut answers = join_all(both).await;
    assert_eq!(text_of(&events(answers.pop().unwrap())), "A");
    let error = answers.pop().unwrap().pop().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), calls.load(Ordering::Relaxed)),
        (ErrorKind::Other, 2)
    );
}

#[tokio::test]
async fn a_slow_reader_delays_no_other() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().deltas(["A ", "cat."]);
    let service = unstored().layer(model.clone());
    // The slow one has made the call, and has registered its waker.
    let gate = Gate::new();
    let waiting = ScriptedModel::new().text("A ").wait(&gate).text("cat.");
    let service_of_waiting = unstored().layer(waiting);
    let mut slow = service_of_waiting
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    slow.next().await.unwrap().unwrap();
    assert!(slow.next().now_or_never().is_none());
    let fast = tokio::spawn(items(service_of_waiting, env.request("hi")));
    tokio::task::yield_now().await;
    gate.open();
    assert_eq!(text_of(&events(fast.await.unwrap())), "A cat.");
    assert_eq!(slow.next().await.unwrap().unwrap(), Event::text("cat."));

    // Never polled at all.
    let _slow = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    assert_eq!(
        text_of(&events(items(service, env.request("hi")).await)),
        "A cat."
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_reader_that_is_far_behind_receives_an_error_and_no_memory() {
    let env = TestEnvironment::new();
    // Of 200 KB, and 64 KiB may be kept for a reader.
    let long = || {
        let pieces = std::iter::repeat_n(Str::from("x".repeat(1_000)), 200);
        ScriptedModel::new().deltas(pieces).then().text("other")
    };
    let model = long();
    let service = unstored().max_bytes(0).layer(model.clone());
    let mut slow = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    slow.next().await.unwrap().unwrap();
    // Has not received anything.
    let mut unread = task::spawn(service.clone().oneshot(env.request("hi")));
    let mut fast = service.oneshot(env.request("hi")).await.unwrap().body;
    let mut received = 0;
    while let Some(Ok(event)) = fast.next().await {
        received += 1;
        if event.is_finish() {
            break;
        }
    }
    assert_eq!((received, model.calls()), (201, 1));
    let rest: Vec<_> = slow.collect().await;
    let error = rest[0].as_ref().unwrap_err();
    assert_eq!(
        (error.kind(), error.code(), rest.len()),
        (ErrorKind::Overloaded, Some(LAGGED), 1)
    );
    let own = assert_ready!(unread.poll()).unwrap().body.collect().await;
    assert_eq!(
        (text_of(&events(own)), model.calls()),
        ("other".to_owned(), 2)
    );

    // A request that comes too late for the beginning makes a call of its own.
    let model = long();
    let service = unstored().max_bytes(0).layer(model.clone());
    let mut first = service
        .clone()
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    for _ in 0..100 {
        first.next().await.unwrap().unwrap();
    }
    let second = events(items(service, env.request("hi")).await);
    assert_eq!((text_of(&second), model.calls()), ("other".to_owned(), 2));
    assert_eq!(first.collect::<Vec<_>>().await.len(), 101);
}

// Case F051.
#[tokio::test]
async fn f051_tenants_share_neither_answers_nor_calls() {
    let env = TestEnvironment::new();
    let request = |tenant: &str, thread: &str| {
        let thread = ThreadId::new(thread);
        let mut context = env.context_builder().thread_id(thread).build();
        context.extensions_mut().insert(Tenant(tenant.into()));
        ChatRequest::user("hi").with_context(context)
    };
    let requests = || {
        [
            request("a", "t1"),
            request("a", "t2"),
            request("b", "t1"),
            request("a", "t1"),
        ]
    };
    for (scope, expected) in [
        (CacheScope::Shared, [1, 1, 1, 1]),
        (CacheScope::Tenant, [1, 1, 2, 2]),
        (CacheScope::Thread, [1, 2, 3, 3]),
        (CacheScope::Run, [1, 2, 3, 4]),
    ] {
        let model = ScriptedModel::new().text("A").repeat();
        let service = ResponseCacheLayer::new(scope).layer(model.clone());
        let mut calls = Vec::new();
        for request in requests() {
            items(service.clone(), request).await;
            calls.push(model.calls());
        }
        assert_eq!(calls, expected, "{scope:?}");
        // At once.
        let gate = Gate::new();
        let model = ScriptedModel::new().wait(&gate).text("A").repeat();
        let service = ResponseCacheLayer::new(scope)
            .ttl(Duration::ZERO)
            .layer(model.clone());
        let mut readers = requests().map(|request| task::spawn(items(service.clone(), request)));
        for reader in &mut readers {
            assert_pending!(reader.poll());
        }
        assert_eq!(model.calls(), expected[3], "{scope:?}");
    }
    let model = ScriptedModel::new().text("A").repeat();
    let service = ResponseCacheLayer::new(CacheScope::Thread).layer(model.clone());
    for _ in 0..2 {
        items(service.clone(), env.request("hi")).await;
    }
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn requests_that_continue_state_of_the_provider_are_not_cached() {
    for name in ["previous_response_id", "conversation", "container"] {
        let env = TestEnvironment::new();
        let model = ScriptedModel::new().text("A").repeat();
        let service = shared().layer(model.clone());
        let mut request = env.request("hi");
        request
            .options_mut()
            .provider
            .insert(name.to_owned(), json!("x"));
        for _ in 0..2 {
            items(service.clone(), request.clone()).await;
        }
        assert_eq!(model.calls(), 2);
        request
            .options_mut()
            .provider
            .insert(name.to_owned(), json!(null));
        for _ in 0..2 {
            items(service.clone(), request.clone()).await;
        }
        assert_eq!(model.calls(), 3);
    }
}

#[tokio::test]
async fn a_request_can_refresh_or_bypass_the_cache() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new();
    let model = ["1", "2", "3", "4"]
        .into_iter()
        .fold(model, |model, text| model.text(text).then());
    let service = shared().layer(model);
    let mut texts = Vec::new();
    let controls = [
        None,
        Some(CacheControl::Bypass),
        None,
        Some(CacheControl::Refresh),
        None,
    ];
    for control in controls {
        let mut request = env.request("hi");
        if let Some(control) = control {
            request.context.extensions_mut().insert(control);
        }
        texts.push(text_of(&events(items(service.clone(), request).await)));
    }
    assert_eq!(texts, ["1", "2", "1", "3", "3"]);
}

#[tokio::test]
async fn a_key_decides_which_requests_are_equal() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().text("A").repeat();
    let layer = shared().key(|request| {
        let text = request.user_message()?.text();
        assert_ne!(text, "panic", "of the test");
        text.strip_prefix("same ").map(|_| json!(1))
    });
    let service = layer.layer(model.clone());
    let mut calls = Vec::new();
    for text in ["same a", "same b", "other", "other", "panic", "panic"] {
        items(service.clone(), env.request(text)).await;
        calls.push(model.calls());
    }
    assert_eq!(calls, [1, 1, 2, 3, 4, 5]);
    layer.clear();
    items(service, env.request("same a")).await;
    assert_eq!(model.calls(), 6);
}

#[tokio::test]
async fn zero_stores_nothing_and_the_maximum_everything() {
    let env = TestEnvironment::new();
    for (layer, calls) in [
        (shared().total_bytes(0), 2),
        (shared().ttl(Duration::ZERO), 2),
        (shared().max_bytes(0), 2),
        (
            shared()
                .total_bytes(u64::MAX)
                .ttl(Duration::MAX)
                .max_bytes(usize::MAX),
            1,
        ),
    ] {
        let model = ScriptedModel::new().text("x".repeat(4 << 20)).repeat();
        let service = layer.layer(model.clone());
        let request = env.request("x".repeat(4 << 20));
        for _ in 0..2 {
            let items = events(items(service.clone(), request.clone()).await);
            assert_eq!(text_of(&items).len(), 4 << 20);
        }
        assert_eq!(model.calls(), calls, "{layer:?}");
        // Concurrent ones share a call nonetheless.
        let gate = Gate::new();
        let model = ScriptedModel::new().wait(&gate).text("A").repeat();
        let service = layer.layer(model.clone());
        let calls = [(); 5].map(|()| tokio::spawn(items(service.clone(), env.request("other"))));
        gate.reached().await;
        gate.open();
        join_all(calls).await;
        assert_eq!(model.calls(), 1, "{layer:?}");
    }
}

#[tokio::test]
async fn stored_tool_calls_have_new_ids_in_each_answer() {
    let env = TestEnvironment::new();
    let call = |id: &str| ToolCallPart::new(CallId::new(id), "look", r#"{"x":1}"#);
    let start = ToolCallStart::new(0, CallId::new("c1"), "look");
    let model = ScriptedModel::new().events([
        Event::ToolCallStart(Box::new(start)),
        Event::ToolCallDelta(ToolCallDelta::new(0, r#"{"x""#)),
        Event::ToolCallDelta(ToolCallDelta::new(0, ":1}")),
        Event::tool_call(call("c1")),
        Event::tool_call(call("c2")),
    ]);
    let service = shared().tool_calls(true).layer(model.clone());
    items(service.clone(), env.request("hi")).await;
    let context = env.context();
    let mut ids = vec![CallId::new("c1"), CallId::new("c2")];
    for _ in 0..2 {
        let request = ChatRequest::user("hi").with_context(context.clone());
        let items = events(items(service.clone(), request).await);
        let shapes = [
            "tool_call_start",
            "tool_call_delta",
            "tool_call",
            "tool_call",
            "finish",
        ];
        assert_eq!(items.len(), shapes.len());
        let Event::ToolCallStart(start) = &items[0] else {
            panic!("{items:?}")
        };
        let Event::ToolCallDelta(delta) = &items[1] else {
            panic!("{items:?}")
        };
        assert_eq!(delta.arguments, r#"{"x":1}"#);
        let calls = items.iter().filter_map(|event| match event {
            Event::ToolCall(call) => Some(call.call.id.clone()),
            _ => None,
        });
        let calls: Vec<_> = calls.collect();
        assert_eq!(calls[0], start.id);
        ids.extend(calls);
    }
    assert_eq!(model.calls(), 1);
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), count), (6, 6));
}

#[tokio::test]
async fn a_hit_costs_nothing() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new()
        .text("A")
        .usage(Usage::new(100, 20))
        .repeat();
    let layer = shared();
    // One run without the model's budget layer inside: its check of the stack is skipped for a hit.
    let plugin =
        || BudgetPlugin::new(Limits::new().input_tokens(1_000)).estimate(|_| Usage::new(50, 5));
    let agent = |model: BoxModel| {
        let budget = plugin();
        let cached = layer.layer(BoxModel::new(budget.model().layer(model)));
        budget.run().layer(AgentLayer::new(NoTools).layer(cached))
    };
    let mut spent = Vec::new();
    for _ in 0..2 {
        let budget = Budget::new(Limits::new());
        let mut request = env.request("hi");
        request.context.provide(budget.clone());
        let context = request.context.clone();
        let answer = agent(BoxModel::new(model.clone()))
            .oneshot(request)
            .await
            .unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.text(), "A");
        spent.push((budget.spent(), answer.finish.usage));
        assert_eq!(answer.finish.run_usage().total(), answer.finish.usage);
        assert_eq!(context.run_usage().models().len(), 0);
        assert_eq!(budget.reserved(), Amounts::new());
    }
    assert_eq!(
        (spent[0].0.model_calls, spent[0].1),
        (1, Usage::new(100, 20))
    );
    assert_eq!(spent[1], (Amounts::new(), ZERO));
    assert_eq!(model.calls(), 1);

    let budget = plugin();
    let other = plugin();
    let cached = layer.layer(other.model().layer(model.clone()));
    let agent = budget.run().layer(AgentLayer::new(NoTools).layer(cached));
    let answer = agent
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!((answer.text(), model.calls()), ("A".to_owned(), 1));
}

#[tokio::test]
async fn a_shared_call_is_charged_to_the_run_that_makes_it() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    // A model that records its tokens.
    let gated = gate.clone();
    let model = service_fn(move |request: ChatRequest| {
        let gate = gated.clone();
        async move {
            gate.pass().await;
            let head = ResponseHead::new("test", "test-1");
            request.context.record_usage(&head, Usage::new(100, 20));
            let events = [
                Ok(Event::text("A")),
                Ok(Event::finish(FinishReason::Stop, Usage::new(100, 20))),
            ];
            Ok::<_, Error>(ChatResponse::new(EventStream::new(stream::iter(events))))
        }
    });
    let plugin = BudgetPlugin::new(Limits::new()).estimate(|_| Usage::new(50, 5));
    let cached = shared().layer(BoxModel::new(plugin.model().layer(model)));
    let agent = plugin.run().layer(AgentLayer::new(NoTools).layer(cached));
    let budgets: Vec<_> = (0..3).map(|_| Budget::new(Limits::new())).collect();
    let runs = budgets.iter().map(|budget| {
        let mut request = env.request("hi");
        request.context.provide(budget.clone());
        let context = request.context.clone();
        let agent = agent.clone();
        tokio::spawn(async move {
            let answer = agent
                .oneshot(request)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap();
            (answer.finish, context.run_usage().total())
        })
    });
    let runs: Vec<_> = runs.collect();
    gate.reached().await;
    gate.open();
    let finishes = join_all(runs).await;
    let mut sum = Usage::new(0, 0);
    for finish in finishes {
        let (finish, recorded) = finish.unwrap();
        assert_eq!(
            finish.run_usage().total().input_tokens(),
            finish.usage.input_tokens()
        );
        assert_eq!(
            recorded.input_tokens().unwrap_or(0),
            finish.usage.input_tokens().unwrap()
        );
        sum += finish.usage;
    }
    assert_eq!(sum, Usage::new(100, 20));
    let calls: u64 = budgets
        .iter()
        .map(|budget| budget.spent().model_calls)
        .sum();
    assert_eq!(calls, 1);
}

#[tokio::test]
async fn each_run_has_its_own_deadline_and_cancellation() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new()
        .sleep(10 * SECOND)
        .text("A")
        .sleep(SECOND)
        .text("B");
    let service = shared().layer(model.clone());
    let request = |seconds: Option<u32>| {
        let mut context = env.context_builder();
        if let Some(seconds) = seconds {
            context = context.deadline(env.context().now() + SECOND * seconds);
        }
        ChatRequest::user("hi").with_context(context.build())
    };
    let mut first = task::spawn(items(service.clone(), request(Some(5))));
    let mut late = task::spawn(items(service.clone(), request(Some(7))));
    let cancelled_request = request(None);
    let cancelled_context = cancelled_request.context.clone();
    let mut cancelled = task::spawn(items(service.clone(), cancelled_request));
    let mut late_later = task::spawn(items(service.clone(), {
        let context = env.context_builder();
        let deadline = env.context().now() + Duration::from_millis(10_500);
        ChatRequest::user("hi").with_context(context.deadline(deadline).build())
    }));
    let mut last = task::spawn(items(service.clone(), request(None)));
    for waiting in [
        &mut first,
        &mut late,
        &mut cancelled,
        &mut late_later,
        &mut last,
    ] {
        assert_pending!(waiting.poll());
    }
    env.advance(5 * SECOND);
    let kind =
        |items: Vec<Result<Event, Error>>| items.last().unwrap().as_ref().unwrap_err().kind();
    assert!(first.is_woken());
    assert_eq!(kind(assert_ready!(first.poll())), ErrorKind::Timeout);
    env.advance(2 * SECOND);
    assert_eq!(kind(assert_ready!(late.poll())), ErrorKind::Timeout);
    cancelled_context.cancel(CancelReason::User);
    assert!(cancelled.is_woken());
    assert_eq!(kind(assert_ready!(cancelled.poll())), ErrorKind::Cancelled);
    drop((first, late, cancelled));
    env.advance(3 * SECOND);
    // After its first event.
    assert_pending!(late_later.poll());
    env.advance(SECOND / 2);
    let items_of_late = assert_ready!(late_later.poll());
    assert_eq!(
        (items_of_late.len(), kind(items_of_late)),
        (2, ErrorKind::Timeout)
    );
    assert_pending!(last.poll());
    env.advance(SECOND);
    assert_eq!(text_of(&events(assert_ready!(last.poll()))), "AB");
    assert_eq!(
        (model.calls(), model.live(), env.clock().sleepers()),
        (1, 0, 0)
    );

    // A run that is cancelled or late begins no call.
    let late = request(Some(0));
    assert_eq!(
        kind(items(unstored().layer(model.clone()), late).await),
        ErrorKind::Timeout
    );
    let cancelled = request(None);
    cancelled.context.cancel(CancelReason::User);
    assert_eq!(
        kind(items(unstored().layer(model.clone()), cancelled).await),
        ErrorKind::Cancelled
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn a_cancelled_agent_leaves_the_call_to_the_others() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let model = ScriptedModel::new().text("A ").wait(&gate).text("cat.");
    let agent = AgentLayer::new(NoTools).layer(unstored().layer(model.clone()));
    let request = env.request("hi");
    let context = request.context.clone();
    let first = tokio::spawn(items(agent.clone(), request));
    gate.reached().await;
    let second = tokio::spawn(items(agent, env.request("hi")));
    tokio::task::yield_now().await;
    context.cancel(CancelReason::User);
    let items = events(first.await.unwrap());
    let Some(Event::Finish(finish)) = items.last() else {
        panic!("{items:?}")
    };
    assert!(matches!(finish.outcome, Outcome::Aborted { .. }));
    gate.open();
    let items = events(second.await.unwrap());
    assert_eq!((text_of(&items), model.calls()), ("A cat.".to_owned(), 1));
    let shared = items.iter().filter(|event| match event {
        Event::Custom(custom) => {
            custom.name == "concentric.response_cache"
                && custom.value == json!({"answer": "shared"})
        }
        _ => false,
    });
    assert_eq!(shared.count(), 1);
}

#[tokio::test]
async fn answers_of_agents_and_edits_of_a_run_are_of_one_run() {
    let env = TestEnvironment::new();
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("A").repeat();
    let agent = BoxModel::new(AgentLayer::new(NoTools).layer(model.clone()));
    let edits = gate.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let editing = BoxModel::new(service_fn(move |_: ChatRequest| {
        counted.fetch_add(1, Ordering::Relaxed);
        let gate = edits.clone();
        async move {
            gate.pass().await;
            let events = [
                Ok(Event::text("A")),
                Ok(Event::finish(FinishReason::Stop, ZERO)),
            ];
            let body = EventStream::new(stream::iter(events));
            Ok::<_, Error>(ChatResponse::new(body).with_edits(RunEdits::default()))
        }
    }));
    for inner in [agent, editing] {
        let service = shared().layer(inner);
        let both = [(); 2].map(|()| tokio::spawn(items(service.clone(), env.request("hi"))));
        tokio::task::yield_now().await;
        gate.open();
        for answer in join_all(both).await {
            assert_eq!(text_of(&events(answer.unwrap())), "A");
        }
        items(service, env.request("hi")).await;
    }
    assert_eq!((model.calls(), calls.load(Ordering::Relaxed)), (3, 3));
    assert_eq!((model.live(), model.dropped()), (0, 0));
}

#[tokio::test]
async fn runs_that_are_stored_and_nested_agents_use_one_cache() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().text("A").repeat();
    let layer = shared();
    let agent = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
    let stored = SuspendLayer::new(Arc::new(MemoryStore::new())).layer(agent);
    for _ in 0..2 {
        let context = env.context_builder().thread_id(ThreadId::new("t1")).build();
        let request = ChatRequest::user("hi").with_context(context);
        let answer = stored.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "A");
    }
    let nested = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
    let context = env.context().child().build();
    let request = ChatRequest::user("hi").with_context(context);
    assert_eq!(
        nested.oneshot(request).await.unwrap().text().await.unwrap(),
        "A"
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn the_future_waits_for_the_inner_service_and_a_hit_does_not() {
    let env = TestEnvironment::new();
    let (mock, mut handle) = tower_test::mock::pair::<ChatRequest, ChatResponse<EventStream>>();
    let service = shared().layer(mock);
    handle.allow(0);
    let mut first = task::spawn(items(service.clone(), env.request("hi")));
    assert_pending!(first.poll());
    handle.allow(1);
    assert_pending!(first.poll());
    let (_, respond) = handle.next_request().await.unwrap();
    let events_of = [
        Ok(Event::text("A")),
        Ok(Event::finish(FinishReason::Stop, ZERO)),
    ];
    respond.send_response(ChatResponse::new(EventStream::new(stream::iter(events_of))));
    assert_eq!(text_of(&events(first.await)), "A");
    let hit = items(service, env.request("hi")).now_or_never().unwrap();
    assert_eq!(text_of(&events(hit)), "A");
}

#[tokio::test]
async fn a_drop_at_any_point_leaves_nothing_open() {
    let env = TestEnvironment::new();
    for others in 0..3 {
        let model = ScriptedModel::new()
            .pause()
            .text("A ")
            .pause()
            .text("cat.")
            .pause()
            .repeat();
        let service = unstored().layer(model.clone());
        drop_at_each_wait(
            || {
                let calls = (0..=others).map(|_| items(service.clone(), env.request("hi")));
                join_all(calls)
            },
            async |_| assert_eq!((model.live(), env.clock().sleepers()), (0, 0)),
        )
        .await;
    }
}

#[tokio::test]
async fn nothing_prints_content() {
    let env = TestEnvironment::new();
    let layer = shared();
    let service = layer.layer(ScriptedModel::new().text("canary"));
    let mut future = task::spawn(service.clone().call(env.request("canary")));
    let printed = format!("{layer:?}{service:?}{:?}", *future);
    let response = assert_ready!(future.poll()).unwrap();
    let printed = format!("{printed}{:?}", response.body);
    response.body.collect::<Vec<_>>().await;
    let hit = service.oneshot(env.request("canary")).await.unwrap();
    let printed = format!("{printed}{:?}{:?}", hit.body, hit.extensions);
    assert!(!printed.contains("canary"), "{printed}");
}

/// Readers in tasks on several threads, of a call that other tasks wake.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wakeup_is_lost_between_threads() {
    for round in 0..50_u64 {
        let model = service_fn(move |_: ChatRequest| async move {
            let (sender, receiver) = tokio::sync::mpsc::channel(1 + round as usize % 3);
            tokio::spawn(async move {
                for piece in 0..20_u64 {
                    if (piece + round).is_multiple_of(3) {
                        tokio::task::yield_now().await;
                    }
                    let event = Event::text(format!("{piece};"));
                    if sender.send(Ok(event)).await.is_err() {
                        return;
                    }
                }
                let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
                let _ = sender.send(Ok(finish)).await;
            });
            let body = stream::unfold(receiver, async |mut receiver| {
                Some((receiver.recv().await?, receiver))
            });
            Ok::<_, Error>(ChatResponse::new(EventStream::new(body)))
        });
        let service = unstored().layer(model);
        let readers = (0..8_u64).map(|reader| {
            let service = service.clone();
            tokio::spawn(async move {
                let request = ChatRequest::user("hi");
                let mut body = service.oneshot(request).await.unwrap().body;
                let mut text = String::new();
                let mut received = 0;
                while let Some(event) = body.next().await {
                    received += 1;
                    // Some leave, and some are slow.
                    if reader % 4 == 1 && received > reader {
                        return None;
                    }
                    if reader % 4 == 2 {
                        tokio::task::yield_now().await;
                    }
                    if let Event::TextDelta(delta) = event.unwrap() {
                        text.push_str(&delta);
                    }
                }
                Some(text)
            })
        });
        let readers: Vec<_> = readers.collect();
        let all = tokio::time::timeout(Duration::from_secs(30), join_all(readers));
        let expected: String = (0..20).map(|piece| format!("{piece};")).collect();
        for text in all.await.expect("a reader was not woken") {
            assert!(text.unwrap().is_none_or(|text| text == expected));
        }
    }
}
