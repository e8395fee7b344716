//! Metrics.

use super::*;
use crate::settled;
use concentric_core::{Context, Event, NoTools, ToolCall, ToolOutcome};
use concentric_test::{TestEnvironment, drop_at_each_wait};
use futures_util::{FutureExt, StreamExt};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};
use std::{collections::BTreeMap, time::Duration};
use tower::{Layer, Service, service_fn};

struct Metrics {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

/// The number of values and their sum, by the name of the metric and its attributes.
type Recorded = BTreeMap<String, (u64, f64)>;

impl Metrics {
    fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        Self {
            exporter,
            provider: SdkMeterProvider::builder().with_reader(reader).build(),
        }
    }

    fn otel(&self) -> Otel {
        Otel::new().meter(&self.provider.meter("test"))
    }

    /// Since the provider was created.
    fn take(&self) -> (Recorded, BTreeMap<String, (String, Vec<f64>)>) {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let (mut recorded, mut instruments) = (BTreeMap::new(), BTreeMap::new());
        for metrics in self.exporter.get_finished_metrics().unwrap() {
            for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
                let mut add = |attributes: Vec<&opentelemetry::KeyValue>, count, sum, bounds| {
                    let mut of: Vec<_> = attributes
                        .iter()
                        .map(|it| format!("{}={}", it.key, it.value))
                        .collect();
                    of.sort();
                    let at = format!("{} {}", metric.name(), of.join(" "));
                    assert!(
                        recorded
                            .insert(at.trim().to_owned(), (count, sum))
                            .is_none()
                    );
                    let about = (metric.unit().to_owned(), bounds);
                    instruments.insert(metric.name().to_owned(), about);
                };
                match metric.data() {
                    AggregatedMetrics::F64(MetricData::Histogram(data)) => {
                        for point in data.data_points() {
                            let bounds = point.bounds().collect();
                            add(
                                point.attributes().collect(),
                                point.count(),
                                point.sum(),
                                bounds,
                            );
                        }
                    }
                    AggregatedMetrics::U64(MetricData::Histogram(data)) => {
                        for point in data.data_points() {
                            let (sum, bounds) = (point.sum() as f64, point.bounds().collect());
                            add(point.attributes().collect(), point.count(), sum, bounds);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        (recorded, instruments)
    }
}

fn counts(recorded: &Recorded) -> Vec<(&str, u64)> {
    let counts = recorded
        .iter()
        .map(|(at, (count, _))| (at.as_str(), *count));
    counts.collect()
}

/// Without a subscriber for spans.
#[tokio::test(start_paused = true)]
async fn each_operation_is_recorded_once() {
    let metrics = Metrics::new();
    let request =
        ChatRequest::user("What is it?").with_context(Context::builder().agent("clerk").build());
    run(&agent(&metrics.otel()), request).await.unwrap();
    let (recorded, instruments) = metrics.take();
    let chat = "gen_ai.operation.name=chat gen_ai.provider.name";
    let expected = [
        (
            format!("gen_ai.client.operation.duration error.type=overloaded {chat}=first"),
            2,
        ),
        (
            format!("gen_ai.client.operation.duration {chat}=second gen_ai.response.model=m-2"),
            2,
        ),
        (
            format!("gen_ai.client.operation.duration {chat}=third gen_ai.response.model=m-3"),
            1,
        ),
        (
            format!(
                "gen_ai.client.operation.time_per_output_chunk {chat}=second gen_ai.response.model=m-2"
            ),
            2,
        ),
        (
            format!(
                "gen_ai.client.operation.time_to_first_chunk {chat}=second gen_ai.response.model=m-2"
            ),
            2,
        ),
        (
            format!(
                "gen_ai.client.operation.time_to_first_chunk {chat}=third gen_ai.response.model=m-3"
            ),
            1,
        ),
        (
            format!(
                "gen_ai.client.token.usage {chat}=second gen_ai.response.model=m-2 \
                 gen_ai.token.type=input"
            ),
            2,
        ),
        (
            format!(
                "gen_ai.client.token.usage {chat}=second gen_ai.response.model=m-2 \
                 gen_ai.token.type=output"
            ),
            2,
        ),
        (
            format!(
                "gen_ai.client.token.usage {chat}=third gen_ai.response.model=m-3 \
                 gen_ai.token.type=input"
            ),
            1,
        ),
        (
            format!(
                "gen_ai.client.token.usage {chat}=third gen_ai.response.model=m-3 \
                 gen_ai.token.type=output"
            ),
            1,
        ),
        (
            "gen_ai.execute_tool.duration gen_ai.agent.name=clerk gen_ai.tool.name=look".to_owned(),
            1,
        ),
        (
            "gen_ai.execute_tool.duration gen_ai.agent.name=clerk gen_ai.tool.name=research"
                .to_owned(),
            1,
        ),
        (
            "gen_ai.invoke_agent.duration gen_ai.agent.name=clerk".to_owned(),
            1,
        ),
        (
            "gen_ai.invoke_agent.duration gen_ai.agent.name=research".to_owned(),
            1,
        ),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(at, count)| (at.as_str(), *count))
        .collect();
    assert_eq!(counts(&recorded), expected);
    let tokens: f64 = recorded
        .iter()
        .filter(|(at, _)| at.starts_with("gen_ai.client.token.usage"))
        .map(|(_, (_, sum))| sum)
        .sum();
    assert_eq!(tokens, 307. + 53.);

    // The table of the module's page has the same names and units.
    let page = include_str!("../../../src/otel/mod.rs");
    for (name, (unit, bounds)) in &instruments {
        let row = format!("| `{name}` | `{unit}` |");
        assert!(page.contains(&row), "{row}");
        let (first, last) = match name.as_str() {
            "gen_ai.client.token.usage" => (1., 67_108_864.),
            "gen_ai.invoke_agent.duration" => (0.1, 409.6),
            _ => (0.01, 81.92),
        };
        assert_eq!((bounds.first(), bounds.last()), (Some(&first), Some(&last)));
    }
    assert_eq!(instruments.len(), 6);
}

#[tokio::test]
async fn times_are_those_of_the_runs_clock() {
    let metrics = Metrics::new();
    let environment = TestEnvironment::new();
    let model = ScriptedModel::new()
        .sleep(Duration::from_millis(500))
        .text("a")
        .sleep(Duration::from_millis(250))
        .text("b");
    let mut call = Box::pin(
        metrics
            .otel()
            .model()
            .layer(model)
            .oneshot(environment.request("hi")),
    );
    assert!((&mut call).now_or_never().is_none());
    environment.advance(Duration::from_millis(500));
    let mut body = Box::pin(call.await.unwrap().body);
    while body.next().now_or_never().flatten().is_some() {}
    environment.advance(Duration::from_millis(250));
    while body.next().await.is_some() {}
    let (recorded, _) = metrics.take();
    let sums: Vec<_> = recorded
        .iter()
        .map(|(at, (_, sum))| (at.split(' ').next().unwrap(), *sum))
        .collect();
    assert_eq!(
        sums,
        [
            ("gen_ai.client.operation.duration", 0.75),
            ("gen_ai.client.operation.time_per_output_chunk", 0.25),
            ("gen_ai.client.operation.time_to_first_chunk", 0.5),
            ("gen_ai.client.token.usage", 1.),
            ("gen_ai.client.token.usage", 1.),
        ]
    );
}

#[tokio::test]
async fn only_content_has_chunk_times() {
    let metrics = Metrics::new();
    let environment = TestEnvironment::new();
    let pause = Duration::from_millis(100);
    let model = ScriptedModel::new()
        .event(Event::Reset)
        .text("a")
        .sleep(pause)
        .event(Event::PartEnd(Box::default()))
        .sleep(pause)
        .text("b")
        .sleep(pause)
        .event(Event::PartEnd(Box::default()));
    let model = metrics.otel().model().layer(model);
    let call = model.oneshot(environment.request("hi"));
    let mut body = Box::pin(call.await.unwrap().body);
    loop {
        match body.next().now_or_never() {
            Some(Some(item)) => drop(item.unwrap()),
            Some(None) => break,
            None => environment.advance(pause),
        }
    }
    let (recorded, _) = metrics.take();
    let name = "gen_ai.client.operation.time_per_output_chunk";
    let times: Vec<_> = recorded
        .iter()
        .filter(|(at, _)| at.starts_with(name))
        .map(|(_, values)| *values)
        .collect();
    assert_eq!(times, [(1, 0.2)]);
}

#[tokio::test]
async fn tool_calls_that_are_not_executed_have_no_metrics() {
    let metrics = Metrics::new();
    let otel = metrics.otel();
    settled::run(|tools| tools.hooks(otel.tool())).await;
    let context = Context::new();
    let done = service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::done("")));
    let done = otel.tool().layer(done);
    done.clone().oneshot(settled::call(&context)).await.unwrap();
    let waits = Error::new(ErrorKind::Waiting, "waits");
    let waits = service_fn(async |_: ToolCall| Err::<ToolOutcome, _>(waits.clone()));
    let waits = otel.tool().layer(waits).oneshot(ends::call(&context));
    waits.await.unwrap_err();
    assert_eq!(counts(&metrics.take().0), []);

    done.oneshot(ends::call(&context)).await.unwrap();
    let name = "gen_ai.execute_tool.duration gen_ai.tool.name=_OTHER";
    assert_eq!(counts(&metrics.take().0), [(name, 1)]);
}

#[tokio::test]
async fn dropped_and_failed_operations_are_told_apart() {
    let metrics = Metrics::new();
    let layer = metrics.otel().model();
    let mut never = layer.layer(ScriptedModel::new().never());
    drop(never.ready().await.unwrap().call(ChatRequest::user("hi")));
    let agent = metrics.otel().run().layer(
        AgentLayer::new(NoTools)
            .layer(ScriptedModel::new().error(Error::new(ErrorKind::Server, "no"))),
    );
    agent
        .oneshot(ChatRequest::user("hi"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(
        counts(&metrics.take().0),
        [
            (
                "gen_ai.client.operation.duration error.type=cancelled gen_ai.operation.name=chat \
                 gen_ai.provider.name=_OTHER",
                1
            ),
            ("gen_ai.invoke_agent.duration error.type=server", 1),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_at_any_await_is_recorded_once() {
    let metrics = Metrics::new();
    let otel = metrics.otel();
    let make = || {
        let agent = ends::waiting(&otel);
        let context = Context::builder().agent("clerk").build();
        let request = ChatRequest::user("hi").with_context(context);
        async move { run(&agent, request).await }
    };
    let recorded = |name: &str, of: &str| -> u64 {
        let (recorded, _) = metrics.take();
        let these = recorded
            .iter()
            .filter(|(at, _)| at.starts_with(name) && at.contains(of));
        these.map(|(_, (count, _))| count).sum()
    };
    let runs = || recorded("gen_ai.invoke_agent.duration", "=clerk");
    let calls = || recorded("gen_ai.client.operation.duration", "");
    let tools = || recorded("gen_ai.execute_tool.duration", "");
    // One run for each number of polls but zero.
    let drops = drop_at_each_wait(make, async |polls| assert_eq!(runs(), polls as u64)).await;
    assert!(drops > 5);

    let before = (calls(), tools());
    make().await.unwrap();
    assert_eq!((calls(), tools()), (before.0 + 4, before.1 + 2));
}
