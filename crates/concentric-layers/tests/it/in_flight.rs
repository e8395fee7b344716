//! One test per row of [`concentric_layers::in_flight`]'s tables.

mod shared;

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, Context, Error, ErrorKind, ToolOutcome,
};
use concentric_layers::{InFlightLimitLayer, in_flight::InFlightLimit};
use concentric_test::{
    Gate, Pace, ScriptedModel, ScriptedTools, Spurious, Strict, assert_finishes, check_layer,
    collect_events, drop_at_each_wait, watched,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{sync::Arc, task::Poll, time::Duration};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, ServiceBuilder, ServiceExt};

type Limited = InFlightLimit<Strict<ScriptedModel>>;

/// A service behind a limit of one, and another that waits for the first.
fn two(model: &ScriptedModel) -> (Limited, Limited) {
    let service = InFlightLimitLayer::new(1).layer(Strict::new(model.clone()));
    (service.clone(), service)
}

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

/// Whether a call begins at once; it is dropped then.
fn begins(service: &Limited, model: &ScriptedModel) -> bool {
    let before = model.calls();
    let _ = task::spawn(service.clone().oneshot(request())).poll();
    model.calls() > before
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
    let model = ScriptedModel::new().error(broken()).then().text("a");
    let (first, second) = two(&model);
    let mut call = task::spawn(first.oneshot(request()));
    assert!(call.poll().is_ready());
    // The future is still there, and holds nothing.
    assert!(begins(&second, &model));
    drop(call);
}

#[tokio::test]
async fn a_call_counts_until_its_finish_is_yielded() {
    let (first, second) = two(&ScriptedModel::new().deltas(["a", "b"]).repeat());
    let mut body = first.oneshot(request()).await.unwrap().body;
    let mut waits = task::spawn(second.oneshot(request()));
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
    let model = ScriptedModel::new().text("a").error(broken()).repeat();
    let (first, second) = two(&model);
    let mut body = first.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    assert!(!begins(&second, &model));
    body.next().await.unwrap().unwrap_err();
    assert!(begins(&second, &model));
}

#[tokio::test]
async fn a_call_that_ends_early_counts_until_none_is_yielded() {
    let model = ScriptedModel::new().text("a").end_early().repeat();
    let (first, second) = two(&model);
    let mut body = first.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    assert!(!begins(&second, &model));
    assert!(body.next().await.is_none());
    assert!(begins(&second, &model));
}

#[tokio::test]
async fn a_call_counts_until_its_future_is_dropped() {
    let model = ScriptedModel::new().never().repeat();
    let (first, second) = two(&model);
    let mut call = task::spawn(first.oneshot(request()));
    assert!(call.poll().is_pending());
    assert!(!begins(&second, &model));
    drop(call);
    assert!(begins(&second, &model));
}

#[tokio::test]
async fn a_call_counts_until_its_body_is_dropped() {
    let model = ScriptedModel::new().text("a").never().repeat();
    let (first, second) = two(&model);
    let body = first.oneshot(request()).await.unwrap().body;
    assert!(!begins(&second, &model));
    drop(body);
    assert!(begins(&second, &model));
}

#[tokio::test]
async fn a_ready_service_does_not_count() {
    let model = ScriptedModel::new().text("a");
    let (mut first, second) = two(&model);
    first.ready().await.unwrap();
    assert!(begins(&second, &model));
}

#[tokio::test]
async fn a_service_that_fails_to_become_ready_does_not_count() {
    let (first, second) = two(&ScriptedModel::new().unready(broken()));
    first.oneshot(request()).await.unwrap_err();
    second.oneshot(request()).await.unwrap_err();
}

// ---- waits ----

