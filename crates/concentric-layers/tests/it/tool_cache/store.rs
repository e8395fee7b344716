//! Results in a store that several processes share.

use super::{Count, call, counting, texts};
use crate::cache_stores::{Behaviour, TestStore, changes, damages, sealed};
use concentric_core::{
    CallId, Context, Error, ErrorKind, ToolCall, ToolCallPart, ToolOutcome, ToolSpec, store::Tenant,
};
use concentric_layers::tool_cache::{CacheScope, ToolCacheLayer};
use concentric_store::{Options, SqliteStore};
use concentric_test::TestEnvironment;
use futures_util::future::join_all;
use serde_json::json;
use std::{sync::Arc, task::Poll, time::Duration};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt, service_fn};

const WAIT: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_secs(1);

/// The layer of another process: it has a cache of its own.
fn process(store: &TestStore) -> ToolCacheLayer {
    ToolCacheLayer::new(CacheScope::Shared).store(store.clone(), "catalogue")
}

/// The result of a call in a process of its own, and the number of executions.
async fn result(store: &TestStore, context: &Context) -> (String, usize) {
    let count = Count::default();
    count.next();
    let tool = process(store).layer(counting(&count));
    let texts = texts(&tool, [call(context, "{}"), call(context, "{}")]).await;
    assert_eq!(texts[0], texts[1]);
    (texts[0].clone(), count.get() - 1)
}

/// Stores the result "1".
async fn stored(store: &TestStore, context: &Context) {
    let tool = process(store).layer(counting(&Count::default()));
    assert_eq!(texts(&tool, [call(context, "{}")]).await, ["1"]);
    store.written(1).await;
}

#[tokio::test]
async fn another_process_is_served_from_the_store() {
    let env = TestEnvironment::new();
    let (store, context) = (TestStore::new(&env), env.context());
    let mut whole = ToolOutcome::done("whole").with_data(json!({"rows": [1.50, "ü"]}));
    whole.free = true;
    let outcome = whole.clone();
    let executed = service_fn(move |_: ToolCall| {
        let outcome = outcome.clone();
        async move { Ok::<_, Error>(outcome) }
    });
    let tool = process(&store).layer(executed);
    assert_eq!(tool.oneshot(call(&context, "{}")).await.unwrap(), whole);
    store.written(1).await;

    let unused = Count::default();
    let tool = process(&store).layer(counting(&unused));
    for gets in [2, 2] {
        let hit = tool.clone().oneshot(call(&context, r#"{"unit": "m"}"#));
        assert_eq!(hit.await.unwrap(), whole);
        assert_eq!((store.gets(), unused.get()), (gets, 0));
    }
}

#[tokio::test]
async fn results_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.db");
    let env = TestEnvironment::new();
    let open = || {
        let options = Options::new().clock(env.clock().clone());
        TestStore::over(SqliteStore::open_with(&path, options).unwrap())
    };
    let context = env.context();
    let other = open();
    stored(&open(), &context).await;
    for store in [other, open()] {
        assert_eq!(result(&store, &context).await, ("1".to_owned(), 0));
    }
}

#[tokio::test]
async fn a_store_that_fails_executes_the_call_once() {
    for behaviour in [
        Behaviour::Fails,
        Behaviour::PanicsWhenCalled,
        Behaviour::PanicsWhenPolled,
    ] {
        let env = TestEnvironment::new();
        let (store, context) = (TestStore::new(&env), env.context());
        stored(&store, &context).await;
        store.set(behaviour);
        assert_eq!(result(&store, &context).await, ("2".to_owned(), 1));
    }
}

#[tokio::test]
async fn a_store_that_hangs_executes_concurrent_calls_once() {
    let env = TestEnvironment::new();
    let (store, context) = (TestStore::new(&env), env.context());
    store.set(Behaviour::Hangs);
    let count = Count::default();
    // A tool with effects, which the application has named.
    let tool = process(&store).tools(["look"]).layer(counting(&count));
    let calls = (0..10).map(|_| task::spawn(texts(&tool, [call(&context, "{}")])));
    let mut calls: Vec<_> = calls.collect();
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    // The call that waits for the store is dropped, and another one looks in it.
    drop(calls.remove(0));
    for _ in 0..2 {
        for call in &mut calls {
            assert_pending!(call.poll());
        }
    }
    env.advance(WAIT - Duration::from_nanos(1));
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    assert_eq!((store.gets(), count.get()), (2, 0));
    env.advance(Duration::from_nanos(1));
    for texts in join_all(calls).await {
        assert_eq!(texts, ["1"]);
    }
    assert_eq!((store.gets(), count.get()), (2, 1));
}

#[tokio::test]
async fn a_required_store_fails_the_call_without_an_execution() {
    for behaviour in [
        Behaviour::Fails,
        Behaviour::Hangs,
        Behaviour::PanicsWhenCalled,
    ] {
        let env = TestEnvironment::new();
        let (store, context) = (TestStore::new(&env), env.context());
        store.set(behaviour);
        let count = Count::default();
        let tool = process(&store).store_required(true).layer(counting(&count));
        let mut failed = task::spawn(tool.clone().oneshot(call(&context, "{}")));
        let failed = match failed.poll() {
            Poll::Ready(failed) => failed,
            Poll::Pending => {
                env.advance(WAIT);
                assert_ready!(failed.poll())
            }
        };
        let error = failed.unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Server, Some("store_failed"))
        );
        assert_eq!(count.get(), 0);
        store.set(Behaviour::Works);
        assert_eq!(texts(&tool, [call(&context, "{}")]).await, ["1"]);
    }
}

