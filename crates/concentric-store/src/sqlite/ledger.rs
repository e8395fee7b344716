use super::{
    SqliteStore,
    runs::standing_of,
    values::{execute, find_row, nanos},
};
use crate::{
    Fault,
    rules::{check_text, end_of, replaces, same_arguments},
};
use concentric_core::{
    Str, ToolOutcome,
    store::{EffectKey, Intent, Ledger, LedgerEntry, Once, StoreError, StoreFuture, Tenant},
};
use rusqlite::{Transaction, params};
use std::time::{Duration, SystemTime};

impl Ledger for SqliteStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        self.write(move |tx, _| begin(tx, &key, &intent))
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.write(move |tx, _| finish(tx, &key, &outcome))
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.read(move |tx, _| known(tx, &key))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.write(move |tx, _| retract(tx, &key))
    }
}

impl Once for SqliteStore {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        self.write(move |tx, options| once(tx, &tenant, &key, end_of(options.now(), keep)))
    }
}

fn begin(
    tx: &Transaction<'_>,
    key: &EffectKey,
    intent: &Intent,
) -> Result<LedgerEntry, StoreError> {
    if let Some(claim) = &intent.claim {
        let standing = standing_of(tx, &claim.key)?.ok_or(StoreError::Stale)?;
        let checked = standing.check_fence(claim.fence);
        checked.map_err(|_| StoreError::Stale)?;
    }
    let find = "SELECT tool, arguments FROM effects WHERE tenant = ?1 AND key = ?2";
    let names = [key.tenant.0.as_str(), key.key.as_str()];
    let known_as: Option<(String, String)> =
        find_row(tx, find, names, |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let Some((tool, arguments)) = known_as {
        if tool != *intent.tool || !same_arguments(&arguments, &intent.arguments) {
            return Err(StoreError::Mismatch);
        }
        let update = "UPDATE effects SET repeatable = ?3 WHERE tenant = ?1 AND key = ?2";
        execute(tx, update, params![names[0], names[1], intent.repeatable])?;
        return known(tx, key);
    }
    let of = intent.claim.as_ref().map(|claim| &claim.key);
    let row = params![
        key.tenant.0.as_str(),
        key.key.as_str(),
        of.map(|of| of.thread.as_str()),
        of.map(|of| of.run.as_str()),
        intent.tool.as_str(),
        intent.arguments.as_str(),
        intent.repeatable,
    ];
    let insert = "INSERT INTO effects (tenant, key, thread, run, tool, arguments, repeatable)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    execute(tx, insert, row)?;
    Ok(LedgerEntry::New)
}

fn known(tx: &Transaction<'_>, key: &EffectKey) -> Result<LedgerEntry, StoreError> {
    let names = [key.tenant.0.as_str(), key.key.as_str()];
    let find = "SELECT outcome FROM effects WHERE tenant = ?1 AND key = ?2";
    let row: Option<Option<String>> = find_row(tx, find, names, |row| row.get(0))?;
    Ok(match row {
        None => LedgerEntry::New,
        Some(None) => LedgerEntry::Started,
        Some(Some(outcome)) => LedgerEntry::Finished(
            serde_json::from_str(&outcome)
                .map_err(|error| Fault::corrupt(format!("effect `{}`", key.key), error))?,
        ),
    })
}

fn finish(tx: &Transaction<'_>, key: &EffectKey, outcome: &ToolOutcome) -> Result<(), StoreError> {
    let json = serde_json::to_string(outcome).map_err(StoreError::unwritable)?;
    check_text(&json, usize::MAX)?;
    let find = "SELECT repeatable FROM effects WHERE tenant = ?1 AND key = ?2";
    let names = [key.tenant.0.as_str(), key.key.as_str()];
    let repeatable: Option<bool> = find_row(tx, find, names, |row| row.get(0))?;
    let repeatable = repeatable.ok_or(StoreError::NotFound)?;
    let update = match known(tx, key)? {
        LedgerEntry::Finished(first) if !replaces(&first, outcome, repeatable) => return Ok(()),
        _ => "UPDATE effects SET outcome = ?3 WHERE tenant = ?1 AND key = ?2",
    };
    execute(tx, update, [names[0], names[1], json.as_str()]).map(drop)
}

fn retract(tx: &Transaction<'_>, key: &EffectKey) -> Result<(), StoreError> {
    let delete = "DELETE FROM effects WHERE tenant = ?1 AND key = ?2 AND outcome IS NULL";
    execute(tx, delete, [key.tenant.0.as_str(), key.key.as_str()]).map(drop)
}

pub(super) fn once(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    key: &Str,
    until: SystemTime,
) -> Result<bool, StoreError> {
    let insert = "INSERT OR IGNORE INTO once (tenant, key, until, n)
                  VALUES (?1, ?2, ?3, (SELECT ifnull(max(n), 0) + 1 FROM once))";
    let row = params![tenant.0.as_str(), key.as_str(), nanos(until)];
    let inserted = execute(tx, insert, row)?;
    Ok(inserted == 1)
}
