//! Validation of replies against the interrupts of a run.

use super::{Data, RunState, Stage};
use crate::{
    interrupt::{Decision, Interrupt, Reply, ReplyError},
    message::Executor,
    text::Str,
};
use std::{collections::HashSet, time::SystemTime};

impl RunState {
    /// Checks `replies` like [`Machine::reply`](crate::machine::Machine::reply), except for edited
    /// arguments, without applying them.
    ///
    /// # Errors
    ///
    /// The errors of [`Machine::reply`](crate::machine::Machine::reply), except those of edited
    /// arguments.
    pub fn check_replies(&self, replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.0, replies, now)
    }
}

/// Checks `replies` against the interrupts of a run in `state`.
pub(crate) fn check_replies(
    state: &Data,
    replies: &[Reply],
    now: SystemTime,
) -> Result<(), ReplyError> {
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
            // The time of the interrupt is not recorded; the approval token contains it.
            Some((at, None)) if claimed.insert(at) => {
                let decision = reply.decision()?;
                let is_clients = round
                    .calls
                    .get(at)
                    .is_some_and(|call| call.call.executor == Executor::Client);
                let why = match decision {
                    Decision::Approved { .. } if is_clients => "a client call cannot be approved",
                    Decision::Failed(_) if !is_clients => {
                        "only a client call can be reported as failed"
                    }
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

/// Checks that each reply is for one of `asked`, and that there is a reply for either all or none.
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
