//! The rules that a toolset applies to its calls.

mod ledger;
mod proof;

#[cfg(feature = "approval-tokens")]
pub(crate) use self::proof::Verified;
pub(crate) use self::{
    ledger::LedgerHandle,
    proof::{Invalid, VerifyReplies},
};

use crate::{Digest, ToolError, gate::Gate};
use concentric_core::{
    Arguments, Context, ToolCall,
    store::Once,
    trace::{Trace, TraceEntry},
};
use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// The treatment of the other calls of a round while some wait for an approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SiblingPolicy {
    /// Calls of read-only tools run at once; the others wait.
    #[default]
    RunReadOnly,
    /// All of them run at once.
    RunAll,
    /// All of them wait.
    HoldAll,
}

/// The rules that a toolset applies to calls before they enter the stack.
#[derive(Clone, Default)]
pub(crate) struct Policy {
    pub(crate) gates: Vec<Arc<dyn Gate>>,
    pub(crate) prepare: Vec<Prepare>,
    pub(crate) siblings: SiblingPolicy,
    pub(crate) together: bool,
    pub(crate) tokens: Option<Arc<dyn VerifyReplies>>,
    pub(crate) once: Option<Arc<dyn Once>>,
    pub(crate) ledger: Option<LedgerHandle>,
    pub(crate) trace: Option<Trace>,
}

impl Policy {
    /// The gates of the toolset and of the outer agents.
    pub(crate) fn agent_gates<'a>(
        &'a self,
        context: &'a Context,
    ) -> impl Iterator<Item = &'a dyn Gate> {
        let gates = self.gates.iter().chain(context.inherited_gates());
        gates.map(|gate| &**gate)
    }

    /// The gates that decide about the calls of a run: those of the agents, then those of the run.
    pub(crate) fn gates<'a>(&'a self, context: &'a Context) -> impl Iterator<Item = &'a dyn Gate> {
        let own = context.run_gates().iter().map(|gate| &**gate);
        self.agent_gates(context).chain(own)
    }

    /// Whether gates decide about the calls of a run.
    pub(crate) fn has_gates(&self, context: &Context) -> bool {
        self.gates(context).next().is_some()
    }

    /// Records a step of a call in the traces of the toolset and of the run.
    pub(crate) fn record(&self, context: &Context, entry: impl FnOnce() -> TraceEntry) {
        match (&self.trace, context.trace()) {
            (None, None) => {}
            (Some(trace), None) | (None, Some(trace)) => trace.record(entry()),
            (Some(own), Some(trace)) => {
                let entry = entry();
                own.record(entry.clone());
                trace.record(entry);
            }
        }
    }

    /// The digest of the gates of a run; an approval under another policy is invalid.
    pub(crate) fn policy(&self, context: &Context) -> Digest {
        let policies: Vec<_> = self.gates(context).map(Gate::policy).collect();
        let fields: Vec<&[u8]> = policies.iter().map(|policy| policy.as_bytes()).collect();
        Digest::of_fields("concentric/policy/v1", &fields)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates: Vec<_> = self.gates.iter().map(|gate| gate.policy()).collect();
        f.debug_struct("Policy")
            .field("gates", &gates)
            .field("siblings", &self.siblings)
            .field("together", &self.together)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

type Prepared = Pin<Box<dyn Future<Output = Result<Arguments, ToolError>> + Send>>;

/// Edits a call's arguments before the gates receive them.
#[derive(Clone)]
pub(crate) struct Prepare(Arc<dyn Fn(ToolCall) -> Prepared + Send + Sync>);

impl Prepare {
    pub(crate) fn new<F, Fut>(prepare: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arguments, ToolError>> + Send + 'static,
    {
        Self(Arc::new(move |call| Box::pin(prepare(call))))
    }

    pub(crate) fn call(&self, call: ToolCall) -> Prepared {
        (self.0)(call)
    }
}
