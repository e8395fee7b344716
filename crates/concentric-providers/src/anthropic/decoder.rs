//! Decodes the events of the service.

use super::{
    block::{Block, Ended},
    wire::{Chunk, Tokens},
};
use crate::{
    api::{self, ANOTHER_RESPONSE, Answer, Framing},
    calls::Calls,
    lenient::Text,
};
use concentric_core::{Error, Executor, FinishReason, Str, Usage};
use serde_json::{Map, Value};

/// The state of a response that is being received.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Decoder {
    // Whether the message has started.
    started: bool,
    // Whether the message has ended.
    stopped: bool,
    // Whether the response is a single JSON body, which is complete if it parses.
    unary: bool,
    open: Option<Block>,
    // The number of blocks.
    blocks: u64,
    // The number of parts of the message, without the calls below.
    parts: usize,
    // Calls for the loop, each with the number of parts before it.
    calls_at: Vec<(u64, usize, Map<String, Value>)>,
    calls: Calls,
    usage: Tokens,
    reason: Option<Str>,
    // Other fields of the message.
    details: Map<String, Value>,
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    fn text<'c>(chunk: &'c Chunk<'_>) -> Option<&'c str> {
        let delta = chunk.delta.0.as_ref().filter(|_| chunk.is_delta())?;
        delta.text.filled()
    }

    #[inline]
    fn take(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        if !chunk.is_delta() {
            return self.take_other(chunk, from, answer);
        }
        let Some(delta) = chunk.delta.0 else {
            return Ok(());
        };
        match &mut self.open {
            Some(block) if block.is_at(chunk.index) => block.delta(delta, &mut self.calls, answer),
            _ => Err(answer.protocol("a delta arrived for a content block that is not open")),
        }
    }

    fn usage(&self) -> Usage {
        self.usage.usage()
    }

    fn is_whole(&self) -> bool {
        self.unary || self.stopped
    }

    fn is_over(&self) -> bool {
        self.stopped
    }

    fn close(&mut self, answer: &mut Answer) -> Result<(), Error> {
        let tokens = std::mem::take(&mut self.usage);
        let counts = [
            ("iterations", &tokens.iterations),
            ("server_tool_use", &tokens.server_tool_use),
        ];
        for (name, value) in counts {
            self.keep(name, value.clone().map(Box::new));
        }
        self.end_details(answer);
        let mut reason = finish_reason(self.reason.as_ref());
        if reason == FinishReason::Stop && self.calls.wait_for_results() {
            reason = FinishReason::ToolCalls;
        }
        for (number, parts, mut data) in self.calls_at.drain(..) {
            if self.parts > parts {
                // The call is emitted at the end; this restores its position in later requests.
                data.insert("followed_by".to_owned(), (self.parts - parts).into());
            }
            if !data.is_empty() {
                let data = answer.data(data.into());
                self.calls.keep(number, Executor::Loop, data);
            }
        }
        let word = self.reason.take();
        self.calls.finish(reason, tokens.usage(), word, answer)
    }
}

