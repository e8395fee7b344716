//! Replies to what a run waits for.

use super::Machine;
use crate::{
    interrupt::{Answered, Reply, ReplyError, SuspendedBy, TOOL_CALL},
    run_state::{SlotState, Stage, check_replies},
};
use std::time::SystemTime;

impl Machine {
    /// Takes replies to what the run waits for: all of `replies`, or on error none. It is `now`.
    ///
    /// # Errors
    ///
    /// A reply is to no question that waits, or too late, or not of the form that the question asks
    /// for; two are to the same one; or one is missing of those that are to be answered together. One
    /// gives a call arguments that [`Rules::edits`](super::Rules::edits) does not accept.
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
                // A call that asks several things was replied to already.
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

    /// Checks the arguments that `replies` give calls which the round service itself asks about.
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
                // What a tool asks, as an agent that is one, is not about its own arguments.
                && pending.by == Some(SuspendedBy::Lifecycle)
                && !pending.begun
            {
                edits.check(&slot.call, reply)?;
            }
        }
        Ok(())
    }
}
