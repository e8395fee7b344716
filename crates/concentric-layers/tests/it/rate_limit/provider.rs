//! What providers report of their limits, and what they reject.

use super::*;

#[tokio::test]
async fn a_key_is_closed_until_the_reset_of_what_the_provider_has_left() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second()).estimate(|_| Usage::new(30, 10));
    let sets: [fn(&mut RateLimits) -> &mut Allowance; 4] = [
        |limits| &mut limits.requests,
        |limits| &mut limits.tokens,
        |limits| &mut limits.input_tokens,
        |limits| &mut limits.output_tokens,
    ];
    for (set, estimate) in sets.into_iter().zip([1, 40, 30, 10]) {
        // Enough for two calls, and not for a third.
        let mut limits = RateLimits::default();
        *set(&mut limits) = allowance(&env, estimate * 3 - 1, SECOND * 60);
        reporting(&layer, &env, limits).await;
        assert_eq!(passes(&layer, &env), 2);
        // A waiting call begins at the reset.
        let model = answers();
        let waiting = layer.clone().wait(SECOND * 90);
        let mut waiting = task::spawn(call(&waiting, &model, env.request("hi")));
        assert!(waiting.poll().is_pending());
        env.advance(SECOND * 60 - Duration::from_millis(1));
        assert!(waiting.poll().is_pending());
        env.advance(Duration::from_millis(1));
        assert!(waiting.poll().is_ready());
        assert_eq!(passes(&layer, &env), 1_000);
    }
    // `remaining` is 0.
    let mut limits = RateLimits::default();
    limits.requests = allowance(&env, 0, SECOND * 7);
    reporting(&layer, &env, limits).await;
    let layer = layer.wait(Duration::ZERO);
    let error = call(&layer, &answers(), env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.retry_after(), Some(SECOND * 7));
    env.advance(SECOND * 7);
    limits.requests = allowance(&env, 0, SECOND * 1_000_000);
    reporting(&layer, &env, limits).await;
    let error = call(&layer, &answers(), env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.retry_after(), Some(SECOND * 3_600));
}

#[tokio::test]
async fn a_later_report_replaces_the_earlier_one_and_wakes_the_next_call() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second());
    let mut limits = RateLimits::default();
    limits.requests = allowance(&env, 10, SECOND * 60);
    let failed = Error::new(ErrorKind::Server, "no").with_rate_limits(limits);
    let model = ScriptedModel::new().sleep(SECOND).error(failed);
    let mut failing = task::spawn(call(&layer, &model, env.request("hi")));
    assert!(failing.poll().is_pending());
    limits.requests = allowance(&env, 0, SECOND * 60);
    reporting(&layer, &env, limits).await;
    let model = answers();
    let waits = layer.clone().wait(SECOND * 90);
    let mut waiting = task::spawn(call(&waits, &model, env.request("hi")));
    assert!(waiting.poll().is_pending());
    env.advance(SECOND);
    assert!(!waiting.is_woken());
    assert!(failing.poll().is_ready());
    assert!(waiting.is_woken());
    waiting.await.unwrap();
    assert_eq!(passes(&layer, &env), 9);
    // Without a number or a time, there is nothing to follow.
    limits.requests = Allowance::default();
    limits.tokens.remaining = Some(0);
    env.advance(SECOND * 60);
    reporting(&layer, &env, limits).await;
    assert_eq!(passes(&layer, &env), 1_000);
}

#[tokio::test]
async fn a_report_does_not_forget_the_calls_that_began_after_its_own() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second());
    let reports = |remaining, after| {
        let mut limits = RateLimits::default();
        limits.requests = allowance(&env, remaining, SECOND * 60);
        let failed = Error::new(ErrorKind::Server, "no").with_rate_limits(limits);
        ScriptedModel::new().sleep(after).error(failed)
    };
    // The first of ten calls finds 9 left, and the others are under way.
    let mut calls: Vec<_> = (0..10)
        .map(|index| {
            let model = reports(9 - index, SECOND * (index as u32 + 1));
            let request = env.request("hi");
            let layer = layer.clone();
            task::spawn(async move { call(&layer, &model, request).await })
        })
        .collect();
    assert!(calls.iter_mut().all(|call| call.poll().is_pending()));
    env.advance(SECOND);
    assert!(calls[0].poll().is_ready());
    assert_eq!(passes(&layer, &env), 0);
    // A call that is dropped was received, or not: its place is not known to be free until the next report.
    drop(calls.pop());
    env.advance(SECOND);
    assert!(calls[1].poll().is_ready());
    assert_eq!(passes(&layer, &env), 1);
}

