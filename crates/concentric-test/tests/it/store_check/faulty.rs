//! A store that may have a fault.

use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, Str, ThreadId, ToolOutcome, Turn,
    store::{
        Amounts, BudgetStore, BudgetWindow, CacheEntry, CacheKey, CacheStore, Decisions, EffectKey,
        Intent, Ledger, LedgerEntry, Memories, Memory, Once, OverBudget, Quota, QuotaChange,
        QuotaStore, QuotaTaken, QuotaWant, Renewed, RunChange, RunKey, RunRecord, RunStatus,
        RunStore, RunSummary, SharedBudget, StoreError, StoreFuture, StoredDecision, StoredThread,
        Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use concentric_store::Options;
use concentric_test::{ManualClock, MemoryStore, StoreHarness};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

macro_rules! fault {
    ($($name:ident)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            $($name,)+
        }

        const FAULTS: &[Fault] = &[$(Fault::$name,)+];
    };
}

fault! {
    None
    SavesWithAnyFence RenewsALostLease EndsWithAnyFence SuspendsWithAnyFence KeepsTheClaimOfAWaitingRun
    ClaimsAnyVersion ComparesFences ReturnsTheOldLease AmendsAnyVersion FailsARepeatedEnd LosesReplies ReplacesReplies LosesAWrite
    LosesSomeWrites TruncatesLargeStates AllowsOneClientIdTwice ForgetsAbandonedRunsAreLive
    FindsTheOldestRun ListsRunsOfEachMessage HasShortLeases WrapsLongLeases ClaimsTooMany HandsOutARunTwice
    IgnoresQuarantine SweepsQuarantinedRuns ResetsTakeoversAtRenewals CountsEachClaimAsATakeover
    ReleasesAnyRun ForgetsACancellationAtATakeover ForgetsACancellationOnceSeen KeepsACancellationForever
    CancelsAnyRun RemovesRunsTooEarly ReadsRunsOfOtherTenants FindsRunsOfOtherTenants
    ListsRunsOfOtherTenants ListsWaitingRunsOfOtherTenants CancelsRunsOfOtherTenants WithdrawsRunsOfOtherTenants
    ReleasesRunsOfOtherTenants SharesEffects DeletesConversationsOfOtherTenants SharesUsedKeys
    RevokesForOtherTenants SharesMemories BeginsEffectsWithoutAClaim BeginsEffectsTwice
    RetractsFinishedEffects KeepsUsedKeysTooShort AppendsAtAnyVersion AppendsTwice ForgetsIdsOfChanges EndsNoRun AppendsForLostRuns AppendsForDeletedRuns
    ForgetsOutcomes MergesKindsOfErrors KeepsTheLastOutcome ForgetsOutcomesOfWithdrawnRuns
    ForgetsOutcomesOfChanges EndsWaitingRuns FindsNoEndedRunOfAClient FindsTheOldestRunOfAClient FindsTheNewestRunOfAClient
    FindsRunsOfClientsOfOtherTenants
    SkipsATurn ReadsTheOldestTurns ReadsNoSharedTurns FailsBeyondTheEnd ReadsAtLeastOneTurn ReadsTooManyTurns
    ReadsTurnsOfOtherTenants DeletesOnlyConversationsOfTenants DeletesAllTenants
    KeepsDeletedConversations RepeatsAPage ListsById ListsWithoutTimes KeepsRunsOfDeletedConversations RecallsAllDecisions
    ForgetsAllMemories SharesCachedValues KeepsTheFirstCachedValue ServesExpiredValues ExtendsCachedValues
    TruncatesCachedValues IgnoresSpaces RemovesAllSpaces KeepsCachedValuesOfDeletedConversations
    IgnoresOtherCallers HasFullPeriodsTwice ServesInOrderOfArrival ForgetsReturnedAmounts ForgetsRejections IgnoresProviders
    MixesBuckets GrantsAllPermits KeepsPermitsOfTheDead TakesLateRequests
    ReservesTheOutermostOnly SettlesTwice FreesReservationsOfTheDead ForgetsLateSettlements HasNoWindows ForgetsExtensions
    SharesBudgets
    ClaimsAfterACheck AppendsAfterACheck UsesAKeyAfterACheck SweepsAfterACheck
}

