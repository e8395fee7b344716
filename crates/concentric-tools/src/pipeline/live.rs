//! Interrupts that a call waits on while its run stays open.

use super::{Approvable, Entry, GateResult, Pipeline};
use crate::{
    call::notify::notify_requested,
    gate::{ApprovalEvent, Ask},
};
use concentric_core::{
    Clearance, Interrupt, Reply, RoundCall, Str, Suspension, ToolCall, ToolOutcome, ask::AskError,
    machine::check_edit, trace::TraceStep,
};
use std::{future::Future, pin::Pin, sync::Arc};

/// Resolves when a call that waits in an open run may enter the stack, or must be suspended.
pub(super) type LiveCall = Pin<Box<dyn Future<Output = Replied> + Send>>;

/// The result of a reply to a call that waits in an open run.
pub(super) enum Replied {
    /// The call enters the stack.
    Enter(Box<Entry>),
    /// The call is suspended: the edited arguments require an approval that does not keep the
    /// run open.
    Suspend(usize, Box<Suspension>),
}

impl Pipeline {
    /// Waits for a reply while the run stays open.
    pub(super) async fn wait_live(
        self,
        index: usize,
        mut call: RoundCall,
        mut ask: Ask,
        mut interrupt: Interrupt,
    ) -> Replied {
        let clearance = loop {
            let result = self.ask_live(&mut call, ask, interrupt).await;
            match result.settle_unexecuted(&call) {
                GateResult::Enter { clearance, .. } => break clearance,
                GateResult::Halt(outcome) => break Clearance::Settled(Arc::new(outcome)),
                GateResult::Ask(next) => {
                    let next: Approvable = *next;
                    let view = self.view(&call, Clearance::Ungated);
                    notify_requested(self.rules(), &next.ask, &view, &next.interrupt).await;
                    if next.ask.live.is_none() {
                        self.record(&call, TraceStep::Suspended);
                        return Replied::Suspend(index, Box::new(self.together(next.on)));
                    }
                    (ask, interrupt) = (next.ask, next.interrupt);
                }
                // A reply leads to neither.
                GateResult::Suspend(_) | GateResult::Fail(_) => {
                    let cancelled = ToolOutcome::cancelled("The call was cancelled.");
                    break Clearance::Settled(Arc::new(call.state.settle_unexecuted(cancelled)));
                }
            }
        };
        Replied::Enter(Box::new(Entry {
            index,
            call,
            clearance,
        }))
    }

    /// Raises an interrupt while the run stays open, and applies the reply.
    async fn ask_live(&self, call: &mut RoundCall, ask: Ask, interrupt: Interrupt) -> GateResult {
        let view = self.view(call, Clearance::Ungated);
        let id = interrupt.id.clone();
        let mut open = OpenInterrupt(Some((&ask, &view)));
        let reply = match &ask.live {
            Some((live, timeout)) => {
                let (tools, part) = (self.toolset.clone(), Arc::clone(&call.call));
                let check =
                    move |reply: &Reply| check_edit(&part, reply, |call| tools.check_edited(call));
                let reply = live
                    .ask_checked(interrupt, *timeout, &view.context, check)
                    .await;
                reply.inspect_err(log_unanswered).ok()
            }
            None => None,
        };
        // From here on observers receive the actual end.
        open.0 = None;
        drop(open);
        if let Some(Ok(decision)) = reply.as_ref().map(Reply::decision) {
            return match self.toolset.find(&call.call.name) {
                Some(tool) => self.apply(tool, call, &ask, &id, decision, None).await,
                None => GateResult::settled(ToolOutcome::cancelled("The call was cancelled.")),
            };
        }
        let reason = Str::from_static(match self.context.is_cancelled() {
            true => "The run was stopped before the call was approved.",
            false => "The call was not approved in time.",
        });
        ask.notify(&ApprovalEvent::Denied {
            call: &view,
            reason: Some(&reason),
        });
        GateResult::settled(ToolOutcome::denied(reason))
    }
}

/// A live interrupt that waits for a reply: notifies the observers if it is dropped.
struct OpenInterrupt<'a>(Option<(&'a Ask, &'a ToolCall)>);

impl Drop for OpenInterrupt<'_> {
    fn drop(&mut self) {
        if let Some((ask, call)) = self.0 {
            ask.notify(&ApprovalEvent::Cancelled { call });
        }
    }
}

/// Logs why a live interrupt has no reply: a warning if it was not delivered.
fn log_unanswered(error: &AskError) {
    match error {
        AskError::TimedOut | AskError::Cancelled => {
            tracing::debug!(%error, "a live interrupt was not answered");
        }
        _ => tracing::warn!(%error, "a live interrupt was not delivered"),
    }
}
