//! Rules that the stores share.

use crate::{Fault, Options};
use concentric_core::{
    CancelReason, InterruptId, MessageId, Outcome, Reply, Str, ThreadId, ToolOutcome, ToolStatus,
    Turn,
    machine::{RunState, StateError},
    state::StoredSlot,
    store::{
        MAX_TAKEOVERS, Renewed, RunHead, RunKey, RunRecord, RunStatus, StoreError, SuspendedTurn,
    },
};
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use concentric_core::{
    ErrorKind,
    store::{StoredDecision, StoredScope},
};
use std::{
    collections::HashSet,
    ops::Range,
    time::{Duration, SystemTime},
};

/// The status, version and lease of a run, without its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// The stored status, in which a run whose lease has expired is running.
    pub(crate) status: RunStatus,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    pub(crate) lease_until: SystemTime,
    pub(crate) takeovers: u32,
    /// The time of its suspension or its end.
    pub(crate) since: Option<SystemTime>,
}

impl Standing {
    /// Returns the standing of a run that is claimed for the first time.
    pub(crate) const fn begun(fence: u64, lease_until: SystemTime) -> Self {
        Self {
            status: RunStatus::Running,
            version: fence,
            fence,
            lease_until,
            takeovers: 0,
            since: None,
        }
    }

    /// Returns the standing after a claim at `now`.
    pub(crate) fn claimed(self, fence: u64, now: SystemTime, lease_until: SystemTime) -> Self {
        let is_takeover = self.status_at(now) == RunStatus::Abandoned;
        Self {
            takeovers: self.takeovers.saturating_add(is_takeover.into()),
            since: self.since,
            ..Self::begun(fence, lease_until)
        }
    }

    /// Returns the status at `now`.
    pub(crate) fn status_at(&self, now: SystemTime) -> RunStatus {
        match self.status {
            RunStatus::Running if self.lease_until > now => RunStatus::Running,
            RunStatus::Running if self.takeovers >= MAX_TAKEOVERS => RunStatus::Quarantined,
            RunStatus::Running => RunStatus::Abandoned,
            status => status,
        }
    }

    /// Writes the standing at `now` into the record of the run.
    pub(crate) fn show(&self, now: SystemTime, record: &mut RunRecord) {
        record.status = self.status_at(now);
        record.version = self.version;
        record.fence = self.fence;
        record.lease_until = self.lease_until;
        record.takeovers = self.takeovers;
    }

    /// Returns whether the run has waited for a reply, or for a process that resumes it, for longer than
    /// [`Options::keep_waiting`].
    pub(crate) fn is_overdue(&self, options: &Options, now: SystemTime) -> bool {
        let since = match self.status {
            RunStatus::Suspended => self.since,
            RunStatus::Ended => None,
            _ => Some(self.lease_until),
        };
        since.is_some_and(|since| is_over(since, options.keep_waiting, now))
    }

    /// Checks that a claim based on `version` may take the run at `now`.
    pub(crate) fn check_claim(
        &self,
        version: u64,
        options: &Options,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        match self.status_at(now) {
            // The store ends overdue runs in batches, so this one may not be ended yet.
            _ if self.is_overdue(options, now) => Err(StoreError::Ended),
            RunStatus::Ended => Err(StoreError::Ended),
            RunStatus::Quarantined => Err(StoreError::Quarantined),
            RunStatus::Suspended | RunStatus::Abandoned if self.version == version => Ok(()),
            _ => Err(StoreError::Taken),
        }
    }

    /// Checks that a write with `fence` is allowed.
    pub(crate) fn check_fence(&self, fence: u64) -> Result<(), StoreError> {
        match self.status {
            _ if self.fence != fence => Err(StoreError::Stale),
            // A suspension releases the claim.
            RunStatus::Suspended => Err(StoreError::Stale),
            RunStatus::Ended => Err(StoreError::Ended),
            _ => Ok(()),
        }
    }

    /// Checks that a claim with `fence` may end the run, or has already ended it.
    pub(crate) fn check_end(&self, fence: u64) -> Result<(), StoreError> {
        match self.check_fence(fence) {
            Err(StoreError::Ended) => Ok(()),
            other => other,
        }
    }
}

/// What becomes of a run whose state is written.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Clone, Copy)]
pub(crate) enum Next {
    /// The owner of this fence continues it under a lease of this time.
    Runs(u64, Duration),
    /// The owner of this fence gives up its claim, and the run waits.
    Waits(u64),
    /// Nothing has changed about the run, which has this version and can be claimed.
    Claimable(u64),
}