/// The harness of a store with the fault number `F`.
pub(crate) struct Faulty<const F: u8>(FaultyStore);

impl<const F: u8> StoreHarness for Faulty<F> {
    type Store = FaultyStore;

    async fn start(clock: ManualClock) -> Self {
        let fault = FAULTS[usize::from(F)];
        let options = Options::new().clock(clock);
        let options = match fault {
            Fault::TruncatesLargeStates => options.max_state_bytes(1 << 20),
            Fault::RemovesRunsTooEarly => options.keep_waiting(Duration::from_secs(60)),
            Fault::KeepsUsedKeysTooShort => options.keep_used_keys(0),
            _ => options,
        };
        Self(FaultyStore {
            inner: MemoryStore::with_options(options),
            fault,
            noted: Arc::default(),
        })
    }

    async fn open(&self) -> FaultyStore {
        self.0.clone()
    }

    async fn purge(&self) {
        self.0.inner.purge().await.unwrap();
    }
}

#[derive(Clone)]
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    fault: Fault,
    noted: Arc<Mutex<Noted>>,
}

/// What a fault remembers.
#[derive(Default)]
struct Noted {
    writes: usize,
    runs: Vec<(RunKey, RunId)>,
    replies: HashMap<RunKey, Vec<Reply>>,
    outcomes: HashMap<RunKey, Option<Result<Outcome, ErrorKind>>>,
    // The fences at the cancellations.
    cancelled: HashMap<RunKey, u64>,
    seen: HashSet<RunKey>,
    used: HashSet<(Tenant, Str)>,
    retracted: HashSet<Str>,
    deleted: HashMap<RunKey, RunRecord>,
    // The numbers of turns with which forks begin.
    forks: HashMap<ThreadId, usize>,
}

fn acme() -> Tenant {
    Tenant("acme".into())
}

/// Lets other tasks check the same thing.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

impl FaultyStore {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn noted<T>(&self, note: impl FnOnce(&mut Noted) -> T) -> T {
        note(&mut self.noted.lock().unwrap())
    }

    /// The tenant `acme`, if the store has this fault.
    fn tenant(&self, fault: Fault, tenant: Tenant) -> Tenant {
        if self.has(fault) { acme() } else { tenant }
    }

    fn lease(&self, lease: Duration) -> Duration {
        match self.fault {
            Fault::HasShortLeases => lease / 2,
            Fault::WrapsLongLeases if lease > Duration::from_secs(1 << 33) => Duration::ZERO,
            _ => lease,
        }
    }

    /// The newest fence of the run, if the store has this fault.
    async fn fence(&self, fault: Fault, key: &RunKey, fence: u64) -> u64 {
        match self.inner.get(key.clone()).await {
            Ok(record) if self.has(fault) => record.fence,
            _ => fence,
        }
    }

    fn show(&self, mut record: RunRecord) -> RunRecord {
        if self.has(Fault::CountsEachClaimAsATakeover) && record.status == RunStatus::Running {
            record.takeovers += 1;
        }
        if self.has(Fault::ReplacesReplies)
            && let Some(replies) = self.noted(|noted| noted.replies.get(&record.key).cloned())
        {
            record.replies = replies;
        }
        self.outcome(&record.key, &mut record.outcome);
        record
    }

    /// Changes the outcome of a run, if the store has a fault of outcomes.
    fn outcome(&self, key: &RunKey, outcome: &mut Option<Result<Outcome, ErrorKind>>) {
        if let Some(other) = self.noted(|noted| noted.outcomes.get(key).cloned())
            && outcome.is_some()
        {
            *outcome = other;
        }
    }

    fn note_outcome(&self, key: &RunKey, outcome: Option<Result<Outcome, ErrorKind>>) {
        self.noted(|noted| noted.outcomes.insert(key.clone(), outcome));
    }
}

