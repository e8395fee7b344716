//! Content, which is recorded only if it is opted in.

use super::*;
use concentric_core::{
    Media, MediaSource, Message, Part, PartKind, Role, ToolCall, ToolOutcome, Turn,
};
use serde_json::Value as Json;
use std::io;
use tower::{Layer, service_fn};

const CANARY: &str = "CANARY";

/// An agent whose every text has the canary, with tools that fail in each way.
fn canary(otel: &Otel) -> BoxModel {
    let broken = || io::Error::other(CANARY);
    let tools = Toolset::new()
        .tool(tool("works", "", |NoArguments {}| async { CANARY }))
        .tool(tool("foreign", "", move |NoArguments {}| async move {
            Err::<String, _>(concentric_tools::ToolError::from(broken()))
        }))
        .tool(tool("written", "", |NoArguments {}| async {
            Err::<String, _>(concentric_tools::ToolError::new(CANARY))
        }))
        .tool(tool("panics", "", |NoArguments {}| async {
            if true {
                panic!("{CANARY}");
            }
            ""
        }))
        .tool(tool("layered", "", |NoArguments {}| async { "" }))
        .layer(concentric_layers::tool_from_fn(
            async |call: ToolCall, mut next: concentric_layers::NextTool| match call.name()
                == "layered"
            {
                true => Err(Error::new(ErrorKind::Other, CANARY)),
                false => next.run(call).await,
            },
        ))
        .layer(otel.tool());
    let arguments = json!({"secret": CANARY});
    let model = ScriptedModel::new()
        .reasoning(CANARY)
        .tool_call("works", arguments.clone())
        .tool_call("foreign", arguments.clone())
        .tool_call("written", arguments.clone())
        .tool_call("panics", arguments.clone())
        .tool_call("layered", arguments.clone())
        .tool_call(CANARY, arguments)
        .then()
        .text(CANARY)
        .then()
        .error(Error::new(ErrorKind::InvalidRequest, CANARY));
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(tools))
        .layer(otel.model())
        .service(model);
    BoxModel::new(agent)
}

#[tokio::test]
async fn f055_no_span_has_content_unless_it_is_opted_in() {
    let traces = Traces::of_thread();
    let request = || ChatRequest::user(CANARY).with_system(CANARY);
    let agent = canary(&Otel::new().redact(|text| text.to_owned()));
    run(&agent, request()).await.unwrap();
    run(&agent, request()).await.unwrap_err();
    let spans = traces.take();
    assert!(spans.len() > 8);
    let hits = spans
        .iter()
        .filter(|span| format!("{span:?}").contains(CANARY));
    assert_eq!(hits.collect::<Vec<_>>(), Vec::<&SpanData>::new());

    let agent = canary(&Otel::new().content(1_000));
    run(&agent, request()).await.unwrap();
    run(&agent, request()).await.unwrap_err();
    let spans = traces.take();
    assert!(
        spans
            .iter()
            .all(|span| format!("{span:?}").contains(CANARY))
    );

    let agent = canary(
        &Otel::new()
            .content(1_000)
            .redact(|text| text.replace(CANARY, "-")),
    );
    run(&agent, request()).await.unwrap();
    run(&agent, request()).await.unwrap_err();
    let spans = traces.take();
    assert!(!format!("{spans:?}").contains(CANARY));
}

fn json_of(span: &SpanData, name: &str) -> Json {
    serde_json::from_str(&attribute(span, name).unwrap()).unwrap()
}

#[tokio::test]
async fn messages_have_the_form_of_the_conventions() {
    let traces = Traces::of_thread();
    let otel = Otel::new().content(1_000);
    let look = tool("look", "", |NoArguments {}| async {
        json!({"seen": "a cat"})
    });
    let model = ScriptedModel::new()
        .reasoning("Hm.")
        .text("I look.")
        .tool_call("look", json!({"at": "it"}))
        .then()
        .text("A cat.");
    let agent = ServiceBuilder::new()
        .layer(otel.run())
        .layer(AgentLayer::new(
            Toolset::new().tool(look).layer(otel.tool()),
        ))
        .layer(otel.model())
        .service(model);
    let image = Media::new(MediaSource::Base64("aGk=".into()));
    let parts = vec![Part::text("What is it?"), Part::new(PartKind::Image(image))];
    let mut request = ChatRequest::user("Hello.").with_system("Be brief.");
    request
        .transcript
        .push(Turn::message(Message::assistant("Hi.")).unwrap());
    request
        .transcript
        .push(Turn::message(Message::new(Role::User, parts)).unwrap());
    run(&BoxModel::new(agent), request).await.unwrap();

    let spans = traces.take();
    let user = json!([{"role": "user", "parts": [
        {"type": "text", "content": "What is it?"},
        {"type": "text", "content": "[image]"},
    ]}]);
    let [first, look, second, root] = &spans[..] else {
        panic!("{spans:?}");
    };
    // Neither span has the earlier turns.
    assert_eq!(json_of(root, "gen_ai.input.messages"), user);
    assert_eq!(json_of(first, "gen_ai.input.messages"), user);
    assert_eq!(
        json_of(first, "gen_ai.system_instructions"),
        json!([{"type": "text", "content": "Be brief."}])
    );
    let calls = json_of(first, "gen_ai.output.messages");
    let id = calls[0]["parts"][2]["id"].clone();
    assert_eq!(
        calls,
        json!([{"role": "assistant", "finish_reason": "tool_call", "parts": [
            {"type": "reasoning", "content": "Hm."},
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": id, "name": "look", "arguments": {"at": "it"}},
        ]}])
    );
    assert_eq!(
        json_of(look, "gen_ai.tool.call.arguments"),
        json!({"at": "it"})
    );
    assert_eq!(
        json_of(look, "gen_ai.tool.call.result"),
        json!({"seen": "a cat"})
    );
    assert_eq!(
        json_of(second, "gen_ai.input.messages"),
        json!([{"role": "tool", "parts": [
            {"type": "tool_call_response", "id": id, "response": {"seen": "a cat"}},
        ]}])
    );
    let answer = json!([{"role": "assistant", "finish_reason": "stop", "parts": [
        {"type": "text", "content": "A cat."},
    ]}]);
    assert_eq!(json_of(second, "gen_ai.output.messages"), answer);
    assert_eq!(json_of(root, "gen_ai.output.messages"), answer);
}

