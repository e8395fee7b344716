//! Log lines of runs, model calls and tool calls.

use crate::settled;
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, Clearance, Error, ErrorKind, NoTools, Reply,
    ResponseHead, RoundCall, ToolCall, ToolCallPart, ToolOutcome, ToolSpec, Transcript, Usage,
    describe::describe,
};
use concentric_layers::{LogLayer, config::Registry};
use concentric_test::{
    Pace, ScriptedModel, TestEnvironment, check_layer, check_tool_layer, drop_at_each_wait,
};
use concentric_tools::{Approval, NoArguments, Toolset, agent_tool, tool};
use futures_util::{FutureExt, StreamExt};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{
    InMemorySpanExporter, InMemorySpanExporterBuilder, SdkTracerProvider, SpanData,
};
use serde_json::json;
use std::{
    io,
    sync::{Arc, Mutex, Once},
    time::Duration,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::{Layer as _, filter::LevelFilter, layer::SubscriberExt};

/// The lines that one thread logs, without times.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The spans that one thread records.
pub(crate) struct Spans {
    exporter: InMemorySpanExporter,
    // Nothing is exported once it is dropped.
    _provider: SdkTracerProvider,
}

impl Spans {
    pub(crate) fn finished(&self) -> Vec<SpanData> {
        self.exporter.get_finished_spans().unwrap()
    }
}

impl Lines {
    pub(crate) fn of_thread(level: Level) -> (Self, DefaultGuard) {
        let (lines, _, guard) = Self::with_spans(level);
        (lines, guard)
    }

    /// Also records spans, of all levels.
    pub(crate) fn with_spans(level: Level) -> (Self, Spans, DefaultGuard) {
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| {
            // With a single subscriber, tracing remembers for all threads what it answered one of them.
            let none = tracing::subscriber::NoSubscriber::default();
            let _ = tracing::subscriber::set_global_default(none);
        });
        let lines = Self::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone());
        let exporter = InMemorySpanExporterBuilder::new().build();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let subscriber = tracing_subscriber::registry()
            .with(log.with_filter(LevelFilter::from_level(level)))
            .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")));
        let guard = tracing::subscriber::set_default(subscriber);
        let spans = Spans {
            exporter,
            _provider: provider,
        };
        (lines, spans, guard)
    }

    /// Everything that was logged, also by others than the layer.
    pub(crate) fn take_all(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        let text = self.take_all();
        let lines = text.lines().filter(|line| line.contains("concentric::log"));
        lines.map(|line| line.trim().to_owned()).collect()
    }
}

const CANARY: &str = "CANARY";

async fn run(layer: &LogLayer) -> Result<(), Error> {
    let look = tool("look", "Looks.", |NoArguments {}| async { CANARY });
    let model = ScriptedModel::new()
        .head(ResponseHead::new("test", "m-1"))
        .tool_call("look", json!({}))
        .usage(Usage::new(10, 2))
        .then()
        .text(format!("{CANARY} 2"))
        .usage(Usage::new(20, 3));
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(AgentLayer::new(
            Toolset::new().tool(look).layer(layer.clone()),
        ))
        .layer(layer.clone())
        .service(model);
    let request = TestEnvironment::new().request(format!("{CANARY} 1"));
    agent.oneshot(request).await?.collect().await?;
    Ok(())
}

/// The golden lines of one run, with the ids of the test environment shortened.
fn shape(lines: &[String]) -> Vec<String> {
    let short = |line: &String| {
        let words = line.split(' ').filter(|word| {
            !["run=", "call=", "thread="]
                .iter()
                .any(|id| word.starts_with(id))
        });
        words
            .collect::<Vec<_>>()
            .join(" ")
            .replace(" concentric::log:", "")
    };
    lines.iter().map(short).collect()
}

