use super::{
    RedisStore,
    db::{Db, Repeat},
    unknown,
    values::{Call, attempt, bytes, span, text},
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
use redis::Value;
use std::{sync::Arc, time::Duration};

impl Ledger for RedisStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { begin(&db, &key, &intent).await })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let json = serde_json::to_string(&outcome).map_err(StoreError::unwritable)?;
            check_text(&json, usize::MAX)?;
            let kind = match outcome.status {
                ToolStatus::Failed => "failed",
                ToolStatus::Done => "done",
                _ => "other",
            };
            let call = Call::of(&key.tenant, "effect_finish")
                .text(&key.key)
                .text(&json)
                .text(kind);
            match db.call(call, Repeat::Yes).await?.code()? {
                "ok" => Ok(()),
                "not_found" => Err(StoreError::NotFound),
                other => Err(unknown(other)),
            }
        })
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&key.tenant, "effect_known").text(&key.key);
            let reply = db.call(call, Repeat::Yes).await?;
            match reply.code()? {
                "new" => Ok(LedgerEntry::New),
                "known" => entry(&key, reply.get(1)?),
                other => Err(unknown(other)),
            }
        })
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&key.tenant, "effect_retract").text(&key.key);
            db.call(call, Repeat::Yes).await.map(drop)
        })
    }
}

impl Once for RedisStore {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "once_use")
                .text(&key)
                .int(span(keep))
                .owned(attempt());
            db.call(call, Repeat::Yes).await?.is(1)
        })
    }
}

async fn begin(db: &Db, key: &EffectKey, intent: &Intent) -> Result<LedgerEntry, StoreError> {
    let claim = intent.claim.as_ref();
    let attempt = attempt();
    // Arguments of an earlier call that are equal as JSON.
    let mut known = intent.arguments.to_string();
    loop {
        let call = Call::of(&key.tenant, "effect_begin")
            .text(&key.key)
            .flag(claim.is_some())
            .name(claim.map_or("", |claim| claim.key.thread.as_str()))
            .name(claim.map_or("", |claim| claim.key.run.as_str()))
            .int(claim.map_or(0, |claim| integer(claim.fence)))
            .text(&intent.tool)
            .text(&intent.arguments)
            .text(&known)
            .flag(intent.repeatable)
            .text(&attempt);
        let reply = db.call(call, Repeat::Yes).await?;
        match reply.code()? {
            "new" => return Ok(LedgerEntry::New),
            "stale" => return Err(StoreError::Stale),
            "known" => return entry(key, reply.get(1)?),
            "differs" => {}
            other => return Err(unknown(other)),
        }
        let (tool, stored) = (text(reply.get(1)?)?, text(reply.get(2)?)?);
        if tool != &*intent.tool || !same_arguments(stored, &intent.arguments) {
            return Err(StoreError::Mismatch);
        }
        known = stored.to_owned();
    }
}

/// The entry of an effect that was started.
fn entry(key: &EffectKey, outcome: &Value) -> Result<LedgerEntry, StoreError> {
    if let Value::Nil = outcome {
        return Ok(LedgerEntry::Started);
    }
    let outcome = serde_json::from_slice(bytes(outcome)?)
        .map_err(|error| Fault::corrupt(format!("effect `{}`", key.key), error))?;
    Ok(LedgerEntry::Finished(Box::new(outcome)))
}