async fn result_of(otel: &Otel, result: &str) -> String {
    let traces = Traces::of_thread();
    let result = result.to_owned();
    let tool = service_fn(move |_: ToolCall| {
        std::future::ready(Ok::<_, Error>(ToolOutcome::done(result.clone())))
    });
    let part =
        concentric_core::ToolCallPart::new(concentric_core::CallId::new("c"), "look", json!({}));
    let call = ToolCall::new(part, concentric_core::Context::new());
    otel.tool().layer(tool).oneshot(call).await.unwrap();
    attribute(&traces.take()[0], "gen_ai.tool.call.result").unwrap()
}

// Case C125.
#[tokio::test]
async fn c125_a_redaction_that_panics_leaves_a_marker() {
    let otel = Otel::new()
        .content(1_000)
        .redact(|text| match text.contains("secret") {
            true => panic!("no rule"),
            false => text.to_owned(),
        });
    assert_eq!(result_of(&otel, "a secret").await, "[redaction_failed]");
    assert_eq!(result_of(&otel, "public").await, "public");
    // One value of several.
    let result = result_of(&otel, r#"{"a": "secret", "b": ["public"]}"#).await;
    assert_eq!(result, r#"{"a":"[redaction_failed]","b":["public"]}"#);
}

#[tokio::test]
async fn redaction_sees_each_value_and_the_whole() {
    let otel = Otel::new().content(1_000).redact(|text| {
        let text = text.replace("a@b.c", "[mail]").replace("4111", "[card]");
        text.replace(r#""password":"x""#, r#""password":"-""#)
    });
    for (result, expected) in [
        // The escape hides the address in the text.
        (r#"{"to":"a\u0040b.c"}"#, r#"{"to":"[mail]"}"#),
        (r#""a\u0040b.c""#, "[mail]"),
        (r#"{"a@b.c":4111}"#, r#"{"[mail]":"[card]"}"#),
        ("4111", "[card]"),
        (r#"{"password":"x"}"#, r#"{"password":"-"}"#),
        ("to a@b.c", "to [mail]"),
        (r#"{"to":"a@b.c"#, r#"{"to":"[mail]"#),
    ] {
        assert_eq!(result_of(&otel, result).await, expected);
    }
}

#[tokio::test]
async fn redaction_sees_behind_the_escapes_of_a_typed_answer() {
    let traces = Traces::of_thread();
    let otel = Otel::new()
        .content(1_000)
        .redact(|text| text.replace("a@b.c", "[mail]"));
    let model = ScriptedModel::new().text(r#"{"to":"a\u0040b.c"}"#);
    let model = BoxModel::new(otel.model().layer(model));
    run(&model, ChatRequest::user(r#"["a\u0040b.c"]"#))
        .await
        .unwrap();
    let spans = traces.take();
    let text = |name: &str| json_of(&spans[0], name)[0]["parts"][0]["content"].clone();
    assert_eq!(text("gen_ai.input.messages"), r#"["[mail]"]"#);
    assert_eq!(text("gen_ai.output.messages"), r#"{"to":"[mail]"}"#);
}

#[tokio::test]
async fn long_texts_are_cut_at_a_character() {
    let otel = Otel::new().content(4);
    assert_eq!(result_of(&otel, "äöüß").await, "äöüß");
    assert_eq!(result_of(&otel, "äöüßx").await, "äöüß…");
    assert_eq!(result_of(&otel, r#"{"a":"bc"}"#).await, r#"{"a"…"#);
    assert_eq!(result_of(&Otel::new().content(0), "text").await, "…");
    let long = "x".repeat(4 * 1024 * 1024);
    assert_eq!(result_of(&otel, &long).await, "xxxx…");
    let otel = Otel::new().content(usize::MAX);
    assert_eq!(result_of(&otel, &long).await, long);

    // The texts of a message share the limit.
    let traces = Traces::of_thread();
    let model = Otel::new()
        .content(5)
        .model()
        .layer(ScriptedModel::new().text("answer"));
    let parts = vec![Part::text("abc"), Part::text("defg"), Part::text("h")];
    let mut request = ChatRequest::user("");
    request.transcript = concentric_core::Transcript::new();
    request
        .transcript
        .push(Turn::message(Message::new(Role::User, parts)).unwrap());
    run(&BoxModel::new(model), request).await.unwrap();
    let spans = traces.take();
    let parts = &json_of(&spans[0], "gen_ai.input.messages")[0]["parts"];
    let texts: Vec<_> = parts
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["content"])
        .collect();
    assert_eq!(texts, ["abc", "de…", "…"]);
}
