//! The span of a run or a model call.

use super::{
    content::Writer,
    genai::{self, attribute},
    layer::{Options, Place},
    links, metrics,
};
use crate::wording::{code_name, outcome_name, reason_name};
use concentric_core::{
    ChatRequest, Context, Error, ErrorKind, Event, Finish, MessageBuilder, Outcome, Phase,
    ResponseHead, Str, Usage, hooks::End,
};
use opentelemetry::{
    Array, KeyValue, StringValue, Value,
    trace::{Status, TraceContextExt},
};
use std::{sync::Arc, task::Poll, time::Duration};
use tracing::{Level, Span, span::Entered};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The span of a run or a model call, if one is recorded. It ends once, at the latest on drop.
pub(super) struct ModelSpan(Option<Box<Open>>);

struct Open {
    options: Arc<Options>,
    place: Place,
    span: Span,
    context: Context,
    since: Duration,
    agent: Option<Str>,
    request_model: Option<Str>,
    provider: Option<Str>,
    response_model: Option<Str>,
    last_chunk: Option<Duration>,
    // The attributes of each chunk's metric; empty without metrics.
    of_chunk: Vec<KeyValue>,
    // The answer so far, if it is recorded.
    answer: Option<Box<MessageBuilder>>,
    // Of a run, what it had used before this segment.
    used_before: Usage,
    is_resumed: bool,
    // Of a run, its entry in the slot.
    segment: Option<String>,
}

impl ModelSpan {
    #[inline]
    pub(super) fn start(options: &Arc<Options>, place: Place, request: &ChatRequest) -> Self {
        let is_traced = tracing::span_enabled!(target: genai::TARGET, Level::INFO);
        if !is_traced && options.instruments.is_none() {
            return Self(None);
        }
        Self(Some(Box::new(Open::new(
            options, place, request, is_traced,
        ))))
    }

    /// Enters the span for a poll.
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        self.0.as_ref().map(|open| open.span.enter())
    }

    pub(super) const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    pub(super) fn first(&mut self, head: &ResponseHead) {
        if let Some(open) = &mut self.0 {
            open.first(head);
        }
    }

    pub(super) fn observe(&mut self, item: &Poll<Option<Result<Event, Error>>>) {
        match item {
            Poll::Ready(Some(Ok(Event::Finish(finish)))) => self.end(End::Finished(finish)),
            Poll::Ready(Some(Ok(event))) => {
                if let Some(open) = &mut self.0 {
                    open.event(event);
                }
            }
            Poll::Ready(Some(Err(error))) => self.end(End::Failed(error)),
            Poll::Ready(None) => self.end(End::Truncated),
            Poll::Pending => {}
        }
    }

    #[inline]
    pub(super) fn end(&mut self, end: End<'_>) {
        if let Some(open) = self.0.take() {
            open.end(end);
        }
    }
}

impl Drop for ModelSpan {
    #[inline]
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl Open {
    #[cold]
    fn new(options: &Arc<Options>, place: Place, request: &ChatRequest, is_traced: bool) -> Self {
        let context = &request.context;
        let is_run = place == Place::Run;
        let request_model = request.options.model.clone();
        let is_resumed = is_run && request.resume.is_some();
        let span = match (is_traced, is_run) {
            (false, _) => Span::none(),
            (true, true) => {
                let agent = context.agent().map(Str::as_str);
                let name = genai::span_name(genai::INVOKE_AGENT, agent);
                genai::run_span(&name, context.run_id().as_str())
            }
            (true, false) => {
                let name = genai::span_name(genai::CHAT, request_model.as_deref());
                genai::model_span(&name, context.run_id().as_str(), context.step())
            }
        };
        let mut open = Self {
            since: context.environment().clock().monotonic(),
            options: Arc::clone(options),
            place,
            span,
            context: context.clone(),
            agent: context.agent().cloned(),
            request_model,
            provider: None,
            response_model: None,
            last_chunk: None,
            of_chunk: Vec::new(),
            answer: None,
            used_before: Usage::default(),
            is_resumed,
            segment: None,
        };
        if is_run {
            open.used_before = open.used();
        }
        if !open.span.is_disabled() {
            open.describe(request);
            // Of a run inside another loop's model call, that run has the slot.
            if is_run && context.phase() == Phase::Run {
                open.segment = links::continue_run(context, &open.span, is_resumed);
            }
        }
        open
    }

    const fn is_run(&self) -> bool {
        matches!(self.place, Place::Run)
    }

    fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(name, value);
    }

