//! Replies to what a run waits for.

use super::{
    Machine, MachineState,
    state::{Data, Slot, SlotState, Stage},
};
use crate::{Answered, Executor, Interrupt, Reply, ReplyError, Ruling, Str, ToolOutcome};
use std::{collections::HashSet, time::SystemTime};

impl Machine {
    /// Takes replies to what the run waits for: all of `replies`, or on error none. It is `now`.
    ///
    /// # Errors
    ///
    /// A reply is to no question that waits, or too late, or not of the form that the question asks
    /// for; two are to the same one; or one is missing of those that are to be answered together.
    pub fn reply(&mut self, replies: Vec<Reply>, now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.state, &replies, now)?;
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
}

impl MachineState {
    /// Checks `replies` as [`Machine::reply`] does, and takes none of them.
    ///
    /// # Errors
    ///
    /// Those of [`Machine::reply`].
    pub fn check_replies(&self, replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.0, replies, now)
    }
}

/// Checks `replies` to what a run in `state` waits for.
fn check_replies(state: &Data, replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
    let mut replied = HashSet::new();
    for Reply { interrupt_id, .. } in replies {
        if !replied.insert(interrupt_id) {
            return Err(ReplyError::Duplicate(interrupt_id.clone()));
        }
    }
    if let Some(asked) = state.asked_by_gates() {
        return check_all(&asked.interrupts, replies, now);
    }
    let round = match &state.stage {
        Stage::Round(round) => round,
        Stage::Inner(inner) => return check_replies(&inner.state, replies, now),
        _ => {
            return match replies.first() {
                Some(reply) => Err(ReplyError::Unknown(reply.interrupt_id.clone())),
                None => Ok(()),
            };
        }
    };
    let questions = round.questions();
    let mut claimed = HashSet::new();
    for reply in replies {
        let id = &reply.interrupt_id;
        match questions.get(id) {
            Some((_, Some(interrupt))) => interrupt.check(reply, now)?,
            // Nobody knows when it was asked: that is for the proof to say.
            Some((at, None)) if claimed.insert(at) => {
                let ruling = reply.ruling()?;
                let is_clients = round
                    .slots
                    .get(at)
                    .is_some_and(|slot| slot.call.executor == Executor::Client);
                let why = match ruling {
                    Ruling::Approved { .. } if is_clients => "this call is the client's to run",
                    Ruling::Failed(_) if !is_clients => "this call is not the client's to run",
                    _ => "",
                };
                if !why.is_empty() {
                    return Err(ReplyError::Malformed {
                        id: id.clone(),
                        why: Str::from_static(why),
                    });
                }
            }
            Some((_, None)) => return Err(ReplyError::Duplicate(id.clone())),
            None => return Err(ReplyError::Unknown(id.clone())),
        }
    }
    if let Some(missing) = round
        .asked_together()
        .find(|asked| !replies.is_empty() && !replied.contains(&asked.id))
    {
        return Err(ReplyError::Missing(missing.id.clone()));
    }
    Ok(())
}

/// Checks that `replies` are to `asked`, and if there is one, that there is one to each.
fn check_all(asked: &[Interrupt], replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
    for reply in replies {
        let id = &reply.interrupt_id;
        let interrupt = asked.iter().find(|asked| asked.id == *id);
        let unknown = || ReplyError::Unknown(id.clone());
        interrupt.ok_or_else(unknown)?.check(reply, now)?;
    }
    let is_missing = |asked: &&Interrupt| {
        let mut all = replies.iter();
        !all.any(|reply| reply.interrupt_id == asked.id)
    };
    match asked.iter().find(is_missing) {
        Some(missing) if !replies.is_empty() => Err(ReplyError::Missing(missing.id.clone())),
        _ => Ok(()),
    }
}

impl Slot {
    /// What the client says that came of its call, if it has said so.
    pub(super) fn said_by_client(&self) -> Option<ToolOutcome> {
        if self.call.executor != Executor::Client {
            return None;
        }
        match self.answered.as_deref()?.replies.first()?.ruling().ok()? {
            Ruling::Answered(result) => Some(ToolOutcome::of_value(&result)),
            Ruling::Failed(error) => Some(ToolOutcome::failed(error)),
            _ => None,
        }
    }

    /// Settles a call that was replied to, where the round service does not know of replies.
    fn settle_by_itself(&mut self) {
        let said = self.said_by_client();
        let Some(answered) = self.answered.take() else {
            return;
        };
        let ruling = answered.replies.first().map(Reply::ruling);
        self.state = SlotState::Settled(match ruling {
            _ if let Some(said) = said => said,
            Some(Ok(Ruling::Denied { reason, .. })) => ToolOutcome::denied(
                reason.unwrap_or_else(|| Str::from_static("The call was denied.")),
            ),
            Some(Ok(Ruling::Cancelled)) => ToolOutcome::cancelled("The call was cancelled."),
            _ => ToolOutcome::denied("approval-invalid: nothing here was asked about this call."),
        });
    }
}
