//! Arguments that Gemini sends value by value, each with its path: they are the object that they are of.
use arbitrary::Arbitrary;
use concentric_core::Event;
use concentric_fuzz::{Cut, Json, ask, check};
use serde_json::{Map, Value, json};

#[derive(Arbitrary, Debug)]
pub(crate) struct Call {
    fields: Vec<(u8, Json)>,
    /// How long the pieces of a text are.
    pieces: Vec<u8>,
    /// How many values are in one event.
    each: u8,
    lengths: Vec<u8>,
    quotes: bool,
}

/// `value` without what has no value in it, which no path names.
fn pruned(value: &Value, depth: usize) -> Option<Value> {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().filter_map(|v| pruned(v, depth + 1)).collect();
            (!items.is_empty() && depth < 60).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: Map<_, _> = fields
                .filter_map(|(key, value)| Some((key.clone(), pruned(value, depth + 1)?)))
                .collect();
            (!fields.is_empty() && depth < 60).then_some(Value::Object(fields))
        }
        other => Some(other.clone()),
    }
}

fn write(value: &Value, path: &str, call: &Call, out: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let is_plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
                let path = match is_plain && !call.quotes {
                    true => format!("{path}.{key}"),
                    // As JSON, but for the mark.
                    false => format!("{path}[{}]", Value::from(key.as_str())),
                };
                write(value, &path, call, out);
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                write(value, &format!("{path}[{at}]"), call, out);
            }
        }
        Value::String(text) => {
            let mut rest = text.as_str();
            let mut lengths = call.pieces.iter().cycle();
            loop {
                let length = lengths
                    .next()
                    .map_or(rest.len(), |l| usize::from(*l).max(1));
                let end = (length.min(rest.len())..=rest.len())
                    .find(|at| rest.is_char_boundary(*at))
                    .unwrap_or(rest.len());
                let (piece, behind) = rest.split_at(end);
                rest = behind;
                let mut arg = json!({"jsonPath": path, "stringValue": piece});
                if !rest.is_empty() {
                    arg["willContinue"] = json!(true);
                }
                out.push(arg);
                if rest.is_empty() {
                    break;
                }
            }
        }
        Value::Number(number) => out.push(json!({"jsonPath": path, "numberValue": number})),
        Value::Bool(value) => out.push(json!({"jsonPath": path, "boolValue": value})),
        Value::Null => out.push(json!({"jsonPath": path, "nullValue": "NULL_VALUE"})),
    }
}

pub(crate) fn run(call: Call) {
    let fields = Json::Object(call.fields.clone()).value();
    let Some(expected) = pruned(&fields, 0) else {
        return;
    };
    let mut args = Vec::new();
    write(&expected, "$", &call, &mut args);
    let part = |part: Value| {
        let content = json!({"role": "model", "parts": [part]});
        format!(
            "data: {}\n\n",
            json!({"candidates": [{"content": content}]})
        )
    };
    let mut body = part(json!({"functionCall": {"name": "t", "willContinue": true}}));
    for args in args.chunks(usize::from(call.each % 8) + 1) {
        let call = json!({"partialArgs": args, "willContinue": true});
        body.push_str(&part(json!({"functionCall": call})));
    }
    body.push_str(&part(json!({"functionCall": {}})));
    body.push_str("data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n");
    let bytes = body.len();
    let cut = Cut::new(body.into(), &call.lengths);
    let observed = ask("gemini-generate", "text/event-stream", cut);
    check(&observed, bytes);
    assert!(observed.error.is_none(), "{:?}", observed.error);
    let made: Vec<Value> = observed
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => serde_json::from_str(event.call.arguments.as_str()).ok(),
            _ => None,
        })
        .collect();
    assert_eq!(made, [expected]);
}
