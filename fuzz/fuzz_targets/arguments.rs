//! Arguments of tool calls, which come in pieces, of several calls at once.
#![no_main]

use arbitrary::Arbitrary;
use concentric_core::Event;
use concentric_fuzz::{Cut, Script, ask, check};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Calls {
    api: u8,
    calls: Vec<(u8, Vec<String>)>,
    order: Vec<u8>,
    lengths: Vec<u8>,
    /// After how many of its chunks the answer ends, if it does early.
    early: Option<u16>,
}

fuzz_target!(|answer: Calls| {
    let script = Script::pick(answer.api);
    let calls: Vec<(String, Vec<String>)> = answer
        .calls
        .iter()
        .take(64)
        .map(|(name, pieces)| (format!("tool_{name}"), pieces.clone()))
        .collect();
    if calls.is_empty() {
        return;
    }
    let chunks = script.calls(&calls, &answer.order);
    // The last of them says how the answer ends.
    let early = answer.early.map(|early| usize::from(early) % chunks.len());
    let mut body = String::new();
    for chunk in chunks.iter().take(early.unwrap_or(chunks.len())) {
        body.push_str(&format!("data: {chunk}\n\n"));
    }
    let bytes = body.len();
    let observed = ask(
        script.api(),
        "text/event-stream",
        Cut::new(body.into(), &answer.lengths),
    );
    check(&observed, bytes);
    assert_eq!(observed.error.is_some(), early.is_some());
    let made: Vec<(&str, &str)> = observed
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => Some((&*event.call.name, event.call.arguments.as_str())),
            _ => None,
        })
        .collect();
    let written: Vec<String> = calls.iter().map(|(_, pieces)| pieces.concat()).collect();
    let expected: Vec<(&str, &str)> = match early {
        None => (calls.iter().zip(&written))
            .map(|((name, _), written)| (name.as_str(), written.as_str()))
            .collect(),
        Some(_) => Vec::new(),
    };
    assert_eq!(made, expected);
});
