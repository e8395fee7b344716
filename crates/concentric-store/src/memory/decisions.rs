use super::MemoryStore;
use concentric_core::{
    RunId, Str, ThreadId,
    store::{Decisions, StoreFuture, StoredDecision, StoredScope, Tenant},
};

impl Decisions for MemoryStore {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        self.work(move |kept| {
            kept.decisions
                .retain(|d| (&d.tenant, &d.id) != (&decision.tenant, &decision.id));
            kept.decisions.push(decision);
            Ok(())
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
        self.work(move |kept| {
            let holds = |decision: &&StoredDecision| {
                let here = match &decision.span {
                    StoredScope::Run {
                        thread: within,
                        run: of,
                    } => (within, of) == (&thread, &run),
                    StoredScope::Thread(of) => thread.as_ref() == Some(of),
                    StoredScope::Session(of) => session.as_ref() == Some(of),
                    StoredScope::Always => true,
                    _ => false,
                };
                here && decision.tenant == tenant && decision.tool == tool
            };
            let found = kept.decisions.iter().rev().filter(holds);
            Ok(found.cloned().collect())
        })
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        self.work(move |kept| {
            let all = kept.decisions.iter().rev();
            Ok(all.filter(|d| d.tenant == tenant).cloned().collect())
        })
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.work(move |kept| {
            let before = kept.decisions.len();
            kept.decisions.retain(|d| d.tenant != tenant || d.id != id);
            Ok(kept.decisions.len() < before)
        })
    }
}
