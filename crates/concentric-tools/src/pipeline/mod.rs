//! The pipeline of a round of tool calls: prepare, gate, execute, settle.
//!
//! A resumed call passes through the same stages. Each module calls only those before it in this
//! list: `prepare`, `ask`, `recovery`, `proof`, `resume`, `live`, `gate`, `decide`, `settle`,
//! `execute`.

mod ask;
mod client;
mod decide;
mod execute;
mod gate;
mod live;
mod notify;
mod prepare;
mod proof;
mod recovery;
mod resume;
mod running;
mod service;
mod settle;

pub(crate) use self::decide::decide_call;
pub use self::execute::Outcomes;
pub(crate) use self::notify::{cancel_interrupts, notify_decisions};

use crate::{
    Tool,
    gate::Ask,
    rules::{Policy, SiblingPolicy},
    toolset::Toolset,
};
use concentric_core::{
    Clearance, Context, Error, Interrupt, RoundCall, Str, Suspension, ToolCall, ToolOutcome,
    Transcript,
    trace::{TraceEntry, TraceStep},
};
use std::sync::Arc;

/// A call that may enter the stack.
#[derive(Debug)]
struct Entry {
    index: usize,
    call: RoundCall,
    clearance: Clearance,
}

/// The result of the gates for a call.
enum GateResult {
    /// The call enters the stack.
    Enter {
        clearance: Clearance,
        /// Whether the call may be held with its siblings, because no interrupt was raised for it.
        may_hold: bool,
    },
    /// The call is suspended to request the outcome of an earlier attempt.
    Suspend(Suspension),
    /// The call requires an approval.
    Ask(Box<Approvable>),
    /// The call ends the run, with this outcome.
    Halt(ToolOutcome),
    /// The decision failed, and the run fails.
    Fail(Error),
}

/// The interrupt for a call that requires an approval, with the suspension to store.
struct Approvable {
    ask: Ask,
    interrupt: Interrupt,
    on: Suspension,
}

impl GateResult {
    fn halt(reason: Str) -> Self {
        Self::Halt(crate::call::gates::halting(reason))
    }

    fn settled(outcome: ToolOutcome) -> Self {
        Self::Enter {
            clearance: Clearance::Settled(Arc::new(outcome)),
            may_hold: false,
        }
    }

    const fn enter(clearance: Clearance) -> Self {
        Self::Enter {
            clearance,
            may_hold: false,
        }
    }

    /// Converts the outcome of a call that does not run to an unknown one, if the call may have
    /// executed.
    fn settle_unexecuted(self, call: &RoundCall) -> Self {
        let settle = |outcome| call.state.settle_unexecuted(outcome);
        match self {
            Self::Enter {
                clearance: Clearance::Settled(outcome),
                ..
            } => Self::settled(settle(Arc::unwrap_or_clone(outcome))),
            Self::Halt(outcome) => Self::Halt(settle(outcome)),
            result => result,
        }
    }
}

/// A round that passes through the pipeline.
#[derive(Clone)]
struct Pipeline {
    toolset: Toolset,
    transcript: Transcript,
    context: Context,
}

impl Pipeline {
    fn rules(&self) -> &Arc<Policy> {
        self.toolset.rules()
    }

    fn record(&self, call: &RoundCall, step: TraceStep) {
        self.rules().record(&self.context, || {
            TraceEntry::new(&self.context, step)
                .for_call(call.call.id.clone(), call.call.name.clone())
                .with_delivery(call.delivery())
        });
    }

    /// Whether a call without an interrupt waits for its siblings with one.
    fn holds(&self, call: &RoundCall) -> bool {
        match self.rules().siblings {
            SiblingPolicy::RunAll => false,
            SiblingPolicy::RunReadOnly => !call.state.read_only,
            SiblingPolicy::HoldAll => true,
        }
    }

    fn together(&self, on: Suspension) -> Suspension {
        match self.rules().together {
            true => on.together(),
            false => on,
        }
    }

    /// The call as gates, approvers and observers receive it.
    fn view(&self, call: &RoundCall, clearance: Clearance) -> ToolCall {
        self.request(call.clone(), clearance)
    }

    fn request(&self, call: RoundCall, clearance: Clearance) -> ToolCall {
        ToolCall::of_round(call, clearance, self.transcript.clone(), &self.context)
    }

    /// The tool of a call. Its spec in the toolset applies, not the one that the model received.
    fn find<'a>(&'a self, call: &mut RoundCall) -> Option<&'a Tool> {
        let tool = self.toolset.find(&call.call.name)?;
        call.spec = Some(Arc::clone(tool.spec()));
        call.state.read_only = tool.spec().annotations.read_only;
        Some(tool)
    }
}
