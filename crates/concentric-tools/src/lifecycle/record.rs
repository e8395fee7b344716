use concentric_core::{Arguments, CallId, Origin, Str, ToolStatus, method::catch};
use serde::Serialize;
use std::{fmt, sync::Arc};

/// One entry of the protocol of tool calls: what the lifecycle did, for tests and audits.
///
/// Two ways to drive the same calls have the same protocol, but for its [origin](Self::origin). See
/// [`Toolset::protocol`](crate::Toolset::protocol).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProtocolEntry {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: Str,
    /// Whether the call is made for the first time, or taken up.
    pub origin: Origin,
    /// What was done.
    pub step: ProtocolStep,
}

/// What the lifecycle did with a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProtocolStep {
    /// Its arguments were decoded, validated and prepared; these they are.
    Prepared(Arguments),
    /// Its arguments are no good.
    Invalid,
    /// The gates decided: `pass`, `allow`, `ask`, `deny` or `halt`.
    Gated(&'static str),
    /// It was suspended: it waits for replies, or for its siblings.
    Suspended,
    /// It was taken up with a reply: `approved`, `edited` (and is asked about
    /// as edited), `denied`, `answered`, `cancelled` or `invalid`.
    Resumed(&'static str),
    /// It has its outcome.
    Settled(ToolStatus),
}

/// Where the protocol goes.
#[derive(Clone)]
pub(crate) struct Protocol(pub(crate) Arc<dyn Fn(ProtocolEntry) + Send + Sync>);

impl Protocol {
    pub(crate) fn record(&self, entry: ProtocolEntry) {
        if catch(|| (self.0)(entry)).is_err() {
            tracing::error!("the sink of a toolset's protocol panicked");
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protocol").finish_non_exhaustive()
    }
}