impl RunStore for FaultyStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let client_id = match self.fault {
            Fault::AllowsOneClientIdTwice => key.run.clone(),
            _ => client_id,
        };
        self.noted(|noted| noted.runs.push((key.clone(), client_id.clone())));
        RunStore::begin(&self.inner, key, client_id, change, self.lease(lease))
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move {
            let live = store
                .inner
                .is_live(tenant, thread.clone(), client_id)
                .await?;
            if store.has(Fault::ForgetsAbandonedRunsAreLive) && live {
                let runs = store.inner.list_by_thread(acme(), thread, None, 9).await?;
                return Ok(runs.iter().any(|run| run.status == RunStatus::Running));
            }
            Ok(live)
        })
    }

    fn get(&self, mut key: RunKey) -> StoreFuture<RunRecord> {
        key.tenant = self.tenant(Fault::ReadsRunsOfOtherTenants, key.tenant);
        let store = self.clone();
        Box::pin(async move {
            let deleted = store.noted(|noted| noted.deleted.get(&key).cloned());
            let found = store.inner.get(key).await;
            deleted.map_or(found, Ok).map(|record| store.show(record))
        })
    }

    fn claim(
        &self,
        mut record: RunRecord,
        mut replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let (store, lease) = (self.clone(), self.lease(lease));
        Box::pin(async move {
            let (inner, key) = (&store.inner, record.key.clone());
            if store.has(Fault::ClaimsAfterACheck)
                && inner.get(key.clone()).await?.version == record.version
            {
                pause().await;
                return match inner.claim(record, replies, lease).await {
                    Err(StoreError::Taken) => inner.get(key).await,
                    claimed => claimed,
                };
            }
            let until = record.lease_until;
            match store.fault {
                Fault::ClaimsAnyVersion => record.version = inner.get(key.clone()).await?.version,
                Fault::ComparesFences => {
                    let newest = inner.get(key.clone()).await?;
                    if newest.fence == record.fence {
                        record.version = newest.version;
                    }
                }
                Fault::LosesReplies => replies.clear(),
                Fault::ReplacesReplies if !replies.is_empty() => {
                    store.noted(|noted| noted.replies.insert(key.clone(), replies.clone()));
                }
                Fault::IgnoresQuarantine => drop(inner.release(key.clone()).await?),
                _ => {}
            }
            let mut claimed = inner.claim(record, replies, lease).await?;
            if store.has(Fault::ReturnsTheOldLease) {
                claimed.lease_until = until;
            }
            Ok(store.show(claimed))
        })
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let (store, lease) = (self.clone(), self.lease(lease));
        Box::pin(async move {
            let limit = match store.fault {
                Fault::ClaimsTooMany => limit.saturating_add(1),
                _ => limit,
            };
            if store.has(Fault::SweepsQuarantinedRuns) {
                for (key, _) in store.noted(|noted| noted.runs.clone()) {
                    store.inner.release(key).await?;
                }
            }
            if store.has(Fault::SweepsAfterACheck) {
                let mut found = Vec::new();
                for (key, _) in store.noted(|noted| noted.runs.clone()) {
                    let record = store.inner.get(key).await?;
                    if record.status == RunStatus::Abandoned && found.len() < limit {
                        found.push(record);
                    }
                }
                pause().await;
                store.inner.claim_abandoned(limit, lease).await?;
                let mut claimed = Vec::new();
                for record in found {
                    claimed.push(store.inner.get(record.key).await?);
                }
                return Ok(claimed);
            }
            let claimed = store.inner.claim_abandoned(limit, lease).await?;
            if store.has(Fault::HandsOutARunTwice) {
                for record in &claimed {
                    let given_up =
                        store
                            .inner
                            .renew(record.key.clone(), record.fence, Duration::ZERO);
                    let _ = given_up.await?;
                }
            }
            Ok(claimed
                .into_iter()
                .map(|record| store.show(record))
                .collect())
        })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let version = match store.fault {
                Fault::AmendsAnyVersion => store.inner.get(key.clone()).await?.version,
                _ => version,
            };
            store.inner.amend(key, version, change).await
        })
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let (store, lease) = (self.clone(), self.lease(lease));
        Box::pin(async move {
            let inner = &store.inner;
            let fence = store.fence(Fault::SavesWithAnyFence, &key, fence).await;
            let is_third = store.noted(|noted| {
                noted.writes += 1;
                noted.writes.is_multiple_of(3)
            });
            let is_lost =
                store.has(Fault::LosesAWrite) || is_third && store.has(Fault::LosesSomeWrites);
            if is_lost {
                return inner.renew(key, fence, lease).await.map(drop);
            }
            if store.has(Fault::KeepsTheClaimOfAWaitingRun) {
                let record = inner.get(key.clone()).await?;
                if (record.status, record.fence) == (RunStatus::Suspended, fence) {
                    let claimed = inner.claim(record, Vec::new(), lease).await?;
                    return inner.save(key, claimed.fence, change, lease).await;
                }
            }
            inner.save(key, fence, change, lease).await
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        let (store, lease) = (self.clone(), self.lease(lease));
        Box::pin(async move {
            let inner = &store.inner;
            let fence = store.fence(Fault::RenewsALostLease, &key, fence).await;
            if store.has(Fault::ResetsTakeoversAtRenewals) {
                let _ = inner.renew(key.clone(), fence, Duration::ZERO).await?;
            }
            let renewed = inner.renew(key.clone(), fence, lease).await?;
            let cancelled = store.noted(|noted| noted.cancelled.get(&key).copied());
            Ok(match (store.fault, cancelled) {
                (Fault::ForgetsACancellationAtATakeover, Some(at)) if at != fence => Renewed::Held,
                (Fault::ForgetsACancellationOnceSeen, Some(_)) => {
                    match store.noted(|noted| noted.seen.insert(key)) {
                        true => renewed,
                        false => Renewed::Held,
                    }
                }
                (Fault::KeepsACancellationForever, Some(_)) => Renewed::CancelRequested,
                _ => renewed,
            })
        })
    }

    fn cancel(&self, mut key: RunKey) -> StoreFuture<bool> {
        key.tenant = self.tenant(Fault::CancelsRunsOfOtherTenants, key.tenant);
        let store = self.clone();
        Box::pin(async move {
            let cancelled = store.inner.cancel(key.clone()).await?;
            if let Ok(record) = store.inner.get(key.clone()).await {
                store.noted(|noted| noted.cancelled.insert(key, record.fence));
            }
            Ok(cancelled || store.has(Fault::CancelsAnyRun))
        })
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let fence = store.fence(Fault::SuspendsWithAnyFence, &key, fence).await;
            store.inner.suspend(key, fence, change).await
        })
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let fence = store.fence(Fault::EndsWithAnyFence, &key, fence).await;
            if store.has(Fault::FailsARepeatedEnd)
                && store.inner.get(key.clone()).await?.status == RunStatus::Ended
            {
                return Err(StoreError::Ended);
            }
            match (store.fault, &outcome) {
                (Fault::ForgetsOutcomes, _) => store.note_outcome(&key, None),
                (Fault::MergesKindsOfErrors, Err(_)) => {
                    store.note_outcome(&key, Some(Err(ErrorKind::Other)));
                }
                (Fault::KeepsTheLastOutcome, _) => {
                    store.note_outcome(&key, Some(outcome.clone()));
                }
                _ => {}
            }
            store.inner.end(key, fence, outcome).await
        })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        let tenant = self.tenant(Fault::WithdrawsRunsOfOtherTenants, tenant);
        let store = self.clone();
        Box::pin(async move {
            if store.has(Fault::ForgetsOutcomesOfWithdrawnRuns) {
                let runs = store
                    .inner
                    .list_by_thread(tenant.clone(), thread.clone(), None, 9);
                for run in runs.await? {
                    store.note_outcome(&run.key, None);
                }
            }
            store.inner.withdraw(tenant, thread).await
        })
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move {
            if store.has(Fault::ReleasesRunsOfOtherTenants) {
                let ours = RunKey::new(acme(), key.thread.clone(), key.run.clone());
                store.inner.release(ours).await?;
            }
            Ok(store.inner.release(key).await? || store.has(Fault::ReleasesAnyRun))
        })
    }

    fn purge(&self) -> StoreFuture<()> {
        self.inner.purge()
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let tenant = self.tenant(Fault::FindsRunsOfOtherTenants, tenant);
        let store = self.clone();
        Box::pin(async move {
            let newest = store
                .inner
                .find_by_interrupt(tenant, thread, questions.clone())
                .await?;
            if store.has(Fault::FindsTheOldestRun) {
                for (key, _) in store.noted(|noted| noted.runs.clone()) {
                    let record = store.inner.get(key).await?;
                    if record.asked.iter().any(|id| questions.contains(id)) {
                        return Ok(record);
                    }
                }
            }
            Ok(store.show(newest))
        })
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        let tenant = self.tenant(Fault::FindsRunsOfClientsOfOtherTenants, tenant);
        let store = self.clone();
        Box::pin(async move {
            let inner = &store.inner;
            let found = inner.find_by_client_id(tenant, thread, client_id.clone());
            let mut found = found.await?;
            if store.has(Fault::FindsNoEndedRunOfAClient) && found.status == RunStatus::Ended {
                return Err(StoreError::NotFound);
            }
            let begun = store.noted(|noted| noted.runs.clone());
            let mut begun = begun.into_iter().filter(|(_, id)| *id == client_id);
            let other = match store.fault {
                Fault::FindsTheOldestRunOfAClient => begun.next(),
                Fault::FindsTheNewestRunOfAClient => begun.next_back(),
                _ => None,
            };
            if let Some((key, id)) = other {
                let record = inner.get(key.clone()).await?;
                found = RunSummary::new(key, id, record.status, record.lease_until);
                found.outcome = record.outcome;
            }
            store.outcome(&found.key.clone(), &mut found.outcome);
            Ok(found)
        })
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let tenant = self.tenant(Fault::ListsRunsOfOtherTenants, tenant);
        let message = match self.fault {
            Fault::ListsRunsOfEachMessage => None,
            _ => message,
        };
        self.inner.list_by_thread(tenant, thread, message, limit)
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        let tenant = self.tenant(Fault::ListsWaitingRunsOfOtherTenants, tenant);
        self.inner.list_waiting(tenant, limit)
    }
}

