//! How spans end.

use super::*;
use crate::settled;
use concentric_core::{
    CallId, CancelReason, Context, NoTools, SideEffects, ToolCall, ToolCallPart, ToolOutcome,
};
use concentric_layers::{Otel, otel::OtelLayer};
use concentric_test::{Pace, TestEnvironment, drop_at_each_wait};
use futures_util::{FutureExt, StreamExt};
use std::time::Duration;
use tower::{Layer, Service, service_fn};

/// The outcome, the status and the type of the error of the only span.
fn end(traces: &Traces) -> (String, &'static str, Option<String>) {
    let spans = traces.take();
    let [span] = &spans[..] else {
        panic!("not one span: {spans:?}");
    };
    let status = match &span.status {
        Status::Error { description } => {
            assert_eq!(description, "");
            "error"
        }
        _ => "unset",
    };
    let outcome = attribute(span, "concentric.outcome").unwrap();
    (outcome, status, attribute(span, "error.type"))
}

fn expected(outcome: &str, error: Option<&str>) -> (String, &'static str, Option<String>) {
    let status = if error.is_some() { "error" } else { "unset" };
    (outcome.to_owned(), status, error.map(str::to_owned))
}

async fn drain(layer: &OtelLayer, model: ScriptedModel) {
    if let Ok(response) = layer.layer(model).oneshot(ChatRequest::user("hi")).await {
        let mut body = Box::pin(response.body);
        while body.next().await.is_some() {}
        // The span has ended: a dropped body adds nothing.
    }
}

#[tokio::test]
async fn each_end_of_a_body_ends_the_span_once() {
    let traces = Traces::of_thread();
    let error = |kind| Error::new(kind, "CANARY").with_code("e7");
    for layer in [Otel::new().run(), Otel::new().model()] {
        for (model, outcome, error) in [
            (ScriptedModel::new().text("hi"), "completed", None),
            (
                ScriptedModel::new().error(error(ErrorKind::Server)),
                "failed",
                Some("server"),
            ),
            (
                ScriptedModel::new()
                    .text("hi")
                    .error(error(ErrorKind::Connection)),
                "failed",
                Some("connection"),
            ),
            (
                ScriptedModel::new().error(error(ErrorKind::Cancelled)),
                "cancelled",
                None,
            ),
            (
                ScriptedModel::new().error(Error::halted("CANARY")),
                "halted",
                None,
            ),
            (
                ScriptedModel::new().text("hi").end_early(),
                "truncated",
                Some("truncated"),
            ),
        ] {
            drain(&layer, model).await;
            assert_eq!(end(&traces), expected(outcome, error));
        }

        // Dropped as a future that was never polled, as one that was, and as a body.
        let mut model = layer.layer(ScriptedModel::new().never().repeat());
        drop(model.ready().await.unwrap().call(ChatRequest::user("hi")));
        assert_eq!(end(&traces), expected("dropped", None));
        let mut call = Box::pin(model.ready().await.unwrap().call(ChatRequest::user("hi")));
        assert!((&mut call).now_or_never().is_none());
        drop(call);
        assert_eq!(end(&traces), expected("dropped", None));
        let model = layer.layer(ScriptedModel::new().text("hi").never());
        drop(model.oneshot(ChatRequest::user("hi")).await.unwrap());
        assert_eq!(end(&traces), expected("dropped", None));
    }
}

#[tokio::test]
async fn a_span_ends_with_its_terminal_item_and_not_with_the_body() {
    let traces = Traces::of_thread();
    let model = Otel::new().model().layer(ScriptedModel::new().text("hi"));
    let mut body = Box::pin(model.oneshot(ChatRequest::user("hi")).await.unwrap().body);
    while !body.next().await.unwrap().unwrap().is_finish() {
        assert!(traces.take().is_empty());
    }
    assert_eq!(end(&traces), expected("completed", None));
    drop(body);
    assert!(traces.take().is_empty());
}