/// The lines of the preset `standard` for [`run`].
const STANDARD: &[&str] = &[
    "INFO run started turns=1 tools=0",
    "INFO model call started step=0 turns=1 tools=1",
    "INFO model call ended step=0 provider=\"test\" model=\"m-1\" outcome=\"completed\" \
             reason=\"tool_calls\" first_ms=0 duration_ms=0 input_tokens=10 output_tokens=2",
    "INFO tool call started step=0 tool=\"look\" arguments_bytes=2",
    "INFO tool call ended step=0 tool=\"look\" outcome=\"done\" result_bytes=6 duration_ms=0",
    "INFO model call started step=1 turns=2 tools=1",
    "INFO model call ended step=1 outcome=\"completed\" reason=\"stop\" first_ms=0 \
             duration_ms=0 input_tokens=20 output_tokens=3",
    "INFO run ended provider=\"test\" model=\"m-1\" outcome=\"completed\" reason=\"stop\" \
             first_ms=0 duration_ms=0 input_tokens=30 output_tokens=5",
];

#[tokio::test]
async fn s075_standard_logs_starts_and_ends() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    run(&LogLayer::standard()).await.unwrap();
    assert_eq!(shape(&lines.take()), STANDARD);
}

#[tokio::test]
async fn presets_differ_in_starts_and_options() {
    let (lines, _guard) = Lines::of_thread(Level::TRACE);
    run(&LogLayer::minimal()).await.unwrap();
    let ends = STANDARD.iter().filter(|line| line.contains(" ended "));
    assert_eq!(shape(&lines.take()), ends.copied().collect::<Vec<_>>());

    run(&LogLayer::verbose()).await.unwrap();
    let mut verbose: Vec<_> = STANDARD.iter().map(|line| (*line).to_owned()).collect();
    for (at, step) in [(2, 0), (7, 1)] {
        let options = format!("DEBUG model call options step={step} system_segments=0");
        verbose.insert(at, options);
    }
    assert_eq!(shape(&lines.take()), verbose);
}

#[tokio::test]
async fn f055_no_line_has_content_unless_it_is_opted_in() {
    let (lines, _guard) = Lines::of_thread(Level::TRACE);
    for layer in [
        LogLayer::minimal(),
        LogLayer::standard(),
        LogLayer::verbose(),
    ] {
        run(&layer).await.unwrap();
        let failing = ScriptedModel::new().error(Error::new(ErrorKind::Server, CANARY));
        let _ = layer
            .layer(failing)
            .oneshot(ChatRequest::user(CANARY))
            .await;
        let lines = lines.take();
        assert!(!lines.is_empty());
        assert!(!lines.iter().any(|line| line.contains(CANARY)), "{lines:?}");
    }

    run(&LogLayer::standard().content(100)).await.unwrap();
    let logged = lines.take().join("\n");
    for field in [
        "input=\"CANARY 1\"",
        "result=\"CANARY\"",
        "output=\"CANARY 2\"",
        "arguments=\"{}\"",
    ] {
        assert!(logged.contains(field), "{field} in {logged}");
    }
}

#[tokio::test]
async fn content_is_redacted_before_it_is_cut() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let layer = LogLayer::standard().content(4);
    let layer = layer.redact(|text| text.replace(CANARY, "é[x]"));
    run(&layer).await.unwrap();
    let logged = lines.take().join("\n");
    assert!(
        !logged.contains("CAN") && logged.contains("input=\"é[x]\""),
        "{logged}"
    );
}

#[tokio::test]
async fn credentials_are_not_logged_with_content() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    // In two parts, so that no scanner takes it for a real one.
    let key = ["sk-ant-api03-", &"aB3dE6gH9k".repeat(9), "AA"].concat();
    let model = ScriptedModel::new()
        .text(format!("Your key is {key}."))
        .repeat();
    let agent = AgentLayer::new(NoTools).layer(model);
    let asked = || ChatRequest::user(format!("My key is {key}."));
    for layer in [
        LogLayer::standard().content(1_000),
        LogLayer::standard().content(1_000).redact(str::to_owned),
    ] {
        let run = layer.layer(agent.clone()).oneshot(asked());
        run.await.unwrap().collect().await.unwrap();
        let logged = lines.take().join("\n");
        assert!(!logged.contains("aB3dE6gH9k"), "{logged}");
        assert!(logged.contains("My key is "), "{logged}");
    }
}

