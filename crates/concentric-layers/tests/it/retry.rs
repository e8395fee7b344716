//! One test per statement of [`concentric_layers::retry`].

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CancelReason, ChatRequest, ChatResponse, Error, ErrorKind,
    Event, EventStream, Reply, ResponseHead, SideEffects, Str, ToolOutcome, Usage,
    machine::RunState,
};
use concentric_layers::{CommitLayer, Next, RetryModel, from_fn};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, Strict, TestEnvironment, assert_fails, assert_finishes,
    check_layer, drop_at_each_wait, text_of,
};
use concentric_tools::{Toolset, agent_tool};
use serde_json::{Value, json};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    retry::{RetryLayer, budget::Budget},
    service_fn,
};

const SECOND: Duration = Duration::from_secs(1);

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "no")
}

/// Fails always.
fn fails(error: Error) -> ScriptedModel {
    ScriptedModel::new().error(error).repeat()
}

fn at_once(attempts: u32) -> RetryLayer<RetryModel> {
    RetryLayer::new(RetryModel::new(attempts).backoff(Duration::ZERO, Duration::ZERO))
}

async fn call(
    layer: &RetryLayer<RetryModel>,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Result<String, Error> {
    layer
        .layer(model.clone())
        .oneshot(request)
        .await?
        .text()
        .await
}

/// Drives a call to its end; the clock advances to the end of each pause. Returns the pauses as well.
fn with_pauses<F: Future>(env: &TestEnvironment, call: F) -> (F::Output, Vec<Duration>) {
    let mut call = task::spawn(call);
    let mut pauses = Vec::new();
    loop {
        if let std::task::Poll::Ready(output) = call.poll() {
            return (output, pauses);
        }
        if call.is_woken() {
            continue;
        }
        let pause = env.clock().next_wake().expect("a pause");
        pauses.push(pause);
        env.advance(pause);
    }
}

/// A budget of a number of repetitions.
#[derive(Clone)]
struct Tokens(Arc<AtomicI64>);

impl Tokens {
    fn new(tokens: i64) -> Self {
        Self(Arc::new(AtomicI64::new(tokens)))
    }
}

impl Budget for Tokens {
    fn deposit(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn withdraw(&self) -> bool {
        let one_less = |left: i64| (left > 0).then_some(left - 1);
        let updated = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        updated.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(RetryLayer::new(RetryModel::new(0))).await;
    check_layer(RetryLayer::new(RetryModel::new(3))).await;
    check_layer(RetryLayer::new(RetryModel::new(u32::MAX))).await;
}

// Case C113.
#[tokio::test]
async fn a_rejected_key_is_final_and_a_429_waits() {
    let env = TestEnvironment::new();
    let layer = RetryLayer::new(RetryModel::new(3));
    let model = fails(error(ErrorKind::Authentication).with_status(401));
    let failed = call(&layer, &model, env.request("hi")).await.unwrap_err();
    assert_eq!((failed.attempts(), model.calls()), (1, 1));

    // Longer than any pause of the policy's own.
    let busy = error(ErrorKind::RateLimited).with_status(429);
    let model = ScriptedModel::new()
        .error(busy.with_retry_after(SECOND * 21))
        .then()
        .text("hello");
    let (text, pauses) = with_pauses(&env, call(&layer, &model, env.request("hi")));
    assert_eq!((text.unwrap().as_str(), model.calls()), ("hello", 2));
    assert_eq!(pauses, [SECOND * 21]);
}

// Case C114.
#[tokio::test]
async fn a_pause_beyond_the_deadline_returns_the_error_at_once() {
    let env = TestEnvironment::new();
    let busy = || error(ErrorKind::RateLimited).with_retry_after(SECOND * 3);
    let within = |left: Duration| {
        let deadline = env.context().now() + left;
        let context = env.context_builder().deadline(deadline).build();
        ChatRequest::user("hi").with_context(context)
    };
    let layer = at_once(3);
    // A timer may be late by a millisecond.
    for left in [
        SECOND * 2,
        SECOND * 3,
        SECOND * 3 + Duration::from_millis(1),
    ] {
        let model = fails(busy());
        let mut failing = task::spawn(call(&layer, &model, within(left)));
        let failed = assert_ready!(failing.poll()).unwrap_err();
        assert_eq!(
            (failed.kind(), failed.advice()),
            (ErrorKind::RateLimited, Some(false))
        );
        assert_eq!(failed.retry_after(), Some(SECOND * 3));
        assert_eq!(model.calls(), 1);
    }
    let model = ScriptedModel::new().error(busy()).then().text("hello");
    let left = SECOND * 3 + Duration::from_millis(2);
    let (text, pauses) = with_pauses(&env, call(&layer, &model, within(left)));
    assert_eq!(
        (text.unwrap().as_str(), pauses),
        ("hello", vec![SECOND * 3])
    );
}

#[tokio::test]
async fn the_kind_and_the_advice_decide() {
    use ErrorKind::*;
    let repeats = |kind| {
        matches!(
            kind,
            RateLimited | Overloaded | Server | Timeout | Connection | Truncated
        )
    };
    let kinds = [
        Authentication,
        Permission,
        NotFound,
        InvalidRequest,
        ContextWindow,
        ContentFilter,
        RateLimited,
        Quota,
        Overloaded,
        Server,
        Timeout,
        Connection,
        Truncated,
        Protocol,
        TooLarge,
        Tool,
        Configuration,
        Cancelled,
        Waiting,
        Conflict,
        Halted,
        Other,
    ];
    let vetoed = [
        Authentication,
        Permission,
        Quota,
        Cancelled,
        Waiting,
        Halted,
    ];
    for kind in kinds {
        let calls = async |advice: Option<bool>, retry_if: Option<bool>| {
            let failure = match advice {
                Some(advice) => error(kind).with_advice(advice),
                None => error(kind),
            };
            let model = fails(failure);
            let policy = RetryModel::new(2).backoff(Duration::ZERO, Duration::ZERO);
            let layer = RetryLayer::new(policy.retry_if(move |_| retry_if));
            call(&layer, &model, ChatRequest::user("hi"))
                .await
                .unwrap_err();
            model.calls() == 2
        };
        let may = !vetoed.contains(&kind);
        assert_eq!(calls(None, None).await, repeats(kind), "{kind}");
        assert_eq!(calls(Some(true), None).await, may, "{kind}");
        assert_eq!(calls(None, Some(true)).await, may, "{kind}");
        assert!(!calls(Some(false), Some(true)).await, "{kind}");
        assert!(!calls(Some(true), Some(false)).await, "{kind}");
    }
}

#[tokio::test]
async fn a_possible_effect_is_never_repeated() {
    let insistent = RetryModel::new(3)
        .backoff(Duration::ZERO, Duration::ZERO)
        .retry_if(|_| Some(true));
    let layer = RetryLayer::new(insistent);
    for effects in [SideEffects::Possible, SideEffects::Committed] {
        let model = fails(error(ErrorKind::Server).with_effects(effects));
        call(&layer, &model, ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(model.calls(), 1);
    }
    // A layer in between has replaced the error of a run with effects.
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(error(ErrorKind::Server))
        .repeat();
    let agent = ServiceBuilder::new()
        .layer(layer)
        .layer(from_fn(async |request: ChatRequest, mut next: Next| {
            let answer = next.run(request).await;
            answer.map_err(|_| error(ErrorKind::Server))
        }))
        .layer(CommitLayer::whole())
        .layer(AgentLayer::new(tools.clone()))
        .service(model.clone());
    let failed = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(
        (failed.effects(), failed.attempts()),
        (SideEffects::None, 1)
    );
    assert_eq!((tools.calls().len(), model.calls()), (1, 2));
}

#[tokio::test]
async fn an_attempt_beside_effects_of_its_run_is_repeated() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(error(ErrorKind::Server))
        .then()
        .text("paid");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(at_once(2))
        .service(Strict::new(model.clone()));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "paid");
    assert_eq!((tools.calls().len(), model.calls()), (1, 3));
}

#[tokio::test]
async fn a_conversation_at_the_provider_is_continued_once() {
    use ErrorKind::*;
    let calls = async |name: &str, value: Value, kind| {
        let model = fails(error(kind));
        let mut request = ChatRequest::user("hi");
        request
            .options_mut()
            .provider
            .insert(name.to_owned(), value);
        call(&at_once(2), &model, request).await.unwrap_err();
        model.calls()
    };
    for name in ["previous_response_id", "conversation"] {
        for unclear in [Timeout, Connection, Truncated] {
            assert_eq!(calls(name, json!("r1"), unclear).await, 1, "{unclear}");
            assert_eq!(calls(name, Value::Null, unclear).await, 2, "{unclear}");
        }
        for refused in [RateLimited, Overloaded, Server] {
            assert_eq!(calls(name, json!("r1"), refused).await, 2, "{refused}");
        }
    }
    assert_eq!(calls("store", json!(true), Timeout).await, 2);
}

#[tokio::test]
async fn errors_of_local_limits_are_not_repeated() {
    for (code, calls) in [
        ("circuit_open", 1),
        ("rate_limited_locally", 1),
        ("busy", 2),
    ] {
        let model = fails(error(ErrorKind::Overloaded).with_code(code));
        call(&at_once(2), &model, ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(model.calls(), calls, "{code}");
    }
}

#[tokio::test]
async fn pauses_are_random_below_a_bound_that_doubles() {
    let env = TestEnvironment::new();
    let policy = RetryModel::new(8).backoff(SECOND, SECOND * 10);
    let layer = RetryLayer::new(policy.budget(Tokens::new(i64::MAX / 2)));
    let mut longest = [Duration::ZERO; 7];
    for _ in 0..200 {
        let model = fails(error(ErrorKind::Server));
        let (failed, pauses) = with_pauses(&env, call(&layer, &model, env.request("hi")));
        assert_eq!((failed.unwrap_err().attempts(), pauses.len()), (8, 7));
        for (longest, pause) in longest.iter_mut().zip(pauses) {
            *longest = pause.max(*longest);
        }
    }
    for (longest, bound) in longest.into_iter().zip([1, 2, 4, 8, 10, 10, 10]) {
        let bound = SECOND * bound;
        assert!(
            longest <= bound && longest > bound.mul_f64(0.9),
            "{longest:?} of {bound:?}"
        );
    }
}

#[tokio::test]
async fn a_provider_that_asks_for_too_long_is_not_awaited() {
    let env = TestEnvironment::new();
    let failing = |after| fails(error(ErrorKind::RateLimited).with_retry_after(after));
    let model = failing(SECOND * 61);
    let failed = call(&at_once(3), &model, env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(
        (failed.attempts(), failed.advice(), model.calls()),
        (1, Some(false), 1)
    );

    let patient = RetryModel::new(2).max_retry_after(SECOND * 61);
    let layer = RetryLayer::new(patient.backoff(Duration::ZERO, Duration::ZERO));
    let (failed, pauses) = with_pauses(&env, call(&layer, &model, env.request("hi")));
    assert_eq!(
        (failed.unwrap_err().attempts(), pauses),
        (2, vec![SECOND * 61])
    );
    let impatient = RetryLayer::new(RetryModel::new(2).max_retry_after(Duration::ZERO));
    let model = failing(Duration::from_nanos(1));
    call(&impatient, &model, env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn settings_may_have_their_least_and_their_most() {
    let env = TestEnvironment::new();
    let model = fails(error(ErrorKind::Server));
    let failed = call(&at_once(0), &model, env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!((failed.attempts(), model.calls()), (1, 1));

    let endless = RetryModel::new(u32::MAX).backoff(Duration::MAX, Duration::MAX);
    let layer = RetryLayer::new(endless.max_retry_after(Duration::MAX));
    let asks = error(ErrorKind::Server).with_retry_after(Duration::MAX);
    let model = fails(asks);
    let request = env.request("hi");
    let context = request.context.clone();
    let mut waiting = task::spawn(call(&layer, &model, request));
    assert_pending!(waiting.poll());
    context.cancel(CancelReason::User);
    assert!(waiting.is_woken());
    drop(waiting);
    assert_eq!((env.clock().sleepers(), model.calls()), (0, 1));

    // The exponent of the bound does not overflow.
    let tokens = Tokens::new(99);
    let layer = RetryLayer::new(
        RetryModel::new(u32::MAX)
            .backoff(Duration::from_nanos(1), Duration::from_nanos(2))
            .budget(tokens.clone()),
    );
    let model = fails(error(ErrorKind::Server));
    let (failed, _) = with_pauses(&env, call(&layer, &model, env.request("hi")));
    let failed = failed.unwrap_err();
    assert_eq!((failed.attempts(), failed.advice()), (100, Some(false)));
    assert_eq!((model.calls(), tokens.0.load(Ordering::SeqCst)), (100, 0));
}

#[tokio::test]
async fn a_boxed_error_is_decided_on_like_any_other() {
    let boxes = |error: Error| {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let service = service_fn(move |_: ChatRequest| {
            count.fetch_add(1, Ordering::Relaxed);
            let error = error.clone();
            async move { Err::<ChatResponse<EventStream>, BoxError>(error.into()) }
        });
        (at_once(3).layer(service), calls)
    };
    let source = std::io::Error::other("a cable");
    let (service, calls) = boxes(error(ErrorKind::Connection).with_source(source));
    let failed = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    let failed = Error::from(failed);
    assert_eq!(
        (failed.kind(), failed.attempts()),
        (ErrorKind::Connection, 3)
    );
    assert_eq!(format!("{failed:#}"), "connection: no: a cable");
    assert_eq!(calls.load(Ordering::Relaxed), 3);

    let (service, calls) = boxes(error(ErrorKind::Permission));
    let failed = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(
        (
            Error::from(failed).attempts(),
            calls.load(Ordering::Relaxed)
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_times_out_is_repeated() {
    let model = ScriptedModel::new().never().then().text("hello");
    let service = ServiceBuilder::new()
        .layer(at_once(2))
        .timeout(SECOND)
        .service(model.clone());
    let answer = service.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "hello");
    assert_eq!((model.calls(), model.dropped(), model.live()), (2, 1, 0));
}

#[tokio::test]
async fn content_is_never_repeated() {
    for first in [
        ScriptedModel::new().reasoning("Hm."),
        ScriptedModel::new().text("a"),
    ] {
        let model = first.error(error(ErrorKind::Server)).then().text("b");
        let body = at_once(3)
            .layer(model.clone())
            .oneshot(ChatRequest::user("hi"));
        let (events, failed) = assert_fails(body.await.unwrap().body).await;
        assert!(!text_of(&events).contains('b'));
        assert_eq!((failed.attempts(), model.calls()), (1, 1));
    }
}

#[tokio::test]
async fn a_held_answer_that_fails_is_repeated_and_counted() {
    let head = || ResponseHead::new("scripted", "scripted-1");
    let model = ScriptedModel::new()
        .head(head())
        .text("This is the answer, and it is rejected.")
        .usage(Usage::new(10, 1))
        .then()
        .text("a")
        .error(error(ErrorKind::Truncated))
        .then()
        .head(head())
        .text("b")
        .usage(Usage::new(10, 2));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    // The first answer exceeds the limit after it was read.
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(
            RetryModel::new(3)
                .backoff(Duration::ZERO, Duration::ZERO)
                .retry_if(|error| (error.kind() == ErrorKind::TooLarge).then_some(true)),
        ))
        .layer(from_fn(async |request: ChatRequest, mut next: Next| {
            let answer = next.run(request).await?;
            let head = answer.head.clone();
            let text = answer.collect().await?;
            match text.text().starts_with("This") {
                true => Err(error(ErrorKind::TooLarge)),
                false => {
                    let events = [
                        Event::text(text.text()),
                        Event::Finish(Box::new(text.finish)),
                    ];
                    let body = futures_util::stream::iter(events.map(Ok));
                    Ok(ChatResponse::new(EventStream::new(body)).with_head(head))
                }
            }
        }))
        .layer(CommitLayer::whole())
        .service(model.clone());
    let (events, _) = assert_finishes(service.oneshot(request).await.unwrap().body).await;
    assert_eq!((text_of(&events).as_str(), model.calls()), ("b", 3));
    assert_eq!(context.run_usage().total(), Usage::new(20, 3));
}

// Case F020.
#[tokio::test]
async fn stacked_policies_do_not_multiply_their_attempts() {
    let stacked = |policies: [RetryModel; 3], model: &ScriptedModel| {
        let [a, b, c] =
            policies.map(|it| RetryLayer::new(it.backoff(Duration::ZERO, Duration::ZERO)));
        BoxModel::new(
            ServiceBuilder::new()
                .layer(a)
                .layer(b)
                .layer(c)
                .service(model.clone()),
        )
    };
    let model = fails(error(ErrorKind::Server));
    let three = || RetryModel::new(3);
    let service = stacked([three(), three(), three()], &model);
    let failed = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((failed.attempts(), model.calls()), (3, 3));

    // The inner policy has no budget, so that its first error is its last.
    let model = fails(error(ErrorKind::Server));
    let service = stacked([three(), three(), three().budget(Tokens::new(0))], &model);
    let failed = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(
        (failed.attempts(), failed.advice(), model.calls()),
        (1, Some(false), 1)
    );

    // A policy that repeats nothing leaves the attempts to the next one.
    let model = fails(error(ErrorKind::Server));
    let service = stacked([three(), RetryModel::new(1), RetryModel::new(0)], &model);
    let failed = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((failed.attempts(), model.calls()), (3, 3));
}

// Case F018.
#[tokio::test(start_paused = true)]
async fn an_outage_does_not_multiply_the_load() {
    let model = fails(error(ErrorKind::Server));
    let service = ServiceBuilder::new()
        .layer(at_once(3))
        .layer(at_once(3))
        .layer(at_once(3))
        .service(model.clone());
    for _ in 0..1_000 {
        let call = service.clone().oneshot(ChatRequest::user("hi"));
        call.await.unwrap_err();
    }
    assert!(
        (1_001..=1_300).contains(&model.calls()),
        "{}",
        model.calls()
    );
}

#[tokio::test]
async fn runs_share_a_budget_and_keys_do_not() {
    let failing = async |layer: &RetryLayer<RetryModel>, user: &str| {
        let model = fails(error(ErrorKind::Server));
        let mut request = ChatRequest::user("hi");
        request.options_mut().model = Some(user.into());
        call(layer, &model, request).await.unwrap_err();
        model.calls()
    };
    let policy = || RetryModel::new(3).backoff(Duration::ZERO, Duration::ZERO);
    let tokens = Tokens::new(3);
    let shared = RetryLayer::new(policy().budget(tokens.clone()));
    let calls = [
        failing(&shared, "a").await,
        failing(&shared.clone(), "b").await,
        failing(&shared, "a").await,
    ];
    assert_eq!(calls, [3, 2, 1]);
    // A success makes a deposit.
    call(
        &shared,
        &ScriptedModel::new().text("hello"),
        ChatRequest::user("hi"),
    )
    .await
    .unwrap();
    assert_eq!(failing(&shared, "c").await, 2);

    let key = |request: &ChatRequest| request.options.model.clone().unwrap_or_default();
    let by_key = RetryLayer::new(policy().budget_by(key, || Tokens::new(2)));
    let calls = [
        failing(&by_key, "a").await,
        failing(&by_key, "a").await,
        failing(&by_key, "b").await,
    ];
    assert_eq!(calls, [3, 1, 3]);
}

#[tokio::test]
async fn a_resumed_run_begins_with_the_first_attempt() {
    let fails = |model: ScriptedModel| model.error(error(ErrorKind::Server)).then();
    let model = fails(ScriptedModel::new()).tool_call("pay", json!({}));
    let model = fails(model.then()).text("Paid.");
    let tools = ScriptedTools::new().asks("pay", "paid");
    let agent = AgentLayer::new(tools).layer(at_once(2).layer(model.clone()));
    let asked = agent.clone().oneshot(ChatRequest::user("hi"));
    let asked = asked.await.unwrap().collect().await.unwrap();
    let stored = asked.finish.state.unwrap().to_json().unwrap();
    let state = RunState::from_json(stored.as_bytes(), stored.len()).unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let resumed = agent.oneshot(ChatRequest::resume(state, vec![reply]));
    assert_eq!(resumed.await.unwrap().text().await.unwrap(), "Paid.");
    assert_eq!(model.calls(), 4);
}

#[tokio::test]
async fn an_agent_that_is_a_tool_has_attempts_of_its_own() {
    let retry = at_once(2);
    let fails = |model: ScriptedModel| model.error(error(ErrorKind::Server)).then();
    let inner = fails(ScriptedModel::new()).text("Found.");
    let nested = AgentLayer::new(ScriptedTools::new()).layer(retry.layer(inner.clone()));
    let tools = Toolset::new().tool(agent_tool("research", "", nested));
    let outer = fails(ScriptedModel::new()).tool_call("research", json!({"task": "t"}));
    let outer = fails(outer.then()).text("Done.");
    let agent = AgentLayer::new(tools).layer(retry.layer(outer.clone()));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "Done.");
    assert_eq!((outer.calls(), inner.calls()), (4, 2));
}

#[tokio::test]
async fn a_repetition_is_reported() {
    let busy = error(ErrorKind::Overloaded)
        .with_code("E7")
        .with_retry_after(Duration::from_millis(7));
    let model = ScriptedModel::new().error(busy).then().text("hello");
    let env = TestEnvironment::new();
    let agent = AgentLayer::new(ScriptedTools::new()).layer(at_once(2).layer(model));
    let run = async { assert_finishes(agent.oneshot(env.request("hi")).await.unwrap().body).await };
    let ((events, _), _) = with_pauses(&env, run);
    let reports: Vec<(&Str, &Value)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Custom(event) => Some((&event.name, &event.value)),
            _ => None,
        })
        .collect();
    let value = json!({"attempt": 1, "delay_ms": 7, "kind": "overloaded", "code": "E7"});
    assert_eq!(reports, [(&"concentric.retry".into(), &value)]);
}

#[tokio::test]
async fn a_cancelled_run_starts_no_attempt() {
    let env = TestEnvironment::new();
    // As the models of `concentric-providers` do.
    let checked = |model: &ScriptedModel| {
        from_fn(async |request: ChatRequest, mut next: Next| {
            if request.context.is_cancelled() {
                return Err(error(ErrorKind::Cancelled));
            }
            next.run(request).await
        })
        .layer(model.clone())
    };
    let layer = RetryLayer::new(RetryModel::new(3).backoff(SECOND * 10, SECOND * 10));
    let model = fails(error(ErrorKind::Server));
    let request = env.request("hi");
    let context = request.context.clone();
    let mut waiting = task::spawn(layer.layer(checked(&model)).oneshot(request));
    assert_pending!(waiting.poll());
    assert_eq!(env.clock().sleepers(), 1);
    context.cancel(CancelReason::User);
    assert!(waiting.is_woken());
    let failed = assert_ready!(waiting.poll()).unwrap_err();
    assert_eq!(
        (failed.kind(), failed.attempts()),
        (ErrorKind::Cancelled, 2)
    );
    assert_eq!((env.clock().sleepers(), model.calls()), (0, 1));

    // Cancelled during the attempt.
    let request = env.request("hi");
    let context = request.context.clone();
    let model = ScriptedModel::new()
        .sleep(SECOND)
        .error(error(ErrorKind::Server))
        .repeat();
    let mut waiting = task::spawn(layer.layer(checked(&model)).oneshot(request));
    assert_pending!(waiting.poll());
    context.cancel(CancelReason::User);
    env.advance(SECOND);
    assert_eq!(
        assert_ready!(waiting.poll()).unwrap_err().kind(),
        ErrorKind::Server
    );
    assert_eq!(model.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_point_leaves_nothing_open() {
    let env = TestEnvironment::new();
    let model = ScriptedModel::new()
        .paced(Pace::NextTick)
        .text("a")
        .error(error(ErrorKind::Server))
        .repeat();
    let service = at_once(3).layer(CommitLayer::whole().layer(Strict::new(model.clone())));
    let run = || service.clone().oneshot(env.request("hi"));
    let drops = drop_at_each_wait(run, async |_| {
        assert_eq!((model.live(), env.clock().sleepers()), (0, 0));
    });
    assert!(drops.await > 6);

    let paused = RetryLayer::new(RetryModel::new(3).backoff(SECOND, SECOND));
    let model = fails(error(ErrorKind::Server));
    let mut waiting = task::spawn(call(&paused, &model, env.request("hi")));
    assert_pending!(waiting.poll());
    assert_eq!(env.clock().sleepers(), 1);
    drop(waiting);
    assert_eq!(env.clock().sleepers(), 0);
}

#[tokio::test]
async fn a_large_conversation_is_sent_unchanged_with_each_attempt() {
    let model = ScriptedModel::new()
        .error(error(ErrorKind::Server))
        .then()
        .text("ok");
    let text = "x".repeat(4 << 20);
    let tools = ScriptedTools::new().tool("never", async |_| ToolOutcome::done(""));
    let agent = AgentLayer::new(tools).layer(at_once(2).layer(model.clone()));
    let answer = agent
        .oneshot(ChatRequest::user(text.clone()))
        .await
        .unwrap();
    assert_eq!(answer.text().await.unwrap(), "ok");
    for attempt in 0..2 {
        let request = model.request(attempt);
        assert_eq!(request.transcript.last().unwrap().as_message().text(), text);
        assert_eq!(
            request.context.message_id(),
            model.request(0).context.message_id()
        );
    }
}

#[test]
fn a_policy_prints_its_options() {
    let printed = format!("{:?}", RetryModel::new(3));
    assert!(
        printed.starts_with("RetryModel { attempts: 3, first: 500ms, longest: 20s"),
        "{printed}"
    );
}
