//! The bytes of a response, as chunks.

use super::{
    answer::{Answer, Framing},
    repair::repair,
    wire::Chunk,
};
use crate::{failure::Failure, sse};
use concentric_core::{Error, ErrorKind};
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// What a response's bytes are.
#[derive(Debug)]
pub(super) enum Input {
    /// Too few have come to tell.
    Unknown { read: Vec<u8>, called_events: bool },
    /// An event stream.
    Events(sse::Decoder),
    /// JSON: an answer, or several chunks of one.
    Json(Vec<u8>),
}

/// What came of looking for the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There was one.
    Chunk,
    /// More bytes are needed.
    More,
    /// There is no other.
    End,
}

impl Input {
    pub(super) fn new(headers: &HeaderMap) -> Self {
        let called_events = headers.get(header::CONTENT_TYPE).is_some_and(|t| {
            t.as_bytes()
                .to_ascii_lowercase()
                .starts_with(b"text/event-stream")
        });
        Self::Unknown {
            read: Vec::new(),
            called_events,
        }
    }

    /// Takes in bytes; `None` says that there are no more.
    pub(super) fn push(&mut self, bytes: Option<&[u8]>, answer: &Answer) -> Result<(), Error> {
        match self {
            Self::Unknown {
                read,
                called_events,
            } => {
                read.extend_from_slice(bytes.unwrap_or_default());
                let Some(kind) = Kind::of(read, *called_events, bytes.is_none()) else {
                    return Ok(());
                };
                let read = std::mem::take(read);
                *self = kind.input(read, answer)?;
                if bytes.is_none() {
                    self.end();
                }
            }
            Self::Events(decoder) => match bytes {
                Some(bytes) => decoder.push(bytes),
                None => decoder.end(),
            },
            Self::Json(read) => read.extend_from_slice(bytes.unwrap_or_default()),
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Self::Events(decoder) = self {
            decoder.end();
        }
    }

    /// Gives the next chunk to `answer`. `ended` says that no more bytes will come.
    pub(super) fn next(&mut self, answer: &mut Answer, ended: bool) -> Result<Progress, Error> {
        match self {
            Self::Events(decoder) => next_event(decoder, answer, ended),
            Self::Json(read) if ended => {
                let read = std::mem::take(read);
                take_body(&read, answer)?;
                Ok(Progress::End)
            }
            _ if ended => Ok(Progress::End),
            _ => Ok(Progress::More),
        }
    }
}

enum Kind {
    Events,
    Json,
    Other,
}

impl Kind {
    /// Tells by the first byte that means something, since servers' headers can't be trusted:
    /// an event stream does not begin with a bracket, and JSON not with anything else.
    fn of(read: &[u8], called_events: bool, ended: bool) -> Option<Self> {
        const BOM: &[u8] = b"\xef\xbb\xbf";
        let trimmed = read.strip_prefix(BOM).unwrap_or(read).trim_ascii_start();
        match trimmed {
            [] if ended => Some(Self::Events),
            _ if !ended && BOM.starts_with(trimmed) => None,
            [b'{' | b'[', ..] => Some(Self::Json),
            _ if called_events => Some(Self::Events),
            _ => {
                let line = |name: &[u8]| {
                    trimmed.starts_with(name) || (!ended && name.starts_with(trimmed))
                };
                let events = [&b":"[..], b"data", b"event", b"id", b"retry"];
                let whole = ended || trimmed.len() >= "event".len();
                match events.iter().any(|name| line(name)) {
                    true if whole => Some(Self::Events),
                    true => None,
                    false => Some(Self::Other),
                }
            }
        }
    }

