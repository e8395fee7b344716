//! Tool calls, put together from their pieces.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::*;
use concentric_core::{ErrorKind, Event};
use proptest::prelude::*;
use serde_json::json;

fn piece(piece: &serde_json::Value) -> String {
    delta(&json!({ "tool_calls": [piece] }).to_string())
}

fn called(id: &str, name: &str, arguments: &str) -> (Option<String>, String, String) {
    (Some(id.to_owned()), name.to_owned(), arguments.to_owned())
}

async fn read_calls(
    pieces: &[serde_json::Value],
) -> Result<Vec<(Option<String>, String, String)>, ErrorKind> {
    let body: String = pieces.iter().map(piece).collect();
    let (events, error) = read(body + &finish("tool_calls")).await;
    match error {
        None => Ok(calls(&events)),
        Some(error) => {
            assert!(calls(&events).is_empty());
            Err(error.kind())
        }
    }
}

#[tokio::test]
async fn f016_pieces_go_where_they_belong() {
    let whole = |index, id: &str, name: &str| json!({"index": index, "id": id, "function": {"name": name, "arguments": "{}"}});
    let cases = [
        // No index: by the id (Mistral).
        (
            vec![
                json!({"id": "a", "function": {"name": "t", "arguments": "{\"x\":"}}),
                json!({"id": "b", "function": {"name": "u", "arguments": "{}"}}),
                json!({"id": "a", "function": {"arguments": "1}"}}),
            ],
            Ok(vec![called("a", "t", "{\"x\":1}"), called("b", "u", "{}")]),
        ),
        // No index and no id: to the last one.
        (
            vec![
                json!({"id": "a", "function": {"name": "t", "arguments": "{"}}),
                json!({"function": {"arguments": "}"}}),
            ],
            Ok(vec![called("a", "t", "{}")]),
        ),
        // The name late, or repeated.
        (
            vec![
                json!({"index": 0, "id": "a", "function": {"arguments": "{"}}),
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "}"}}),
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": ""}}),
            ],
            Ok(vec![called("a", "t", "{}")]),
        ),
        // Every call whole, under one index (Gemini).
        (
            vec![whole(0, "a", "t"), whole(0, "b", "u")],
            Ok(vec![called("a", "t", "{}"), called("b", "u", "{}")]),
        ),
        // An id or a name that changes within a call.
        (
            vec![
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "{"}}),
                json!({"index": 0, "id": "b", "function": {"arguments": "}"}}),
            ],
            Err(ErrorKind::Protocol),
        ),
        (
            vec![
                whole(0, "a", "t"),
                json!({"index": 0, "function": {"name": "u"}}),
            ],
            Err(ErrorKind::Protocol),
        ),
        (
            vec![whole(0, "a", "t"), whole(1, "a", "t")],
            Err(ErrorKind::Protocol),
        ),
        (
            vec![json!({"function": {"arguments": "{}"}})],
            Err(ErrorKind::Protocol),
        ),
        (
            vec![json!({"index": 0, "id": "a"})],
            Err(ErrorKind::Protocol),
        ),
        // Arguments that are no text, or no JSON.
        (
            vec![
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": {"x": [1]}}}),
            ],
            Ok(vec![called("a", "t", "{\"x\":[1]}")]),
        ),
        (
            vec![json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": null}})],
            Ok(vec![called("a", "t", "")]),
        ),
        (
            vec![json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "{}{}"}})],
            Ok(vec![called("a", "t", "{}{}")]),
        ),
        (
            vec![
                json!({"index": 0, "id": "a", "type": "custom", "custom": {"name": "t", "input": "4 + 4"}}),
            ],
            Ok(vec![called("a", "t", "4 + 4")]),
        ),
    ];
    for (pieces, expected) in cases {
        assert_eq!(read_calls(&pieces).await, expected, "{pieces:?}");
    }
}

#[tokio::test]
async fn what_changes_within_a_call_is_told() {
    let open = json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "{"}});
    let cases = [
        (json!({"index": 0, "id": "b"}), "two ids for one tool call"),
        (
            json!({"index": 1, "id": "a"}),
            "two places for one tool call",
        ),
        (
            json!({"index": 0, "function": {"name": "u"}}),
            "two names for one tool call",
        ),
    ];
    for (next, expected) in cases {
        let (_, error) = read(piece(&open) + &piece(&next)).await;
        assert_eq!(error.unwrap().message(), expected, "{next}");
    }
}

#[tokio::test]
async fn a_legacy_call_is_a_call() {
    let body = delta(r#"{"function_call":{"name":"t","arguments":"{"}}"#)
        + &delta(r#"{"function_call":{"arguments":"}"}}"#)
        + &finish("function_call");
    let (events, _) = read(body).await;
    assert_eq!(calls(&events), [(None, "t".to_owned(), "{}".to_owned())]);
    let (events, _) =
        read(delta(r#"{"function_call":{"name":"","arguments":""}}"#) + &finish("stop")).await;
    assert!(calls(&events).is_empty());
}

proptest! {
    /// Whatever the order of the pieces of several calls, each gets its own.
    #[test]
    fn f016_interleavings(
        arguments in prop::collection::vec("[a-z]{1,12}", 1..5),
        cuts in prop::collection::vec(1_usize..5, 5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 80),
    ) {
        let mut queues: Vec<Vec<serde_json::Value>> = arguments
            .iter()
            .zip(&cuts)
            .enumerate()
            .map(|(index, (arguments, cut))| {
                let mut pieces: Vec<serde_json::Value> = arguments
                    .as_bytes()
                    .chunks(*cut)
                    .map(|piece| {
                        let piece = std::str::from_utf8(piece).unwrap();
                        json!({"index": index, "function": {"arguments": piece}})
                    })
                    .collect();
                pieces[0]["id"] = json!(format!("id{index}"));
                pieces[0]["function"]["name"] = json!(format!("name{index}"));
                pieces.reverse();
                pieces
            })
            .collect();
        let mut pieces = Vec::new();
        for at in order {
            let open: Vec<usize> = (0..queues.len()).filter(|i| !queues[*i].is_empty()).collect();
            if open.is_empty() {
                break;
            }
            let queue = open[at.index(open.len())];
            pieces.push(queues[queue].pop().unwrap());
        }
        let body: String = pieces.iter().map(piece).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (events, error) = runtime.block_on(read(body + &finish("tool_calls")));
        prop_assert!(error.is_none());
        let mut found = calls(&events);
        found.sort();
        let mut expected: Vec<_> = arguments
            .iter()
            .enumerate()
            .map(|(i, a)| called(&format!("id{i}"), &format!("name{i}"), a))
            .collect();
        expected.sort();
        prop_assert_eq!(found, expected);

        // The preview says the same as the calls.
        let mut preview: Vec<(String, String)> = Vec::new();
        for event in &events {
            match event {
                Event::ToolCallStart(start) => {
                    prop_assert_eq!(start.index as usize, preview.len());
                    preview.push((start.name.to_string(), String::new()));
                }
                Event::ToolCallDelta(delta) => {
                    preview[delta.index as usize].1.push_str(&delta.arguments);
                }
                _ => {}
            }
        }
        let whole: Vec<(String, String)> =
            calls(&events).into_iter().map(|(_, name, arguments)| (name, arguments)).collect();
        prop_assert_eq!(preview, whole);
    }
}
