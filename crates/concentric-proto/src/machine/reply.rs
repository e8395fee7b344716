//! Replies to the interrupts of a run.

use super::{Machine, check_edit};
use crate::{
    call::CallStage,
    interrupt::{Reply, ReplyError, SuspendedBy, TOOL_CALL, millis},
    run_state::{Stage, StoredCall, check_replies},
};
use std::time::SystemTime;

impl Machine {
    /// Applies replies to the run's interrupts: all of `replies`, or none on error. `now` is the
    /// time at which they are accepted.
    ///
    /// # Errors
    ///
    /// A reply is for an unknown interrupt, too late or malformed; two replies are for the same
    /// interrupt; a reply is missing for interrupts that must be replied to together; or
    /// [`RunLimits::edits`](super::RunLimits::edits) rejects edited arguments.
    pub fn reply(&mut self, replies: Vec<Reply>, now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.state, &replies, now)?;
        self.check_edits(&replies)?;
        if self.state.asked_by_gates().is_some() {
            if let Some(asked) = &mut self.state.gate {
                asked.replies = replies;
            }
            return Ok(());
        }
        let round = match &mut self.state.stage {
            Stage::Round(round) => round,
            Stage::Inner(_) => {
                self.replies = Some(Box::new((replies, now)));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let questions = round.questions();
        let asked: Vec<Option<usize>> = replies
            .iter()
            .map(|reply| questions.get(&reply.interrupt_id).map(|(at, _)| at))
            .collect();
        let accepted_at = millis::from(millis::since(now));
        for (reply, at) in replies.into_iter().zip(asked) {
            if let Some(call) = at.and_then(|at| round.calls.get_mut(at)) {
                call.state.reply(reply, accepted_at);
            }
        }
        if !self.rules.resumes {
            round.settle_each(StoredCall::outcome_of_reply);
        }
        Ok(())
    }

    /// Checks edited arguments in replies to interrupts that the round service itself raised.
    fn check_edits(&self, replies: &[Reply]) -> Result<(), ReplyError> {
        let (Some(edits), Stage::Round(round)) = (&self.rules.edits, &self.state.stage) else {
            return Ok(());
        };
        let questions = round.questions();
        for reply in replies {
            if let Some((at, Some(asked))) = questions.get(&reply.interrupt_id)
                && asked.reason == TOOL_CALL
                && let Some(call) = round.calls.get(at)
                // An interrupt that a tool raised, such as an agent used as a tool, is not about
                // the tool's own arguments.
                && let CallStage::Suspended { by: SuspendedBy::Gate | SuspendedBy::Change, .. } =
                    call.state.stage
            {
                check_edit(&call.call, reply, &**edits)?;
            }
        }
        Ok(())
    }
}
