//! The tools that the server scenarios of `@modelcontextprotocol/conformance` call.

use concentric_core::{
    Context, CustomEvent, Error, Interrupt, InterruptId, Media, MediaSource, Part, PartKind, Reply,
    Suspension, ToolCall, ToolOutcome, ToolSpec, interrupt::ReplyStatus,
};
use concentric_mcp::ELICITATION;
use concentric_tools::{NoArguments, Tool, ToolError, Toolset, tool, tool_with_context};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tower::service_fn;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==";
const TEXT: &str = "VGhpcyBpcyBhbiBlbWJlZGRlZCByZXNvdXJjZS4=";

/// The tools of all scenarios that a toolset can pass.
pub fn toolset() -> Toolset {
    let simple = tool(
        "test_simple_text",
        "Returns a text.",
        async |NoArguments {}| "This is a simple text response for testing.",
    );
    let error = tool("test_error_handling", "Fails.", async |NoArguments {}| {
        let why = "This tool intentionally returns an error for testing";
        Err::<String, _>(ToolError::new(why))
    });
    let progress = tool_with_context(
        "test_tool_with_progress",
        "Reports progress.",
        |NoArguments {}, context: Context| async move {
            for progress in [0, 50, 100] {
                let progress = json!({"progress": progress, "total": 100});
                let _ = context.emit(CustomEvent::new("mcp.progress", progress));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            "Done."
        },
    );
    Toolset::new()
        .tools([simple, error, progress])
        .tools([
            logging("test_tool_with_logging"),
            logging("test_logging_tool"),
        ])
        .tools(media())
        .tools(forms())
        .tool(json_schema())
        .tool(header())
}

fn logging(name: &'static str) -> Tool {
    tool_with_context(
        name,
        "Sends log messages.",
        |NoArguments {}, context: Context| async move {
            for text in [
                "Tool execution started",
                "Tool processing data",
                "Tool execution completed",
            ] {
                let record = json!({"level": "info", "logger": "tool", "data": text});
                let _ = context.emit(CustomEvent::new("mcp.log", record));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            "Done."
        },
    )
}

fn media() -> [Tool; 4] {
    fn medium(base64: &'static str, media_type: &'static str) -> Media {
        Media::new(MediaSource::Base64(base64.into())).with_media_type(media_type)
    }
    fn image() -> Part {
        Part::new(PartKind::Image(medium(PNG, "image/png")))
    }
    fn file() -> Part {
        Part::new(PartKind::File(
            medium(TEXT, "text/plain").with_name("file.txt"),
        ))
    }
    [
        tool(
            "test_image_content",
            "Returns an image.",
            async |NoArguments {}| vec![image()],
        ),
        tool(
            "test_audio_content",
            "Returns audio.",
            async |NoArguments {}| vec![Part::new(PartKind::Audio(medium(WAV, "audio/wav")))],
        ),
        tool(
            "test_embedded_resource",
            "Returns a file.",
            async |NoArguments {}| vec![file()],
        ),
        tool(
            "test_multiple_content_types",
            "Returns a text, an image and a file.",
            async |NoArguments {}| {
                vec![Part::text("Multiple content types test:"), image(), file()]
            },
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
struct Question {
    message: String,
}

fn forms() -> Vec<Tool> {
    let string = |name: &str| object(&json!({name: {"type": "string"}}), &[name]);
    let confirm = || object(&json!({"ok": {"type": "boolean"}}), &["ok"]);
    let defaults = json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    });
    let titled =
        |of: [(&str, &str); 3]| of.map(|(value, title)| json!({"const": value, "title": title}));
    let choices = [
        ("value1", "First"),
        ("value2", "Second"),
        ("value3", "Third"),
    ];
    let enums = json!({
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled(choices)},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array",
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {"type": "array", "items": {"anyOf": titled(choices)}},
    });
    // Asked while the call runs.
    let live = tool_with_context(
        "test_elicitation",
        "Asks the user.",
        |it: Question, context: Context| async move {
            let fields = json!({"username": {"type": "string"}, "email": {"type": "string"}});
            let form = object(&fields, &["username", "email"]);
            let id = InterruptId::new(context.new_id("form_"));
            let interrupt = Interrupt::new(id, ELICITATION)
                .with_message(it.message)
                .with_response_schema(form);
            let reply = context.ask(interrupt, Duration::from_secs(20)).await;
            let reply = reply.map_err(|error| ToolError::new(error.to_string()))?;
            Ok::<_, ToolError>(described(&[reply]))
        },
    );
    vec![
        live,
        asking(
            "test_elicitation_sep1034_defaults",
            vec![("form", object(&defaults, &[]))],
        ),
        asking(
            "test_elicitation_sep1330_enums",
            vec![("form", object(&enums, &[]))],
        ),
        asking("test_streaming_elicitation", vec![("name", string("name"))]),
        asking(
            "test_input_required_result_elicitation",
            vec![("user_name", string("name"))],
        ),
        asking(
            "test_input_required_result_request_state",
            vec![("confirm", confirm())],
        ),
        asking(
            "test_input_required_result_tampered_state",
            vec![("confirm", confirm())],
        ),
        asking(
            "test_input_required_result_multi_round",
            vec![("step1", string("name")), ("step2", string("color"))],
        ),
    ]
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// A tool that is suspended for each of the forms, one after the other.
fn asking(name: &'static str, forms: Vec<(&'static str, Value)>) -> Tool {
    let spec = ToolSpec::new(name, "Asks the user.", json!({"type": "object"}));
    Tool::new(
        spec,
        service_fn(move |call: ToolCall| {
            let resumed = call.resumed();
            let round = resumed.and_then(|it| it.on.state.as_deref()?.as_u64());
            let round = round.and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
            let replies = resumed.map(|it| it.replies.clone()).unwrap_or_default();
            let next = forms.get(round).cloned();
            async move {
                let Some((id, form)) = next else {
                    return Ok(ToolOutcome::done(described(&replies)));
                };
                let interrupt = Interrupt::new(InterruptId::new(id), ELICITATION)
                    .with_message("Please fill in the form.")
                    .with_response_schema(form);
                let suspension = Suspension::new(vec![interrupt]);
                Err::<ToolOutcome, Error>(Error::suspended(suspension.with_state(json!(round + 1))))
            }
        }),
    )
}

fn described(replies: &[Reply]) -> String {
    let shown = replies.iter().map(|reply| match reply.status {
        ReplyStatus::Resolved => {
            format!(
                "accept, state-ok, {}",
                reply.payload.clone().unwrap_or_default()
            )
        }
        _ => "decline".to_owned(),
    });
    shown.collect::<Vec<_>>().join("; ")
}

fn done(spec: ToolSpec) -> Tool {
    Tool::new(
        spec,
        service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("Done.")) }),
    )
}

fn json_schema() -> Tool {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    });
    let what = "Has a schema of JSON Schema 2020-12.";
    done(ToolSpec::new("json_schema_2020_12_tool", what, schema))
}

fn header() -> Tool {
    let region = json!({"region": {"type": "string", "x-mcp-header": "Region"}});
    let what = "Has an argument that is also sent as a header.";
    done(ToolSpec::new(
        "test_header",
        what,
        object(&region, &["region"]),
    ))
}
