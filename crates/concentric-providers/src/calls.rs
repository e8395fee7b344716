//! Assembles the tool calls of a response from their fragments.

use crate::api::Answer;
use concentric_core::{
    CallId, Error, ErrorKind, Event, Executor, Finish, FinishReason, ProviderData, Str,
    ToolCallDelta, ToolCallEvent, ToolCallPart, ToolCallStart, Usage,
};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Calls {
    list: Vec<Pending>,
    /// The call that the last fragment belongs to.
    last: usize,
}

#[derive(Debug)]
struct Pending {
    index: Option<u64>,
    /// The service's id.
    provider_id: Option<Str>,
    /// The id that was generated for the run.
    id: CallId,
    name: Str,
    arguments: String,
    executor: Executor,
    /// The provider data that must be sent back with the call.
    data: Option<Arc<ProviderData>>,
    legacy: bool,
    /// Whether the call was emitted.
    done: bool,
}

impl Pending {
    fn event(&mut self) -> Event {
        self.done = true;
        let arguments = std::mem::take(&mut self.arguments);
        let part = ToolCallPart::new(self.id.clone(), self.name.clone(), arguments)
            .executed_by(self.executor)
            .with_provider_id(self.provider_id.clone());
        let event = ToolCallEvent::new(part, self.data.take());
        Event::ToolCall(Box::new(event))
    }
}

pub(crate) const TWO_IDS: &str = "the provider sent two ids for one tool call";
pub(crate) const STRAY: &str = "the provider sent a fragment of a tool call that was not started";
const TWO_INDEXES: &str = "the provider sent two indexes for one tool call";
const TWO_NAMES: &str = "the provider sent two names for one tool call";
const NAMELESS: &str = "the provider sent a tool call without a name";

/// A fragment of a call, as sent by a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) index: Option<u64>,
    pub(crate) id: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

impl<'a> Piece<'a> {
    /// A part of the arguments of the call at `index`.
    pub(crate) const fn arguments(index: u64, arguments: &'a str) -> Self {
        Self {
            index: Some(index),
            id: None,
            name: None,
            arguments,
        }
    }
}

impl Calls {
    /// Adds a fragment of a call.
    pub(crate) fn piece(&mut self, piece: &Piece<'_>, answer: &mut Answer) -> Result<(), Error> {
        match self.find(piece, answer)? {
            Some(at) => self.append(at, piece, answer),
            None => self.whole(piece, answer),
        }
    }

    /// Adds a complete call, or the first fragment of one.
    pub(crate) fn whole(&mut self, call: &Piece<'_>, answer: &mut Answer) -> Result<(), Error> {
        if self.list.len() >= answer.limits.tool_calls {
            let what = "the response has more tool calls than the limit";
            return Err(answer.origin().error(ErrorKind::TooLarge, what));
        }
        let at = self.begin(call.index, answer);
        self.append(at, call, answer)
    }

    /// Sets the executor and the provider data of the call at `index`. The data must be sent back.
    pub(crate) fn keep(&mut self, index: u64, executor: Executor, data: Option<Arc<ProviderData>>) {
        if let Some(call) = self.get(index) {
            call.executor = executor;
            call.data = data;
        }
    }

