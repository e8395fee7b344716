use super::*;
use concentric::{
    AgentLayer, Message, ToolChoice, ToolOutcome, ToolSpec,
    message::ToolResult,
    tools::{Toolset, tool},
    transcript::Round,
};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{Layer, ServiceExt};

fn weather() -> ToolSpec {
    let schema = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    }});
    ToolSpec::new("weather", "Reports the weather in a city.", schema)
}

fn add() -> ToolSpec {
    let number = json!({"type": "number"});
    let schema =
        json!({"type": "object", "required": ["a", "b"], "properties": {"a": number, "b": number}});
    ToolSpec::new("add", "Adds two numbers.", schema)
}

fn read() -> ToolSpec {
    let schema = json!({"type": "object", "required": ["path"], "properties": {
        "path": {"type": "string"},
        "max_lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }});
    let mut spec = ToolSpec::new("open_document", "Opens a document.", schema);
    spec.annotations = concentric::call::Annotations::read_only();
    spec
}

fn list() -> ToolSpec {
    let mut spec = ToolSpec::new(
        "documents",
        "Lists all documents in the directory.",
        json!({"type": "object"}),
    );
    spec.annotations = concentric::call::Annotations::read_only();
    spec
}

fn ask(question: &str, tools: &[ToolSpec]) -> ChatRequest {
    let mut request = ChatRequest::user(question);
    request.tools = tools.iter().cloned().map(Arc::new).collect();
    request
}

/// The calls of the next step, as `(tool, arguments)`.
fn calls(request: &ChatRequest) -> Vec<(String, Value)> {
    match plan::next(request) {
        Plan::Call(calls) => calls
            .into_iter()
            .map(|c| (c.tool.to_string(), Value::Object(c.arguments)))
            .collect(),
        Plan::Say(_) => Vec::new(),
    }
}

fn answer_text(request: &ChatRequest) -> String {
    match plan::next(request) {
        Plan::Say(text) => text,
        Plan::Call(calls) => panic!("unexpected calls: {calls:?}"),
    }
}

/// Appends the round of the next step, with `outcome` for each call.
fn answer(request: &mut ChatRequest, outcome: &ToolOutcome) {
    let Plan::Call(calls) = plan::next(request) else {
        panic!("expected tool calls");
    };
    let mut parts = Vec::new();
    let mut results = Vec::new();
    for call in calls {
        let id = CallId::new(request.context.new_id("call_"));
        results.push(ToolResult::new(
            id.clone(),
            call.tool.clone(),
            outcome.clone(),
        ));
        let call = ToolCallPart::new(id, call.tool, Value::Object(call.arguments));
        parts.push(concentric::Part::new(PartKind::ToolCall(call)));
    }
    let message = Message::new(concentric::Role::Assistant, parts);
    request
        .transcript
        .push(Round::new(message, results).unwrap());
}

#[test]
fn finds_the_tool_and_its_arguments() {
    let tools = [weather(), add(), read(), list()];
    let cases = [
        (
            "What's the weather in Paris?",
            "weather",
            json!({"city": "Paris"}),
        ),
        (
            "Is it cold in New York, in fahrenheit?",
            "weather",
            json!({"city": "New York", "unit": "fahrenheit"}),
        ),
        ("what is 2 plus 3?", "add", json!({"a": 2, "b": 3})),
        ("2+3.5?", "add", json!({"a": 2, "b": 3.5})),
        (
            "Please open notes.md",
            "open_document",
            json!({"path": "notes.md"}),
        ),
        (
            "open the first 3 lines of a/b.txt.",
            "open_document",
            json!({"path": "a/b.txt", "max_lines": 3}),
        ),
        ("what is in this directory?", "documents", json!({})),
    ];
    for (question, name, arguments) in cases {
        let expected = vec![(name.to_owned(), arguments)];
        assert_eq!(calls(&ask(question, &tools)), expected, "{question}");
    }
}

#[test]
fn makes_parallel_calls_if_allowed() {
    let mut request = ask("the weather in Paris and Oslo", &[weather(), add()]);
    let city = |name: &str| ("weather".to_owned(), json!({"city": name}));
    assert_eq!(calls(&request), [city("Paris"), city("Oslo")]);
    request.options_mut().parallel_tool_calls = Some(false);
    assert_eq!(calls(&request), [city("Paris")]);
    answer(&mut request, &ToolOutcome::done("rain"));
    assert_eq!(calls(&request), [city("Oslo")]);

    let both = ask(
        "How is the weather in Rome, and what is 4 plus 5?",
        &[weather(), add()],
    );
    let names: Vec<String> = calls(&both).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&"weather".to_owned()) && names.contains(&"add".to_owned()));
}

#[test]
fn searches_for_a_missing_path() {
    let mut request = ask("what does the manual say?", &[read(), list()]);
    assert_eq!(calls(&request), [("documents".to_owned(), json!({}))]);
    answer(
        &mut request,
        &ToolOutcome::done("docs/\ndocs/manual.txt (9 bytes)\nother.txt (2 bytes)"),
    );
    let open = (
        "open_document".to_owned(),
        json!({"path": "docs/manual.txt"}),
    );
    assert_eq!(calls(&request), [open]);
    answer(
        &mut request,
        &ToolOutcome::done("# Care\n\nKeep it dry.\n\n# Use\n\nTurn it on."),
    );
    let text = answer_text(&request);
    assert!(
        text.contains("headings: Care, Use") && text.contains("Keep it dry."),
        "{text}"
    );
}

#[test]
fn answers_from_results() {
    let mut request = ask("the weather in Paris", &[weather()]);
    answer(
        &mut request,
        &ToolOutcome::done(r#"{"sky": "grey", "degrees": 7}"#),
    );
    let text = answer_text(&request);
    assert!(
        text.contains("sky: grey") && text.contains("degrees: 7"),
        "{text}"
    );

    let mut failed = ask("the weather in Paris", &[weather()]);
    answer(&mut failed, &ToolOutcome::failed("No satellite."));
    assert!(answer_text(&failed).contains("No satellite."));
}

#[test]
fn reports_missing_arguments_and_tools() {
    assert!(answer_text(&ask("hello", &[weather()])).contains("stand-in"));
    assert!(answer_text(&ask("hello", &[])).contains("no tools"));
    assert!(answer_text(&ask("how is the weather?", &[weather()])).contains("needs a `city`"));
    assert!(answer_text(&ask("", &[weather()])).contains("did not find a question"));
}

#[test]
fn follows_the_tool_choice() {
    let mut request = ask("the weather in Paris", &[weather(), add()]);
    request.options_mut().tool_choice = Some(ToolChoice::None);
    assert!(calls(&request).is_empty());
    request.options_mut().tool_choice = Some(ToolChoice::Tool("add".into()));
    assert_eq!(
        calls(&request),
        [("add".to_owned(), json!({"a": 0, "b": 0}))]
    );
    let mut greeting = ask("hello", &[weather()]);
    greeting.options_mut().tool_choice = Some(ToolChoice::Required);
    assert_eq!(calls(&greeting).len(), 1);
}

#[test]
fn calls_a_tool_with_side_effects_only_if_named() {
    let wipe = ToolSpec::new(
        "wipe",
        "Works on the disk of the computer.",
        json!({"type": "object"}),
    );
    assert!(
        calls(&ask(
            "how large is the disk of the computer?",
            std::slice::from_ref(&wipe)
        ))
        .is_empty()
    );
    assert_eq!(calls(&ask("wipe the disk", &[wipe])).len(), 1);
}

fn write() -> ToolSpec {
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "required": ["path", "text"],
        "properties": {"path": text, "text": text}});
    ToolSpec::new("write_file", "Writes a text to a file.", schema)
}

