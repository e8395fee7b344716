//! Answers in a store that several processes share.

use super::{SECOND, ZERO, events, items, shared, usage};
use crate::cache_stores::{Behaviour, TestStore, changes, damages, sealed};
use concentric_core::{
    CallId, ChatRequest, CustomEvent, ErrorKind, Event, Finish, FinishReason, Outcome, Part,
    PartKind, ThreadId, ToolCallPart, Usage,
    store::{CacheStore, Tenant},
};
use concentric_layers::response_cache::{CacheControl, CacheScope, Replayed, ResponseCacheLayer};
use concentric_store::{Options, SqliteStore};
use concentric_test::{ScriptedModel, TestEnvironment, check_layer, text_of};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::{task::Poll, time::Duration};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt};

const WAIT: Duration = Duration::from_millis(250);

/// The layer of another process: it has a cache of its own.
fn process(store: &TestStore) -> ResponseCacheLayer {
    shared().store(store.clone(), "model")
}

fn model(text: &'static str) -> ScriptedModel {
    ScriptedModel::new()
        .reasoning("Hm.")
        .deltas([text, "."])
        .usage(Usage::new(9, 2))
        .repeat()
}

/// Lets tasks of the runtime run.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Stores the answer "A." to the request "hi".
async fn stored(env: &TestEnvironment, store: &TestStore) {
    items(process(store).layer(model("A")), env.request("hi")).await;
    store.written(1).await;
}

#[tokio::test]
async fn another_process_is_served_from_the_store() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let one = items(process(&store).layer(model("A")), env.request("hi")).await;
    assert_eq!(usage(&events(one)), Usage::new(9, 2));
    store.written(1).await;
    env.advance(SECOND);

    let none = ScriptedModel::new();
    let service = process(&store).layer(none.clone());
    for gets in [2, 2] {
        let hit = service.clone().oneshot(env.request("hi")).await.unwrap();
        let replayed = *hit.extensions.get::<Replayed>().unwrap();
        assert_eq!((replayed.usage, replayed.age), (Usage::new(9, 2), SECOND));
        let items = events(hit.body.collect().await);
        assert_eq!(
            items[..2],
            [Event::ReasoningDelta("Hm.".into()), Event::text("A.")]
        );
        assert_eq!((items.len(), usage(&items)), (3, ZERO));
        // The second request is answered from the process.
        assert_eq!((store.gets(), none.calls()), (gets, 0));
    }
    assert_eq!(store.puts(), 1);
}

#[tokio::test]
async fn answers_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.db");
    let env = TestEnvironment::new();
    let open = || {
        let options = Options::new().clock(env.clock().clone());
        SqliteStore::open_with(&path, options).unwrap()
    };
    let (one, other) = (open(), open());
    let store = TestStore::over(one);
    stored(&env, &store).await;
    drop(store);
    // Another process that runs at the same time, and a later one.
    for store in [TestStore::over(other), TestStore::over(open())] {
        env.advance(SECOND);
        // As slow as the file is: the clock of the run stands still.
        let service = process(&store).layer(ScriptedModel::new());
        let items = items(service, env.request("hi")).await;
        assert_eq!(text_of(&events(items)), "A.");
        let gone = store.remove_entries(Tenant::default(), None, Some("other".into()));
        assert_eq!(gone.await.unwrap(), 0);
    }
}

#[tokio::test]
async fn it_is_a_layer_with_a_store() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    store.set(Behaviour::Fails);
    check_layer(process(&store).ttl(Duration::ZERO)).await;
    store.set(Behaviour::Works);
    check_layer(process(&store)).await;
}

#[tokio::test]
async fn a_store_that_fails_is_a_miss() {
    for behaviour in [
        Behaviour::Fails,
        Behaviour::PanicsWhenCalled,
        Behaviour::PanicsWhenPolled,
    ] {
        let env = TestEnvironment::new();
        let store = TestStore::new(&env);
        stored(&env, &store).await;
        store.set(behaviour);
        let model = model("B");
        let service = process(&store).layer(model.clone());
        for _ in 0..2 {
            let items = items(service.clone(), env.request("hi")).await;
            assert_eq!(text_of(&events(items)), "B.");
        }
        settle().await;
        // The process keeps its answer.
        assert_eq!((model.calls(), store.gets(), store.puts()), (1, 2, 2));
    }
}

