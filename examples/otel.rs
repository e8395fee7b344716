//! Exports the spans and metrics of a run to a collector of OpenTelemetry.
//!
//! ```console
//! $ OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 cargo run --example otel -- "which files are here?"
//! ```
//!
//! Any collector that receives OTLP over gRPC will do; the variable's default is `http://localhost:4317`. If it cannot
//! be reached, the run is the same, and its telemetry is lost. Logs go to stderr only, since they may have content.
//! The model is selected as in the quickstart.

use concentric::{
    AgentLayer, ChatRequest, Context,
    layers::{Otel, RequestDefaultsLayer},
};
use opentelemetry::{metrics::MeterProvider, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider, trace::SdkTracerProvider};
use quickstart::{files, model::model, terminal};
use std::{io, process::ExitCode, time::Duration};
use tower::{BoxError, ServiceBuilder, ServiceExt};
use tracing_subscriber::{
    Layer,
    filter::{Targets, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// How long the program waits in the end for the collector, once for spans and once for metrics.
const DEADLINE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    match observed(question).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::status(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Sets up the exporters, and sends the rest of their data at the end.
async fn observed(question: String) -> Result<(), BoxError> {
    let resource = Resource::builder().with_service_name("files").build();
    // Both send in batches from threads of their own, so a slow collector delays no run.
    let tracers = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_batch_exporter(SpanExporter::builder().with_tonic().build()?)
        .build();
    let meters = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_periodic_exporter(MetricExporter::builder().with_tonic().build()?)
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracers.tracer("files"))
        .with_filter(filter_fn(|metadata| metadata.is_span()));
    let log = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_filter(Targets::new().with_default(tracing::Level::WARN));
    tracing_subscriber::registry()
        .with(spans)
        .with(log)
        .try_init()?;

    let otel = Otel::new().meter(&meters.meter("files"));
    let answered = ask(&otel, question).await;
    let sent = [
        tracers.shutdown_with_timeout(DEADLINE),
        meters.shutdown_with_timeout(DEADLINE),
    ];
    for error in sent.into_iter().filter_map(Result::err) {
        terminal::status(format_args!("Telemetry was lost: {error}"));
    }
    answered
}

async fn ask(otel: &Otel, question: String) -> Result<(), BoxError> {
    let tools = files::tools(".")?.hooks(otel.tool());
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(RequestDefaultsLayer::new().system("Answer questions about the files in a folder."))
        .layer(AgentLayer::new(tools).step_limit(16))
        .layer(otel.model())
        .service(model()?);
    let context = Context::builder().agent("files").build();
    let request = ChatRequest::user(question).with_context(context);
    let finish = terminal::show(agent.oneshot(request).await?.body).await?;
    terminal::summary(&finish);
    Ok(())
}