#[test]
fn writes_the_given_text_verbatim() {
    let tools = [read(), list(), write()];
    for (question, path, text) in [
        ("write hello to note.txt", "note.txt", "hello"),
        (
            "Please save the list of things to do into a/todo.md.",
            "a/todo.md",
            "the list of things to do",
        ),
        ("write \"to be, or not\" to x.txt", "x.txt", "to be, or not"),
    ] {
        let expected = ("write_file".to_owned(), json!({"path": path, "text": text}));
        assert_eq!(calls(&ask(question, &tools)), [expected], "{question}");
    }
    assert!(
        calls(&ask("what does note.txt say?", &tools))
            .iter()
            .all(|(name, _)| name != "write_file")
    );
}

#[test]
fn writes_once_for_every_outcome() {
    for outcome in [
        ToolOutcome::done("Wrote 5 bytes to note.txt."),
        ToolOutcome::denied("Not today."),
        ToolOutcome::failed("The disk is full."),
    ] {
        let mut request = ask("write hello to note.txt", &[read(), list(), write()]);
        answer(&mut request, &outcome);
        assert!(answer_text(&request).contains(&*outcome.content.text()));
    }
    // An approver may have edited the arguments.
    let mut request = ask("write hello to note.txt", &[write()]);
    let edited = ToolCallPart::new(
        CallId::new("1"),
        "write_file",
        json!({"path": "other.txt", "text": "bye"}).to_string(),
    );
    let result = ToolResult::new(
        edited.id.clone(),
        "write_file",
        ToolOutcome::done("Wrote it."),
    );
    let message = Message::new(
        concentric::Role::Assistant,
        vec![concentric::Part::new(PartKind::ToolCall(edited))],
    );
    let round = Round::new(message, vec![result]).unwrap();
    request.transcript.push(round);
    assert_eq!(answer_text(&request), "Wrote it.");
}

