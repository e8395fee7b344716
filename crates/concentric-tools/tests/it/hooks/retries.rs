//! Further attempts at a call.

use super::*;

/// A tool that fails with a layer's error `times` times.
fn flaky(times: usize, log: &Log, annotations: Annotations) -> Tool {
    let (left, log) = (AtomicUsize::new(times), log.clone());
    let left = Arc::new(left);
    let tool = tool_with_context("t", "", move |NoArguments {}, context: Context| {
        log.add(context.idempotency_key().unwrap().as_str());
        async { "ok" }
    });
    let layer = layer_fn(move |inner: BoxTool| {
        let left = Arc::clone(&left);
        inner.map_result(move |result: Result<ToolOutcome, Error>| {
            let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            match left {
                Ok(_) => Err(Error::new(ErrorKind::Connection, "broken")),
                Err(_) => result,
            }
        })
    });
    tool.annotations(annotations).layer(layer)
}

fn idempotent() -> Annotations {
    let mut annotations = Annotations::default();
    annotations.idempotent = true;
    annotations
}

async fn retried(tools: Toolset, clock: &TestClock) -> (ToolOutcome, Duration) {
    let round = crate::common::round_in(&clock.context().build(), &[("t", "{}")]);
    let mut outcomes = tools.oneshot(round).await.unwrap();
    let settled = crate::common::settled(outcomes.next().await.unwrap().unwrap());
    let took = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (settled.outcome, took)
}

paced!(s34_a_tool_that_can_be_called_twice_is_called_again_with_the_same_key);
async fn s34_a_tool_that_can_be_called_twice_is_called_again_with_the_same_key() {
    for annotations in [Annotations::read_only(), idempotent()] {
        let (clock, log) = (clock(), Log::default());
        let tools = Toolset::new()
            .tool(flaky(2, &log, annotations))
            .layer(RetryLayer::new(RetryTool::new(3)));
        let (outcome, took) = retried(tools, &clock).await;
        assert_eq!(outcome, ToolOutcome::done("ok"));
        assert_eq!(took, Duration::from_millis(500 + 1_000));
        let keys = log.lines();
        assert_eq!(keys.len(), 3);
        assert!(keys.iter().all(|key| *key == keys[0]));
    }
}

paced!(s34_a_tool_with_effects_is_called_once);
async fn s34_a_tool_with_effects_is_called_once() {
    let (clock, log) = (clock(), Log::default());
    let tools = Toolset::new()
        .tool(flaky(1, &log, Annotations::default()))
        .layer(RetryLayer::new(RetryTool::new(3).failures_too()));
    let (outcome, _) = retried(tools, &clock).await;
    assert_eq!(outcome.status, ToolStatus::Unknown);
    assert_eq!(log.lines().len(), 1);
}

paced!(s34_after_the_last_attempt_the_error_goes_on);
async fn s34_after_the_last_attempt_the_error_goes_on() {
    let (clock, log) = (clock(), Log::default());
    let tools = Toolset::new()
        .tool(flaky(9, &log, Annotations::read_only()))
        .layer(RetryLayer::new(
            RetryTool::new(4).backoff(Duration::from_secs(1), Duration::from_secs(2)),
        ))
        // With a layer between, whose error is a `BoxError`.
        .layer(TimeoutLayer::new(Duration::from_secs(60)));
    let (outcome, took) = retried(tools, &clock).await;
    assert_eq!(outcome, ToolOutcome::failed("The tool failed."));
    assert_eq!(took, Duration::from_secs(1 + 2 + 2));
    assert_eq!(log.lines().len(), 4);
}