#[tokio::test]
async fn a_changed_entry_is_a_miss() {
    for (n, damage) in damages().into_iter().enumerate() {
        let env = TestEnvironment::new();
        let (store, context) = (TestStore::new(&env), env.context());
        stored(&store, &context).await;
        store.set(damage);
        assert_eq!(result(&store, &context).await, ("2".to_owned(), 1), "{n}");
    }
}

#[tokio::test]
async fn a_result_that_would_not_be_stored_is_a_miss() {
    let done = || json!({"status": "done", "content": {"text": "forged"}});
    let with = |name: &str, value: serde_json::Value| {
        let mut outcome = done();
        outcome[name] = value;
        outcome.to_string()
    };
    let forged = [
        with("status", json!("failed")),
        with("status", json!("unknown")),
        with("status", json!("of a later release")),
        with("halt", json!("stop")),
        with("source", json!("person")),
        with("content", json!({"text": "x".repeat((256 << 10) + 1)})),
        with("content", json!(null)),
        "[".repeat(1 << 20),
        String::new(),
    ];
    let forge = async |json: String| {
        let env = TestEnvironment::new();
        let (store, context) = (TestStore::new(&env), env.context());
        stored(&store, &context).await;
        store.set(changes(move |key, _| sealed(key, json.as_bytes())));
        result(&store, &context).await
    };
    for json in forged {
        let start = json.chars().take(200).collect::<String>();
        assert_eq!(forge(json).await, ("2".to_owned(), 1), "{start}");
    }
    assert_eq!(forge(done().to_string()).await, ("forged".to_owned(), 0));
}

#[tokio::test]
async fn only_results_of_success_are_written() {
    let env = TestEnvironment::new();
    let (store, context) = (TestStore::new(&env), env.context());
    let mut halts = ToolOutcome::done("x");
    halts.halt = Some("stop".into());
    for outcome in [
        ToolOutcome::failed("x"),
        ToolOutcome::denied("x"),
        halts,
        ToolOutcome::done("x".repeat((256 << 10) + 1)),
    ] {
        let tool = process(&store).layer(service_fn(move |_: ToolCall| {
            let outcome = outcome.clone();
            async move { Ok::<_, Error>(outcome) }
        }));
        tool.oneshot(call(&context, "{}")).await.unwrap();
    }
    let fails = service_fn(|_: ToolCall| async {
        Err::<ToolOutcome, _>(Error::new(ErrorKind::Server, "broke"))
    });
    let failed = process(&store)
        .layer(fails)
        .oneshot(call(&context, "{}"))
        .await;
    failed.unwrap_err();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.gets(), store.puts()), (5, 0));
}

#[tokio::test]
async fn tenants_tools_schemas_and_spaces_share_nothing() {
    let env = TestEnvironment::new();
    let store = TestStore::new(&env);
    let context = |tenant: &'static str| {
        let mut context = env.context();
        context.extensions_mut().insert(Tenant(tenant.into()));
        context
    };
    let other = |name: &'static str, schema| {
        let part = ToolCallPart::new(CallId::new("c1"), name, "{}");
        let mut spec = ToolSpec::new(name, "", schema);
        spec.annotations = super::spec().annotations;
        ToolCall::new(part, context("ann")).with_spec(Arc::new(spec))
    };
    let object = || json!({"type": "object"});
    let count = Count::default();
    let calls = || {
        [
            ("a", call(&context("ann"), "{}")),
            ("a", call(&context("bob"), "{}")),
            ("a", other("look", object())),
            ("a", other("watch", object())),
            ("b", call(&context("ann"), "{}")),
        ]
    };
    for round in 0..2 {
        for (n, (space, call)) in calls().into_iter().enumerate() {
            let layer = ToolCacheLayer::new(CacheScope::Tenant).store(store.clone(), space);
            let tool = layer.layer(counting(&count));
            let expected = (n + 1).to_string();
            assert_eq!(texts(&tool, [call]).await, [expected], "{round}");
            store.written(count.get()).await;
        }
    }
    assert_eq!(count.get(), 5);
}

#[tokio::test]
async fn a_result_expires_after_it_was_written() {
    let env = TestEnvironment::new();
    let (store, context) = (TestStore::new(&env), env.context());
    stored(&store, &context).await;
    let count = Count::default();
    count.next();
    let tool = process(&store).layer(counting(&count));
    // Five minutes, of which another process has seen the end only.
    for (seconds, expected) in [(200, "1"), (99, "1"), (1, "2")] {
        env.advance(seconds * SECOND);
        assert_eq!(texts(&tool, [call(&context, "{}")]).await, [expected]);
    }
}

#[tokio::test]
async fn a_nested_call_looks_in_the_store() {
    let env = TestEnvironment::new();
    let (store, context) = (TestStore::new(&env), env.context());
    stored(&store, &context).await;
    let layer = process(&store);
    let count = Count::default();
    let inner = layer.layer(counting(&count));
    let outer = layer.layer(service_fn(move |of: ToolCall| {
        let nested = call(&of.context.child().build(), "{}");
        inner.clone().oneshot(nested)
    }));
    let texts = texts(&outer, [call(&context, r#"{"n": 1}"#)]).await;
    assert_eq!((texts, count.get()), (vec!["1".to_owned()], 0));
}
