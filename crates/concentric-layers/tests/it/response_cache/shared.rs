//! Calls that several requests share.

use super::{SECOND, ZERO, events, items, shared, unstored, usage};
use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Error, ErrorKind, Event,
    EventStream, Finish, FinishReason, NoTools, Outcome, SideEffects, Str, Usage,
    run_state::RunEdits,
};
use concentric_layers::response_cache::{CacheControl, LAGGED};
use concentric_test::{Gate, ScriptedModel, TestEnvironment, drop_at_each_wait, text_of};
use futures_util::{FutureExt, StreamExt, future::join_all, stream};
use serde_json::json;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt, service_fn};

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
async fn a_request_waits_for_the_next_call_whichever_run_makes_it() {
    let broken = || Error::new(ErrorKind::Server, "broke");
    let effects = broken().with_effects(SideEffects::Possible);
    // Not stored, so that it can be received only from its call.
    let answer = || {
        let finish = Finish::new(FinishReason::Length, Usage::new(1, 1));
        ScriptedModel::new().text("A").finish(finish)
    };
    for (failures, last) in [
        (1, answer()),
        (1, ScriptedModel::new().error(effects.clone())),
        (4, answer()),
        (4, ScriptedModel::new().error(effects)),
    ] {
        let (env, gate) = (TestEnvironment::new(), Gate::new());
        let mut model = ScriptedModel::new().wait(&gate).error(broken());
        for _ in 1..failures {
            model = model.then().error(broken());
        }
        let last = Arc::new(Mutex::new(Some(last)));
        let calls = Arc::new(AtomicUsize::new(0));
        let (scripted, counted) = (model.clone(), Arc::clone(&calls));
        let service = shared().layer(service_fn(move |request: ChatRequest| {
            let model = match counted.fetch_add(1, Ordering::Relaxed) == failures {
                true => last.lock().unwrap().take().unwrap(),
                false => scripted.clone(),
            };
            model.oneshot(request)
        }));
        let request = || task::spawn(items(service.clone(), env.request("hi")));
        let mut first = request();
        assert_pending!(first.poll());
        let (mut waiting, mut dropped) = (request(), request());
        assert_pending!(waiting.poll());
        assert_pending!(dropped.poll());
        gate.open();
        let failed = assert_ready!(first.poll());
        assert_eq!(failed[0].as_ref().unwrap_err().kind(), ErrorKind::Server);

        // Others make the next calls before the ones that wait are polled.
        for _ in 1..failures {
            let failed = assert_ready!(request().poll());
            assert!(failed[0].is_err());
        }
        let others = assert_ready!(request().poll());
        assert!(waiting.is_woken());
        drop(dropped);
        let waited = assert_ready!(waiting.poll());
        match others[0].as_ref() {
            Ok(event) => {
                assert_eq!(event, waited[0].as_ref().unwrap());
                assert_eq!(text_of(&events(waited)), "A");
            }
            Err(_) => {
                let error = waited[0].as_ref().unwrap_err();
                assert_eq!(error.effects(), SideEffects::Possible);
            }
        }
        assert_eq!(calls.load(Ordering::Relaxed), failures + 1);
    }
}

#[tokio::test]
async fn a_call_that_waits_is_held_by_the_requests_that_have_not_been_polled() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let broken = Error::new(ErrorKind::Server, "broke");
    let model = ScriptedModel::new().wait(&gate).error(broken);
    let model = model.then().text("A").never();
    let service = shared().layer(model.clone());
    let request = || task::spawn(items(service.clone(), env.request("hi")));
    let mut first = request();
    assert_pending!(first.poll());
    let mut waiting = request();
    assert_pending!(waiting.poll());
    gate.open();
    assert!(assert_ready!(first.poll())[0].is_err());
    let mut next = request();
    assert_pending!(next.poll());
    drop(next);
    assert_eq!((model.calls(), model.live()), (2, 1));
    // It has a place in that call.
    assert_pending!(waiting.poll());
    assert_eq!((model.calls(), model.live()), (2, 1));
    drop(waiting);
    assert_eq!(model.live(), 0);
}

