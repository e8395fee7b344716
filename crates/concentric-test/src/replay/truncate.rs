use super::{Recording, Rng};
use serde_json::Value;

/// A place to end a recorded body at, before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The bytes that are left.
    pub length: usize,
    /// Whether the service has said how the answer ends by then; `None` within the event in which
    /// it does.
    pub whole: Option<bool>,
}

/// The places to end `recording` at: the boundaries of its events, or, if it is one JSON value,
/// random places in it; and `more` random places besides.
pub fn cuts(recording: &Recording, more: usize, rng: &mut Rng) -> Vec<Cut> {
    let body = &*recording.body;
    let trimmed = body.trim_ascii();
    if trimmed.starts_with(b"{") || trimmed.starts_with(b"[") {
        let last = body.trim_ascii_end().len();
        return (0..more)
            .map(|_| Cut {
                length: rng.below(last),
                whole: Some(false),
            })
            .collect();
    }
    let events = events(body);
    let terminal = events
        .iter()
        .copied()
        .find(|(start, end)| is_terminal(body.get(*start..*end).unwrap_or_default()));
    let cut = |length: usize| Cut {
        length,
        whole: match terminal {
            None => Some(false),
            Some((start, _)) if length <= start => Some(false),
            Some((_, end)) if length >= end => Some(true),
            Some(_) => None,
        },
    };
    let boundaries = events.iter().map(|(_, end)| cut(*end));
    let random: Vec<Cut> = (0..more).map(|_| cut(rng.below(body.len()))).collect();
    boundaries.chain(random).collect()
}

/// Where each event begins, and where the blank line behind it ends.
fn events(body: &[u8]) -> Vec<(usize, usize)> {
    let mut events = Vec::new();
    let (mut start, mut line, mut at) = (0, 0, 0);
    while let Some(byte) = body.get(at) {
        let length = match (byte, body.get(at + 1)) {
            (b'\r', Some(b'\n')) => 2,
            (b'\r' | b'\n', _) => 1,
            _ => 0,
        };
        if length == 0 {
            at += 1;
            continue;
        }
        let blank = at == line;
        at += length;
        line = at;
        if blank {
            events.push((start, at));
            start = at;
        }
    }
    events
}

/// Whether the event says how the answer ends: its first choice, where it has choices.
fn is_terminal(event: &[u8]) -> bool {
    let event = String::from_utf8_lossy(event);
    let data: Vec<&str> = event
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .collect();
    let Ok(chunk) = serde_json::from_str::<Value>(&data.join("\n")) else {
        return false;
    };
    if chunk
        .get("type")
        .is_some_and(|type_| type_ == "message_stop")
    {
        return true;
    }
    let choices = chunk.get("choices").and_then(Value::as_array);
    choices.into_iter().flatten().any(|choice| {
        let index = choice.get("index").and_then(Value::as_u64);
        let reason = choice.get("finish_reason").and_then(Value::as_str);
        index.unwrap_or(0) == 0 && reason.is_some_and(|reason| !reason.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::events;

    #[test]
    fn events_end_with_a_blank_line() {
        assert_eq!(events(b"a\n\nb\r\n\r\nc\r\rd"), [(0, 3), (3, 8), (8, 11)]);
    }
}
