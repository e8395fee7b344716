//! One test per statement of [`concentric_layers::circuit_breaker`].

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, Error, ErrorKind, Event, NoTools, Str,
    ToolOutcome,
};
use concentric_layers::{
    CircuitBreakerLayer, FallbackLayer, RateLimitLayer, RetryModel,
    circuit_breaker::{CIRCUIT_OPEN, CircuitState},
    fallback::FailedAttempts,
    rate_limit::Quota,
};
use concentric_test::{
    LogCapture, Pace, ScriptedModel, ScriptedTools, Spurious, Strict, TestEnvironment,
    assert_fails, assert_finishes, check_layer, drop_at_each_wait, watched,
};
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer};

const SECOND: Duration = Duration::from_secs(1);

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "no")
}

fn good() -> ScriptedModel {
    ScriptedModel::new().text("hi").repeat()
}

fn bad() -> ScriptedModel {
    fails(error(ErrorKind::Server))
}

fn fails(error: Error) -> ScriptedModel {
    ScriptedModel::new().error(error).repeat()
}

/// Makes a call, and reads its answer to the end.
async fn call(
    layer: &CircuitBreakerLayer,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Result<(), Error> {
    let body = layer.layer(model.clone()).oneshot(request).await?.body;
    let mut body = std::pin::pin!(body);
    let mut finished = false;
    while let Some(item) = body.next().await {
        finished |= item?.is_finish();
    }
    finished.then_some(()).ok_or_else(Error::truncated)
}

/// The code of the error of a call, if it failed.
async fn code(layer: &CircuitBreakerLayer, env: &TestEnvironment) -> Option<String> {
    let error = call(layer, &good(), env.request("hi")).await.err()?;
    error.code().map(str::to_owned)
}

/// A circuit that a single failure opens.
fn one() -> CircuitBreakerLayer {
    CircuitBreakerLayer::new("a").consecutive(1)
}

async fn open(layer: &CircuitBreakerLayer, env: &TestEnvironment) {
    call(layer, &bad(), env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Open);
}

/// The time until a call may pass.
async fn closed_for(layer: &CircuitBreakerLayer, env: &TestEnvironment) -> Duration {
    let error = call(layer, &good(), env.request("hi")).await.unwrap_err();
    assert_eq!(error.code(), Some(CIRCUIT_OPEN));
    error.retry_after().unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(CircuitBreakerLayer::new("a")).await;
    check_layer(
        CircuitBreakerLayer::new("a")
            .slow(SECOND, 0.5)
            .by(|_| "key".into()),
    )
    .await;
}

// Case F007.
#[tokio::test]
async fn an_error_after_any_number_of_events_opens_the_circuit() {
    for deltas in 0..6 {
        let env = TestEnvironment::new();
        let layer = CircuitBreakerLayer::new("a").consecutive(4);
        for _ in 0..4 {
            assert_eq!(layer.state(""), CircuitState::Closed);
            let failing = ScriptedModel::new()
                .deltas(vec!["a"; deltas])
                .error(error(ErrorKind::Overloaded));
            let failed = call(&layer, &failing, env.request("hi")).await.unwrap_err();
            // The error is the inner one.
            assert_eq!(
                (failed.kind(), failed.code()),
                (ErrorKind::Overloaded, None)
            );
        }
        assert_eq!(layer.state(""), CircuitState::Open, "after {deltas} deltas");
    }
}

#[tokio::test]
async fn answers_that_break_off_open_the_circuit() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("a").minimum_calls(4);
    let short = ScriptedModel::new().text("a").end_early().repeat();
    for _ in 0..4 {
        assert_eq!(layer.state(""), CircuitState::Closed);
        call(&layer, &short, env.request("hi")).await.unwrap_err();
    }
    assert_eq!(layer.state(""), CircuitState::Open);
}

#[tokio::test]
async fn dropped_calls_do_not_count() {
    let env = TestEnvironment::new();
    let layer = one().minimum_calls(0);
    let silent = ScriptedModel::new().never().repeat();
    let slow = ScriptedModel::new().text("a").never().repeat();
    for _ in 0..10 {
        let mut future = task::spawn(layer.layer(silent.clone()).oneshot(env.request("hi")));
        assert_pending!(future.poll());
        drop(future);
        let answer = layer.layer(slow.clone()).oneshot(env.request("hi")).await;
        let mut body = answer.unwrap().body;
        assert!(body.next().await.unwrap().is_ok());
        drop(body);
    }
    assert_eq!(layer.state(""), CircuitState::Closed);
    // They are not successes either.
    open(&layer, &env).await;
}

