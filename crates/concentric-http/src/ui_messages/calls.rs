//! Tool calls and their results.

use std::collections::HashMap;

use concentric_core::{
    CallId, Executor, Part, PartKind, Str, ToolCallPart, ToolContent, ToolOutcome, ToolResult,
    ToolStatus,
};
use serde_json::{Value, json};

use super::{chunk::Chunk, encode::input_head, translate::Out};
use crate::{run::KnownCall, sse};

/// The calls of an answer.
#[derive(Default)]
pub(super) struct Calls {
    all: Vec<Call>,
    /// The index of the newest call with each id.
    by_id: HashMap<CallId, usize>,
    /// The index of the first call that no earlier run has made.
    own: usize,
    /// The index of the first call since the last step began, which a reset removes.
    step: usize,
    /// The calls that receive deltas, by the call's index in the step, with the prefix of the deltas.
    previews: HashMap<u32, (usize, Vec<u8>)>,
    is_dynamic: bool,
}

struct Call {
    /// The client's id.
    wire: Str,
    name: Str,
    stage: Stage,
    executor: Executor,
    /// Whether the client's message has the call.
    in_message: bool,
    /// Whether the call was added to the client's message in a later step than its own.
    is_late: bool,
    /// Whether the client has an approval of the call.
    asked: bool,
}

#[derive(PartialEq)]
enum Stage {
    /// The arguments are incomplete.
    Preview,
    /// The arguments are not JSON.
    Invalid(Str),
    Called,
    Answered,
}

impl Calls {
    /// Creates a record with the calls `known` from an earlier run; `in_message` has those of the message that the
    /// answer continues.
    pub(super) fn new(
        known: Vec<KnownCall>,
        in_message: Option<&HashMap<String, bool>>,
        is_dynamic: bool,
    ) -> Self {
        let mut calls = Self {
            is_dynamic,
            own: known.len(),
            step: known.len(),
            ..Self::default()
        };
        for (at, known) in known.into_iter().enumerate() {
            let asked = in_message.and_then(|calls| calls.get(known.wire.as_str()));
            calls.by_id.insert(known.id, at);
            calls.all.push(Call {
                wire: known.wire,
                name: Str::default(),
                stage: match known.answered {
                    true => Stage::Answered,
                    false => Stage::Called,
                },
                executor: Executor::Loop,
                in_message: asked.is_some(),
                is_late: false,
                asked: asked.copied().unwrap_or_default(),
            });
        }
        calls
    }

    fn get(&self, id: &CallId) -> Option<&Call> {
        self.all.get(*self.by_id.get(id)?)
    }

    /// The newest call with this id, if it was made since the step began.
    fn of_step(&self, id: &CallId) -> Option<usize> {
        let at = self.by_id.get(id).copied();
        at.filter(|at| *at >= self.step)
    }

    /// The client's id of a call.
    pub(super) fn wire(&self, id: &CallId) -> Option<Str> {
        self.get(id).map(|call| call.wire.clone())
    }

    /// The client's id of a call that is running.
    pub(super) fn running(&self, id: &str) -> Option<Str> {
        let call = self.get(&CallId::new(id))?;
        (call.stage == Stage::Called && call.in_message).then(|| call.wire.clone())
    }

    fn add(&mut self, id: &CallId, name: &Str, executor: Executor, out: &mut Out) -> usize {
        let at = self.all.len();
        self.all.push(Call {
            wire: out.ids.calls.unique(id.as_str()),
            name: name.clone(),
            stage: Stage::Preview,
            executor,
            in_message: true,
            is_late: false,
            asked: false,
        });
        self.by_id.insert(id.clone(), at);
        at
    }

    // ---- previews ----

    pub(super) fn preview(&mut self, index: u32, id: &CallId, name: &Str, out: &mut Out) {
        // Of two calls with the same id, one gets another id later. Only the complete calls show which one these
        // deltas belong to.
        if self.of_step(id).is_some() {
            self.previews.remove(&index);
            return;
        }
        let at = self.add(id, name, Executor::Loop, out);
        if let Some(call) = self.all.get(at) {
            out.write(&Chunk::ToolInputStart {
                tool_call_id: &call.wire,
                tool_name: name,
                dynamic: self.is_dynamic,
            });
            self.previews.insert(index, (at, input_head(&call.wire)));
        }
    }

    pub(super) fn preview_delta(&self, index: u32, arguments: &str, out: &mut Out) {
        if let Some((at, head)) = self.previews.get(&index)
            && let Some(call) = self.all.get(*at)
            && call.stage == Stage::Preview
            && !arguments.is_empty()
        {
            sse::delta(head, arguments, &mut out.buffer);
        }
    }

    // ---- calls ----

    pub(super) fn call(&mut self, of: &ToolCallPart, out: &mut Out) {
        let is_preview = |at: &usize| {
            let call = self.all.get(*at);
            call.is_some_and(|call| call.stage == Stage::Preview)
        };
        let preview = self.of_step(&of.id).filter(is_preview);
        let at = match preview {
            Some(at) => at,
            None => self.add(&of.id, &of.name, of.executor, out),
        };
        let dynamic = self.is_dynamic;
        if let Some(call) = self.all.get_mut(at) {
            call.executor = of.executor;
            call.name.clone_from(&of.name);
            call.complete(of, preview.is_some(), dynamic, out);
        }
    }

    /// Writes a call that the client lacks, since the stream of the run that made it may have been lost.
    pub(super) fn missed(&mut self, of: &ToolCallPart, out: &mut Out) {
        let Some(at) = self.by_id.get(&of.id).copied() else {
            return self.call(of, out);
        };
        let dynamic = self.is_dynamic;
        if let Some(call) = self.all.get_mut(at)
            && !call.in_message
        {
            call.in_message = true;
            call.is_late = true;
            call.name.clone_from(&of.name);
            call.complete(of, false, dynamic, out);
        }
    }