fn with_deadline(seconds: u64) -> ChatRequest {
    let context = Context::new();
    let deadline = context.now() + Duration::from_secs(seconds);
    request().with_context(Context::builder().deadline(deadline).build())
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_deadline_of_its_run() {
    for is_agent in [false, true] {
        let model = ScriptedModel::new().text("a").never().repeat();
        let limit = InFlightLimitLayer::new(1);
        let service = match is_agent {
            false => BoxModel::new(limit.layer(model.clone())),
            true => BoxModel::new(
                limit.layer(AgentLayer::new(ScriptedTools::new()).layer(model.clone())),
            ),
        };
        let held = service.clone().oneshot(request()).await.unwrap();
        let error = service.clone().oneshot(with_deadline(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let error = service.clone().oneshot(with_deadline(0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(model.calls(), 1);
        drop(held);
        // What was given up does not hold a place.
        drop(service.oneshot(request()).await.unwrap());
    }
}

#[tokio::test]
async fn a_wait_ends_when_its_run_is_cancelled() {
    let model = ScriptedModel::new().text("a").never().repeat();
    let service = InFlightLimitLayer::new(1)
        .layer(AgentLayer::new(ScriptedTools::new()).layer(model.clone()));
    let held = service.clone().oneshot(request()).await.unwrap();
    let waits = request();
    let context = waits.context.clone();
    let mut call = task::spawn(service.clone().oneshot(waits));
    assert_pending!(call.poll());
    context.cancel(CancelReason::User);
    assert!(call.is_woken());
    let Poll::Ready(Err(error)) = call.poll() else {
        panic!("it waits on");
    };
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(model.calls(), 1);
    drop(held);
    drop(service.oneshot(request()).await.unwrap());
}

#[tokio::test]
async fn a_queue_that_is_full_refuses() {
    for (queue, code) in [(0, "busy"), (1, "queue_full")] {
        let model = ScriptedModel::new().text("a").never().repeat();
        let limit = InFlightLimitLayer::new(1).queue(queue);
        let service = limit.layer(Strict::new(model.clone()));
        let held = service.clone().oneshot(request()).await.unwrap();
        let mut waits: Vec<_> = (0..queue)
            .map(|_| task::spawn(service.clone().oneshot(request())))
            .collect();
        for call in &mut waits {
            assert_pending!(call.poll());
        }
        let error = service.clone().oneshot(request()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Overloaded, Some(code))
        );
        drop(waits);
        drop(held);
        drop(service.oneshot(request()).await.unwrap());
    }
}

#[tokio::test]
async fn a_call_that_would_wait_for_itself_is_an_error() {
    let limit = InFlightLimitLayer::new(2);
    let model = ScriptedModel::new().text("a").repeat();
    let twice = ServiceBuilder::new()
        .layer(limit.clone())
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(limit.clone())
        .service(model.clone());
    let error = twice.oneshot(request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("InFlightLimit"), "{error}");

    // A sub-agent behind the limit of its parent.
    let outer = request();
    let mut context = outer.context.clone();
    let tools = ScriptedTools::new().tool("ask", {
        let agent =
            BoxModel::new(limit.layer(AgentLayer::new(ScriptedTools::new()).layer(model.clone())));
        move |call| {
            let agent = agent.clone();
            async move {
                let inner = request().with_context(call.context.child().build());
                match agent.oneshot(inner).await {
                    Ok(_) => ToolOutcome::done("answered"),
                    Err(error) => ToolOutcome::failed(format!("{:?}", error.kind())),
                }
            }
        }
    });
    let asks = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("ok");
    let agent = limit.layer(AgentLayer::new(tools).layer(asks.clone()));
    assert_finishes(agent.oneshot(outer).await.unwrap().body).await;
    let results = asks.request(1).transcript;
    let text = format!("{:?}", results.last().unwrap().results());
    assert!(text.contains("Configuration"), "{text}");
    assert_eq!(model.calls(), 0);
    assert!(context.enter_shared(&Arc::new(())));
}

// ---- polls ----

#[tokio::test]
async fn dropped_wherever_it_waits_it_holds_nothing() {
    let limit = InFlightLimitLayer::new(1);
    let model = ScriptedModel::new()
        .paced(Pace::NextTick)
        .deltas(["a", "b"])
        .repeat();
    let service = limit.layer(Strict::new(model.clone()));
    let run = || {
        let service = service.clone();
        async move {
            // Both wait: the second for the first, too.
            let read = async |service: Limited| {
                let body = service.oneshot(request()).await.unwrap().body;
                body.count().await
            };
            tokio::join!(read(service.clone()), read(service))
        }
    };
    let check = async |_| assert_eq!((limit.available(), model.live()), (1, 0));
    assert!(drop_at_each_wait(run, check).await > 2);
}

#[test]
fn polled_for_nothing_it_is_woken_all_the_same() {
    for pace in Pace::ALL {
        let counts = watched(async move {
            let model = ScriptedModel::new().paced(pace).deltas(["a", "b"]).repeat();
            let service = InFlightLimitLayer::new(1).layer(model);
            let read = async |service: InFlightLimit<ScriptedModel>| {
                let answer = Spurious::new(service.oneshot(request())).await.unwrap();
                Spurious::new(answer.body).count().await
            };
            tokio::join!(read(service.clone()), read(service.clone()), read(service))
        });
        assert_eq!((counts.0, counts.1), (counts.2, counts.2));
    }
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
