//! The rows of the table `runs`.

use super::super::{
    log::{Turns, size},
    values::{find_row, find_rows, number, time},
};
pub(super) use crate::columns::{checksum, digest, names};
use crate::{
    Fault, Options,
    rules::{Standing, name, read_outcome, read_run},
};
use concentric_core::{
    ErrorKind, InterruptId, Outcome, Reply, RunId, Str, ThreadId,
    store::{RunKey, RunRecord, RunStatus, StoreError, Tenant},
};
use rusqlite::{Row, Transaction};

/// A row of the table `runs`.
pub(super) struct Stored {
    pub(super) key: RunKey,
    pub(super) standing: Standing,
    checksum: Vec<u8>,
    // Without its turns.
    pub(super) head: String,
    pub(super) replies_json: String,
    replied_at: Option<i64>,
    client_id: RunId,
    // `None` if a migration could not read the state.
    turns: Option<Turns>,
    outcome: Option<Result<Outcome, ErrorKind>>,
}

pub(super) fn read_key(row: &Row<'_>) -> rusqlite::Result<RunKey> {
    let text = |at| row.get::<_, String>(at).map(Str::from);
    Ok(RunKey::new(
        Tenant(text(0)?),
        ThreadId::new(text(1)?),
        RunId::new(text(2)?),
    ))
}

impl Stored {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: read_key(row)?,
            standing: standing(row, 3)?,
            checksum: row.get(9)?,
            head: row.get(10)?,
            replies_json: row.get(11)?,
            replied_at: row.get(12)?,
            client_id: RunId::new(row.get::<_, String>(13)?),
            turns: turns(row, 14)?,
            outcome: outcome(row, 17)?,
        })
    }

    /// The turns of the run.
    pub(super) fn turns(&self) -> Result<Turns, StoreError> {
        self.turns.ok_or_else(|| no_turns(&self.key))
    }

    /// Verifies the checksum of the row; `chain` is that of its last turn.
    pub(super) fn check_sum(&self, chain: &[u8]) -> Result<(), StoreError> {
        match checksum(&self.key, &self.head, &self.replies_json, chain) == *self.checksum {
            true => Ok(()),
            false => Err(Fault::corrupt(name(&self.key), "checksum mismatch").into()),
        }
    }

    /// Parses the stored replies.
    pub(super) fn replies(&self) -> Result<Vec<Reply>, StoreError> {
        let replies = serde_json::from_str(&self.replies_json);
        replies.map_err(|error| Fault::corrupt(name(&self.key), error).into())
    }

    /// Verifies the checksums, and parses the row and its turns.
    pub(super) fn open(
        &self,
        tx: &Transaction<'_>,
        options: &Options,
    ) -> Result<RunRecord, StoreError> {
        let Self { key, standing, .. } = self;
        let (turns, max) = (self.turns()?, options.max_state_bytes);
        let bytes = turns.bytes.saturating_add(self.head.len());
        if bytes > max {
            return Err(Fault::TooLarge { bytes, max }.into());
        }
        let (turns, last) = turns.read(tx, &name(key))?;
        self.check_sum(&last)?;
        let state = read_run(key, self.head.as_bytes(), turns, max)?;
        let replies = self.replies()?;
        let asked = asked(tx, key)?;
        let mut record = RunRecord::new(key.clone(), self.client_id.clone(), state);
        standing.show(options.now(), &mut record);
        record.replies = replies;
        record.replied_at = self.replied_at.map(time);
        record.asked = asked;
        record.outcome.clone_from(&self.outcome);
        Ok(record)
    }
}

/// Reads the outcome of a run, which it has once it has ended.
pub(super) fn outcome(
    row: &Row<'_>,
    at: usize,
) -> rusqlite::Result<Option<Result<Outcome, ErrorKind>>> {
    let text: Option<String> = row.get(at)?;
    Ok(text.as_deref().and_then(read_outcome))
}

/// Reads [`Turns`] from the three columns that start at `at`.
fn turns(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Turns>> {
    let (len, bytes) = (size(row.get(at + 1)?), size(row.get(at + 2)?));
    let log: Option<i64> = row.get(at)?;
    Ok(log.map(|log| Turns { log, len, bytes }))
}

/// Reads a [`Standing`] from the six columns that start at `at`.
pub(super) fn standing(row: &Row<'_>, at: usize) -> rusqlite::Result<Standing> {
    let status: String = row.get(at)?;
    Ok(Standing {
        // A constraint of the table allows only these three.
        status: match &*status {
            "running" => RunStatus::Running,
            "suspended" => RunStatus::Suspended,
            _ => RunStatus::Ended,
        },
        version: number(row.get(at + 1)?),
        fence: number(row.get(at + 2)?),
        lease_until: time(row.get(at + 3)?),
        since: row.get::<_, Option<i64>>(at + 4)?.map(time),
        takeovers: row.get(at + 5)?,
    })
}

/// Loads the [`Standing`] of a run, if the run exists.
pub(crate) fn standing_of(
    tx: &Transaction<'_>,
    key: &RunKey,
) -> Result<Option<Standing>, StoreError> {
    let find = "SELECT status, version, fence, lease_until, since, takeovers FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    find_row(tx, find, names(key), |row| standing(row, 0))
}

/// The turns of a run that exists.
pub(super) fn turns_of(tx: &Transaction<'_>, key: &RunKey) -> Result<Turns, StoreError> {
    let find = "SELECT log, len, bytes FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let found = find_row(tx, find, names(key), |row| turns(row, 0))?.flatten();
    found.ok_or_else(|| no_turns(key))
}

fn no_turns(key: &RunKey) -> StoreError {
    Fault::corrupt(name(key), "it has no turns").into()
}

fn asked(tx: &Transaction<'_>, key: &RunKey) -> Result<Vec<InterruptId>, StoreError> {
    let find = "SELECT question FROM questions
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3 ORDER BY question";
    let id = |row: &Row<'_>| row.get::<_, String>(0).map(InterruptId::new);
    find_rows(tx, find, names(key), id)
}

pub(super) fn stored(tx: &Transaction<'_>, key: &RunKey) -> Result<Stored, StoreError> {
    let find = "SELECT tenant, thread, run, status, version, fence, lease_until, since, takeovers,
                       checksum, state, replies, replied_at, client_id, log, len, bytes, outcome
                FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let found = find_row(tx, find, names(key), Stored::read)?;
    found.ok_or(StoreError::NotFound)
}
