//! Requests of OpenAI's clients, for both APIs.

use super::{INVALID, Shape, bytes, fill, list, nest, shapes};
use crate::endpoint::Endpoint;

/// A chat with the given messages and other fields.
fn with(messages: &str, fields: &str) -> String {
    let comma = if messages.is_empty() { "" } else { "," };
    let more = if fields.is_empty() { "" } else { "," };
    format!(
        r#"{{"model":"m","stream":false,"messages":[{messages}{comma}{}]{more}{fields}}}"#,
        user("Go."),
    )
}

fn chat(messages: &str) -> String {
    with(messages, "")
}

/// A chat with other fields.
fn fields(fields: &str) -> String {
    with("", fields)
}

/// A response with the given items and other fields.
fn response(items: &str, fields: &str) -> String {
    let comma = if items.is_empty() { "" } else { "," };
    let more = if fields.is_empty() { "" } else { "," };
    format!(
        r#"{{"model":"m","stream":false,"input":[{items}{comma}{}]{more}{fields}}}"#,
        user("Go."),
    )
}

fn items(items: &str) -> String {
    response(items, "")
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

/// A user message with parts.
fn parts(parts: &str) -> String {
    format!(r#"{{"role":"user","content":[{parts}]}}"#)
}

fn image(url: &str) -> String {
    format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#)
}

/// A call and its result, as two messages.
fn round(at: usize, arguments: &str, content: &str) -> String {
    format!(
        r#"{{"role":"assistant","tool_calls":[{}]}},{}"#,
        call(at, arguments),
        result(at, content),
    )
}

fn call(at: usize, arguments: &str) -> String {
    let function = format!(r#"{{"name":"look","arguments":"{arguments}"}}"#);
    format!(r#"{{"id":"c{at:07}","type":"function","function":{function}}}"#)
}

fn result(at: usize, content: &str) -> String {
    format!(r#"{{"role":"tool","tool_call_id":"c{at:07}","content":"{content}"}}"#)
}

/// One message with calls, and their results in the reverse order.
fn calls(bytes: usize) -> String {
    let count = bytes / (call(0, "{}").len() + result(0, "ok").len() + 2);
    let calls: Vec<String> = (0..count).map(|at| call(at, "{}")).collect();
    let results: Vec<String> = (0..count).rev().map(|at| result(at, "ok")).collect();
    let comma = if count == 0 { "" } else { "," };
    format!(
        r#"{{"role":"assistant","content":"a","tool_calls":[{}]}}{comma}{}"#,
        calls.join(","),
        results.join(","),
    )
}

/// A client tool with this schema.
fn tool(schema: &str) -> String {
    format!(
        r#""tools":[{{"type":"function","function":{{"name":"client","parameters":{schema}}}}}]"#
    )
}

fn item_call(at: usize) -> String {
    format!(r#"{{"type":"function_call","call_id":"c{at:07}","name":"look","arguments":"{{}}"}}"#)
}

fn item_output(at: usize, output: &str) -> String {
    format!(r#"{{"type":"function_call_output","call_id":"c{at:07}","output":{output}}}"#)
}

/// Calls, and their outputs in the reverse order.
fn item_calls(bytes: usize) -> String {
    let count = bytes / (item_call(0).len() + item_output(0, r#""ok""#).len() + 2);
    let calls = (0..count).map(item_call);
    let outputs = (0..count).rev().map(|at| item_output(at, r#""ok""#));
    calls.chain(outputs).collect::<Vec<_>>().join(",")
}

shapes! { CHAT: Chat, String => bytes;
    true "chat-messages": |n| chat(&list(n, |_| user("a")));
    false "chat-turns": |n| chat(&list(n, |i| match i % 2 {
        0 => user("a"),
        _ => r#"{"role":"assistant","content":"b"}"#.to_owned(),
    }));
    false "chat-system-messages": |n| chat(&list(n, |_| {
        r#"{"role":"system","content":"a"}"#.to_owned()
    }));
    false "chat-system-messages-later": |n| chat(&format!("{},{}", user("a"), list(n, |_| {
        r#"{"role":"developer","content":"a"}"#.to_owned()
    })));
    false "chat-refusals": |n| chat(&list(n, |_| {
        r#"{"role":"assistant","refusal":"a"}"#.to_owned()
    }));

    false "chat-text": |n| chat(&user(&fill(n, "text ")));
    false "chat-quotes": |n| chat(&user(&fill(n, "\\\"")));
    false "chat-invalid-utf-8": |n| chat(&user(&fill(n, INVALID)));
    false "chat-whitespace": |n| fields(&format!(r#""x":0{}"#, fill(n, " \n")));

    false "chat-rounds": |n| chat(&list(n, |i| round(i, "{}", "ok")));
    true "chat-calls": |n| chat(&calls(n));
    false "chat-equal-calls": |n| chat(&list(n, |_| round(0, "{}", "ok")));
    false "chat-results-of-no-call": |n| chat(&list(n, |i| result(i, "ok")));
    false "chat-argument-lists": |n| {
        let list = list(n, |_| "[]".to_owned());
        chat(&round(0, &format!(r#"{{\"a\":[{list}]}}"#), "ok"))
    };
    false "chat-nested-arguments": |n| chat(&round(0, &fill(n, "["), "ok"));

    false "chat-parts": |n| chat(&parts(&list(n, |_| r#"{"type":"text","text":"a"}"#.to_owned())));
    false "chat-images": |n| chat(&parts(&list(n, |_| image("data:image/png;base64,AAAA"))));
    false "chat-one-image": |n| {
        chat(&parts(&image(&format!("data:image/png;base64,{}", fill(n, "AAAA")))))
    };
    false "chat-file": |n| chat(&parts(&format!(
        r#"{{"type":"file","file":{{"filename":"a","file_data":"data:application/pdf;base64,{}"}}}}"#,
        fill(n, "AAAA"),
    )));

    true "chat-tools": |n| fields(&format!(r#""tools":[{}]"#, list(n, |i| {
        format!(r#"{{"type":"function","function":{{"name":"t{i}","parameters":{{}}}}}}"#)
    })));
    false "chat-equal-tools": |n| fields(&format!(r#""tools":[{}]"#, list(n, |_| {
        r#"{"type":"function","function":{"name":"t"}}"#.to_owned()
    })));
    true "chat-schema-properties": |n| fields(&tool(&format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"type":"string"}}"#)),
    )));
    false "chat-schema-required": |n| fields(&tool(&format!(
        r#"{{"type":"object","properties":{{{}}},"required":[{}]}}"#,
        list(n / 2, |i| format!(r#""k{i:07}":{{}}"#)), list(n / 2, |i| format!(r#""k{i:07}""#)),
    )));
    false "chat-schema-enum": |n| fields(&tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"enum":[{}]}}}}}}"#,
        list(n, |i| format!(r#""v{i}""#)),
    )));
    false "chat-schema-nesting": |n| {
        let deep = nest(100, "a", "0");
        fields(&tool(&format!(r#"{{"a":[{}]}}"#, list(n, |_| deep.clone()))))
    };
    false "chat-response-format": |n| fields(&format!(
        r#""response_format":{{"type":"json_schema","json_schema":{{"name":"a","schema":{{"properties":{{{}}}}}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"type":"string"}}"#)),
    ));
    false "chat-metadata": |n| fields(&format!(
        r#""metadata":{{{}}}"#, list(n, |i| format!(r#""k{i}":"v""#)),
    ));
    false "chat-stop": |n| fields(&format!(
        r#""stop":[{}]"#, list(n, |i| format!(r#""s{i}""#)),
    ));
    false "chat-unknown-fields": |n| fields(&list(n, |i| format!(r#""x{i}":[]"#)));
    false "chat-unknown-nesting": |n| {
        let deep = nest(100, "a", "0");
        fields(&format!(r#""x":[{}]"#, list(n, |_| deep.clone())))
    };
    false "chat-equal-fields": |n| fields(&list(n, |_| r#""user":"a""#.to_owned()));
    false "chat-equal-known-fields": |n| fields(&list(n, |_| r#""seed":1"#.to_owned()));
    false "chat-depth": |n| fields(&format!(r#""x":{}"#, fill(n, "[")));
}

shapes! { RESPONSES: Responses, String => bytes;
    true "responses-items": |n| items(&list(n, |_| user("a")));
    false "responses-answers": |n| items(&list(n, |_| {
        r#"{"role":"assistant","content":[{"type":"output_text","text":"a"}]}"#.to_owned()
    }));
    false "responses-reasoning": |n| items(&list(n, |_| {
        r#"{"type":"reasoning","summary":[]}"#.to_owned()
    }));
    true "responses-calls": |n| items(&item_calls(n));
    false "responses-open-calls": |n| items(&list(n, item_call));
    false "responses-equal-calls": |n| items(&list(n, |_| {
        format!("{},{}", item_call(0), item_output(0, r#""ok""#))
    }));
    false "responses-approvals": |n| items(&list(n, |i| format!(
        r#"{{"type":"mcp_approval_response","approval_request_id":"mcpr_r/m/0/c{i}","approve":true}}"#,
    )));
    false "responses-output-parts": |n| items(&format!("{},{}", item_call(0), item_output(
        0, &format!("[{}]", list(n, |_| r#"{"type":"input_text","text":"a"}"#.to_owned())),
    )));
    false "responses-parts": |n| items(&parts(&list(n, |_| {
        r#"{"type":"input_text","text":"a"}"#.to_owned()
    })));
    false "responses-images": |n| items(&parts(&list(n, |_| {
        r#"{"type":"input_image","image_url":"data:image/png;base64,AAAA"}"#.to_owned()
    })));
    false "responses-text": |n| items(&user(&fill(n, "text ")));
    false "responses-invalid-utf-8": |n| items(&user(&fill(n, INVALID)));
    false "responses-instructions": |n| response("", &format!(
        r#""instructions":"{}""#, fill(n, "text "),
    ));
    true "responses-tools": |n| response("", &format!(r#""tools":[{}]"#, list(n, |i| {
        format!(r#"{{"type":"function","name":"t{i}","parameters":{{}}}}"#)
    })));
    false "responses-format": |n| response("", &format!(
        r#""text":{{"format":{{"type":"json_schema","name":"a","schema":{{"properties":{{{}}}}}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"type":"string"}}"#)),
    ));
    false "responses-metadata": |n| response("", &format!(
        r#""metadata":{{{}}}"#, list(n, |i| format!(r#""k{i}":"v""#)),
    ));
    false "responses-unknown-fields": |n| response("", &list(n, |i| format!(r#""x{i}":[]"#)));
    false "responses-equal-fields": |n| response("", &list(n, |_| r#""user":"a""#.to_owned()));
    false "responses-depth": |n| response("", &format!(r#""x":{}"#, fill(n, "[")));
}
