//! Places and changes in a conversation.

use concentric_core::{
    Author, Message, Part, PartKind, Role, Round, Str, ToolResult, Transcript, Turn,
};
use std::io;

/// Whether the user wrote a part of the turn. A history of a client may not have authors.
pub(crate) fn is_by_user(turn: &Turn) -> bool {
    let message = turn.as_message();
    let mut authors = message.parts.iter().map(|part| &part.author);
    message.role == Role::User
        && authors.any(|author| matches!(author, Author::User | Author::Unknown))
}

/// The index of the first turn of the current exchange: of the newest messages of the user, and of
/// those before them that the model had not answered when they were added.
///
/// A conversation without a message of the user is one exchange.
pub(crate) fn current_exchange(transcript: &Transcript) -> usize {
    let mut start = None;
    let mut index = transcript.len();
    for turn in transcript.rev() {
        index -= 1;
        if is_by_user(turn) {
            start = Some(index);
        } else if start.is_some() && is_answer(turn) {
            break;
        }
    }
    start.unwrap_or(0)
}

/// The index of the first of the messages of the user with which the newest `exchanges` begin, at least
/// one; 0 if there are fewer.
pub(crate) fn newest_messages(transcript: &Transcript, exchanges: usize) -> usize {
    let (mut start, mut groups, mut is_in_group) = (0, 0, false);
    let mut index = transcript.len();
    for turn in transcript.rev() {
        index -= 1;
        if is_by_user(turn) {
            start = index;
            groups += usize::from(!is_in_group);
            is_in_group = true;
        } else {
            is_in_group = false;
            if groups >= exchanges.max(1) {
                return start;
            }
        }
    }
    match groups >= exchanges.max(1) {
        true => start,
        false => 0,
    }
}

/// Whether the model answered without calling a tool.
fn is_answer(turn: &Turn) -> bool {
    turn.as_message().role == Role::Assistant && turn.as_round().is_none()
}

/// A number that tells turns apart, the same in all processes: FNV-1a of the turn's serialized form.
pub(crate) fn fingerprint(turn: &Turn) -> u64 {
    struct Fnv(u64);
    impl io::Write for Fnv {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    // Turns are read from JSON and can be written as such.
    let _ = serde_json::to_writer(&mut hash, turn);
    hash.0
}

/// A message of a layer, in the place of removed turns.
pub(crate) fn note(layer: &'static str, text: impl Into<Str>) -> Turn {
    let author = Author::Layer { name: layer.into() };
    let part = Part::text(text).by(author);
    Turn::message(Message::new(Role::User, vec![part])).expect("it has no tool calls")
}

/// Returns the turn with changed parts and results; `None` if neither function changes one.
///
/// `part` and `result` return the replacement of what they change. Ids and calls stay.
pub(crate) fn changed(
    turn: &Turn,
    part: impl Fn(&Part) -> Option<Vec<Part>>,
    result: impl Fn(&ToolResult) -> Option<ToolResult>,
) -> Option<Turn> {
    let message = turn.as_message();
    let parts: Vec<Option<Vec<Part>>> = message.parts.iter().map(part).collect();
    let results: Vec<Option<ToolResult>> = turn.results().iter().map(result).collect();
    let has_changed = parts.iter().any(Option::is_some) || results.iter().any(Option::is_some);
    if !has_changed {
        return None;
    }
    let kept = message.parts.iter().zip(parts);
    let parts = kept.flat_map(|(part, changed)| changed.unwrap_or_else(|| vec![part.clone()]));
    let mut message = Message::new(message.role, parts.collect());
    message.id.clone_from(&turn.as_message().id);
    if turn.as_round().is_none() {
        // A message without parts is no message for most providers.
        return match message.parts.is_empty() {
            true => None,
            false => Turn::message(message).ok(),
        };
    }
    let kept = turn.results().iter().zip(results);
    let results = kept.map(|(result, changed)| changed.unwrap_or_else(|| result.clone()));
    Round::new(message, results.collect()).ok().map(Turn::from)
}

/// Whether the part is an image, an audio clip or a document, and its name in text.
pub(crate) fn media(part: &Part) -> Option<&'static str> {
    match &part.kind {
        PartKind::Image(_) => Some("[image]"),
        PartKind::Audio(_) => Some("[audio]"),
        PartKind::File(_) => Some("[document]"),
        _ => None,
    }
}