/// A serialized change of a run, and the values that are indexed beside it.
pub(crate) struct Written {
    pub(crate) head: String,
    /// The interrupts that the run waits on.
    pub(crate) asks: Vec<InterruptId>,
    /// The message of the open round.
    pub(crate) message: Option<MessageId>,
}

/// The caller checks the size, with that of the turns.
pub(crate) fn write_head(head: &RunHead) -> Result<Written, StoreError> {
    let json = head.to_json().map_err(StoreError::unwritable)?;
    let asks = head.interrupts().into_iter();
    Ok(Written {
        head: json,
        asks: asks.map(|asked| asked.id.clone()).collect(),
        message: head.open_message().cloned(),
    })
}

/// Reads the state of a run.
pub(crate) fn read_run(
    key: &RunKey,
    head: &[u8],
    turns: impl IntoIterator<Item = Turn>,
    max: usize,
) -> Result<RunState, StoreError> {
    let state = RunHead::from_json(head, max).and_then(|head| head.with_turns(turns));
    state.map_err(|error| unreadable(&name(key), error, max))
}

/// Adds `replies` to those already `accepted`, which are not replaced.
pub(crate) fn merge_replies(accepted: &[Reply], replies: Vec<Reply>) -> Vec<Reply> {
    let known: HashSet<_> = accepted.iter().map(|it| &it.interrupt_id).collect();
    let new = replies.into_iter();
    let new: Vec<_> = new.filter(|it| !known.contains(&it.interrupt_id)).collect();
    accepted.iter().cloned().chain(new).collect()
}

/// Fails if the conversation or the tenant has reached its limit of waiting runs; `thread` and
/// `tenant` count the other waiting runs.
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

/// Returns the result of a renewal.
pub(crate) const fn renewed(cancel: bool) -> Renewed {
    match cancel {
        true => Renewed::CancelRequested,
        false => Renewed::Held,
    }
}

/// The maximum number of turns that are read at once, except with their whole conversation.
pub(crate) const MAX_TURNS: usize = 500;

/// Returns the positions of the turns in a conversation of `len` turns that
/// [`ThreadStore::turns`](concentric_core::store::ThreadStore::turns) returns.
pub(crate) fn window(len: usize, start: Option<usize>, limit: usize) -> Range<usize> {
    let limit = limit.min(MAX_TURNS);
    let start = start.unwrap_or(len.saturating_sub(limit)).min(len);
    start..len.min(start + limit)
}

/// How long a store remembers that a run was deleted before its end, or within this time after it. Its process learns
/// of it at the next renewal, and stores the turn of the run within a minute.
pub(crate) const REMEMBER_DELETED: Duration = Duration::from_secs(60 * 60);

/// Returns whether the process of a run that is deleted at `now` may still append a turn.
pub(crate) fn may_still_append(standing: &Standing, now: SystemTime) -> bool {
    let is_over = |since| is_over(since, REMEMBER_DELETED, now);
    standing.status == RunStatus::Running || !standing.since.is_some_and(is_over)
}

/// The longest time that a lease may last.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Returns the end of a time that begins at `now`; 100 years at most, which every clock can represent.
pub(crate) fn end_of(now: SystemTime, time: Duration) -> SystemTime {
    now.checked_add(time.min(LONGEST)).unwrap_or(now)
}

/// Returns whether `now` is at least `keep` after `time`.
pub(crate) fn is_over(time: SystemTime, keep: Duration, now: SystemTime) -> bool {
    now.checked_sub(keep).is_some_and(|before| time <= before)
}

/// Returns whether `outcome` replaces the `first` outcome of an effect.
pub(crate) fn replaces(first: &ToolOutcome, outcome: &ToolOutcome, repeatable: bool) -> bool {
    repeatable && first.status == ToolStatus::Failed && outcome.status == ToolStatus::Done
}

/// Returns whether two argument texts are equal as JSON: they may have been serialized again in
/// between.
pub(crate) fn same_arguments(one: &str, other: &str) -> bool {
    let read = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || read(one).is_some_and(|one| Some(one) == read(other))
}

