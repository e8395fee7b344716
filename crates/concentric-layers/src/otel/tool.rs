//! The span of a tool call.

use super::{
    content::Writer,
    genai::{self, attribute},
    layer::Options,
    metrics,
};
use crate::wording::{code_name, status_name, tool_name};
use concentric_core::{Delivery, ErrorKind, ToolCall, ToolOutcome, ToolStatus, hooks::End};
use opentelemetry::{KeyValue, trace::Status};
use std::{sync::Arc, time::Duration};
use tracing::{Level, Span, span::Entered};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The span of a tool call, if one is recorded. It ends once, at the latest on drop.
pub(super) struct ToolSpan(Option<Box<Open>>);

struct Open {
    options: Arc<Options>,
    span: Span,
    call: ToolCall,
    since: Duration,
}

impl ToolSpan {
    pub(super) fn start(options: &Arc<Options>, call: &ToolCall) -> Self {
        let is_traced = tracing::span_enabled!(target: genai::TARGET, Level::INFO);
        if !is_traced && options.instruments.is_none() {
            return Self(None);
        }
        Self(Some(Box::new(Open::new(options, call, is_traced))))
    }

    /// Enters the span for a poll.
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        self.0.as_ref().map(|open| open.span.enter())
    }

    pub(super) fn end(&mut self, end: End<'_, ToolOutcome>) {
        if let Some(open) = self.0.take() {
            open.end(end);
        }
    }
}

impl Drop for ToolSpan {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl Open {
    #[cold]
    fn new(options: &Arc<Options>, call: &ToolCall, is_traced: bool) -> Self {
        let context = &call.context;
        let span = match is_traced {
            true => genai::tool_span(
                &genai::span_name(genai::EXECUTE_TOOL, Some(tool_name(call))),
                context.run_id().as_str(),
                context.step(),
                call.id().as_str(),
            ),
            false => Span::none(),
        };
        let open = Self {
            since: context.environment().clock().monotonic(),
            options: Arc::clone(options),
            span,
            call: call.clone(),
        };
        if !open.span.is_disabled() {
            open.describe();
        }
        open
    }

    fn describe(&self) {
        let (span, call) = (&self.span, &self.call);
        span.set_attribute(attribute::OPERATION, genai::EXECUTE_TOOL);
        span.set_attribute(attribute::TOOL_NAME, tool_name(call).to_owned());
        span.set_attribute(attribute::TOOL_TYPE, "function");
        if let Some(spec) = call.spec() {
            span.set_attribute(attribute::TOOL_DESCRIPTION, spec.description.to_string());
        }
        if call.delivery() != Delivery::First {
            span.set_attribute(attribute::RESUMED, true);
        }
        if call.settled().is_some() {
            span.set_attribute(attribute::SETTLED, true);
        }
        if let Some(mut writer) = Writer::new(&self.options.capture) {
            let arguments = writer.arguments(call.arguments().as_str());
            span.set_attribute(attribute::TOOL_ARGUMENTS, arguments);
        }
    }

    fn end(&self, end: End<'_, ToolOutcome>) {
        self.measure(end);
        if !self.span.is_disabled() {
            // Entered, so that the span ends now, and not with its last poll.
            let _entered = self.span.enter();
            self.describe_end(end);
        }
    }

    fn measure(&self, end: End<'_, ToolOutcome>) {
        // A settled call is not executed here, and one that waits is executed later.
        let is_executed = self.call.settled().is_none()
            && !matches!(end, End::Failed(error) if error.kind() == ErrorKind::Waiting);
        let Some(instruments) = self.options.instruments.as_ref().filter(|_| is_executed) else {
            return;
        };
        let context = &self.call.context;
        let now = context.environment().clock().monotonic();
        let mut attributes = vec![KeyValue::new(
            attribute::TOOL_NAME,
            tool_name(&self.call).to_owned(),
        )];
        if let Some(agent) = context.agent() {
            attributes.push(KeyValue::new(attribute::AGENT, agent.to_string()));
        }
        let error = error_type(end).or(match end {
            // Not an error, but no duration to compare others with.
            End::Dropped => Some(ErrorKind::Cancelled.as_str()),
            End::Failed(error) => Some(error.kind().as_str()),
            _ => None,
        });
        attributes.extend(error.map(|error| KeyValue::new(attribute::ERROR_TYPE, error)));
        let time = now.saturating_sub(self.since);
        metrics::record(&instruments.tool, time, &attributes);
    }

    fn describe_end(&self, end: End<'_, ToolOutcome>) {
        let span = &self.span;
        span.set_attribute(attribute::OUTCOME, outcome(end));
        if let Some(error) = error_type(end) {
            span.set_attribute(attribute::ERROR_TYPE, error);
            span.set_status(Status::error(self.description(end)));
        }
        if let End::Failed(error) = end
            && let Some(code) = code_name(error)
        {
            span.set_attribute(attribute::ERROR_CODE, code.to_owned());
        }
        if let End::Dropped = end
            && let Some(reason) = self.call.context.cancel_reason()
        {
            span.set_attribute(attribute::CANCEL_REASON, genai::cancel_reason(&reason));
        }
        if let End::Finished(outcome) = end
            && let Some(mut writer) = Writer::new(&self.options.capture)
        {
            let result = writer.outcome(&outcome.content);
            span.set_attribute(attribute::TOOL_RESULT, result);
        }
    }

    /// The message of an error, if content is recorded.
    fn description(&self, end: End<'_, ToolOutcome>) -> String {
        let End::Failed(error) = end else {
            return String::new();
        };
        self.options
            .capture
            .text(error.message())
            .unwrap_or_default()
    }
}

fn outcome(end: End<'_, ToolOutcome>) -> &'static str {
    match end {
        End::Finished(outcome) => status_name(outcome.status),
        End::Failed(error) => match error.kind() {
            ErrorKind::Waiting => "waiting",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Halted => "halted",
            _ => "failed",
        },
        End::Truncated | End::Dropped => "dropped",
    }
}

/// The class of an error; `None` if the end is none.
fn error_type(end: End<'_, ToolOutcome>) -> Option<&'static str> {
    match end {
        End::Finished(outcome) => match outcome.status {
            ToolStatus::Failed => Some("tool_error"),
            ToolStatus::Unknown => Some("indeterminate"),
            _ => None,
        },
        End::Failed(error) => genai::error_type(error.kind()),
        End::Truncated | End::Dropped => None,
    }
}
