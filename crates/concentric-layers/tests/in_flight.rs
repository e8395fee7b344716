//! One test per row of [`concentric_layers::in_flight`]'s tables.
#![cfg(feature = "in-flight")]

use concentric_core::{AgentLayer, ChatRequest, Error, ErrorKind, ToolOutcome};
use concentric_layers::{InFlightLimitLayer, in_flight::InFlightLimit};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, Strict, assert_finishes, check_layer, collect_events,
};
use futures_util::StreamExt;
use serde_json::json;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

type Limited = InFlightLimit<Strict<ScriptedModel>>;

/// A service behind a limit of one, and another that waits for the first.
fn two(model: &ScriptedModel) -> (Limited, Limited) {
    let service = InFlightLimitLayer::new(1).layer(Strict::new(model.clone()));
    (service.clone(), service)
}

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

fn is_ready(service: &mut Limited) -> bool {
    task::spawn(service.ready()).poll().is_ready()
}

fn broken() -> Error {
    Error::new(ErrorKind::Server, "it broke")
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(InFlightLimitLayer::new(1)).await;
    check_layer(InFlightLimitLayer::new(8)).await;
}

#[tokio::test]
async fn a_call_that_fails_stops_counting_when_its_future_resolves() {
    let (mut first, mut second) = two(&ScriptedModel::new().error(broken()));
    let mut call = task::spawn(first.ready().await.unwrap().call(request()));
    assert!(!is_ready(&mut second));
    assert!(call.poll().is_ready());
    // The future is still there, and holds nothing.
    assert!(is_ready(&mut second));
    drop(call);
}

#[tokio::test]
async fn a_call_counts_until_its_finish_is_yielded() {
    let (first, mut second) = two(&ScriptedModel::new().deltas(["a", "b"]));
    let mut body = first.oneshot(request()).await.unwrap().body;
    let mut waits = task::spawn(second.ready());
    assert_pending!(waits.poll());
    for _ in 0..2 {
        assert!(!body.next().await.unwrap().unwrap().is_finish());
        assert_pending!(waits.poll());
    }
    assert!(body.next().await.unwrap().unwrap().is_finish());
    assert!(waits.is_woken());
    assert_ready_ok!(waits.poll());
    drop(body);
}

#[tokio::test]
async fn a_call_counts_until_its_error_is_yielded() {
    let (first, mut second) = two(&ScriptedModel::new().text("a").error(broken()));
    let mut body = first.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    assert!(!is_ready(&mut second));
    body.next().await.unwrap().unwrap_err();
    assert!(is_ready(&mut second));
}

#[tokio::test]
async fn a_call_that_ends_early_counts_until_none_is_yielded() {
    let (first, mut second) = two(&ScriptedModel::new().text("a").end_early());
    let mut body = first.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    assert!(!is_ready(&mut second));
    assert!(body.next().await.is_none());
    assert!(is_ready(&mut second));
}

#[tokio::test]
async fn a_call_counts_until_its_future_is_dropped() {
    let (mut first, mut second) = two(&ScriptedModel::new().never());
    let mut call = task::spawn(first.ready().await.unwrap().call(request()));
    assert!(call.poll().is_pending());
    assert!(!is_ready(&mut second));
    drop(call);
    assert!(is_ready(&mut second));
}

#[tokio::test]
async fn a_call_counts_until_its_body_is_dropped() {
    let (first, mut second) = two(&ScriptedModel::new().text("a").never());
    let body = first.oneshot(request()).await.unwrap().body;
    assert!(!is_ready(&mut second));
    drop(body);
    assert!(is_ready(&mut second));
}

#[tokio::test]
async fn a_ready_service_counts_until_it_is_dropped() {
    let (mut first, mut second) = two(&ScriptedModel::new());
    first.ready().await.unwrap();
    assert!(!is_ready(&mut second));
    drop(first);
    assert!(is_ready(&mut second));
}

#[tokio::test]
async fn a_service_that_fails_to_become_ready_does_not_count() {
    let (mut first, mut second) = two(&ScriptedModel::new().unready(broken()));
    first.ready().await.unwrap_err();
    second.ready().await.unwrap_err();
}

#[tokio::test]
#[should_panic(expected = "`poll_ready` must return `Ready(Ok(()))` before `call`")]
async fn a_clone_of_a_ready_service_is_not_ready() {
    let service = InFlightLimitLayer::new(2).layer(Strict::new(ScriptedModel::new().text("a")));
    let mut first = service;
    first.ready().await.unwrap();
    drop(first.clone().call(request()));
}

#[tokio::test]
async fn two_runs_under_a_limit_of_one_never_stream_at_once() {
    let model = ScriptedModel::new()
        .pause()
        .text("a")
        .pause()
        .text("b")
        .repeat();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(InFlightLimitLayer::new(1))
        .service(model.clone());
    let run = || async {
        let response = agent.clone().oneshot(request()).await.unwrap();
        assert_finishes(response.body).await;
    };
    tokio::join!(run(), run(), run());
    assert_eq!((model.calls(), model.most_live()), (3, 1));
}

#[tokio::test]
async fn inside_the_loop_it_holds_nothing_while_tools_run() {
    let gate = Gate::new();
    let tools = ScriptedTools::new().tool("wait", {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                ToolOutcome::done("done")
            }
        }
    });
    let limit = InFlightLimitLayer::new(1);
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(limit.clone())
        .service(
            ScriptedModel::new()
                .tool_call("wait", json!({}))
                .then()
                .text("ok"),
        );
    let run =
        tokio::spawn(
            async move { collect_events(agent.oneshot(request()).await.unwrap().body).await },
        );
    gate.reached().await;
    assert_eq!(limit.available(), 1);
    gate.open();
    run.await.unwrap();
}

#[tokio::test]
async fn outside_the_loop_it_counts_the_run_with_its_tools() {
    let tools = ScriptedTools::new().never("wait");
    let limit = InFlightLimitLayer::new(1);
    let agent = ServiceBuilder::new()
        .layer(limit.clone())
        .layer(AgentLayer::new(tools.clone()))
        .service(ScriptedModel::new().tool_call("wait", json!({})));
    let mut run = Box::pin(agent.oneshot(request()).await.unwrap().body);
    let mut read = task::spawn(async { while run.next().await.is_some() {} });
    assert_pending!(read.poll());
    assert_eq!((tools.live(), limit.available()), (1, 0));
    drop(read);
    drop(run);
    assert_eq!((tools.live(), limit.available()), (0, 1));
}