/// The error of a stored state that cannot be read.
fn unreadable(what: &str, error: StateError, max: usize) -> StoreError {
    match error {
        StateError::TooLarge(bytes) => Fault::TooLarge { bytes, max }.into(),
        // The state is intact, but of a version that this code cannot read.
        StateError::Version(_) => StoreError::failed(error),
        other => Fault::corrupt(what, other).into(),
    }
}

/// Checks that a change based on `version` may be applied to a conversation with the `stored`
/// version and id of its last change. Returns the version if the change was already applied.
pub(crate) fn may_append(
    stored: Option<(u64, Option<&str>)>,
    version: u64,
    id: Option<&str>,
) -> Result<Option<u64>, StoreError> {
    let (found, last) = stored.unwrap_or_default();
    if id.is_some() && id == last {
        return Ok(Some(found));
    }
    match found == version {
        true => Ok(None),
        false => Err(StoreError::Moved {
            expected: version,
            found,
        }),
    }
}

/// Checks that a list of `len` turns can keep `keep` of them.
pub(crate) fn check_keep(len: usize, keep: usize) -> Result<(), StoreError> {
    if keep <= len {
        return Ok(());
    }
    let why = format!("{len} turns are stored, and the change keeps {keep}");
    Err(StoreError::unwritable(why))
}

/// Checks the size of a state, or of all turns of a conversation.
pub(crate) fn check_total(bytes: usize, max: usize) -> Result<(), StoreError> {
    match bytes > max {
        true => Err(StoreError::unwritable(Fault::TooLarge { bytes, max })),
        false => Ok(()),
    }
}

/// The error of a list of turns that a server has refused to change with this code; `None` if it is another code.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn unwritable(
    code: &str,
    what: &str,
    n: u64,
    keep: usize,
    max: usize,
) -> Option<StoreError> {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    let checked = match code {
        "keep" => check_keep(n, keep),
        "too_large" => check_total(n, max),
        "corrupt" => Err(Fault::corrupt(what, format!("not all of {n} turns exist")).into()),
        _ => Ok(()),
    };
    checked.err()
}

pub(crate) fn write_turn(turn: &Turn, max: usize) -> Result<String, StoreError> {
    let json = serde_json::to_string(turn).map_err(StoreError::unwritable)?;
    check_text(&json, max)?;
    Ok(json)
}

pub(crate) fn write_slot(slot: &StoredSlot, max: usize) -> Result<String, StoreError> {
    let json = serde_json::to_string(slot).map_err(StoreError::unwritable)?;
    check_text(&json, max)?;
    Ok(json)
}

/// Serializes the state and the slots of a suspended turn.
pub(crate) fn write_suspended(
    turn: &SuspendedTurn,
    max: usize,
) -> Result<(String, String), StoreError> {
    let state = turn.state.to_json().map_err(StoreError::unwritable)?;
    check_text(&state, max)?;
    let slots = serde_json::to_string(&turn.slots).map_err(StoreError::unwritable)?;
    check_text(&slots, max)?;
    Ok((state, slots))
}

pub(crate) fn read_suspended(
    thread: &ThreadId,
    shared: usize,
    state: &[u8],
    slots: Vec<StoredSlot>,
    options: &Options,
) -> Result<SuspendedTurn, StoreError> {
    let max = options.max_state_bytes;
    let state = RunState::from_json(state, max)
        .map_err(|error| unreadable(&thread_name(thread), error, max))?;
    Ok(SuspendedTurn::new(shared, Box::new(state), slots))
}

/// The name of a conversation in error messages.
pub(crate) fn thread_name(thread: &ThreadId) -> String {
    format!("thread `{thread}`")
}

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn write_decision(decision: &StoredDecision) -> Result<String, StoreError> {
    let json = serde_json::to_string(decision).map_err(StoreError::unwritable)?;
    check_text(&json, usize::MAX)?;
    Ok(json)
}

/// The columns of a decision's span: its kind, the conversation and the run.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn decision_span(span: &StoredScope) -> Result<(&str, &str, &str), StoreError> {
    Ok(match span {
        // A run without a conversation has the empty name.
        StoredScope::Run { thread, run } => {
            let thread = thread.as_ref().map_or("", ThreadId::as_str);
            ("run", thread, run.as_str())
        }
        StoredScope::Thread(thread) => ("thread", thread.as_str(), ""),
        StoredScope::Session(thread) => ("session", thread.as_str(), ""),
        StoredScope::Always => ("always", "", ""),
        other => {
            let unknown = format!("unsupported span of a decision: {other:?}");
            return Err(StoreError::failed(unknown));
        }
    })
}

