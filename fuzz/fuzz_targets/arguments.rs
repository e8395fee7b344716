//! Arguments of tool calls, which come in pieces, of several calls at once.
use arbitrary::Arbitrary;
use concentric_core::Event;
use concentric_fuzz::{Cut, Script, ask, check};

#[derive(Arbitrary, Debug)]
pub(crate) struct Calls {
    api: u8,
    calls: Vec<(u8, Vec<String>)>,
    order: Vec<u8>,
    lengths: Vec<u8>,
    /// After how many of its chunks the answer ends, if it does early.
    early: Option<u16>,
}

pub(crate) fn run(answer: Calls) {
    let script = Script::pick(answer.api);
    let calls: Vec<(String, Vec<String>)> = answer
        .calls
        .iter()
        .take(64)
        .map(|(name, pieces)| (format!("tool_{name}"), pieces.clone()))
        .collect();
    if calls.is_empty() || !script.streams_arguments() {
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
    let made: Vec<(&str, String)> = observed
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => {
                let arguments = event.call.arguments.as_str();
                Some((&*event.call.name, written_or_none(arguments)))
            }
            _ => None,
        })
        .collect();
    let expected: Vec<(&str, String)> = match early {
        None => (calls.iter())
            .map(|(name, pieces)| (name.as_str(), written_or_none(&pieces.concat())))
            .collect(),
        Some(_) => Vec::new(),
    };
    assert_eq!(made, expected);
}

/// An API may say that there are no arguments where it was said nothing of them.
fn written_or_none(arguments: &str) -> String {
    match arguments {
        "" => "{}".to_owned(),
        written => written.to_owned(),
    }
}