#[tokio::test]
async fn escapes_do_not_hide_what_is_redacted() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let key = ["sk-ant-api03-", &"aB3dE6gH9k".repeat(9), "AA"].concat();
    // The first letters of both are escaped, as a model may write them.
    let escaped = format!(
        r#"{{"key": "\u0073{}", "\u0043ANARY": 1, "a": "x\ny"}}"#,
        &key[1..]
    );
    let tool = || {
        let result = ToolOutcome::done(escaped.clone());
        service_fn(move |_: ToolCall| std::future::ready(Ok::<_, Error>(result.clone())))
    };
    let call = || {
        let part = ToolCallPart::new(CallId::new("c1"), "look", escaped.as_str());
        let call = RoundCall::new(0, part);
        let context = TestEnvironment::new().context();
        ToolCall::of_round(call, Clearance::Ungated, Transcript::new(), &context)
    };
    let layer = LogLayer::standard().content(1_000);
    let layer = layer.redact(|text| text.replace(CANARY, "[x]"));
    layer.layer(tool()).oneshot(call()).await.unwrap();
    let logged = lines.take().join("\n");
    assert!(
        !logged.contains("aB3dE6gH9k") && !logged.contains("ANARY"),
        "{logged}"
    );
    // In the arguments and in the result.
    assert_eq!(logged.matches("[x]").count(), 2, "{logged}");
    // In the input and in the output of a run, such as a typed answer.
    let model = ScriptedModel::new().text(escaped.as_str());
    let agent = layer.layer(AgentLayer::new(NoTools).layer(model));
    let answer = agent.oneshot(ChatRequest::user(escaped.as_str())).await;
    answer.unwrap().collect().await.unwrap();
    let logged = lines.take().join("\n");
    assert!(
        !logged.contains("aB3dE6gH9k") && !logged.contains("ANARY"),
        "{logged}"
    );
    assert_eq!(logged.matches("[x]").count(), 2, "{logged}");
    // A rule for the text as it is written.
    let spaced = r#"{"a": "x\ny", "pin": "1234"}"#;
    let by_text = LogLayer::standard().content(1_000);
    let by_text = by_text.redact(|text| text.replace(r#""pin": "1234""#, r#""pin": "[x]""#));
    let model = ScriptedModel::new().text("Yes.");
    let agent = by_text.layer(AgentLayer::new(NoTools).layer(model));
    let answer = agent.oneshot(ChatRequest::user(spaced)).await;
    answer.unwrap().collect().await.unwrap();
    let logged = lines.take().join("\n");
    assert!(
        logged.contains("[x]") && !logged.contains("1234"),
        "{logged}"
    );
    // A text that only looks like JSON is redacted as it is.
    let tool = service_fn(|_: ToolCall| async {
        Ok::<_, Error>(ToolOutcome::done(format!("{{\\n {CANARY}")))
    });
    layer.layer(tool).oneshot(call()).await.unwrap();
    let logged = lines.take().join("\n");
    assert!(!logged.contains("ANARY"), "{logged}");
}

#[tokio::test]
async fn c125_text_whose_redaction_panics_is_not_logged() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let layer = LogLayer::standard().content(100);
    run(&layer.redact(|_| panic!("of the test"))).await.unwrap();
    let logged = lines.take().join("\n");
    assert!(
        !logged.contains(CANARY) && logged.contains("input=\"[redaction_failed]\""),
        "{logged}"
    );
}