pub(crate) fn write_replies(replies: &[Reply], max: usize) -> Result<String, StoreError> {
    let json = serde_json::to_string(replies).map_err(StoreError::unwritable)?;
    check_text(&json, max)?;
    Ok(json)
}

/// The outcome of a run that was not resumed in time.
pub(crate) const EXPIRED: Outcome = Outcome::Aborted {
    reason: CancelReason::Other(Str::from_static("expired")),
};

/// The outcome of a run that waited, and was withdrawn.
pub(crate) const WITHDRAWN: Outcome = Outcome::Aborted {
    reason: CancelReason::User,
};

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn write_outcome(outcome: &Result<Outcome, ErrorKind>) -> Result<String, StoreError> {
    serde_json::to_string(outcome).map_err(StoreError::unwritable)
}

/// Serializes the outcome of a run that ends with a change; `None` for one that waits, which does not end.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn write_end(
    outcome: &Result<Outcome, ErrorKind>,
) -> Result<Option<String>, StoreError> {
    let ends = *outcome != Ok(Outcome::Interrupted);
    ends.then(|| write_outcome(outcome)).transpose()
}

/// Reads an outcome. One that only a later release knows does not make the run unreadable.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn read_outcome(text: &str) -> Option<Result<Outcome, ErrorKind>> {
    let read = serde_json::from_str(text);
    read.inspect_err(|error| tracing::warn!(%error, "the outcome of a run cannot be read"))
        .ok()
}

/// Skips and logs an unreadable run in a list of runs; a failure of the database is returned.
pub(crate) fn readable<T>(record: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    let why = match record {
        Ok(record) => return Ok(Some(record)),
        Err(StoreError::Failed(why)) => why,
        Err(error) => return Err(error),
    };
    if let Some(Fault::Database(_)) = why.downcast_ref() {
        return Err(StoreError::Failed(why));
    }
    tracing::error!(%why, "skipped a run that cannot be read");
    Ok(None)
}

/// The name of a run in error messages.
pub(crate) fn name(key: &RunKey) -> String {
    format!("run `{}` of thread `{}`", key.run, key.thread)
}

/// Rejects JSON that could not be read again.
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

/// Returns whether `json` exceeds the recursion limit of `serde_json`.
fn is_too_deep(json: &str) -> bool {
    const MOST: usize = 127;
    // Counting all brackets is many times faster, and suffices for most texts.
    let opens = json.bytes().filter(|byte| matches!(byte, b'[' | b'{'));
    if opens.count() <= MOST {
        return false;
    }
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

    /// Databases have them, and their scripts write the last two.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
    #[test]
    fn the_texts_of_outcomes_do_not_change() {
        let halted = Outcome::Halted {
            reason: "a\0\"b".into(),
        };
        for (outcome, text) in [
            (Ok(Outcome::Completed), r#"{"Ok":"completed"}"#),
            (Ok(Outcome::Interrupted), r#"{"Ok":"interrupted"}"#),
            (Ok(halted), r#"{"Ok":{"halted":{"reason":"a\u0000\"b"}}}"#),
            (Ok(Outcome::StepLimit), r#"{"Ok":"step_limit"}"#),
            (Ok(Outcome::CallLimit), r#"{"Ok":"call_limit"}"#),
            (Err(ErrorKind::RateLimited), r#"{"Err":"rate_limited"}"#),
            (Ok(WITHDRAWN), r#"{"Ok":{"aborted":{"reason":"user"}}}"#),
            (
                Ok(EXPIRED),
                r#"{"Ok":{"aborted":{"reason":{"other":"expired"}}}}"#,
            ),
        ] {
            assert_eq!(write_outcome(&outcome).unwrap(), text);
            assert_eq!(read_outcome(text), Some(outcome));
        }
        assert_eq!(read_outcome(r#"{"Ok":"of a later release"}"#), None);
    }

    #[test]
    fn the_depth_limit_equals_that_of_the_parser() {
        for depth in [1, 100, 126, 127, 128, 129, 500] {
            for other in ["", r#","[[\"[{""#, &",[{}]".repeat(200)] {
                let (open, close) = ("[".repeat(depth), "]".repeat(depth));
                let json = format!("{open}1{other}{close}");
                let read = serde_json::from_str::<serde_json::Value>(&json);
                assert_eq!(is_too_deep(&json), read.is_err(), "{depth} {other}");
            }
        }
    }
}
