//! The spans of a run's earlier segments, which the span of a resumed run links to.

use concentric_core::{
    Context,
    state::{Durable, Scope, Slot},
};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The number of earlier segments that are kept: a span of the OpenTelemetry SDK has 128 links.
const MAX: usize = 128;

/// The contexts of the spans of a run so far, as `traceparent` of W3C Trace Context.
struct Segments;

impl Slot for Segments {
    type Value = Vec<String>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/otel";
    const SCOPE: Scope = Scope::Run;
}

/// Links `span` to the earlier segments of the run if it `is_resumed`, and records `span` as another.
/// Returns what it recorded; `None` if the span is in no trace.
///
/// The span must have its attributes, since it is started.
pub(super) fn continue_run(context: &Context, span: &Span, is_resumed: bool) -> Option<String> {
    if is_resumed && let Ok(segments) = context.state::<Segments>() {
        let earlier = segments.iter().filter_map(|segment| parse(segment));
        earlier.for_each(|earlier| span.add_link(earlier));
    }
    let own = span.context().span().span_context().clone();
    let own = own.is_valid().then(|| format(&own))?;
    update(context, |segments| {
        let skipped = (segments.len() + 1).saturating_sub(MAX);
        let kept = segments.iter().skip(skipped);
        kept.chain([&own]).cloned().collect()
    });
    Some(own)
}

/// Removes the segment of an attempt that failed: another attempt is not its continuation.
pub(super) fn forget(context: &Context, own: &str) {
    update(context, |segments| {
        let others = segments.iter().filter(|segment| *segment != own);
        others.cloned().collect()
    });
}

fn update(context: &Context, update: impl FnMut(&Vec<String>) -> Vec<String>) {
    if let Err(error) = context.update_state::<Segments>(update) {
        tracing::warn!(target: super::genai::TARGET, %error, "a resumed run will not be linked to this one");
    }
}

fn format(span: &SpanContext) -> String {
    let flags = span.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
}

fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.splitn(4, '-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE))
}
