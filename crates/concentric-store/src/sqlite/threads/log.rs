//! The turns of conversations. A fork shares the turns of the log that it begins with.

use super::{
    super::values::{execute, failed, find_row},
    row::size,
};
use crate::{Fault, rules::thread_name};
use concentric_core::{ThreadId, Transcript, Turn, store::StoreError};
use rusqlite::{Transaction, params};
use sha2::{Digest, Sha256};

/// The maximum number of ancestors of a log. A fork beyond it copies the turns.
const MAX_DEPTH: i64 = 16;

/// The checksum before the first turn.
const ROOT: &[u8] = b"concentric/turns/1";

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

fn find(tx: &Transaction<'_>, log: i64) -> Result<Log, StoreError> {
    let find = "SELECT parent, parent_len, depth FROM logs WHERE id = ?1";
    let found = find_row(tx, find, [log], |row| {
        Ok(Log {
            parent: row.get(0)?,
            parent_len: row.get(1)?,
            depth: row.get(2)?,
        })
    })?;
    found.ok_or_else(|| Fault::corrupt("the log of a thread", "it does not exist").into())
}

pub(super) fn position(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The parts of the first `len` turns of a log, the newest part first.
fn parts(tx: &Transaction<'_>, log: i64, len: i64) -> Result<Vec<Part>, StoreError> {
    let (mut at, mut to) = (log, len);
    let mut parts = Vec::new();
    // More ancestors are in no file that this code has written, and could be a circle.
    for _ in 0..=MAX_DEPTH {
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
    Err(Fault::corrupt("the log of a thread", "it has too many ancestors").into())
}

fn chain(before: &[u8], turn: &str) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(turn.as_bytes());
    hash.finalize().to_vec()
}

/// Reads the first `len` turns of a log, and verifies their checksums.
pub(super) fn read(
    tx: &Transaction<'_>,
    thread: &ThreadId,
    log: i64,
    len: usize,
) -> Result<Transcript, StoreError> {
    let corrupt = |why: String| StoreError::from(Fault::corrupt(thread_name(thread), why));
    let mut history = Transcript::new();
    let mut last = ROOT.to_vec();
    let select = "SELECT chain, turn FROM turns WHERE log = ?1 AND n >= ?2 AND n < ?3 ORDER BY n";
    for part in parts(tx, log, position(len))?.iter().rev() {
        let mut select = tx.prepare_cached(select).map_err(failed)?;
        let rows = select.query_map([part.log, part.from, part.to], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?))
        });
        for row in rows.map_err(failed)? {
            let (stored, json) = row.map_err(failed)?;
            let n = history.len();
            last = chain(&last, &json);
            if stored != last {
                return Err(corrupt(format!("the checksum of turn {n} does not match")));
            }
            let turn: Turn = serde_json::from_str(&json)
                .map_err(|error| corrupt(format!("turn {n}: {error}")))?;
            history.push(turn);
        }
    }
    match history.len() == len {
        true => Ok(history),
        false => Err(corrupt(format!("{} of {len} turns exist", history.len()))),
    }
}

/// Appends turns to a log that has `len` turns.
pub(super) fn append(
    tx: &Transaction<'_>,
    log: i64,
    len: usize,
    turns: &[String],
) -> Result<(), StoreError> {
    if turns.is_empty() {
        return Ok(());
    }
    let mut last = last_chain(tx, log, len)?;
    let insert = "INSERT INTO turns (log, n, chain, turn) VALUES (?1, ?2, ?3, ?4)";
    for (at, turn) in turns.iter().enumerate() {
        last = chain(&last, turn);
        execute(tx, insert, params![log, position(len + at), last, turn])?;
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
    found.ok_or_else(|| Fault::corrupt("the log of a thread", "its last turn is missing").into())
}

/// The bytes of the first `len` turns of a log.
pub(super) fn bytes(tx: &Transaction<'_>, log: i64, len: usize) -> Result<usize, StoreError> {
    let sum = "SELECT ifnull(sum(octet_length(turn)), 0) FROM turns
               WHERE log = ?1 AND n >= ?2 AND n < ?3";
    let mut all: usize = 0;
    for part in parts(tx, log, position(len))? {
        let bytes = find_row(tx, sum, [part.log, part.from, part.to], |row| row.get(0))?;
        all = all.saturating_add(size(bytes.unwrap_or_default()));
    }
    Ok(all)
}

/// Creates a log without turns.
pub(super) fn create(tx: &Transaction<'_>) -> Result<i64, StoreError> {
    insert(tx, None, 0, 0)
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

/// Creates a log that begins with the first `len` turns of `log`.
pub(super) fn fork(tx: &Transaction<'_>, log: i64, len: usize) -> Result<i64, StoreError> {
    let parts = parts(tx, log, position(len))?;
    // An ancestor may have all these turns.
    let Some(part) = parts.iter().find(|part| part.from < part.to) else {
        return create(tx);
    };
    let depth = find(tx, part.log)?.depth + 1;
    if depth <= MAX_DEPTH {
        return insert(tx, Some(part.log), part.to, depth);
    }
    let new = create(tx)?;
    let copy = "INSERT INTO turns (log, n, chain, turn)
                SELECT ?4, n, chain, turn FROM turns WHERE log = ?1 AND n >= ?2 AND n < ?3";
    for part in &parts {
        execute(tx, copy, [part.log, part.from, part.to, new])?;
    }
    Ok(new)
}

/// Deletes the turns of a log, and of its ancestors, that no conversation has.
pub(super) fn collect(tx: &Transaction<'_>, log: i64) -> Result<(), StoreError> {
    let mut next = Some(log);
    while let Some(log) = next {
        let has_thread = find_row(
            tx,
            "SELECT 1 FROM threads WHERE log = ?1",
            [log],
            |_| Ok(()),
        )?;
        if has_thread.is_some() {
            return Ok(());
        }
        let longest = "SELECT max(parent_len) FROM logs WHERE parent = ?1";
        let used: Option<i64> = find_row(tx, longest, [log], |row| row.get(0))?.flatten();
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
