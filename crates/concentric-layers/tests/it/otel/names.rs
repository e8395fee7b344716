//! The names of attributes, against the table of the module's page.

use super::*;
use concentric_core::{Context, OutputSchema, ThreadId};
use std::collections::BTreeMap;

/// The levels of each attribute for `invoke_agent`, `chat` and `execute_tool`.
fn table() -> BTreeMap<&'static str, [&'static str; 3]> {
    let page = include_str!("../../../src/otel/attributes.md");
    let rows = page.lines().skip(2).map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`'), [cells[2], cells[3], cells[4]])
    });
    rows.collect()
}

/// The levels of the conventions, version 1.41.0: of the tables in `docs/gen-ai/gen-ai-spans.md` and
/// `gen-ai-agent-spans.md`, for the same spans.
fn conventions() -> BTreeMap<&'static str, [&'static str; 3]> {
    let data = include_str!("conventions-1.41.0.txt");
    let rows = data.lines().filter(|row| !row.starts_with('#')).map(|row| {
        let cells: Vec<_> = row.split(' ').collect();
        (cells[0], [cells[1], cells[2], cells[3]])
    });
    rows.collect()
}

fn place(span: &SpanData) -> usize {
    let places = ["invoke_agent", "chat", "execute_tool"];
    let operation = attribute(span, "gen_ai.operation.name").unwrap();
    let place = places.iter().position(|name| *name == operation).unwrap();
    assert!(span.name.starts_with(places[place]));
    place
}

#[test]
fn the_table_has_the_levels_of_the_conventions() {
    let conventions = conventions();
    for (name, levels) in table() {
        for (place, level) in levels.into_iter().enumerate() {
            let of_them = conventions.get(name).map_or("-", |levels| levels[place]);
            match level {
                "" => {}
                "own" => assert_eq!(of_them, "-", "{name}"),
                level => assert_eq!(level, of_them, "{name}"),
            }
            assert_ne!((level, of_them), ("", "required"), "{name}");
        }
    }
}

/// Fails if a span has an attribute that the table does not have, or lacks a required one.
fn check(spans: &[SpanData], with_content: bool) -> Vec<(usize, String)> {
    let table = table();
    let mut seen = Vec::new();
    for span in spans {
        let place = place(span);
        for name in span.attributes.iter().map(|it| it.key.as_str()) {
            if name == "target" || name == "level" {
                continue;
            }
            let level = table.get(name).map_or("", |levels| levels[place]);
            assert_ne!(level, "", "{name} of {} is not in the table", span.name);
            assert!(with_content || level != "opt-in", "{name} of {}", span.name);
            seen.push((place, name.to_owned()));
        }
        for (name, levels) in &table {
            let is_required = levels[place] == "required";
            assert!(!is_required || attribute(span, name).is_some(), "{name}");
        }
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn attributes_are_those_of_the_table() {
    let traces = Traces::of_thread();
    let mut seen = Vec::new();
    for with_content in [false, true] {
        let otel = Otel::new();
        let otel = if with_content {
            otel.content(1_000)
        } else {
            otel
        };
        let context = Context::builder()
            .agent("clerk")
            .thread_id(ThreadId::new("t1"))
            .build();
        let mut request = ChatRequest::user("What is it?")
            .with_context(context)
            .with_system("Be brief.");
        let options = request.options_mut();
        options.model = Some("m-0".into());
        options.seed = Some(7);
        options.frequency_penalty = Some(0.5);
        options.presence_penalty = Some(0.25);
        options.temperature = Some(1.0);
        options.top_p = Some(0.5);
        options.max_output_tokens = Some(100);
        options.stop = vec!["END".into()];
        options.output_schema = Some(OutputSchema::new("answer", json!({"type": "object"})));
        run(&agent(&otel), request).await.unwrap();
        let spans = traces.take();
        seen.extend(check(&spans, with_content));
        let failed = spans
            .iter()
            .find(|span| span.status != Status::Unset)
            .unwrap();
        // The second model has a name of its own.
        assert_eq!(failed.name, "chat m-0");
        assert_eq!(attribute(failed, "gen_ai.provider.name").unwrap(), "first");
        assert_eq!(attribute(failed, "error.type").unwrap(), "overloaded");
        let answered = spans.iter().rfind(|span| span.name == "chat m-2").unwrap();
        assert_eq!(attribute(answered, "gen_ai.response.model").unwrap(), "m-2");
        let reasons = attribute(answered, "gen_ai.response.finish_reasons");
        assert_eq!(reasons.unwrap(), "[\"stop\"]");
    }
    // What this run does not have: other tests show it.
    let rest = [
        "gen_ai.response.id",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.reasoning.output_tokens",
        "error.type",
        "concentric.error.code",
        "concentric.effects",
        "concentric.cancel_reason",
        "concentric.interrupts",
        "concentric.resumed",
        "concentric.cached",
        "concentric.settled",
    ];
    for (name, levels) in table() {
        for (place, level) in levels.into_iter().enumerate() {
            let is_seen = seen.contains(&(place, name.to_owned()));
            let expected = !level.is_empty();
            assert!(
                is_seen || !expected || rest.contains(&name),
                "{name} {place}"
            );
        }
    }
}

#[tokio::test]
async fn facts_of_the_answer_are_recorded() {
    let traces = Traces::of_thread();
    let mut head = ResponseHead::new("p", "m");
    head.id = Some("resp-1".into());
    let mut usage = Usage::new(100, 20);
    usage.set_cached_input_tokens(Some(60));
    usage.set_cache_write_tokens(Some(10));
    usage.set_reasoning_tokens(Some(5));
    let agent = ServiceBuilder::new()
        .layer(Otel::new().run())
        .layer(AgentLayer::new(concentric_core::NoTools))
        .layer(Otel::new().model())
        .service(ScriptedModel::new().head(head).text("hi").usage(usage));
    let agent = BoxModel::new(agent);
    run(&agent, ChatRequest::user("hi")).await.unwrap();
    let spans = traces.take();
    check(&spans, false);
    let chat = named(&spans, "chat m");
    for (name, value) in [
        ("gen_ai.response.id", "resp-1"),
        ("gen_ai.usage.cache_read.input_tokens", "60"),
        ("gen_ai.usage.cache_creation.input_tokens", "10"),
        ("gen_ai.usage.reasoning.output_tokens", "5"),
    ] {
        assert_eq!(attribute(chat, name).unwrap(), value);
    }
    let root = named(&spans, "invoke_agent");
    let cached = attribute(root, "gen_ai.usage.cache_read.input_tokens");
    assert_eq!(cached.unwrap(), "60");
    assert_eq!(attribute(root, "gen_ai.provider.name").unwrap(), "p");
}

#[tokio::test]
async fn a_provider_that_is_unknown_has_a_name() {
    let traces = Traces::of_thread();
    let model = ScriptedModel::new().error(Error::new(ErrorKind::Connection, "no"));
    let agent = BoxModel::new(tower::Layer::layer(&Otel::new().model(), model));
    run(&agent, ChatRequest::user("hi")).await.unwrap_err();
    let spans = traces.take();
    check(&spans, false);
    assert_eq!(
        attribute(&spans[0], "gen_ai.provider.name").unwrap(),
        "_OTHER"
    );
}
