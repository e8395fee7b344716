//! The turns of runs and conversations. A fork shares the turns of the log that it begins with.

use super::values::{execute, failed, find_row};
pub(super) use crate::columns::{position, size};
use crate::{
    Fault,
    columns::{ROOT, chain},
    rules::{check_keep, check_total, write_turn},
};
use concentric_core::{Turn, store::StoreError};
use rusqlite::{Row, Transaction, params};
use std::ops::Range;

/// The maximum number of ancestors of the log of a conversation. A fork beyond it copies the turns. The log of
/// a run may have one more.
const MAX_DEPTH: i64 = 16;

/// A part of a conversation: the turns from `from` up to, not including, `to`.
struct Part {
    log: i64,
    from: i64,
    to: i64,
}

struct Log {
    parent: Option<i64>,
    parent_len: i64,
    depth: i64,
}

fn write_all(turns: &[Turn], max: usize) -> Result<Vec<String>, StoreError> {
    turns.iter().map(|turn| write_turn(turn, max)).collect()
}

fn find(tx: &Transaction<'_>, log: i64) -> Result<Log, StoreError> {
    let find = "SELECT parent, parent_len, depth FROM logs WHERE id = ?1";
    let found = find_row(tx, find, [log], |row| {
        Ok(Log {
            parent: row.get(0)?,
            parent_len: row.get(1)?,
            depth: row.get(2)?,
        })
    })?;
    found.ok_or_else(|| Fault::corrupt("a log of turns", "it does not exist").into())
}

/// The first turns of a log, which are those of a run or of a conversation.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    pub(super) log: i64,
    /// The number of turns.
    pub(super) len: usize,
    /// Their bytes.
    pub(super) bytes: usize,
}

impl Turns {
    /// Creates a log without turns.
    pub(super) fn new(tx: &Transaction<'_>) -> Result<Self, StoreError> {
        let (len, bytes) = (0, 0);
        let log = insert(tx, None, 0, 0)?;
        Ok(Self { log, len, bytes })
    }

    /// Creates a log with the turns of a run. If they begin with those of its `conversation`, these are shared.
    pub(super) fn new_for_run(
        tx: &Transaction<'_>,
        turns: &[Turn],
        conversation: Option<Self>,
        max: usize,
    ) -> Result<Self, StoreError> {
        let turns = write_all(turns, max)?;
        let bytes = turns.iter().map(String::len).sum();
        check_total(bytes, max)?;
        let (mut base, mut new) = (None, &*turns);
        if let Some(of) = conversation
            && let Some((first, rest)) = turns.split_at_checked(of.len)
            && first
                .iter()
                .fold(ROOT.to_vec(), |last, turn| chain(&last, turn.as_bytes()))
                == of.last_chain(tx)?
        {
            base = Some(fork(tx, of.log, of.len, MAX_DEPTH + 1)?);
            new = rest;
        }
        let log = base.map_or_else(|| insert(tx, None, 0, 0), Ok)?;
        let len = turns.len();
        append(tx, log, len - new.len(), new)?;
        Ok(Self { log, len, bytes })
    }

    /// Replaces the turns after the first `keep`. The caller [collects](collect) the turns of a log that it
    /// does not refer to any more.
    pub(super) fn replace(
        self,
        tx: &Transaction<'_>,
        keep: usize,
        new: &[Turn],
        max: usize,
    ) -> Result<Self, StoreError> {
        let kept = self.prefix(tx, keep)?;
        let new = write_all(new, max)?;
        let size: usize = new.iter().map(String::len).sum();
        let bytes = kept.bytes.saturating_add(size);
        check_total(bytes, max)?;
        append(tx, kept.log, keep, &new)?;
        Ok(Self {
            log: kept.log,
            len: keep + new.len(),
            bytes,
        })
    }

    fn prefix(self, tx: &Transaction<'_>, keep: usize) -> Result<Self, StoreError> {
        check_keep(self.len, keep)?;
        if keep == self.len {
            return Ok(self);
        }
        let bytes = bytes(tx, self.log, keep)?;
        let log = cut(tx, self.log, keep)?;
        let len = keep;
        Ok(Self { log, len, bytes })
    }