#[test]
fn accepts_any_transcript() {
    let call = |id: &str, arguments: &str| {
        concentric::Part::new(PartKind::ToolCall(ToolCallPart::new(
            CallId::new(id),
            "gone",
            arguments,
        )))
    };
    let message = Message::new(
        concentric::Role::Assistant,
        vec![call("1", "{\"a\":"), call("2", "[1]")],
    );
    let results = vec![
        ToolResult::new(
            CallId::new("1"),
            "gone",
            ToolOutcome::failed("é".repeat(100_000)),
        ),
        ToolResult::new(CallId::new("2"), "other", ToolOutcome::unknown("")),
    ];
    let round = Round::new(message, results).unwrap();
    for question in [
        "weather in Paris",
        "",
        "“ ' ` \"",
        "'s",
        "..",
        "/ // ./.",
        "+ 1+ +",
        "É é ß İ",
        "🦀".repeat(5_000).as_str(),
    ] {
        for tools in [vec![], vec![weather(), add(), read(), list()]] {
            let mut request = ask("before", &tools);
            for _ in 0..40 {
                request.transcript.push(round.clone());
                request.transcript.push_user(question);
                request.transcript.push(round.clone());
                let _ = plan::next(&request);
            }
            // The number of rounds is limited.
            let mut steps = 0;
            while !calls(&request).is_empty() {
                answer(&mut request, &ToolOutcome::failed("not found"));
                steps += 1;
            }
            assert!(steps <= 4);
        }
    }
    // A transcript without a user message, and an invalid schema.
    let mut odd = ChatRequest::new(Transcript::new());
    let schema = json!({"properties": {"x": {"$ref": "#/properties/x"}}, "required": ["x", 1]});
    odd.tools.push(Arc::new(ToolSpec::new("odd", "", schema)));
    let _ = plan::next(&odd);
}

#[tokio::test]
async fn streams_words_and_counts_tokens() {
    let response = Offline::new()
        .oneshot(ChatRequest::user("hello there"))
        .await
        .unwrap();
    assert_eq!(response.head.model.as_deref(), Some(MODEL));
    let events: Vec<_> = response.body.map(Result::unwrap).collect().await;
    let (last, words) = events.split_last().unwrap();
    assert!(
        words.len() > 5
            && words
                .iter()
                .all(|event| matches!(event, Event::TextDelta(_)))
    );
    let Event::Finish(finish) = last else {
        panic!("{last:?}")
    };
    assert_eq!(finish.usage, Usage::new(2, words.len() as u64));
}

#[derive(Deserialize, JsonSchema)]
struct Weather {
    /// The city.
    city: String,
}

#[tokio::test]
async fn works_in_an_agent() {
    let weather = tool(
        "weather",
        "Reports the weather.",
        |args: Weather| async move { format!("It rains in {}.", args.city) },
    );
    let agent = AgentLayer::new(Toolset::new().tool(weather)).layer(Offline::new());
    let request = ChatRequest::user("How is the weather in Oslo?");
    let answer = agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.text(), "It rains in Oslo.");
}

#[tokio::test(start_paused = true)]
async fn the_first_word_has_no_delay() {
    let model = Offline::new().pace(Duration::from_secs(1));
    let mut response = model.oneshot(ChatRequest::user("hello")).await.unwrap();
    let start = tokio::time::Instant::now();
    response.body.next().await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    response.body.next().await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[test]
fn writes_a_value_that_matches_a_schema() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Mood {
        Calm,
        Wild,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Report {
        summary: String,
        mood: Mood,
        any: bool,
        inner: Option<Box<Self>>,
        others: Vec<Self>,
    }

    let report = concentric::tools::output::<Report>("report");
    let mut request = ask("hello there", &[]);
    request.options_mut().output_schema = Some(report.schema().clone());
    let Plan::Say(text) = plan::next(&request) else {
        panic!("it calls")
    };
    let value = report.of_text(&text).unwrap();
    assert!(value.summary.starts_with("Hello!") && !value.any, "{text}");
    assert_eq!(value.mood, Mood::Calm);
    assert!(value.inner.is_none() && value.others.is_empty(), "{text}");
}
