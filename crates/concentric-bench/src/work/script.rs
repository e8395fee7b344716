//! The mock model, which is always ready and yields one event per poll.

use crate::bare;
use concentric_core::{
    CallId, ChatRequest, ChatResponse, Error, Event, FinishReason, Str, ToolCallPart, Usage,
};
use futures_core::Stream;
use smol_str::SmolStr;
use std::{
    future::{Ready, ready},
    pin::Pin,
    slice,
    sync::LazyLock,
    task::{Context, Poll},
};
use tower_service::Service;

/// The output of the mock model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    /// The given number of text chunks.
    Text(usize),
    /// The same, with chunks that begin and end within words.
    Split(usize),
    /// The given number of calls in each of the given number of turns, then one text chunk.
    Calls { turns: usize, each: usize },
    /// One text chunk, and then nothing.
    Wait,
}

/// The size of a text chunk in bytes.
pub(crate) const CHUNK: usize = 20;

/// The largest numbers of chunks and calls in a run.
const CHUNKS: usize = 4_000;
const CALLS: usize = 200;

pub(crate) fn chunk(i: usize) -> String {
    format!("tok{:04} lorem ipsum ", i % 1_000)
}

fn split_chunk(i: usize) -> String {
    format!("em ipsum tok{:04} lor", i % 1_000)
}

fn arguments(i: usize) -> String {
    format!(r#"{{"i":{}}}"#, i * 100)
}

/// Returns the total size of the tool's results for the first `calls` calls, in bytes.
pub(crate) fn result_bytes(calls: usize) -> u64 {
    let bytes: usize = (0..calls)
        .map(|i| format!(r#"{{"ok":true,"i":{}}}"#, i * 100).len())
        .sum();
    bytes as u64
}

/// The remaining items of a response.
struct Answer<T: 'static, C: 'static> {
    texts: slice::Iter<'static, T>,
    calls: slice::Iter<'static, C>,
    ended: bool,
    waits: bool,
}

/// The items of the mock model, created before the measurement.
struct Items<T, C> {
    texts: Vec<T>,
    split: Vec<T>,
    calls: Vec<C>,
}

const ENOUGH: &str = "a run has at most this many items";

impl<T, C> Items<T, C> {
    fn new(text: impl Fn(String) -> T, call: impl Fn(String, String) -> C) -> Self {
        Self {
            texts: (0..CHUNKS).map(|i| text(chunk(i))).collect(),
            split: (0..CHUNKS).map(|i| text(split_chunk(i))).collect(),
            calls: (0..CALLS)
                .map(|i| call(format!("call_{i}"), arguments(i)))
                .collect(),
        }
    }

    /// Returns the response after the given number of turns.
    fn answer(&'static self, script: Script, turns: usize) -> Answer<T, C> {
        let (texts, chunks, calls) = match script {
            Script::Text(chunks) => (&self.texts, chunks, 0..0),
            Script::Split(chunks) => (&self.split, chunks, 0..0),
            Script::Calls { turns: all, each } if turns < all => {
                (&self.texts, 0, turns * each..(turns + 1) * each)
            }
            Script::Calls { .. } | Script::Wait => (&self.texts, 1, 0..0),
        };
        Answer {
            texts: texts.get(..chunks).expect(ENOUGH).iter(),
            calls: self.calls.get(calls).expect(ENOUGH).iter(),
            ended: false,
            waits: matches!(script, Script::Wait),
        }
    }
}

/// The name of the tool.
pub(crate) const TOOL: &str = "noop";

/// The mock model for Concentric.
#[derive(Clone, Debug)]
pub(crate) struct Model(pub(crate) Script);

/// Response body of [`Model`].
pub(crate) struct Body {
    answer: Answer<Str, ToolCallPart>,
    reason: FinishReason,
}

static ITEMS: LazyLock<Items<Str, ToolCallPart>> = LazyLock::new(|| {
    Items::new(Str::from, |id, arguments| {
        ToolCallPart::new(CallId::new(id), Str::from_static(TOOL), arguments)
    })
});

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<Body>;
    type Error = Error;
    type Future = Ready<Result<ChatResponse<Body>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        respond(self.0, request.transcript.len() - 1)
    }
}

/// Returns the response of [`Model`] after the given number of turns.
pub(super) fn respond(script: Script, turns: usize) -> Ready<Result<ChatResponse<Body>, Error>> {
    let answer = ITEMS.answer(script, turns);
    let reason = match answer.calls.len() {
        0 => FinishReason::Stop,
        _ => FinishReason::ToolCalls,
    };
    ready(Ok(ChatResponse::new(Body { answer, reason })))
}

impl Body {
    #[inline(never)]
    fn poll_other(&mut self) -> Poll<Option<Result<Event, Error>>> {
        if let Some(call) = self.answer.calls.next() {
            return Poll::Ready(Some(Ok(Event::tool_call(call.clone()))));
        }
        if self.answer.waits {
            return Poll::Pending;
        }
        let ended = std::mem::replace(&mut self.answer.ended, true);
        let finish = || Ok(Event::finish(self.reason.clone(), Usage::new(2, 1)));
        Poll::Ready((!ended).then(finish))
    }
}

impl Stream for Body {
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.answer.texts.next() {
            Some(text) => Poll::Ready(Some(Ok(Event::TextDelta(text.clone())))),
            None => self.poll_other(),
        }
    }
}

/// The mock model for the bare stack.
#[derive(Clone, Debug)]
pub(crate) struct BareModel(pub(crate) Script);

/// Response body of [`BareModel`].
pub(crate) struct BareBody {
    answer: Answer<SmolStr, bare::Call>,
}

static BARE_ITEMS: LazyLock<Items<SmolStr, bare::Call>> = LazyLock::new(|| {
    Items::new(SmolStr::from, |id, arguments| bare::Call {
        id: id.into(),
        name: SmolStr::new_static(TOOL),
        arguments: arguments.into(),
    })
});

impl Service<bare::Request> for BareModel {
    type Response = BareBody;
    type Error = bare::Error;
    type Future = Ready<Result<BareBody, bare::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), bare::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: bare::Request) -> Self::Future {
        ready(Ok(BareBody {
            answer: BARE_ITEMS.answer(self.0, request.history.len() - 1),
        }))
    }
}

impl BareBody {
    #[inline(never)]
    fn poll_other(&mut self) -> Poll<Option<Result<bare::Event, bare::Error>>> {
        if let Some(call) = self.answer.calls.next() {
            return Poll::Ready(Some(Ok(bare::Event::Call(Box::new(call.clone())))));
        }
        if self.answer.waits {
            return Poll::Pending;
        }
        let ended = std::mem::replace(&mut self.answer.ended, true);
        Poll::Ready((!ended).then_some(Ok(bare::Event::Finish)))
    }
}

impl Stream for BareBody {
    type Item = Result<bare::Event, bare::Error>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.answer.texts.next() {
            Some(text) => Poll::Ready(Some(Ok(bare::Event::Text(text.clone())))),
            None => self.poll_other(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_its_size() {
        assert_eq!(chunk(0), "tok0000 lorem ipsum ");
        assert_eq!(chunk(1_999).len(), CHUNK);
        assert_eq!(split_chunk(1_999).len(), CHUNK);
    }
}
