//! Runs that are resumed in another process.

use super::*;
use concentric_core::{Context, Outcome, Reply, machine::RunState};
use concentric_layers::SuspendLayer;
use concentric_store::MemoryStore;
use concentric_tools::Approval;
use futures_util::FutureExt;
use opentelemetry::trace::SpanContext;
use std::sync::Arc;
use tower::Layer;

fn paying(otel: &Otel, model: ScriptedModel) -> BoxModel {
    let pay = tool("pay", "", |NoArguments {}| async { "paid" });
    let tools = Toolset::new()
        .tool(pay)
        .gate(Approval::for_tools(["pay"]))
        .layer(otel.tool());
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools).step_limit(1_000))
        .layer(otel.model())
        .service(model);
    BoxModel::new(agent)
}

/// Interrupts a run, and returns its stored state.
async fn interrupt(agent: &BoxModel, request: ChatRequest) -> String {
    let answer = agent
        .clone()
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    answer.finish.state.unwrap().to_json().unwrap()
}

fn resume(stored: &str) -> ChatRequest {
    let state = RunState::from_json(stored.as_bytes(), stored.len()).unwrap();
    let replies = state
        .interrupts()
        .into_iter()
        .map(|it| Reply::approve(it.id.clone()));
    let replies = replies.collect();
    ChatRequest::resume(state, replies)
}

fn links(span: &SpanData) -> Vec<SpanContext> {
    span.links
        .iter()
        .map(|link| link.span_context.clone())
        .collect()
}

fn ids(contexts: &[SpanContext]) -> Vec<(opentelemetry::TraceId, SpanId)> {
    contexts
        .iter()
        .map(|it| (it.trace_id(), it.span_id()))
        .collect()
}

#[tokio::test]
async fn a_resumed_run_links_to_each_earlier_part() {
    let otel = Otel::new();
    let call = |tokens| {
        ScriptedModel::new()
            .tool_call("pay", json!({}))
            .usage(Usage::new(tokens, 1))
    };

    let traces = Traces::of_thread();
    let stored = interrupt(&paying(&otel, call(10)), ChatRequest::user("Pay.")).await;
    let spans = traces.take();
    assert_eq!(
        tree(&spans),
        ["invoke_agent: interrupted", "  chat: completed"]
    );
    let first = named(&spans, "invoke_agent").span_context.clone();
    let span = named(&spans, "invoke_agent");
    assert_eq!(attribute(span, "concentric.interrupts").unwrap(), "1");
    assert_eq!(attribute(span, "concentric.resumed"), None);
    assert_eq!(span.status, Status::Unset);
    drop(traces);

    // Another process, with its own provider.
    let traces = Traces::of_thread();
    let stored = interrupt(&paying(&otel, call(20)), resume(&stored)).await;
    let spans = traces.take();
    assert_eq!(
        tree(&spans),
        [
            "invoke_agent: interrupted",
            "  execute_tool pay: done",
            "  chat: completed",
        ]
    );
    let span = named(&spans, "invoke_agent");
    let second = span.span_context.clone();
    assert_ne!(first.trace_id(), second.trace_id());
    assert_eq!(ids(&links(span)), ids(std::slice::from_ref(&first)));
    assert!(links(span)[0].is_remote());
    assert_eq!(attribute(span, "concentric.resumed").unwrap(), "true");
    // Each token is in one span.
    assert_eq!(attribute(span, "gen_ai.usage.input_tokens").unwrap(), "20");
    let tool = named(&spans, "execute_tool pay");
    assert_eq!(attribute(tool, "concentric.resumed").unwrap(), "true");
    drop(traces);

    let traces = Traces::of_thread();
    let model = ScriptedModel::new().text("Paid.").usage(Usage::new(40, 1));
    run(&paying(&otel, model), resume(&stored)).await.unwrap();
    let spans = traces.take();
    let span = named(&spans, "invoke_agent");
    assert_eq!(ids(&links(span)), ids(&[first, second]));
    assert_eq!(attribute(span, "gen_ai.usage.input_tokens").unwrap(), "40");
}

#[tokio::test]
async fn an_attempt_that_failed_is_not_an_earlier_part() {
    let otel = Otel::new();
    let traces = Traces::of_thread();
    let context = Context::new();
    let fails = ScriptedModel::new().error(Error::new(ErrorKind::Server, "no"));
    let request = ChatRequest::user("Pay.").with_context(context.clone());
    run(&paying(&otel, fails), request.clone())
        .await
        .unwrap_err();
    let pays = ScriptedModel::new().tool_call("pay", json!({}));
    let stored = interrupt(&paying(&otel, pays), request).await;
    let spans = traces.take();
    let attempts = spans.iter().filter(|span| span.name == "invoke_agent");
    let attempts: Vec<_> = attempts.collect();
    assert!(attempts.len() == 2 && attempts.iter().all(|span| span.links.is_empty()));

    let paid = ScriptedModel::new().text("Paid.");
    run(&paying(&otel, paid), resume(&stored)).await.unwrap();
    let spans = traces.take();
    let expected = [attempts[1].span_context.clone()];
    assert_eq!(ids(&links(named(&spans, "invoke_agent"))), ids(&expected));
}