#[tokio::test]
async fn a_dropped_span_lasts_until_the_drop() {
    let traces = Traces::of_thread();
    let model = Otel::new()
        .model()
        .layer(ScriptedModel::new().text("hi").never());
    let response = model.oneshot(ChatRequest::user("hi")).await.unwrap();
    let last_poll = std::time::SystemTime::now();
    std::thread::yield_now();
    drop(response);
    assert!(traces.take()[0].end_time >= last_poll);
}

#[tokio::test]
async fn a_cancelled_run_has_its_reason_and_no_error() {
    let traces = Traces::of_thread();
    for (reason, name) in [
        (CancelReason::User, "user"),
        (CancelReason::Shutdown, "shutdown"),
        (CancelReason::Other("CANARY".into()), "other"),
    ] {
        let agent = Otel::new()
            .run()
            .layer(AgentLayer::new(NoTools).layer(ScriptedModel::new().text("hi").never()));
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let response = agent.oneshot(request).await.unwrap();
        context.cancel(reason);
        response.collect().await.unwrap();
        let spans = traces.take();
        assert_eq!(tree(&spans), ["invoke_agent: aborted"]);
        let span = named(&spans, "invoke_agent");
        assert_eq!(attribute(span, "concentric.cancel_reason").unwrap(), name);
        assert_eq!(attribute(span, "error.type"), None);
    }

    // A consumer that disconnects.
    let agent = Otel::new()
        .run()
        .layer(AgentLayer::new(NoTools).layer(ScriptedModel::new().text("hi").never()));
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    let spans = traces.take();
    let reason = attribute(named(&spans, "invoke_agent"), "concentric.cancel_reason");
    assert_eq!(reason.unwrap(), "disconnected");
}

#[tokio::test]
async fn a_completed_call_has_no_cancel_reason() {
    let traces = Traces::of_thread();
    for layer in [Otel::new().run(), Otel::new().model()] {
        let model = layer.layer(ScriptedModel::new().text("hi"));
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let mut body = Box::pin(model.oneshot(request).await.unwrap().body);
        body.next().await.unwrap().unwrap();
        context.cancel(CancelReason::User);
        while body.next().await.is_some() {}
        let spans = traces.take();
        let outcome = attribute(&spans[0], "concentric.outcome");
        assert_eq!(outcome.unwrap(), "completed");
        assert_eq!(attribute(&spans[0], "concentric.cancel_reason"), None);
    }
}

#[tokio::test]
async fn a_failure_has_the_effects_of_its_tools() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let effects = |span: &SpanData| attribute(span, "concentric.effects");
    for layer in [otel.run(), otel.model()] {
        for (of, expected) in [
            (SideEffects::None, None),
            (SideEffects::Possible, Some("possible")),
            (SideEffects::Committed, Some("committed")),
        ] {
            let error = Error::new(ErrorKind::Server, "broke").with_effects(of);
            drain(&layer, ScriptedModel::new().error(error)).await;
            assert_eq!(effects(&traces.take()[0]).as_deref(), expected);
        }
    }

    let work = tool("work", "", |NoArguments {}| async { "done" });
    let model = ScriptedModel::new()
        .tool_call("work", json!({}))
        .then()
        .error(Error::new(ErrorKind::Server, "broke"));
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(Toolset::new().tool(work)))
        .layer(otel.model())
        .service(model);
    run(&BoxModel::new(agent), ChatRequest::user("hi"))
        .await
        .unwrap_err();
    let spans = traces.take();
    let root = named(&spans, "invoke_agent");
    assert_eq!(effects(root).as_deref(), Some("committed"));
    let mut calls = spans.iter().filter(|span| span.name == "chat");
    assert!(calls.all(|call| effects(call).is_none()));
}

