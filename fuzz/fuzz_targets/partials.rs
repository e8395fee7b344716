//! A value of a schema, shown while it is written.
use concentric_core::{CustomEvent, Event, FinishReason, StepFinish, Usage};
use concentric_tools::output::{VALUE_FOLLOWS, output};
use serde_json::{Value, json};

pub(crate) fn run(input: (String, Vec<u8>)) {
    let (text, lengths) = input;
    let mut partials = output::<Value>("value").partials::<Value>();
    let follows = CustomEvent::new(VALUE_FOLLOWS, json!({"schema": "value"}));
    partials.push(&Event::Custom(Box::new(follows)));
    let mut rest = text.as_str();
    let mut lengths = lengths.iter().cycle();
    let mut shown = None;
    while !rest.is_empty() {
        let length = lengths
            .next()
            .map_or(rest.len(), |l| usize::from(*l).max(1));
        let length = rest.len().min(length);
        let length = (length..=rest.len())
            .find(|at| rest.is_char_boundary(*at))
            .unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(length);
        shown = partials.push(&Event::text(piece)).or(shown);
        rest = behind;
    }
    let end = StepFinish::new(0, FinishReason::Stop, Usage::default());
    shown = partials.push(&Event::StepFinish(Box::new(end))).or(shown);
    // What is whole shows as it is, whatever the pieces.
    if let Ok(value @ Value::Object(_)) = serde_json::from_str::<Value>(&text) {
        assert_eq!(shown, Some(value));
    }
}
