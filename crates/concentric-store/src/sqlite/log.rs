//! The turns of runs and conversations. A fork shares the turns of the log that it begins with.
//!
//! A row of the table `turns` has turns that were written together, one on each line: one row for each of many turns
//! takes several times as long to write and to read. Its `n` is the position of the last of them, and its `chain` the
//! checksum of that turn and of those before it. The turns of a run or of a conversation, and those that a log has of
//! its parent, end with a row.

use super::values::{execute, failed, find_row};
pub(super) use crate::columns::{position, size};
use crate::{
    Fault,
    columns::{ROOT, chain},
    rules::{check_keep, check_total, write_turn},
};
use concentric_core::{Turn, store::StoreError};
use rusqlite::{Transaction, params, types::FromSqlError};
use std::ops::Range;
use tokio::task::yield_now;

/// The maximum number of ancestors of the log of a conversation. A fork beyond it copies the turns. The log of
/// a run may have one more.
const MAX_DEPTH: i64 = 16;

/// The size at which a row gets no further turn. A change or a fork in the middle of a row copies the turns before it.
const ROW: usize = 16 << 10;

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

/// The bytes of turns after which a future lets other tasks run.
const PIECE: usize = 64 << 10;

/// Turns as they are written. They are made before the transaction, which blocks other writers.
#[derive(Default)]
pub(super) struct NewTurns {
    turns: Vec<String>,
    bytes: usize,
    // The checksums of the turns if `before` is that of the turn before them; empty if the transaction computes them.
    chains: Vec<Vec<u8>>,
    before: Vec<u8>,
}

impl NewTurns {
    /// Serializes turns.
    pub(super) async fn new(turns: &[Turn], max: usize) -> Result<Self, StoreError> {
        let (mut new, mut done) = (Self::default(), 0);
        for turn in turns {
            new.push(write_turn(turn, max)?);
            check_total(new.bytes, max)?;
            if new.bytes - done >= PIECE {
                done = new.bytes;
                yield_now().await;
            }
        }
        Ok(new)
    }

    pub(super) fn push(&mut self, turn: String) {
        self.bytes = self.bytes.saturating_add(turn.len());
        self.turns.push(turn);
    }

    /// Whether a transaction that computes the checksums blocks other writers for long.
    pub(super) const fn is_large(&self) -> bool {
        self.bytes > PIECE
    }

    /// Computes the checksums of the turns. They are used if `before` is the checksum of the turn before them.
    pub(super) async fn follow(&mut self, before: Vec<u8>) {
        let (mut last, mut bytes) = (before.clone(), 0);
        self.before = before;
        for turn in &self.turns {
            last = chain(&last, turn.as_bytes());
            self.chains.push(last.clone());
            bytes += turn.len();
            if bytes >= PIECE {
                bytes = 0;
                yield_now().await;
            }
        }
    }

    /// Computes the checksums of the first turns of a log.
    pub(super) async fn begin(&mut self) {
        self.follow(ROOT.to_vec()).await;
    }

    /// The checksum of the first `n` turns, if it is computed.
    fn chain_of(&self, n: usize) -> Option<&Vec<u8>> {
        match n.checked_sub(1) {
            None => Some(&self.before),
            Some(last) => self.chains.get(last),
        }
    }
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

    /// Creates a log with the turns of a run. If they [begin](NewTurns::begin) with those of its `conversation`, these
    /// are shared.
    pub(super) fn new_for_run(
        tx: &Transaction<'_>,
        new: &NewTurns,
        conversation: Option<Self>,
    ) -> Result<Self, StoreError> {
        let (log, shared) = match conversation {
            Some(of) if new.chain_of(of.len) == Some(&of.last_chain(tx)?) => {
                (fork(tx, of.log, of.len, MAX_DEPTH + 1)?, of.len)
            }
            _ => (insert(tx, None, 0, 0)?, 0),
        };
        append(tx, log, shared, new, shared)?;
        let (len, bytes) = (new.turns.len(), new.bytes);
        Ok(Self { log, len, bytes })
    }