#[tokio::test]
async fn a_refresh_is_the_next_call_of_the_requests_that_wait() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let broken = Error::new(ErrorKind::Server, "broke");
    let effects = broken.clone().with_effects(SideEffects::Possible);
    let model = ScriptedModel::new().wait(&gate).error(broken);
    let model = model.then().error(effects);
    let service = shared().layer(model.clone());
    let request = || task::spawn(items(service.clone(), env.request("hi")));
    let mut first = request();
    assert_pending!(first.poll());
    let mut waiting = request();
    assert_pending!(waiting.poll());
    gate.open();
    assert!(assert_ready!(first.poll())[0].is_err());
    let mut refresh = env.request("hi");
    let extensions = refresh.context.extensions_mut();
    extensions.insert(CacheControl::Refresh);
    assert!(items(service.clone(), refresh).await[0].is_err());
    let waited = assert_ready!(waiting.poll());
    let error = waited[0].as_ref().unwrap_err();
    assert_eq!(error.effects(), SideEffects::Possible);
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_reader_that_is_far_behind_receives_effects() {
    let env = TestEnvironment::new();
    let effects = Error::new(ErrorKind::Server, "broke").with_effects(SideEffects::Possible);
    let model = ScriptedModel::new()
        .text("A")
        .pause()
        .deltas([(); 9].map(|()| "x".repeat(16 << 10)))
        .error(effects);
    let service = unstored().max_bytes(0).layer(model.clone());
    let mut first = task::spawn(items(service.clone(), env.request("hi")));
    // Has the beginning of the answer.
    let mut begun = service.clone().oneshot(env.request("hi")).await.unwrap();
    assert_eq!(begun.body.next().await.unwrap().unwrap(), Event::text("A"));
    assert_pending!(first.poll());
    // Has received nothing.
    let mut waiting = task::spawn(service.clone().oneshot(env.request("hi")));
    let mut other = service.clone().oneshot(env.request("hi")).await.unwrap();
    let polled = waiting.poll();
    while other.body.next().await.is_some() {}
    drop(polled);
    let last = begun.body.collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(last.unwrap_err().effects(), SideEffects::Possible);
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

#[tokio::test]
async fn a_later_request_is_not_the_run_that_made_the_call() {
    let env = TestEnvironment::new();
    let broken = Error::new(ErrorKind::Server, "broke");
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).error(broken);
    let model = model.then().text("A");
    let agent = AgentLayer::new(NoTools).layer(unstored().layer(model.clone()));
    let request = || task::spawn(items(agent.clone(), env.request("hi")));
    let (mut first, mut second) = (request(), request());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(first);
    // Takes no place of the one that has left.
    let mut third = request();
    assert_pending!(third.poll());
    gate.open();
    let shared = |items: &[Event]| {
        let customs = items.iter().filter(|it| matches!(it, Event::Custom(_)));
        customs.count()
    };
    // Neither receives the error: one of them makes the next call.
    let (second, third) = (events(second.await), events(third.await));
    assert_eq!(
        (text_of(&second), text_of(&third)),
        ("A".into(), "A".into())
    );
    assert_eq!((model.calls(), shared(&second) + shared(&third)), (2, 1));
}

#[tokio::test]
async fn a_refresh_joins_no_call_and_is_joined() {
    let (env, old, new) = (TestEnvironment::new(), Gate::new(), Gate::new());
    let model = ScriptedModel::new().wait(&old).text("old");
    let model = model.then().wait(&new).text("new");
    let service = unstored().layer(model.clone());
    let request = || task::spawn(items(service.clone(), env.request("hi")));
    let mut first = request();
    assert_pending!(first.poll());
    let mut refresh = env.request("hi");
    refresh
        .context
        .extensions_mut()
        .insert(CacheControl::Refresh);
    let mut refresh = task::spawn(items(service.clone(), refresh));
    assert_pending!(refresh.poll());
    assert_eq!(model.calls(), 2);
    // The end of the older call does not hide the newer one.
    old.open();
    assert_eq!(text_of(&events(assert_ready!(first.poll()))), "old");
    let mut last = request();
    assert_pending!(last.poll());
    new.open();
    for items in [assert_ready!(refresh.poll()), assert_ready!(last.poll())] {
        assert_eq!(text_of(&events(items)), "new");
    }
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn more_calls_than_the_limit_are_not_shared() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().never().repeat();
    let service = unstored().layer(model.clone());
    let request = |text: String| {
        let mut call = task::spawn(service.clone().oneshot(env.request(text)));
        assert_pending!(call.poll());
        call
    };
    let mut calls: Vec<_> = (0..1_024).map(|n| request(n.to_string())).collect();
    calls.push(request("1023".into()));
    assert_eq!(model.calls(), 1_024);
    calls.extend([request("more".into()), request("more".into())]);
    assert_eq!(model.calls(), 1_026);
    // A call that ends leaves its place to another one.
    drop(calls.remove(0));
    calls.extend([request("again".into()), request("again".into())]);
    assert_eq!(model.calls(), 1_027);
}

#[tokio::test]
async fn a_failed_answer_holds_no_later_call() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let broken = Error::new(ErrorKind::Connection, "reset");
    let model = ScriptedModel::new().text("A").wait(&gate).error(broken);
    let model = model.then().never().repeat();
    let service = unstored().layer(model.clone());
    let call = || service.clone().oneshot(env.request("hi"));
    let (mut one, two) = (call().await.unwrap().body, call().await.unwrap().body);
    gate.open();
    while one.next().await.is_some_and(|item| item.is_ok()) {}
    // `two` has not received the error.
    let mut next = task::spawn(call());
    assert_pending!(next.poll());
    assert_eq!((model.calls(), model.live()), (2, 1));
    drop(next);
    assert_eq!(model.live(), 0);
    drop(two);
}

