//! Requests of `useChat`.

use super::{INVALID, Shape, bytes, fill, list, nest, shapes};
use crate::endpoint::Endpoint;

/// A chat with the given messages.
fn messages(messages: &str) -> String {
    let comma = if messages.is_empty() { "" } else { "," };
    let last = user("last", &text("Go."));
    format!(r#"{{"id":"t","trigger":"submit-message","messages":[{messages}{comma}{last}]}}"#)
}

/// A chat whose last message is an answer with these parts.
fn answer(parts: &str) -> String {
    format!(
        r#"{{"id":"t","messages":[{},{{"id":"a","role":"assistant","parts":[{parts}]}}]}}"#,
        user("u", &text("Go.")),
    )
}

/// A chat with other fields.
fn fields(fields: &str) -> String {
    let comma = if fields.is_empty() { "" } else { "," };
    format!(
        r#"{{"id":"t","messages":[{}]{comma}{fields}}}"#,
        user("u", &text("Go.")),
    )
}

fn user(id: &str, parts: &str) -> String {
    format!(r#"{{"id":"{id}","role":"user","parts":[{parts}]}}"#)
}

fn text(text: &str) -> String {
    format!(r#"{{"type":"text","text":"{text}"}}"#)
}

/// A call with other fields.
fn call(at: usize, state: &str, fields: &str) -> String {
    format!(
        r#"{{"type":"dynamic-tool","toolName":"look","toolCallId":"c{at}","state":"{state}",{fields}}}"#
    )
}

fn done(at: usize) -> String {
    call(at, "output-available", r#""input":{},"output":"ok""#)
}

shapes! { ALL: UseChat, String => bytes;
    true "use-chat-messages": |n| messages(&list(n, |i| user(&format!("m{i}"), &text("a"))));
    false "use-chat-equal-messages": |n| messages(&list(n, |_| user("m", &text("a"))));
    false "use-chat-empty-messages": |n| messages(&list(n, |i| user(&format!("m{i}"), "")));
    true "use-chat-parts": |n| messages(&user("m", &list(n, |_| text("a"))));
    false "use-chat-text": |n| messages(&user("m", &text(&fill(n, "text "))));
    false "use-chat-quotes": |n| messages(&user("m", &text(&fill(n, "\\\""))));
    false "use-chat-invalid-utf-8": |n| messages(&user("m", &text(&fill(n, INVALID))));
    false "use-chat-files": |n| messages(&user("m", &list(n, |_| {
        r#"{"type":"file","mediaType":"image/png","url":"data:image/png;base64,AAAA"}"#.to_owned()
    })));

    true "use-chat-answer-parts": |n| answer(&list(n, |_| text("a")));
    false "use-chat-steps": |n| answer(&list(n, |i| match i % 2 {
        0 => r#"{"type":"step-start"}"#.to_owned(),
        _ => text("a"),
    }));
    false "use-chat-reasoning": |n| answer(&list(n, |_| {
        r#"{"type":"reasoning","text":"a"}"#.to_owned()
    }));
    false "use-chat-data": |n| answer(&list(n, |i| format!(
        r#"{{"type":"data-d","id":"d{i}","data":{{"a":0}}}}"#,
    )));
    false "use-chat-sources": |n| answer(&list(n, |i| format!(
        r#"{{"type":"source-url","sourceId":"s{i}","url":"https://example.com"}}"#,
    )));
    true "use-chat-calls": |n| answer(&list(n, done));
    false "use-chat-equal-calls": |n| answer(&list(n, |_| done(0)));
    false "use-chat-steps-of-calls": |n| answer(&list(n, |i| match i % 2 {
        0 => r#"{"type":"step-start"}"#.to_owned(),
        _ => done(i),
    }));
    false "use-chat-open-calls": |n| {
        answer(&list(n, |i| call(i, "input-available", r#""input":{}"#)))
    };
    true "use-chat-input-keys": |n| answer(&call(0, "output-available", &format!(
        r#""input":{{{}}},"output":0"#, list(n, |i| format!(r#""k{i}":0"#)),
    )));
    false "use-chat-output-lists": |n| answer(&call(0, "output-available", &format!(
        r#""input":{{}},"output":[{}]"#, list(n, |_| "[]".to_owned()),
    )));
    false "use-chat-output-nesting": |n| {
        let deep = nest(100, "a", "0");
        answer(&call(0, "output-available", &format!(
            r#""input":{{}},"output":[{}]"#, list(n, |_| deep.clone()),
        )))
    };
    false "use-chat-raw-input": |n| answer(&call(0, "output-error", &format!(
        r#""rawInput":"{}","errorText":"a""#, fill(n, "["),
    )));
    true "use-chat-approvals": |n| answer(&list(n, |i| call(i, "approval-responded", &format!(
        r#""input":{{}},"approval":{{"id":"a/0/c{i}","approved":true,"signature":"AAAA"}}"#,
    ))));
    false "use-chat-signature": |n| answer(&call(0, "approval-responded", &format!(
        r#""input":{{}},"approval":{{"id":"a/0/c0","approved":true,"signature":"{}"}}"#,
        fill(n, "AAAA"),
    )));
    false "use-chat-descriptors": |n| answer(&call(0, "approval-requested", &format!(
        r#""input":{{}},"approval":{{"id":"a/0/c0","descriptor":[{}]}}"#,
        list(n, |_| "{}".to_owned()),
    )));

    false "use-chat-resume": |n| fields(&format!(r#""resume":[{}]"#, list(n, |i| format!(
        r#"{{"interruptId":"a/0/c{i}","status":"resolved","payload":{{"approved":true}}}}"#,
    ))));
    true "use-chat-other-fields": |n| fields(&list(n, |i| format!(r#""x{i}":[]"#)));
    false "use-chat-other-nesting": |n| {
        let deep = nest(100, "a", "0");
        fields(&format!(r#""x":[{}]"#, list(n, |_| deep.clone())))
    };
    false "use-chat-equal-fields": |n| fields(&list(n, |_| r#""x":0"#.to_owned()));
    false "use-chat-equal-messages-fields": |n| fields(&list(n, |_| r#""messages":[]"#.to_owned()));
    false "use-chat-depth": |n| fields(&format!(r#""x":{}"#, fill(n, "[")));
}
