use concentric_core::{Context, Str, Transcript};
use std::{future::Future, pin::Pin, sync::Arc};

/// Why a conversation is summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A [`Trigger`](super::Trigger) holds.
    Trigger,
    /// The model rejected the conversation.
    Overflow,
    /// A [request](super::request()) of a tool or a host.
    Request,
}

/// A compaction that is about to be made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The cause.
    pub cause: Cause,
    /// The turns to be summarised.
    pub turns: Transcript,
    /// The summary of the turns before them.
    pub previous: Option<Str>,
    /// The tokens of the request.
    pub tokens: u64,
    /// The context of the model call.
    pub context: Context,
}

/// What a hook decides about a compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactionDecision {
    /// Makes the compaction.
    Proceed,
    /// Makes none now; the next attempt of the run follows when the trigger is exceeded by a further
    /// 10 %. Without effect if the model rejected the conversation.
    Skip,
    /// Makes the compaction with this summary. An empty one is replaced by the model's.
    Instead(Str),
}

/// A compaction that was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The cause.
    pub cause: Cause,
    /// The number of leading turns of the conversation that are not sent as they are, with the summarised
    /// and the first ones.
    pub turns: usize,
    /// The tokens of the request before.
    pub tokens_before: u64,
    /// The tokens of the request after.
    pub tokens_after: u64,
    /// The summary; `None` if there is none, and the turns were left out.
    pub summary: Option<Str>,
    /// The context of the model call.
    pub context: Context,
}

pub(super) type Decide = Pin<Box<dyn Future<Output = CompactionDecision> + Send>>;
pub(super) type Before = Arc<dyn Fn(Plan) -> Decide + Send + Sync>;
pub(super) type After = Arc<dyn Fn(&Report) + Send + Sync>;