    fn set_text(&self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.set(name, value.to_owned());
        }
    }

    fn set_number(&self, name: &'static str, value: Option<f32>) {
        if let Some(value) = value {
            self.set(name, f64::from(value));
        }
    }

    fn set_count(&self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.set(name, i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Sets the attributes of the request.
    fn describe(&self, request: &ChatRequest) {
        let options = &request.options;
        let operation = match self.is_run() {
            true => genai::INVOKE_AGENT,
            false => genai::CHAT,
        };
        self.set(attribute::OPERATION, operation);
        if self.is_run() {
            self.set_text(attribute::AGENT, self.agent.as_deref());
        }
        let thread = self.context.thread_id();
        self.set_text(attribute::CONVERSATION, thread.map(|id| id.as_str()));
        self.set_text(attribute::REQUEST_MODEL, self.request_model.as_deref());
        if options.output_schema.is_some() {
            self.set(attribute::OUTPUT_TYPE, "json");
        }
        if let Some(seed) = options.seed {
            self.set(attribute::SEED, seed);
        }
        self.set_number(attribute::FREQUENCY_PENALTY, options.frequency_penalty);
        self.set_number(attribute::PRESENCE_PENALTY, options.presence_penalty);
        self.set_number(attribute::TEMPERATURE, options.temperature);
        self.set_number(attribute::TOP_P, options.top_p);
        let max_tokens = options.max_output_tokens.map(u64::from);
        self.set_count(attribute::MAX_TOKENS, max_tokens);
        if !options.stop.is_empty() {
            self.set(attribute::STOP_SEQUENCES, strings(&options.stop));
        }
        if self.is_resumed {
            self.set(attribute::RESUMED, true);
        }
        if !self.is_run() {
            self.set(attribute::STREAM, true);
        }
        self.describe_content(request);
    }

    fn describe_content(&self, request: &ChatRequest) {
        let writer = || Writer::new(&self.options.capture);
        let Some(mut input) = writer() else {
            return;
        };
        if !self.is_run() {
            self.set(attribute::INPUT_MESSAGES, input.new_turns(request));
            let system = writer().and_then(|mut writer| writer.system(&request.system));
            self.set_text(attribute::SYSTEM_INSTRUCTIONS, system.as_deref());
        } else if let Some(message) = request.user_message() {
            self.set(attribute::INPUT_MESSAGES, input.input(message));
        }
    }

    /// The tokens of the run's model calls so far.
    fn used(&self) -> Usage {
        self.context.run_usage().total()
    }

    fn first(&mut self, head: &ResponseHead) {
        let now = self.context.environment().clock().monotonic();
        self.provider.clone_from(&head.provider);
        if self.is_run() {
            // The tokens of the earlier segments are known once the run is resumed.
            if self.is_resumed {
                self.used_before = self.used();
            }
            return;
        }
        self.response_model.clone_from(&head.model);
        let time = now.saturating_sub(self.since);
        if let Some(instruments) = &self.options.instruments {
            self.of_chunk = self.of_metric();
            metrics::record(&instruments.first_chunk, time, &self.of_chunk);
        }
        if self.span.is_disabled() {
            return;
        }
        if self.request_model.is_none()
            && let Some(model) = &head.model
        {
            let name = genai::span_name(genai::CHAT, Some(model));
            // The field `otel.name` renames only a span that has not been entered.
            self.span.context().span().update_name(name);
        }
        self.set_text(attribute::RESPONSE_MODEL, head.model.as_deref());
        self.set_text(attribute::RESPONSE_ID, head.id.as_deref());
        self.set(attribute::TIME_TO_FIRST_CHUNK, time.as_secs_f64());
        if self.options.capture.is_on() {
            self.answer = Some(Box::new(MessageBuilder::new(head)));
        }
    }

    fn event(&mut self, event: &Event) {
        if let Some(answer) = &mut self.answer {
            answer.push(event);
        }
        if let Some(instruments) = &self.options.instruments
            && !self.is_run()
            && event.is_content()
        {
            let now = self.context.environment().clock().monotonic();
            if let Some(last) = self.last_chunk.replace(now) {
                let time = now.saturating_sub(last);
                metrics::record(&instruments.output_chunk, time, &self.of_chunk);
            }
        }
    }

    /// The attributes of the metrics of a model call.
    fn of_metric(&self) -> Vec<KeyValue> {
        let provider = self.provider.as_deref().unwrap_or(genai::OTHER);
        let mut attributes = vec![
            KeyValue::new(attribute::OPERATION, genai::CHAT),
            KeyValue::new(attribute::PROVIDER, provider.to_owned()),
        ];
        let models = [
            (attribute::REQUEST_MODEL, &self.request_model),
            (attribute::RESPONSE_MODEL, &self.response_model),
        ];
        for (name, model) in models {
            if let Some(model) = model {
                attributes.push(KeyValue::new(name, model.to_string()));
            }
        }
        attributes
    }

    fn end(mut self: Box<Self>, end: End<'_>) {
        let answer = self.answer.take();
        if let End::Failed(error) = end {
            if self.provider.is_none() {
                self.provider = error.provider().map(Str::from);
            }
            if let Some(segment) = &self.segment {
                links::forget(&self.context, segment);
            }
        }
        let usage = self.usage(end);
        self.measure(end, usage);
        if !self.span.is_disabled() {
            // Entered, so that the span ends now, and not with its last poll.
            let _entered = self.span.enter();
            self.describe_end(end, usage);
            self.describe_answer(end, answer);
        }
    }

    /// The tokens of the model call, or of all model calls of this segment of the run.
    fn usage(&self, end: End<'_>) -> Option<Usage> {
        let finish = match end {
            End::Finished(finish) => Some(finish),
            _ => None,
        };
        if !self.is_run() || self.context.phase() != Phase::Run {
            return finish.map(|finish| finish.usage);
        }
        let total = finish.map_or_else(|| self.used(), |finish| finish.run_usage().total());
        Some(difference(total, self.used_before))
    }

    fn measure(&self, end: End<'_>, usage: Option<Usage>) {
        let Some(instruments) = &self.options.instruments else {
            return;
        };
        let now = self.context.environment().clock().monotonic();
        let time = now.saturating_sub(self.since);
        let error = error_type(end).or(match end {
            // Not an error, but no duration to compare others with.
            End::Dropped => Some(ErrorKind::Cancelled.as_str()),
            End::Failed(error) => Some(error.kind().as_str()),
            _ => None,
        });
        let error = error.map(|error| KeyValue::new(attribute::ERROR_TYPE, error));
        if self.is_run() {
            let agent = self.agent.as_ref();
            let agent = agent.map(|agent| KeyValue::new(attribute::AGENT, agent.to_string()));
            let attributes: Vec<_> = agent.into_iter().chain(error).collect();
            metrics::record(&instruments.agent, time, &attributes);
            return;
        }
        let mut attributes = self.of_metric();
        if let Some(usage) = usage {
            instruments.tokens(usage, &attributes);
        }
        attributes.extend(error);
        metrics::record(&instruments.operation, time, &attributes);
    }

    fn describe_end(&self, end: End<'_>, usage: Option<Usage>) {
        let provider = self.provider.as_deref().unwrap_or(genai::OTHER);
        self.set(attribute::PROVIDER, provider.to_owned());
        self.set(attribute::OUTCOME, outcome(end));
        if let Some(error) = error_type(end) {
            self.set(attribute::ERROR_TYPE, error);
            self.span.set_status(Status::error(self.description(end)));
        }
        if let Some(usage) = usage {
            self.set_count(attribute::INPUT_TOKENS, usage.input_tokens());
            self.set_count(attribute::OUTPUT_TOKENS, usage.output_tokens());
            self.set_count(attribute::CACHE_READ, usage.cached_input_tokens());
            self.set_count(attribute::CACHE_CREATION, usage.cache_write_tokens());
            if !self.is_run() {
                self.set_count(attribute::REASONING, usage.reasoning_tokens());
            }
        }
        let mut cancelled = self.context.cancel_reason();
        match end {
            End::Finished(finish) => {
                let reason = reason_name(&finish.reason);
                self.set(attribute::FINISH_REASONS, strings(&[Str::from(reason)]));
                match &finish.outcome {
                    Outcome::Interrupted => {
                        let interrupts = i64::try_from(finish.interrupts().len());
                        self.set(attribute::INTERRUPTS, interrupts.unwrap_or(i64::MAX));
                    }
                    Outcome::Aborted { reason } => cancelled = Some(reason.clone()),
                    // It ended before it was cancelled.
                    _ => cancelled = None,
                }
            }
            End::Failed(error) => {
                self.set_text(attribute::ERROR_CODE, code_name(error));
                self.set_text(attribute::EFFECTS, genai::effects(error.effects()));
            }
            End::Truncated | End::Dropped => {}
        }
        if let Some(reason) = cancelled {
            self.set(attribute::CANCEL_REASON, genai::cancel_reason(&reason));
        }
    }

    fn describe_answer(&self, end: End<'_>, answer: Option<Box<MessageBuilder>>) {
        let Some(mut writer) = Writer::new(&self.options.capture) else {
            return;
        };
        let finish = match end {
            End::Finished(finish) => Some(finish),
            _ => None,
        };
        let reason = finish.map(|finish| &finish.reason);
        let answer = match answer {
            Some(answer) => writer.output(&answer.build(), reason),
            None => match finish.and_then(last_message) {
                Some(message) => writer.output(message, reason),
                None => return,
            },
        };
        self.set(attribute::OUTPUT_MESSAGES, answer);
    }

    /// The message of an error, if content is recorded.
    fn description(&self, end: End<'_>) -> String {
        let End::Failed(error) = end else {
            return String::new();
        };
        self.options
            .capture
            .text(error.message())
            .unwrap_or_default()
    }
}

/// The last message of a run.
fn last_message(finish: &Finish) -> Option<&concentric_core::Message> {
    Some(finish.transcript.as_ref()?.last()?.as_message())
}

fn outcome(end: End<'_>) -> &'static str {
    match end {
        End::Finished(finish) => outcome_name(&finish.outcome),
        End::Failed(error) => match error.kind() {
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Halted => "halted",
            _ => "failed",
        },
        End::Truncated => "truncated",
        End::Dropped => "dropped",
    }
}

/// The class of an error; `None` if the end is none.
fn error_type(end: End<'_>) -> Option<&'static str> {
    match end {
        End::Failed(error) => genai::error_type(error.kind()),
        End::Truncated => Some(ErrorKind::Truncated.as_str()),
        End::Finished(_) | End::Dropped => None,
    }
}

fn strings(texts: &[Str]) -> Value {
    let texts = texts.iter().map(|text| StringValue::from(text.to_string()));
    Value::Array(Array::String(texts.collect()))
}

/// The counts of `total` that `part` does not have.
fn difference(total: Usage, part: Usage) -> Usage {
    let minus = |total: Option<u64>, part: Option<u64>| {
        total.map(|total| total.saturating_sub(part.unwrap_or(0)))
    };
    let mut rest = Usage::default();
    rest.set_input_tokens(minus(total.input_tokens(), part.input_tokens()));
    rest.set_output_tokens(minus(total.output_tokens(), part.output_tokens()));
    let (cached, before) = (total.cached_input_tokens(), part.cached_input_tokens());
    rest.set_cached_input_tokens(minus(cached, before));
    let (written, before) = (total.cache_write_tokens(), part.cache_write_tokens());
    rest.set_cache_write_tokens(minus(written, before));
    rest
}