    /// The first `keep` turns in a log of their own, which shares them.
    pub(super) fn fork(self, tx: &Transaction<'_>, keep: usize) -> Result<Self, StoreError> {
        check_keep(self.len, keep)?;
        let bytes = match keep == self.len {
            true => self.bytes,
            false => bytes(tx, self.log, keep)?,
        };
        let log = fork(tx, self.log, keep, MAX_DEPTH)?;
        let len = keep;
        Ok(Self { log, len, bytes })
    }

    /// Reads the turns of `what`, and verifies their checksums. Returns the last checksum with them.
    pub(super) fn read(
        self,
        tx: &Transaction<'_>,
        what: &str,
    ) -> Result<(Vec<Turn>, Vec<u8>), StoreError> {
        read(tx, what, self.log, 0..self.len)
    }

    /// Reads some of the turns of `what`, and verifies their checksums from that of the turn before them.
    pub(super) fn read_range(
        self,
        tx: &Transaction<'_>,
        what: &str,
        range: Range<usize>,
    ) -> Result<Vec<Turn>, StoreError> {
        match range.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(read(tx, what, self.log, range)?.0),
        }
    }

    /// The checksum of the last turn, which covers those before it.
    pub(super) fn last_chain(self, tx: &Transaction<'_>) -> Result<Vec<u8>, StoreError> {
        last_chain(tx, self.log, self.len)
    }
}

/// The parts of the first `len` turns of a log, the newest part first.
fn parts(tx: &Transaction<'_>, log: i64, len: i64) -> Result<Vec<Part>, StoreError> {
    let (mut at, mut to) = (log, len);
    let mut parts = Vec::new();
    // More ancestors are in no file that this code has written, and could be a circle.
    for _ in 0..=MAX_DEPTH + 1 {
        let Log {
            parent, parent_len, ..
        } = find(tx, at)?;
        let from = parent_len.min(to);
        parts.push(Part { log: at, from, to });
        match parent {
            Some(parent) => (at, to) = (parent, from),
            None => return Ok(parts),
        }
    }
    Err(Fault::corrupt("a log of turns", "it has too many ancestors").into())
}

/// The bytes of a text or a blob.
fn value<'a>(row: &'a Row<'_>, at: usize) -> Result<&'a [u8], StoreError> {
    let value = row.get_ref(at).map_err(failed)?;
    value
        .as_bytes()
        .map_err(|error| Fault::corrupt("a row", error).into())
}

fn read(
    tx: &Transaction<'_>,
    what: &str,
    log: i64,
    range: Range<usize>,
) -> Result<(Vec<Turn>, Vec<u8>), StoreError> {
    let corrupt = |why: String| StoreError::from(Fault::corrupt(what, why));
    let mut turns: Vec<Turn> = Vec::new();
    let mut last = last_chain(tx, log, range.start)?;
    let select = "SELECT chain, turn FROM turns WHERE log = ?1 AND n >= ?2 AND n < ?3 ORDER BY n";
    for part in parts(tx, log, position(range.end))?.iter().rev() {
        let mut select = tx.prepare_cached(select).map_err(failed)?;
        let from = part.from.max(position(range.start));
        let rows = select.query([part.log, from, part.to]);
        let mut rows = rows.map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let n = range.start + turns.len();
            // Not copied out of the row.
            let (stored, json) = (value(row, 0)?, value(row, 1)?);
            last = chain(&last, json);
            if stored != last {
                return Err(corrupt(format!("the checksum of turn {n} does not match")));
            }
            let turn = serde_json::from_slice(json)
                .map_err(|error| corrupt(format!("turn {n}: {error}")))?;
            turns.push(turn);
        }
    }
    match turns.len() == range.len() {
        true => Ok((turns, last)),
        false => Err(corrupt(format!(
            "{} of {} turns exist",
            turns.len(),
            range.len()
        ))),
    }
}

/// Appends turns to a log that has `len` turns.
fn append(tx: &Transaction<'_>, log: i64, len: usize, turns: &[String]) -> Result<(), StoreError> {
    if turns.is_empty() {
        return Ok(());
    }
    let mut last = last_chain(tx, log, len)?;
    let insert = "INSERT INTO turns (log, n, chain, turn) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = tx.prepare_cached(insert).map_err(failed)?;
    for (at, turn) in turns.iter().enumerate() {
        last = chain(&last, turn.as_bytes());
        let row = params![log, position(len + at), last, turn];
        insert.execute(row).map_err(failed)?;
    }
    Ok(())
}