impl Ledger for FaultyStore {
    fn begin(&self, mut key: EffectKey, mut intent: Intent) -> StoreFuture<LedgerEntry> {
        key.tenant = self.tenant(Fault::SharesEffects, key.tenant);
        if self.has(Fault::BeginsEffectsWithoutAClaim) {
            intent.claim = None;
        }
        let store = self.clone();
        Box::pin(async move {
            if store.has(Fault::BeginsEffectsTwice) {
                store.inner.retract(key.clone()).await?;
            }
            Ledger::begin(&store.inner, key, intent).await
        })
    }

    fn finish(&self, mut key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        key.tenant = self.tenant(Fault::SharesEffects, key.tenant);
        self.inner.finish(key, outcome)
    }

    fn known(&self, mut key: EffectKey) -> StoreFuture<LedgerEntry> {
        key.tenant = self.tenant(Fault::SharesEffects, key.tenant);
        if self.noted(|noted| noted.retracted.contains(&key.key)) {
            return Box::pin(async { Ok(LedgerEntry::New) });
        }
        self.inner.known(key)
    }

    fn retract(&self, mut key: EffectKey) -> StoreFuture<()> {
        key.tenant = self.tenant(Fault::SharesEffects, key.tenant);
        let store = self.clone();
        Box::pin(async move {
            let known = store.inner.known(key.clone()).await?;
            if store.has(Fault::RetractsFinishedEffects)
                && matches!(known, LedgerEntry::Finished(_))
            {
                store.noted(|noted| noted.retracted.insert(key.key.clone()));
            }
            store.inner.retract(key).await
        })
    }
}

