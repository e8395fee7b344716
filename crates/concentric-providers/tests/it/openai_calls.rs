//! Tool calls that are assembled from fragments.

use crate::common::*;
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

// Case F016.
#[tokio::test]
async fn fragments_are_assigned_to_their_calls() {
    let whole = |index, id: &str, name: &str| json!({"index": index, "id": id, "function": {"name": name, "arguments": "{}"}});
    let cases = [
        // Without an index, the id identifies the call (Mistral).
        (
            vec![
                json!({"id": "a", "function": {"name": "t", "arguments": "{\"x\":"}}),
                json!({"id": "b", "function": {"name": "u", "arguments": "{}"}}),
                json!({"id": "a", "function": {"arguments": "1}"}}),
            ],
            Ok(vec![called("a", "t", "{\"x\":1}"), called("b", "u", "{}")]),
        ),
        // Without an index and an id, a fragment belongs to the last call.
        (
            vec![
                json!({"id": "a", "function": {"name": "t", "arguments": "{"}}),
                json!({"function": {"arguments": "}"}}),
            ],
            Ok(vec![called("a", "t", "{}")]),
        ),
        // A late or repeated name.
        (
            vec![
                json!({"index": 0, "id": "a", "function": {"arguments": "{"}}),
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "}"}}),
                json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": ""}}),
            ],
            Ok(vec![called("a", "t", "{}")]),
        ),
        // Complete calls that all have the same index (Gemini).
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
        // Arguments that are not a string, or not JSON.
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
async fn a_changed_id_index_or_name_is_an_error() {
    let open = json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "{"}});
    let cases = [
        (
            json!({"index": 0, "id": "b"}),
            "the provider sent two ids for one tool call",
        ),
        (
            json!({"index": 1, "id": "a"}),
            "the provider sent two indexes for one tool call",
        ),
        (
            json!({"index": 0, "function": {"name": "u"}}),
            "the provider sent two names for one tool call",
        ),
    ];
    for (next, expected) in cases {
        let (_, error) = read(piece(&open) + &piece(&next)).await;
        assert_eq!(error.unwrap().message(), expected, "{next}");
    }
}

#[tokio::test]
async fn a_function_call_field_is_a_call() {
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
    /// In any order of the fragments of several calls, each call gets its own.
    // Case F016.
    #[test]
    fn every_interleaving_yields_the_same_calls(
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

        // The preview matches the calls.
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