    /// Replaces the turns after the first `keep`. The caller [collects](collect) the turns of a log that it
    /// does not refer to any more.
    pub(super) fn replace(
        self,
        tx: &Transaction<'_>,
        keep: usize,
        new: &NewTurns,
        max: usize,
    ) -> Result<Self, StoreError> {
        check_keep(self.len, keep)?;
        let kept = match keep == self.len {
            true => self,
            false => self.first(tx, keep, cut)?,
        };
        check_total(kept.bytes.saturating_add(new.bytes), max)?;
        kept.extend(tx, new)
    }

    /// The first `keep` turns in a log of their own, which shares them.
    pub(super) fn fork(self, tx: &Transaction<'_>, keep: usize) -> Result<Self, StoreError> {
        check_keep(self.len, keep)?;
        self.first(tx, keep, |tx, log, len| fork(tx, log, len, MAX_DEPTH))
    }

    /// The first `keep` turns, in the log that `shorten` returns for those in whole rows.
    fn first(
        self,
        tx: &Transaction<'_>,
        keep: usize,
        shorten: impl FnOnce(&Transaction<'_>, i64, usize) -> Result<i64, StoreError>,
    ) -> Result<Self, StoreError> {
        let (len, rest) = self.split(tx, keep)?;
        let bytes = match len == self.len {
            true => self.bytes,
            false => self::bytes(tx, self.log, len)?,
        };
        let log = shorten(tx, self.log, len)?;
        Self { log, len, bytes }.extend(tx, &rest)
    }

    /// The number of those of the first `keep` turns that are in whole rows, and the others.
    fn split(self, tx: &Transaction<'_>, keep: usize) -> Result<(usize, NewTurns), StoreError> {
        let mut rest = NewTurns::default();
        if keep >= self.len {
            return Ok((self.len, rest));
        }
        // The row of the first turn that is not kept.
        let mut first = None;
        self.walk(tx, "a log of turns", keep..keep + 1, |n, turn| {
            first.get_or_insert(n);
            if n < keep {
                rest.push(turn.to_owned());
            }
            Ok(())
        })?;
        Ok((first.unwrap_or(keep), rest))
    }

    /// Appends turns.
    fn extend(self, tx: &Transaction<'_>, new: &NewTurns) -> Result<Self, StoreError> {
        append(tx, self.log, self.len, new, 0)?;
        Ok(Self {
            log: self.log,
            len: self.len + new.turns.len(),
            bytes: self.bytes.saturating_add(new.bytes),
        })
    }

    /// Reads the turns of `what`, and verifies their checksums. Returns the last checksum with them.
    pub(super) fn read(
        self,
        tx: &Transaction<'_>,
        what: &str,
    ) -> Result<(Vec<Turn>, Vec<u8>), StoreError> {
        let mut turns = Vec::new();
        let last = self.walk(tx, what, 0..self.len, |n, turn| {
            turns.push(parse(what, n, turn)?);
            Ok(())
        })?;
        Ok((turns, last))
    }

    /// Reads some of the turns of `what`, and verifies their checksums from that of the turn before them.
    pub(super) fn read_range(
        self,
        tx: &Transaction<'_>,
        what: &str,
        range: Range<usize>,
    ) -> Result<Vec<Turn>, StoreError> {
        let mut turns = Vec::new();
        self.walk(tx, what, range.clone(), |n, turn| {
            if range.contains(&n) {
                turns.push(parse(what, n, turn)?);
            }
            Ok(())
        })?;
        Ok(turns)
    }

    /// Visits the turns of the rows that have those of the `range`, with their positions, after the checksum of their
    /// row is verified. Returns the checksum of the last one.
    fn walk(
        self,
        tx: &Transaction<'_>,
        what: &str,
        range: Range<usize>,
        mut visit: impl FnMut(usize, &str) -> Result<(), StoreError>,
    ) -> Result<Vec<u8>, StoreError> {
        let corrupt = |why: String| StoreError::from(Fault::corrupt(what, why));
        let unreadable = |error: FromSqlError| corrupt(error.to_string());
        let select =
            "SELECT n, chain, turn FROM turns WHERE log = ?1 AND n >= ?2 AND n < ?3 ORDER BY n";
        let (mut last, mut next) = (None, range.start);
        for part in parts(tx, self.log, position(self.len))?.iter().rev() {
            let mut select = tx.prepare_cached(select).map_err(failed)?;
            let from = part.from.max(position(next));
            let rows = select.query([part.log, from, part.to]);
            let mut rows = rows.map_err(failed)?;
            while next < range.end
                && let Some(row) = rows.next().map_err(failed)?
            {
                // Not copied out of the row.
                let [stored, text] = [1, 2].map(|at| row.get_ref(at).map_err(failed));
                let stored = stored?.as_blob().map_err(unreadable)?;
                let text = text?.as_str().map_err(unreadable)?;
                let turns: Vec<&str> = text.split('\n').collect();
                let n = size(row.get(0).map_err(failed)?);
                let first = (n + 1).checked_sub(turns.len());
                // Only the first row may begin before the range.
                let first = first
                    .filter(|first| *first == next || last.is_none() && *first < next)
                    .ok_or_else(|| corrupt(format!("turn {next} does not exist")))?;
                let mut sum = match last.take() {
                    Some(last) => last,
                    None => last_chain(tx, self.log, first)?,
                };
                for turn in &turns {
                    sum = chain(&sum, turn.as_bytes());
                }
                if stored != sum {
                    return Err(corrupt(format!("the checksum of turn {n} does not match")));
                }
                for (at, turn) in turns.into_iter().enumerate() {
                    visit(first + at, turn)?;
                }
                (last, next) = (Some(sum), n + 1);
            }
        }
        match next < range.end {
            true => Err(corrupt(format!("turn {next} does not exist"))),
            false => Ok(last.unwrap_or_else(|| ROOT.to_vec())),
        }
    }

    /// The checksum of the last turn, which covers those before it.
    pub(super) fn last_chain(self, tx: &Transaction<'_>) -> Result<Vec<u8>, StoreError> {
        last_chain(tx, self.log, self.len)
    }

    /// The checksum of the first `keep` turns.
    pub(super) fn chain_of(self, tx: &Transaction<'_>, keep: usize) -> Result<Vec<u8>, StoreError> {
        check_keep(self.len, keep)?;
        let (len, rest) = self.split(tx, keep)?;
        let last = last_chain(tx, self.log, len)?;
        let rest = rest.turns.iter();
        Ok(rest.fold(last, |last, turn| chain(&last, turn.as_bytes())))
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

fn parse(what: &str, n: usize, turn: &str) -> Result<Turn, StoreError> {
    let turn = serde_json::from_str(turn);
    turn.map_err(|error| Fault::corrupt(what, format!("turn {n}: {error}")).into())
}

/// Appends the turns after the first `skip` to a log that has `len` turns.
fn append(
    tx: &Transaction<'_>,
    log: i64,
    len: usize,
    new: &NewTurns,
    skip: usize,
) -> Result<(), StoreError> {
    let turns = new.turns.get(skip..).unwrap_or_default();
    if turns.is_empty() {
        return Ok(());
    }
    let mut last = last_chain(tx, log, len)?;
    let known = match new.chain_of(skip) == Some(&last) {
        true => new.chains.get(skip..).unwrap_or_default(),
        false => &[],
    };
    let insert = "INSERT INTO turns (log, n, chain, turn) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = tx.prepare_cached(insert).map_err(failed)?;
    let mut text = String::new();
    for (at, turn) in turns.iter().enumerate() {
        // JSON has no line breaks: those of a text are escaped.
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(turn);
        match known.get(at) {
            Some(known) => last.clone_from(known),
            None => last = chain(&last, turn.as_bytes()),
        }
        let n = len + at;
        if text.len() >= ROW || n + 1 == len + turns.len() {
            let row = params![log, position(n), last, text];
            insert.execute(row).map_err(failed)?;
            text.clear();
        }
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

/// The bytes of the first `len` turns of a log, without the line breaks between them.
fn bytes(tx: &Transaction<'_>, log: i64, len: usize) -> Result<usize, StoreError> {
    let sum = "SELECT ifnull(sum(octet_length(turn) + 1), 0) - (?3 - ?2) FROM turns
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
