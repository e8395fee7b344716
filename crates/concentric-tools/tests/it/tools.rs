//! What a tool is made of, and what its function may return.

use crate::common::{one, pace, paced, polled, text};
use concentric_core::{
    AgentLayer, Annotations, ChatRequest, Context, Error, ErrorKind, Part, ToolCall, ToolContent,
    ToolOutcome, ToolSource, ToolSpec, ToolStatus,
};
use concentric_test::{LogCapture, ScriptedModel};
use concentric_tools::{
    Json, NoArguments, Tool, ToolError, Toolset, ToolsetError, blocking_tool, tool,
    tool_with_context,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{error::Error as StdError, fmt};
use tower::{Layer, ServiceExt, service_fn};

#[derive(Deserialize, JsonSchema)]
struct Add {
    /// The first number.
    a: i64,
    /// The second number.
    b: i64,
}

#[derive(Serialize, JsonSchema)]
struct Sum {
    sum: i64,
}

fn add() -> Tool {
    tool("add", "Adds.", |Add { a, b }| async move {
        Json(Sum { sum: a + b })
    })
}

paced!(a_typed_function_is_a_tool);
async fn a_typed_function_is_a_tool() {
    let tools = Toolset::new().tool(add());
    let outcome = one(&tools, "add", r#"{"a":1,"b":2}"#).await;
    assert_eq!(outcome, ToolOutcome::done(r#"{"sum":3}"#));
}

paced!(namespaces_keep_equal_names_apart);
async fn namespaces_keep_equal_names_apart() {
    let both = [add().in_namespace("a"), add().in_namespace("b")];
    let outcome = one(&Toolset::new().tools(both), "b__add", r#"{"a":1,"b":2}"#).await;
    assert_eq!(outcome, ToolOutcome::done(r#"{"sum":3}"#));
}

paced!(a_tool_is_a_service_of_its_own);
async fn a_tool_is_a_service_of_its_own() {
    let call = ToolCall::new(
        crate::common::part(0, "add", r#"{"a":1,"b":2}"#),
        Context::new(),
    );
    let outcome = add().oneshot(call).await.unwrap();
    assert_eq!(outcome.content.text(), r#"{"sum":3}"#);
}

#[test]
fn a_schema_is_inlined_and_describes_its_fields() {
    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Outer {
        /// What is inside.
        inner: Add,
        perhaps: Option<Add>,
    }
    let tool = tool("t", "", |_: Outer| async {});
    let schema = &tool.spec().input_schema;
    assert_eq!(schema["type"], "object");
    assert_eq!(schema.get("$schema"), None);
    assert_eq!(schema.get("$defs"), None);
    assert_eq!(schema.get("title"), None);
    let inner = &schema["properties"]["inner"];
    assert_eq!(inner["description"], "What is inside.");
    assert_eq!(inner["properties"]["a"]["description"], "The first number.");
    assert_eq!(schema["required"], json!(["inner"]));
}

#[test]
fn a_tool_says_what_it_does_to_the_world() {
    assert_eq!(add().spec().annotations, Annotations::default());
    let tool = add().read_only().output_schema::<Sum>();
    assert!(tool.spec().annotations.read_only);
    let output = tool.spec().output_schema.as_ref().unwrap();
    assert_eq!(output["properties"]["sum"]["type"], "integer");
}

paced!(a_function_may_return_many_kinds_of_outcomes);
async fn a_function_may_return_many_kinds_of_outcomes() {
    let tools = Toolset::new()
        .tool(tool("nothing", "", |NoArguments {}| async {}))
        .tool(tool("static", "", |NoArguments {}| async { "static" }))
        .tool(tool("string", "", |NoArguments {}| async {
            "string".to_owned()
        }))
        .tool(tool("value", "", |NoArguments {}| async {
            json!({"a": [1]})
        }))
        .tool(tool("parts", "", |NoArguments {}| async {
            vec![Part::text("a"), Part::text("b")]
        }))
        .tool(tool("outcome", "", |NoArguments {}| async {
            ToolOutcome::denied("no")
        }))
        .tool(tool("result", "", |NoArguments {}| async {
            Ok::<_, ToolError>("ok")
        }));
    assert_eq!(text(&tools, "nothing", "").await, "Done.");
    assert_eq!(text(&tools, "static", "").await, "static");
    assert_eq!(text(&tools, "string", "").await, "string");
    assert_eq!(text(&tools, "value", "").await, r#"{"a":[1]}"#);
    assert_eq!(text(&tools, "parts", "").await, "ab");
    assert_eq!(one(&tools, "outcome", "").await.status, ToolStatus::Denied);
    assert_eq!(text(&tools, "result", "").await, "ok");
}

paced!(c046_data_beside_the_text_is_not_for_the_model);
async fn c046_data_beside_the_text_is_not_for_the_model() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async {
        ("3 files", Json(json!({"files": 3})))
    }));
    let outcome = one(&tools, "t", "").await;
    assert_eq!(outcome.content, ToolContent::from("3 files"));
    assert_eq!(outcome.data.as_deref(), Some(&json!({"files": 3})));
}

#[derive(Debug)]
struct Outer(std::io::Error);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store is down")
    }
}

impl StdError for Outer {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

paced!(the_model_reads_the_text_of_tool_errors_only);
async fn the_model_reads_the_text_of_tool_errors_only() {
    let outer = || Outer(std::io::Error::other("password=hunter2"));
    let tools = Toolset::new()
        .tool(tool("question", "", move |NoArguments {}| async move {
            Err(outer())?;
            Ok::<(), ToolError>(())
        }))
        .tool(tool("direct", "", move |NoArguments {}| async move {
            Err::<(), _>(outer())
        }))
        .tool(tool("boxed", "", move |NoArguments {}| async move {
            Err::<(), tower::BoxError>(outer().into())
        }))
        .tool(tool("text", "", |NoArguments {}| async {
            Err::<(), _>("the store is down")
        }))
        .tool(tool("both", "", move |NoArguments {}| async move {
            let source = std::io::Error::other("password=hunter2");
            Err::<(), _>(ToolError::new("the store is down").with_source(source))
        }));
    for name in ["question", "direct", "boxed", "text"] {
        let outcome = one(&tools, name, "").await;
        assert_eq!(outcome, ToolOutcome::failed("The tool failed."), "{name}");
    }
    let outcome = one(&tools, "both", "").await;
    assert_eq!(outcome, ToolOutcome::failed("the store is down"));
}

#[tokio::test]
async fn a_failed_call_and_its_log_line_have_the_same_ids() {
    let (log, _guard) = LogCapture::of_thread("concentric_tools");
    let tools = Toolset::new().tool(tool("read", "", |NoArguments {}| async {
        Err::<(), _>(std::io::Error::other("password=hunter2"))
    }));
    let model = ScriptedModel::new()
        .tool_call("read", json!({}))
        .then()
        .text("It failed.");
    let request = ChatRequest::user("hi");
    let run = request.context.run_id().to_string();
    let answer = AgentLayer::new(tools).layer(model).oneshot(request).await;
    let answer = answer.unwrap().collect().await.unwrap();
    let turns = answer.transcript().unwrap().iter();
    let failed: Vec<_> = turns.flat_map(|turn| turn.results()).collect();
    assert_eq!(failed[0].outcome, ToolOutcome::failed("The tool failed."));
    let lines = log.take();
    assert_eq!(lines.len(), 1);
    for part in [run.as_str(), failed[0].call_id.as_str(), "hunter2"] {
        assert!(lines[0].contains(part), "{lines:?}");
    }
}

#[test]
fn an_error_keeps_its_source_for_the_logs() {
    let error = ToolError::from(Outer(std::io::Error::other("password=hunter2")));
    assert_eq!(error.to_string(), "The tool failed.");
    let source = error.source().unwrap().source().unwrap();
    assert_eq!(source.to_string(), "password=hunter2");
}

paced!(a_fatal_error_ends_the_round);
async fn a_fatal_error_ends_the_round() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async {
        Err::<(), _>(ToolError::new("the disk is full").fatal())
    }));
    let mut all = crate::common::run(&tools, &[("t", ""), ("t", "")]).await;
    assert_eq!(all.len(), 1);
    let error = all.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tool);
    assert_eq!(error.message(), "the disk is full");
}

paced!(a_fatal_error_of_ours_keeps_its_kind_through_a_function);
async fn a_fatal_error_of_ours_keeps_its_kind_through_a_function() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async {
        let error = Error::new(ErrorKind::Quota, "no money left").with_status(402);
        Err::<(), _>(concentric_tools::fatal(error))
    }));
    let error = crate::common::run(&tools, &[("t", "")])
        .await
        .pop()
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.status()),
        (ErrorKind::Quota, Some(402))
    );
}