    /// Emits the call at `index` early, since its executor has already received the whole call.
    pub(crate) fn settle(&mut self, index: u64, answer: &mut Answer) -> Result<(), Error> {
        match self.get(index) {
            Some(call) if call.name.is_empty() => Err(answer.protocol(NAMELESS)),
            Some(call) => {
                answer.emit(call.event());
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn get(&mut self, index: u64) -> Option<&mut Pending> {
        let mut calls = self.list.iter_mut().rev();
        calls.find(|call| call.index == Some(index))
    }

    /// Whether the loop must execute a call.
    pub(crate) fn wait_for_results(&self) -> bool {
        self.list.iter().any(|call| call.executor == Executor::Loop)
    }

    /// Adds a fragment of the single call of the deprecated `function_call` API.
    pub(crate) fn legacy(
        &mut self,
        name: Option<&str>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let at = match self.list.iter().position(|call| call.legacy) {
            Some(at) => at,
            // Some servers send the field in every chunk.
            None if name.is_none() => return Ok(()),
            None => self.begin(None, answer),
        };
        if let Some(call) = self.list.get_mut(at) {
            call.legacy = true;
        }
        let piece = Piece {
            index: None,
            id: None,
            name,
            arguments,
        };
        self.append(at, &piece, answer)
    }

    /// The provider data of the call that the last fragment belongs to.
    pub(crate) fn last_data(&mut self) -> Option<&mut Option<Arc<ProviderData>>> {
        self.list.get_mut(self.last).map(|call| &mut call.data)
    }

    /// The call that a fragment belongs to, or `None` if it starts a new one.
    fn find(&self, piece: &Piece<'_>, answer: &Answer) -> Result<Option<usize>, Error> {
        let has_id = |id: &str| {
            let mut calls = self.list.iter();
            calls.rposition(|call| call.provider_id.as_deref() == Some(id))
        };
        let Some(index) = piece.index else {
            // Without an index, the id identifies the call; without either, a name starts a new
            // one.
            return match (piece.id, piece.name) {
                (Some(id), _) => Ok(has_id(id)),
                (None, Some(_)) => Ok(None),
                (None, None) if self.list.is_empty() => Err(answer.protocol(STRAY)),
                (None, None) => Ok(Some(self.list.len() - 1)),
            };
        };
        let mut calls = self.list.iter().enumerate().rev();
        let Some((at, call)) = calls.find(|(_, call)| call.index == Some(index)) else {
            return match piece.id.and_then(has_id) {
                // A changed index within a call is as ambiguous as a changed id.
                Some(_) => Err(answer.protocol(TWO_INDEXES)),
                None => Ok(None),
            };
        };
        match (piece.id, call.provider_id.as_deref()) {
            (Some(new), Some(old)) if new != old => {
                // Some servers send complete calls that all have the index 0. A different id with a
                // name starts another call, but only if the arguments of the current one are
                // complete.
                match serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments) {
                    Ok(_) if piece.name.is_some() => Ok(None),
                    _ => Err(answer.protocol(TWO_IDS)),
                }
            }
            _ => Ok(Some(at)),
        }
    }

    fn begin(&mut self, index: Option<u64>, answer: &Answer) -> usize {
        self.list.push(Pending {
            index,
            provider_id: None,
            id: CallId::new(answer.context.new_id("call_")),
            name: Str::default(),
            arguments: String::new(),
            executor: Executor::Loop,
            data: None,
            legacy: false,
            done: false,
        });
        self.list.len() - 1
    }

    fn append(&mut self, at: usize, piece: &Piece<'_>, answer: &mut Answer) -> Result<(), Error> {
        self.last = at;
        let Some(call) = self.list.get_mut(at) else {
            return Ok(());
        };
        if let (Some(id), None) = (piece.id, &call.provider_id) {
            call.provider_id = Some(id.into());
            answer.changed();
        }
        let mut delta = piece.arguments;
        if call.arguments.len() + delta.len() > answer.limits.tool_arguments {
            let what = "the arguments of a tool call are larger than the limit";
            return Err(answer.origin().error(ErrorKind::TooLarge, what));
        }
        call.arguments.push_str(delta);
        // A fragment without arguments only shows that the connection is alive.
        answer.changed |= !delta.is_empty();
        let index = u32::try_from(at).unwrap_or(u32::MAX);
        match piece.name {
            Some(name) if call.name.is_empty() => {
                call.name = name.into();
                let start = ToolCallStart::new(index, call.id.clone(), call.name.clone());
                answer.emit(Event::ToolCallStart(Box::new(start)));
                // Includes the arguments that arrived before the name.
                delta = &call.arguments;
            }
            // Some servers repeat the name in every fragment.
            Some(name) if call.name != *name => return Err(answer.protocol(TWO_NAMES)),
            _ if call.name.is_empty() => return Ok(()),
            _ => {}
        }
        if !delta.is_empty() {
            answer.emit(Event::ToolCallDelta(ToolCallDelta::new(index, delta)));
        }
        Ok(())
    }

    /// Ends a complete response: queues the calls and the finish. `word` is the reason in the
    /// provider's terms.
    pub(crate) fn finish(
        &mut self,
        reason: FinishReason,
        usage: Usage,
        word: Option<Str>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        if self.list.iter().any(|call| call.name.is_empty()) {
            return Err(answer.protocol(NAMELESS));
        }
        let left = self.list.iter_mut().filter(|call| !call.done);
        answer.events.extend(left.map(Pending::event));
        self.list.clear();
        let mut finish = Finish::new(reason, usage);
        finish.provider_reason = word;
        answer.context.record_usage(&answer.head, usage);
        answer.emit(Event::Finish(Box::new(finish)));
        Ok(())
    }
}