#[tokio::test]
async fn a_store_that_hangs_delays_a_request_up_to_its_wait() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    store.set(Behaviour::Hangs);
    let model = model("B");
    let service = process(&store).layer(model.clone());
    let calls = (0..20).map(|_| task::spawn(items(service.clone(), env.request("hi"))));
    let mut calls: Vec<_> = calls.collect();
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    env.advance(WAIT - Duration::from_nanos(1));
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    assert_eq!((store.gets(), model.calls()), (1, 0));
    env.advance(Duration::from_nanos(1));
    for call in &mut calls {
        assert_eq!(text_of(&events(assert_ready!(call.poll()))), "B.");
    }
    // The write hangs as well, and no request waits for it.
    settle().await;
    assert_eq!((store.gets(), store.puts(), model.calls()), (1, 1, 1));

    // With no wait at all.
    let service = process(&store).store_wait(Duration::ZERO).layer(model);
    let items = items(service, env.request("hi")).now_or_never();
    assert_eq!(text_of(&events(items.unwrap())), "B.");
}

#[tokio::test]
async fn a_dropped_lookup_leaves_nothing() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    store.set(Behaviour::Hangs);
    let model = model("A");
    let service = process(&store).layer(model.clone());
    let mut call = task::spawn(items(service.clone(), env.request("hi")));
    assert_pending!(call.poll());
    // Another run that waits continues without the first.
    let mut other = task::spawn(items(service.clone(), env.request("hi")));
    assert_pending!(other.poll());
    drop(call);
    env.advance(WAIT);
    assert_eq!(text_of(&events(assert_ready!(other.poll()))), "A.");
    assert_eq!((store.gets(), model.calls(), model.live()), (1, 1, 0));

    let mut call = task::spawn(items(service, env.request("other")));
    assert_pending!(call.poll());
    drop(call);
    settle().await;
    assert_eq!((store.gets(), store.puts(), model.calls()), (2, 1, 1));
}

#[tokio::test]
async fn a_required_store_fails_the_request() {
    for behaviour in [
        Behaviour::Fails,
        Behaviour::Hangs,
        Behaviour::PanicsWhenPolled,
    ] {
        let env = TestEnvironment::new();
        let store = TestStore::new(&env);
        store.set(behaviour);
        let model = model("A");
        let service = process(&store).store_required(true).layer(model.clone());
        let mut call = task::spawn(items(service.clone(), env.request("hi")));
        let items = match call.poll() {
            Poll::Ready(items) => items,
            Poll::Pending => {
                env.advance(WAIT);
                assert_ready!(call.poll())
            }
        };
        let error = items[0].as_ref().unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Server, Some("store_failed"))
        );
        assert_eq!(model.calls(), 0);
        store.set(Behaviour::Works);
        let items = super::items(service, env.request("hi")).await;
        assert_eq!(
            (text_of(&events(items)), model.calls()),
            ("A.".to_owned(), 1)
        );
    }
}

#[tokio::test]
async fn a_changed_entry_is_a_miss_and_is_replaced() {
    for (n, damage) in damages().into_iter().enumerate() {
        let env = TestEnvironment::new();
        let store = TestStore::new(&env);
        stored(&env, &store).await;
        store.set(damage);
        let other = model("B");
        // A store that is required must respond; its entries need not be usable.
        let service = process(&store).store_required(true).layer(other.clone());
        let items = items(service, env.request("hi")).await;
        assert_eq!(
            (text_of(&events(items)), other.calls()),
            ("B.".to_owned(), 1),
            "{n}"
        );
        store.written(2).await;
        store.set(Behaviour::Works);
        let service = process(&store).layer(ScriptedModel::new());
        let items = super::items(service, env.request("hi")).await;
        assert_eq!(text_of(&events(items)), "B.", "{n}");
    }
}

