//! The spans of one test.

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{
    InMemorySpanExporter, InMemorySpanExporterBuilder, SdkTracerProvider, SpanData,
};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default, set_global_default};
use tracing_subscriber::layer::SubscriberExt;

/// The ended spans of one thread.
pub struct Spans {
    exporter: InMemorySpanExporter,
    // Nothing is exported once it is dropped.
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Spans {
    pub fn of_thread() -> Self {
        // With a single subscriber, tracing remembers for all threads what it answered one of them.
        let _ = set_global_default(NoSubscriber::default());
        let exporter = InMemorySpanExporterBuilder::new().build();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let guard = set_default(tracing_subscriber::registry().with(layer));
        Self {
            exporter,
            _provider: provider,
            _guard: guard,
        }
    }

    /// The spans of runs, in the order in which they ended.
    pub fn runs(&self) -> Vec<SpanData> {
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name.starts_with("invoke_agent"));
        spans
    }
}