#[tokio::test]
async fn a_long_result_is_cut_at_a_character() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let tool =
        service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::done("é".repeat(5 << 20))));
    let tool = LogLayer::standard().content(1_000).layer(tool);
    tool.oneshot(call(&TestEnvironment::new())).await.unwrap();
    let ended = lines.take().pop().unwrap();
    assert!(ended.contains("result_bytes=10485760"));
    assert_eq!(ended.matches('é').count(), 1_000);
}

fn call(environment: &TestEnvironment) -> ToolCall {
    let part = ToolCallPart::new(CallId::new("c1"), "look", json!({}));
    let mut call = RoundCall::new(0, part);
    call.spec = Some(Arc::new(ToolSpec::new(
        "look",
        "",
        json!({"type": "object"}),
    )));
    let context = environment.context();
    ToolCall::of_round(call, Clearance::Ungated, Transcript::new(), &context)
}

#[tokio::test]
async fn each_end_is_logged_once_at_its_level() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let layer = LogLayer::minimal();
    let error = |kind| Error::new(kind, "it broke");
    for (model, expected) in [
        (
            ScriptedModel::new().text("hi"),
            "INFO run ended outcome=\"completed\"",
        ),
        (
            ScriptedModel::new().error(error(ErrorKind::RateLimited)),
            "WARN run ended outcome=\"failed\"",
        ),
        (
            ScriptedModel::new()
                .text("hi")
                .error(error(ErrorKind::Permission)),
            "ERROR run ended outcome=\"failed\"",
        ),
        (
            ScriptedModel::new().error(error(ErrorKind::Cancelled)),
            "INFO run ended outcome=\"failed\"",
        ),
        (
            ScriptedModel::new().text("hi").end_early(),
            "WARN run ended outcome=\"truncated\"",
        ),
    ] {
        if let Ok(response) = layer.layer(model).oneshot(ChatRequest::user("hi")).await {
            let _: Vec<_> = response.body.collect().await;
        }
        let ends = shape(&lines.take());
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert!(ends[0].starts_with(expected), "{ends:?}");
    }

    // Dropped as a future that was never polled, as one that was, and as a body.
    let mut model = layer.layer(ScriptedModel::new().never().repeat());
    drop(model.ready().await.unwrap().call(ChatRequest::user("hi")));
    let mut call = Box::pin(model.ready().await.unwrap().call(ChatRequest::user("hi")));
    assert!((&mut call).now_or_never().is_none());
    drop(call);
    let model = layer.layer(ScriptedModel::new().text("hi").never());
    drop(model.oneshot(ChatRequest::user("hi")).await.unwrap());
    let ends = shape(&lines.take());
    assert_eq!(ends.len(), 3);
    assert!(
        ends.iter()
            .all(|end| end.starts_with("INFO run ended outcome=\"dropped\"")),
        "{ends:?}"
    );
}

#[tokio::test]
async fn each_outcome_of_a_tool_call_has_its_level() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let environment = TestEnvironment::new();
    for (result, expected) in [
        (
            Ok(ToolOutcome::failed("no")),
            "WARN tool call ended step=0 tool=\"look\" outcome=\"failed\"",
        ),
        (
            Ok(ToolOutcome::denied("no")),
            "INFO tool call ended step=0 tool=\"look\" outcome=\"denied\"",
        ),
        (
            Err(Error::new(ErrorKind::Waiting, "waits")),
            "INFO tool call ended step=0 tool=\"look\" outcome=\"waiting\"",
        ),
        (
            Err(Error::new(ErrorKind::Tool, "broke").with_code("b")),
            "ERROR tool call ended step=0 tool=\"look\" outcome=\"failed\" kind=\"tool\" code=\"b\"",
        ),
        // Not a name, so perhaps the text of a provider.
        (
            Err(Error::new(ErrorKind::Tool, "broke").with_code("b is secret")),
            "ERROR tool call ended step=0 tool=\"look\" outcome=\"failed\" kind=\"tool\"",
        ),
    ] {
        let tool = service_fn(async |_: ToolCall| result.clone());
        let _ = LogLayer::minimal()
            .layer(tool)
            .oneshot(call(&environment))
            .await;
        let ends = shape(&lines.take());
        assert!(ends.len() == 1 && ends[0].starts_with(expected), "{ends:?}");
    }
}

