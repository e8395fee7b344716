use super::{
    SqliteStore,
    values::{execute, find_rows},
};
use crate::{
    Fault,
    rules::{decision_span, write_decision},
};
use concentric_core::{
    RunId, Str, ThreadId,
    store::{Decisions, StoreError, StoreFuture, StoredDecision, Tenant},
};
use rusqlite::{Params, Transaction};

impl Decisions for SqliteStore {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        self.write(move |tx, _| remember(tx, &decision))
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
        session: Option<ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        self.read(move |tx, _| recall(tx, &tenant, &tool, &run, thread.as_ref(), session.as_ref()))
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        self.read(move |tx, _| list(tx, &tenant))
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.write(move |tx, _| revoke(tx, &tenant, &id))
    }
}

fn remember(tx: &Transaction<'_>, decision: &StoredDecision) -> Result<(), StoreError> {
    let json = write_decision(decision)?;
    let (span, thread, run) = decision_span(&decision.span)?;
    // A new row instead of an update, so that the decision becomes the newest.
    let insert =
        "INSERT OR REPLACE INTO decisions (n, tenant, id, tool, span, thread, run, decision)
                  VALUES ((SELECT ifnull(max(n), 0) + 1 FROM decisions),
                          ?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let row = [
        decision.tenant.0.as_str(),
        decision.id.as_str(),
        decision.tool.as_str(),
        span,
        thread,
        run,
        json.as_str(),
    ];
    execute(tx, insert, row).map(drop)
}

fn recall(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    tool: &Str,
    run: &RunId,
    thread: Option<&ThreadId>,
    session: Option<&ThreadId>,
) -> Result<Vec<StoredDecision>, StoreError> {
    let find = "SELECT id, decision FROM decisions
                WHERE tenant = ?1 AND tool = ?2
                  AND (span = 'always' OR (span = 'session' AND thread = ?5)
                       OR (thread = ?4 AND (span = 'thread' OR (span = 'run' AND run = ?3))))
                ORDER BY n DESC";
    let (thread, session) = (name(thread), session.map(ThreadId::as_str));
    let (tenant, tool) = (tenant.0.as_str(), tool.as_str());
    select(tx, find, (tenant, tool, run.as_str(), thread, session))
}

/// The stored form of a conversation id: empty for a run without a conversation.
fn name(thread: Option<&ThreadId>) -> &str {
    thread.map_or("", ThreadId::as_str)
}

fn list(tx: &Transaction<'_>, tenant: &Tenant) -> Result<Vec<StoredDecision>, StoreError> {
    let find = "SELECT id, decision FROM decisions WHERE tenant = ?1 ORDER BY n DESC";
    select(tx, find, [tenant.0.as_str()])
}

fn select(
    tx: &Transaction<'_>,
    find: &str,
    params: impl Params,
) -> Result<Vec<StoredDecision>, StoreError> {
    let rows: Vec<(String, String)> =
        find_rows(tx, find, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.into_iter()
        .map(|(id, json)| {
            let decision = serde_json::from_str(&json);
            decision.map_err(|error| Fault::corrupt(format!("decision `{id}`"), error).into())
        })
        .collect()
}

fn revoke(tx: &Transaction<'_>, tenant: &Tenant, id: &Str) -> Result<bool, StoreError> {
    let delete = "DELETE FROM decisions WHERE tenant = ?1 AND id = ?2";
    let gone = execute(tx, delete, [tenant.0.as_str(), id.as_str()])?;
    Ok(gone > 0)
}