impl Decoder {
    fn take_other(
        &mut self,
        chunk: Chunk<'_>,
        from: Framing,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let type_ = chunk.type_.as_str().unwrap_or_default();
        let from = match type_ {
            "error" => Framing::ErrorEvent,
            _ => from,
        };
        answer.check_error(chunk.error.as_deref(), from)?;
        match type_ {
            "message_start" => {
                answer.changed();
                let message = chunk.message.0.map(|message| *message);
                self.start(answer)?;
                message.map_or(Ok(()), |message| self.message(message, answer))
            }
            "content_block_start" => {
                if !self.started {
                    let what = "a content block arrived before the message started";
                    return Err(answer.protocol(what));
                }
                // Some servers do not send the end of a block.
                self.end_block(answer)?;
                let block = chunk.content_block.map_or(Value::Null, |block| *block);
                self.begin_block(block, chunk.index.0, answer)
            }
            "content_block_stop" => match &self.open {
                Some(block) if block.is_at(chunk.index) => self.end_block(answer),
                // The start of the next block has already ended this one.
                _ => Ok(()),
            },
            "message_delta" => {
                if let Some(tokens) = chunk.usage.0 {
                    let before = self.usage.usage();
                    self.usage.update(*tokens);
                    answer.changed |= self.usage.usage() != before;
                }
                let delta = chunk.delta.0.unwrap_or_default();
                let reason = delta.stop_reason.filled();
                answer.changed |= reason.is_some() && reason != self.reason.as_deref();
                self.stop_reason(delta.stop_reason);
                self.keep("stop_sequence", delta.stop_sequence);
                self.keep("stop_details", delta.stop_details);
                self.keep("container", delta.container);
                self.keep("context_management", chunk.context_management);
                Ok(())
            }
            "message_stop" => {
                if !self.started {
                    return Err(answer.protocol("the message ended before it started"));
                }
                self.stopped = true;
                self.end_block(answer)
            }
            "message" => {
                self.start(answer)?;
                self.unary = true;
                self.message(chunk, answer)
            }
            // `ping`, and events of future API versions.
            _ => Ok(()),
        }
    }

    fn start(&mut self, answer: &Answer) -> Result<(), Error> {
        match std::mem::replace(&mut self.started, true) {
            true => Err(answer.protocol(ANOTHER_RESPONSE)),
            false => Ok(()),
        }
    }

    fn message(&mut self, message: Chunk<'_>, answer: &mut Answer) -> Result<(), Error> {
        answer.head.id = message.id.into_filled();
        answer.head.model = message.model.into_filled();
        if let Some(tokens) = message.usage.0 {
            self.usage.update(*tokens);
        }
        if let Some(Value::Array(blocks)) = message.content.map(|content| *content) {
            for block in blocks {
                self.begin_block(block, None, answer)?;
                self.end_block(answer)?;
            }
        }
        self.stop_reason(message.stop_reason);
        self.keep("stop_sequence", message.stop_sequence);
        self.keep("stop_details", message.stop_details);
        self.keep("container", message.container);
        self.keep("context_management", message.context_management);
        Ok(())
    }

    fn begin_block(
        &mut self,
        block: Value,
        index: Option<u64>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let number = self.blocks;
        self.blocks += 1;
        let block = Block::begin(block, index, number, &mut self.calls, answer)?;
        if let Some(model) = block.fallback_model() {
            answer.head.model = Some(model.into());
        }
        self.open = Some(block);
        Ok(())
    }

    fn end_block(&mut self, answer: &mut Answer) -> Result<(), Error> {
        let Some(block) = self.open.take() else {
            return Ok(());
        };
        match block.end(&mut self.calls, answer)? {
            Ended::Nothing => {}
            Ended::Part => self.parts += 1,
            Ended::Call(number, data) => self.calls_at.push((number, self.parts, data)),
        }
        Ok(())
    }

    fn stop_reason(&mut self, reason: Text<'_>) {
        self.reason = reason.into_filled().or(self.reason.take());
    }

    fn keep(&mut self, name: &str, value: Option<Box<Value>>) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            self.details.insert(name.to_owned(), *value);
        }
    }

    /// Emits the service's other fields of the message, if there are any.
    fn end_details(&mut self, answer: &mut Answer) {
        let paused = matches!(self.reason.as_deref(), Some("pause_turn" | "compaction"));
        if self.details.is_empty() && !paused {
            return;
        }
        let mut data = std::mem::take(&mut self.details);
        data.insert("type".to_owned(), "message".into());
        if let Some(reason) = &self.reason {
            data.insert("stop_reason".to_owned(), reason.as_str().into());
        }
        answer.opaque(data.into());
    }
}

fn finish_reason(reason: Option<&Str>) -> FinishReason {
    match reason.map(Str::as_str) {
        None | Some("end_turn" | "stop_sequence") => FinishReason::Stop,
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::Length,
        Some("tool_use") => FinishReason::ToolCalls,
        Some("refusal") => FinishReason::ContentFilter,
        Some(other) => FinishReason::Other(other.into()),
    }
}
