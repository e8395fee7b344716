use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use concentric_core::{
    CancelReason, Context, Error, Event, Finish, Interrupt, OpenRound, Outcome, ResponseHead, Str,
    ToolCallPart, ToolResult, Transcript, Usage, interrupt::CLIENT_TOOL, machine::RunState,
    store::Resumable,
};
use serde_json::{Value, json};

use super::{
    super::{PROTOCOL_VERSION, encode, event::Event as Wire},
    interrupt::interrupt,
    lane::{Lane, Open, Out},
    state::State,
    subagents::{End, Subagents},
};
use crate::{
    describe::{ErrorMessage, describe},
    run::{
        Cut, Format, Metadata, RunIds, Translate, accepts_reply, message, object, stopped,
        subagent_of, token_usage, unanswerable, undecidable,
    },
};

/// The metadata key of the calls that the client must execute, in an interrupted run's terminal
/// event; a `success` outcome has a field of the same name.
const PENDING: &str = "pendingToolCallIds";

/// Writes the events of a run as protocol frames, in an order that the protocol allows.
///
/// The run's own agent and each sub-agent have a [`Lane`], since sub-agents run concurrently.
pub(in crate::ag_ui) struct Translator {
    out: Out,
    error_message: ErrorMessage,
    lane: Lane,
    subagents: Subagents,
    provider: Option<Str>,
    model: Option<Str>,
    usage: Usage,
    // Whether a layer stores the run if it ends with interrupts.
    resumable: bool,
}

impl Translator {
    /// Creates a translator with `RUN_STARTED` in its buffer.
    pub(in crate::ag_ui) fn new(
        context: Context,
        mut ids: RunIds,
        error_message: ErrorMessage,
    ) -> Self {
        let known = std::mem::take(&mut ids.known);
        let mut buffer = BytesMut::with_capacity(1024);
        started(&ids, &mut buffer);
        let out = Out {
            buffer,
            context,
            ids,
            state: State::default(),
        };
        Self {
            out,
            error_message,
            lane: Lane::new(None, known),
            subagents: Subagents::default(),
            provider: None,
            model: None,
            usage: Usage::default(),
            resumable: false,
        }
    }

    /// Creates a translator for a stored run, without the ids that its client has.
    pub(in crate::ag_ui) fn of_stored(thread: &str, run: &str) -> Self {
        let ids = RunIds::new(thread.to_owned(), run.to_owned(), None, &[]);
        let mut translator = Self::new(Context::new(), ids, Arc::new(describe));
        translator.resumable = true;
        translator
    }

    /// Creates a translator for a run without a client.
    pub(in crate::ag_ui) fn without_client(run: &Context) -> Self {
        let thread = run.thread_id().map(|thread| thread.as_str().to_owned());
        let id = run.run_id().as_str().to_owned();
        let ids = RunIds::new(thread.unwrap_or_default(), id, None, &[]);
        Self::new(run.clone(), ids, Arc::new(describe))
    }

    /// The last event in the buffer.
    pub(in crate::ag_ui) fn last_event(&self) -> Value {
        let lines = self.out.buffer[..].split(|byte| *byte == b'\n');
        let mut frames = lines.filter_map(|line| line.strip_prefix(b"data: "));
        let last = frames.next_back().unwrap_or_default();
        // A frame is always JSON.
        serde_json::from_slice(last).unwrap_or_default()
    }

    fn other_event(&mut self, event: Event) {
        let Self { out, lane, .. } = self;
        match event {
            Event::SubAgent(event) => self.subagents.event(*event, lane, out),
            Event::ToolResult(result) => self.tool_result(&result),
            Event::StepFinish(finish) => {
                self.usage += finish.usage;
                lane.step_finish(out);
            }
            Event::Finish(finish) => self.finish(&finish),
            event => lane.event(event, out),
        }
    }

