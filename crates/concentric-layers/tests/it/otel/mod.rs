//! Spans and metrics of OpenTelemetry.

mod content;
mod ends;
mod measured;
mod names;
mod resumed;
mod tree;

use concentric_core::{AgentLayer, BoxModel, ChatRequest, Error, ErrorKind, ResponseHead, Usage};
use concentric_layers::{FallbackLayer, Otel, RetryModel};
use concentric_test::ScriptedModel;
use concentric_tools::{NoArguments, Toolset, agent_tool, tool};
use opentelemetry::{
    Value,
    trace::{SpanId, Status, TracerProvider},
};
use opentelemetry_sdk::trace::{
    InMemorySpanExporter, InMemorySpanExporterBuilder, SdkTracerProvider, SpanData,
};
use serde_json::json;
use std::sync::Once;
use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;

/// The ended spans of one thread. Log events of all levels are copied into them.
struct Traces {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Traces {
    fn of_thread() -> Self {
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| {
            // With a single subscriber, tracing remembers for all threads what it answered one of them.
            let none = tracing::subscriber::NoSubscriber::default();
            let _ = tracing::subscriber::set_global_default(none);
        });
        let exporter = InMemorySpanExporterBuilder::new().build();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        Self {
            exporter,
            provider,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The ended spans, in the order in which they ended.
    fn take(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let spans = self.exporter.get_finished_spans().unwrap();
        self.exporter.reset();
        spans
    }
}

/// The value of an attribute, as text.
fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let mut all = span.attributes.iter().filter(|it| it.key.as_str() == name);
    let value = all.next().map(|it| match &it.value {
        Value::String(text) => text.to_string(),
        other => other.to_string(),
    });
    assert!(all.next().is_none(), "{name} is set twice");
    value
}

fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no span {name}"));
    assert!(found.next().is_none(), "several spans {name}");
    span
}

/// A line per span, indented below its parent, in the order of their starts.
fn tree(spans: &[SpanData]) -> Vec<String> {
    fn below(parent: SpanId, depth: usize, spans: &[SpanData], lines: &mut Vec<String>) {
        let mut children: Vec<_> = spans
            .iter()
            .filter(|it| it.parent_span_id == parent)
            .collect();
        children.sort_by_key(|span| (span.start_time, span.name.clone()));
        for span in children {
            let outcome = attribute(span, "concentric.outcome").unwrap_or_default();
            let status = match span.status {
                Status::Unset => "",
                Status::Ok => " ok",
                Status::Error { .. } => " error",
            };
            lines.push(format!(
                "{}{}: {outcome}{status}",
                "  ".repeat(depth),
                span.name
            ));
            below(span.span_context.span_id(), depth + 1, spans, lines);
        }
    }
    let mut lines = Vec::new();
    below(SpanId::INVALID, 0, spans, &mut lines);
    assert_eq!(lines.len(), spans.len(), "a span has no parent: {lines:?}");
    lines
}

fn overloaded() -> Error {
    Error::new(ErrorKind::Overloaded, "try again").with_provider("first")
}

/// An agent whose model is called twice and replaced by another one, which calls a tool and an agent.
fn agent(otel: &Otel) -> BoxModel {
    let researcher = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(concentric_core::NoTools))
        .layer(otel.model())
        .service(
            ScriptedModel::new()
                .head(ResponseHead::new("third", "m-3"))
                .text("A report.")
                .usage(Usage::new(7, 3)),
        );
    let tools = Toolset::new()
        .tool(tool("look", "Looks.", |NoArguments {}| async { "a cat" }))
        .tool(agent_tool("research", "Researches.", researcher))
        .layer(otel.tool());
    let first = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryModel::new(2)))
        .layer(otel.model())
        .service(ScriptedModel::new().error(overloaded()).repeat());
    let second = ScriptedModel::new()
        .head(ResponseHead::new("second", "m-2"))
        .tool_call("look", json!({}))
        .tool_call("research", json!({"task": "cats"}))
        .usage(Usage::new(100, 20))
        .then()
        .head(ResponseHead::new("second", "m-2"))
        .deltas(["A ", "cat."])
        .usage(Usage::new(200, 30));
    let second = ServiceBuilder::new().layer(otel.model()).service(second);
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools))
        .layer(FallbackLayer::new("first").or("second", second))
        .service(first);
    BoxModel::new(agent)
}

async fn run(agent: &BoxModel, request: ChatRequest) -> Result<String, Error> {
    agent.clone().oneshot(request).await?.text().await
}