#[tokio::test]
async fn an_answer_that_would_not_be_stored_is_a_miss() {
    let text = || vec![Event::text("forged")];
    let stop = || Finish::new(FinishReason::Stop, Usage::new(1, 1));
    let call = || ToolCallPart::new(CallId::new("c1"), "look", "{}");
    let with = |event: Event| [text(), vec![event]].concat();
    let refusal = Part::new(PartKind::Refusal("no".into()));
    let answers = [
        (text(), Finish::new(FinishReason::Length, Usage::new(1, 1))),
        (
            text(),
            Finish::new(FinishReason::ContentFilter, Usage::new(1, 1)),
        ),
        (text(), stop().with_outcome(Outcome::StepLimit)),
        (with(Event::Reset), stop()),
        (with(Event::RefusalDelta("no".into())), stop()),
        (with(Event::Part(Box::new(refusal))), stop()),
        (with(CustomEvent::new("x", json!(1)).into()), stop()),
        (with(Event::tool_call(call())), stop()),
        (
            with(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
            stop(),
        ),
        (
            vec![Event::text("x".repeat(1 << 20)), Event::text("y")],
            stop(),
        ),
        (Vec::new(), stop()),
    ];
    let answers = answers.map(|(events, finish)| {
        json!([null, null, null, Usage::new(1, 1), events, finish]).to_string()
    });
    let mut forged: Vec<_> = answers.into();
    let valid = json!([null, null, null, Usage::new(1, 1), text(), stop()]).to_string();
    for text in ["", "{}", "[]", "null", "[null, null, null]"] {
        forged.push(text.to_owned());
    }
    forged.push("[".repeat(1 << 20));
    forged.push(valid.replace("text_delta", "text_delta_of_a_later_release"));
    let forge = async |json: String| {
        let env = TestEnvironment::new();
        let store = TestStore::new(&env);
        stored(&env, &store).await;
        store.set(changes(move |key, _| sealed(key, json.as_bytes())));
        let service = process(&store).layer(model("B"));
        text_of(&events(items(service, env.request("hi")).await))
    };
    for json in forged {
        let start = json.chars().take(200).collect::<String>();
        assert_eq!(forge(json).await, "B.", "{start}");
    }
    // The same form with an answer that would be.
    assert_eq!(forge(valid).await, "forged");
}

#[tokio::test]
async fn only_whole_answers_are_written() {
    let text = || ScriptedModel::new().text("A");
    let finish = |reason| Finish::new(reason, Usage::new(1, 1));
    let scripts = [
        text().end_early(),
        text().error(concentric_core::Error::new(ErrorKind::Server, "broke")),
        text().finish(finish(FinishReason::Length)),
        text().finish(finish(FinishReason::ContentFilter)),
        text().event(Event::RefusalDelta("no".into())),
        text().tool_call("look", json!({})),
    ];
    for script in scripts {
        let env = TestEnvironment::new();
        let store = TestStore::new(&env);
        let service = process(&store).layer(script.repeat());
        items(service, env.request("hi")).await;
        settle().await;
        assert_eq!((store.gets(), store.puts()), (1, 0));
    }
    // Nor is one whose consumer leaves before its end.
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let model = model("A");
    let service = process(&store).layer(model.clone());
    let mut body = service.oneshot(env.request("hi")).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    drop(body);
    settle().await;
    assert_eq!((store.puts(), model.live()), (0, 0));
}

#[tokio::test]
async fn answers_with_tool_calls_are_for_layers_that_store_them() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let calls = || ScriptedModel::new().tool_call("look", json!({})).repeat();
    let layer = || process(&store).tool_calls(true);
    items(layer().layer(calls()), env.request("hi")).await;
    store.written(1).await;
    let (same, other) = (calls(), calls());
    items(layer().layer(same.clone()), env.request("hi")).await;
    items(process(&store).layer(other.clone()), env.request("hi")).await;
    assert_eq!((same.calls(), other.calls()), (0, 1));
}

