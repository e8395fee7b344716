//! The fields of the protocol's events, according to the schema of the reference implementation. The
//! reference client reads the same fixture (`tests/clients/verify.mjs`).

use crate::support::verify::check_fields;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const EVENTS: &str = include_str!("../fixtures/ag_ui_events.jsonl");

#[test]
fn the_table_of_fields_accepts_every_event() {
    let mut types = BTreeSet::new();
    for line in EVENTS.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(check_fields(&event), Ok(()), "{line}");
        types.insert(event["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(types.len(), 31);
}

#[test]
fn the_table_of_fields_rejects_other_events() {
    for event in [
        json!({"type": "SOMETHING_NEW", "messageId": "m"}),
        json!({"type": "TEXT_MESSAGE_END", "messageId": "m", "new": 1}),
        json!({"type": "TEXT_MESSAGE_END", "messageId": 1}),
        json!({"type": "TEXT_MESSAGE_END"}),
        json!({"messageId": "m"}),
        json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "result": null}),
        json!({"type": "RUN_ERROR", "message": "m", "timestamp": 1.5}),
        json!({"type": "RUN_ERROR", "message": "m", "timestamp": 9_007_199_254_740_992_i64}),
    ] {
        assert!(check_fields(&event).is_err(), "{event}");
    }
}