impl Once for FaultyStore {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move {
            match store.fault {
                Fault::UsesAKeyAfterACheck => {
                    let of = (tenant, key);
                    let first = store.noted(|noted| !noted.used.contains(&of));
                    pause().await;
                    store.noted(|noted| noted.used.insert(of));
                    Ok(first)
                }
                Fault::SharesUsedKeys => store.inner.once(acme(), key, keep).await,
                Fault::KeepsUsedKeysTooShort => store.inner.once(tenant, key, keep / 2).await,
                _ => store.inner.once(tenant, key, keep).await,
            }
        })
    }
}

impl Decisions for FaultyStore {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        self.inner.remember(decision)
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
        session: Option<ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        if self.has(Fault::RecallsAllDecisions) {
            let all = self.inner.list(tenant);
            return Box::pin(async move {
                let all = all.await?.into_iter();
                Ok(all.filter(|decision| decision.tool == tool).collect())
            });
        }
        self.inner.recall(tenant, tool, run, thread, session)
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        self.inner.list(tenant)
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.inner
            .revoke(self.tenant(Fault::RevokesForOtherTenants, tenant), id)
    }
}

impl Memories for FaultyStore {
    fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()> {
        self.inner
            .put(self.tenant(Fault::SharesMemories, tenant), owner, memory)
    }