/// An agent with an agent as a tool, each with the layer around its runs, model calls and tool calls.
fn nested(layer: &LogLayer, outer: ScriptedModel, inner: ScriptedModel) -> BoxModel {
    let agent = |tools: Toolset, model: ScriptedModel| {
        let agent = AgentLayer::new(tools.hooks(layer.clone()));
        let model = layer.layer(model.paced(Pace::NextTick));
        BoxModel::new(layer.layer(agent.layer(model)))
    };
    let inner = agent(Toolset::new(), inner.text("Found.").repeat());
    agent(Toolset::new().tool(agent_tool("ask", "", inner)), outer)
}

fn asks(model: ScriptedModel) -> ScriptedModel {
    model.tool_call("ask", json!({"task": "t"})).then()
}

/// The level and the message of each line of each run, with the runs in the order of their first lines.
fn by_run(lines: &[String]) -> Vec<Vec<String>> {
    let mut runs: Vec<(&str, Vec<String>)> = Vec::new();
    for (line, short) in lines.iter().zip(shape(lines)) {
        let run = line
            .split(' ')
            .find(|word| word.starts_with("run="))
            .unwrap();
        let message = short.split(' ').take_while(|word| !word.contains('='));
        let message = message.collect::<Vec<_>>().join(" ");
        match runs.iter_mut().find(|(of, _)| *of == run) {
            Some((_, lines)) => lines.push(message),
            None => runs.push((run, vec![message])),
        }
    }
    runs.into_iter().map(|(_, lines)| lines).collect()
}

#[tokio::test(start_paused = true)]
async fn concurrent_and_nested_runs_have_lines_of_their_own() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let outer = asks(asks(ScriptedModel::new()));
    let outer = outer.text("Done.").then().text("Done.");
    let agent = nested(&LogLayer::standard(), outer, ScriptedModel::new());
    let environment = TestEnvironment::new();
    let run = async |request: ChatRequest| agent.clone().oneshot(request).await?.text().await;
    let (one, other) = tokio::join!(run(environment.request("a")), run(environment.request("b")));
    assert_eq!(
        (one.unwrap(), other.unwrap()),
        ("Done.".into(), "Done.".into())
    );
    let inner = ["INFO run started", "INFO model call started"];
    let inner = [&inner[..], &["INFO model call ended", "INFO run ended"]].concat();
    let step = &inner[1..3];
    let call = ["INFO tool call started", "INFO tool call ended"];
    let outer = [&inner[..1], step, &call, step, &inner[3..]].concat();
    let by_run = by_run(&lines.take());
    assert_eq!(by_run, [&outer[..], &outer, &inner, &inner]);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_logs_its_calls_as_resumed() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let layer = LogLayer::standard();
    let pay = tool("pay", "", |NoArguments {}| async { "paid" });
    let tools = Toolset::new().tool(pay).gate(Approval::for_tools("pay"));
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let model = model.then().text("Paid.");
    let agent = AgentLayer::new(tools.hooks(layer.clone())).layer(model);
    let agent = BoxModel::new(layer.layer(agent));
    let run = async |request| {
        let response = agent.clone().oneshot(request).await.unwrap();
        let answer = response.collect().await.unwrap();
        (answer, lines.take())
    };
    let (asked, logged) = run(ChatRequest::user("hi")).await;
    assert!(
        logged.last().unwrap().contains("outcome=\"interrupted\""),
        "{logged:?}"
    );
    let state = *asked.finish.state.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let (_, logged) = run(ChatRequest::resume(state, vec![reply])).await;
    let expected = [
        "INFO run started",
        "INFO tool call started",
        "INFO tool call ended",
        "INFO run ended",
    ];
    assert_eq!(by_run(&logged), [expected]);
    assert!(logged[1].contains("resumed=true"), "{logged:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_at_any_point_has_a_line_for_its_end() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let environment = TestEnvironment::new();
    let run = || {
        let outer = asks(ScriptedModel::new()).text("Done.");
        let agent = nested(&LogLayer::standard(), outer, ScriptedModel::new());
        let request = environment.request("hi");
        async move { agent.oneshot(request).await?.text().await }
    };
    let drops = drop_at_each_wait(run, async |_| {
        let lines = lines.take();
        let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!(count(" started "), count(" ended "), "{lines:?}");
    });
    assert!(drops.await > 6);
}

