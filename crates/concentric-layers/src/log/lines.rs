use super::layer::Options;
use crate::{
    body::Observer,
    wording::{code_name, outcome_name, reason_name, status_name, tool_name},
};
use concentric_core::{
    ChatRequest, Context, Delivery, Error, ErrorKind, Finish, Phase, ResponseHead, Str, ToolCall,
    ToolOutcome, ToolStatus, hooks::End,
};
use std::{sync::Arc, time::Duration};
use tracing::Level;

const TARGET: &str = "concentric::log";

/// Logs at a level that is known at run time.
macro_rules! log {
    ($level:expr, $($line:tt)*) => {
        match $level {
            Level::ERROR => tracing::error!(target: TARGET, $($line)*),
            Level::WARN => tracing::warn!(target: TARGET, $($line)*),
            _ => tracing::info!(target: TARGET, $($line)*),
        }
    };
}

/// The lines of a run or a model call. The last one is logged once, at the latest on drop.
pub(super) struct ModelLines(Option<Box<Model>>);

struct Model {
    options: Arc<Options>,
    context: Context,
    // For `Phase::Model`.
    step: Option<u32>,
    since: Duration,
    first_ms: Option<u64>,
    provider: Option<Str>,
    model: Option<Str>,
}

impl ModelLines {
    pub(super) fn start(options: &Arc<Options>, request: &ChatRequest) -> Self {
        if !tracing::enabled!(target: TARGET, Level::ERROR) {
            return Self(None);
        }
        let context = &request.context;
        let step = (context.phase() != Phase::Run).then(|| context.step());
        if options.starts {
            start_line(options, request, step);
        }
        Self(Some(Box::new(Model {
            options: Arc::clone(options),
            since: context.environment().clock().monotonic(),
            context: context.clone(),
            step,
            first_ms: None,
            provider: None,
            model: None,
        })))
    }

    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    pub(super) fn first(&mut self, head: &ResponseHead) {
        if let Some(call) = &mut self.0 {
            call.first_ms = Some(millis_since(&call.context, call.since));
            call.provider.clone_from(&head.provider);
            call.model.clone_from(&head.model);
        }
    }
}

impl Observer for ModelLines {
    #[inline]
    fn end(&mut self, end: End<'_>) {
        if let Some(call) = self.0.take() {
            call.end_line(end);
        }
    }
}

impl Drop for ModelLines {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

fn start_line(options: &Options, request: &ChatRequest, step: Option<u32>) {
    let context = &request.context;
    let user = || request.user_message().map(|message| message.text());
    let input = options.capture.is_on().then(user).flatten();
    let input = input.and_then(|text| options.capture.text(&text));
    let message = match step {
        None => "run started",
        Some(_) => "model call started",
    };
    tracing::info!(
        target: TARGET,
        run = context.run_id().as_str(),
        agent = context.agent().map(Str::as_str),
        thread = context.thread_id().map(|id| id.as_str()),
        step,
        turns = request.transcript.len(),
        tools = request.tools.len(),
        input,
        "{message}"
    );
    if options.details && step.is_some() {
        let own = &request.options;
        tracing::debug!(
            target: TARGET,
            run = context.run_id().as_str(),
            step,
            model = own.model.as_deref(),
            temperature = own.temperature.map(f64::from),
            top_p = own.top_p.map(f64::from),
            max_output_tokens = own.max_output_tokens,
            reasoning_effort = own.reasoning_effort.as_deref(),
            system_segments = request.system.iter().count(),
            "model call options"
        );
    }
}

impl Model {
    fn end_line(&self, end: End<'_>) {
        let (finish, error) = match end {
            End::Finished(finish) => (Some(finish), None),
            End::Failed(error) => (None, Some(error)),
            End::Truncated | End::Dropped => (None, None),
        };
        let (level, outcome) = match end {
            End::Finished(finish) => (Level::INFO, outcome_name(&finish.outcome)),
            End::Failed(error) => (level_of(error), "failed"),
            End::Truncated => (Level::WARN, "truncated"),
            End::Dropped => (Level::INFO, "dropped"),
        };
        if !is_enabled(level) {
            return;
        }
        let message = match self.step {
            None => "run ended",
            Some(_) => "model call ended",
        };
        log!(
            level,
            run = self.context.run_id().as_str(),
            agent = self.context.agent().map(Str::as_str),
            thread = self.context.thread_id().map(|id| id.as_str()),
            step = self.step,
            provider = self.provider.as_deref(),
            model = self.model.as_deref(),
            outcome,
            reason = finish.map(|finish| reason_name(&finish.reason)),
            kind = error.map(|error| error.kind().as_str()),
            code = error.and_then(code_name),
            error = error.and_then(|error| self.options.capture.text(error.message())),
            first_ms = self.first_ms,
            duration_ms = millis_since(&self.context, self.since),
            input_tokens = finish.and_then(|finish| finish.usage.input_tokens()),
            output_tokens = finish.and_then(|finish| finish.usage.output_tokens()),
            output = finish.and_then(|finish| self.output(finish)),
            "{message}"
        );
    }

