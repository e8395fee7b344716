use super::{PostgresStore, column, pool::Repeat, values::params};
use crate::{
    Fault,
    rules::{decision_span, write_decision},
};
use concentric_core::{
    RunId, Str, ThreadId,
    store::{Decisions, StoreError, StoreFuture, StoredDecision, Tenant},
};
use std::sync::Arc;
use tokio_postgres::Row;

impl Decisions for PostgresStore {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let json = write_decision(&decision)?;
            let (span, thread, run) = decision_span(&decision.span)?;
            let params = params![
                TEXT: decision.tenant.0.as_str(),
                TEXT: decision.id.as_str(),
                TEXT: decision.tool.as_str(),
                TEXT: span,
                TEXT: thread,
                TEXT: run,
                BYTEA: json.as_bytes(),
            ];
            let stored = db.call("decision_remember", params, Repeat::Yes);
            stored.await.map(drop)
        })
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
        session: Option<ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: tool.as_str(),
                TEXT: run.as_str(),
                // A run without a conversation has the empty name.
                TEXT: thread.as_ref().map_or("", ThreadId::as_str),
                TEXT: session.as_ref().map(ThreadId::as_str),
            ];
            let rows = db.call("decision_recall", params, Repeat::Yes).await?;
            rows.iter().map(read).collect()
        })
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![TEXT: tenant.0.as_str()];
            let rows = db.call("decision_list", params, Repeat::Yes).await?;
            rows.iter().map(read).collect()
        })
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![TEXT: tenant.0.as_str(), TEXT: id.as_str()];
            column(
                &db.call_one("decision_revoke", params, Repeat::No).await?,
                0,
            )
        })
    }
}

fn read(row: &Row) -> Result<StoredDecision, StoreError> {
    let (id, json): (&str, &[u8]) = (column(row, 0)?, column(row, 1)?);
    let decision = serde_json::from_slice(json);
    decision.map_err(|error| Fault::corrupt(format!("decision `{id}`"), error).into())
}