    fn search(
        &self,
        tenant: Tenant,
        owner: Str,
        query: Str,
        limit: usize,
    ) -> StoreFuture<Vec<Memory>> {
        let tenant = self.tenant(Fault::SharesMemories, tenant);
        self.inner.search(tenant, owner, query, limit)
    }

    fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64> {
        let is_unknown = id.as_deref() == Some("none");
        let id = id.filter(|_| is_unknown || !self.has(Fault::ForgetsAllMemories));
        self.inner.forget(tenant, owner, id)
    }
}

impl CacheStore for FaultyStore {
    fn get_entry(&self, mut key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        key.tenant = self.tenant(Fault::SharesCachedValues, key.tenant);
        if self.has(Fault::IgnoresSpaces) {
            key.space = Str::default();
        }
        let store = self.clone();
        Box::pin(async move {
            let mut found = store.inner.get_entry(key.clone()).await?;
            if let Some(entry) = &mut found {
                if store.has(Fault::TruncatesCachedValues) {
                    entry.value.truncate(1 << 10);
                }
                if store.has(Fault::ExtendsCachedValues) {
                    let again =
                        store
                            .inner
                            .put_entry(key, entry.value.clone(), Duration::from_secs(120));
                    again.await?;
                }
            }
            Ok(found)
        })
    }

    fn put_entry(&self, mut key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        key.tenant = self.tenant(Fault::SharesCachedValues, key.tenant);
        if self.has(Fault::IgnoresSpaces) {
            key.space = Str::default();
        }
        let keep = match self.fault {
            Fault::ServesExpiredValues => Duration::MAX,
            _ => keep,
        };
        let store = self.clone();
        Box::pin(async move {
            let is_first = store.inner.get_entry(key.clone()).await?.is_none();
            if is_first || !store.has(Fault::KeepsTheFirstCachedValue) {
                store.inner.put_entry(key, value, keep).await?;
            }
            Ok(())
        })
    }

    fn remove_entries(
        &self,
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: Option<Str>,
    ) -> StoreFuture<u64> {
        let space = space.filter(|_| !self.has(Fault::RemovesAllSpaces));
        self.inner.remove_entries(tenant, thread, space)
    }
}

