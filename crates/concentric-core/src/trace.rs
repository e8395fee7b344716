//! A machine-readable trace of a run: its model calls, rounds, tool calls, decisions and state
//! changes.
//!
//! [`Trace`] passes a [`TraceEntry`] for each of them to a callback. It is a plugin of an agent:
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxModel, ChatRequest, Error, NoTools,
//!     trace::{Trace, TraceEntry, TraceStep, lasting},
//! };
//! use std::sync::{Arc, Mutex};
//! use tower::{Layer, ServiceExt};
//!
//! async fn trace(model: BoxModel) -> Result<Vec<TraceEntry>, Error> {
//!     let entries = Arc::new(Mutex::new(Vec::new()));
//!     let sink = Arc::clone(&entries);
//!     let trace = Trace::new(move |entry| sink.lock().unwrap().push(entry));
//!     let agent = AgentLayer::new(NoTools).with(trace).layer(model);
//!     agent.oneshot(ChatRequest::user("hi")).await?.text().await?;
//!     // One JSON object per entry.
//!     let entries = std::mem::take(&mut *entries.lock().unwrap());
//!     println!("{}", serde_json::to_string(&entries).unwrap());
//!     assert!(matches!(entries[0].step, TraceStep::Started { turns: 1 }));
//!     Ok(lasting(entries))
//! }
//! # let _ = trace;
//! ```
//!
//! # Place
//!
//! [`AgentLayer::with`](crate::AgentLayer::with), or [`hooks::run`](crate::hooks::run()) around an
//! agent. Outside a layer that stores runs, it traces the runs as their callers see them.
//! `Toolset::trace` of `concentric-tools` traces the calls of a toolset in any loop.
//!
//! # Comparison
//!
//! A run that was suspended and resumed, traced by the same callback, has the trace of a run whose
//! approver replied at once, except for the entries about the suspension. [`lasting`] removes these
//! and orders the entries of calls that may run concurrently, so that both are equal.
//!
//! # Cost
//!
//! A run without a trace looks for one at each model call, round, slot update and call. The
//! callback is called while the run is polled, and must not block; a panic in it is logged. Entries
//! contain arguments of calls and values of slots.

use crate::{context::Context, panic::catch};
use concentric_proto::{Arguments, CallId, Delivery, FinishReason, Str, ToolStatus};
use serde::Serialize;
use serde_json::Value;
use std::{collections::HashMap, fmt, sync::Arc};

/// The callback that receives the trace of runs.
///
/// See the [module docs](self).
#[derive(Clone)]
pub struct Trace {
    sink: Arc<dyn Fn(TraceEntry) + Send + Sync>,
}

impl Trace {
    /// Creates a trace that is passed to `sink`.
    pub fn new(sink: impl Fn(TraceEntry) + Send + Sync + 'static) -> Self {
        Self {
            sink: Arc::new(sink),
        }
    }

    /// Passes an entry to the callback.
    pub fn record(&self, entry: TraceEntry) {
        if catch(|| (self.sink)(entry)).is_err() {
            tracing::error!("the callback of a trace panicked");
        }
    }
}

impl Context {
    /// Traces the run. Of a nested run without a trace of its own, the same trace has the model
    /// calls, rounds, decisions, state changes and steps of tool calls, but not its start and end.
    pub fn set_trace(&mut self, trace: Trace) {
        self.extensions_mut().insert(trace);
    }

    /// Returns the trace of the run.
    #[inline]
    pub fn trace(&self) -> Option<&Trace> {
        self.own_extensions()?.get()
    }

    /// Records a step of the run, if it is traced.
    #[inline]
    pub(crate) fn record(&self, step: impl FnOnce() -> TraceStep) {
        if let Some(trace) = self.trace() {
            trace.record(TraceEntry::new(self, step()));
        }
    }
}

/// A trace entry: one step of a run or of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TraceEntry {
    /// The calls whose nested run this is, outermost first; empty outside sub-agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<CallId>,
    /// The call; `None` for a step of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// The tool of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Str>,
    /// Whether the call, or the run that [started](TraceStep::Started), was resumed.
    pub delivery: Delivery,
    /// The step.
    pub step: TraceStep,
}