#[tokio::test]
async fn the_tokens_are_reported_by_a_reader_that_receives_the_finish() {
    let env = TestEnvironment::new();
    let pieces = [(); 9].map(|()| "x".repeat(16 << 10));
    let model = ScriptedModel::new().deltas(pieces).usage(Usage::new(9, 2));
    let service = unstored().max_bytes(0).layer(model.clone());
    // The run that made the call is far behind.
    let behind = service.clone().oneshot(env.request("hi")).await.unwrap();
    let other = events(items(service, env.request("hi")).await);
    assert_eq!((usage(&other), model.calls()), (Usage::new(9, 2), 1));
    let last = behind.body.collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(last.unwrap_err().code(), Some(LAGGED));
}

#[tokio::test]
async fn the_answer_of_a_run_that_has_left_is_dropped() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let model = ScriptedModel::new().text("A").never().repeat();
    let agent = AgentLayer::new(NoTools).layer(model.clone());
    let gated = gate.clone();
    let slow = service_fn(move |request: ChatRequest| {
        let (agent, gate) = (agent.clone(), gated.clone());
        async move {
            gate.pass().await;
            agent.oneshot(request).await
        }
    });
    let service = unstored().layer(slow);
    let call = || task::spawn(service.clone().oneshot(env.request("hi")));
    let (mut first, mut second, mut third) = (call(), call(), call());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    gate.open();
    // The second one polls the call, whose answer is of the first one's run.
    let own = assert_ready!(second.poll()).unwrap();
    assert_eq!((model.calls(), model.live()), (2, 2));
    // Although the third one has not been polled since.
    drop(first);
    assert_eq!(model.live(), 1);
    drop(own);
    assert_eq!(model.live(), 0);
    drop(third);
}

#[tokio::test]
async fn a_waiting_request_holds_one_later_call() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let opened = gate.clone();
    let service = unstored().layer(service_fn(move |_: ChatRequest| {
        let gate = opened.clone();
        async move {
            gate.pass().await;
            Err::<ChatResponse<EventStream>, _>(Error::new(ErrorKind::Server, "broke"))
        }
    }));
    let held = Arc::new(());
    let request = || {
        let mut request = env.request("hi");
        request.context.extensions_mut().insert(Arc::clone(&held));
        task::spawn(items(service.clone(), request))
    };
    let (mut first, mut waiting) = (request(), request());
    assert_pending!(first.poll());
    assert_pending!(waiting.poll());
    gate.open();
    assert!(assert_ready!(first.poll())[0].is_err());
    drop(first);
    // Each of them is the next call of the one that waits, which is not polled.
    let mut counts = Vec::new();
    for _ in 0..10 {
        assert!(assert_ready!(request().poll())[0].is_err());
        counts.push(Arc::strong_count(&held));
    }
    assert_eq!(counts[1..], [counts[1]; 9]);
    drop(waiting);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn a_reader_that_is_polled_while_another_one_polls_the_call_is_woken() {
    type Reader = task::Spawn<Pin<Box<dyn Future<Output = Vec<Result<Event, Error>>> + Send>>>;
    let env = TestEnvironment::new();
    let other = Arc::new(Mutex::new(None::<Reader>));
    let polled = Arc::clone(&other);
    let service = unstored().layer(service_fn(move |_: ChatRequest| {
        let (other, mut polls) = (Arc::clone(&polled), 0);
        let body = stream::poll_fn(move |cx| {
            polls += 1;
            Poll::Ready(match polls {
                1 => {
                    // It is woken before the other reader waits.
                    cx.waker().wake_by_ref();
                    let mut other = other.lock().unwrap();
                    assert_pending!(other.as_mut().unwrap().poll());
                    return Poll::Pending;
                }
                2 => Some(Ok(Event::text("A"))),
                3 => Some(Ok(Event::finish(FinishReason::Stop, ZERO))),
                _ => None,
            })
        });
        std::future::ready(Ok::<_, Error>(ChatResponse::new(EventStream::new(body))))
    }));
    let reader = || items(service.clone(), env.request("hi"));
    *other.lock().unwrap() = Some(task::spawn(Box::pin(reader())));
    let mut first = task::spawn(reader());
    assert_pending!(first.poll());
    drop(first);
    let mut other = other.lock().unwrap().take().unwrap();
    assert!(other.is_woken());
    assert_eq!(text_of(&events(assert_ready!(other.poll()))), "A");
}

#[tokio::test]
async fn an_answer_without_events_is_not_shared() {
    let (env, gate) = (TestEnvironment::new(), Gate::new());
    let (opened, calls) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let service = unstored().layer(service_fn(move |_: ChatRequest| {
        let (gate, call) = (opened.clone(), calls.fetch_add(1, Ordering::Relaxed));
        async move {
            gate.pass().await;
            let events = [
                Ok(Event::text("A")),
                Ok(Event::finish(FinishReason::Stop, ZERO)),
            ];
            let events = events.into_iter().take(if call == 0 { 0 } else { 2 });
            Ok::<_, Error>(ChatResponse::new(EventStream::new(stream::iter(events))))
        }
    }));
    let reader = || task::spawn(items(service.clone(), env.request("hi")));
    let (mut first, mut second) = (reader(), reader());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    gate.open();
    let failed = assert_ready!(first.poll());
    assert_eq!(failed[0].as_ref().unwrap_err().kind(), ErrorKind::Truncated);
    assert_eq!(text_of(&events(assert_ready!(second.poll()))), "A");
}
