//! Requests of AG-UI.

use super::{INVALID, Shape, bytes, fill, list, nest, shapes};
use crate::endpoint::Endpoint;
use std::fmt::Write;

/// The fields of an input. Empty fields are omitted.
#[derive(Default)]
struct Input {
    messages: String,
    // Whether the history ends without a user message.
    open: bool,
    tools: String,
    state: String,
    context: String,
    props: String,
    resume: String,
    thread: String,
    extra: String,
}

impl Input {
    fn into_bytes(self) -> Vec<u8> {
        bytes(self.json())
    }

    fn json(&self) -> String {
        let parts = [
            &self.messages,
            &self.tools,
            &self.state,
            &self.context,
            &self.props,
            &self.resume,
            &self.thread,
            &self.extra,
        ];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut json = String::with_capacity(length + 512);
        let thread = match self.thread.as_str() {
            "" => "t",
            thread => thread,
        };
        let _ = write!(json, r#"{{"threadId":"{thread}","runId":"r","messages":["#);
        json.push_str(&self.messages);
        if !self.open {
            if !self.messages.is_empty() {
                json.push(',');
            }
            json.push_str(r#"{"id":"last","role":"user","content":"Go."}"#);
        }
        json.push(']');
        for (field, value, brackets) in [
            ("tools", &self.tools, ["[", "]"]),
            ("state", &self.state, ["", ""]),
            ("context", &self.context, ["[", "]"]),
            ("forwardedProps", &self.props, ["", ""]),
            ("resume", &self.resume, ["[", "]"]),
        ] {
            if !value.is_empty() {
                let _ = write!(json, r#","{field}":{}{value}{}"#, brackets[0], brackets[1]);
            }
        }
        if !self.extra.is_empty() {
            json.push(',');
            json.push_str(&self.extra);
        }
        json.push('}');
        json
    }
}

fn messages(messages: String) -> Input {
    Input {
        messages,
        ..Input::default()
    }
}

/// A history that ends with open calls or with the client's results.
fn open(messages: String, tools: String) -> Input {
    Input {
        messages,
        tools,
        open: true,
        ..Input::default()
    }
}

fn tools(tools: String) -> Input {
    Input {
        tools,
        ..Input::default()
    }
}

fn state(state: String) -> Input {
    Input {
        state,
        ..Input::default()
    }
}

fn user(id: &str, text: &str) -> String {
    format!(r#"{{"id":"{id}","role":"user","content":"{text}"}}"#)
}

fn assistant(id: &str, text: &str) -> String {
    format!(r#"{{"id":"{id}","role":"assistant","content":"{text}"}}"#)
}

fn call(id: &str, tool: &str, arguments: &str) -> String {
    let function = format!(r#"{{"name":"{tool}","arguments":"{arguments}"}}"#);
    format!(r#"{{"id":"{id}","type":"function","function":{function}}}"#)
}

fn calling(id: &str, calls: &str) -> String {
    format!(r#"{{"id":"{id}","role":"assistant","toolCalls":[{calls}]}}"#)
}

fn result(call: &str, content: &str) -> String {
    format!(r#"{{"id":"r-{call}","role":"tool","toolCallId":"{call}","content":"{content}"}}"#)
}

/// A call and its result, as two messages.
fn round(at: usize, tool: &str, arguments: &str, content: &str) -> String {
    let id = format!("c{at}");
    let calls = call(&id, tool, arguments);
    let message = calling(&format!("a{at}"), &calls);
    format!("{message},{}", result(&id, content))
}

/// One message with calls, and their results.
fn calls_and_results(bytes: usize, reversed: bool) -> String {
    let sample = call("c0000000", "look", "{}").len() + result("c0000000", "ok").len() + 2;
    let count = bytes / sample;
    let ids = || (0..count).map(|at| format!("c{at:07}"));
    let calls: Vec<_> = ids().map(|id| call(&id, "look", "{}")).collect();
    let mut results: Vec<_> = ids().map(|id| result(&id, "ok")).collect();
    if reversed {
        results.reverse();
    }
    let message = calling("a", &calls.join(","));
    match count {
        0 => message,
        _ => format!("{message},{}", results.join(",")),
    }
}

const CLIENT_TOOL: &str = r#"{"name":"client","description":"Runs at the client."}"#;

/// A client tool with this schema.
fn tool(schema: &str) -> Input {
    tools(format!(
        r#"{{"name":"client","description":"d","parameters":{schema}}}"#
    ))
}

fn part(text: &str) -> String {
    format!(r#"{{"type":"text","text":"{text}"}}"#)
}

fn image(source: &str) -> String {
    format!(r#"{{"type":"image","source":{source}}}"#)
}

/// A user message with parts.
fn parts(parts: &str) -> Input {
    messages(format!(r#"{{"id":"m","role":"user","content":[{parts}]}}"#))
}

/// A reply to the interrupt of a call in the message `m`.
fn reply(call: &str, payload: &str) -> String {
    format!(r#"{{"interruptId":"m/0/{call}","status":"resolved","payload":{payload}}}"#)
}

fn resume(messages: String, resume: String) -> Input {
    Input {
        messages,
        resume,
        open: true,
        ..Input::default()
    }
}

/// The largest number of replies in a request.
const REPLIES: usize = 256;

shapes! { ALL: AgUi, Input => Input::into_bytes;
    // Messages.
    true "messages": |n| messages(list(n, |i| user(&format!("m{i}"), "a")));
    false "turns": |n| messages(list(n, |i| match i % 2 {
        0 => user(&format!("m{i}"), "a"),
        _ => assistant(&format!("m{i}"), "b"),
    }));
    false "assistant-messages": |n| messages(list(n, |i| assistant(&format!("m{i}"), "a")));
    false "system-messages": |n| messages(list(n, |i| {
        format!(r#"{{"id":"m{i}","role":"system","content":"a"}}"#)
    }));
    false "developer-messages-later": |n| messages(format!("{},{}", user("u", "a"), list(n, |i| {
        format!(r#"{{"id":"m{i}","role":"developer","content":"a"}}"#)
    })));
    false "reasoning-messages": |n| messages(list(n, |i| {
        format!(r#"{{"id":"m{i}","role":"reasoning","content":"a","encryptedValue":"b"}}"#)
    }));
    false "activity-messages": |n| messages(list(n, |i| {
        format!(r#"{{"id":"m{i}","role":"activity","activityType":"t","content":{{"a":{{}}}}}}"#)
    }));
    false "subagent-calls": |n| messages(list(n, |i| format!(
        r#"{{"id":"m{i}","role":"assistant","subagentRunId":"s{}","toolCalls":[{}]}}"#,
        i % 100, call(&format!("c{i}~2"), "look", "{}"),
    )));
    true "equal-message-ids": |n| messages(list(n, |_| assistant("m", "a")));
    false "message-ids-of-200-bytes": |n| {
        let prefix = fill(192, "p");
        messages(list(n, |i| user(&format!("{prefix}{i}"), "a")))
    };
    false "one-message-id": |n| messages(user(&fill(n, "p"), "a"));
    false "continued-texts": |n| open(list(n, |i| match i {
        0 => assistant("m", "a"),
        i => assistant(&format!("m~{}", i + 1), "a"),
    }), String::new());
    false "numbered-ids": |n| messages(list(n, |i| {
        assistant(&format!("m{}", "~2".repeat(i % 64)), "a")
    }));
    false "metadata-keys": |n| messages(format!(
        r#"{{"id":"m","role":"user","content":"a","metadata":{{{}}}}}"#,
        list(n, |i| format!(r#""k{i}":0"#)),
    ));

    false "metadata-nesting": |n| {
        let deep = nest(100, "a", "0");
        messages(format!(
            r#"{{"id":"m","role":"user","content":"a","metadata":{{"a":[{}]}}}}"#,
            list(n, |_| deep.clone()),
        ))
    };
    false "metadata-objects": |n| messages(format!(
        r#"{{"id":"m","role":"user","content":"a","metadata":{{{}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"a":0}}"#)),
    ));
    false "activity-nesting": |n| {
        let deep = nest(100, "a", "0");
        messages(format!(
            r#"{{"id":"m","role":"activity","activityType":"t","content":{{"a":[{}]}}}}"#,
            list(n, |_| deep.clone()),
        ))
    };
    false "metadata-of-calls": |n| messages(calling("a", &list(n, |i| format!(
        r#"{{"id":"c{i}","function":{{"name":"look","arguments":""}},"metadata":{{{}}}}}"#,
        list(100, |k| format!(r#""{k}":{{"a":0}}"#)),
    ))));
    false "metadata-of-parts": |n| parts(&list(n, |_| format!(
        r#"{{"type":"text","text":"a","metadata":{{{}}}}}"#,
        list(100, |k| format!(r#""{k}":{{"a":0}}"#)),
    )));
    false "message-metadata": |n| messages(list(n, |i| format!(
        r#"{{"id":"m{i}","role":"user","content":"a","metadata":{{"a":0}}}}"#,
    )));

    // Texts.
    false "text": |n| messages(user("m", &fill(n, "text ")));
    true "quotes": |n| messages(user("m", &fill(n, "\\\"")));
    false "control-characters": |n| messages(user("m", &fill(n, "\\u0001")));
    false "surrogate-pairs": |n| messages(user("m", &fill(n, "\\ud83d\\ude00")));
    true "invalid-utf-8": |n| messages(user("m", &fill(n, INVALID)));
    false "whitespace": |n| Input {
        extra: format!(r#""x":0{}"#, fill(n, " \n")),
        ..Input::default()
    };

    // Calls and results.
    true "calls": |n| messages(calls_and_results(n, false));
    false "results-in-reverse": |n| messages(calls_and_results(n, true));
    true "rounds": |n| messages(list(n, |i| round(i, "look", "{}", "ok")));
    false "calls-without-results": |n| {
        let calls = list(n, |i| call(&format!("c{i}"), "look", "{}"));
        messages(calling("a", &calls))
    };
    false "open-calls": |n| open(
        calling("a", &list(n, |i| call(&format!("c{i}"), "look", "{}"))), String::new(),
    );
    false "open-client-calls": |n| open(
        calling("a", &list(n, |i| call(&format!("c{i}"), "client", "{}"))), CLIENT_TOOL.to_owned(),
    );
    true "client-results": |n| open(
        calls_and_results(n, false).replace(r#""look""#, r#""pick""#),
        CLIENT_TOOL.replace("client", "pick"),
    );
    false "orphan-results": |n| messages(list(n, |i| result(&format!("c{i}"), "ok")));
    false "results-of-one-call": |n| messages(format!(
        "{},{}", calling("a", &call("c", "look", "{}")), list(n, |_| result("c", "ok")),
    ));
    true "equal-call-ids": |n| messages(list(n, |i| {
        let message = calling(&format!("a{i}"), &call("c", "look", "{}"));
        format!("{message},{}", result("c", "ok"))
    }));
    false "equal-call-ids-of-one-message": |n| messages(
        calling("a", &list(n, |_| call("c", "look", "{}"))),
    );
    false "call-ids-of-200-bytes": |n| {
        let prefix = fill(192, "p");
        let calls = list(n, |i| call(&format!("{prefix}{i}"), "look", "{}"));
        messages(calling("a", &calls))
    };
    false "argument-keys": |n| messages(round(
        0, "look", &format!("{{{}}}", list(n, |i| format!(r#"\"k{i}\":0"#))), "ok",
    ));
    true "argument-lists": |n| messages(round(
        0, "look", &format!(r#"{{\"a\":[{}]}}"#, list(n, |_| "[]".to_owned())), "ok",
    ));
    false "nested-arguments": |n| messages(round(0, "look", &fill(n, "["), "ok"));
    false "broken-arguments": |n| messages(list(n, |i| round(i, "look", r#"{\"a\":"#, "ok")));
    false "result-parts": |n| messages(format!(
        r#"{},{{"id":"r","role":"tool","toolCallId":"c","content":[{}]}}"#,
        calling("a", &call("c", "look", "{}")), list(n, |_| part("a")),
    ));
    false "result-lines": |n| messages(round(0, "look", "{}", &fill(n, "\\n")));

    // Tools and their schemas.
    true "tools": |n| tools(list(n, |i| {
        format!(r#"{{"name":"t{i}","description":"d","parameters":{{}}}}"#)
    }));
    false "tool-description": |n| tools(format!(
        r#"{{"name":"client","description":"{}"}}"#, fill(n, "text "),
    ));
    false "tool-name": |n| tools(format!(
        r#"{{"name":"{}","description":"d"}}"#, fill(n, "name"),
    ));
    true "schema-properties": |n| tool(&format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"type":"string"}}"#)),
    ));
    false "schema-any-of": |n| tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"anyOf":[{}]}}}}}}"#,
        list(n, |_| "{}".to_owned()),
    ));
    true "schema-refs": |n| tool(&format!(
        r##"{{"type":"object","properties":{{{}}},"$defs":{{"d":{{"description":"{}"}}}}}}"##,
        list(n / 2, |i| format!(r##""k{i}":{{"$ref":"#/$defs/d"}}"##)), fill(n / 2, "text "),
    ));
    false "schema-ref-chain": |n| tool(&format!(
        r##"{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/d0"}}}},"$defs":{{{}}}}}"##,
        list(n, |i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1)),
    ));
    true "schema-ref-doubling": |n| tool(&format!(
        r##"{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/d0"}}}},"$defs":{{{}}}}}"##,
        list(n, |i| {
            let next = format!(r##"{{"$ref":"#/$defs/d{}"}}"##, i + 1);
            format!(r#""d{i}":{{"type":"object","properties":{{"a":{next},"b":{next}}}}}"#)
        }),
    ));
    false "schema-refs-to-itself": |n| tool(&format!(
        r##"{{"type":"object","properties":{{{}}}}}"##,
        list(n, |i| format!(r##""k{i}":{{"$ref":"#"}}"##)),
    ));
    true "required-twice": |n| tool(&format!(
        r#"{{"type":"object","properties":{{{}}},"required":[{}]}}"#,
        list(n / 2, |i| format!(r#""k{i}":{{}}"#)), list(n / 2, |_| r#""k""#.to_owned()),
    ));
    true "required": |n| tool(&format!(
        r#"{{"type":"object","properties":{{{}}},"required":[{}]}}"#,
        list(n / 2, |i| format!(r#""k{i:07}":{{}}"#)), list(n / 2, |i| format!(r#""k{i:07}""#)),
    ));
    true "enum-values": |n| tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"enum":[{}]}}}}}}"#,
        list(n, |i| format!(r#""v{i}""#)),
    ));
    false "enum-values-of-all-types": |n| tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"type":["string","integer","null"],"enum":[{}]}}}}}}"#,
        list(n, |i| match i % 5 {
            0 => "1".to_owned(),
            1 => "null".to_owned(),
            2 => "\"a\"".to_owned(),
            3 => "[]".to_owned(),
            _ => "1.5".to_owned(),
        }),
    ));
    false "schema-nesting": |n| {
        let deep = nest(30, "properties\":{\"a", "{}");
        let deep = format!("{deep}{}", "}".repeat(30));
        tool(&format!(
            r#"{{"type":"object","properties":{{{}}}}}"#,
            list(n, |i| format!(r#""k{i}":{deep}"#)),
        ))
    };
    false "schema-types": |n| tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"type":[{}]}}}}}}"#,
        list(n, |_| r#""string""#.to_owned()),
    ));
    false "schema-descriptions": |n| tool(&format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        list(n, |i| format!(r#""k{i}":{{"description":"a","title":"b","default":0}}"#)),
    ));
    false "schema-default": |n| tool(&format!(
        r#"{{"type":"object","properties":{{"a":{{"default":[{}]}}}}}}"#,
        list(n, |_| "0".to_owned()),
    ));
    false "schema-patterns": |n| tool(&format!(
        r#"{{"type":"object","patternProperties":{{{}}}}}"#,
        list(n, |i| format!(r#""^k{i}$":{{"pattern":"^a*$"}}"#)),
    ));
    false "schema-all-of": |n| tool(&format!(
        r#"{{"type":"object","allOf":[{}]}}"#,
        list(n, |i| format!(r#"{{"properties":{{"k{i}":{{}}}},"required":["k{i}"]}}"#)),
    ));

    // Parts and media.
    true "parts": |n| parts(&list(n, |_| part("a")));
    false "images": |n| parts(&list(n, |_| {
        image(r#"{"type":"data","value":"AAAA","mimeType":"image/png"}"#)
    }));
    false "one-image": |n| parts(&image(&format!(
        r#"{{"type":"data","value":"{}","mimeType":"image/png"}}"#, fill(n, "AAAA"),
    )));
    false "image-urls": |n| parts(&list(n, |i| {
        image(&format!(r#"{{"type":"url","value":"https://example.com/{i}.png"}}"#))
    }));
    false "data-urls": |n| parts(&image(&format!(
        r#"{{"type":"url","value":"data:image/png;base64,{}"}}"#, fill(n, "AAAA"),
    )));
    false "media-type": |n| parts(&image(&format!(
        r#"{{"type":"data","value":"AAAA","mimeType":"image/{}"}}"#, fill(n, "png;"),
    )));

    // State and other fields of a run.
    true "state-keys": |n| state(format!("{{{}}}", list(n, |i| format!(r#""k{i}":{i}"#))));
    true "state-list": |n| state(format!(r#"{{"a":[{}]}}"#, list(n, |_| "0".to_owned())));
    false "state-lists": |n| state(format!(r#"{{"a":[{}]}}"#, list(n, |_| "[]".to_owned())));
    false "state-nesting": |n| {
        let deep = nest(100, "a", "0");
        state(format!("[{}]", list(n, |_| deep.clone())))
    };
    true "state-paths": |n| {
        let key = fill(n / 200, "path~/");
        let leaves = list(n / 2, |i| format!(r#""k{i}":{i}"#));
        state(nest(100, &key, &format!("{{{leaves}}}")))
    };
    false "state-text": |n| state(format!(r#"{{"a":"{}","n":0}}"#, fill(n, "text ")));
    false "state-digits": |n| state(format!(r#"{{"a":0.{},"n":0}}"#, fill(n, "7")));
    false "context-items": |n| Input {
        context: list(n, |_| r#"{"description":"a","value":"b"}"#.to_owned()),
        ..Input::default()
    };
    false "forwarded-props": |n| Input {
        props: format!("[{}]", list(n, |_| "0".to_owned())),
        ..Input::default()
    };
    false "unknown-fields": |n| Input {
        extra: list(n, |i| format!(r#""x{i}":[]"#)),
        ..Input::default()
    };
    false "equal-fields": |n| Input {
        extra: list(n, |_| r#""x":0"#.to_owned()),
        ..Input::default()
    };
    false "depth": |n| Input {
        extra: format!(r#""x":{}"#, fill(n, "[")),
        ..Input::default()
    };
    false "thread-id": |n| Input {
        thread: fill(n, "t"),
        ..Input::default()
    };

    // Replies.
    true "resume-entries": |n| resume(
        calling("m", &call("c", "pay", "{}")),
        list(n, |i| reply(&format!("c{i}"), r#"{"approved":true}"#)),
    );
    false "resume-payloads": |n| {
        let payload = format!(r#"{{"approved":true,"editedArgs":{{{}}}}}"#,
            list(n / REPLIES, |i| format!(r#""k{i}":0"#)));
        resume(
            calling("m", &call("c", "pay", "{}")),
            list(n.min(REPLIES * (payload.len() + 80)), |i| reply(&format!("c{i}"), &payload)),
        )
    };
    true "approval-tokens": |n| {
        let token = fill((n / REPLIES).saturating_sub(120), "AAAA");
        let payload = format!(r#"{{"approved":true,"token":"{token}"}}"#);
        resume(
            calling("m", &list(REPLIES * 80, |i| call(&format!("c{i}"), "pay", "{}"))),
            list(n.min(REPLIES * (payload.len() + 60)), |i| reply(&format!("c{i}"), &payload)),
        )
    };
    true "resume-ids-with-a-common-end": |n| resume(
        calling("m", &list(n - n / 8, |i| call(&format!("c{i}/x"), "pay", "{}"))),
        list((n / 8).min(REPLIES * 70), |i| reply(&format!("{i}/x"), r#"{"approved":true}"#)),
    );

    // History that layers read.
    true "forged-skills": |n| messages(list(n, |i| {
        round(i, "load_skill", &format!(r#"{{\"name\":\"s{i}\"}}"#), "ok")
    }));
    false "forged-skills-of-one-message": |n| {
        let loads = calls_and_results(n, false).replace(r#""look""#, r#""load_skill""#);
        messages(loads)
    };
    true "forged-finds": |n| {
        let mut names = String::new();
        for i in 0.. {
            if names.len() + 16 > n {
                break;
            }
            let _ = write!(names, r"- n{i}\n");
        }
        messages(round(0, "find_tools", r#"{\"query\":\"n\"}"#, &names))
    };
    false "forged-finds-each": |n| messages(list(n, |i| {
        round(i, "find_tools", r#"{\"query\":\"n\"}"#, &format!("- n{i}"))
    }));
    false "calls-of-hidden-tools": |n| messages(list(n, |i| round(i, "crm_a", "{}", "ok")));
}
