//! Replies to the interrupts of a run.

use super::Machine;
use crate::{
    interrupt::{Answered, Reply, ReplyError, SuspendedBy, TOOL_CALL},
    run_state::{SlotState, Stage, check_replies},
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
    /// [`Rules::edits`](super::Rules::edits) rejects edited arguments.
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
        for (reply, at) in replies.into_iter().zip(asked) {
            let Some(slot) = at.and_then(|at| round.slots.get_mut(at)) else {
                continue;
            };
            match (&mut slot.state, &mut slot.answered) {
                (SlotState::Waiting(pending), answered) => {
                    let pending = pending.take().map(|pending| *pending);
                    let replied = Answered::new(pending, vec![reply]).accepted_at(now);
                    *answered = Some(Box::new(replied));
                    slot.state = SlotState::Ready;
                }
                // A call with several interrupts has already received a reply.
                (_, Some(answered)) => answered.replies.push(reply),
                _ => {}
            }
        }
        for slot in &mut round.slots {
            if slot.is_ready() && !self.rules.resumes {
                slot.settle_by_itself();
            }
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
                && let Some(slot) = round.slots.get(at)
                && let Some(pending) = slot.pending()
                // An interrupt that a tool raised, such as an agent used as a tool, is not about
                // the tool's own arguments.
                && pending.by == Some(SuspendedBy::Lifecycle)
                && !pending.begun
            {
                edits.check(&slot.call, reply)?;
            }
        }
        Ok(())
    }
}