#[tokio::test]
async fn the_kind_of_an_error_decides() {
    use ErrorKind::*;
    let kinds = [
        (Overloaded, true),
        (Server, true),
        (Timeout, true),
        (Connection, true),
        (Truncated, true),
        (Protocol, true),
        (Authentication, false),
        (Permission, false),
        (NotFound, false),
        (InvalidRequest, false),
        (ContextWindow, false),
        (ContentFilter, false),
        (RateLimited, false),
        (Quota, false),
        (TooLarge, false),
        (Tool, false),
        (Configuration, false),
        (Cancelled, false),
        (Waiting, false),
        (Conflict, false),
        (Halted, false),
        (Other, false),
    ];
    let env = TestEnvironment::new();
    for (kind, counts) in kinds {
        for model in [
            ScriptedModel::new().error(error(kind)),
            ScriptedModel::new().text("a").error(error(kind)),
        ] {
            let layer = one();
            call(&layer, &model, env.request("hi")).await.unwrap_err();
            let is_open = layer.state("") == CircuitState::Open;
            assert_eq!(is_open, counts, "{kind:?}");
        }
        // A decision replaces the table, but what is no failure stays none.
        let all = one().counts(|_| Some(true));
        call(&all, &fails(error(kind)), env.request("hi"))
            .await
            .unwrap_err();
        let never = matches!(kind, Waiting | Halted | Cancelled);
        assert_eq!(all.state("") == CircuitState::Closed, never, "{kind:?}");
        let none = one().counts(|_| Some(false));
        call(&none, &fails(error(kind)), env.request("hi"))
            .await
            .unwrap_err();
        assert_eq!(none.state(""), CircuitState::Closed, "{kind:?}");
    }
}

#[tokio::test]
async fn errors_of_a_rate_limit_and_of_another_circuit_do_not_count() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("outer").consecutive(1);
    let limit = RateLimitLayer::new(Quota::per(SECOND).requests(1)).wait(Duration::ZERO);
    let limited = ServiceBuilder::new()
        .layer(&layer)
        .layer(limit)
        .service(good());
    let first = limited.clone().oneshot(env.request("hi")).await.unwrap();
    drop(first);
    let error = limited.oneshot(env.request("hi")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited);

    let inner = one();
    inner.open("");
    let nested = ServiceBuilder::new()
        .layer(&layer)
        .layer(inner)
        .service(good());
    let error = nested.oneshot(env.request("hi")).await.unwrap_err();
    assert_eq!(error.code(), Some(CIRCUIT_OPEN));
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn an_error_that_the_run_caused_does_not_count() {
    let env = TestEnvironment::new();
    let layer = one();
    let late = env.context_builder().deadline(env.context().now() + SECOND);
    let request = ChatRequest::user("hi").with_context(late.build());
    let model = ScriptedModel::new().sleep(SECOND).error(Error::deadline());
    let mut failing = task::spawn(call(&layer, &model, request));
    assert_pending!(failing.poll());
    env.advance(SECOND);
    assert_eq!(failing.await.unwrap_err().kind(), ErrorKind::Timeout);

    let request = env.request("hi");
    request.context.cancel(CancelReason::User);
    call(&layer, &bad(), request).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn a_rate_requires_a_number_of_calls() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("a");
    // 9 of 19.
    for index in 0..19 {
        let model = if index % 2 == 0 { good() } else { bad() };
        let _ = call(&layer, &model, env.request("hi")).await;
    }
    assert_eq!(layer.state(""), CircuitState::Closed);
    // 10 of 20.
    open(&layer, &env).await;

    // Failures alone are not enough before that number.
    let layer = CircuitBreakerLayer::new("a").failure_rate(0.1);
    for _ in 0..19 {
        call(&layer, &bad(), env.request("hi")).await.unwrap_err();
    }
    assert_eq!(layer.state(""), CircuitState::Closed);
    // The call that reaches it may be a success.
    call(&layer, &good(), env.request("hi")).await.unwrap();
    assert_eq!(layer.state(""), CircuitState::Open);
}

