//! The output of values, results and transcripts is that of their whole texts, between the pieces of a text.

use super::{
    Random, cases,
    stream::{delta, guarded, guarded_answer, random_rules, secrets, split, tick},
};
use concentric_core::{
    CallId, ChatRequest, CustomEvent, Event, Finish, FinishReason, Message, OutputSchema, Part,
    PartKind, Role, Round, ToolCallPart, ToolOutcome, ToolResult, Transcript, Usage,
};
use concentric_layers::guard::{GuardLayer, Parts, Rules};
use serde_json::{Value, json};
use std::sync::Arc;

/// Texts that are not JSON themselves, which would be edited as such.
fn texts(random: &mut Random, text: impl Fn(&mut Random) -> String) -> Vec<String> {
    let count = 1 + random.below(4);
    let all = (0..count).map(|_| text(random));
    let is_plain = |text: &String| !text.trim_start().starts_with(['{', '[']);
    all.filter(is_plain).collect()
}

fn applied(rules: &Rules, texts: &[String]) -> Vec<String> {
    let applied = texts.iter().map(|text| rules.apply(text).into_owned());
    applied.collect()
}

/// A list as JSON, some of whose characters are written as escapes.
fn json_of(texts: &[String], random: &mut Random) -> String {
    let mut json = String::from("[");
    for (at, text) in texts.iter().enumerate() {
        json += if at > 0 { ", \"" } else { "\"" };
        for char in text.chars() {
            let is_escaped = char < ' ' || matches!(char, '"' | '\\') || random.below(8) == 0;
            let mut units = [0; 2];
            match is_escaped {
                true => char
                    .encode_utf16(&mut units)
                    .iter()
                    .for_each(|unit| json += &format!("\\u{unit:04x}")),
                false => json.push(char),
            }
        }
        json.push('"');
    }
    json + "]"
}

fn result(texts: &[String]) -> ToolResult {
    let outcome = ToolOutcome::done(json!(texts).to_string());
    let outcome = outcome.with_data(json!(texts)).and_halt(texts[0].as_str());
    ToolResult::new(CallId::new("c"), texts[0].as_str(), outcome)
}

fn conversation(texts: &[String]) -> Transcript {
    let text = || texts[0].as_str();
    let arguments = json!(texts).to_string();
    let call = ToolCallPart::new(CallId::new("c"), text(), arguments.as_str());
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::text(text()),
            Part::new(PartKind::Reasoning(text().into())),
            Part::new(PartKind::ToolCall(call)),
        ],
    );
    let mut transcript = Transcript::new();
    transcript.push_user(text());
    transcript.push(Round::new(message, vec![result(texts)]).unwrap());
    transcript
}

/// Values that may be between the pieces of a text.
fn values(texts: &[String]) -> [Event; 2] {
    [
        Event::State(Arc::new(json!(texts))),
        Event::from(CustomEvent::new("x", json!(texts))),
    ]
}

/// Events after the text.
fn ends(texts: &[String]) -> [Event; 3] {
    let mut finish = Finish::new(FinishReason::Stop, Usage::default());
    finish.transcript = Some(conversation(texts));
    [
        Event::ToolResult(Box::new(result(texts))),
        Event::TranscriptReplaced(conversation(texts)),
        Event::Finish(Box::new(finish)),
    ]
}

/// The released text, and the other events.
fn divided(events: Vec<Event>) -> (String, Vec<Event>) {
    let mut text = String::new();
    let others = events.into_iter().filter(|event| match event {
        Event::TextDelta(piece) | Event::ReasoningDelta(piece) | Event::RefusalDelta(piece) => {
            text += piece;
            false
        }
        _ => *event != tick(),
    });
    let others = others.collect();
    (text, others)
}

// Case F056. `GUARD_CASES=10000000` is the whole bar, of values.
#[test]
fn values_between_the_pieces_of_a_text_have_the_output_of_their_whole_texts() {
    let (mut left, mut random) = cases(2_000);
    let secrets = secrets();
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    while left > 0 {
        let (rules, text) = random_rules(&mut random, &secrets);
        let layer = GuardLayer::new(rules.clone()).input(Parts::NONE);
        let layer = layer.output(Parts::ALL);
        for _ in 0..30 {
            let (texts, text) = (texts(&mut random, &text), text(&mut random));
            if texts.is_empty() {
                continue;
            }
            let whole = applied(&rules, &texts);
            let kind = random.below(3);
            let (mut events, mut expected) = (Vec::new(), Vec::new());
            for piece in split(&text, &mut random) {
                events.push(delta(kind, piece));
                if random.below(4) == 0 {
                    let at = random.below(2);
                    events.push(values(&texts)[at].clone());
                    expected.push(values(&whole)[at].clone());
                }
            }
            events.extend(ends(&texts));
            expected.extend(ends(&whole));
            left = left.saturating_sub(expected.len() as u64);
            let released = divided(guarded(&layer, events.clone()));
            let expected = (rules.apply(&text).into_owned(), expected);
            assert_eq!(released, expected, "{events:?}");
        }
    }
}

// Case F056. `GUARD_CASES=10000000` is the whole bar, of answers.
#[test]
fn a_split_typed_answer_has_the_output_of_the_whole_value() {
    let (mut left, mut random) = cases(2_000);
    let secrets = secrets();
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    let mut request = ChatRequest::new(Transcript::new());
    let schema = OutputSchema::new("list", json!({"type": "array"}));
    request.options_mut().output_schema = Some(schema);
    while left > 0 {
        let (rules, text) = random_rules(&mut random, &secrets);
        let layer = GuardLayer::new(rules.clone()).input(Parts::NONE);
        for _ in 0..8 {
            let texts = texts(&mut random, &text);
            let whole = json!(applied(&rules, &texts));
            let json = json_of(&texts, &mut random);
            for _ in 0..4.min(left) {
                left -= 1;
                let mut events = Vec::new();
                for piece in split(&json, &mut random) {
                    events.push(delta(0, piece));
                    if random.below(8) == 0 {
                        events.push(tick());
                    }
                }
                events.push(super::stream::finish());
                let (text, _) = divided(guarded_answer(&layer, request.clone(), events.clone()));
                let value: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(value, whole, "{text} of {events:?}");
            }
        }
    }
}
