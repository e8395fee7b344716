//! Splits the bytes of a response into chunks.

use super::{
    json::{Odd, Splitter},
    template::Template,
};
use crate::{
    api::{Answer, Decoder, Framing},
    repair::repair,
    sse,
};
use bytes::{Bytes, BytesMut};
use concentric_core::{Error, ErrorKind, Event};
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::Value;

/// The detected format of a response.
#[derive(Debug)]
pub(super) enum Input {
    /// Not enough bytes to detect the format.
    Unknown {
        read: BytesMut,
        /// The number of bytes to skip: a byte order mark and white space.
        blank: usize,
        declared_events: bool,
    },
    /// An event stream.
    Events(sse::Decoder, Template),
    /// JSON: a complete response, or several chunks.
    Json(Splitter),
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The result of reading the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A chunk was processed.
    Chunk,
    /// More bytes are needed.
    More,
    /// There are no more chunks.
    End,
}

impl Input {
    pub(super) fn new(headers: &HeaderMap) -> Self {
        let declared_events = headers.get(header::CONTENT_TYPE).is_some_and(|t| {
            t.as_bytes()
                .to_ascii_lowercase()
                .starts_with(b"text/event-stream")
        });
        Self::Unknown {
            read: BytesMut::new(),
            blank: 0,
            declared_events,
        }
    }

    /// Adds bytes; `None` marks the end.
    pub(super) fn push(&mut self, bytes: Option<Bytes>, answer: &Answer) -> Result<(), Error> {
        let ended = bytes.is_none();
        match self {
            Self::Unknown {
                read,
                blank,
                declared_events,
            } => {
                sse::append(read, bytes.unwrap_or_default());
                if *blank == 0 && read.starts_with(BOM) {
                    *blank = BOM.len();
                }
                // Each byte is examined only once.
                let rest = read.get(*blank..).unwrap_or_default();
                let trimmed = rest.trim_ascii_start();
                *blank += rest.len() - trimmed.len();
                let Some(kind) = Kind::of(trimmed, *declared_events, ended) else {
                    return Ok(());
                };
                let (read, limits) = (std::mem::take(read), &answer.limits);
                *self = match kind {
                    Kind::Events => {
                        let decoder = sse::Decoder::new(limits.line, limits.event);
                        Self::Events(decoder, Template::default())
                    }
                    Kind::Json => Self::Json(Splitter::new(limits.event)),
                    Kind::Other => {
                        let what = "the body is neither an event stream nor JSON";
                        let read = String::from_utf8_lossy(&read);
                        return Err(answer.origin().protocol(what, &read));
                    }
                };
                self.push(Some(read.freeze()), answer)?;
                if ended {
                    self.push(None, answer)?;
                }
            }
            Self::Events(decoder, _) => match bytes {
                Some(bytes) => decoder.push(bytes),
                None => decoder.end(),
            },
            Self::Json(splitter) => splitter.push(&bytes.unwrap_or_default()),
        }
        Ok(())
    }