#[tokio::test]
async fn the_providers_limits_can_be_ignored() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(8)).follow_provider(false);
    let mut limits = RateLimits::default();
    limits.requests = allowance(&env, 0, SECOND * 60);
    reporting(&layer, &env, limits).await;
    let full = Error::new(ErrorKind::RateLimited, "full")
        .with_status(429)
        .with_rate_limits(limits)
        .with_retry_after(SECOND * 60);
    call(&layer, &ScriptedModel::new().error(full), env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(passes(&layer, &env), 6);
}

#[tokio::test]
async fn a_call_that_was_not_sent_leaves_what_the_provider_has() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second());
    let mut limits = RateLimits::default();
    limits.requests = allowance(&env, 2, SECOND * 60);
    reporting(&layer, &env, limits).await;
    let broken = Error::new(ErrorKind::Connection, "no connection").with_code("not_connected");
    for _ in 0..10 {
        let model = ScriptedModel::new().error(broken.clone());
        let failed = call(&layer, &model, env.request("hi")).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Connection);
    }
    assert_eq!(passes(&layer, &env), 2);
}

#[tokio::test]
async fn a_rejected_request_halves_the_quota_which_recovers_by_a_tenth() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(100));
    let reject = async || {
        let model = ScriptedModel::new().error(full().with_status(429));
        call(&layer, &model, env.request("hi")).await.unwrap_err();
    };
    reject().await;
    assert_eq!(passes(&layer, &env), 50);
    // A period adds the half, which has grown to 0.6 meanwhile.
    env.advance(SECOND);
    assert_eq!(passes(&layer, &env), 55);
    env.advance(SECOND * 4);
    assert_eq!(passes(&layer, &env), 100);
    env.advance(SECOND * 100);
    assert_eq!(passes(&layer, &env), 100);

    // The quota is never halved to nothing.
    let hurried = layer.clone().wait(Duration::ZERO);
    for _ in 0..20 {
        let model = ScriptedModel::new().error(full().with_status(429));
        call(&hurried, &model, env.request("hi")).await.unwrap_err();
        env.advance(SECOND / 100);
    }
    assert!(passes(&layer, &env) <= 2);
    env.advance(SECOND * 20);
    assert_eq!(passes(&layer, &env), 100);
}

#[tokio::test]
async fn calls_that_are_rejected_together_halve_the_quota_once() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(100));
    let model = ScriptedModel::new()
        .sleep(Duration::from_millis(1))
        .error(full().with_status(429))
        .repeat();
    let mut calls: Vec<_> = (0..8)
        .map(|_| task::spawn(call(&layer, &model, env.request("hi"))))
        .collect();
    assert!(calls.iter_mut().all(|call| call.poll().is_pending()));
    env.advance(Duration::from_millis(1));
    assert!(calls.iter_mut().all(|call| call.poll().is_ready()));
    assert_eq!(passes(&layer, &env), 50);
}

#[tokio::test]
async fn a_rejection_in_the_body_counts_and_one_of_another_limit_does_not() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(100));
    let late = ScriptedModel::new().text("a").error(full());
    let body = layer.layer(late).oneshot(env.request("hi")).await;
    assert_fails(body.unwrap().body).await;
    assert_eq!(passes(&layer, &env), 50);

    let layer = RateLimitLayer::new(second().requests(100)).wait(Duration::ZERO);
    let inner = RateLimitLayer::new(Quota::per(SECOND * 60).requests(1)).wait(Duration::ZERO);
    let both = layer.layer(inner.layer(answers()));
    both.clone().oneshot(env.request("hi")).await.unwrap();
    let failed = both.oneshot(env.request("hi")).await.err().unwrap();
    assert_eq!(failed.code(), Some(RATE_LIMITED));
    assert!(passes(&layer, &env) > 90);
}

#[tokio::test]
async fn a_call_that_needs_more_than_a_halved_quota_takes_all_of_it() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().output_tokens(100)).estimate(|_| Usage::new(0, 80));
    let failing = ScriptedModel::new().error(full().with_status(429));
    call(&layer, &failing, env.request("hi")).await.unwrap_err();
    assert_eq!(passes(&layer, &env), 1);
    // It is 30 tokens in debt, and the quota grows from 50 to 60.
    env.advance(SECOND);
    assert_eq!(passes(&layer, &env), 0);
    env.advance(SECOND);
    assert_eq!(passes(&layer, &env), 1);
}
