use concentric_core::{Arguments, CallId, Delivery, Str, ToolStatus, panic::catch};
use serde::Serialize;
use std::{fmt, sync::Arc};

/// A trace entry of a lifecycle step, for tests and audits.
///
/// Two ways to execute the same calls have the same trace, except for [`delivery`](Self::delivery). See
/// [`Toolset::trace`](crate::Toolset::trace).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TraceEntry {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: Str,
    /// Whether the call is executed for the first time or resumed.
    pub delivery: Delivery,
    /// The step.
    pub step: TraceStep,
}

/// A step in the lifecycle of a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TraceStep {
    /// The arguments were decoded, validated and prepared, with this result.
    Prepared(Arguments),
    /// The arguments are invalid.
    Invalid,
    /// The gates decided: `pass`, `allow`, `ask`, `deny` or `halt`.
    Gated(&'static str),
    /// The call is suspended: it waits for replies, or for its siblings.
    Suspended,
    /// The call resumed with a reply: `approved`, `edited` (and requires another approval),
    /// `denied`, `answered`, `cancelled` or `invalid`.
    Resumed(&'static str),
    /// The call has an outcome.
    Settled(ToolStatus),
}

/// The callback that receives the trace.
#[derive(Clone)]
pub(crate) struct Trace(pub(crate) Arc<dyn Fn(TraceEntry) + Send + Sync>);

impl Trace {
    pub(crate) fn record(&self, entry: TraceEntry) {
        if catch(|| (self.0)(entry)).is_err() {
            tracing::error!("the `trace` callback of a toolset panicked");
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}
