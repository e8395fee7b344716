//! tower's own layers over models, agents and tools: what each of them means where the future is
//! the commit point.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, Phase,
    RoundEvent, ToolCall, ToolOutcome, ToolRound, ToolSource, ToolSpec, ToolSpecs,
};
use concentric_layers::InFlightLimitLayer;
use concentric_layers::{CommitLayer, NextTool, RetryModel, from_fn, tool_from_fn};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, Strict, assert_fails, assert_finishes, shape, text_of,
};
use futures_util::{Stream, StreamExt, future::BoxFuture};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    balance::p2c::Balance,
    discover::ServiceList,
    hedge::Hedge,
    load::{CompleteOnResponse, Constant, PendingRequests},
    steer::Steer,
};

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn server_error() -> Error {
    Error::new(ErrorKind::Server, "it broke")
}

fn into_error(error: BoxError) -> Error {
    error.into()
}

/// Repeats a call at most so many times, without pauses.
fn again(times: u32) -> RetryModel {
    RetryModel::new(times + 1).backoff(Duration::ZERO, Duration::ZERO)
}

// ---- timeout ----

#[tokio::test(start_paused = true)]
async fn timeout_bounds_the_time_to_the_first_token() {
    let model = ScriptedModel::new().sleep(secs(10)).text("late");
    let service = ServiceBuilder::new()
        .timeout(secs(5))
        .service(model.clone());
    let started = Instant::now();
    let error = into_error(service.oneshot(request()).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), secs(5));
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn timeout_does_not_time_the_stream_after_it() {
    let model = ScriptedModel::new()
        .sleep(secs(4))
        .text("a")
        .sleep(secs(60))
        .text("b");
    let service = ServiceBuilder::new().timeout(secs(5)).service(model);
    let body = service.oneshot(request()).await.unwrap().body;
    assert_eq!(shape(&assert_finishes(body).await.0), "text text finish");
}