    /// Passes the next chunk to `decoder`. `ended` means that all bytes have arrived.
    pub(super) fn next<D: Decoder>(
        &mut self,
        decoder: &mut D,
        answer: &mut Answer,
        ended: bool,
    ) -> Result<Progress, Error> {
        match self {
            Self::Events(events, template) => next_event(events, template, decoder, answer, ended),
            Self::Json(splitter) => next_object(splitter, decoder, answer, ended),
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
    /// Detects the format from the first significant byte, which `trimmed` starts with, since the
    /// headers of some servers are wrong: an event stream never starts with a bracket, and JSON
    /// starts with nothing else.
    fn of(trimmed: &[u8], declared_events: bool, ended: bool) -> Option<Self> {
        match trimmed {
            [] if ended => Some(Self::Events),
            _ if !ended && BOM.starts_with(trimmed) => None,
            [b'{' | b'[', ..] => Some(Self::Json),
            _ if declared_events => Some(Self::Events),
            _ => {
                let line = |name: &[u8]| {
                    // A prefix of a field name is a truncated event stream.
                    trimmed.starts_with(name) || name.starts_with(trimmed)
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
}

#[inline]
fn next_event<D: Decoder>(
    events: &mut sse::Decoder,
    template: &mut Template,
    decoder: &mut D,
    answer: &mut Answer,
    ended: bool,
) -> Result<Progress, Error> {
    let frame = match events.next() {
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
        Ok(event) if framing == Framing::Event && !frame.tail => {
            take_event(event, template, decoder, answer)?;
        }
        // The specification (WHATWG Encoding) requires the replacement character. The event is
        // complete, so that no character is split.
        _ => {
            template.clear();
            let text = String::from_utf8_lossy(data);
            take(&text, framing, frame.tail, decoder, answer)?;
        }
    }
    Ok(after(decoder))
}

fn next_object<D: Decoder>(
    splitter: &mut Splitter,
    decoder: &mut D,
    answer: &mut Answer,
    ended: bool,
) -> Result<Progress, Error> {
    let taken = splitter.line().and_then(|line| {
        let chunk = serde_json::from_slice::<D::Chunk<'_>>(line).ok()?;
        Some(decoder.take(chunk, Framing::Json, answer))
    });
    if let Some(taken) = taken {
        taken?;
        splitter.pass_line();
        return Ok(after(decoder));
    }
    match splitter.next() {
        Ok(Some(object)) => {
            take(
                &String::from_utf8_lossy(object),
                Framing::Json,
                false,
                decoder,
                answer,
            )?;
            Ok(after(decoder))
        }
        Ok(None) if !ended => Ok(Progress::More),
        Ok(None) => match splitter.rest() {
            [] => Ok(Progress::End),
            _ => Err(truncated(answer)),
        },
        Err(Odd::NotJson(odd)) => {
            let odd = String::from_utf8_lossy(odd);
            Err(answer.origin().protocol("the body is not JSON", &odd))
        }
        Err(Odd::TooLarge) => Err(answer.origin().error(
            ErrorKind::TooLarge,
            "a JSON object in the response is larger than the limit",
        )),
    }
}

/// The progress after a chunk.
#[inline]
fn after(decoder: &impl Decoder) -> Progress {
    match decoder.is_over() {
        true => Progress::End,
        false => Progress::Chunk,
    }
}

/// The error for an incomplete response.
pub(super) fn truncated(answer: &Answer) -> Error {
    answer.origin().error(
        ErrorKind::Truncated,
        "the response ended before it was complete",
    )
}

/// Processes an event of a stream.
#[inline]
fn take_event<D: Decoder>(
    event: &str,
    template: &mut Template,
    decoder: &mut D,
    answer: &mut Answer,
) -> Result<(), Error> {
    if let Some(text) = template.text(event) {
        answer.emit(Event::TextDelta(text.into()));
        return Ok(());
    }
    if event.starts_with('{')
        && let Ok(chunk) = serde_json::from_str::<D::Chunk<'_>>(event)
    {
        return template.take(event, chunk, decoder, answer);
    }
    template.clear();
    take_odd(event, Framing::Event, false, decoder, answer)
}

/// Processes JSON. A `tail` may be truncated.
#[inline]
fn take<D: Decoder>(
    text: &str,
    framing: Framing,
    tail: bool,
    decoder: &mut D,
    answer: &mut Answer,
) -> Result<(), Error> {
    if text.starts_with('{')
        && let Ok(chunk) = serde_json::from_str::<D::Chunk<'_>>(text)
    {
        return decoder.take(chunk, framing, answer);
    }
    take_odd(text, framing, tail, decoder, answer)
}

/// Processes data other than a single valid chunk: a list of chunks, or almost-valid JSON.
#[cold]
fn take_odd<D: Decoder>(
    text: &str,
    framing: Framing,
    tail: bool,
    decoder: &mut D,
    answer: &mut Answer,
) -> Result<(), Error> {
    // `Value` accepts duplicate field names, and keeps the last value.
    match serde_json::from_str::<Value>(&repair(text)) {
        Ok(value) => take_value(&value, framing, decoder, answer),
        // The stream ends here. Whether the response is complete depends on the earlier events.
        Err(error) if tail && is_cut(text, &error) => Ok(()),
        Err(_) if framing == Framing::ErrorEvent => {
            Err(answer.origin().reported(&Value::from(text)))
        }
        Err(_) => {
            let what = match framing {
                Framing::Json => "the body is not JSON",
                _ => "an event is not JSON",
            };
            Err(answer.origin().protocol(what, text))
        }
    }
}

/// Whether `text` is truncated JSON. `error` does not show it if a number is truncated.
fn is_cut(text: &str, error: &serde_json::Error) -> bool {
    error.is_eof() || !text.ends_with(['}', ']'])
}

fn take_value<D: Decoder>(
    value: &Value,
    framing: Framing,
    decoder: &mut D,
    answer: &mut Answer,
) -> Result<(), Error> {
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| take_value(item, framing, decoder, answer)),
        Value::Object(_) => match D::Chunk::deserialize(value) {
            Ok(chunk) => decoder.take(chunk, framing, answer),
            Err(_) => Err(answer.protocol("an event is not a valid chunk")),
        },
        Value::String(_) if framing == Framing::ErrorEvent => Err(answer.origin().reported(value)),
        _ => Ok(()),
    }
}
