//! The rows of the table `runs`.

use super::super::values::{find_row, find_rows, number, time};
use crate::{
    Fault, Options,
    rules::{Standing, name, read_state},
};
use concentric_core::{
    InterruptId, RunId, Str, ThreadId,
    store::{RunKey, RunRecord, RunStatus, StoreError, Tenant},
};
use rusqlite::{Row, Transaction};
use sha2::{Digest, Sha256};

/// The columns of [`Stored`].
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT r.tenant, r.thread, r.run, r.status, r.version, r.fence, r.lease_until, \
             r.since, r.checksum, r.state, r.replies, r.replied_at, r.client_id FROM runs r ",
            $rest
        )
    };
}

/// A row of the table `runs`.
pub(super) struct Stored {
    key: RunKey,
    pub(super) standing: Standing,
    checksum: Vec<u8>,
    pub(super) state: String,
    pub(super) replies: String,
    replied_at: Option<i64>,
    client_id: RunId,
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
            checksum: row.get(8)?,
            state: row.get(9)?,
            replies: row.get(10)?,
            replied_at: row.get(11)?,
            client_id: RunId::new(row.get::<_, String>(12)?),
        })
    }

    /// Verifies the checksum and parses the row.
    pub(super) fn open(
        self,
        tx: &Transaction<'_>,
        options: &Options,
    ) -> Result<RunRecord, StoreError> {
        let Self { key, standing, .. } = self;
        if checksum(&key, &self.state, &self.replies) != *self.checksum {
            return Err(Fault::corrupt(name(&key), "checksum mismatch").into());
        }
        let max = options.max_state_bytes;
        let state = read_state(&key, &self.state, max)?;
        let replies = serde_json::from_str(&self.replies)
            .map_err(|error| Fault::corrupt(name(&key), error))?;
        let asked = asked(tx, &key)?;
        let mut record = RunRecord::new(key, self.client_id, state);
        record.status = standing.status;
        record.version = standing.version;
        record.fence = standing.fence;
        record.lease_until = standing.lease_until;
        record.replies = replies;
        record.replied_at = self.replied_at.map(time);
        record.asked = asked;
        Ok(record)
    }
}

/// The checksum of a row's texts. It includes the key, so that a row moved to another key is
/// detected.
pub(super) fn checksum(key: &RunKey, state: &str, replies: &str) -> [u8; 32] {
    let mut sum = Sha256::new();
    for text in [
        key.tenant.0.as_str(),
        key.thread.as_str(),
        key.run.as_str(),
        state,
        replies,
    ] {
        sum.update((text.len() as u64).to_le_bytes());
        sum.update(text);
    }
    sum.finalize().into()
}

/// Reads a [`Standing`] from the five columns that start at `at`.
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
    })
}

/// Loads the [`Standing`] of a run, if the run exists.
pub(crate) fn standing_of(
    tx: &Transaction<'_>,
    key: &RunKey,
) -> Result<Option<Standing>, StoreError> {
    let find = "SELECT status, version, fence, lease_until, since FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    find_row(tx, find, names(key), |row| standing(row, 0))
}

pub(super) fn names(key: &RunKey) -> [&str; 3] {
    [key.tenant.0.as_str(), key.thread.as_str(), key.run.as_str()]
}

fn asked(tx: &Transaction<'_>, key: &RunKey) -> Result<Vec<InterruptId>, StoreError> {
    let find = "SELECT question FROM questions
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3 ORDER BY question";
    let id = |row: &Row<'_>| row.get::<_, String>(0).map(InterruptId::new);
    find_rows(tx, find, names(key), id)
}

pub(super) fn stored(tx: &Transaction<'_>, key: &RunKey) -> Result<Stored, StoreError> {
    find_row(
        tx,
        columns!("WHERE tenant = ?1 AND thread = ?2 AND run = ?3"),
        names(key),
        Stored::read,
    )?
    .ok_or(StoreError::NotFound)
}

pub(super) use columns;
