//! Events that differ from the one before only in their text are not parsed: the result is that of a parser.

use crate::{anthropic, common::*};
use concentric_core::{Error, Event};
use futures_util::FutureExt;
use proptest::prelude::*;

/// A JSON string, as it is written.
fn string() -> impl Strategy<Value = String> {
    let texts = [
        "",
        "a",
        "b",
        "index",
        "content",
        "é😀",
        " ",
        r"\n",
        r"\u0061",
        r#"\""#,
        r"\\",
        r#"","x":""#,
        "\t",
        "}",
        "{}",
        "0123456789012345678901234567890123456789",
    ];
    prop::sample::select(texts.to_vec()).prop_map(|text| format!("\"{text}\""))
}

/// Events of OpenAI's chat completions, with strings at A and B.
const CHUNKS: &[&str] = &[
    r#"{"choices":[{"index":0,"delta":{"content":A}}]}"#,
    r#"{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":A},"logprobs":null,"finish_reason":null}]}"#,
    r#"{"id":"2","model":"m","choices":[{"index":0,"delta":{"content":A}}],"usage":null}"#,
    r#"{"choices":[{"index":1,"delta":{"content":A}},{"index":0,"delta":{"content":B}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A}},{"index":0,"delta":{"content":B}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A,"reasoning_content":B}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"reasoning_content":A}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":A}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A},"message":{"content":B}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A},"finish_reason":"stop"}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A},"finish_reason":B}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
    r#"{"choices":[{"index":0,"delta":{"refusal":A}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A,"annotations":[B]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A,"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":B}}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":A}}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A,"content":B}}]}"#,
    r#"{"choices":[{"delta":{"content":A}},{"delta":{"reasoning_details":[{"type":"reasoning.encrypted","data":"d"}]}}]}"#,
    r#"{"id":"1","choices":[]}"#,
    r#"{"id":"2","choices":[{"index":0,"delta":{"content":A}},{"index":1,"delta":{"role":"assistant"}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A},"native_finish_reason":"stop"}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":"\n"},"native_finish_reason":"length"}]}"#,
    r#"{"choices":[{"index":0,"message":{"content":A}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A},"finish_reason":""}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":A,"tool_calls":[{"index":1}]}}]}"#,
    r#"{"error":A,"choices":[{"index":0,"delta":{"content":B}}]}"#,
    "A",
    "1",
];

/// Events of Anthropic's messages.
const MESSAGES: &[&str] = &[
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":A}}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":A}}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":A,"text":B}}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":A}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"text":A,"citation":B}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":B},"delta":{"text":A}}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":A}}"#,
    r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}"#,
    r#"{"type":"content_block_delta","index":2,"delta":{"partial_json":A,"text":B}}"#,
    r#"{"type":"content_block_stop","index":0}"#,
    r#"{"type":"content_block_stop","index":1}"#,
    r#"{"type":"content_block_stop","index":2}"#,
    r#"{"type":"message_delta","delta":{"text":A,"stop_reason":"end_turn"},"usage":{"output_tokens":3}}"#,
    r#"{"type":"ping","delta":{"text":A}}"#,
];

/// Events of which some differ from the one before only in the string at A.
fn events(shapes: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    let texts = prop::collection::vec(string(), 1..5);
    let some = (prop::sample::select(shapes), texts, string()).prop_map(|(shape, texts, b)| {
        let parts: Vec<String> = shape.split('A').map(|part| part.replace('B', &b)).collect();
        texts.iter().map(|a| parts.join(a)).collect::<Vec<_>>()
    });
    prop::collection::vec(some, 0..8).prop_map(|events| events.concat())
}

/// The ids of calls are random.
fn without_ids(events: &[Event]) -> String {
    let all = format!("{events:?}");
    let mut parts = all.split("CallId(\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('"').unwrap().1)
}

type Read = (Vec<Event>, Option<Error>);

/// Asserts that the events are read as when each has a number of its own, so that each is parsed.
fn check(events: &[String], read: impl Fn(String) -> Read) -> Result<(), TestCaseError> {
    let number = |(number, event): (usize, &String)| match event.strip_prefix('{') {
        Some(rest) => format!(r#"{{"number":{number},{rest}"#),
        None => event.clone(),
    };
    let numbered: Vec<String> = events.iter().enumerate().map(number).collect();
    let body = |events: &[String]| -> String {
        events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect()
    };
    let (plain, parsed) = (read(body(events)), read(body(&numbered)));
    let error = |read: &Read| {
        read.1
            .as_ref()
            .map(|error| (error.kind(), error.code().map(str::to_owned)))
    };
    prop_assert_eq!(error(&plain), error(&parsed));
    prop_assert_eq!(without_ids(&plain.0), without_ids(&parsed.0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn chunks_of_openai(events in events(CHUNKS)) {
        check(&events, |body| read(body + &finish("stop") + DONE).now_or_never().unwrap())?;
    }

    #[test]
    fn events_of_anthropic(events in events(MESSAGES)) {
        let start = [
            r#"{"type":"message_start","message":{"id":"m","model":"m","content":[]}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        ];
        let all = start.map(str::to_owned).into_iter().chain(events);
        let all: Vec<String> = all.chain([r#"{"type":"message_stop"}"#.to_owned()]).collect();
        check(&all, |body| {
            let script = Script::new([body], End::Clean);
            read_script(&anthropic::plain(), script).now_or_never().unwrap()
        })?;
    }
}