    fn tool_result(&mut self, result: &ToolResult) {
        let Self { out, lane, .. } = self;
        let (call, outcome) = (&result.call_id, &result.outcome);
        self.subagents.end_call(None, call, outcome, out);
        lane.tool_result(result, out);
    }

    /// Ends all lanes, and the sub-agents with `end`.
    fn close(&mut self, end: End<'_>) {
        self.lane.step_finish(&mut self.out);
        self.subagents.end_all(end, &mut self.out);
    }

    // ---- the end ----

    /// Writes the missing parts of an open round's message, and the outcomes of its finished calls.
    ///
    /// The run emits these results only when the round is closed, possibly in another process that
    /// gets the round from this client's history.
    fn round_so_far(&mut self, finish: &Finish) {
        let open = finish.state.as_deref().and_then(RunState::open_round);
        if let Some(open) = &open {
            self.lane.missed(open, &mut self.out);
        }
        for (ToolCallPart { id, name, .. }, outcome) in open.iter().flat_map(OpenRound::calls) {
            if let Some(outcome) = outcome {
                let outcome = outcome.clone();
                self.tool_result(&ToolResult::new(id.clone(), name.clone(), outcome));
            }
        }
    }

    /// The outcome of a run that waits for client tools or for replies, and its metadata.
    fn interrupted(&self, interrupts: &[&Interrupt]) -> (Value, Metadata) {
        // The calls of a sub-agent are not part of the agent's history, so their results arrive as
        // replies.
        let is_clients = |interrupt: &&&Interrupt| {
            interrupt.reason == CLIENT_TOOL && subagent_of(interrupt).is_none()
        };
        let named = |interrupt| self.subagents.named(interrupt, &self.lane, &self.out);
        let pending: Vec<String> = interrupts
            .iter()
            .filter(is_clients)
            .filter_map(|interrupt| Some(named(interrupt).1?.to_owned()))
            .collect();
        let asked: Vec<Value> = interrupts
            .iter()
            .filter(|interrupt| !is_clients(interrupt))
            .enumerate()
            .map(|(index, asked)| {
                let (subagent, call) = named(asked);
                interrupt(asked, &self.out.ids.run, index, subagent, call)
            })
            .collect();
        if asked.is_empty() {
            return (success(pending), Metadata::new());
        }
        let mut metadata = Metadata::new();
        if !pending.is_empty() {
            metadata.insert(PENDING.to_owned(), pending.into());
        }
        (json!({"type": "interrupt", "interrupts": asked}), metadata)
    }

    /// Ends the stream of a run that did not fail.
    fn finished(&mut self, outcome: Value, metadata: Metadata, end: End<'_>) {
        self.close(end);
        let RunIds { thread, run, .. } = &self.out.ids;
        let finished = Wire::RunFinished {
            thread_id: thread,
            run_id: run,
            outcome,
            usage: self.tokens(),
            metadata,
        };
        encode::event(&finished, &mut self.out.buffer);
    }

    fn tokens(&self) -> Option<[Metadata; 1]> {
        let (provider, model) = (self.provider.as_ref(), self.model.as_ref());
        token_usage(&self.usage, provider, model).map(|usage| [usage])
    }
}

impl Translate for Translator {
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn restart(&mut self) {
        let Out { buffer, ids, .. } = &mut self.out;
        buffer.clear();
        started(ids, buffer);
    }

    fn snapshot(&mut self, history: &Transcript, open: Option<&OpenRound>) {
        if !history.is_empty() {
            self.lane.replace(history, &mut self.out);
        }
        if let Some(open) = open {
            self.lane.missed(open, &mut self.out);
        }
    }

    fn buffer(&mut self) -> &mut BytesMut {
        &mut self.out.buffer
    }

    fn len(&self) -> usize {
        self.out.buffer.len()
    }

    fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.resumable = extensions.get::<Resumable>().is_some();
        self.provider.clone_from(&head.provider);
        self.model.clone_from(&head.model);
    }

    #[inline]
    fn event(&mut self, event: Event) {
        if let (Event::TextDelta(text), Open::Text { head, .. }) = (&event, &self.lane.open)
            && !text.is_empty()
        {
            encode::text_message_more(head, text, &mut self.out.buffer);
            return;
        }
        self.other_event(event);
    }

    fn finish(&mut self, finish: &Finish) {
        // A resumed run is a new run for the client, which got the earlier usage before.
        self.usage = finish.attempt_usage();
        let mut pending = Vec::new();
        match &finish.outcome {
            Outcome::Completed => pending = self.lane.left(),
            Outcome::Interrupted => {
                let interrupts = finish.interrupts();
                if interrupts.is_empty() {
                    return self.fail(&undecidable());
                }
                self.lane.step_finish(&mut self.out);
                self.round_so_far(finish);
                if let Some(interrupt) = interrupts
                    .iter()
                    .find(|it| !accepts_reply(self.resumable, it))
                {
                    return self.fail(&unanswerable(interrupt));
                }
                let (outcome, metadata) = self.interrupted(&interrupts);
                return self.finished(outcome, metadata, End::Waiting(&interrupts));
            }
            Outcome::Aborted { reason } => return self.cancelled(reason),
            _ => {}
        }
        let end = match finish.outcome {
            Outcome::Completed => End::Success,
            _ => End::Error {
                message: "The run was stopped.",
                code: "stopped",
            },
        };
        self.finished(success(pending), stopped(&finish.outcome), end);
    }

    fn cancelled(&mut self, reason: &CancelReason) {
        let outcome = Outcome::Aborted {
            reason: reason.clone(),
        };
        let end = End::Error {
            message: "The run was cancelled.",
            code: "cancelled",
        };
        let kind = stopped_as(&outcome);
        self.finished(json!({"type": kind}), stopped(&outcome), end);
    }

    fn write_error(&mut self, error: &Error, code: &str) {
        self.close(End::Error {
            message: "The run failed.",
            code: "failed",
        });
        self.out.write(&Wire::RunError {
            message: &message(&self.error_message, error),
            code,
            usage: self.tokens(),
        });
    }

    fn run(&self) -> (&Context, &RunIds) {
        (&self.out.context, &self.out.ids)
    }
}

/// The frames of AG-UI.
pub(in crate::ag_ui) static FORMAT: Format = Format {
    name: "ag-ui",
    has_ids: true,
    cut: cut_off,
};

/// The last frame of a stream that ends before its run. It has no id, since the run continues.
fn cut_off(cut: Cut) -> Bytes {
    let (code, message) = match cut {
        Cut::Gap => (
            "events_lost",
            "The connection was too slow for the events of the run.",
        ),
        Cut::Lost => ("events_lost", "The events of the run can't be read."),
        Cut::Resumed => ("stale_claim", "Another process has resumed the run."),
        Cut::Shutdown => ("shutting_down", "The server is shutting down."),
    };
    let mut frame = BytesMut::new();
    let error = Wire::RunError {
        message,
        code,
        usage: None,
    };
    encode::event(&error, &mut frame);
    frame.freeze()
}

fn started(ids: &RunIds, buffer: &mut BytesMut) {
    let started = Wire::RunStarted {
        thread_id: &ids.thread,
        run_id: &ids.run,
        protocol_version: PROTOCOL_VERSION,
        parent_run_id: ids.parent.as_deref(),
    };
    encode::event(&started, buffer);
}

/// The type of the outcome of a run that does not wait.
pub(in crate::ag_ui) const fn stopped_as(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Aborted { .. } => "cancelled",
        _ => "success",
    }
}

fn success(pending: Vec<String>) -> Value {
    let pending = (!pending.is_empty()).then(|| Value::from(pending));
    object([("type", Some("success".into())), (PENDING, pending)])
}
