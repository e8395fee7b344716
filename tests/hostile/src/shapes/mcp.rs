//! Messages of an MCP client.

use super::{INVALID, Shape, bytes, fill, list, nest, shapes};
use crate::endpoint::Endpoint;

/// The fields that the revision requires in each request.
const META: &str = concat!(
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"#,
    r#""io.modelcontextprotocol/clientCapabilities":{}"#,
);

/// A call with these arguments, and other fields of the parameters.
fn with(arguments: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"look","arguments":{{{arguments}}},"_meta":{{{META}}}{comma}{params}}}}}"#
    )
}

fn call(arguments: &str) -> String {
    with(arguments, "")
}

/// A call with other fields of the message.
fn message(fields: &str) -> String {
    let comma = if fields.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"look","_meta":{{{META}}}}}{comma}{fields}}}"#
    )
}

shapes! { ALL: Mcp, String => bytes;
    false "mcp-argument-keys": |n| call(&list(n, |i| format!(r#""k{i}":0"#)));
    true "mcp-argument-lists": |n| call(&format!(r#""a":[{}]"#, list(n, |_| "[]".to_owned())));
    false "mcp-argument-objects": |n| call(&format!(r#""a":[{}]"#, list(n, |_| r#"{"a":0}"#.to_owned())));
    false "mcp-argument-numbers": |n| call(&format!(r#""a":[{}]"#, list(n, |_| "0".to_owned())));
    false "mcp-argument-nesting": |n| {
        let deep = nest(100, "a", "0");
        call(&format!(r#""a":[{}]"#, list(n, |_| deep.clone())))
    };
    false "mcp-text": |n| call(&format!(r#""a":"{}""#, fill(n, "text ")));
    false "mcp-quotes": |n| call(&format!(r#""a":"{}""#, fill(n, "\\\"")));
    false "mcp-invalid-utf-8": |n| call(&format!(r#""a":"{}""#, fill(n, INVALID)));
    false "mcp-name": |n| {
        let name = fill(n, "look");
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","_meta":{{{META}}}}}}}"#
        )
    };
    false "mcp-id": |n| {
        let id = fill(n, "id");
        format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"tools/call","params":{{"name":"look","_meta":{{{META}}}}}}}"#)
    };
    false "mcp-meta": |n| {
        let meta = list(n, |i| format!(r#""k{i}":{{"a":0}}"#));
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"look","_meta":{{{META},"z":0{}{meta}}}}}}}"#,
            if meta.is_empty() { "" } else { "," },
        )
    };
    false "mcp-input-responses": |n| with("", &format!(r#""inputResponses":{{{}}}"#, list(n, |i| format!(
        r#""i{i}":{{"action":"accept","content":{{"approved":true}}}}"#,
    ))));
    false "mcp-request-state": |n| with("", &format!(r#""requestState":"{}""#, fill(n, "state")));
    false "mcp-unknown-params": |n| with("", &list(n, |i| format!(r#""x{i}":[]"#)));
    true "mcp-unknown-fields": |n| message(&list(n, |i| format!(r#""x{i}":[]"#)));
    false "mcp-equal-fields": |n| message(&list(n, |_| r#""x":0"#.to_owned()));
    false "mcp-equal-known-fields": |n| message(&list(n, |_| r#""id":1"#.to_owned()));
    false "mcp-depth": |n| call(&format!(r#""a":{}"#, fill(n, "[")));
    false "mcp-batch": |n| format!("[{}]", list(n, |i| {
        format!(r#"{{"jsonrpc":"2.0","id":{i},"method":"ping"}}"#)
    }));
}