/// The checksum of the first `len` turns of a log.
fn last_chain(tx: &Transaction<'_>, log: i64, len: usize) -> Result<Vec<u8>, StoreError> {
    if len == 0 {
        return Ok(ROOT.to_vec());
    }
    let parts = parts(tx, log, position(len))?;
    let holds_last = parts.iter().find(|part| part.from < part.to);
    let log = holds_last.map_or(log, |part| part.log);
    let find = "SELECT chain FROM turns WHERE log = ?1 AND n = ?2";
    let found = find_row(tx, find, [log, position(len - 1)], |row| row.get(0))?;
    found.ok_or_else(|| Fault::corrupt("a log of turns", "its last turn is missing").into())
}

/// The bytes of the first `len` turns of a log.
fn bytes(tx: &Transaction<'_>, log: i64, len: usize) -> Result<usize, StoreError> {
    let sum = "SELECT ifnull(sum(octet_length(turn)), 0) FROM turns
               WHERE log = ?1 AND n >= ?2 AND n < ?3";
    let mut all: usize = 0;
    for part in parts(tx, log, position(len))? {
        let bytes = find_row(tx, sum, [part.log, part.from, part.to], |row| row.get(0))?;
        all = all.saturating_add(size(bytes.unwrap_or_default()));
    }
    Ok(all)
}

fn insert(
    tx: &Transaction<'_>,
    parent: Option<i64>,
    parent_len: i64,
    depth: i64,
) -> Result<i64, StoreError> {
    let insert = "INSERT INTO logs (parent, parent_len, depth) VALUES (?1, ?2, ?3)";
    execute(tx, insert, params![parent, parent_len, depth])?;
    Ok(tx.last_insert_rowid())
}

/// Removes the turns of a log after the first `len`; or returns another log with these, if other logs
/// or its ancestors have the removed ones.
fn cut(tx: &Transaction<'_>, log: i64, len: usize) -> Result<i64, StoreError> {
    let to = position(len);
    let own = find(tx, log)?.parent_len <= to;
    if !own || shared(tx, log)?.is_some_and(|shared| shared > to) {
        return fork(tx, log, len, MAX_DEPTH);
    }
    execute(
        tx,
        "DELETE FROM turns WHERE log = ?1 AND n >= ?2",
        [log, to],
    )?;
    Ok(log)
}

/// The number of turns of a log that forks of it have.
fn shared(tx: &Transaction<'_>, log: i64) -> Result<Option<i64>, StoreError> {
    let longest = "SELECT max(parent_len) FROM logs WHERE parent = ?1";
    Ok(find_row(tx, longest, [log], |row| row.get(0))?.flatten())
}

/// Creates a log that begins with the first `len` turns of `log`, and has at most `most` ancestors.
fn fork(tx: &Transaction<'_>, log: i64, len: usize, most: i64) -> Result<i64, StoreError> {
    let parts = parts(tx, log, position(len))?;
    // An ancestor may have all these turns.
    let Some(part) = parts.iter().find(|part| part.from < part.to) else {
        return insert(tx, None, 0, 0);
    };
    let depth = find(tx, part.log)?.depth + 1;
    if depth <= most {
        return insert(tx, Some(part.log), part.to, depth);
    }
    let new = insert(tx, None, 0, 0)?;
    let copy = "INSERT INTO turns (log, n, chain, turn)
                SELECT ?4, n, chain, turn FROM turns WHERE log = ?1 AND n >= ?2 AND n < ?3";
    for part in &parts {
        execute(tx, copy, [part.log, part.from, part.to, new])?;
    }
    Ok(new)
}

/// Deletes the turns of a log, and of its ancestors, that no run or conversation has.
pub(super) fn collect(tx: &Transaction<'_>, log: i64) -> Result<(), StoreError> {
    let mut next = Some(log);
    while let Some(log) = next {
        let owner =
            "SELECT 1 FROM threads WHERE log = ?1 UNION ALL SELECT 1 FROM runs WHERE log = ?1";
        if find_row(tx, owner, [log], |_| Ok(()))?.is_some() {
            return Ok(());
        }
        let used = shared(tx, log)?;
        let delete = "DELETE FROM turns WHERE log = ?1 AND n >= ?2";
        execute(tx, delete, [log, used.unwrap_or_default()])?;
        if used.is_some() {
            return Ok(());
        }
        next = find(tx, log)?.parent;
        execute(tx, "DELETE FROM logs WHERE id = ?1", [log])?;
    }
    Ok(())
}
