use super::{Kept, MemoryStore};
use crate::rules::{check_text, end_of, replaces, same_arguments};
use concentric_core::{
    Str, ToolOutcome,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, Once, RunKey, StoreError, StoreFuture, Tenant,
    },
};
use std::time::{Duration, SystemTime};

pub(super) struct Entry {
    pub(super) run: Option<RunKey>,
    // The time of the first purge, for an entry without a run.
    pub(super) seen: Option<SystemTime>,
    tool: Str,
    arguments: Str,
    repeatable: bool,
    outcome: Option<ToolOutcome>,
}

impl Kept {
    fn effect(&self, key: &EffectKey) -> LedgerEntry {
        match self.effects.get(key).map(|entry| &entry.outcome) {
            None => LedgerEntry::New,
            Some(None) => LedgerEntry::Started,
            Some(Some(outcome)) => LedgerEntry::Finished(Box::new(outcome.clone())),
        }
    }
}

impl Ledger for MemoryStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        self.work(move |kept| {
            if let Some(claim) = &intent.claim {
                let row = kept.runs.get(&claim.key).ok_or(StoreError::Stale)?;
                let checked = row.standing.check_fence(claim.fence);
                checked.map_err(|_| StoreError::Stale)?;
            }
            match kept.effects.get_mut(&key) {
                Some(entry)
                    if entry.tool != intent.tool
                        || !same_arguments(&entry.arguments, &intent.arguments) =>
                {
                    return Err(StoreError::Mismatch);
                }
                Some(entry) => entry.repeatable = intent.repeatable,
                None => {
                    let entry = Entry {
                        run: intent.claim.map(|claim| claim.key),
                        seen: None,
                        tool: intent.tool,
                        arguments: intent.arguments,
                        repeatable: intent.repeatable,
                        outcome: None,
                    };
                    kept.effects.insert(key, entry);
                    return Ok(LedgerEntry::New);
                }
            }
            Ok(kept.effect(&key))
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.work(move |kept| {
            let json = serde_json::to_string(&outcome).map_err(StoreError::unwritable)?;
            check_text(&json, usize::MAX)?;
            let entry = kept.effects.get_mut(&key).ok_or(StoreError::NotFound)?;
            match &entry.outcome {
                Some(first) if !replaces(first, &outcome, entry.repeatable) => {}
                _ => entry.outcome = Some(outcome),
            }
            Ok(())
        })
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.work(move |kept| Ok(kept.effect(&key)))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.work(move |kept| {
            if kept
                .effects
                .get(&key)
                .is_some_and(|it| it.outcome.is_none())
            {
                kept.effects.remove(&key);
            }
            Ok(())
        })
    }
}

impl Once for MemoryStore {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let now = self.options.now();
        self.work(move |kept| {
            let (key, until) = ((tenant, key), end_of(now, keep));
            let first = !kept.once.contains_key(&key);
            if first {
                kept.used += 1;
                kept.once.insert(key, (until, kept.used));
            }
            Ok(first)
        })
    }
}
