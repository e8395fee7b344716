use crate::{Recording, Rng};
use serde_json::Value;

/// A position to truncate a recorded body at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The remaining length in bytes.
    pub length: usize,
    /// Whether the remaining bytes contain the terminal event; `None` if they end within it.
    pub whole: Option<bool>,
}

/// Returns the positions to truncate `recording` at: the boundaries of its events, lines or array
/// elements, and `more` random positions. A body that is one JSON object has random positions only.
pub fn cuts(recording: &Recording, more: usize, rng: &mut Rng) -> Vec<Cut> {
    let body = &*recording.body;
    let trimmed = body.trim_ascii();
    let lines = lines(body);
    let is_array = trimmed.starts_with(b"[");
    if lines.is_empty() && (trimmed.starts_with(b"{") || (is_array && !recording.stream)) {
        let last = body.trim_ascii_end().len();
        return (0..more)
            .map(|_| Cut {
                length: rng.below(last),
                whole: Some(false),
            })
            .collect();
    }
    let events = match lines.is_empty() {
        false => lines,
        true if is_array => elements(body),
        true => events(body),
    };
    let mut terminal = events
        .iter()
        .copied()
        .filter(|(start, end)| is_terminal(body.get(*start..*end).unwrap_or_default()));
    let first = terminal.next();
    let last = terminal.next_back();
    let cut = |length: usize| {
        let whole = match (first, last) {
            (None, _) => Some(false),
            (Some((start, _)), _) if length <= start => Some(false),
            // Between the first terminal event and the last, either is right.
            (Some(_), Some((_, again))) if length < again => return None,
            (Some((_, end)), _) if length >= end => Some(true),
            (Some(_), _) => None,
        };
        Some(Cut { length, whole })
    };
    let boundaries = events.iter().filter_map(|(_, end)| cut(*end));
    let random: Vec<Cut> = (0..more)
        .filter_map(|_| cut(rng.below(body.len())))
        .collect();
    boundaries.chain(random).collect()
}

/// Returns the range of each element in an array of objects.
fn elements(body: &[u8]) -> Vec<(usize, usize)> {
    let mut elements = Vec::new();
    let (mut start, mut depth, mut string, mut escaped) = (0, 0_usize, false, false);
    for (at, byte) in body.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = string,
            b'"' => string = !string,
            _ if string => {}
            b'{' => {
                if depth == 0 {
                    start = at;
                }
                depth += 1;
            }
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    elements.push((start, at + 1));
                }
            }
            _ => {}
        }
    }
    elements
}

/// Returns the range of each event, including the blank line after it.
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
    // The last one may have no blank line.
    if start < body.len() {
        events.push((start, body.len()));
    }
    events
}

/// Returns the range of each line, if there are several and each is an object (NDJSON).
fn lines(body: &[u8]) -> Vec<(usize, usize)> {
    let mut start = 0;
    let mut lines = Vec::new();
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let end = start + line.len();
        match serde_json::from_slice::<Value>(line) {
            Ok(Value::Object(_)) => lines.push((start, end)),
            _ if line.trim_ascii().is_empty() => {}
            _ => return Vec::new(),
        }
        start = end;
    }
    if lines.len() < 2 {
        lines.clear();
    }
    lines
}

/// Returns `true` if the event ends the response or its first choice.
fn is_terminal(event: &[u8]) -> bool {
    if let Ok(line) = serde_json::from_slice::<Value>(event)
        && let Some(done) = line.get("done")
    {
        return *done == Value::Bool(true);
    }
    let event = String::from_utf8_lossy(event);
    let data: Vec<&str> = event
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .collect();
    let json = match event.starts_with('{') {
        true => event.into_owned(),
        false => data.join("\n"),
    };
    let Ok(chunk) = serde_json::from_str::<Value>(&json) else {
        return false;
    };
    let type_ = chunk.get("type").and_then(Value::as_str);
    if let Some("message_stop" | "response.completed" | "response.incomplete" | "response.failed") =
        type_
    {
        return true;
    }
    [("choices", "finish_reason"), ("candidates", "finishReason")]
        .iter()
        .any(|(list, reason)| {
            let choices = chunk.get(list).and_then(Value::as_array);
            choices.into_iter().flatten().any(|choice| {
                let index = choice.get("index").and_then(Value::as_u64);
                let reason = choice.get(reason).and_then(Value::as_str);
                index.unwrap_or(0) == 0 && reason.is_some_and(|reason| !reason.is_empty())
            })
        })
}

#[cfg(test)]
mod tests {
    use super::{elements, events};

    #[test]
    fn events_end_with_a_blank_line() {
        let expected = [(0, 3), (3, 8), (8, 11), (11, 12)];
        assert_eq!(events(b"a\n\nb\r\n\r\nc\r\rd"), expected);
    }

    #[test]
    fn elements_end_with_their_bracket() {
        let body = br#"[{"a":"}\"{"} , {"b":{}}]"#;
        assert_eq!(elements(body), [(1, 13), (16, 24)]);
    }
}
