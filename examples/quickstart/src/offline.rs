//! A small model without network access or a key, so that the examples run anywhere.
//!
//! It is a stand-in, not a language model, and has no knowledge of specific tools. It matches the
//! words of the question with the names, descriptions and schemas of the offered tools, calls those
//! that match, and composes a text from their results. Like any model, it is a
//! `Service<ChatRequest>` with a streaming response.

mod answer;
mod plan;
mod question;
mod schema;
mod value;

use self::plan::{Call, Plan};
use concentric::{
    ChatRequest, ChatResponse, Context as Run, Error, Event, FinishReason, PartKind, ResponseHead,
    Str, Transcript, Usage,
    context::Sleep,
    event::{ToolCallDelta, ToolCallStart},
    id::CallId,
    message::ToolCallPart,
};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt,
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower_service::Service;

/// The notice that an example prints to stderr if it uses this model.
pub const NOTICE: &str =
    "No provider key is set: using an offline stand-in instead of a language model.";

/// The model's name, in the head of its responses.
pub const MODEL: &str = "offline-stand-in";

/// An offline stand-in for a language model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offline {
    pace: Duration,
}

impl Offline {
    /// Creates a model that responds without pauses.
    pub const fn new() -> Self {
        Self {
            pace: Duration::ZERO,
        }
    }

    /// Adds a pause after each word, as a real model has.
    #[must_use]
    pub const fn pace(mut self, pause: Duration) -> Self {
        self.pace = pause;
        self
    }
}

impl Service<ChatRequest> for Offline {
    type Response = ChatResponse<Speech>;
    type Error = Error;
    // The first event is ready immediately, and so is the future.
    type Future = Ready<Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let mut events = VecDeque::new();
        let (reason, words) = match plan::next(&request) {
            Plan::Call(calls) => {
                let words = calls.iter().map(|call| 1 + call.arguments.len()).sum();
                for (index, call) in (0..).zip(calls) {
                    events.extend(tool_call(index, call, &request.context));
                }
                (FinishReason::ToolCalls, words)
            }
            Plan::Say(text) => {
                events.extend(text.split_inclusive(char::is_whitespace).map(Event::text));
                (FinishReason::Stop, count(&text))
            }
        };
        let usage = Usage::new(input_words(&request), words as u64);
        events.push_back(Event::finish(reason, usage));

        let mut head = ResponseHead::default();
        head.provider = Some(Str::from_static("offline"));
        head.model = Some(Str::from_static(MODEL));
        let speech = Speech {
            events,
            pace: self.pace,
            pause: None,
            run: request.context,
        };
        ready(Ok(ChatResponse::new(speech).with_head(head)))
    }
}

/// Returns the events of one tool call: a preview, as models stream it, and the call itself.
fn tool_call(index: u32, call: Call, run: &Run) -> [Event; 3] {
    let id = CallId::new(run.new_id("call_"));
    let arguments = serde_json::Value::Object(call.arguments).to_string();
    let start = ToolCallStart::new(index, id.clone(), call.tool.clone());
    [
        Event::ToolCallStart(Box::new(start)),
        Event::ToolCallDelta(ToolCallDelta::new(index, arguments.as_str())),
        Event::tool_call(ToolCallPart::new(id, call.tool, arguments)),
    ]
}

/// Returns the number of words in a request.
fn input_words(request: &ChatRequest) -> u64 {
    let system: usize = request.system.iter().map(|s| count(&s.text)).sum();
    (system + count_all(&request.transcript)) as u64
}

fn count_all(transcript: &Transcript) -> usize {
    transcript
        .rev()
        .map(|turn| {
            let parts = turn.as_message().parts.iter().map(|part| match &part.kind {
                PartKind::Text(text) => count(text),
                PartKind::ToolCall(call) => 1 + count(call.arguments.as_str()),
                _ => 0,
            });
            let results = turn.results().iter();
            parts.sum::<usize>()
                + results
                    .map(|r| count(&r.outcome.content.text()))
                    .sum::<usize>()
        })
        .sum()
}

fn count(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Response body of [`Offline`], one word at a time.
///
/// The model has no task of its own, so dropping the body stops it.
pub struct Speech {
    events: VecDeque<Event>,
    pace: Duration,
    pause: Option<Sleep>,
    run: Run,
}

impl Stream for Speech {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let event = self.events.pop_front();
        if !self.pace.is_zero() && matches!(event, Some(Event::TextDelta(_))) {
            // The clock of the run, which a test can replace.
            self.pause = Some(self.run.environment().clock().sleep(self.pace));
        }
        Poll::Ready(event.map(Ok))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.events.len(), Some(self.events.len()))
    }
}

impl fmt::Debug for Speech {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speech")
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
