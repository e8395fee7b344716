//! One test per statement of [`concentric_layers::rate_limit`].

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, Error, ErrorKind, Event, FinishReason, Str,
    Usage,
};
use concentric_layers::{
    RateLimitLayer,
    rate_limit::{OVER_QUOTA, Quota, RATE_LIMITED},
};
use concentric_test::{
    ScriptedModel, ScriptedTools, TestEnvironment, assert_finishes, check_layer, drop_at_each_wait,
};
use futures_util::{FutureExt, StreamExt, future::join_all};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_test::task;
use tower::{Layer, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);

fn second() -> Quota {
    Quota::per(SECOND)
}

/// Answers without a usage.
fn answers() -> ScriptedModel {
    let model = ScriptedModel::new().text("hi").usage(Usage::default());
    model.repeat()
}

/// Makes a call, and reads its answer to the end if there is one.
async fn call(
    layer: &RateLimitLayer,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Result<(), Error> {
    let response = layer.layer(model.clone()).oneshot(request).await?;
    let items: Vec<_> = response.body.collect().await;
    items.into_iter().collect::<Result<Vec<_>, _>>().map(|_| ())
}

/// The number of calls that begin and end at once.
fn passes(layer: &RateLimitLayer, env: &TestEnvironment) -> usize {
    let layer = layer.clone().wait(Duration::ZERO);
    let model = answers();
    let begun = || call(&layer, &model, env.request("four")).now_or_never();
    (0..1_000)
        .take_while(|_| matches!(begun(), Some(Ok(()))))
        .count()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(RateLimitLayer::new(second())).await;
    check_layer(RateLimitLayer::new(second().requests(1_000))).await;
}

#[tokio::test]
async fn a_period_has_its_quota_and_is_refilled_evenly() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(10));
    assert_eq!(passes(&layer, &env), 10);
    env.advance(SECOND / 2);
    assert_eq!(passes(&layer, &env), 5);
    // What is not used in time is lost.
    env.advance(SECOND * 100);
    assert_eq!(passes(&layer, &env), 10);
}

