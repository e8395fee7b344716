use bytes::{Bytes, BytesMut};
use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Event, Finish, Interrupt, OpenRound, Outcome, Phase,
    ResponseHead, Str, ToolCallPart, ToolNameTaken, ToolResult, Usage,
    interrupt::{CLIENT_TOOL, TOOL_CALL},
    machine::RunState,
    panic::{CaughtPanic, catch},
    store::Resumable,
};

use super::{
    super as wire, RunIds,
    interrupt::{interrupt, subagent_of},
    lane::{Lane, Open, Out},
    state::State,
    subagents::{End, Subagents},
};
use wire::{
    Metadata, RunFinishedOutcome, TokenUsage, encode,
    layer::{ErrorMessage, describe, refusal, source},
    resume::TOKEN,
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
        let mut started = wire::RunStarted::new(ids.thread.as_str(), ids.run.as_str())
            .protocol_version(wire::PROTOCOL_VERSION);
        started.parent_run_id.clone_from(&ids.parent);
        let mut out = Out {
            buffer: BytesMut::with_capacity(1024),
            context,
            ids,
            state: State::default(),
        };
        out.write(started);
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

    /// The number of buffered bytes.
    pub(in crate::ag_ui) fn len(&self) -> usize {
        self.out.buffer.len()
    }

    /// Takes the buffered bytes; `None` if there are none.
    pub(in crate::ag_ui) fn take(&mut self) -> Option<Bytes> {
        (!self.out.buffer.is_empty()).then(|| self.out.buffer.split().freeze())
    }

    /// Writes a comment.
    pub(in crate::ag_ui) fn keep_alive(&mut self) {
        encode::keep_alive(&mut self.out.buffer);
    }

    /// Records the provider and model, and whether the run can be resumed from a store.
    pub(in crate::ag_ui) fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.resumable = extensions.get::<Resumable>().is_some();
        self.provider.clone_from(&head.provider);
        self.model.clone_from(&head.model);
    }

    /// Writes the protocol events for `event`.
    #[inline]
    pub(in crate::ag_ui) fn event(&mut self, event: Event) {
        if let (Event::TextDelta(text), Open::Text { head, .. }) = (&event, &self.lane.open)
            && !text.is_empty()
        {
            encode::text_message_more(head, text, &mut self.out.buffer);
            return;
        }
        self.other_event(event);
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

    fn write(&mut self, event: impl Into<wire::Event>) {
        self.out.write(event);
    }

    /// Ends all lanes, and the sub-agents with `end`.
    fn close(&mut self, end: End<'_>) {
        self.lane.step_finish(&mut self.out);
        self.subagents.end_all(end, &mut self.out);
    }

    // ---- the end ----

    fn finish(&mut self, finish: &Finish) {
        // A resumed run is a new run for the client, which got the earlier usage before.
        self.usage = finish.attempt_usage();
        let finished = match &finish.outcome {
            Outcome::Completed => self.finished(success(self.lane.left()), Metadata::new()),
            Outcome::Interrupted => {
                let interrupts = finish.interrupts();
                if interrupts.is_empty() {
                    return self.fail(&undecidable());
                }
                self.lane.step_finish(&mut self.out);
                self.round_so_far(finish);
                if let Some(interrupt) = interrupts.iter().find(|it| !self.accepts_reply(it)) {
                    return self.fail(&unanswerable(interrupt));
                }
                let finished = self.interrupted(&interrupts);
                self.close(End::Waiting(&interrupts));
                return self.write(finished);
            }
            Outcome::Aborted { reason } => return self.cancelled(reason),
            Outcome::Halted { reason } => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "halted".into());
                metadata.insert("reason".to_owned(), reason.as_str().into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            Outcome::StepLimit => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "step_limit".into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            Outcome::CallLimit => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "call_limit".into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            _ => self.finished(RunFinishedOutcome::success(), Metadata::new()),
        };
        self.close(match finish.outcome {
            Outcome::Completed => End::Success,
            _ => End::Error {
                message: "The run was stopped.",
                code: "stopped",
            },
        });
        self.write(finished);
    }

    /// Writes the missing parts of an open round's message, and the outcomes of its finished calls.
    ///
    /// The run emits these results only when the round is closed, possibly in another process that
    /// gets the round from this client's history.
    fn round_so_far(&mut self, finish: &Finish) {
        let open = finish.state.as_deref().and_then(RunState::open_round);
        if let Some(open) = &open {
            self.lane.missed(open, &mut self.out);
        }
        for open in open.iter().flat_map(OpenRound::calls) {
            if let Some(outcome) = &open.outcome {
                let ToolCallPart { id, name, .. } = &open.call;
                let outcome = outcome.clone();
                self.tool_result(&ToolResult::new(id.clone(), name.clone(), outcome));
            }
        }
    }

    /// Returns whether a later request can answer `interrupt`: its run is stored, the interrupt has
    /// a token, or the history will contain the result of a client tool.
    ///
    /// An interrupt of a sub-agent needs the state of the run around it, which a token does not
    /// contain.
    fn accepts_reply(&self, interrupt: &Interrupt) -> bool {
        self.resumable
            || subagent_of(interrupt).is_none()
                && (interrupt.reason == CLIENT_TOOL || interrupt.metadata.contains_key(TOKEN))
    }

    /// The terminal event of a run that waits for client tools or for replies.
    fn interrupted(&self, interrupts: &[&Interrupt]) -> wire::RunFinished {
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
        let asked: Vec<wire::Interrupt> = interrupts
            .iter()
            .filter(|interrupt| !is_clients(interrupt))
            .enumerate()
            .map(|(index, asked)| {
                let (subagent, call) = named(asked);
                interrupt(asked, &self.out.ids.run, index, subagent, call)
            })
            .collect();
        if asked.is_empty() {
            return self.finished(success(pending), Metadata::new());
        }
        let mut metadata = Metadata::new();
        if !pending.is_empty() {
            metadata.insert(PENDING.to_owned(), pending.into());
        }
        self.finished(RunFinishedOutcome::interrupt(asked), metadata)
    }

    /// Ends the stream of a run that was cancelled.
    pub(in crate::ag_ui) fn cancelled(&mut self, reason: &CancelReason) {
        let reason = match reason {
            CancelReason::User => "user",
            CancelReason::Disconnected => "disconnected",
            CancelReason::Shutdown => "shutdown",
            CancelReason::Other(reason) => reason.as_str(),
            _ => "other",
        };
        let mut metadata = Metadata::new();
        metadata.insert("reason".to_owned(), reason.into());
        let finished = self.finished(RunFinishedOutcome::Cancelled, metadata);
        self.close(End::Error {
            message: "The run was cancelled.",
            code: "cancelled",
        });
        self.write(finished);
    }

    fn finished(&self, outcome: RunFinishedOutcome, metadata: Metadata) -> wire::RunFinished {
        let RunIds { thread, run, .. } = &self.out.ids;
        let mut finished = wire::RunFinished::new(thread.as_str(), run.as_str()).outcome(outcome);
        finished.usage = self.token_usage();
        finished.metadata = (!metadata.is_empty()).then_some(metadata);
        finished
    }

    /// Ends the stream of a run that failed.
    pub(in crate::ag_ui) fn fail(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Cancelled
            && let Some(reason) = self.out.context.cancel_reason()
        {
            return self.cancelled(&reason);
        }
        if self.name_taken(error).is_some() {
            return self.write_error(error, "tool_name_taken");
        }
        let code = refusal(error);
        let RunIds { thread, run, .. } = &self.out.ids;
        match code {
            Some(code) => {
                tracing::warn!(thread_id = %thread, run_id = %run, code, "AG-UI run rejected");
            }
            None => {
                tracing::error!(thread_id = %thread, run_id = %run, error = ?error, "AG-UI run failed");
            }
        }
        self.write_error(error, code.unwrap_or(error.kind().as_str()));
    }

    /// The name conflict between a client tool and an agent's tool, if that is the cause of
    /// `error`.
    pub(in crate::ag_ui) fn name_taken<'a>(&self, error: &'a Error) -> Option<&'a ToolNameTaken> {
        let taken = source::<ToolNameTaken>(error)?;
        let RunIds {
            thread, run, tools, ..
        } = &self.out.ids;
        // The conflict may also be with a tool that a layer of the host added to the request.
        tools.get(&taken.name)?;
        tracing::info!(
            thread_id = %thread, run_id = %run, tool = taken.name.as_str(),
            "AG-UI client tool has the name of an agent's tool"
        );
        Some(taken)
    }

    /// The code and message of a conflict between a new run and another run.
    pub(in crate::ag_ui) fn conflict<'a>(&self, error: &'a Error) -> Option<(&'a str, String)> {
        // A conflict in the model phase comes from the provider.
        if error.kind() != ErrorKind::Conflict || error.phase() == Some(Phase::Model) {
            return None;
        }
        let code = refusal(error)?;
        let RunIds { thread, run, .. } = &self.out.ids;
        tracing::warn!(thread_id = %thread, run_id = %run, code, "AG-UI run rejected");
        Some((code, self.message(error)))
    }

    /// Ends the stream of a run that panicked.
    pub(in crate::ag_ui) fn panicked(&mut self, panic: &CaughtPanic) {
        let RunIds { thread, run, .. } = &self.out.ids;
        tracing::error!(thread_id = %thread, run_id = %run, panic = panic.text(), "AG-UI run panicked");
        let error = Error::new(ErrorKind::Other, "a layer or a model of the run panicked");
        self.write_error(&error, error.kind().as_str());
    }

    /// Logs a panic in the drop of an ended or abandoned run.
    pub(in crate::ag_ui) fn drop_panicked(&self, panic: &CaughtPanic) {
        let RunIds { thread, run, .. } = &self.out.ids;
        tracing::error!(thread_id = %thread, run_id = %run, panic = panic.text(), "AG-UI run panicked while it was dropped");
    }

    /// The message of an error for the client.
    fn message(&self, error: &Error) -> String {
        // The host's function may panic.
        catch(|| (self.error_message)(error)).unwrap_or_else(|_| describe(error))
    }

    fn write_error(&mut self, error: &Error, code: &str) {
        let mut event = wire::RunError::new(self.message(error)).code(code);
        event.usage = self.token_usage();
        self.close(End::Error {
            message: "The run failed.",
            code: "failed",
        });
        self.write(event);
    }

    /// Ends the stream of a run whose body ended without a terminal event.
    pub(in crate::ag_ui) fn truncated(&mut self) {
        self.fail(&Error::new(
            ErrorKind::Truncated,
            "the response body ended before its terminal event",
        ));
    }

    fn token_usage(&self) -> Option<Vec<TokenUsage>> {
        (self.usage != Usage::default()).then(|| {
            vec![TokenUsage {
                provider: self.provider.as_ref().map(|name| name.as_str().to_owned()),
                model: self.model.as_ref().map(|name| name.as_str().to_owned()),
                input_tokens: self.usage.input_tokens(),
                output_tokens: self.usage.output_tokens(),
                total_tokens: self.usage.total_tokens(),
                reasoning_tokens: self.usage.reasoning_tokens(),
                cached_input_tokens: self.usage.cached_input_tokens(),
                cache_write_input_tokens: self.usage.cache_write_tokens(),
            }]
        })
    }
}

fn success(pending: Vec<String>) -> RunFinishedOutcome {
    if pending.is_empty() {
        RunFinishedOutcome::success()
    } else {
        RunFinishedOutcome::pending(pending)
    }
}

/// The error of a run that ends with an interrupt whose reply could not be accepted.
fn unanswerable(interrupt: &Interrupt) -> Error {
    let add = match subagent_of(interrupt) {
        None if interrupt.reason == TOOL_CALL => {
            "add `SuspendLayer` around the agent, or `Toolset::tokens`"
        }
        _ => "add `SuspendLayer` around the agent",
    };
    let message = format!(
        "no reply to interrupt `{}` can be accepted, since the run is not stored: {add}",
        interrupt.id
    );
    Error::new(ErrorKind::Configuration, message).with_code("not_resumable")
}

fn undecidable() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "the run waits for a decision that this endpoint cannot accept",
    )
}