paced!(a_context_is_of_the_call);
async fn a_context_is_of_the_call() {
    let tools =
        Toolset::new().tool(tool_with_context(
            "t",
            "",
            |NoArguments {}, context: Context| async move {
                context.idempotency_key().unwrap().to_string()
            },
        ));
    let all = crate::common::run(&tools, &[("t", ""), ("t", "")]).await;
    let keys: Vec<_> = all
        .into_iter()
        .map(|settled| settled.unwrap().outcome.content.text().into_owned())
        .collect();
    assert!(keys[0].ends_with("/0/0/call-0"), "{keys:?}");
    assert!(keys[1].ends_with("/0/1/call-1"), "{keys:?}");
}

paced!(a_blocking_function_runs_on_a_thread_of_its_own);
async fn a_blocking_function_runs_on_a_thread_of_its_own() {
    let here = std::thread::current().id();
    let tools = Toolset::new()
        .tool(blocking_tool("t", "", move |Add { a, b }| {
            assert_ne!(std::thread::current().id(), here);
            (a + b).to_string()
        }))
        .tool(blocking_tool("panics", "", |NoArguments {}| -> () {
            panic!("secret")
        }));
    assert_eq!(text(&tools, "t", r#"{"a":1,"b":2}"#).await, "3");
    let told = text(&tools, "panics", "").await;
    assert!(told.ends_with("The tool failed unexpectedly."), "{told}");
}

paced!(a_service_with_a_spec_is_a_tool_whose_arguments_are_checked);
async fn a_service_with_a_spec_is_a_tool_whose_arguments_are_checked() {
    let spec = ToolSpec::new(
        "echo",
        "Says it again.",
        json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}),
    );
    let service = service_fn(|call: ToolCall| async move {
        pace().pass(&call.context).await;
        Ok::<_, tower::BoxError>(ToolOutcome::done(call.arguments().as_str()))
    });
    let tools = Toolset::new().tool(Tool::new(spec, service));
    assert_eq!(text(&tools, "echo", r#"{"n":3}"#).await, r#"{"n":3}"#);
    assert_eq!(text(&tools, "echo", " null ").await, "{}");
    let refused = text(&tools, "echo", r#"{"n":4}"#).await;
    assert!(
        refused.contains("at `/n`: 4 is greater than the maximum of 3"),
        "{refused}"
    );
}

paced!(the_text_of_a_services_error_does_not_reach_the_model);
async fn the_text_of_a_services_error_does_not_reach_the_model() {
    let spec = ToolSpec::new("t", "", json!({"type": "object"}));
    let service = service_fn(|call: ToolCall| async move {
        pace().pass(&call.context).await;
        Err::<ToolOutcome, _>("the server is gone")
    });
    let tools = Toolset::new().tool(Tool::new(spec, service));
    assert_eq!(
        one(&tools, "t", "").await,
        ToolOutcome::failed("The tool failed.")
    );
}

paced!(a_service_is_called_when_it_is_ready);
async fn a_service_is_called_when_it_is_ready() {
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    handle.allow(0);
    let spec = ToolSpec::new("t", "", json!({"type": "object"}));
    let tools = Toolset::new().tool(Tool::new(spec, mock));
    let mut run = tokio_test::task::spawn(crate::common::run(&tools, &[("t", "")]));
    tokio_test::assert_pending!(polled!(run.poll()));
    handle.allow(1);
    assert!(run.is_woken());
    tokio_test::assert_pending!(polled!(run.poll()));
    let (_, answer) = handle.next_request().await.unwrap();
    answer.send_response(ToolOutcome::done("ok"));
    let all = tokio_test::assert_ready!(polled!(run.poll()));
    assert_eq!(all[0].as_ref().unwrap().outcome, ToolOutcome::done("ok"));
}

#[cfg(feature = "schema-validation")]
#[test]
fn a_schema_from_anywhere_reaches_nothing_and_takes_linear_time() {
    let ok = service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("ok")) });
    for (schema, part) in [
        (json!({"$ref": "file:///etc/passwd"}), "passwd"),
        (json!({"$ref": "http://169.254.169.254/"}), "169.254"),
        (
            json!({"properties": {"a": {"pattern": "(?=a)b"}}}),
            "(?=a)b",
        ),
        (json!({"type": 7}), "7"),
    ] {
        let tool = Tool::new(ToolSpec::new("t", "", schema.clone()), ok);
        let error = tool.check().unwrap_err();
        assert!(matches!(error, ToolsetError::InvalidSchema { .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
}

paced!(a_set_that_cannot_be_used_says_so_early_and_fails_the_run);
async fn a_set_that_cannot_be_used_says_so_early_and_fails_the_run() {
    let twice = Toolset::new().tool(add()).tool(add());
    assert_eq!(
        twice.check(),
        Err(ToolsetError::DuplicateName("add".into()))
    );
    // The loop sees it, too.
    assert_eq!(
        twice.specs().duplicate().map(|name| name.as_str()),
        Some("add")
    );
    let error = crate::common::agent(twice, vec![vec![("add", "{}")]])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);

    let number = Toolset::new().tool(tool("n", "", |_: u32| async {}));
    assert!(matches!(
        number.check(),
        Err(ToolsetError::InvalidSchema { .. })
    ));
    let call = ToolCall::new(crate::common::part(0, "n", "1"), Context::new());
    let alone = number.iter().next().unwrap().clone();
    assert_eq!(
        alone.oneshot(call).await.unwrap_err().kind(),
        ErrorKind::Configuration
    );
}

#[test]
fn services_and_streams_can_be_sent_and_shared() {
    fn send_sync<T: Clone + Send + Sync + Unpin + 'static>() {}
    fn send<T: Send + Unpin + 'static>() {}
    send_sync::<Tool>();
    send_sync::<Toolset>();
    send::<concentric_tools::lifecycle::Outcomes>();
    send::<concentric_tools::tool::ToolFuture>();
}
