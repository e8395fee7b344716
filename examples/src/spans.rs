//! Spans of OpenTelemetry on the console, in place of an exporter to a collector.

use opentelemetry::{
    Value,
    trace::{Status, TracerProvider},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use std::{env, io};
use tracing_subscriber::{
    Layer,
    filter::{Targets, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Logs to stderr as `RUST_LOG` specifies, with `default` as the default, and prints each span that has ended.
///
/// With an exporter of `opentelemetry-otlp` in place of the printer, the spans go to a collector.
pub fn log(default: &str) {
    let wanted = env::var("RUST_LOG").unwrap_or_else(|_| default.to_owned());
    let targets: Targets = wanted.parse().unwrap_or_default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(Printer)
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("concentric"))
        // Log events may have content.
        .with_filter(filter_fn(|metadata| metadata.is_span()));
    // Fails if a subscriber is installed already, which is fine.
    let _ = tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(io::stderr))
        .with(spans)
        .with(targets)
        .try_init();
}

#[derive(Debug)]
struct Printer;

impl SpanExporter for Printer {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            eprintln!("{}", line(&span));
        }
        Ok(())
    }
}

/// The name, the ids, the duration, the status and some attributes of a span.
fn line(span: &SpanData) -> String {
    let took = span.end_time.duration_since(span.start_time);
    let took = took.unwrap_or_default();
    let failed = match span.status {
        Status::Error { .. } => " failed",
        _ => "",
    };
    let names = [
        "concentric.outcome",
        "error.type",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    ];
    let attributes = span.attributes.iter().filter_map(|it| {
        let name = names.iter().find(|name| **name == it.key.as_str())?;
        let value = match &it.value {
            Value::String(text) => text.to_string(),
            other => other.to_string(),
        };
        Some(format!(" {name}={value}"))
    });
    format!(
        "SPAN {}{failed} in {took:?}, {} below {}{}",
        span.name,
        span.span_context.span_id(),
        span.parent_span_id,
        attributes.collect::<String>(),
    )
}
