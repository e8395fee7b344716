//! What both stores decide by.

use crate::{Fault, Options};
use concentric_core::{
    InterruptId, MessageId, Reply, ToolOutcome, ToolStatus,
    machine::{MachineState, StateError},
    store::{RunKey, RunRecord, RunStatus, StoreError},
};
use std::{collections::HashSet, time::SystemTime};

/// How a run stands, without its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) status: RunStatus,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    pub(crate) lease_until: SystemTime,
}

impl Standing {
    /// Whether the run may be claimed at `now` by one who has seen `version`.
    pub(crate) fn check_claim(&self, version: u64, now: SystemTime) -> Result<(), StoreError> {
        let free = match self.status {
            RunStatus::Ended => return Err(StoreError::Ended),
            RunStatus::Suspended => true,
            RunStatus::Running => self.lease_until <= now,
        };
        match free && self.version == version {
            true => Ok(()),
            false => Err(StoreError::Taken),
        }
    }

    /// Whether the run may be written under `fence`.
    pub(crate) fn check_fence(&self, fence: u64) -> Result<(), StoreError> {
        match self.status {
            _ if self.fence != fence => Err(StoreError::Stale),
            RunStatus::Running => Ok(()),
            // The claim was given up.
            RunStatus::Suspended => Err(StoreError::Stale),
            RunStatus::Ended => Err(StoreError::Ended),
        }
    }

    /// Whether the run may be ended under `fence`, or was.
    pub(crate) fn check_end(&self, fence: u64) -> Result<(), StoreError> {
        match self.check_fence(fence) {
            Err(StoreError::Ended) => Ok(()),
            other => other,
        }
    }
}

/// A state as it is stored.
pub(crate) struct Written {
    pub(crate) json: String,
    /// The questions that it waits on.
    pub(crate) asks: Vec<InterruptId>,
    /// The message of its open round.
    pub(crate) message: Option<MessageId>,
}

pub(crate) fn write_state(state: &MachineState, max: usize) -> Result<Written, StoreError> {
    let json = state.to_json().map_err(StoreError::unwritable)?;
    check_text(&json, max)?;
    let asks = state.interrupts().into_iter();
    Ok(Written {
        json,
        asks: asks.map(|asked| asked.id.clone()).collect(),
        message: message_of(state),
    })
}

/// The message whose round is open in `state`.
pub(crate) fn message_of(state: &MachineState) -> Option<MessageId> {
    state
        .open_round()
        .and_then(|round| round.message().id.clone())
}

/// What is kept once `replies` come to a run that has `accepted` some: those are not replaced.
pub(crate) fn merge_replies(accepted: &[Reply], replies: Vec<Reply>) -> Vec<Reply> {
    let known: HashSet<_> = accepted.iter().map(|it| &it.interrupt_id).collect();
    let new = replies.into_iter();
    let new: Vec<_> = new.filter(|it| !known.contains(&it.interrupt_id)).collect();
    accepted.iter().cloned().chain(new).collect()
}

/// Fails if as many runs wait as may: `thread` and `tenant` are how many do, without this one.
pub(crate) fn check_waiting(
    options: &Options,
    thread: usize,
    tenant: usize,
) -> Result<(), StoreError> {
    for (waiting, limit, of_tenant) in [
        (thread, options.max_waiting_per_thread, false),
        (tenant, options.max_waiting_per_tenant, true),
    ] {
        if waiting >= limit {
            return Err(StoreError::TooManyWaiting { limit, of_tenant });
        }
    }
    Ok(())
}

/// Whether an effect's outcome gives way to a new one.
pub(crate) fn replaces(first: &ToolOutcome, outcome: &ToolOutcome, repeatable: bool) -> bool {
    repeatable && first.status == ToolStatus::Failed && outcome.status == ToolStatus::Done
}

/// Whether two texts of arguments say the same: they may have been written anew in between.
pub(crate) fn same_arguments(one: &str, other: &str) -> bool {
    let read = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || read(one).is_some_and(|one| Some(one) == read(other))
}

pub(crate) fn read_state(key: &RunKey, json: &str, max: usize) -> Result<MachineState, StoreError> {
    MachineState::from_json(json.as_bytes(), max).map_err(|error| match error {
        StateError::TooLarge(bytes) => Fault::TooLarge { bytes, max }.into(),
        // It is whole, and not for this code.
        StateError::Version(_) => StoreError::failed(error),
        other => Fault::corrupt(name(key), other).into(),
    })
}

pub(crate) fn write_replies(replies: &[Reply], max: usize) -> Result<String, StoreError> {
    let json = serde_json::to_string(replies).map_err(StoreError::unwritable)?;
    check_text(&json, max)?;
    Ok(json)
}

/// Leaves a run out that cannot be read, where several are looked for; not if the database failed.
pub(crate) fn readable(
    record: Result<RunRecord, StoreError>,
) -> Result<Option<RunRecord>, StoreError> {
    let why = match record {
        Ok(record) => return Ok(Some(record)),
        Err(StoreError::Failed(why)) => why,
        Err(error) => return Err(error),
    };
    if let Some(Fault::Database(_)) = why.downcast_ref() {
        return Err(StoreError::Failed(why));
    }
    tracing::error!(%why, "a run is left out, which cannot be read");
    Ok(None)
}

/// What a run is called where something is wrong with it.
pub(crate) fn name(key: &RunKey) -> String {
    format!("the run `{}` of the thread `{}`", key.run, key.thread)
}

/// Refuses what could not be read again.
pub(crate) fn check_text(json: &str, max: usize) -> Result<(), StoreError> {
    if json.len() > max {
        let bytes = json.len();
        return Err(StoreError::unwritable(Fault::TooLarge { bytes, max }));
    }
    match is_too_deep(json) {
        true => Err(StoreError::unwritable(Fault::TooDeep)),
        false => Ok(()),
    }
}

/// Whether `serde_json` would refuse to read `json` for its depth.
fn is_too_deep(json: &str) -> bool {
    const MOST: usize = 127;
    let (mut depth, mut text, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match (text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => text = !text,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MOST {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_what_the_parser_takes() {
        for depth in [1, 100, 126, 127, 128, 129, 500] {
            let json = format!(r#"{}"[[\"["{}"#, "[".repeat(depth), "]".repeat(depth));
            let read = serde_json::from_str::<serde_json::Value>(&json);
            assert_eq!(is_too_deep(&json), read.is_err(), "{depth}");
        }
    }
}