impl ThreadStore for FaultyStore {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.inner.load(tenant, thread)
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        let tenant = self.tenant(Fault::ReadsTurnsOfOtherTenants, tenant);
        let store = self.clone();
        Box::pin(async move {
            let turns = |start, limit| {
                let (tenant, thread) = (tenant.clone(), thread.clone());
                store.inner.turns(tenant, thread, start, limit)
            };
            let forked = store.noted(|noted| noted.forks.get(&thread).copied());
            match (store.fault, start) {
                (Fault::SkipsATurn, Some(start)) if start > 0 => {
                    turns(Some(start + 1), limit).await
                }
                (Fault::ReadsTheOldestTurns, None) => turns(Some(0), limit).await,
                (Fault::ReadsNoSharedTurns, start) => {
                    let start = start.map(|start| start.max(forked.unwrap_or_default()));
                    turns(start, limit).await
                }
                (Fault::FailsBeyondTheEnd, Some(start)) => match turns(Some(start), limit).await? {
                    Some((summary, _)) if start > summary.turns => Err(StoreError::NotFound),
                    found => Ok(found),
                },
                (Fault::ReadsAtLeastOneTurn, start) => turns(start, limit.max(1)).await,
                (Fault::ReadsTooManyTurns, start) if limit > 500 => {
                    let mut found = turns(start, limit).await?;
                    if let Some((_, turns)) = &mut found {
                        let whole = store.inner.load(tenant.clone(), thread.clone()).await?;
                        let start = start.unwrap_or_default();
                        *turns = whole.unwrap_or_default().history.turns_after(start);
                    }
                    Ok(found)
                }
                _ => turns(start, limit).await,
            }
        })
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        mut change: ThreadChange,
    ) -> StoreFuture<u64> {
        if self.has(Fault::ForgetsIdsOfChanges) {
            change.id = None;
        }
        let store = self.clone();
        Box::pin(async move {
            let inner = &store.inner;
            let append =
                |version, change| inner.append(tenant.clone(), thread.clone(), version, change);
            let stored = inner
                .load(tenant.clone(), thread.clone())
                .await?
                .unwrap_or_default();
            match store.fault {
                Fault::AppendsAtAnyVersion => append(stored.version, change).await,
                Fault::EndsNoRun => {
                    change.ends = None;
                    append(version, change).await
                }
                Fault::ForgetsOutcomesOfChanges => {
                    if let Some((claim, _)) = &change.ends {
                        store.note_outcome(&claim.key, None);
                    }
                    append(version, change).await
                }
                Fault::EndsWaitingRuns => {
                    if let Some((_, outcome)) = &mut change.ends {
                        *outcome = Ok(Outcome::Completed);
                    }
                    append(version, change).await
                }
                Fault::AppendsForLostRuns => match append(version, change.clone()).await {
                    Err(StoreError::Stale) => {
                        change.ends = None;
                        append(version, change).await
                    }
                    appended => appended,
                },
                Fault::AppendsForDeletedRuns => match append(version, change.clone()).await {
                    Err(StoreError::NotFound) => {
                        change.ends = None;
                        append(version, change).await
                    }
                    appended => appended,
                },
                Fault::AppendsAfterACheck if stored.version == version => {
                    pause().await;
                    let stored = inner
                        .load(tenant.clone(), thread.clone())
                        .await?
                        .unwrap_or_default();
                    append(stored.version, change).await
                }
                Fault::AppendsTwice if change.id.is_some() && version > 0 => {
                    let mut again = change.clone();
                    again.id = None;
                    match append(version, again).await {
                        Ok(version) => {
                            let mut last = change;
                            last.keep += last.turns.len();
                            append(version, last).await
                        }
                        Err(_) => append(version, change).await,
                    }
                }
                _ => append(version, change).await,
            }
        })
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.noted(|noted| noted.forks.insert(to.clone(), change.keep));
        self.inner.fork(tenant, thread, version, to, change)
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        let before = before.filter(|_| !self.has(Fault::RepeatsAPage));
        let by_id = self.has(Fault::ListsById);
        let without_times = self.has(Fault::ListsWithoutTimes);
        let listed = self.inner.list_threads(tenant, before, limit);
        Box::pin(async move {
            let mut listed = listed.await?;
            if by_id {
                listed.sort_by(|a, b| a.thread.as_str().cmp(b.thread.as_str()));
            }
            if without_times {
                listed
                    .iter_mut()
                    .for_each(|it| it.at = SystemTime::UNIX_EPOCH);
            }
            Ok(listed)
        })
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        let tenant = self.tenant(Fault::DeletesConversationsOfOtherTenants, tenant);
        let store = self.clone();
        Box::pin(async move {
            match store.fault {
                Fault::KeepsDeletedConversations => {
                    Ok(store.inner.load(tenant, thread).await?.is_some())
                }
                Fault::KeepsRunsOfDeletedConversations => {
                    for (key, _) in store.noted(|noted| noted.runs.clone()) {
                        let record = store.inner.get(key.clone()).await?;
                        store.noted(|noted| noted.deleted.insert(key, record));
                    }
                    store.inner.delete(tenant, thread).await
                }
                Fault::KeepsCachedValuesOfDeletedConversations => Ok(true),
                _ => store.inner.delete(tenant, thread).await,
            }
        })
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            match store.fault {
                Fault::DeletesOnlyConversationsOfTenants => {
                    let found = store.inner.list_threads(tenant.clone(), None, usize::MAX);
                    let mut deleted = 0;
                    for found in found.await? {
                        let delete = store.inner.delete(tenant.clone(), found.thread);
                        deleted += u64::from(delete.await?);
                    }
                    Ok(deleted)
                }
                Fault::DeletesAllTenants => {
                    store.inner.delete_tenant(Tenant("other".into())).await?;
                    store.inner.delete_tenant(tenant).await
                }
                _ => store.inner.delete_tenant(tenant).await,
            }
        })
    }
}

