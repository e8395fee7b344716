//! The events of the protocol, according to the schema of the reference implementation. The
//! reference client reads the same fixture (`tests/clients/verify.mjs`).

use std::collections::BTreeSet;

use concentric_http::ag_ui::{
    Event, Interrupt, Raw, ReasoningMessageStart, ReasoningRole, RunError, RunFinished,
    RunFinishedOutcome, RunStarted, TextMessageStart, Timestamp, TokenUsage,
};
use serde_json::{Value, json};

const EVENTS: &str = include_str!("../fixtures/ag_ui_events.jsonl");

#[test]
fn every_event_round_trips() {
    let mut types = BTreeSet::new();
    for line in EVENTS.lines() {
        let wire: Value = serde_json::from_str(line).unwrap();
        let event: Event = serde_json::from_str(line).unwrap();
        assert!(!matches!(event, Event::Unknown(_)), "{line}");
        assert_eq!(serde_json::to_value(&event).unwrap(), wire);
        assert_eq!(event.type_name(), wire["type"]);
        types.insert(event.type_name().to_owned());
    }
    assert_eq!(types.len(), 31);
}

#[test]
fn an_unknown_event_is_kept() {
    let wire = json!({"type": "SOMETHING_NEW", "messageId": "m", "nested": {"a": null}});
    let event: Event = serde_json::from_value(wire.clone()).unwrap();
    assert_eq!(event.type_name(), "SOMETHING_NEW");
    assert_eq!(serde_json::to_value(&event).unwrap(), wire);
}

#[test]
fn an_unknown_field_is_ignored() {
    let wire = json!({"type": "TEXT_MESSAGE_END", "messageId": "m", "new": 1});
    let event: Event = serde_json::from_value(wire).unwrap();
    let wire = json!({"type": "TEXT_MESSAGE_END", "messageId": "m"});
    assert_eq!(serde_json::to_value(&event).unwrap(), wire);
}

#[test]
fn a_known_event_with_an_invalid_field_is_rejected() {
    let error = serde_json::from_str::<Event>(r#"{"type":"TEXT_MESSAGE_END","messageId":1}"#);
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("TEXT_MESSAGE_END: invalid type")
    );
    assert!(serde_json::from_str::<Event>(r#"{"messageId":"m"}"#).is_err());
    assert!(serde_json::from_str::<Event>(r#"{"type":1}"#).is_err());
    assert!(serde_json::from_str::<Event>("[]").is_err());
    assert!(serde_json::from_str::<Event>(r#"{"type":"CUSTOM","name":"n"}"#).is_err());
}

#[test]
fn an_optional_null_is_read_as_absent_and_never_written() {
    let event: Event = serde_json::from_value(json!({
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r", "result": null, "outcome": null,
        "rawEvent": null, "metadata": null, "timestamp": null,
    }))
    .unwrap();
    assert_eq!(event, RunFinished::new("t", "r").into());

    let event = Event::from(
        RunFinished::new("t", "r")
            .result(Value::Null)
            .raw_event(Value::Null),
    );
    let wire = json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r"});
    assert_eq!(serde_json::to_value(&event).unwrap(), wire);
}

#[test]
fn a_required_null_is_written() {
    let event = Event::from(Raw::new(Value::Null));
    assert_eq!(
        serde_json::to_string(&event).unwrap(),
        r#"{"type":"RAW","event":null}"#
    );
}

#[test]
fn a_timestamp_is_a_safe_integer() {
    let event = |timestamp: &str| {
        let wire = format!(r#"{{"type":"RUN_ERROR","message":"m","timestamp":{timestamp}}}"#);
        serde_json::from_str::<Event>(&wire)
    };
    assert!(event("1.5").is_err());
    assert!(event("9007199254740992").is_err());
    assert!(event("9007199254740991").is_ok());
    assert!(event("-9007199254740991").is_ok());
    assert_eq!(Timestamp::from_millis(i64::MAX), Timestamp::MAX);
    assert_eq!(Timestamp::from_millis(i64::MIN), Timestamp::MIN);
    assert_eq!(Timestamp::from_millis(7).as_millis(), 7);
}

#[test]
fn a_count_is_a_safe_integer() {
    let usage = TokenUsage {
        input_tokens: Some(u64::MAX),
        ..TokenUsage::default()
    };
    let wire = json!({"inputTokens": 9_007_199_254_740_991_u64});
    assert_eq!(serde_json::to_value(usage).unwrap(), wire);
}

#[test]
fn reasoning_always_has_its_role() {
    let event = Event::from(ReasoningMessageStart::new("r", ReasoningRole::Reasoning));
    let wire = r#"{"type":"REASONING_MESSAGE_START","messageId":"r","role":"reasoning"}"#;
    assert_eq!(serde_json::to_string(&event).unwrap(), wire);
}

#[test]
fn run_outcomes_have_their_wire_form() {
    let wire = |outcome: RunFinishedOutcome| serde_json::to_value(outcome).unwrap();
    assert_eq!(
        wire(RunFinishedOutcome::success()),
        json!({"type": "success"})
    );
    assert_eq!(
        wire(RunFinishedOutcome::pending(["c".to_owned()])),
        json!({"type": "success", "pendingToolCallIds": ["c"]}),
    );
    assert_eq!(
        wire(RunFinishedOutcome::Cancelled),
        json!({"type": "cancelled"})
    );
    assert_eq!(
        wire(RunFinishedOutcome::interrupt([Interrupt::new(
            "i", "approval"
        )
        .message("May I?")])),
        json!({
            "type": "interrupt",
            "interrupts": [{"id": "i", "reason": "approval", "message": "May I?"}],
        }),
    );
}

#[test]
fn only_two_events_are_terminal() {
    assert!(Event::from(RunFinished::new("t", "r")).is_terminal());
    assert!(Event::from(RunError::new("m")).is_terminal());
    assert!(!Event::from(RunStarted::new("t", "r")).is_terminal());
    assert!(!Event::from(TextMessageStart::new("m")).is_terminal());
}

#[test]
fn events_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Event>();
}