#[tokio::test]
async fn settled_calls_are_marked() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let call = settled::call(&TestEnvironment::new().context());
    let tool = service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::denied("no")));
    LogLayer::minimal().layer(tool).oneshot(call).await.unwrap();
    let line = lines.take().pop().unwrap();
    assert!(line.contains("settled=true outcome=\"denied\""), "{line}");
}

#[tokio::test]
async fn calls_of_a_toolset_that_do_not_run_are_logged() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    settled::run(|tools| tools.hooks(LogLayer::standard())).await;
    let lines = lines.take();
    let has = |parts: [&str; 2]| {
        let of = |line: &&String| parts.iter().all(|part| line.contains(part));
        lines.iter().filter(of).count()
    };
    assert_eq!(has(["tool call started", "tool=\"pay\""]), 1, "{lines:?}");
    assert_eq!(has(["tool=\"pay\"", "settled=true outcome=\"denied\""]), 1);
    assert_eq!(
        has(["tool=\"_OTHER\"", "settled=true outcome=\"failed\""]),
        1
    );
    assert_eq!(has(["invented_name", ""]), 0);
}

#[tokio::test]
async fn times_are_those_of_the_runs_clock() {
    let (lines, _guard) = Lines::of_thread(Level::INFO);
    let environment = TestEnvironment::new();
    let model = ScriptedModel::new()
        .text("a")
        .sleep(Duration::from_millis(70))
        .text("b");
    let response = LogLayer::minimal()
        .layer(model)
        .oneshot(environment.request("hi"));
    let response = response.await.unwrap();
    let mut body = Box::pin(response.body);
    while let Some(item) = body.next().now_or_never().flatten() {
        item.unwrap();
    }
    environment.advance(Duration::from_millis(70));
    while body.next().await.is_some() {}
    let line = lines.take().pop().unwrap();
    assert!(line.contains("first_ms=0 duration_ms=70"), "{line}");
}

#[tokio::test]
async fn the_log_layer_keeps_the_contract_of_layers() {
    check_layer(LogLayer::verbose().content(10)).await;
    check_tool_layer(LogLayer::verbose().content(10)).await;
    let (_lines, _guard) = Lines::of_thread(Level::TRACE);
    check_layer(LogLayer::verbose().content(10)).await;
    check_tool_layer(LogLayer::verbose().content(10)).await;
}

#[test]
fn a_configured_log_layer_is_the_hand_built_one() {
    let registry = Registry::builtin();
    let at = |options: &str| {
        let layers = format!(r#"{{"layers": [{{"use": "log"{options}}}, {{"use": "agent"}}]}}"#);
        registry.json(&layers, NoTools)
    };
    let agent = at(r#", "options": {"preset": "verbose", "content": 10}"#).unwrap();
    let by_hand = ServiceBuilder::new()
        .layer(LogLayer::verbose())
        .layer(AgentLayer::new(NoTools))
        .service(ScriptedModel::new());
    assert_eq!(
        agent.layer(ScriptedModel::new()).describe(),
        describe(&by_hand)
    );
    assert!(at("").is_ok());
    assert!(at(r#", "options": {"preset": "loud"}"#).is_err());
}
