//! Which spans there are, and below which.

use super::*;
use concentric_core::{Context, NoTools};
use concentric_layers::{DetachLayer, Next, ToolCacheLayer, from_fn, tool_cache::CacheScope};
use concentric_test::{Gate, TestEnvironment, check_layer, check_tool_layer};
use concentric_tools::blocking_tool;
use opentelemetry::trace::SpanKind;
use std::sync::{Arc, Mutex};
use tower::Layer;
use tracing_opentelemetry::OpenTelemetrySpanExt;

#[tokio::test(start_paused = true)]
async fn it_is_a_layer_with_and_without_a_subscriber() {
    let otel = Otel::new().content(10);
    check_layer(otel.run()).await;
    check_layer(otel.model()).await;
    check_tool_layer(otel.tool()).await;
    let traces = Traces::of_thread();
    check_layer(otel.run()).await;
    check_layer(otel.model()).await;
    check_tool_layer(otel.tool()).await;
    assert!(!traces.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn s076_a_run_is_a_tree_of_attempts_calls_and_nested_agents() {
    let traces = Traces::of_thread();
    let agent = agent(&Otel::new());
    let request =
        ChatRequest::user("What is it?").with_context(Context::builder().agent("clerk").build());
    run(&agent, request).await.unwrap();
    let spans = traces.take();
    assert_eq!(
        tree(&spans),
        [
            "invoke_agent clerk: completed",
            "  chat: failed error",
            "  chat: failed error",
            "  chat m-2: completed",
            "  execute_tool look: done",
            "  execute_tool research: done",
            "    invoke_agent research: completed",
            "      chat m-3: completed",
            "  chat m-2: completed",
        ]
    );
    for span in &spans {
        let kind = match span.name.starts_with("chat") {
            true => SpanKind::Client,
            false => SpanKind::Internal,
        };
        assert_eq!(span.span_kind, kind);
        assert!(span.links.is_empty() && span.events.len() <= 2, "{span:?}");
        assert!(span.end_time >= span.start_time);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_runs_of_one_layer_have_their_own_trees() {
    let traces = Traces::of_thread();
    let agent = agent(&Otel::new());
    let runs = (0..2).map(|_| run(&agent, ChatRequest::user("What?")));
    // The second run has another script.
    let _ = futures_util::future::join_all(runs).await;
    let spans = traces.take();
    let roots = spans
        .iter()
        .filter(|it| it.parent_span_id == SpanId::INVALID);
    let roots: Vec<_> = roots.map(|root| root.span_context.trace_id()).collect();
    assert_eq!(roots.len(), 2);
    assert_ne!(roots[0], roots[1]);
    for span in &spans {
        let parent = spans
            .iter()
            .find(|it| it.span_context.span_id() == span.parent_span_id);
        let in_trace = parent
            .is_none_or(|parent| parent.span_context.trace_id() == span.span_context.trace_id());
        assert!(in_trace, "{span:?}");
    }
}

#[tokio::test]
async fn a_run_is_the_child_of_the_current_span() {
    let traces = Traces::of_thread();
    let agent = Otel::new().run().layer(ScriptedModel::new().text("hi"));
    let request = tracing::info_span!("GET /agent");
    let call = tracing::Instrument::instrument(agent.oneshot(ChatRequest::user("hi")), request);
    call.await.unwrap().collect().await.unwrap();
    let spans = traces.take();
    let (request, run) = (named(&spans, "GET /agent"), named(&spans, "invoke_agent"));
    assert_eq!(run.parent_span_id, request.span_context.span_id());
}

#[tokio::test]
async fn an_inner_layer_adds_attributes() {
    let traces = Traces::of_thread();
    let plan = from_fn(async |request: ChatRequest, mut next: Next| {
        tracing::Span::current().set_attribute("app.plan", "free");
        next.run(request).await
    });
    let model = ServiceBuilder::new()
        .layer(Otel::new().model())
        .layer(plan)
        .service(ScriptedModel::new().text("hi"));
    model
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let spans = traces.take();
    assert_eq!(
        attribute(named(&spans, "chat"), "app.plan").unwrap(),
        "free"
    );
}

/// With `outside`, the span of the run ends when the consumer disconnects, but has later children.
#[tokio::test]
async fn a_detached_run_keeps_its_parent() {
    for outside in [false, true] {
        let traces = Traces::of_thread();
        let (otel, detach, gate) = (Otel::new(), DetachLayer::new(), Gate::new());
        let open = gate.clone();
        let order = tool("order", "", move |NoArguments {}| {
            let gate = open.clone();
            async move {
                gate.pass().await;
                "ordered"
            }
        });
        let model = ScriptedModel::new()
            .tool_call("order", json!({}))
            .then()
            .text("Done.");
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(
                Toolset::new().tool(order).layer(otel.tool()),
            ))
            .layer(otel.model())
            .service(model);
        let agent = match outside {
            true => BoxModel::new(otel.run().layer(detach.layer(agent))),
            false => BoxModel::new(detach.layer(otel.run().layer(agent))),
        };
        let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
        let reached = async { while futures_util::StreamExt::next(&mut body).await.is_some() {} };
        tokio::select! {
            () = reached => panic!("the run has ended"),
            () = gate.reached() => {}
        }
        drop(body);
        gate.open();
        detach.shutdown().await;
        let outcome = if outside { "dropped" } else { "completed" };
        assert_eq!(
            tree(&traces.take()),
            [
                &format!("invoke_agent: {outcome}"),
                "  chat: completed",
                "  execute_tool order: done",
                "  chat: completed",
            ]
        );
    }
}

#[tokio::test]
async fn a_blocking_tool_runs_within_the_span_of_its_call() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let seen = Arc::new(Mutex::new(None));
    let at = Arc::clone(&seen);
    let work = blocking_tool("work", "", move |NoArguments {}| {
        tracing::dispatcher::with_default(&dispatch, || {
            *at.lock().unwrap() = Some(tracing::Span::current());
        });
        "done"
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            Toolset::new().tool(work).layer(otel.tool()),
        ))
        .service(
            ScriptedModel::new()
                .tool_call("work", json!({}))
                .then()
                .text("Done."),
        );
    agent
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let span = seen.lock().unwrap().take().unwrap();
    assert_eq!(span.metadata().unwrap().name(), "execute_tool");
    drop(span);
    assert_eq!(tree(&traces.take()), ["execute_tool work: done"]);
}

#[tokio::test]
async fn a_cached_result_is_marked() {
    let traces = Traces::of_thread();
    let look = tool("look", "", |NoArguments {}| async { "a cat" });
    let tools = Toolset::new()
        .tool(look.read_only())
        .layer(Otel::new().tool())
        .layer(ToolCacheLayer::new(CacheScope::Run));
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .tool_call("look", json!({}))
        .then()
        .text("A cat.");
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
    run(&agent, ChatRequest::user("hi")).await.unwrap();
    let spans = traces.take();
    let cached = |span| attribute(span, "concentric.cached");
    let cached: Vec<_> = spans.iter().map(cached).collect();
    assert_eq!(cached, [None, Some("true".to_owned())]);
}

// Case C126.
#[tokio::test(start_paused = true)]
async fn c126_the_tokens_of_a_run_are_the_sum_of_its_model_calls() {
    let traces = Traces::of_thread();
    run(&agent(&Otel::new()), ChatRequest::user("hi"))
        .await
        .unwrap();
    let spans = traces.take();
    let tokens = |span: &SpanData| {
        ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"]
            .map(|name| attribute(span, name).map_or(0, |count| count.parse().unwrap()))
    };
    let chats = spans.iter().filter(|span| span.name.starts_with("chat"));
    let sum = chats
        .map(tokens)
        .fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
    assert_eq!(sum, [307, 53]);
    assert_eq!(tokens(named(&spans, "invoke_agent research")), [7, 3]);
    assert_eq!(tokens(named(&spans, "invoke_agent")), sum);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_without_opentelemetry_sees_the_spans() {
    let traces = Traces::of_thread();
    let lines = Arc::new(Mutex::new(Vec::new()));
    #[derive(Clone)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let writer = Lines(Arc::clone(&lines));
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let model = Otel::new()
        .model()
        .layer(ScriptedModel::new().text("CANARY"));
    let request = TestEnvironment::new().request("CANARY");
    model
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let text = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("chat{otel.name=\"chat\" otel.kind=\"client\""),
        "{text}"
    );
    assert!(!text.contains("CANARY"));
    assert!(traces.take().is_empty());
}

#[tokio::test]
async fn an_agent_in_the_models_place_has_a_span_below_the_call() {
    let traces = Traces::of_thread();
    let otel = Otel::new();
    let inner = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(NoTools))
        .layer(otel.model())
        .service(ScriptedModel::new().text("hi").usage(Usage::new(5, 1)));
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(NoTools))
        .service(inner);
    agent
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let spans = traces.take();
    let expected = [
        "invoke_agent: completed",
        "  invoke_agent: completed",
        "    chat: completed",
    ];
    assert_eq!(tree(&spans), expected);
    for span in &spans {
        assert_eq!(attribute(span, "gen_ai.usage.input_tokens").unwrap(), "5");
    }
}
