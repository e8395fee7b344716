//! Encoding of answers, for both APIs.

use bytes::{BufMut, Bytes, BytesMut};
use concentric_core::{Interrupt, Usage};
use serde::Serialize;

use super::{
    answer::{Answer, Call, Ending, Kind, Message, Piece},
    approval::Approval,
    failure::Failure,
};
use crate::sse;

/// Writes an event without a name.
pub(super) use crate::sse::event as data;

/// The encoding of an answer: whole, or as the events of a stream in the order of the calls.
pub(super) trait Encode: Send + Sync {
    /// The JSON of a whole answer.
    fn whole(&self, answer: &Answer, ending: &Ending) -> Bytes;

    /// The JSON of an answer that has not ended yet.
    fn live(&self) -> Bytes {
        Bytes::new()
    }

    /// The JSON of an answer that failed.
    fn failed(&self, _answer: &Answer, _failure: &Failure) -> Bytes {
        Bytes::new()
    }

    /// Writes the events before the first item.
    fn begin(&mut self, out: &mut BytesMut);

    fn message_start(&mut self, item: usize, message: &Message, out: &mut BytesMut);

    fn piece_start(&mut self, _item: usize, _at: usize, _kind: Kind, _out: &mut BytesMut) {}

    /// Writes a part of a text.
    fn delta(&mut self, item: usize, at: usize, kind: Kind, text: &str, out: &mut BytesMut);

    fn piece_end(&mut self, _item: usize, _at: usize, _piece: &Piece, _out: &mut BytesMut) {}

    fn message_end(&mut self, _item: usize, _message: &Message, _out: &mut BytesMut) {}

    fn call_start(&mut self, item: usize, call: &Call, out: &mut BytesMut);

    fn call_delta(&mut self, item: usize, call: &Call, more: &str, out: &mut BytesMut);

    fn call_end(&mut self, _item: usize, _call: &Call, _out: &mut BytesMut) {}

    /// The item that asks for the approval of an interrupt; `None` if the API has none.
    fn approval_of(&self, _interrupt: &Interrupt) -> Option<Approval> {
        None
    }

    fn approval(&mut self, _item: usize, _approval: &Approval, _out: &mut BytesMut) {}

    /// States that the answer could not be stored.
    fn unstored(&mut self) {}

    /// Writes the end of a complete answer.
    fn finish(&mut self, answer: &Answer, ending: &Ending, out: &mut BytesMut);

    /// Writes the end of an answer that failed.
    fn fail(&mut self, answer: &Answer, failure: &Failure, out: &mut BytesMut);

    /// Writes the end of an answer in place of which the store has the JSON `response`.
    fn replaced(&mut self, _response: &str, _out: &mut BytesMut) {}
}

/// Writes an event with a name.
pub(super) fn event(name: &str, value: &impl Serialize, out: &mut BytesMut) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\n");
    data(value, out);
}

/// The JSON of `value`.
pub(super) fn json(value: &impl Serialize) -> Bytes {
    let mut out = BytesMut::new();
    sse::json(value, &mut out);
    out.freeze()
}

/// The counts of a usage, if any is known.
pub(super) struct Tokens {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) total: u64,
    pub(super) cached: u64,
    pub(super) cache_write: u64,
    pub(super) input_audio: u64,
    pub(super) reasoning: u64,
    pub(super) output_audio: u64,
}

impl Tokens {
    pub(super) fn of(usage: &Usage) -> Option<Self> {
        if *usage == Usage::default() {
            return None;
        }
        let input = usage.input_tokens().unwrap_or(0);
        let output = usage.output_tokens().unwrap_or(0);
        let sum = input.saturating_add(output);
        Some(Self {
            input,
            output,
            total: usage.total_tokens().unwrap_or(sum),
            cached: usage.cached_input_tokens().unwrap_or(0),
            cache_write: usage.cache_write_tokens().unwrap_or(0),
            input_audio: usage.input_audio_tokens().unwrap_or(0),
            reasoning: usage.reasoning_tokens().unwrap_or(0),
            output_audio: usage.output_audio_tokens().unwrap_or(0),
        })
    }
}
