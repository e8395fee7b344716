//! The parts of migrations that SQL cannot express.

use super::{
    super::{
        log::{NewTurns, Turns},
        values::Failed,
    },
    row::{digest, read_key},
    write::{NewHead, set_state},
};
use crate::{Fault, Options, rules::write_turn};
use concentric_core::{
    MessageId,
    machine::RunState,
    store::{RunChange, RunHead, RunKey, StoreError},
};
use rusqlite::{Transaction, params};

/// Fills the column `message` for each run that has not ended: schema version 1 has it only inside
/// the state.
pub(crate) fn fill_messages(tx: &Transaction<'_>) -> Result<(), Failed> {
    let mut read = tx.prepare("SELECT state FROM runs WHERE rowid = ?1")?;
    let mut note = tx.prepare("UPDATE runs SET message = ?2 WHERE rowid = ?1")?;
    for row in rows(tx, "status <> 'ended'")? {
        // An unreadable run fails when it is loaded; it must not fail the migration.
        let Ok(json) = read.query_row([row], |row| row.get::<_, String>(0)) else {
            continue;
        };
        let state = RunState::from_json(json.as_bytes(), usize::MAX);
        let head = state.ok().map(|state| RunChange::new(&state).head);
        let message = head.as_ref().and_then(RunHead::open_message);
        note.execute(params![row, message.map(MessageId::as_str)])?;
    }
    Ok(())
}

/// Moves the turns of each run out of its state: up to schema version 4, they are in it.
pub(crate) fn split_states(tx: &Transaction<'_>) -> Result<(), Failed> {
    let options = Options::new().max_state_bytes(usize::MAX);
    let find = "SELECT tenant, thread, run, checksum, state, replies FROM runs WHERE rowid = ?1";
    let mut read = tx.prepare(find)?;
    for row in rows(tx, "TRUE")? {
        let texts = read.query_row([row], |row| {
            let text = |at| row.get::<_, String>(at);
            Ok((
                read_key(row)?,
                row.get::<_, Vec<u8>>(3)?,
                text(4)?,
                text(5)?,
            ))
        });
        // An unreadable run gets no turns, so it also fails when it is loaded.
        let Ok((key, sum, state, replies)) = texts else {
            continue;
        };
        let is_intact = digest(&key, [state.as_bytes(), replies.as_bytes()]) == *sum;
        let Ok(state) = RunState::from_json(state.as_bytes(), usize::MAX) else {
            continue;
        };
        if is_intact {
            let change = RunChange::new(&state);
            split(tx, &options, &key, &change, &replies).map_err(failed)?;
        }
    }
    Ok(())
}

fn split(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    change: &RunChange,
    replies: &str,
) -> Result<(), StoreError> {
    let mut turns = NewTurns::default();
    for turn in &change.turns {
        turns.push(write_turn(turn, usize::MAX)?);
    }
    let turns = Turns::new_for_run(tx, &turns, None)?;
    let head = NewHead::new(key, &change.head)?;
    set_state(tx, options, key, &head, turns, replies)
}

fn failed(error: StoreError) -> Failed {
    Failed(Fault::Database(Box::new(error)))
}

/// The ids of the rows of runs, which may be changed while they are read.
fn rows(tx: &Transaction<'_>, which: &str) -> rusqlite::Result<Vec<i64>> {
    let mut find = tx.prepare(&format!("SELECT rowid FROM runs WHERE {which}"))?;
    find.query_map([], |row| row.get(0))?.collect()
}