#[tokio::test]
async fn no_limit_and_no_quota() {
    let env = TestEnvironment::new();
    assert_eq!(passes(&RateLimitLayer::new(second()), &env), 1_000);
    assert_eq!(
        passes(&RateLimitLayer::new(second().requests(u64::MAX)), &env),
        1_000
    );
    assert_eq!(
        passes(
            &RateLimitLayer::new(Quota::per(Duration::ZERO).requests(3)),
            &env
        ),
        3
    );
    assert_eq!(
        passes(
            &RateLimitLayer::new(Quota::per(Duration::MAX).requests(3)),
            &env
        ),
        3
    );
    let none = RateLimitLayer::new(second().requests(0));
    let error = call(&none, &answers(), env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::TooLarge, Some(OVER_QUOTA))
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_wait_in_their_order_and_keep_to_the_quota() {
    let layer = RateLimitLayer::new(second().requests(10)).wait(SECOND * 60);
    let begun = Arc::new(Mutex::new(Vec::new()));
    let start = tokio::time::Instant::now();
    let calls = (0..100).map(|index| {
        let (layer, begun) = (layer.clone(), Arc::clone(&begun));
        async move {
            call(&layer, &answers(), ChatRequest::user("hi"))
                .await
                .unwrap();
            begun.lock().unwrap().push((index, start.elapsed()));
        }
    });
    join_all(calls).await;
    let begun = begun.lock().unwrap();
    assert!(
        begun.iter().map(|(index, _)| *index).eq(0..100),
        "{begun:?}"
    );
    // In any period: what the bucket held, and what was added to it.
    for (at, (_, time)) in begun.iter().enumerate() {
        let within = begun[at..]
            .iter()
            .filter(|(_, other)| *other < *time + SECOND);
        assert!(within.count() <= 20, "{begun:?}");
    }
    assert!(
        start.elapsed() >= SECOND * 9 - SECOND / 100,
        "{:?}",
        start.elapsed()
    );
    assert!(
        start.elapsed() <= SECOND * 9 + SECOND / 100,
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn an_estimate_is_corrected_by_the_reported_usage() {
    let env = TestEnvironment::new();
    let uses = |input, output| {
        let finish = Event::finish(FinishReason::Stop, Usage::new(input, output));
        ScriptedModel::new().events([Event::text("hi"), finish])
    };
    let layer = RateLimitLayer::new(second().output_tokens(100)).estimate(|_| Usage::new(0, 40));
    // 40 reserved, 10 used.
    call(&layer, &uses(0, 10), env.request("hi")).await.unwrap();
    call(&layer, &uses(0, 10), env.request("hi")).await.unwrap();
    assert_eq!(passes(&layer, &env), 2);

    env.advance(SECOND * 10);
    // 40 reserved, 250 used: the next call waits for what is owed.
    call(&layer, &uses(0, 250), env.request("hi"))
        .await
        .unwrap();
    env.advance(SECOND);
    assert_eq!(passes(&layer, &env), 0);
    env.advance(SECOND);
    assert_eq!(passes(&layer, &env), 1);
}

#[tokio::test]
async fn a_dropped_answer_settles_with_what_was_seen() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new().deltas(["12345678"; 50]);
    let layer = RateLimitLayer::new(second().output_tokens(100)).estimate(|_| Usage::new(0, 10));
    let mut body = layer
        .layer(model)
        .oneshot(env.request("hi"))
        .await
        .unwrap()
        .body;
    for _ in 0..30 {
        body.next().await;
    }
    drop(body);
    // About 60 tokens of text.
    let left = passes(&layer, &env);
    assert!((4..=5).contains(&left), "{left}");
}

#[tokio::test]
async fn a_failed_call_returns_what_it_did_not_use() {
    let env = TestEnvironment::new();
    let fails = |error: Error| ScriptedModel::new().error(error);
    let layer =
        RateLimitLayer::new(second().requests(2).input_tokens(100)).estimate(|_| Usage::new(50, 0));
    let broken = Error::new(ErrorKind::Connection, "no connection");
    for _ in 0..10 {
        call(&layer, &fails(broken.clone()), env.request("hi"))
            .await
            .unwrap_err();
    }
    assert_eq!(passes(&layer, &env), 2);
    env.advance(SECOND);
    // The provider counted the request.
    let rejected = Error::new(ErrorKind::Server, "no").with_status(500);
    call(&layer, &fails(rejected), env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(passes(&layer, &env), 1);
}

#[tokio::test]
async fn the_wait_that_a_provider_asks_for_is_kept() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second())
        .by(|request| request.options.model.clone().unwrap_or_default());
    let full = Error::new(ErrorKind::RateLimited, "full")
        .with_status(429)
        .with_retry_after(SECOND * 7);
    call(&layer, &ScriptedModel::new().error(full), env.request("hi"))
        .await
        .unwrap_err();
    let error = call(&layer, &answers(), env.request("hi")).now_or_never();
    assert!(error.is_none(), "it waits");
    assert_eq!(passes(&layer, &env), 0);
    // Another key does not wait.
    let mut other = env.request("hi");
    other.options_mut().model = Some("other".into());
    call(&layer, &answers(), other).await.unwrap();
    env.advance(SECOND * 7);
    assert_eq!(passes(&layer, &env), 1_000);
}

#[tokio::test]
async fn a_wait_is_bounded_by_the_layer_the_queue_and_the_deadline() {
    let env = TestEnvironment::new();
    let used_up = |layer: RateLimitLayer| {
        assert_eq!(passes(&layer, &env), 1);
        layer
    };
    let limited = |error: Error, least: Duration| {
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::RateLimited, Some(RATE_LIMITED))
        );
        let after = error.retry_after().unwrap();
        assert!(
            after >= least && after <= SECOND + SECOND / 100,
            "{after:?}"
        );
    };
    let one = || RateLimitLayer::new(second().requests(1));

    let layer = used_up(one().wait(SECOND / 2));
    limited(
        call(&layer, &answers(), env.request("hi"))
            .await
            .unwrap_err(),
        SECOND / 2,
    );

    let layer = used_up(one().queue(0));
    limited(
        call(&layer, &answers(), env.request("hi"))
            .await
            .unwrap_err(),
        SECOND / 2,
    );

    let layer = used_up(one());
    let deadline = env.context().now() + SECOND / 2;
    let hurried = env.context_builder().deadline(deadline).build();
    let request = ChatRequest::user("hi").with_context(hurried);
    limited(
        call(&layer, &answers(), request).await.unwrap_err(),
        SECOND / 2,
    );

    // The second in the queue waits no longer than the first.
    let layer = used_up(one().wait(SECOND * 3 / 2));
    let (model, other) = (answers(), answers());
    let mut first = task::spawn(call(&layer, &model, env.request("hi")));
    let mut second = task::spawn(call(&layer, &other, env.request("hi")));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    env.advance(SECOND + SECOND / 100);
    assert!(first.is_woken());
    assert!(first.poll().is_ready());
    env.advance(SECOND / 2);
    assert!(second.is_woken());
    limited(second.await.unwrap_err(), SECOND / 4);
    assert_eq!((model.calls(), other.calls()), (1, 0));
}