    fn input(self, read: Vec<u8>, answer: &Answer) -> Result<Input, Error> {
        match self {
            Self::Events => {
                let limits = &answer.config().limits;
                let mut decoder = sse::Decoder::new(limits.line, limits.event);
                decoder.push(&read);
                Ok(Input::Events(decoder))
            }
            Self::Json => Ok(Input::Json(read)),
            Self::Other => Err(answer.origin().protocol(
                "the body is neither an event stream nor JSON",
                &String::from_utf8_lossy(&read),
            )),
        }
    }
}

#[inline]
fn next_event(
    decoder: &mut sse::Decoder,
    answer: &mut Answer,
    ended: bool,
) -> Result<Progress, Error> {
    let frame = match decoder.next() {
        Ok(Some(frame)) => frame,
        Ok(None) if ended => return Ok(Progress::End),
        Ok(None) => return Ok(Progress::More),
        Err(large) => {
            let what = match large {
                sse::TooLarge::Line => "a line of the event stream is larger than the limit",
                sse::TooLarge::Event => "an event of the stream is larger than the limit",
            };
            return Err(answer.origin().error(ErrorKind::TooLarge, what));
        }
    };
    let data = frame.data.trim_ascii();
    if data.is_empty() {
        return Ok(Progress::Chunk);
    }
    if data == b"[DONE]" {
        return Ok(Progress::End);
    }
    let framing = if frame.error {
        Framing::ErrorEvent
    } else {
        Framing::Event
    };
    match std::str::from_utf8(data) {
        Ok(text) => take(text, framing, frame.tail, answer)?,
        // The rules (WHATWG Encoding) want the replacement character, and by now the event is
        // whole, so that no character is cut in two.
        Err(_) => take(&String::from_utf8_lossy(data), framing, frame.tail, answer)?,
    }
    Ok(Progress::Chunk)
}

/// Takes in the JSON of one event. A `tail` may be cut off.
#[inline]
fn take(text: &str, framing: Framing, tail: bool, answer: &mut Answer) -> Result<(), Error> {
    if text.starts_with('{')
        && let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(text)
    {
        return answer.take(chunk, framing);
    }
    take_odd(text, framing, tail, answer)
}

/// Takes in what is not one plain chunk: a list of them, or JSON that is not quite JSON.
#[cold]
fn take_odd(text: &str, framing: Framing, tail: bool, answer: &mut Answer) -> Result<(), Error> {
    // In a `Value`, the last of two fields of one name counts.
    match serde_json::from_str::<Value>(&repair(text)) {
        Ok(value) => take_value(&value, framing, answer),
        // The stream ends here, and whether the answer does is told by what came before.
        Err(error) if tail && is_cut(text, &error) => Ok(()),
        Err(_) if framing == Framing::ErrorEvent => {
            let failure = Failure::of_json(&Value::from(text));
            Err(answer.origin().reported(&failure))
        }
        Err(_) => Err(answer.origin().protocol("an event is not JSON", text)),
    }
}

/// Whether `text` is JSON but for its end. Where a number is cut, `error` does not say so.
fn is_cut(text: &str, error: &serde_json::Error) -> bool {
    error.is_eof() || !text.ends_with(['}', ']'])
}

fn take_value(value: &Value, framing: Framing, answer: &mut Answer) -> Result<(), Error> {
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| take_value(item, framing, answer)),
        Value::Object(_) => match Chunk::deserialize(value) {
            Ok(chunk) => answer.take(chunk, framing),
            Err(_) => Err(answer
                .origin()
                .error(ErrorKind::Protocol, "an event is not a chunk of an answer")),
        },
        Value::String(text) if framing == Framing::ErrorEvent => {
            let failure = Failure::of_json(&Value::from(text.as_str()));
            Err(answer.origin().reported(&failure))
        }
        _ => Ok(()),
    }
}

/// Takes in a body of JSON.
fn take_body(body: &[u8], answer: &mut Answer) -> Result<(), Error> {
    let text = String::from_utf8_lossy(body);
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.starts_with('{')
        && let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(text)
    {
        return answer.take(chunk, Framing::Json);
    }
    let fixed = repair(text);
    // One value, or several one after another (NDJSON).
    for value in serde_json::Deserializer::from_str(&fixed).into_iter::<&RawValue>() {
        match value {
            Ok(value) => take_odd(value.get(), Framing::Json, false, answer)?,
            Err(error) if is_cut(text, &error) => return Err(answer.truncated()),
            Err(_) => return Err(answer.origin().protocol("the body is not JSON", text)),
        }
    }
    Ok(())
}
