//! Answers that are used again, and calls that several requests share.

mod shared;
mod store;

use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, CustomEvent, Error, ErrorKind, Event,
    EventStream, Finish, FinishReason, NoTools, Outcome, Part, PartKind, Reply, ResponseHead,
    ThreadId, ToolCallDelta, ToolCallPart, ToolCallStart, Usage, store::Tenant,
};
use concentric_layers::{
    SuspendLayer,
    budget::{Amounts, Budget, BudgetPlugin, Limits},
    response_cache::{CacheControl, CacheScope, Replayed, ResponseCacheLayer},
};
use concentric_store::MemoryStore;
use concentric_test::{Gate, ScriptedModel, ScriptedTools, TestEnvironment, check_layer, text_of};
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
async fn a_call_within_a_call_waits_for_none() {
    let layer = shared();
    let inner = layer.layer(ScriptedModel::new().text("ok").repeat());
    // Each of two calls makes both requests.
    let outer = layer.layer(service_fn(move |request: ChatRequest| {
        let inner = inner.clone();
        async move {
            tokio::task::yield_now().await;
            for text in ["a", "b"] {
                let context = request.context.child().build();
                let nested = ChatRequest::user(text).with_context(context);
                let answer = inner.clone().oneshot(nested).await?;
                answer.collect().await.map_err(Error::from)?;
            }
            inner.oneshot(request).await
        }
    }));
    let both = ["a", "b"].map(|text| items(outer.clone(), ChatRequest::user(text)));
    let both = tokio::time::timeout(60 * SECOND, join_all(both)).await;
    for items in both.unwrap() {
        assert_eq!(text_of(&events(items)), "ok");
    }
}

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
    // Without a thread or a tenant, the requests may be those of different users.
    for scope in [CacheScope::Thread, CacheScope::Tenant] {
        let model = ScriptedModel::new().text("A").repeat();
        let service = ResponseCacheLayer::new(scope).layer(model.clone());
        for _ in 0..2 {
            items(service.clone(), env.request("hi")).await;
        }
        assert_eq!(model.calls(), 2, "{scope:?}");
    }
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
async fn a_resumed_run_is_not_answered_from_the_cache() {
    let env = TestEnvironment::new();
    let asks = || {
        let model = ScriptedModel::new().tool_call("pay", json!({}));
        let tools = ScriptedTools::new().asks("pay", "paid");
        AgentLayer::new(tools).layer(model.then().text("Done."))
    };
    let waiting = asks().oneshot(env.request("hi")).await.unwrap();
    let state = *waiting.collect().await.unwrap().finish.state.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    // Does not begin as an agent does.
    let inner = service_fn(move |_: ChatRequest| {
        counted.fetch_add(1, Ordering::Relaxed);
        ScriptedModel::new()
            .text("A")
            .oneshot(ChatRequest::user("hi"))
    });
    let service = shared().layer(inner);
    for _ in 0..2 {
        let reply = Reply::approve(state.interrupts()[0].id.clone());
        let request = ChatRequest::resume(state.clone(), vec![reply]);
        assert_eq!(text_of(&events(items(service.clone(), request).await)), "A");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
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
