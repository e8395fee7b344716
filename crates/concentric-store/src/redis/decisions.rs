use super::{
    RedisStore,
    db::Repeat,
    values::{Call, Reply, bytes, fields, text},
};
use crate::{
    Fault,
    rules::{decision_span, write_decision},
};
use concentric_core::{
    RunId, Str, ThreadId,
    store::{Decisions, StoreError, StoreFuture, StoredDecision, Tenant},
};
use std::sync::Arc;

impl Decisions for RedisStore {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let json = write_decision(&decision)?;
            let (span, thread, run) = decision_span(&decision.span)?;
            let call = Call::of(&decision.tenant, "decision_remember")
                .text(&decision.id)
                .text(&decision.tool)
                .text(span)
                .name(thread)
                .name(run)
                .text(&json);
            db.call(call, Repeat::Yes).await.map(drop)
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
            let session = session.map(|session| super::values::escape(session.as_str()));
            let call = Call::of(&tenant, "decision_recall")
                .text(&tool)
                .name(run.as_str())
                // A run without a conversation has the empty name.
                .name(thread.as_ref().map_or("", ThreadId::as_str))
                .optional(session.as_deref());
            read(&db.call(call, Repeat::Yes).await?)
        })
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "decision_list");
            read(&db.call(call, Repeat::Yes).await?)
        })
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "decision_revoke").text(&id);
            db.call(call, Repeat::No).await?.is(1)
        })
    }
}

fn read(reply: &Reply) -> Result<Vec<StoredDecision>, StoreError> {
    let read = |value| {
        let [id, json] = fields(value)?;
        let decision = serde_json::from_slice(bytes(json)?);
        let id = text(id)?;
        decision.map_err(|error| Fault::corrupt(format!("decision `{id}`"), error).into())
    };
    reply.rest().iter().map(read).collect()
}
