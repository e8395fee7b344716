//! Events that a tool emits before its result, results that are checked, and errors as the model
//! reads them.

use crate::common::{hook, model, of_pace, one, pace, paced, results, text, tool};
use concentric_core::ask::AskError;
use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatRequest, ChatResponse, Context, CustomEvent, Error,
    ErrorKind, Event, Interrupt, InterruptId, Reply, ToolOutcome, ToolSpec, ToolStatus,
};
use concentric_test::LogCapture;
use concentric_tools::{
    ErrorFormat, Json, NoArguments, Tool, ToolError, Toolset, ToolsetError, agent_tool,
    output::schema_of, tool_with_context,
};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

// ---- S54: events of a running tool ----

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Progress {
    percent: u8,
}

// S54
paced!(a_consumer_reads_a_tools_events_before_its_result);
async fn a_consumer_reads_a_tools_events_before_its_result() {
    let read = Arc::new(Notify::new());
    let is_read = Arc::clone(&read);
    let slow = tool_with_context("slow", "", move |NoArguments {}, context: Context| {
        let is_read = Arc::clone(&is_read);
        async move {
            pace().pass(&context).await;
            context.emit(CustomEvent::from_serialize(
                "progress",
                &Progress { percent: 0 },
            )?)?;
            let last = CustomEvent::from_serialize("progress", &Progress { percent: u8::MAX })?;
            context.send(last).await?;
            // The tool ends only after its events were read.
            is_read.notified().await;
            Ok::<_, BoxError>(())
        }
    });
    let agent = AgentLayer::new(Toolset::new().tool(slow));
    let agent = agent.layer(model(vec![vec![("slow", "{}"), ("slow", "{}")]]));
    let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (mut events, mut results) = (Vec::new(), 0);
    while let Some(event) = body.next().await {
        match event.unwrap() {
            event if of_pace(&event) => {}
            Event::Custom(event) => {
                assert_eq!(results, 0, "no result precedes the events");
                let percent = event.read::<Progress>().unwrap().percent;
                events.push((event.call_id.clone().unwrap(), percent));
                if events.len() == 4 {
                    read.notify_waiters();
                    read.notify_one();
                    read.notify_one();
                }
            }
            Event::ToolResult(_) => results += 1,
            _ => {}
        }
    }
    events.sort();
    let ids = ["call-0-0", "call-0-0", "call-0-1", "call-0-1"].map(CallId::new);
    assert_eq!(
        events,
        ids.into_iter()
            .zip([0, u8::MAX, 0, u8::MAX])
            .collect::<Vec<_>>()
    );
    assert_eq!(results, 2);
}

// ---- questions with typed replies ----

#[derive(Deserialize, JsonSchema)]
struct Seat {
    row: u8,
}