#[tokio::test]
async fn tenants_conversations_and_spaces_share_nothing() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let request = |tenant: &'static str, thread: &str| -> ChatRequest {
        let mut context = env
            .context_builder()
            .thread_id(ThreadId::new(thread))
            .build();
        context.extensions_mut().insert(Tenant(tenant.into()));
        ChatRequest::user("hi").with_context(context)
    };
    let scopes = [
        CacheScope::Tenant,
        CacheScope::Thread,
        CacheScope::Run,
        CacheScope::Shared,
    ];
    // The first request of each is a call, also with a store in which the others are.
    let mut writes = 0;
    for scope in scopes {
        for space in ["a", "b"] {
            let layer = || ResponseCacheLayer::new(scope).store(store.clone(), space);
            let (mut seen, mut expected) = (Vec::new(), Vec::new());
            for (tenant, thread) in [("ann", "t"), ("ann", "u"), ("bob", "t"), ("ann", "t")] {
                let model = model("A");
                items(layer().layer(model.clone()), request(tenant, thread)).await;
                writes += model.calls();
                store.written(writes).await;
                seen.push(model.calls());
            }
            expected.extend(match scope {
                CacheScope::Tenant => [1, 0, 1, 0],
                CacheScope::Thread => [1, 1, 1, 0],
                // Each request is of another run.
                CacheScope::Run => [1, 1, 1, 1],
                _ => [1, 0, 0, 0],
            });
            assert_eq!(seen, expected, "{scope:?} {space}");
        }
    }
    // An answer goes with its tenant, or with its conversation.
    let removed = |tenant: &'static str, thread: Option<&str>| {
        store.remove_entries(
            Tenant(tenant.into()),
            thread.map(ThreadId::new),
            Some("a".into()),
        )
    };
    assert_eq!(removed("ann", Some("t")).await.unwrap(), 3);
    assert_eq!(removed("ann", None).await.unwrap(), 3);
    assert_eq!(removed("", None).await.unwrap(), 1);
}

#[tokio::test]
async fn an_answer_expires_after_it_was_written() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let layer = || process(&store).ttl(100 * SECOND);
    items(layer().layer(model("A")), env.request("hi")).await;
    store.written(1).await;
    let other = model("B");
    let service = layer().layer(other.clone());
    for (seconds, expected) in [(60, "A."), (39, "A."), (1, "B.")] {
        env.advance(seconds * SECOND);
        let items = items(service.clone(), env.request("hi")).await;
        assert_eq!(text_of(&events(items)), expected, "{seconds}");
    }
    // A layer with a shorter time does not use what others still do.
    assert_eq!((other.calls(), store.gets()), (1, 3));
    store.written(2).await;
    env.advance(60 * SECOND);
    for (ttl, expected) in [(61, "B."), (60, "C.")] {
        let layer = process(&store).ttl(ttl * SECOND);
        let items = items(layer.layer(model("C")), env.request("hi")).await;
        assert_eq!(text_of(&events(items)), expected, "{ttl}");
    }
}

#[tokio::test]
async fn a_refresh_replaces_the_entry_and_a_bypass_leaves_it() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    stored(&env, &store).await;
    for (control, gets, text) in [
        (CacheControl::Bypass, 1, "A."),
        (CacheControl::Refresh, 2, "B."),
    ] {
        let mut request = env.request("hi");
        request.context.extensions_mut().insert(control);
        let items = items(process(&store).layer(model("B")), request).await;
        assert_eq!(text_of(&events(items)), "B.");
        settle().await;
        assert_eq!(store.gets(), gets);
        let service = process(&store).layer(ScriptedModel::new());
        let items = super::items(service, env.request("hi")).await;
        assert_eq!(text_of(&events(items)), text);
    }
}

#[tokio::test]
async fn writes_in_progress_are_bounded() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let service = process(&store).layer(model("A"));
    store.set(Behaviour::Hangs);
    let calls = (0..100).map(|n| task::spawn(items(service.clone(), env.request(format!("{n}")))));
    let mut calls: Vec<_> = calls.collect();
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    env.advance(WAIT);
    for call in &mut calls {
        assert_eq!(text_of(&events(assert_ready!(call.poll()))), "A.");
    }
    settle().await;
    assert_eq!(store.puts(), 64);
    // The writes are given up.
    env.advance(10 * SECOND);
    settle().await;
    store.set(Behaviour::Works);
    items(service, env.request("later")).await;
    store.written(1).await;
    assert_eq!(store.puts(), 65);
}

#[test]
fn without_a_runtime_an_answer_is_not_written() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let service = process(&store).layer(model("A"));
    let items = items(service, env.request("hi")).now_or_never().unwrap();
    assert_eq!(
        (text_of(&events(items)), store.puts()),
        ("A.".to_owned(), 0)
    );
}
