//! The verifier over a table of streams. `tests/clients/verify.mjs` runs the reference client over
//! the same table, so that both must agree on every row.

use crate::support::verify::Verifier;
use serde::Deserialize;
use serde_json::{Value, json};

const STREAMS: &str = include_str!("../fixtures/ag_ui_streams.json");

#[derive(Deserialize)]
struct Stream {
    name: String,
    /// The error of the last event or of the end; absent if the stream is legal.
    error: Option<String>,
    events: Vec<Value>,
}

fn verify(events: &[Value]) -> (usize, Result<(), String>) {
    let mut verifier = Verifier::default();
    for (i, event) in events.iter().enumerate() {
        if let Err(error) = verifier.verify(event) {
            return (i + 1, Err(error));
        }
    }
    (events.len(), verifier.finish())
}

#[test]
fn the_verifier_matches_the_table_of_streams() {
    let streams: Vec<Stream> = serde_json::from_str(STREAMS).unwrap();
    assert!(streams.len() > 80);
    for stream in streams {
        let (taken, result) = verify(&stream.events);
        assert_eq!(result.err(), stream.error, "{}", stream.name);
        assert_eq!(
            taken,
            stream.events.len(),
            "{}: rejected too early",
            stream.name
        );
    }
}

#[test]
fn a_rejected_event_changes_nothing() {
    let mut verifier = Verifier::default();
    let started = json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r"});
    let opened = json!({"type": "TEXT_MESSAGE_START", "messageId": "m"});
    assert!(verifier.verify(&opened).is_err());
    verifier.verify(&started).unwrap();
    verifier.verify(&opened).unwrap();
    for _ in 0..2 {
        let error = verifier.verify(&opened).unwrap_err();
        assert!(error.ends_with("is already open"), "{error}");
    }
    assert!(!verifier.is_terminated());
    assert!(verifier.finish().is_err());
}

#[test]
fn an_unknown_event_must_be_within_a_run() {
    let unknown = json!({"type": "NEW"});
    let mut verifier = Verifier::default();
    assert_eq!(
        verifier.verify(&unknown).unwrap_err(),
        "NEW: the first event must be RUN_STARTED or RUN_ERROR",
    );
    let started = json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r"});
    verifier.verify(&started).unwrap();
    verifier.verify(&unknown).unwrap();
}