// Case C127.
#[tokio::test]
async fn c127_the_spans_of_a_failure_end_from_the_inside_out() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let inner = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(NoTools))
        .layer(otel.model())
        .service(ScriptedModel::new().error(Error::new(ErrorKind::Server, "broke")));
    let tools = Toolset::new()
        .tool(agent_tool("ask", "", inner))
        .layer(otel.tool());
    let model = ScriptedModel::new()
        .tool_call("ask", json!({"task": "do it"}))
        .then()
        .error(Error::new(ErrorKind::Server, "broke"));
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools))
        .layer(otel.model())
        .service(model);
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    answer.collect().await.unwrap_err();
    let ended: Vec<_> = traces.take();
    let ended: Vec<_> = ended
        .iter()
        .map(|span| (&*span.name, matches!(span.status, Status::Error { .. })))
        .collect();
    assert_eq!(
        ended,
        [
            ("chat", false),
            ("chat", true),
            ("invoke_agent ask", true),
            ("execute_tool ask", true),
            ("chat", true),
            ("invoke_agent", true),
        ]
    );
}

#[tokio::test]
async fn a_dropped_run_ends_all_its_spans() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let waits = tool("wait", "", |NoArguments {}| std::future::pending::<&str>());
    let model = ScriptedModel::new().tool_call("wait", json!({}));
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(
            Toolset::new().tool(waits).layer(otel.tool()),
        ))
        .layer(otel.model())
        .service(model);
    let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    while body.next().now_or_never().flatten().is_some() {}
    drop(body);
    let spans = traces.take();
    let ended: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(ended, ["chat", "execute_tool wait", "invoke_agent"]);
    assert_eq!(
        tree(&spans),
        [
            "invoke_agent: dropped",
            "  chat: completed",
            "  execute_tool wait: dropped"
        ]
    );
}

/// An agent whose parts wait: a failed attempt, a tool, a nested agent and two answers.
pub(super) fn waiting(otel: &Otel) -> BoxModel {
    let researcher = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(NoTools))
        .layer(otel.model())
        .service(ScriptedModel::new().paced(Pace::NextTick).text("A report."));
    let look = tool("look", "", |NoArguments {}| async {
        tokio::task::yield_now().await;
        "a cat"
    });
    let tools = Toolset::new()
        .tool(look)
        .tool(agent_tool("research", "", researcher))
        .layer(otel.tool());
    let model = ScriptedModel::new()
        .paced(Pace::NextTick)
        .error(overloaded())
        .then()
        .tool_call("look", json!({}))
        .tool_call("research", json!({"task": "cats"}))
        .then()
        .text("A cat.");
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools))
        .layer(RetryLayer::new(RetryModel::new(2)))
        .layer(otel.model())
        .service(model);
    BoxModel::new(agent)
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_at_any_await_ends_its_spans() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let mut trees = Vec::new();
    let make = || {
        let agent = waiting(&otel);
        async move { run(&agent, ChatRequest::user("hi")).await }
    };
    let drops = drop_at_each_wait(make, async |_| {
        let spans = traces.take();
        // A parent ends after its children.
        for (at, span) in spans.iter().enumerate() {
            let mut later = spans.iter().skip(at + 1);
            let root = span.parent_span_id == SpanId::INVALID;
            assert!(root || later.any(|it| it.span_context.span_id() == span.parent_span_id));
        }
        trees.push(tree(&spans));
    });
    let drops = drops.await;
    assert_eq!(trees.len(), drops + 1);

    assert!(trees[0].is_empty(), "a future that was never polled");
    let (complete, dropped) = trees[1..].split_last().unwrap();
    for tree in dropped {
        assert_eq!(tree[0], "invoke_agent: dropped");
        assert!(tree.iter().all(|span| !span.ends_with(": ")), "{tree:?}");
    }
    let mut all: Vec<_> = trees[1..].iter().flatten().map(|it| it.trim()).collect();
    all.sort();
    all.dedup();
    assert_eq!(
        all,
        [
            "chat: completed",
            "chat: dropped",
            "chat: failed error",
            "execute_tool look: done",
            "execute_tool look: dropped",
            "execute_tool research: done",
            "execute_tool research: dropped",
            "invoke_agent research: completed",
            "invoke_agent research: dropped",
            "invoke_agent: completed",
            "invoke_agent: dropped",
        ]
    );
    assert_eq!(
        complete,
        &[
            "invoke_agent: completed",
            "  chat: failed error",
            "  chat: completed",
            "  execute_tool look: done",
            "  execute_tool research: done",
            "    invoke_agent research: completed",
            "      chat: completed",
            "  chat: completed",
        ]
    );
}

