//! Exports the spans and metrics of a run to the collector at `OTEL_EXPORTER_OTLP_ENDPOINT`; see `.ci/otel`.
//!
//! `concentric-otel run FILE` runs an agent with a retry, a fallback, tools and a nested agent until it asks for
//! an approval, and writes its state into the file. `concentric-otel resume FILE` approves and resumes it.

use concentric::{
    AgentLayer, BoxModel, ChatRequest, Context, Error, ErrorKind, Reply, ResponseHead, Usage,
    layers::{FallbackLayer, Otel, RetryModel},
    machine::RunState,
    tools::{Approval, NoArguments, Toolset, agent_tool, tool},
};
use concentric_test::ScriptedModel;
use opentelemetry::{metrics::MeterProvider, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider, trace::SdkTracerProvider};
use serde_json::json;
use std::{env, fs, time::Duration};
use tower::{BoxError, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tracing_subscriber::{Layer, filter::filter_fn, layer::SubscriberExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = env::args().skip(1);
    let (Some(command), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: concentric-otel run|resume FILE".into());
    };
    let resource = Resource::builder().with_service_name("concentric").build();
    let tracers = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_batch_exporter(SpanExporter::builder().with_tonic().build()?)
        .build();
    let meters = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_periodic_exporter(MetricExporter::builder().with_tonic().build()?)
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracers.tracer("concentric"))
        .with_filter(filter_fn(|metadata| metadata.is_span()));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans))?;

    let otel = Otel::new().meter(&meters.meter("concentric"));
    match command.as_str() {
        "run" => run(&otel, &file).await?,
        _ => resume(&otel, &file).await?,
    }
    tracers.shutdown()?;
    meters.shutdown()?;
    Ok(())
}

async fn run(otel: &Otel, file: &str) -> Result<(), BoxError> {
    let model = ScriptedModel::new()
        .head(ResponseHead::new("anthropic", "claude-opus-4-8"))
        .tool_call("look", json!({"secret": "sk-1234"}))
        .tool_call("research", json!({"task": "Is sk-1234 a key?"}))
        .usage(Usage::new(100, 20))
        .then()
        .head(ResponseHead::new("anthropic", "claude-opus-4-8"))
        .tool_call("pay", json!({}))
        .usage(Usage::new(110, 5));
    let context = Context::builder().agent("clerk").build();
    let request = ChatRequest::user("Pay with sk-1234.").with_context(context);
    let answer = agent(otel, model).oneshot(request).await?.collect().await?;
    let state = answer.finish.state.ok_or("the run is not interrupted")?;
    Ok(fs::write(file, state.to_json()?)?)
}

/// With content, of which keys are removed.
async fn resume(otel: &Otel, file: &str) -> Result<(), BoxError> {
    let stored = fs::read(file)?;
    let state = RunState::from_json(&stored, stored.len())?;
    let interrupts = state.interrupts().into_iter();
    let replies = interrupts.map(|it| Reply::approve(it.id.clone())).collect();
    let otel = otel
        .clone()
        .content(32_768)
        .redact(|text| text.replace("sk-1234", "[key]"));
    let model = ScriptedModel::new()
        .head(ResponseHead::new("anthropic", "claude-opus-4-8"))
        .deltas(["Paid with ", "sk-1234."])
        .usage(Usage::new(200, 30));
    let context = Context::builder().agent("clerk").build();
    let request = ChatRequest::resume(state, replies).with_context(context);
    agent(&otel, model).oneshot(request).await?.text().await?;
    Ok(())
}

/// An agent whose first model fails twice, and is replaced by `second`.
fn agent(otel: &Otel, second: ScriptedModel) -> BoxModel {
    let failure = Error::new(ErrorKind::Overloaded, "sk-1234 must wait").with_provider("openai");
    let once = Duration::from_millis(1);
    let first = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryModel::new(2).backoff(once, once)))
        .layer(otel.model())
        .service(ScriptedModel::new().error(failure).repeat());
    let second = ServiceBuilder::new().layer(otel.model()).service(second);
    let researcher = ScriptedModel::new()
        .head(ResponseHead::new("openai", "gpt-5.5"))
        .text("sk-1234 is a key.")
        .usage(Usage::new(7, 3));
    let researcher = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(Toolset::new()))
        .layer(otel.model())
        .service(researcher);
    let tools = Toolset::new()
        .tool(tool("look", "Looks.", |NoArguments {}| async { "sk-1234" }))
        .tool(tool("pay", "Pays.", |NoArguments {}| async {
            "paid with sk-1234"
        }))
        .tool(agent_tool("research", "Researches.", researcher))
        .gate(Approval::for_tools(["pay"]))
        .layer(otel.tool());
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools))
        .layer(FallbackLayer::new("openai").or("anthropic", second))
        .service(first);
    BoxModel::new(agent)
}