/// How often a function that returns so is called, under a retry of three attempts.
async fn calls<R>(class: fn(Tool) -> Tool, policy: RetryTool, returns: fn() -> R) -> usize
where
    R: concentric_tools::IntoOutcome + Send + 'static,
{
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let tool = tool("t", "", move |_: Numbered| {
        counts.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::task::yield_now().await;
            returns()
        }
    });
    let retry = || RetryLayer::new(policy.clone());
    let outside = Toolset::new().tool(class(tool.clone())).layer(retry());
    let inside = Toolset::new().tool(class(tool).layer(retry()));
    let clock = clock();
    for tools in [outside, inside] {
        let round = crate::common::round_in(&clock.context().build(), &[("t", r#"{"n":1}"#)]);
        let mut outcomes = tools.oneshot(round).await.unwrap();
        outcomes.next().await.unwrap().unwrap();
    }
    let all = count.load(Ordering::SeqCst);
    assert_eq!(all % 2, 0, "it is the same in both places");
    all / 2
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[allow(dead_code)]
struct Numbered {
    n: u32,
}

paced!(an_error_of_a_function_is_retried_where_it_may_run_again);
async fn an_error_of_a_function_is_retried_where_it_may_run_again() {
    let classes: [fn(Tool) -> Tool; 3] = [
        Tool::read_only,
        |tool| tool.annotations(idempotent()),
        Tool::keyed,
    ];
    for class in classes {
        let policy = || RetryTool::new(3);
        let explicit = || Err::<(), _>(ToolError::new("no"));
        assert_eq!(calls(class, policy(), explicit).await, 3);
        let foreign = || Err::<(), _>(std::io::Error::other("no"));
        assert_eq!(calls(class, policy(), foreign).await, 3);
        let failed = || ToolOutcome::failed("no");
        assert_eq!(calls(class, policy(), failed).await, 1);
        assert_eq!(calls(class, policy().failures_too(), failed).await, 3);
        let fatal = || Err::<(), _>(ToolError::new("no"));
        assert_eq!(calls(class, RetryTool::new(1), fatal).await, 1);
    }
    let explicit = || Err::<(), _>(ToolError::new("no"));
    assert_eq!(calls(|tool| tool, RetryTool::new(3), explicit).await, 1);
}

/// How often a service that answers so is called, under a retry of three attempts.
async fn attempts(
    policy: RetryTool,
    context: Context,
    answer: impl Fn() -> Result<ToolOutcome, Error> + Clone + Send + Sync + 'static,
) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let service = service_fn(move |call: ToolCall| {
        counts.fetch_add(1, Ordering::SeqCst);
        let answer = answer();
        async move {
            pace().pass(&call.context).await;
            answer
        }
    });
    let tool = tool("t", "", |NoArguments {}| async { "" }).read_only();
    let call = call_in("t", context).with_spec(tool.spec().clone());
    let _ = RetryLayer::new(policy).layer(service).oneshot(call).await;
    count.load(Ordering::SeqCst)
}

paced!(s34_what_would_come_back_is_not_tried_again);
async fn s34_what_would_come_back_is_not_tried_again() {
    type Answer = fn() -> Result<ToolOutcome, Error>;
    let error = |kind| move || Err(Error::new(kind, ""));
    let run = |answer: Answer| attempts(RetryTool::new(3), clock().context().build(), answer);
    assert_eq!(run(|| Err(Error::new(ErrorKind::Other, ""))).await, 3);
    assert_eq!(run(|| Err(Error::suspended(Suspension::held()))).await, 1);
    assert_eq!(run(|| Err(fatal("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::failed("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::done("yes"))).await, 1);
    for kind in [
        ErrorKind::Cancelled,
        ErrorKind::Halted,
        ErrorKind::Permission,
        ErrorKind::InvalidRequest,
    ] {
        let context = clock().context().build();
        assert_eq!(attempts(RetryTool::new(3), context, error(kind)).await, 1);
    }
}

paced!(s34_an_outcome_that_says_that_the_tool_failed_is_tried_again_if_asked);
async fn s34_an_outcome_that_says_that_the_tool_failed_is_tried_again_if_asked() {
    type Answer = fn() -> Result<ToolOutcome, Error>;
    let run = |answer: Answer| {
        let context = clock().context().build();
        attempts(RetryTool::new(3).failures_too(), context, answer)
    };
    assert_eq!(run(|| Ok(ToolOutcome::failed("no"))).await, 3);
    assert_eq!(
        run(|| Ok(ToolOutcome::failed("no").and_halt("stop"))).await,
        1
    );
    assert_eq!(run(|| Ok(ToolOutcome::denied("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::done("yes"))).await, 1);
}

paced!(s34_no_attempt_follows_a_cancel_nor_one_that_would_come_too_late);
async fn s34_no_attempt_follows_a_cancel_nor_one_that_would_come_too_late() {
    let broken = || Err(Error::new(ErrorKind::Server, ""));
    let cancelled = clock().context().build();
    cancelled.cancel(CancelReason::User);
    assert_eq!(attempts(RetryTool::new(3), cancelled, broken).await, 1);
    let soon = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let late = clock().context().deadline(soon).build();
    // The first pause takes half a second, the second one would take one.
    assert_eq!(attempts(RetryTool::new(3), late, broken).await, 2);
    let asked =
        || Err(Error::new(ErrorKind::RateLimited, "").with_retry_after(Duration::from_secs(5)));
    let late = clock().context().deadline(soon).build();
    assert_eq!(attempts(RetryTool::new(3), late, asked).await, 1);
}