paced!(a_tool_asks_for_a_value_of_a_type);
async fn a_tool_asks_for_a_value_of_a_type() {
    let ask = tool_with_context("ask", "", async |NoArguments {}, context: Context| {
        pace().pass(&context).await;
        let id = InterruptId::new("seat");
        let ask = Interrupt::new(id, "seat").with_response_schema(schema_of::<Seat>());
        let seat = context.ask_as::<Seat>(ask, Duration::from_secs(60)).await;
        match seat {
            Ok(seat) => format!("row {}", seat.row),
            Err(AskError::Malformed(_)) => "cancelled".to_owned(),
            Err(error) => error.to_string(),
        }
    });
    let id = || InterruptId::new("seat");
    for (reply, expected) in [
        (Reply::resolve(id(), json!({"row": 0})), "row 0"),
        (Reply::resolve(id(), json!({"row": 255})), "row 255"),
        (Reply::cancel(id()), "cancelled"),
    ] {
        let agent = AgentLayer::new(Toolset::new().tool(ask.clone()));
        let agent = agent.layer(model(vec![vec![("ask", "{}")]]));
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let mut body = agent.oneshot(request).await.unwrap().body;
        let mut told = Vec::new();
        while let Some(event) = body.next().await {
            match event.unwrap() {
                event if of_pace(&event) => {}
                Event::Custom(event) => {
                    let asked: Interrupt = event.read().unwrap();
                    let schema = asked.response_schema.unwrap();
                    assert_eq!(schema["properties"]["row"]["maximum"], 255);
                    // A reply of another form is refused, and the question stays open.
                    for wrong in [json!({"row": 256}), json!({}), json!(null)] {
                        let wrong = context.reply(Reply::resolve(id(), wrong));
                        assert_eq!(wrong.unwrap_err().code(), "malformed_reply");
                    }
                    context.reply(reply.clone()).unwrap();
                }
                Event::ToolResult(result) => told.push(result.outcome.content.text().into_owned()),
                _ => {}
            }
        }
        assert_eq!(told, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_typed_question_without_a_reply_times_out() {
    for timeout in [Duration::ZERO, Duration::from_secs(5)] {
        let ask = Interrupt::new(InterruptId::new("seat"), "seat");
        let seat = Context::new().ask_as::<Seat>(ask, timeout).await;
        assert_eq!(seat.err(), Some(AskError::TimedOut));
    }
}

// ---- S53: results are checked against the output schema ----

#[derive(Serialize, JsonSchema)]
struct Time {
    #[schemars(range(max = 23))]
    hour: u8,
}

/// A tool that returns `outcome` and declares that it returns `T`.
fn returning<T: JsonSchema>(outcome: ToolOutcome) -> Toolset {
    let now = tool("now", "", move |NoArguments {}| {
        let outcome = outcome.clone();
        async move { outcome }
    });
    Toolset::new().tool(now.output_schema::<T>())
}

const INVALID: &str = "The tool was executed, but its result is invalid.";

// S53
paced!(a_result_must_match_the_output_schema);
async fn a_result_must_match_the_output_schema() {
    let hour = |hour: u32| json!({"hour": hour});
    for (outcome, is_valid) in [
        (ToolOutcome::of_value(&hour(0)), true),
        (ToolOutcome::of_value(&hour(23)), true),
        (ToolOutcome::of_value(&hour(24)), false),
        (ToolOutcome::done("noon"), false),
        (ToolOutcome::done(""), false),
        // The data counts, if there is any.
        (ToolOutcome::done("noon").with_data(hour(12)), true),
        (ToolOutcome::of_value(&hour(12)).with_data(hour(99)), false),
    ] {
        let ended = one(&returning::<Time>(outcome.clone()), "now", "{}").await;
        match is_valid {
            true => assert_eq!(ended, outcome),
            false => assert_eq!(ended, ToolOutcome::failed(INVALID)),
        }
    }
    // Only a success has a result to check.
    for outcome in [ToolOutcome::failed("no clock"), ToolOutcome::denied("no")] {
        assert_eq!(
            one(&returning::<Time>(outcome.clone()), "now", "{}").await,
            outcome
        );
    }
}

paced!(a_text_is_a_valid_string);
async fn a_text_is_a_valid_string() {
    for done in ["noon", "12", "\"noon\"", ""] {
        let outcome = ToolOutcome::done(done);
        assert_eq!(
            one(&returning::<String>(outcome.clone()), "now", "{}").await,
            outcome
        );
    }
}

paced!(a_long_result_is_checked_before_it_is_cut);
async fn a_long_result_is_checked_before_it_is_cut() {
    let long = tool("long", "", |NoArguments {}| async {
        Json(vec![1; 100_000])
    });
    let tools = Toolset::new().tool(long.output_schema::<Vec<u8>>().max_result_bytes(0));
    let outcome = one(&tools, "long", "{}").await;
    assert_eq!(outcome.status, ToolStatus::Done);
    assert!(outcome.content.text().contains("cut here"));
}

#[tokio::test]
async fn a_violation_is_logged_and_not_sent_to_the_model() {
    let (log, _guard) = LogCapture::of_thread("concentric_tools");
    let tools = returning::<Time>(ToolOutcome::done(r#"{"hour":99}"#));
    assert_eq!(text(&tools, "now", "{}").await, INVALID);
    let lines = log.take().join("\n");
    assert!(
        lines.contains("at `/hour`") && lines.contains("99"),
        "{lines}"
    );
}

#[test]
fn an_output_schema_that_cannot_be_enforced_is_an_error() {
    let mut spec = ToolSpec::new("t", "", json!({"type": "object"}));
    spec.output_schema = Some(Arc::new(json!({"$ref": "https://example.com/schema"})));
    let tool = Tool::new(
        spec,
        service_fn(|_| async { Ok::<_, BoxError>(ToolOutcome::done("")) }),
    );
    assert!(matches!(
        tool.check(),
        Err(ToolsetError::InvalidSchema { .. })
    ));
}

// ---- S36: errors as the model reads them ----

/// A tool that fails with an error that was not written for the model.
fn failing() -> Tool {
    tool("read", "", |NoArguments {}| async {
        Err::<(), ToolError>(std::io::Error::other("/srv/secret").into())
    })
}

fn saying(text: &'static str) -> ErrorFormat {
    ErrorFormat::new(move |_| Some(text))
}

fn silent() -> ErrorFormat {
    ErrorFormat::new(|_| None::<&str>)
}

/// The text that the model reads when the `read` of `tools` fails in an agent with the format.
async fn read(tools: Toolset, format: Option<ErrorFormat>) -> String {
    let agent = AgentLayer::new(tools);
    let script = model(vec![vec![("read", "{}")]]);
    let request = ChatRequest::user("hi");
    let answer = match format {
        Some(format) => {
            let agent = agent.with(format).layer(BoxModel::new(script));
            agent.oneshot(request).await.unwrap().collect().await
        }
        None => {
            agent
                .layer(script)
                .oneshot(request)
                .await
                .unwrap()
                .collect()
                .await
        }
    };
    results(&answer.unwrap()).remove(0)
}

// S36
paced!(the_innermost_format_of_an_error_applies);
async fn the_innermost_format_of_an_error_applies() {
    let tools = || Toolset::new().tool(failing());
    assert_eq!(read(tools(), None).await, "call-0-0: The tool failed.");
    assert_eq!(
        read(tools(), Some(saying("agent"))).await,
        "call-0-0: agent"
    );
    let set = tools().error_format(saying("set"));
    assert_eq!(
        read(set.clone(), Some(saying("agent"))).await,
        "call-0-0: set"
    );
    let own = set.tool(failing().in_namespace("other"));
    assert_eq!(text(&own, "other__read", "{}").await, "set");
    let own = Toolset::new().tool(failing().error_format(saying("tool")));
    let own = own.error_format(saying("set"));
    assert_eq!(read(own, Some(saying("agent"))).await, "call-0-0: tool");
    let own = Toolset::new().tool(failing().error_format(silent()));
    let own = own.error_format(silent());
    assert_eq!(
        read(own.clone(), Some(saying("agent"))).await,
        "call-0-0: agent"
    );
    assert_eq!(read(own, None).await, "call-0-0: The tool failed.");
}

paced!(a_format_reads_the_source_of_an_error);
async fn a_format_reads_the_source_of_an_error() {
    let format = ErrorFormat::new(|error| {
        let source = error.source()?.downcast_ref::<std::io::Error>()?;
        Some(format!("{:?}", source.kind()))
    });
    let tools = Toolset::new().tool(failing().error_format(format));
    assert_eq!(text(&tools, "read", "{}").await, "Other");
}

paced!(a_format_applies_to_layers_agents_and_invalid_results);
async fn a_format_applies_to_layers_agents_and_invalid_results() {
    let layer = hook(|_| crate::common::Hook::Fail("10.0.0.1 is down".into()));
    let burning = service_fn(|request: ChatRequest| async move {
        pace().pass(&request.context).await;
        let error = Error::new(ErrorKind::Timeout, "it burns");
        Err::<ChatResponse<stream::Empty<_>>, _>(error)
    });
    let invalid = tool("read", "", |NoArguments {}| async { "noon" }).output_schema::<Time>();
    for tool in [
        failing().layer(layer),
        agent_tool("read", "", BoxModel::new(burning)),
        invalid,
    ] {
        let arguments = r#"{"task":"t"}"#;
        let plain = Toolset::new().tool(tool.clone());
        let outcome = one(&plain, "read", arguments).await;
        assert_eq!(outcome.status, ToolStatus::Failed);
        let formatted = plain.error_format(saying("formatted"));
        let formatted = one(&formatted, "read", arguments).await;
        assert_eq!(formatted, ToolOutcome::failed("formatted"));
    }
}

paced!(a_text_that_was_written_for_the_model_is_not_formatted);
async fn a_text_that_was_written_for_the_model_is_not_formatted() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let format = ErrorFormat::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Some("formatted")
    });
    let own = tool("own", "", |NoArguments {}| async {
        Err::<(), _>(ToolError::new("No such file.").with_source("/srv"))
    });
    let tools = Toolset::new().tool(own).error_format(format);
    assert_eq!(text(&tools, "own", "{}").await, "No such file.");
    assert!(
        text(&tools, "own", "[]")
            .await
            .contains("not a JSON object")
    );
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

paced!(a_format_that_panics_leaves_the_fixed_text);
async fn a_format_that_panics_leaves_the_fixed_text() {
    let format = ErrorFormat::new(|_| -> Option<&str> { panic!("no format") });
    let tools = Toolset::new().tool(failing().error_format(format));
    assert_eq!(text(&tools, "read", "{}").await, "The tool failed.");
}

#[tokio::test]
async fn a_format_needs_a_toolset() {
    let agent = AgentLayer::new(concentric_core::NoTools).with(silent());
    let agent = agent.layer(BoxModel::new(model(Vec::new())));
    let error = agent.oneshot(ChatRequest::user("hi")).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}