#[tokio::test]
async fn a_run_that_is_not_resumed_has_no_links() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let context = Context::new();
    let request = || ChatRequest::user("Pay.").with_context(context.clone());
    // Attempts of which nothing is known, so that their spans remain in the slot.
    let cut = ScriptedModel::new().text("I").end_early();
    run(&BoxModel::new(otel.run().layer(cut)), request())
        .await
        .unwrap_err();
    let never = paying(&otel, ScriptedModel::new().never());
    let mut dropped = Box::pin(never.oneshot(request()));
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    let says = ScriptedModel::new().text("Paid.");
    run(&paying(&otel, says), request()).await.unwrap();
    let spans = traces.take();
    let runs: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "invoke_agent")
        .collect();
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|span| span.links.is_empty()), "{runs:?}");
}

#[tokio::test]
async fn a_run_of_many_parts_links_to_the_newest() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let pays = || ScriptedModel::new().tool_call("pay", json!({}));
    let mut parts = Vec::new();
    let mut request = ChatRequest::user("Pay.");
    for _ in 0..130 {
        let stored = interrupt(&paying(&otel, pays()), request).await;
        let spans = traces.take();
        let part = named(&spans, "invoke_agent");
        // A span of the OpenTelemetry SDK has up to 128 links, of which it drops the last.
        let newest = &parts[parts.len().saturating_sub(128)..];
        assert_eq!(ids(&links(part)), ids(newest));
        parts.push(part.span_context.clone());
        request = resume(&stored);
    }
}

#[tokio::test]
async fn a_resumed_nested_agent_links_to_its_own_part() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let outer = |inner: ScriptedModel, model: ScriptedModel| {
        let tools = Toolset::new()
            .tool(agent_tool("clerk", "", paying(&otel, inner)))
            .layer(otel.tool());
        let agent = ServiceBuilder::new()
            .layer(otel.run())
            .layer(AgentLayer::new(tools))
            .service(model);
        BoxModel::new(agent)
    };
    let asks = ScriptedModel::new().tool_call("clerk", json!({"task": "Pay."}));
    let pays = ScriptedModel::new().tool_call("pay", json!({}));
    let stored = interrupt(&outer(pays, asks), ChatRequest::user("hi")).await;
    let spans = traces.take();
    assert_eq!(
        tree(&spans),
        [
            "invoke_agent: interrupted",
            "  execute_tool clerk: waiting",
            "    invoke_agent clerk: interrupted",
            "      chat: completed",
        ]
    );
    let of_outer = named(&spans, "invoke_agent").span_context.clone();
    let of_inner = named(&spans, "invoke_agent clerk").span_context.clone();

    let says = |text| ScriptedModel::new().text(text);
    run(&outer(says("Paid."), says("Done.")), resume(&stored))
        .await
        .unwrap();
    let spans = traces.take();
    let linked = links(named(&spans, "invoke_agent"));
    assert_eq!(ids(&linked), ids(&[of_outer]));
    let linked = links(named(&spans, "invoke_agent clerk"));
    assert_eq!(ids(&linked), ids(&[of_inner]));
}

#[tokio::test]
async fn a_run_that_a_store_keeps_is_linked() {
    let traces = Traces::of_thread();
    let (otel, store) = (Otel::new(), Arc::new(MemoryStore::new()));
    let stored = |model| {
        let layer = SuspendLayer::new(store.clone());
        BoxModel::new(layer.layer(paying(&otel, model)))
    };
    let context = || {
        let thread = concentric_core::ThreadId::new("t1");
        Context::builder().thread_id(thread).build()
    };
    let pays = stored(ScriptedModel::new().tool_call("pay", json!({})));
    let request = ChatRequest::user("Pay.").with_context(context());
    let answer = pays
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let interrupts = answer.finish.interrupts();
    let replies = interrupts
        .iter()
        .map(|it| Reply::approve(it.id.clone()))
        .collect();
    let spans = traces.take();
    let first = named(&spans, "invoke_agent").span_context.clone();

    let request = ChatRequest::replying(replies).with_context(context());
    let paid = stored(ScriptedModel::new().text("Paid."));
    run(&paid, request).await.unwrap();
    let spans = traces.take();
    assert_eq!(ids(&links(named(&spans, "invoke_agent"))), ids(&[first]));
}

#[tokio::test]
async fn a_process_without_spans_leaves_the_links_as_they_are() {
    let otel = Otel::new();
    let pays = || ScriptedModel::new().tool_call("pay", json!({}));
    let traces = Traces::of_thread();
    let stored = interrupt(&paying(&otel, pays()), ChatRequest::user("Pay.")).await;
    let spans = traces.take();
    let first = named(&spans, "invoke_agent").span_context.clone();
    drop(traces);
    let stored = interrupt(&paying(&otel, pays()), resume(&stored)).await;

    let traces = Traces::of_thread();
    run(
        &paying(&otel, ScriptedModel::new().text("Paid.")),
        resume(&stored),
    )
    .await
    .unwrap();
    let spans = traces.take();
    assert_eq!(ids(&links(named(&spans, "invoke_agent"))), ids(&[first]));
}
