//! Gate: decides about all calls of a round before any runs.

use super::{
    Approvable, Entry, GateResult, Pipeline, client, live::LiveCall, recovery::replied_effect,
};
use crate::{call::notify::notify_requested, toolset::Toolset};
use concentric_core::{
    Clearance, Delivery, Error, Executor, Refusal, RoundCall, RoundEvent, Suspension, ToolOutcome,
    ToolRound, call::CallStage, interrupt::SuspendedBy, trace::TraceStep,
};
use futures_util::future::join_all;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

/// The result of the gates for a round.
#[derive(Default)]
pub(super) struct Gated {
    /// The calls that may enter the stack, in order.
    pub(super) entries: Vec<Entry>,
    /// The calls that are suspended.
    pub(super) suspended: Vec<RoundEvent>,
    /// The calls that wait for a reply while the run stays open.
    pub(super) live: Vec<LiveCall>,
    /// The indexes and states of the calls in `live`, for when the run stops.
    pub(super) asking: Vec<(usize, RoundCall)>,
}

/// Whether decisions are necessary before the calls of a round enter the stack.
pub(super) fn needs_decisions(tools: &Toolset, round: &ToolRound) -> bool {
    let rules = tools.rules();
    let is_decided = |call: &RoundCall| {
        call.delivery() == Delivery::Resumed || call.call.executor == Executor::Client
    };
    !rules.prepare.is_empty()
        || rules.trace.is_some()
        || rules.has_gates(&round.context)
        || round.calls.iter().any(is_decided)
}

/// Returns the entry of a call that no gate decides about.
pub(super) fn enter(tools: &Toolset, index: usize, call: RoundCall) -> Entry {
    let settled = |refusal: &Refusal| Clearance::Settled(Arc::new(refusal.outcome(&call.call)));
    let clearance = match call.refusal() {
        Some(refusal) => settled(refusal),
        None if tools.find(&call.call.name).is_none() => {
            settled(&Refusal::NotOffered(tools.names()))
        }
        None => Clearance::Ungated,
    };
    Entry {
        index,
        call,
        clearance,
    }
}

/// Prepares the calls of a round, and decides about all of them before any runs. Returns an error
/// if the ledger fails.
pub(super) async fn gate_round(
    pipeline: Pipeline,
    mut calls: Vec<RoundCall>,
) -> Result<Gated, Error> {
    let mut gated = Gated::default();
    let Some(results) = pipeline.gate_calls(&mut calls).await else {
        for (index, call) in calls.into_iter().enumerate() {
            let clearance = Clearance::Settled(Arc::new(stopped(&call)));
            gated.enter(index, call, clearance);
        }
        return Ok(gated);
    };
    let halts = |result: &GateResult| matches!(result, GateResult::Halt(_));
    let waits = |it: &GateResult| matches!(it, GateResult::Suspend(_) | GateResult::Ask(_));
    let halted = results.iter().any(halts);
    let waiting = results.iter().any(waits);
    for (index, (call, result)) in calls.into_iter().zip(results).enumerate() {
        match result {
            GateResult::Fail(error) => return Err(error),
            result if halted => {
                let clearance = Clearance::Settled(result.into_halted(&call));
                gated.enter(index, call, clearance);
            }
            GateResult::Enter { may_hold: true, .. } if waiting && pipeline.holds(&call) => {
                gated.suspend(
                    &pipeline,
                    index,
                    &call,
                    Suspension::held(),
                    SuspendedBy::Gate,
                );
            }
            GateResult::Enter { clearance, .. } => gated.enter(index, call, clearance),
            GateResult::Suspend(on) => {
                gated.suspend(&pipeline, index, &call, on, SuspendedBy::UnknownEffect);
            }
            GateResult::Ask(asked) => Box::pin(gated.ask(&pipeline, index, call, *asked)).await,
            GateResult::Halt(outcome) => {
                gated.enter(index, call, Clearance::Settled(Arc::new(outcome)));
            }
        }
    }
    Ok(gated)
}

impl Gated {
    fn enter(&mut self, index: usize, call: RoundCall, clearance: Clearance) {
        self.entries.push(Entry {
            index,
            call,
            clearance,
        });
    }

    fn suspend(
        &mut self,
        pipeline: &Pipeline,
        index: usize,
        call: &RoundCall,
        on: Suspension,
        by: SuspendedBy,
    ) {
        pipeline.record(call, TraceStep::Suspended);
        let on = pipeline.together(on);
        self.suspended.push(RoundEvent::suspended(index, on, by));
    }