impl QuotaStore for FaultyStore {
    fn take(
        &self,
        mut bucket: Str,
        mut quota: Quota,
        caller: Str,
        mut wants: Vec<QuotaWant>,
        ahead: [u64; 3],
    ) -> StoreFuture<QuotaTaken> {
        match self.fault {
            Fault::IgnoresOtherCallers => bucket = format!("{bucket}/{caller}").into(),
            Fault::HasFullPeriodsTwice => quota = Quota::per(quota.period() / 2).requests(10),
            Fault::ServesInOrderOfArrival => {
                for want in &mut wants {
                    want.owner = caller.clone();
                }
            }
            Fault::MixesBuckets => bucket = Str::default(),
            _ => {}
        }
        let is_one = self.has(Fault::ServesInOrderOfArrival) && wants.len() > 1;
        let taken = self.inner.take(bucket, quota, caller, wants, ahead);
        Box::pin(async move {
            let mut taken = taken.await?;
            if is_one {
                // All of the first owner.
                let sum = taken.granted.iter().sum();
                taken.granted = vec![sum, 0];
            }
            Ok(taken)
        })
    }

    fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()> {
        let is_kept = |change: &QuotaChange| match change {
            QuotaChange::Unused { .. } => !self.has(Fault::ForgetsReturnedAmounts),
            QuotaChange::Rejected { .. } => !self.has(Fault::ForgetsRejections),
            _ => !self.has(Fault::IgnoresProviders),
        };
        let changes = changes.into_iter().filter(is_kept).collect();
        self.inner.record(bucket, quota, changes)
    }

    fn hold(
        &self,
        bucket: Str,
        max: u64,
        caller: (Str, u64),
        used: u64,
        wanted: u64,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let (max, caller, lease) = match self.fault {
            Fault::GrantsAllPermits => (max * 3, caller, lease),
            Fault::KeepsPermitsOfTheDead => (max, caller, lease * 10),
            Fault::TakesLateRequests => (max, (caller.0, 0), lease),
            _ => (max, caller, lease),
        };
        self.inner.hold(bucket, max, caller, used, wanted, lease)
    }
}

impl BudgetStore for FaultyStore {
    fn reserve(
        &self,
        tenant: Tenant,
        id: Str,
        budgets: Vec<SharedBudget>,
        amounts: Amounts,
        lease: Duration,
    ) -> StoreFuture<Result<(), (Str, OverBudget)>> {
        let tenant = self.tenant(Fault::SharesBudgets, tenant);
        let budgets = match self.fault {
            Fault::ReservesTheOutermostOnly => budgets.into_iter().take(1).collect(),
            Fault::HasNoWindows => budgets
                .into_iter()
                .map(|it| it.per(BudgetWindow::Always))
                .collect(),
            _ => budgets,
        };
        let store = self.clone();
        Box::pin(async move {
            let inner = &store.inner;
            let reserved = inner
                .reserve(tenant.clone(), id.clone(), budgets, amounts, lease)
                .await?;
            if store.has(Fault::FreesReservationsOfTheDead) && id == "0" {
                inner.settle(tenant, id, Amounts::new()).await?;
            }
            Ok(reserved)
        })
    }

    fn settle(&self, tenant: Tenant, id: Str, actual: Amounts) -> StoreFuture<()> {
        let tenant = self.tenant(Fault::SharesBudgets, tenant);
        let store = self.clone();
        Box::pin(async move {
            let inner = &store.inner;
            if store.has(Fault::SettlesTwice) {
                let budgets = vec![SharedBudget::new("b", Default::default())];
                let more = inner.reserve(
                    tenant.clone(),
                    "more".into(),
                    budgets,
                    actual,
                    Duration::ZERO,
                );
                let _ = more.await?;
            }
            if store.has(Fault::ForgetsLateSettlements) && actual.money == 2 {
                return Ok(());
            }
            inner.settle(tenant, id, actual).await
        })
    }

    fn extend(&self, tenant: Tenant, budget: SharedBudget, more: Amounts) -> StoreFuture<()> {
        let more = match self.has(Fault::ForgetsExtensions) {
            true => Amounts::new(),
            false => more,
        };
        self.inner.extend(tenant, budget, more)
    }

    fn spent(&self, tenant: Tenant, budget: SharedBudget) -> StoreFuture<[Amounts; 2]> {
        let tenant = self.tenant(Fault::SharesBudgets, tenant);
        let budget = match self.has(Fault::HasNoWindows) {
            true => budget.per(BudgetWindow::Always),
            false => budget,
        };
        self.inner.spent(tenant, budget)
    }
}
