//! Decodes the lines of the server into events.

use super::wire::{Chunk, Message};
use crate::{
    api::{self, Answer, Framing},
    calls::{Calls, Piece},
};
use concentric_core::{Error, Event, FinishReason, Str, Usage};

/// The state of a response that is being received.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Decoder {
    usage: Usage,
    done: bool,
    reason: Option<Str>,
    calls: Calls,
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    fn take(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        answer.check_error(chunk.error.as_ref(), from)?;
        if answer.head.model.is_none() {
            answer.head.model = chunk.model.filled().map(Str::from);
            answer.changed |= answer.head.model.is_some();
        }
        if chunk.done.0 {
            answer.changed();
            self.done = true;
            self.usage = chunk.usage();
            self.reason = chunk.done_reason.into_filled();
        }
        let message = chunk.message.0.unwrap_or(Message {
            content: chunk.response,
            thinking: chunk.thinking,
            tool_calls: chunk.tool_calls,
        });
        if let Some(text) = message.thinking.into_filled() {
            answer.emit(Event::ReasoningDelta(text));
        }
        if let Some(text) = message.content.into_filled() {
            answer.emit(Event::TextDelta(text));
        }
        for call in message.tool_calls {
            let function = call.function.0.as_ref();
            let piece = Piece {
                // Some versions assign the same index to every call.
                index: None,
                id: call.id.filled(),
                name: function.and_then(|function| function.name.filled()),
                arguments: function
                    .and_then(|function| function.arguments.0.filled())
                    .unwrap_or_default(),
            };
            self.calls.whole(&piece, answer)?;
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn is_whole(&self) -> bool {
        self.done
    }

    fn is_over(&self) -> bool {
        self.done
    }

    fn close(&mut self, answer: &mut Answer) -> Result<(), Error> {
        let reason = match self.reason.as_deref() {
            // The server reports `stop` for tool calls too, and older versions report no reason.
            None | Some("stop") if self.calls.wait_for_results() => FinishReason::ToolCalls,
            None | Some("stop") => FinishReason::Stop,
            Some("length") => FinishReason::Length,
            Some(other) => FinishReason::Other(other.into()),
        };
        let word = self.reason.take();
        self.calls.finish(reason, self.usage, word, answer)
    }
}