    /// The text of a run's last message.
    fn output(&self, finish: &Finish) -> Option<String> {
        if !self.options.capture.is_on() {
            return None;
        }
        let last = finish.transcript.as_ref()?.last()?.as_message();
        self.options.capture.text(&last.text())
    }
}

/// The lines of a tool call. The last one is logged once, at the latest on drop.
pub(super) struct ToolLines(Option<Box<Tool>>);

struct Tool {
    options: Arc<Options>,
    call: ToolCall,
    since: Duration,
}

impl ToolLines {
    pub(super) fn start(options: &Arc<Options>, call: &ToolCall) -> Self {
        if !tracing::enabled!(target: TARGET, Level::ERROR) {
            return Self(None);
        }
        let context = &call.context;
        if options.starts {
            tracing::info!(
                target: TARGET,
                run = context.run_id().as_str(),
                agent = context.agent().map(Str::as_str),
                step = context.step(),
                tool = tool_name(call),
                call = call.id().as_str(),
                arguments_bytes = call.arguments().as_str().len(),
                arguments = options.capture.text(call.arguments().as_str()),
                resumed = is_resumed(call),
                "tool call started"
            );
        }
        Self(Some(Box::new(Tool {
            options: Arc::clone(options),
            since: context.environment().clock().monotonic(),
            call: call.clone(),
        })))
    }

    pub(super) fn end(&mut self, end: End<'_, ToolOutcome>) {
        if let Some(call) = self.0.take() {
            call.end_line(end);
        }
    }
}

impl Drop for ToolLines {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl Tool {
    fn end_line(&self, end: End<'_, ToolOutcome>) {
        let (level, outcome) = match end {
            End::Finished(outcome) => {
                (level_of_status(outcome.status), status_name(outcome.status))
            }
            End::Failed(error) if error.kind() == ErrorKind::Waiting => (Level::INFO, "waiting"),
            End::Failed(error) => (level_of(error), "failed"),
            End::Truncated | End::Dropped => (Level::INFO, "dropped"),
        };
        let error = match end {
            End::Failed(error) if error.kind() != ErrorKind::Waiting => Some(error),
            _ => None,
        };
        if !is_enabled(level) {
            return;
        }
        let result = match end {
            End::Finished(outcome) => Some(outcome.content.text()),
            _ => None,
        };
        let (call, context) = (&self.call, &self.call.context);
        log!(
            level,
            run = context.run_id().as_str(),
            agent = context.agent().map(Str::as_str),
            step = context.step(),
            tool = tool_name(call),
            call = call.id().as_str(),
            resumed = is_resumed(call),
            settled = call.settled().map(|_| true),
            outcome,
            kind = error.map(|error| error.kind().as_str()),
            code = error.and_then(code_name),
            error = error.and_then(|error| self.options.capture.text(error.message())),
            result_bytes = result.as_ref().map(|text| text.len()),
            result = result.and_then(|text| self.options.capture.text(&text)),
            duration_ms = millis_since(context, self.since),
            "tool call ended"
        );
    }
}

/// Whether a line of `level` is logged, whose texts are copied only then.
fn is_enabled(level: Level) -> bool {
    match level {
        Level::ERROR => tracing::enabled!(target: TARGET, Level::ERROR),
        Level::WARN => tracing::enabled!(target: TARGET, Level::WARN),
        _ => tracing::enabled!(target: TARGET, Level::INFO),
    }
}

/// `Some(true)` for a resumed call; the field is omitted for others.
fn is_resumed(call: &ToolCall) -> Option<bool> {
    (call.delivery() != Delivery::First).then_some(true)
}

fn level_of(error: &Error) -> Level {
    match error.kind() {
        ErrorKind::Cancelled | ErrorKind::Halted | ErrorKind::Waiting => Level::INFO,
        _ if error.is_retryable() => Level::WARN,
        _ => Level::ERROR,
    }
}

const fn level_of_status(status: ToolStatus) -> Level {
    match status {
        ToolStatus::Failed => Level::WARN,
        ToolStatus::Unknown => Level::ERROR,
        _ => Level::INFO,
    }
}

fn millis_since(context: &Context, since: Duration) -> u64 {
    let now = context.environment().clock().monotonic();
    u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX)
}