impl TraceEntry {
    /// Creates the entry of a step at the place of `context`.
    pub fn new(context: &Context, step: TraceStep) -> Self {
        let outer = std::iter::successors(context.parent(), |context| context.parent());
        let mut within: Vec<_> = outer.filter_map(Context::call_id).cloned().collect();
        within.reverse();
        Self {
            within,
            call_id: context.call_id().cloned(),
            tool: None,
            delivery: Delivery::First,
            step,
        }
    }

    /// Sets the call.
    #[must_use]
    pub fn for_call(mut self, id: CallId, tool: Str) -> Self {
        self.call_id = Some(id);
        self.tool = Some(tool);
        self
    }

    /// Sets the delivery.
    #[must_use]
    pub const fn with_delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// The outermost call that the entry belongs to.
    fn outermost_call(&self) -> Option<&CallId> {
        self.within.first().or(self.call_id.as_ref())
    }

    /// Returns whether a run that is not suspended has the entry, too.
    fn is_lasting(&self) -> bool {
        match &self.step {
            TraceStep::Suspended => false,
            TraceStep::Started { .. } => self.delivery == Delivery::First,
            TraceStep::Ended(how) => *how != "interrupted",
            TraceStep::Decided { decision, .. } => *decision != "ask",
            _ => true,
        }
    }
}

/// A step of a run or of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TraceStep {
    /// The run started or resumed, with a transcript of so many turns.
    Started {
        /// The number of turns.
        turns: usize,
    },
    /// A model was called.
    ModelCalled {
        /// The index of the step.
        step: u32,
        /// The number of turns in the request's transcript.
        turns: usize,
        /// The number of tools that the model is offered.
        tools: usize,
    },
    /// The answer of a model ended.
    ModelEnded {
        /// The index of the step.
        step: u32,
        /// Why the model stopped.
        reason: FinishReason,
    },
    /// The content of the step was discarded.
    Reset,
    /// Step gates decided: `continue`, `ask`, `finish`, `retry`, `skip`, `halt` or `error`.
    Decided {
        /// The moment: `step`, `round` or `finish`.
        before: &'static str,
        /// The decision.
        decision: &'static str,
    },
    /// A round of tool calls starts.
    RoundStarted {
        /// The index of the step.
        step: u32,
        /// The number of calls, without those of the client.
        calls: usize,
    },
    /// The arguments were decoded, validated and prepared for gates, with this result.
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
    /// The result of a call was added to the transcript.
    Result(ToolStatus),
    /// The value of a slot changed.
    StateChanged {
        /// The name of the slot.
        slot: &'static str,
        /// The value; `None` if the slot is transient.
        value: Option<Value>,
    },
    /// A step gate replaced the transcript.
    TranscriptReplaced {
        /// The number of turns.
        turns: usize,
    },
    /// The run ended: `completed`, `interrupted`, `halted`, `aborted`, `step_limit`, `call_limit`,
    /// `failed`, `truncated` or `dropped`.
    Ended(&'static str),
}

/// Returns the entries that do not depend on whether the run was suspended, without their delivery.
///
/// The entries of each tool call are adjacent, in the order in which the calls began.
pub fn lasting(entries: impl IntoIterator<Item = TraceEntry>) -> Vec<TraceEntry> {
    let kept = entries.into_iter().filter(TraceEntry::is_lasting);
    let mut round = 0;
    let mut ranks = HashMap::new();
    let mut ordered: Vec<_> = kept
        .map(|entry| {
            let Some(call) = entry.outermost_call() else {
                round += 1;
                ranks.clear();
                return ((round, 0), entry);
            };
            let next = ranks.len() + 1;
            let rank = *ranks.entry(call.clone()).or_insert(next);
            ((round, rank), entry)
        })
        .collect();
    ordered.sort_by_key(|(rank, _)| *rank);
    let entries = ordered.into_iter();
    entries
        .map(|(_, entry)| entry.with_delivery(Delivery::First))
        .collect()
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}
