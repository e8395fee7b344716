//! Tool calls and their results.

use concentric_core::{
    CallId, Executor, OutcomeSource, Str, ToolCallPart, ToolOutcome, ToolResult, ToolStatus,
};
use serde_json::Value;

use super::{
    Lane, Out, Wire,
    convert::{content, status},
    encode,
};
use crate::run::{Metadata, STATUS};

/// A tool call that is known to the client.
#[derive(Debug)]
pub(super) struct Call {
    /// The client's id of the call.
    pub(super) id: Str,
    /// The id of the message with the call, if it was sent in this run.
    pub(super) message: Option<Str>,
    pub(super) executor: Executor,
    /// Whether the arguments are incomplete.
    pub(super) open: bool,
    /// Whether any arguments were sent.
    pub(super) shown: bool,
    pub(super) answered: bool,
}

impl Lane {
    pub(super) fn preview(&mut self, index: u32, id: &CallId, name: &str, out: &mut Out) {
        // Of two calls with the same id, one gets another id later. Only the complete calls show
        // which one these deltas belong to.
        if self.call_of_turn(id).is_some() {
            self.previews.remove(&index);
            return;
        }
        let at = self.open_call(id, name, Executor::Loop, out);
        self.previews.insert(index, at);
    }

    pub(super) fn preview_delta(&mut self, index: u32, arguments: &str, out: &mut Out) {
        if arguments.is_empty() {
            return;
        }
        let at = self.previews.get(&index);
        if let Some(call) = at.and_then(|at| self.calls.get_mut(*at))
            && call.open
        {
            call.shown = true;
            let id = call.id.clone();
            self.arguments(&id, arguments, out);
        }
    }

    fn arguments(&self, call: &str, arguments: &str, out: &mut Out) {
        match self.owner {
            None => encode::tool_call_args(call, arguments, &mut out.buffer),
            Some(_) => {
                let (tool_call_id, delta) = (call, arguments);
                self.write(
                    Wire::ToolCallArgs {
                        tool_call_id,
                        delta,
                    },
                    out,
                );
            }
        }
    }

    /// The newest call with this id, if it was made since the step began.
    fn call_of_turn(&self, id: &CallId) -> Option<usize> {
        let at = self.calls_by_id.get(id).copied();
        at.filter(|at| *at >= self.turn)
    }

    fn open_call(
        &mut self,
        call_id: &CallId,
        name: &str,
        executor: Executor,
        out: &mut Out,
    ) -> usize {
        self.close_message(out);
        let id = out.ids.calls.unique(call_id.as_str());
        let parent = self.step_message(out);
        // The client creates a message with this id for the call if there is none.
        self.mark_sent(&parent);
        let started = Wire::ToolCallStart {
            tool_call_id: &id,
            tool_call_name: name,
            parent_message_id: &parent,
        };
        self.write(started, out);
        let at = self.calls.len();
        self.calls.push(Call {
            id,
            message: Some(parent),
            executor,
            open: true,
            shown: false,
            answered: false,
        });
        self.calls_by_id.insert(call_id.clone(), at);
        at
    }

    pub(super) fn tool_call(&mut self, call: &ToolCallPart, out: &mut Out) {
        self.close_message(out);
        let preview = self
            .call_of_turn(&call.id)
            .filter(|at| self.calls.get(*at).is_some_and(|call| call.open));
        let at =
            preview.unwrap_or_else(|| self.open_call(&call.id, &call.name, call.executor, out));
        let Some(entry) = self.calls.get_mut(at) else {
            return;
        };
        entry.executor = call.executor;
        if !entry.shown {
            entry.shown = true;
            let id = entry.id.clone();
            self.arguments(&id, arguments(call), out);
        }
        self.close_call(at, out);
    }

    fn close_call(&mut self, at: usize, out: &mut Out) {
        if let Some(call) = self.calls.get_mut(at)
            && std::mem::take(&mut call.open)
        {
            let id = call.id.clone();
            self.write(Wire::ToolCallEnd { tool_call_id: &id }, out);
        }
    }

    /// Writes a cancelled result for the calls from index `from` on that `which` selects, so that
    /// the client does not execute them and its history is complete.
    pub(super) fn withdraw(&mut self, from: usize, which: impl Fn(&Call) -> bool, out: &mut Out) {
        for at in from..self.calls.len() {
            let Some(call) = self.calls.get_mut(at).filter(|call| which(call)) else {
                continue;
            };
            call.answered = true;
            let id = call.id.clone();
            self.close_call(at, out);
            let mut metadata = Metadata::new();
            metadata.insert(STATUS.to_owned(), status(ToolStatus::Cancelled).into());
            self.write_result(&id, "The call was withdrawn.".into(), metadata, out);
        }
    }

    pub(in super::super) fn tool_result(&mut self, result: &ToolResult, out: &mut Out) {
        let at = self.calls_by_id.get(&result.call_id).copied();
        // A resumed round emits all of its results again, some of which the client already has.
        if at.is_some_and(|at| at < self.earlier && self.calls.get(at).is_some_and(|c| c.answered))
        {
            return;
        }
        self.close_message(out);
        if let Some(at) = at {
            self.close_call(at, out);
        }
        let call = at.and_then(|at| self.calls.get_mut(at));
        let id = match call {
            Some(call) => {
                call.answered = true;
                call.id.clone()
            }
            None => Str::from(result.call_id.as_str()),
        };
        let outcome = &result.outcome;
        self.write_result(&id, content(&outcome.content), metadata(outcome), out);
    }

    fn write_result(&mut self, call: &str, content: Value, metadata: Metadata, out: &mut Out) {
        let wanted = out.context.new_id("msg_");
        let id = out.ids.messages.unique(&wanted);
        let result = Wire::ToolCallResult {
            message_id: &id,
            tool_call_id: call,
            content,
            role: "tool",
            metadata,
        };
        self.write(result, out);
    }
}

/// The arguments of a call. Empty arguments mean no arguments, but clients parse them as JSON.
pub(super) fn arguments(call: &ToolCallPart) -> &str {
    match call.arguments.as_str() {
        arguments if arguments.trim().is_empty() => "{}",
        arguments => arguments,
    }
}

/// The metadata of a result.
pub(super) fn metadata(outcome: &ToolOutcome) -> Metadata {
    let mut metadata = Metadata::new();
    if outcome.status != ToolStatus::Done {
        metadata.insert(STATUS.to_owned(), status(outcome.status).into());
    }
    // This is not read from a history, so that a client cannot forge it.
    if outcome.source == OutcomeSource::Person {
        metadata.insert("source".to_owned(), "person".into());
    }
    if let Some(data) = &outcome.data {
        metadata.insert("data".to_owned(), Value::clone(data));
    }
    metadata
}