#[tokio::test]
async fn a_dropped_or_cancelled_call_gives_up_its_place() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(1)).queue(1);
    assert_eq!(passes(&layer, &env), 1);
    let model = answers();
    let mut first = task::spawn(call(&layer, &model, env.request("hi")));
    assert!(first.poll().is_pending());
    drop(first);

    let cancelled = env.request("hi");
    let context = cancelled.context.clone();
    let mut second = task::spawn(call(&layer, &model, cancelled));
    assert!(second.poll().is_pending());
    context.cancel(CancelReason::User);
    assert!(second.is_woken());
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::Cancelled);

    let mut third = task::spawn(call(&layer, &model, env.request("hi")));
    assert!(third.poll().is_pending());
    env.advance(SECOND + SECOND / 100);
    assert!(third.is_woken());
    third.await.unwrap();
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn what_is_returned_wakes_the_first_that_waits() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(Quota::per(SECOND * 3600).requests(10).output_tokens(100))
        .estimate(|_| Usage::new(0, 100))
        .wait(SECOND * 7200);
    // Reports that nothing was used.
    let model = ScriptedModel::new()
        .text("hi")
        .usage(Usage::new(0, 0))
        .repeat();
    let open = layer
        .layer(model.clone())
        .oneshot(env.request("hi"))
        .await
        .unwrap();
    let mut waiting = task::spawn(call(&layer, &model, env.request("hi")));
    assert!(waiting.poll().is_pending());
    // The answer used nothing.
    let finish = open.body.collect::<Vec<_>>().await;
    assert!(finish.last().unwrap().is_ok());
    assert!(waiting.is_woken());
    waiting.await.unwrap();
}

#[tokio::test]
async fn keys_have_quotas_of_their_own() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(1))
        .by(|request| {
            request
                .user_message()
                .map(|message| message.text())
                .unwrap_or_default()
                .into()
        })
        .quotas(|key| (key == "gold").then(|| Quota::per(SECOND).requests(3)))
        .wait(Duration::ZERO);
    let model = answers();
    let passes = |key: &'static str| {
        let calls = || call(&layer, &model, env.request(key)).now_or_never();
        (0..10)
            .take_while(|_| matches!(calls(), Some(Ok(()))))
            .count()
    };
    assert_eq!((passes("a"), passes("b"), passes("gold")), (1, 1, 3));
    // Keys are bounded: those beyond the bound share one quota.
    let many = (0..11_000).filter(|index| {
        let request = env.request(Str::from(format!("key {index}")));
        matches!(call(&layer, &model, request).now_or_never(), Some(Ok(())))
    });
    assert_eq!(many.count(), 10_000 - 3 + 1);
    env.advance(SECOND * 2);
    assert_eq!(passes("new"), 1);
}

#[tokio::test]
async fn a_nested_agent_shares_a_layer_without_a_deadlock() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(2)).wait(Duration::ZERO);
    let inner = BoxModel::new(layer.layer(answers()));
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let inner = inner.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            inner.oneshot(request).await.unwrap().text().await.unwrap();
            concentric_core::ToolOutcome::done("ok")
        }
    });
    let model = ScriptedModel::new().tool_call("ask", serde_json::json!({}));
    let agent = AgentLayer::new(tools).layer(layer.layer(model));
    // The third call is that of the second step.
    let body = agent.oneshot(env.request("hi")).await.unwrap().body;
    let items: Vec<_> = body.collect().await;
    let error = items.last().unwrap().as_ref().unwrap_err();
    assert_eq!(error.code(), Some(RATE_LIMITED));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_leaves_the_quota_consistent() {
    let layer = RateLimitLayer::new(second().requests(1));
    let model = answers();
    let run = || {
        let limited = layer.clone().layer(model.clone());
        async move {
            let body = limited.oneshot(ChatRequest::user("hi")).await.unwrap().body;
            assert_finishes(body).await;
        }
    };
    drop_at_each_wait(run, async |_| assert_eq!(model.live(), 0)).await;
    tokio::time::sleep(SECOND * 2).await;
    call(
        &layer.clone().wait(Duration::ZERO),
        &model,
        ChatRequest::user("hi"),
    )
    .await
    .unwrap();
}
