use super::{
    PostgresStore, column,
    pool::{Db, Repeat},
    unknown,
    values::{attempt, now, params, span},
};
use crate::{
    Fault,
    columns::integer,
    rules::{check_text, same_arguments},
};
use concentric_core::{
    Str, ToolOutcome, ToolStatus,
    store::{EffectKey, Intent, Ledger, LedgerEntry, Once, StoreError, StoreFuture, Tenant},
};
use std::{sync::Arc, time::Duration};

impl Ledger for PostgresStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { begin(&db, &key, &intent).await })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let json = serde_json::to_string(&outcome).map_err(StoreError::unwritable)?;
            check_text(&json, usize::MAX)?;
            let params = params![
                TEXT: key.tenant.0.as_str(),
                TEXT: key.key.as_str(),
                BYTEA: json.as_bytes(),
                BOOL: outcome.status == ToolStatus::Failed,
                BOOL: outcome.status == ToolStatus::Done,
            ];
            let row = db.call_one("effect_finish", params, Repeat::Yes).await?;
            match column(&row, 0)? {
                true => Ok(()),
                false => Err(StoreError::NotFound),
            }
        })
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![TEXT: key.tenant.0.as_str(), TEXT: key.key.as_str()];
            let rows = db.call("effect_known", params, Repeat::Yes).await?;
            match rows.first() {
                Some(row) => entry(&key, column(row, 0)?),
                None => Ok(LedgerEntry::New),
            }
        })
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![TEXT: key.tenant.0.as_str(), TEXT: key.key.as_str()];
            let done = db.call("effect_retract", params, Repeat::Yes);
            done.await.map(drop)
        })
    }
}

impl Once for PostgresStore {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: key.as_str(),
                INT8: now(&db.options),
                INT8: span(keep),
                BYTEA: attempt(),
            ];
            column(&db.call_one("once_use", params, Repeat::Yes).await?, 0)
        })
    }
}

async fn begin(db: &Db, key: &EffectKey, intent: &Intent) -> Result<LedgerEntry, StoreError> {
    let claim = intent.claim.as_ref();
    let (attempt, arguments) = (attempt(), intent.arguments.as_bytes());
    // Arguments of an earlier call that are equal as JSON.
    let mut known = arguments.to_vec();
    loop {
        let params = params![
            TEXT: key.tenant.0.as_str(),
            TEXT: key.key.as_str(),
            TEXT: claim.map(|claim| claim.key.thread.as_str()),
            TEXT: claim.map(|claim| claim.key.run.as_str()),
            INT8: claim.map(|claim| integer(claim.fence)),
            TEXT: intent.tool.as_str(),
            BYTEA: arguments,
            BYTEA: known,
            BOOL: intent.repeatable,
            BYTEA: attempt,
        ];
        let row = db.call_one("effect_begin", params, Repeat::Yes).await?;
        match column(&row, 0)? {
            "new" => return Ok(LedgerEntry::New),
            "stale" => return Err(StoreError::Stale),
            "known" => return entry(key, column(&row, 3)?),
            "differs" => {}
            other => return Err(unknown(other)),
        }
        let (tool, stored): (&str, &[u8]) = (column(&row, 1)?, column(&row, 2)?);
        let is_same = std::str::from_utf8(stored)
            .is_ok_and(|stored| same_arguments(stored, &intent.arguments));
        if tool != &*intent.tool || !is_same {
            return Err(StoreError::Mismatch);
        }
        known = stored.to_vec();
    }
}

/// The entry of an effect that was started.
fn entry(key: &EffectKey, outcome: Option<&[u8]>) -> Result<LedgerEntry, StoreError> {
    let Some(outcome) = outcome else {
        return Ok(LedgerEntry::Started);
    };
    let outcome = serde_json::from_slice(outcome)
        .map_err(|error| Fault::corrupt(format!("effect `{}`", key.key), error))?;
    Ok(LedgerEntry::Finished(Box::new(outcome)))
}