    /// Suspends a call that requires an approval, or waits for it while the run stays open.
    async fn ask(&mut self, pipeline: &Pipeline, index: usize, call: RoundCall, asked: Approvable) {
        let Approvable { ask, interrupt, on } = asked;
        let view = pipeline.view(&call, Clearance::Ungated);
        notify_requested(pipeline.rules(), &ask, &view, &interrupt).await;
        if ask.live.is_some() {
            self.asking.push((index, call.clone()));
            let live = pipeline.clone().wait_live(index, call, ask, interrupt);
            self.live.push(Box::pin(live));
        } else {
            self.suspend(pipeline, index, &call, on, SuspendedBy::Gate);
        }
    }
}

impl GateResult {
    /// The outcome of the call in a round that another call, or this one, halts.
    fn into_halted(self, call: &RoundCall) -> Arc<ToolOutcome> {
        match self {
            Self::Halt(outcome) => Arc::new(outcome),
            // Already settled: the client executed it, or it was refused.
            Self::Enter {
                clearance: Clearance::Settled(outcome),
                ..
            } => outcome,
            // Its effect is unknown.
            Self::Suspend(_) => Arc::new(stopped(call).into_indeterminate()),
            Self::Enter { .. } | Self::Ask(_) | Self::Fail(_) => Arc::new(stopped(call)),
        }
    }
}

impl Entry {
    /// Settles the call without running it.
    pub(super) fn give_up(&mut self) {
        // Otherwise it is already settled: the client executed it, or it was refused.
        if !matches!(self.clearance, Clearance::Settled(_)) {
            self.clearance = Clearance::Settled(Arc::new(stopped(&self.call)));
        }
    }
}

/// The outcome of a call that does not start because its run stops.
pub(super) fn stopped(call: &RoundCall) -> ToolOutcome {
    match (call.refusal(), call.call.executor) {
        (Some(refusal), _) => refusal.outcome(&call.call),
        (None, Executor::Client) => client::outcome(call),
        (None, _) => replied_effect(None, call).unwrap_or_else(|| {
            let stopped = "The run was stopped before the call was started.";
            call.state
                .settle_unexecuted(ToolOutcome::cancelled(stopped))
        }),
    }
}

impl Pipeline {
    /// Decides about each of `calls`; `None` if the run is cancelled meanwhile.
    pub(super) async fn gate_calls(&self, calls: &mut [RoundCall]) -> Option<Vec<GateResult>> {
        let results = async {
            match calls {
                // Most rounds have one call and need no `join_all`.
                [call] => vec![self.gate_call(call).await],
                calls => join_all(calls.iter_mut().map(|call| self.gate_call(call))).await,
            }
        };
        let mut results = pin!(results);
        // Cancelling the run wakes the task that polls the round.
        poll_fn(|cx| match self.context.is_cancelled() {
            true => Poll::Ready(None),
            false => results.as_mut().poll(cx).map(Some),
        })
        .await
    }

    /// Decides about one call, and updates it for the stack.
    async fn gate_call(&self, call: &mut RoundCall) -> GateResult {
        if let Some(refusal) = call.refusal() {
            return GateResult::settled(refusal.outcome(&call.call));
        }
        if call.call.executor == Executor::Client {
            return GateResult::settled(client::outcome(call));
        }
        // Boxed: few calls are resumed or recovered, and the future of each round has room for it.
        if call.state.resumed().is_some()
            && let Some(result) = Box::pin(self.settle_with_effect(call)).await
        {
            return result;
        }
        if call.is_recovered() {
            match Box::pin(self.recover(call)).await {
                Ok(None) => {}
                Ok(Some(result)) => return result,
                Err(error) => return GateResult::Fail(error),
            }
        }
        let is_unverified = matches!(call.state.stage, CallStage::Unverified(_));
        match self.gate_accepted(call).await.settle_unexecuted(call) {
            GateResult::Enter {
                clearance: Clearance::Settled(outcome),
                ..
            } if is_unverified && !call.state.read_only => {
                let outcome = Arc::unwrap_or_clone(outcome);
                Box::pin(self.unless_started(call, outcome)).await
            }
            result => result,
        }
    }

    /// Decides about a call that the loop accepted and that has not executed.
    async fn gate_accepted(&self, call: &mut RoundCall) -> GateResult {
        match self.find(call) {
            Some(tool) => self.resume(tool, call).await,
            None => {
                let refusal = Refusal::NotOffered(self.toolset.names());
                Box::pin(self.notify_missing_tool(call)).await;
                GateResult::settled(refusal.outcome(&call.call))
            }
        }
    }
}
