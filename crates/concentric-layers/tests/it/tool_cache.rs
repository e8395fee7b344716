//! Results of tools that are used again.

mod store;

use concentric_core::{
    AgentLayer, Annotations, BoxTool, CallId, ChatRequest, Clearance, Context, Error, ErrorKind,
    Event, InterruptId, Refusal, Reply, RoundCall, ThreadId, ToolCall, ToolCallPart, ToolOutcome,
    ToolSpec, Transcript,
    call::{CallStage, Unverified},
    hooks::{self, Hooks},
    store::Tenant,
};
use concentric_layers::tool_cache::{CacheScope, ToolCacheLayer};
use concentric_test::{Gate, ScriptedModel, TestEnvironment};
use concentric_tools::{Approval, NoArguments, Tool, Toolset, tool};
use futures_util::{FutureExt, StreamExt, future::join_all};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

/// The number of executions, which is also the result of each.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn next(&self) -> ToolOutcome {
        ToolOutcome::done(format!("{}", 1 + self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn counting(
    count: &Count,
) -> impl Service<ToolCall, Response = ToolOutcome, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let count = count.clone();
    service_fn(move |_: ToolCall| {
        let outcome = count.next();
        async move { Ok(outcome) }
    })
}

fn spec() -> ToolSpec {
    let schema = json!({"type": "object", "properties": {
        "unit": {"type": "string", "default": "m"},
        "at": {"type": "object", "properties": {"x": {"default": 0}}},
    }});
    let mut spec = ToolSpec::new("look", "Looks.", schema);
    spec.annotations = Annotations::read_only();
    spec
}

fn call(context: &Context, arguments: &str) -> ToolCall {
    let part = ToolCallPart::new(CallId::new("c1"), "look", arguments);
    ToolCall::new(part, context.clone()).with_spec(Arc::new(spec()))
}

/// The text of the results of `calls`, one after the other.
async fn texts<S>(tool: &S, calls: impl IntoIterator<Item = ToolCall>) -> Vec<String>
where
    S: Service<ToolCall, Response = ToolOutcome, Error = Error> + Clone,
{
    let mut texts = Vec::new();
    for call in calls {
        let outcome = tool.clone().oneshot(call).await.unwrap();
        texts.push(outcome.content.text().into_owned());
    }
    texts
}

#[tokio::test]
async fn c101_equal_arguments_hit_whatever_their_order_and_defaults() {
    let context = TestEnvironment::new().context();
    let tool = ToolCacheLayer::new(CacheScope::Run).layer(counting(&Count::default()));
    let calls = [
        r#"{"at": {"y": 1}, "unit": "m"}"#,
        r#"{ "at": {"y": 1, "x": 0} }"#,
        r#"{"at": {"x": 0, "y": 1}, "unit": "m"}"#,
        r#"{"at": {"x": 1, "y": 1}}"#,
        r#"{"unit": "km", "at": {"y": 1}}"#,
    ];
    let results = texts(&tool, calls.map(|arguments| call(&context, arguments))).await;
    assert_eq!(results, ["1", "1", "1", "2", "3"]);
}

#[tokio::test]
async fn hooks_around_the_cache_run_on_a_hit() {
    struct Audit(Count);

    impl Hooks for Audit {
        fn id(&self) -> &str {
            "audit"
        }

        async fn after_call(
            &self,
            _: &ToolCall,
            outcome: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            assert_eq!(outcome, &ToolOutcome::done("1"));
            self.0.next();
            Ok(None)
        }
    }

    let (count, audited) = (Count::default(), Count::default());
    let tools = Toolset::new()
        .tool(Tool::new(spec(), counting(&count)))
        .hooks(hooks::tool(Arc::new(Audit(audited.clone()))))
        .layer(ToolCacheLayer::new(CacheScope::Shared));
    let model = ScriptedModel::new().tool_call("look", json!({})).then();
    let model = model.tool_call("look", json!({})).then().text("Seen.");
    let answer = AgentLayer::new(tools)
        .layer(model)
        .oneshot(ChatRequest::user("hi"));
    answer.await.unwrap().collect().await.unwrap();
    assert_eq!((count.get(), audited.get()), (1, 2));
}

#[tokio::test]
async fn numbers_are_equal_if_their_text_is() {
    let count = Count::default();
    let tool = ToolCacheLayer::new(CacheScope::Shared).layer(counting(&count));
    let context = Context::new();
    let distinct = [
        r#"{"id": 1180591620717411303424}"#,
        r#"{"id": 1180591620717411303425}"#,
        r#"{"id": 0.10000000000000000001}"#,
        r#"{"id": 0.1}"#,
        r#"{"at": {"x": 1180591620717411303424}}"#,
        r#"{"at": {"x": 1180591620717411303425}}"#,
    ];
    let calls = || distinct.iter().map(|arguments| call(&context, arguments));
    assert_eq!(texts(&tool, calls()).await, ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(texts(&tool, calls()).await, ["1", "2", "3", "4", "5", "6"]);
    // A tool may read either of two values.
    let twice = || call(&context, r#"{"id": 1, "id": 2}"#);
    assert_eq!(texts(&tool, [twice(), twice()]).await, ["7", "8"]);
}

#[tokio::test]
async fn a_call_within_the_execution_of_a_call_waits_for_none() {
    let layer = ToolCacheLayer::new(CacheScope::Shared);
    let executions = Count::default();
    // Two tools that call one another, and each themselves, three levels deep.
    fn nesting(layer: &ToolCacheLayer, executions: &Count, depth: usize) -> BoxTool {
        let (of_inner, executions) = (layer.clone(), executions.clone());
        let inner = service_fn(move |of: ToolCall| {
            let (layer, executions) = (of_inner.clone(), executions.clone());
            async move {
                executions.next();
                tokio::task::yield_now().await;
                if depth > 0 {
                    let inner = nesting(&layer, &executions, depth - 1);
                    let context = of.context.child().build();
                    let other = match of.arguments().as_str() {
                        r#"{"a":1}"# => r#"{"b":1}"#,
                        _ => r#"{"a":1}"#,
                    };
                    for arguments in [of.arguments().as_str(), other] {
                        inner.clone().oneshot(call(&context, arguments)).await?;
                    }
                }
                Ok::<_, Error>(ToolOutcome::done("ok"))
            }
        });
        BoxTool::new(layer.layer(inner))
    }
    let both = [r#"{"a":1}"#, r#"{"b":1}"#].map(|arguments| {
        let tool = nesting(&layer, &executions, 2);
        tool.oneshot(call(&Context::new(), arguments))
    });
    let all = tokio::time::timeout(Duration::from_secs(60), join_all(both)).await;
    assert!(all.unwrap().iter().all(Result::is_ok));
    // What the nested calls have stored is used.
    let stored = executions.get();
    let again = nesting(&layer, &executions, 2).oneshot(call(&Context::new(), r#"{"a":1}"#));
    again.await.unwrap();
    assert_eq!(executions.get(), stored);
}

#[tokio::test]
async fn c102_a_result_expires_after_it_was_stored() {
    let environment = TestEnvironment::new();
    let layer = ToolCacheLayer::new(CacheScope::Shared).ttl(Duration::from_millis(100));
    let tool = layer.layer(counting(&Count::default()));
    let mut results = Vec::new();
    for _ in 0..3 {
        results.extend(texts(&tool, [call(&environment.context(), "{}")]).await);
        environment.advance(Duration::from_millis(80));
    }
    // At 0, 80 and 160 ms.
    assert_eq!(results, ["1", "1", "2"]);
}

#[tokio::test]
async fn c103_only_results_of_success_are_stored() {
    let context = TestEnvironment::new().context();
    for outcome in [
        Ok(ToolOutcome::failed("no")),
        Ok(ToolOutcome::denied("no")),
        Ok(ToolOutcome::cancelled("no")),
        Ok(ToolOutcome::done("yes").and_halt("enough")),
        Ok(ToolOutcome::by_person(&json!("paid"))),
        Ok(ToolOutcome::done("x".repeat(300 << 10))),
        Ok(ToolOutcome::done("x").with_data(json!("x".repeat(300 << 10)))),
        Err(Error::new(ErrorKind::Tool, "broke")),
        Err(Error::new(ErrorKind::Waiting, "waits")),
    ] {
        let count = Count::default();
        let counted = count.clone();
        let tool = service_fn(move |_: ToolCall| {
            counted.next();
            let outcome = outcome.clone();
            async move { outcome }
        });
        let tool = ToolCacheLayer::new(CacheScope::Shared).layer(tool);
        let first = tool.clone().oneshot(call(&context, "{}")).await;
        let second = tool.oneshot(call(&context, "{}")).await;
        assert_eq!(first.map_err(|e| e.kind()), second.map_err(|e| e.kind()));
        assert_eq!(count.get(), 2);
    }
}

#[tokio::test]
async fn c104_the_least_recently_used_result_is_evicted() {
    let context = TestEnvironment::new().context();
    let count = Count::default();
    let layer = ToolCacheLayer::new(CacheScope::Shared).entries(2);
    let tool = layer.layer(counting(&count));
    let at = |n: u32| call(&context, &format!(r#"{{"n": {n}}}"#));
    // 1 is used after 2, so 3 evicts 2.
    let results = texts(&tool, [at(1), at(2), at(1), at(3), at(1), at(2)]).await;
    assert_eq!(results, ["1", "2", "1", "3", "1", "4"]);
}

/// A tool whose first execution waits.
fn gated(
    count: &Count,
    gate: &Gate,
    first: Result<ToolOutcome, Error>,
) -> impl Service<ToolCall, Response = ToolOutcome, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let (count, gate) = (count.clone(), gate.clone());
    service_fn(move |_: ToolCall| {
        let (outcome, gate, first) = (count.next(), gate.clone(), first.clone());
        let is_first = count.get() == 1;
        async move {
            if !is_first {
                return Ok(outcome);
            }
            gate.pass().await;
            first
        }
    })
}

#[tokio::test]
async fn c105_concurrent_equal_calls_share_one_execution() {
    let (count, gate) = (Count::default(), Gate::new());
    let context = TestEnvironment::new().context();
    let tool = gated(&count, &gate, Ok(ToolOutcome::done("shared")));
    let tool = ToolCacheLayer::new(CacheScope::Shared).layer(tool);
    let calls = (0..50).map(|_| tokio::spawn(tool.clone().oneshot(call(&context, "{}"))));
    let calls: Vec<_> = calls.collect();
    tokio::task::yield_now().await;
    gate.open();
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap().unwrap().content.text(), "shared");
    }
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn a_failure_is_not_shared_and_another_call_executes() {
    for first in [
        Err(Error::new(ErrorKind::Tool, "broke")),
        Err(Error::new(ErrorKind::Waiting, "waits")),
        Ok(ToolOutcome::failed("no")),
    ] {
        let (count, gate) = (Count::default(), Gate::new());
        let context = TestEnvironment::new().context();
        let tool = ToolCacheLayer::new(CacheScope::Shared).layer(gated(&count, &gate, first));
        let calls = (0..5).map(|_| tokio::spawn(tool.clone().oneshot(call(&context, "{}"))));
        let calls: Vec<_> = calls.collect();
        tokio::task::yield_now().await;
        gate.open();
        let results = join_all(calls).await.into_iter();
        let done = results.filter(|result| {
            let outcome = result.as_ref().unwrap().as_ref();
            outcome.is_ok_and(|outcome| outcome.content.text() == "2")
        });
        assert_eq!((done.count(), count.get()), (4, 2));
    }
}

#[tokio::test]
async fn a_waiting_call_takes_over_after_the_first_is_dropped() {
    let (count, gate) = (Count::default(), Gate::new());
    let context = TestEnvironment::new().context();
    let tool = gated(&count, &gate, Ok(ToolOutcome::done("never")));
    let tool = ToolCacheLayer::new(CacheScope::Shared).layer(tool);
    let mut first = Box::pin(tool.clone().oneshot(call(&context, "{}")));
    assert!((&mut first).now_or_never().is_none());
    let mut second = Box::pin(tool.oneshot(call(&context, "{}")));
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(count.get(), 1);
    drop(first);
    assert_eq!(second.await.unwrap().content.text(), "2");
}

#[tokio::test]
async fn scopes_separate_results() {
    let environment = TestEnvironment::new();
    let at = |tenant: &str, thread: &str| {
        let mut context = environment
            .context_builder()
            .thread_id(ThreadId::new(thread))
            .build();
        context.extensions_mut().insert(Tenant(tenant.into()));
        call(&context, "{}")
    };
    for (scope, expected) in [
        (CacheScope::Shared, ["1", "1", "1", "1"]),
        (CacheScope::Tenant, ["1", "1", "2", "1"]),
        (CacheScope::Thread, ["1", "2", "3", "1"]),
        (CacheScope::Run, ["1", "2", "3", "4"]),
    ] {
        let tool = ToolCacheLayer::new(scope).layer(counting(&Count::default()));
        let calls = [at("a", "t1"), at("a", "t2"), at("b", "t1"), at("a", "t1")];
        assert_eq!(texts(&tool, calls).await, expected, "{scope:?}");
    }
    // Without a tenant, the calls may be those of different users.
    let tool = ToolCacheLayer::new(CacheScope::Tenant).layer(counting(&Count::default()));
    for tenant in [None, Some(Tenant::default())] {
        let mut context = environment.context();
        tenant.map(|tenant| context.extensions_mut().insert(tenant));
        let calls = [call(&context, "{}"), call(&context, "{}")];
        let results = texts(&tool, calls).await;
        assert_ne!(results[0], results[1]);
    }
    // No conversation to share results in.
    let tool = ToolCacheLayer::new(CacheScope::Thread).layer(counting(&Count::default()));
    let context = Context::new();
    assert_eq!(
        texts(&tool, [call(&context, "{}"), call(&context, "{}")]).await,
        ["1", "2"]
    );
}

#[tokio::test]
async fn only_read_only_and_named_tools_are_cached() {
    let context = TestEnvironment::new().context();
    let mut writes = spec();
    writes.annotations = Annotations::default();
    let writes = || call(&context, "{}").with_spec(Arc::new(writes.clone()));
    let tool = ToolCacheLayer::new(CacheScope::Run).layer(counting(&Count::default()));
    assert_eq!(texts(&tool, [writes(), writes()]).await, ["1", "2"]);

    let layer = ToolCacheLayer::new(CacheScope::Run).tools(["look"]);
    let tool = layer.layer(counting(&Count::default()));
    assert_eq!(texts(&tool, [writes(), writes()]).await, ["1", "1"]);
    let layer = ToolCacheLayer::new(CacheScope::Run).tools(["other"]);
    let tool = layer.layer(counting(&Count::default()));
    let calls = [call(&context, "{}"), call(&context, "{}")];
    assert_eq!(texts(&tool, calls).await, ["1", "2"]);
}

#[tokio::test]
async fn a_changed_schema_or_a_key_decides_what_is_equal() {
    let context = TestEnvironment::new().context();
    let layer = ToolCacheLayer::new(CacheScope::Run);
    let tool = layer.layer(counting(&Count::default()));
    let mut changed = spec();
    let mut schema = Value::clone(&changed.input_schema);
    schema["title"] = json!("Look");
    changed.input_schema = Arc::new(schema);
    let changed = call(&context, "{}").with_spec(Arc::new(changed));
    let calls = [call(&context, "{}"), changed, call(&context, "{}")];
    assert_eq!(texts(&tool, calls).await, ["1", "2", "1"]);
    // Arguments that are not JSON are not compared.
    assert_eq!(
        texts(&tool, [call(&context, "{"), call(&context, "{")]).await,
        ["3", "4"]
    );

    let key = |call: &ToolCall| {
        let arguments: Value = serde_json::from_str(call.arguments().as_str()).ok()?;
        assert!(arguments.get("panic").is_none(), "of the test");
        arguments.get("n").cloned()
    };
    let tool = layer
        .clone()
        .entries(9)
        .key(key)
        .layer(counting(&Count::default()));
    let calls = [
        r#"{"n":1}"#,
        r#"{"n":1,"m":2}"#,
        r#"{"m":2}"#,
        r#"{"m":2}"#,
        r#"{"panic":2}"#,
    ];
    let results = texts(&tool, calls.map(|arguments| call(&context, arguments))).await;
    assert_eq!(results, ["1", "1", "2", "3", "4"]);

    layer.clear();
    let tool = layer.layer(counting(&Count::default()));
    assert_eq!(texts(&tool, [call(&context, "{}")]).await, ["1"]);
}

#[tokio::test]
async fn zero_entries_and_zero_time_store_nothing() {
    let context = TestEnvironment::new().context();
    for layer in [
        ToolCacheLayer::new(CacheScope::Run).entries(0),
        ToolCacheLayer::new(CacheScope::Run).ttl(Duration::ZERO),
        ToolCacheLayer::new(CacheScope::Run).max_bytes(0),
    ] {
        let tool = layer.layer(counting(&Count::default()));
        let calls = [call(&context, "{}"), call(&context, "{}")];
        assert_eq!(texts(&tool, calls).await, ["1", "2"]);
    }
    let layer = ToolCacheLayer::new(CacheScope::Run)
        .entries(u64::MAX)
        .ttl(Duration::MAX);
    let tool = layer
        .max_bytes(usize::MAX)
        .layer(counting(&Count::default()));
    assert_eq!(
        texts(&tool, [call(&context, "{}"), call(&context, "{}")]).await,
        ["1", "1"]
    );
}

#[tokio::test]
async fn a_settled_call_is_passed_on() {
    let denied = ToolOutcome::denied("no");
    let context = TestEnvironment::new().context();
    let settled = || {
        let part = ToolCallPart::new(CallId::new("c1"), "look", "{}");
        let call = ToolCall::of_round(
            RoundCall::new(0, part),
            Clearance::Settled(Arc::new(denied.clone())),
            Transcript::new(),
            &context,
        );
        call.with_spec(Arc::new(spec()))
    };
    let tool = ToolCacheLayer::new(CacheScope::Run).layer(counting(&Count::default()));
    assert_eq!(texts(&tool, [settled(), settled()]).await, ["1", "2"]);
}

#[tokio::test]
async fn equal_calls_of_a_round_have_a_result_each() {
    let count = Count::default();
    let counted = count.clone();
    let look = tool("look", "Looks.", move |NoArguments {}| {
        let counted = counted.clone();
        async move { counted.next() }
    });
    let tools = Toolset::new()
        .tool(look.read_only())
        .layer(ToolCacheLayer::new(CacheScope::Run));
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("look", json!({}))
        .then()
        .text("done");
    let agent = AgentLayer::new(tools).layer(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let events: Vec<_> = body.map(Result::unwrap).collect().await;
    let hits = events.iter().filter_map(|event| match event {
        Event::Custom(custom) => Some((
            custom.name.as_str(),
            &custom.value,
            custom.call_id.is_some(),
        )),
        _ => None,
    });
    let hit = json!({"tool": "look"});
    assert_eq!(
        hits.collect::<Vec<_>>(),
        [("concentric.tool_cache", &hit, true)]
    );
    let Some(Event::Finish(finish)) = events.last() else {
        panic!("no finish")
    };
    let transcript = finish.transcript.as_ref().unwrap();
    let results: Vec<_> = transcript
        .iter()
        .flat_map(|turn| turn.results().to_vec())
        .collect();
    let texts: Vec<_> = results
        .iter()
        .map(|result| result.outcome.content.text())
        .collect();
    assert_eq!((texts, count.get()), (vec!["1".into(), "1".into()], 1));
    assert_ne!(results[0].call_id, results[1].call_id);
}

#[tokio::test]
async fn a_hit_requires_an_approval_and_a_resumed_call_hits() {
    let count = Count::default();
    let counted = count.clone();
    let look = tool("look", "Looks.", move |NoArguments {}| {
        let counted = counted.clone();
        async move { counted.next() }
    });
    let tools = Toolset::new()
        .tool(look.read_only())
        .gate(Approval::for_tools(["look"]))
        .layer(ToolCacheLayer::new(CacheScope::Shared));
    let agent = || {
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("done");
        AgentLayer::new(tools.clone()).layer(model)
    };
    for approve in [true, false, true] {
        let agent = agent();
        let waiting = agent
            .clone()
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap();
        let state = *waiting.collect().await.unwrap().finish.state.unwrap();
        let id = state.interrupts()[0].id.clone();
        let reply = if approve {
            Reply::approve(id)
        } else {
            Reply::deny(id, "no")
        };
        let resumed = agent
            .oneshot(ChatRequest::resume(state, vec![reply]))
            .await
            .unwrap();
        let finish = resumed.collect().await.unwrap().finish;
        let transcript = finish.transcript.unwrap();
        let result = transcript
            .iter()
            .find_map(|turn| turn.results().first())
            .unwrap();
        assert_eq!(result.outcome.content.text() == "1", approve);
    }
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn the_future_waits_for_the_inner_service_and_a_hit_does_not() {
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    let tool = ToolCacheLayer::new(CacheScope::Run).layer(mock);
    let context = TestEnvironment::new().context();
    handle.allow(0);
    let mut waits = Box::pin(tool.clone().oneshot(call(&context, "{}")));
    assert!((&mut waits).now_or_never().is_none());
    handle.allow(1);
    assert!((&mut waits).now_or_never().is_none());
    handle
        .next_request()
        .await
        .unwrap()
        .1
        .send_response(ToolOutcome::done("1"));
    assert_eq!(waits.await.unwrap().content.text(), "1");
    let hit: Result<_, BoxError> = tool.oneshot(call(&context, "{}")).await.map_err(Into::into);
    assert_eq!(hit.unwrap().content.text(), "1");
}

#[tokio::test]
async fn a_nested_call_uses_and_stores_results() {
    let layer = ToolCacheLayer::new(CacheScope::Shared);
    let count = Count::default();
    let inner = layer.layer(counting(&count));
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (of_inner, seen) = (inner.clone(), Arc::clone(&asked));
    let outer = layer.layer(service_fn(move |of: ToolCall| {
        let (inner, seen) = (of_inner.clone(), Arc::clone(&seen));
        async move {
            for arguments in [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":2}"#] {
                let nested = call(&of.context.child().build(), arguments);
                let outcome = inner.clone().oneshot(nested).await?;
                seen.lock()
                    .unwrap()
                    .push(outcome.content.text().into_owned());
            }
            Ok::<_, Error>(ToolOutcome::done("outer"))
        }
    }));
    let context = Context::new();
    assert_eq!(texts(&inner, [call(&context, r#"{"n":1}"#)]).await, ["1"]);
    assert_eq!(texts(&outer, [call(&context, "{}")]).await, ["outer"]);
    assert_eq!(*asked.lock().unwrap(), ["1", "2", "2"]);
    assert_eq!(texts(&inner, [call(&context, r#"{"n":2}"#)]).await, ["2"]);
}

#[tokio::test]
async fn a_result_of_the_largest_size_is_stored() {
    let context = Context::new();
    // Of content and data.
    for (most, expected) in [(7, ["1", "1"]), (6, ["1", "2"])] {
        let count = Count::default();
        let counted = count.clone();
        let tool = service_fn(move |_: ToolCall| {
            let outcome = counted.next().with_data(json!("data"));
            async move { Ok::<_, Error>(outcome) }
        });
        let layer = ToolCacheLayer::new(CacheScope::Shared).max_bytes(most);
        let tool = layer.layer(tool);
        let calls = [call(&context, "{}"), call(&context, "{}")];
        assert_eq!(texts(&tool, calls).await, expected, "{most}");
    }
}

#[tokio::test]
async fn tools_with_equal_schemas_have_their_own_results() {
    let context = Context::new();
    let other = || {
        let part = ToolCallPart::new(CallId::new("c1"), "watch", "{}");
        ToolCall::new(part, context.clone()).with_spec(Arc::new(spec()))
    };
    let tool = ToolCacheLayer::new(CacheScope::Shared).layer(counting(&Count::default()));
    let calls = [call(&context, "{}"), other(), call(&context, "{}"), other()];
    assert_eq!(texts(&tool, calls).await, ["1", "2", "1", "2"]);
}

#[tokio::test]
async fn refused_calls_and_calls_with_replies_are_executed() {
    let context = Context::new();
    let mut unverified = Unverified::default();
    unverified.replies = vec![Reply::approve(InterruptId::new("i-1"))];
    for stage in [
        CallStage::Rejected(Refusal::DuplicateId),
        CallStage::Unverified(Box::new(unverified)),
    ] {
        let again = || {
            let part = ToolCallPart::new(CallId::new("c1"), "look", "{}");
            let mut round = RoundCall::new(0, part);
            round.state.stage = stage.clone();
            let call = ToolCall::of_round(round, Clearance::Ungated, Transcript::new(), &context);
            call.with_spec(Arc::new(spec()))
        };
        let tool = ToolCacheLayer::new(CacheScope::Run).layer(counting(&Count::default()));
        assert_eq!(texts(&tool, [again(), again()]).await, ["1", "2"]);
    }
}