#[tokio::test(start_paused = true)]
async fn timeout_inside_the_loop_times_each_model_call() {
    let model = ScriptedModel::new()
        .sleep(secs(4))
        .tool_call("search", json!({}))
        .then()
        .sleep(secs(6))
        .text("late");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "42"),
        ))
        .timeout(secs(5))
        .service(model);
    let body = agent.oneshot(request()).await.unwrap().body;
    let (events, error) = assert_fails(body).await;
    assert_eq!(
        shape(&events),
        "step_start tool_call step_finish tool_result step_start"
    );
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.phase(), Some(Phase::Model));
    // The tool has done its work, so nobody is to do the run again.
    assert!(!error.is_retryable());
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_the_loop_times_the_first_token_of_the_run() {
    let tools = || {
        ScriptedTools::new().tool("slow", |_| async {
            sleep(secs(60)).await;
            ToolOutcome::done("done")
        })
    };
    let script = |pause| {
        ScriptedModel::new()
            .sleep(secs(pause))
            .tool_call("slow", json!({}))
            .then()
            .text("ok")
    };
    let agent = |pause| {
        ServiceBuilder::new()
            .timeout(secs(5))
            .layer(AgentLayer::new(tools()))
            .service(script(pause))
    };
    let body = agent(4).oneshot(request()).await.unwrap().body;
    assert_finishes(body).await;
    let error = into_error(agent(6).oneshot(request()).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn timeout_on_a_tool_fails_its_call() {
    let slow = ServiceBuilder::new()
        // A tool that is late is a result that the model reads, not an error of the run.
        .layer(tool_from_fn(
            async |call: ToolCall, mut next: NextTool| match next.run(call).await {
                Err(error) if error.kind() == ErrorKind::Timeout => {
                    Ok(ToolOutcome::failed("The tool took too long."))
                }
                other => other,
            },
        ))
        .timeout(secs(5))
        .service(tower::service_fn(async |_: ToolCall| {
            sleep(secs(60)).await;
            Ok::<_, Error>(ToolOutcome::done("done"))
        }));
    let tools = ScriptedTools::new()
        .service(ToolSpec::new("slow", "", json!({ "type": "object" })), slow)
        .answers("quick", "42");
    let agent = AgentLayer::new(tools).layer(
        ScriptedModel::new()
            .tool_call("slow", json!({}))
            .tool_call("quick", json!({}))
            .then()
            .text("ok"),
    );
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    let results: Vec<String> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolResult(result) => Some(result.outcome.content.text().into_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(results, ["The tool took too long.", "42"]);
}

// ---- retry ----

#[tokio::test]
async fn retry_repeats_what_failed_before_its_first_token() {
    let model = ScriptedModel::new()
        .error(server_error())
        .then()
        .error(server_error())
        .then()
        .text("third time lucky");
    let service = ServiceBuilder::new()
        .retry(again(2))
        .service(Strict::new(model.clone()));
    let (events, _) = assert_finishes(service.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "third time lucky");
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn retry_gives_up_after_its_attempts() {
    let model = ScriptedModel::new().error(server_error()).repeat();
    let service = ServiceBuilder::new().retry(again(2)).service(model.clone());
    let error = service.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn retry_does_not_repeat_an_error_that_will_come_again() {
    let model = ScriptedModel::new()
        .error(Error::new(ErrorKind::Authentication, "no such key"))
        .repeat();
    let service = ServiceBuilder::new().retry(again(2)).service(model.clone());
    service.oneshot(request()).await.unwrap_err();
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn retry_does_not_repeat_output() {
    let model = ScriptedModel::new()
        .text("a")
        .error(server_error())
        .then()
        .text("never asked");
    let service = ServiceBuilder::new().retry(again(2)).service(model.clone());
    let (events, error) = assert_fails(service.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "a");
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Server, 1));
}

#[tokio::test]
async fn retry_repeats_more_where_commit_shows_less() {
    let model = ScriptedModel::new()
        .text("a")
        .error(server_error())
        .then()
        .text("b");
    let service = ServiceBuilder::new()
        .retry(again(2))
        .layer(CommitLayer::whole())
        .service(model.clone());
    let (events, _) = assert_finishes(service.oneshot(request()).await.unwrap().body).await;
    assert_eq!((text_of(&events).as_str(), model.calls()), ("b", 2));
}

#[tokio::test]
async fn retry_inside_the_loop_repeats_one_model_call() {
    let tools = ScriptedTools::new().answers("search", "42");
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .error(server_error())
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .retry(again(2))
        .service(model.clone());
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        shape(&events),
        "step_start tool_call step_finish tool_result step_start custom text step_finish finish"
    );
    assert_eq!((model.calls(), tools.calls().len()), (3, 1));
    // Both attempts asked the same, in the same message's name.
    assert_eq!(model.request(1).transcript, model.request(2).transcript);
    assert_eq!(
        model.request(1).context.message_id(),
        model.request(2).context.message_id()
    );
}

#[tokio::test]
async fn retry_outside_the_loop_repeats_a_run_that_has_said_nothing() {
    let model = ScriptedModel::new().error(server_error()).then().text("ok");
    let agent = ServiceBuilder::new()
        .retry(again(2))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model.clone());
    let body = agent.oneshot(request()).await.unwrap().body;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(model.calls(), 2);
    assert_eq!(finish.transcript.unwrap().len(), 2);
}

#[tokio::test]
async fn retry_outside_the_loop_repeats_no_run_that_has() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(server_error())
        .repeat();
    let agent = ServiceBuilder::new()
        .retry(again(2))
        // Even where the whole run is held back, so that its failure is the future's.
        .layer(CommitLayer::whole())
        .layer(AgentLayer::new(tools.clone()))
        .service(model);
    let error = agent.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(tools.calls().len(), 1);
}

// Case C116.
#[tokio::test(start_paused = true)]
async fn c116_retry_outside_timeout_gives_each_attempt_its_own() {
    let model = ScriptedModel::new()
        .sleep(secs(10))
        .text("late")
        .then()
        .sleep(secs(4))
        .text("in time");
    let service = ServiceBuilder::new()
        .retry(again(1))
        .map_err(into_error)
        .timeout(secs(5))
        .service(model.clone());
    let started = Instant::now();
    let (events, _) = assert_finishes(service.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "in time");
    assert_eq!(started.elapsed(), secs(9));
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_retry_bounds_all_attempts() {
    let model = ScriptedModel::new()
        .sleep(secs(4))
        .error(server_error())
        .repeat();
    let service = ServiceBuilder::new()
        .timeout(secs(5))
        .retry(again(10))
        .service(model.clone());
    let error = into_error(service.oneshot(request()).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!((model.calls(), model.live()), (2, 0));
}

// ---- hedge ----

#[derive(Clone)]
struct Always;

impl tower::hedge::Policy<ChatRequest> for Always {
    fn clone_request(&self, request: &ChatRequest) -> Option<ChatRequest> {
        Some(request.clone())
    }

    fn can_retry(&self, _: &ChatRequest) -> bool {
        true
    }
}

fn hedged(model: ScriptedModel) -> Hedge<ScriptedModel, Always> {
    // A second request after what nine of ten took: 100 ms.
    Hedge::new_with_mock_latencies(model, Always, 10, 0.9, secs(60), &[100; 20])
}

#[tokio::test(start_paused = true)]
async fn hedge_races_to_the_first_token() {
    let model = ScriptedModel::new()
        .sleep(secs(30))
        .text("slow")
        .then()
        .sleep(secs(1))
        .deltas(["qu", "ick"]);
    let service = hedged(model.clone());
    let started = Instant::now();
    let response = service.oneshot(request()).await.unwrap();
    assert!(started.elapsed() < secs(2));
    let (events, _) = assert_finishes(response.body).await;
    assert_eq!(text_of(&events), "quick");
    // The one that lost is dropped, and with it its cost.
    assert_eq!((model.calls(), model.live(), model.dropped()), (2, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn hedge_sends_no_second_request_once_a_token_is_there() {
    let model = ScriptedModel::new()
        .text("a")
        .sleep(secs(30))
        .text("b")
        .repeat();
    let response = hedged(model.clone()).oneshot(request()).await.unwrap();
    assert_finishes(response.body).await;
    assert_eq!(model.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn hedge_inside_the_loop_loses_without_cancelling_the_run() {
    let model = ScriptedModel::new()
        .sleep(secs(30))
        .text("slow")
        .then()
        .text("quick")
        .repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        // `Hedge` is not `Clone`, and a loop clones its model.
        .buffer(1)
        .service(hedged(model));
    let request = request();
    let context = request.context.clone();
    let (events, _) = assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    assert_eq!(text_of(&events), "quick");
    assert!(!context.is_cancelled());
}

// ---- buffer ----

#[tokio::test(start_paused = true)]
async fn buffer_passes_the_stream_and_the_error() {
    let model = ScriptedModel::new()
        .deltas(["a", "b"])
        .then()
        .error(server_error());
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .buffer(4)
        .concurrency_limit(1)
        .service(Strict::new(model));
    let (events, _) = assert_finishes(agent.clone().oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "ab");
    let error = agent.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
}

#[tokio::test(start_paused = true)]
async fn buffer_over_a_service_that_breaks_keeps_the_kind_of_its_error() {
    let model = ScriptedModel::new().unready(server_error());
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .buffer(4)
        .service(model);
    let error = agent.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
}

// ---- load_shed, concurrency_limit ----

#[tokio::test]
async fn concurrency_limit_counts_calls_that_have_not_spoken() {
    let model = ScriptedModel::new().text("a").never().repeat();
    let service = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(Strict::new(model.clone()));
    let first = service.clone().oneshot(request()).await.unwrap();
    // The first still streams, and does not count.
    let second = service.oneshot(request()).await.unwrap();
    assert_eq!(model.live(), 2);
    drop((first, second));
}

#[tokio::test]
async fn concurrency_limit_holds_a_call_back_until_another_has_spoken() {
    let gate = Gate::new();
    let model = ScriptedModel::new().wait(&gate).text("a").repeat();
    let service = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(Strict::new(model.clone()));
    let mut first = task::spawn(service.clone().oneshot(request()));
    let mut second = task::spawn(service.oneshot(request()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_eq!(model.calls(), 1);
    gate.open();
    assert!(first.poll().is_ready());
    drop(first);
    assert!(second.is_woken());
    assert!(second.poll().is_ready());
}

#[tokio::test]
async fn load_shed_inside_the_loop_refuses_what_would_wait() {
    let model = ScriptedModel::new().never().repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .load_shed()
        .concurrency_limit(1)
        .service(model.clone());
    let mut first = task::spawn(agent.clone().oneshot(request()));
    assert_pending!(first.poll());
    let error = agent.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert!(error.is_retryable());
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn load_shed_outside_the_loop_sheds_nothing_since_the_loop_is_always_ready() {
    let model = ScriptedModel::new().never().repeat();
    let agent = ServiceBuilder::new()
        .load_shed()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .concurrency_limit(1)
        .service(model);
    let mut first = task::spawn(agent.clone().oneshot(request()));
    let mut second = task::spawn(agent.oneshot(request()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
}

#[tokio::test]
async fn in_flight_limit_sheds_what_would_wait_if_it_has_no_queue() {
    let model = ScriptedModel::new().text("a").never().repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(InFlightLimitLayer::new(1).queue(0))
        .service(Strict::new(model));
    let streams = agent.clone().oneshot(request()).await.unwrap();
    let error = agent.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    drop(streams);
    drop(agent.oneshot(request()).await.unwrap());
}

#[tokio::test]
async fn in_flight_limit_lets_no_two_runs_stream_at_once() {
    let model = ScriptedModel::new()
        .pause()
        .text("a")
        .pause()
        .text("b")
        .repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(InFlightLimitLayer::new(1))
        .retry(again(1))
        .concurrency_limit(2)
        .service(Strict::new(model.clone()));
    let run = || async {
        assert_finishes(agent.clone().oneshot(request()).await.unwrap().body).await;
    };
    tokio::join!(run(), run(), run());
    assert_eq!((model.calls(), model.most_live()), (3, 1));
}

#[tokio::test]
async fn concurrency_limit_under_from_fn_is_asked_first() {
    let model = ScriptedModel::new().error(server_error()).then().text("ok");
    let service = ServiceBuilder::new()
        // Calls twice, the second time on readiness of its own.
        .layer(from_fn(
            async |request: ChatRequest, mut next: concentric_layers::Next| match next
                .run(request.clone())
                .await
            {
                Err(_) => next.run(request).await,
                ok => ok,
            },
        ))
        .concurrency_limit(1)
        .service(Strict::new(model.clone()));
    let (events, _) = assert_finishes(service.oneshot(request()).await.unwrap().body).await;
    assert_eq!((text_of(&events).as_str(), model.calls()), ("ok", 2));
}

// ---- on tools ----

/// A tool that counts how many of its calls run at once.
fn counted(
    most: &Arc<AtomicUsize>,
) -> impl Fn(ToolCall) -> BoxFuture<'static, Result<ToolOutcome, Error>> + Clone + use<> {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::clone(most));
    move |_| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        Box::pin(async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(ToolOutcome::done("done"))
        })
    }
}

fn three_calls() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("work", json!({}))
        .tool_call("work", json!({}))
        .tool_call("work", json!({}))
        .then()
        .text("ok")
}

#[tokio::test(start_paused = true)]
async fn concurrency_limit_on_a_tool_under_tool_from_fn() {
    let most = Arc::default();
    let work = ServiceBuilder::new()
        .layer(tool_from_fn(async |call: ToolCall, mut next: NextTool| {
            next.run(call).await
        }))
        .concurrency_limit(2)
        .service(Strict::new(tower::service_fn(counted(&most))));
    let tools = ScriptedTools::new().service(ToolSpec::new("work", "", json!({})), work);
    let agent = AgentLayer::new(tools.clone()).layer(three_calls());
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!((tools.done(), most.load(Ordering::SeqCst)), (3, 2));
}

/// A round service under foreign layers, with the specs that those don't pass on.
#[derive(Clone)]
struct Specs<R>(ToolSpecs, R);

impl<R> ToolSource for Specs<R> {
    fn specs(&self) -> ToolSpecs {
        self.0.clone()
    }
}

impl<R, O> Service<ToolRound> for Specs<R>
where
    R: Service<ToolRound, Response = O>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Response = O;
    type Error = R::Error;
    type Future = R::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), R::Error>> {
        self.1.poll_ready(cx)
    }

    fn call(&mut self, round: ToolRound) -> R::Future {
        self.1.call(round)
    }
}

#[tokio::test]
async fn concurrency_limit_on_the_round_service_is_asked_first() {
    let tools = ScriptedTools::new().answers("work", "done");
    let rounds = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(Strict::new(tools.clone()));
    let agent = AgentLayer::new(Specs(tools.specs(), rounds)).layer(
        ScriptedModel::new()
            .tool_call("work", json!({}))
            .then()
            .tool_call("work", json!({}))
            .then()
            .text("ok"),
    );
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(tools.done(), 2);
}

// ---- rate_limit ----

#[tokio::test(start_paused = true)]
async fn rate_limit_spaces_model_calls() {
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "42"),
        ))
        // `RateLimit` is not `Clone`, and a loop clones its model.
        .buffer(1)
        .rate_limit(1, secs(60))
        .service(Strict::new(model.clone()));
    let started = Instant::now();
    let body = agent.oneshot(request()).await.unwrap().body;
    assert_eq!(started.elapsed(), secs(0));
    assert_finishes(body).await;
    assert_eq!(model.calls(), 2);
    assert!(started.elapsed() >= secs(60));
}

#[tokio::test(start_paused = true)]
async fn rate_limit_with_load_shed_outside_the_loops_model_refuses() {
    let model = ScriptedModel::new().text("ok").repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .buffer(1)
        .load_shed()
        .rate_limit(1, secs(60))
        .service(model);
    assert_finishes(agent.clone().oneshot(request()).await.unwrap().body).await;
    let error = agent.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    sleep(secs(61)).await;
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
}

// ---- balance, steer ----

#[tokio::test(start_paused = true)]
async fn balance_sends_to_the_model_with_less_load() {
    let idle = ScriptedModel::new().text("idle").repeat();
    let busy = ScriptedModel::new().text("busy").repeat();
    let service = Balance::new(ServiceList::new([
        Constant::new(Strict::new(idle.clone()), 1),
        Constant::new(Strict::new(busy.clone()), 100),
    ]));
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .buffer(4)
        .service(service);
    for _ in 0..8 {
        assert_finishes(agent.clone().oneshot(request()).await.unwrap().body).await;
    }
    assert_eq!((idle.calls(), busy.calls()), (8, 0));
}

#[tokio::test(start_paused = true)]
async fn balance_counts_as_pending_what_has_not_spoken() {
    let (a, b) = (
        ScriptedModel::new().never().repeat(),
        ScriptedModel::new().never().repeat(),
    );
    let service = ServiceBuilder::new()
        .buffer(4)
        .service(Balance::new(ServiceList::new([
            PendingRequests::new(a.clone(), CompleteOnResponse::default()),
            PendingRequests::new(b.clone(), CompleteOnResponse::default()),
        ])));
    let mut calls = Vec::new();
    for _ in 0..4 {
        let mut call = task::spawn(service.clone().oneshot(request()));
        for _ in 0..8 {
            assert_pending!(call.poll());
            tokio::task::yield_now().await;
        }
        calls.push(call);
    }
    assert_eq!((a.calls(), b.calls()), (2, 2));
}

#[tokio::test]
async fn steer_routes_by_request() {
    let small = ScriptedModel::new().text("small").repeat();
    let large = ScriptedModel::new().text("large").repeat();
    let models = [
        BoxModel::new(Strict::new(small)),
        BoxModel::new(Strict::new(large)),
    ];
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(Steer::new(models, |request: &ChatRequest, _: &[_]| {
            usize::from(request.options.model.as_deref() == Some("large"))
        }));
    for name in ["small", "large", "small"] {
        let mut request = request();
        request.options_mut().model = Some(name.into());
        let text = agent.clone().oneshot(request).await.unwrap().text().await;
        assert_eq!(text.unwrap(), name);
    }
}

// ---- filter, map_request, map_response ----

#[tokio::test]
async fn filter_refuses_before_the_model_is_called() {
    let model = ScriptedModel::new().text("ok").repeat();
    let only_short = |request: ChatRequest| {
        if request.transcript.len() > 1 {
            return Err(Error::new(ErrorKind::InvalidRequest, "too long"));
        }
        Ok(request)
    };
    let agent = ServiceBuilder::new()
        .filter(only_short)
        .layer(AgentLayer::new(ScriptedTools::new()))
        .filter(only_short)
        .service(model.clone());
    let body = agent.clone().oneshot(request()).await.unwrap().body;
    let (_, finish) = assert_finishes(body).await;
    let mut transcript = finish.transcript.unwrap();
    transcript.push_user("more");
    let error = into_error(
        agent
            .oneshot(ChatRequest::new(transcript))
            .await
            .unwrap_err(),
    );
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn map_request_changes_the_run_outside_the_loop_and_one_call_inside() {
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .map_request(|request: ChatRequest| request.with_system("run"))
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "42"),
        ))
        .map_request(|request: ChatRequest| request.with_system("call"))
        .service(model.clone());
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    for request in model.requests() {
        assert_eq!(request.system.text(), "run\n\ncall");
    }
}

#[tokio::test]
async fn map_response_changes_the_body() {
    let shout = |response: ChatResponse<_>| {
        response.map_body(|body: concentric_test::model::ScriptedBody| {
            body.map(|item| {
                item.map(|event| match event {
                    Event::TextDelta(text) => Event::text(text.to_uppercase()),
                    other => other,
                })
            })
        })
    };
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .map_response(shout)
        .service(ScriptedModel::new().text("ok"));
    let (events, finish) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "OK");
    // Inside the loop, what was changed is what is remembered.
    let transcript = finish.transcript.unwrap();
    assert_eq!(transcript.last().unwrap().as_message().text(), "OK");
}
