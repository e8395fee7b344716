//! The verifier over a table of streams. `tests/clients/verify.mjs` runs the reference client over
//! the same table, so that both must agree on every row.

use concentric_http::ag_ui::{Event, RunStarted, TextMessageStart, Verifier, VerifyError};
use serde::Deserialize;

const STREAMS: &str = include_str!("../fixtures/ag_ui_streams.json");

#[derive(Deserialize)]
struct Stream {
    name: String,
    /// The error of the last event or of the end; absent if the stream is legal.
    error: Option<String>,
    events: Vec<Event>,
}

fn verify(events: &[Event]) -> (usize, Result<(), VerifyError>) {
    let mut verifier = Verifier::new();
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
        assert_eq!(
            result.err().map(|e| e.to_string()),
            stream.error,
            "{}",
            stream.name
        );
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
    let mut verifier = Verifier::new();
    let started = Event::from(RunStarted::new("t", "r"));
    let opened = Event::from(TextMessageStart::new("m"));
    assert!(verifier.verify(&opened).is_err());
    verifier.verify(&started).unwrap();
    verifier.verify(&opened).unwrap();
    for _ in 0..2 {
        assert!(matches!(
            verifier.verify(&opened),
            Err(VerifyError::AlreadyOpen { .. })
        ));
    }
    assert!(!verifier.is_terminated());
    assert_eq!(verifier.finish(), Err(VerifyError::Truncated));
}

#[test]
fn an_unknown_event_must_be_within_a_run() {
    let unknown: Event = serde_json::from_str(r#"{"type":"NEW"}"#).unwrap();
    let mut verifier = Verifier::new();
    assert_eq!(
        verifier.verify(&unknown).unwrap_err().to_string(),
        "NEW: the first event must be RUN_STARTED or RUN_ERROR",
    );
    verifier.verify(&RunStarted::new("t", "r").into()).unwrap();
    verifier.verify(&unknown).unwrap();
}