pub(super) fn call(context: &Context) -> ToolCall {
    let part = ToolCallPart::new(CallId::new("c1"), "look", json!({}));
    ToolCall::new(part, context.clone())
}

#[tokio::test]
async fn each_outcome_of_a_tool_call_has_its_status() {
    let traces = Traces::of_thread();
    let context = TestEnvironment::new().context();
    for (result, outcome, error) in [
        (Ok(ToolOutcome::done("CANARY")), "done", None),
        (
            Ok(ToolOutcome::failed("CANARY")),
            "failed",
            Some("tool_error"),
        ),
        (Ok(ToolOutcome::denied("CANARY")), "denied", None),
        (Ok(ToolOutcome::cancelled("CANARY")), "cancelled", None),
        (
            Ok(ToolOutcome::unknown("CANARY")),
            "unknown",
            Some("indeterminate"),
        ),
        (
            Err(Error::new(ErrorKind::Waiting, "waits")),
            "waiting",
            None,
        ),
        (Err(Error::halted("CANARY")), "halted", None),
        (
            Err(Error::new(ErrorKind::Timeout, "CANARY")),
            "failed",
            Some("timeout"),
        ),
    ] {
        let tool = service_fn(async |_: ToolCall| result.clone());
        let call = call(&context);
        let _ = Otel::new().tool().layer(tool).oneshot(call).await;
        assert_eq!(end(&traces), expected(outcome, error));
    }
    let never = service_fn(|_: ToolCall| std::future::pending::<Result<ToolOutcome, Error>>());
    let pending = Otel::new().tool().layer(never).oneshot(call(&context));
    assert!(pending.now_or_never().is_none());
    assert_eq!(end(&traces), expected("dropped", None));
}

#[tokio::test]
async fn observed_calls_and_unknown_tools_are_marked() {
    let traces = Traces::of_thread();
    let call = settled::call(&TestEnvironment::new().context());
    let tool = service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::denied("no")));
    Otel::new().tool().layer(tool).oneshot(call).await.unwrap();
    let spans = traces.take();
    // No tool has the name that the model wrote.
    let span = named(&spans, "execute_tool _OTHER");
    assert_eq!(attribute(span, "gen_ai.tool.name").unwrap(), "_OTHER");
    assert_eq!(attribute(span, "concentric.settled").unwrap(), "true");
}

#[tokio::test]
async fn calls_of_a_toolset_that_do_not_run_have_spans() {
    let traces = Traces::of_thread();
    settled::run(|tools| tools.hooks(Otel::new().tool())).await;
    let spans = traces.take();
    for (name, outcome) in [
        ("execute_tool pay", "denied"),
        ("execute_tool _OTHER", "failed"),
    ] {
        let span = named(&spans, name);
        assert_eq!(attribute(span, "concentric.settled").unwrap(), "true");
        assert_eq!(attribute(span, "concentric.outcome").unwrap(), outcome);
    }
    assert_eq!(spans.len(), 2);
}

#[tokio::test]
async fn a_slow_model_is_measured_by_the_clock_of_the_run() {
    let traces = Traces::of_thread();
    let environment = TestEnvironment::new();
    let model = ScriptedModel::new()
        .sleep(Duration::from_millis(70))
        .text("a");
    let mut call = Box::pin(
        Otel::new()
            .model()
            .layer(model)
            .oneshot(environment.request("hi")),
    );
    assert!((&mut call).now_or_never().is_none());
    environment.advance(Duration::from_millis(70));
    call.await.unwrap().collect().await.unwrap();
    let spans = traces.take();
    let time = attribute(&spans[0], "gen_ai.response.time_to_first_chunk").unwrap();
    assert_eq!(time, "0.07");
}