    // ---- results ----

    pub(super) fn result(&mut self, result: &ToolResult, out: &mut Out) {
        let known = self.by_id.get(&result.call_id).copied();
        let at = match known {
            Some(at) => at,
            None => self.add(&result.call_id, &result.name, Executor::Loop, out),
        };
        let (own, step, dynamic) = (self.own, self.step, self.is_dynamic);
        let Some(call) = self.all.get_mut(at) else {
            return;
        };
        // A resumed round emits all of its results again, some of which the client already has.
        if at < own && call.stage == Stage::Answered {
            return;
        }
        if known.is_none() || !call.in_message {
            // The client ends the chat at a result of an unknown call.
            call.in_message = true;
            call.is_late = at < step;
            call.name.clone_from(&result.name);
            out.write(&Chunk::ToolInputAvailable {
                tool_call_id: &call.wire,
                tool_name: &result.name,
                input: &json!({}),
                dynamic,
                provider_executed: false,
            });
        }
        call.answer(&result.outcome, at >= step, dynamic, out);
    }

    pub(super) fn start_step(&mut self) {
        self.step = self.all.len();
        for call in &mut self.all {
            call.is_late = false;
        }
    }

    /// Ends the calls that the model has begun and not completed.
    pub(super) fn end_step(&mut self, out: &mut Out) {
        let dynamic = self.is_dynamic;
        for call in self.all.iter_mut().skip(self.step) {
            if call.stage == Stage::Preview {
                call.withdraw(true, dynamic, out);
            }
        }
        self.previews.clear();
    }

    /// Ends the calls of this run without a result.
    pub(super) fn withdraw(&mut self, out: &mut Out) {
        let (step, dynamic) = (self.step, self.is_dynamic);
        for (at, call) in self.all.iter_mut().enumerate().skip(self.own) {
            if call.stage != Stage::Answered
                && matches!(call.executor, Executor::Client | Executor::Loop)
            {
                call.withdraw(at >= step, dynamic, out);
            }
        }
    }

    /// Forgets the calls of the last step, which are invalid.
    pub(super) fn reset(&mut self) {
        let step = self.step;
        self.by_id.retain(|_, at| *at < step);
        self.all.truncate(step);
        for call in self.all.iter_mut().filter(|call| call.is_late) {
            call.in_message = false;
            call.is_late = false;
        }
        self.previews.clear();
    }
}

impl Call {
    /// Writes the arguments.
    fn complete(&mut self, of: &ToolCallPart, is_shown: bool, dynamic: bool, out: &mut Out) {
        let arguments = match of.arguments.as_str() {
            arguments if arguments.trim().is_empty() => "{}",
            arguments => arguments,
        };
        match serde_json::from_str::<Value>(arguments) {
            Ok(input) => {
                self.stage = Stage::Called;
                out.write(&Chunk::ToolInputAvailable {
                    tool_call_id: &self.wire,
                    tool_name: &of.name,
                    input: &input,
                    dynamic,
                    provider_executed: of.executor == Executor::Provider,
                });
            }
            // The result has the reason.
            Err(_) => {
                self.stage = Stage::Invalid(arguments.into());
                if !is_shown {
                    out.write(&Chunk::ToolInputStart {
                        tool_call_id: &self.wire,
                        tool_name: &of.name,
                        dynamic,
                    });
                }
            }
        }
    }

    fn answer(&mut self, outcome: &ToolOutcome, in_step: bool, dynamic: bool, out: &mut Out) {
        let (tool_call_id, tool_name) = (&self.wire, &self.name);
        let text = outcome.content.text();
        match (
            &std::mem::replace(&mut self.stage, Stage::Answered),
            outcome.status,
        ) {
            // The client looks for the call in this step only.
            (Stage::Invalid(input), _) if in_step => out.write(&Chunk::ToolInputError {
                tool_call_id,
                tool_name,
                input,
                dynamic,
                error_text: &text,
            }),
            (_, ToolStatus::Done) => out.write(&Chunk::ToolOutputAvailable {
                tool_call_id,
                output: &output(outcome),
                preliminary: false,
            }),
            // A denied part has an approval, by the types of the client.
            (_, ToolStatus::Denied) if self.asked => {
                out.write(&Chunk::ToolOutputDenied { tool_call_id });
            }
            _ => out.write(&Chunk::ToolOutputError {
                tool_call_id,
                error_text: &text,
            }),
        }
    }

    fn withdraw(&mut self, in_step: bool, dynamic: bool, out: &mut Out) {
        self.answer(
            &ToolOutcome::cancelled("The call was withdrawn."),
            in_step,
            dynamic,
            out,
        );
    }
}

/// The output of a call: its data, or else its content.
fn output(outcome: &ToolOutcome) -> Value {
    if let Some(data) = &outcome.data {
        return Value::clone(data);
    }
    match &outcome.content {
        ToolContent::Parts(parts) if parts.iter().any(|part| !is_text(part)) => {
            parts.iter().filter_map(output_part).collect()
        }
        content => content.text().into(),
    }
}

const fn is_text(part: &Part) -> bool {
    matches!(part.kind, PartKind::Text(_))
}

fn output_part(part: &Part) -> Option<Value> {
    let media = match &part.kind {
        PartKind::Text(text) => return Some(json!({"type": "text", "text": text.as_str()})),
        PartKind::Image(media) | PartKind::Audio(media) | PartKind::File(media) => media,
        _ => return None,
    };
    let (url, media_type) = super::translate::file(media)?;
    Some(json!({"type": "file", "url": url, "mediaType": media_type}))
}