#[tokio::test]
async fn calls_leave_the_window_a_tenth_at_a_time() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("a")
        .window(SECOND * 10)
        .minimum_calls(5);
    for _ in 0..4 {
        call(&layer, &bad(), env.request("hi")).await.unwrap_err();
        env.advance(SECOND);
    }
    env.advance(SECOND * 6);
    // The first has left.
    call(&layer, &bad(), env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Closed);
    call(&layer, &bad(), env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Open);

    layer.close("");
    for _ in 0..4 {
        call(&layer, &bad(), env.request("hi")).await.unwrap_err();
    }
    env.advance(SECOND * 1_000);
    call(&layer, &bad(), env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn a_success_ends_a_sequence_of_failures() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("a").consecutive(3);
    for model in [bad(), bad(), good(), bad(), bad()] {
        let _ = call(&layer, &model, env.request("hi")).await;
        assert_eq!(layer.state(""), CircuitState::Closed);
    }
    // An error that does not count ends none.
    let refused = fails(error(ErrorKind::Authentication));
    call(&layer, &refused, env.request("hi")).await.unwrap_err();
    open(&layer, &env).await;
}

#[tokio::test]
async fn an_open_circuit_rejects_calls_without_the_inner_service() {
    let env = TestEnvironment::new();
    let layer = one();
    open(&layer, &env).await;
    // A readiness that would fail, and a call that would panic.
    let model = good().unready(error(ErrorKind::Other));
    let failed = call(&layer, &model, env.request("hi")).await.unwrap_err();
    assert_eq!(
        (failed.kind(), failed.code(), failed.advice()),
        (ErrorKind::Overloaded, Some(CIRCUIT_OPEN), None)
    );
    assert!(failed.message().contains("`a`"), "{failed}");
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_failure_to_become_ready_counts() {
    let env = TestEnvironment::new();
    let layer = one();
    let model = good().unready(error(ErrorKind::Connection));
    call(&layer, &model, env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Open);
}

#[tokio::test]
async fn the_time_doubles_with_each_failed_probe_up_to_the_longest() {
    let env = TestEnvironment::new();
    let layer = one().open_for(SECOND * 10).longest_open(SECOND * 35);
    let mut jitters = Vec::new();
    for base in [10, 20, 35, 35, 35] {
        open(&layer, &env).await;
        let time = closed_for(&layer, &env).await;
        let base = SECOND * base;
        assert!(time >= base && time <= base * 6 / 5, "{time:?}");
        jitters.push(time - base);
        env.advance(time - Duration::from_nanos(1));
        assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
        env.advance(Duration::from_nanos(1));
    }
    jitters.dedup();
    assert!(jitters.len() > 1, "{jitters:?}");
    // Closed once, it begins anew.
    for _ in 0..3 {
        call(&layer, &good(), env.request("hi")).await.unwrap();
    }
    assert_eq!(layer.state(""), CircuitState::Closed);
    open(&layer, &env).await;
    assert!(closed_for(&layer, &env).await <= SECOND * 12);
}

#[tokio::test]
async fn as_many_probes_pass_as_must_succeed() {
    let env = TestEnvironment::new();
    let layer = one().probes(2);
    open(&layer, &env).await;
    env.advance(SECOND * 36);
    // The state changes with the next call.
    assert_eq!(layer.state(""), CircuitState::Open);
    let answer = || layer.layer(good()).oneshot(env.request("hi"));
    let first = answer().await.unwrap().body;
    assert_eq!(layer.state(""), CircuitState::HalfOpen);
    let second = answer().await.unwrap().body;
    assert!(closed_for(&layer, &env).await <= SECOND * 30);
    assert_finishes(first).await;
    // A place that was used is not used again.
    assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
    assert_eq!(layer.state(""), CircuitState::HalfOpen);
    assert_finishes(second).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn a_clone_with_fewer_probes_closes_a_shared_circuit() {
    let env = TestEnvironment::new();
    let layer = one().probes(3);
    open(&layer, &env).await;
    env.advance(SECOND * 36);
    for _ in 0..2 {
        call(&layer, &good(), env.request("hi")).await.unwrap();
    }
    assert_eq!(layer.state(""), CircuitState::HalfOpen);
    let other = layer.clone().probes(1);
    call(&other, &good(), env.request("hi")).await.unwrap();
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn a_probe_that_fails_opens_the_circuit() {
    let env = TestEnvironment::new();
    let layer = one().probes(2);
    open(&layer, &env).await;
    env.advance(SECOND * 36);
    call(&layer, &good(), env.request("hi")).await.unwrap();
    let late = ScriptedModel::new()
        .text("a")
        .error(error(ErrorKind::Server));
    call(&layer, &late, env.request("hi")).await.unwrap_err();
    assert_eq!(layer.state(""), CircuitState::Open);
}

#[tokio::test]
async fn a_probe_without_an_outcome_gives_its_place_back() {
    let env = TestEnvironment::new();
    let layer = one().probes(1);
    open(&layer, &env).await;
    env.advance(SECOND * 36);
    let silent = ScriptedModel::new().never().repeat();
    for _ in 0..3 {
        let mut probe = task::spawn(layer.layer(silent.clone()).oneshot(env.request("hi")));
        assert_pending!(probe.poll());
        assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
        drop(probe);
        // A future that is never polled.
        drop(layer.layer(good()).oneshot(env.request("hi")));
        let answer = layer.layer(good()).oneshot(env.request("hi")).await;
        drop(answer.unwrap().body);
        let limited = fails(error(ErrorKind::RateLimited));
        call(&layer, &limited, env.request("hi")).await.unwrap_err();
    }
    assert_eq!(layer.state(""), CircuitState::HalfOpen);
    call(&layer, &good(), env.request("hi")).await.unwrap();
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn probes_that_nobody_reads_are_replaced() {
    let env = TestEnvironment::new();
    let layer = one().probes(2).open_for(SECOND * 10);
    open(&layer, &env).await;
    env.advance(SECOND * 12);
    call(&layer, &good(), env.request("hi")).await.unwrap();
    let unread = layer.layer(good()).oneshot(env.request("hi")).await;
    let unread = unread.unwrap().body;
    let time = closed_for(&layer, &env).await;
    assert_eq!(time, SECOND * 10);
    env.advance(time);
    let second = layer.layer(good()).oneshot(env.request("hi")).await;
    assert!(second.is_ok());
    // One success is missing, so one place was renewed.
    assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
    // Whichever ends first counts, and the other one is late.
    assert_finishes(unread).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
    drop(second);
    open(&layer, &env).await;
}

#[tokio::test]
async fn a_replaced_probe_that_ends_late_makes_no_room() {
    let env = TestEnvironment::new();
    let layer = one().probes(1).open_for(SECOND * 10);
    open(&layer, &env).await;
    env.advance(SECOND * 12);
    let unread = layer.layer(good()).oneshot(env.request("hi")).await;
    env.advance(SECOND * 10);
    let second = layer.layer(good()).oneshot(env.request("hi")).await;
    assert!(second.is_ok());
    drop(unread);
    assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
    assert_finishes(second.unwrap().body).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn the_outcome_of_an_earlier_state_does_not_count() {
    let env = TestEnvironment::new();
    let layer = one().probes(1);
    let slow = || {
        ScriptedModel::new()
            .text("a")
            .error(error(ErrorKind::Server))
    };
    let begun = layer.layer(slow()).oneshot(env.request("hi")).await;
    let (begun, other) = (
        begun.unwrap().body,
        layer.layer(good()).oneshot(env.request("hi")).await,
    );
    open(&layer, &env).await;
    let before = closed_for(&layer, &env).await;
    // Neither extends the time, nor closes the circuit.
    assert_finishes(other.unwrap().body).await;
    assert_eq!(closed_for(&layer, &env).await, before);
    env.advance(before);
    let probe = layer.layer(good()).oneshot(env.request("hi")).await;
    assert_fails(begun).await;
    assert_eq!(layer.state(""), CircuitState::HalfOpen);
    assert_finishes(probe.unwrap().body).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn slow_calls_open_the_circuit() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("a")
        .slow(SECOND * 5, 0.5)
        .minimum_calls(2)
        .probes(1);
    let after = |first: Duration, second: Duration| {
        let model = ScriptedModel::new().sleep(first).text("a");
        model.sleep(second).text("b")
    };
    let take = async |model: ScriptedModel| {
        let mut slow = task::spawn(call(&layer, &model, env.request("hi")));
        while slow.poll().is_pending() {
            env.advance(SECOND);
        }
    };
    // The time after the first content does not matter, nor that of a consumer.
    for _ in 0..4 {
        take(after(SECOND * 4, SECOND * 60)).await;
    }
    let unread = layer.layer(good()).oneshot(env.request("hi")).await;
    env.advance(SECOND * 30);
    assert_finishes(unread.unwrap().body).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
    layer.close("");
    take(after(SECOND * 5, SECOND)).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
    take(after(SECOND, SECOND)).await;
    assert_eq!(layer.state(""), CircuitState::Open);
    // A slow probe is a failed one.
    env.advance(SECOND * 36);
    take(after(SECOND * 5, SECOND)).await;
    assert!(closed_for(&layer, &env).await > SECOND * 50);
    env.advance(SECOND * 72);
    take(after(SECOND, SECOND)).await;
    assert_eq!(layer.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn clones_share_circuits_and_keys_have_their_own() {
    let env = TestEnvironment::new();
    let layer = one();
    open(&layer.clone(), &env).await;
    assert_eq!(code(&layer, &env).await.as_deref(), Some(CIRCUIT_OPEN));
    assert_eq!(one().state(""), CircuitState::Closed);

    let layer = one().by(|request| request.options.model.clone().unwrap_or_default());
    let of = |model: &str| {
        let mut request = env.request("hi");
        request.options_mut().model = Some(Str::from(model));
        request
    };
    call(&layer, &bad(), of("x")).await.unwrap_err();
    assert_eq!(layer.state("x"), CircuitState::Open);
    call(&layer, &good(), of("y")).await.unwrap();
    call(&layer, &good(), of("x")).await.unwrap_err();
    // A look at other circuits does not replace one.
    for key in 0..2_000 {
        assert_eq!(layer.state(&key.to_string()), CircuitState::Closed);
    }
    assert_eq!(layer.state("x"), CircuitState::Open);
    // Circuits are bounded: one that was not used for long is forgotten.
    for key in 0..2_000 {
        call(&layer, &good(), of(&key.to_string())).await.unwrap();
    }
    assert_eq!(layer.state("x"), CircuitState::Closed);
}

#[tokio::test]
async fn a_circuit_is_opened_and_closed_by_hand() {
    let env = TestEnvironment::new();
    let layer = one();
    layer.open("");
    env.advance(SECOND * 100_000);
    let failed = call(&layer, &good(), env.request("hi")).await.unwrap_err();
    assert_eq!(
        (failed.code(), failed.retry_after()),
        (Some(CIRCUIT_OPEN), None)
    );
    layer.close("");
    call(&layer, &good(), env.request("hi")).await.unwrap();
    open(&layer, &env).await;
    layer.close("");
    assert_eq!(code(&layer, &env).await, None);
}

#[tokio::test]
async fn the_limits_of_options() {
    let env = TestEnvironment::new();
    let layer = CircuitBreakerLayer::new("")
        .consecutive(0)
        .probes(0)
        .window(Duration::ZERO)
        .open_for(Duration::ZERO)
        .longest_open(Duration::ZERO);
    call(&layer, &good(), env.request("hi")).await.unwrap();
    open(&layer, &env).await;
    call(&layer, &good(), env.request("hi")).await.unwrap();
    assert_eq!(layer.state(""), CircuitState::Closed);

    let most = Duration::MAX;
    let layer = CircuitBreakerLayer::new("a")
        .failure_rate(0.0)
        .minimum_calls(0)
        .window(most)
        .open_for(most)
        .longest_open(most)
        .slow(Duration::ZERO, 2.0)
        .probes(u32::MAX);
    // A success is not a rate of failures.
    call(&layer, &good(), env.request("hi")).await.unwrap();
    open(&layer, &env).await;
    env.advance(SECOND * 1_000_000);
    assert!(closed_for(&layer, &env).await > SECOND * 1_000_000);

    let never = CircuitBreakerLayer::new("a")
        .failure_rate(f64::NAN)
        .minimum_calls(u32::MAX);
    for _ in 0..100 {
        call(&never, &bad(), env.request("hi")).await.unwrap_err();
    }
    assert_eq!(never.state(""), CircuitState::Closed);
}

#[tokio::test]
async fn a_retry_does_not_repeat_a_rejected_call_and_a_fallback_does() {
    let env = TestEnvironment::new();
    let (first, second) = (fails(error(ErrorKind::Overloaded)), good());
    let layer = CircuitBreakerLayer::new("a").consecutive(2);
    let retry = RetryModel::new(5)
        .backoff(Duration::ZERO, Duration::ZERO)
        .retry_if(|_| Some(true));
    let service = |model: ScriptedModel| {
        ServiceBuilder::new()
            .layer(FallbackLayer::new("a").or("b", second.clone()))
            .layer(RetryLayer::new(retry.clone()))
            .layer(layer.clone())
            .service(model)
    };
    let answer = service(first.clone()).oneshot(env.request("hi")).await;
    let answer = answer.unwrap();
    // Two attempts reached the model, and the third was rejected.
    let failed: &FailedAttempts = answer.extensions.get().unwrap();
    let (name, cause) = failed.iter().next().unwrap();
    assert_eq!((name, cause.code()), ("a", Some(CIRCUIT_OPEN)));
    assert_eq!((cause.attempts(), first.calls()), (3, 2));
    assert_eq!(answer.text().await.unwrap(), "hi");
    // From now on, the second model answers at once.
    let answer = service(first.clone()).oneshot(env.request("hi")).await;
    answer.unwrap().text().await.unwrap();
    assert_eq!((first.calls(), second.calls()), (2, 2));
    // After a recovery, the first one does.
    env.advance(SECOND * 36);
    let first = good();
    let answer = service(first.clone()).oneshot(env.request("hi")).await;
    answer.unwrap().text().await.unwrap();
    assert_eq!((first.calls(), second.calls()), (1, 2));
}

#[tokio::test]
async fn changes_are_events_of_the_run_that_caused_them_and_are_logged() {
    let env = TestEnvironment::new();
    let (log, _guard) = LogCapture::of_thread("concentric::circuit_breaker");
    let layer = one().probes(1);
    let run = async |model: ScriptedModel| {
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .layer(&layer)
            .service(model);
        let items: Vec<_> = match agent.oneshot(env.request("secret")).await {
            Ok(answer) => answer.body.collect().await,
            Err(_) => Vec::new(),
        };
        let custom = |event| match event {
            Ok(Event::Custom(event)) if event.name == "concentric.circuit" => Some(event.value),
            _ => None,
        };
        items.into_iter().filter_map(custom).collect::<Vec<_>>()
    };
    let breaks = ScriptedModel::new()
        .text("a")
        .error(error(ErrorKind::Server));
    let event = |state| json!({"name": "a", "state": state});
    assert_eq!(run(breaks).await, [event("open")]);
    assert_eq!(run(good()).await.len(), 0);
    env.advance(SECOND * 36);
    let seen = run(good()).await;
    assert_eq!(seen, [event("half_open"), event("closed")]);
    let lines = log.take();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[0].contains("circuit=a") && lines[0].contains("state=\"open\""),
        "{lines:?}"
    );
    assert!(!format!("{lines:?} {layer:?}").contains("secret"));
}

#[tokio::test]
async fn runs_and_a_nested_agent_share_a_circuit() {
    let env = TestEnvironment::new();
    let layer = one();
    let inner = BoxModel::new(layer.layer(bad()));
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let inner = inner.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            inner.oneshot(request).await.unwrap_err();
            ToolOutcome::done("ok")
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("b");
    let agent = AgentLayer::new(tools).layer(layer.layer(model.clone()));
    // Another run, which is under way when the circuit opens, is not disturbed.
    let other = layer
        .layer(good())
        .oneshot(env.request("hi"))
        .await
        .unwrap();
    assert_fails(agent.oneshot(env.request("hi")).await.unwrap().body).await;
    assert_eq!(model.calls(), 1);
    assert_finishes(other.body).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_holds_nothing() {
    let layer = one().probes(1).open_for(SECOND);
    let model = ScriptedModel::new()
        .paced(Pace::NextTick)
        .text("hi")
        .repeat();
    let run = || {
        // Half open, with one place.
        layer.close("");
        let (layer, model) = (layer.clone(), model.clone());
        async move {
            let failing = layer.layer(bad()).oneshot(ChatRequest::user("hi"));
            failing.await.unwrap_err();
            tokio::time::sleep(SECOND * 2).await;
            let body = layer.layer(model).oneshot(ChatRequest::user("hi"));
            assert_finishes(body.await.unwrap().body).await;
        }
    };
    drop_at_each_wait(run, async |_| {
        assert_eq!(model.live(), 0);
        tokio::time::sleep(SECOND * 2).await;
        call(&layer, &good(), ChatRequest::user("hi"))
            .await
            .unwrap();
        assert_eq!(layer.state(""), CircuitState::Closed);
    })
    .await;
}

#[test]
fn a_slow_service_and_spurious_polls_change_nothing() {
    let layer = one();
    let shared = layer.clone();
    let answer = watched(async move {
        let model = ScriptedModel::new().paced(Pace::NextTick).text("hi");
        let service = shared.layer(Strict::new(model));
        let answer = Spurious::new(service.oneshot(ChatRequest::user("hi"))).await;
        Spurious::new(answer.unwrap().body).count().await
    });
    assert_eq!(answer, 2);
    assert_eq!(layer.state(""), CircuitState::Closed);
}
