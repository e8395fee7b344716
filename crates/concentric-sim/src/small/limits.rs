//! The limits that processes share, over the simulated connections.

use super::{
    history::{LimitAnswer, LimitKind, What},
    outside::mono,
    store::{Connection, Database, millis},
    time::{ProcessId, Time},
};
use concentric_core::{
    Environment, Str,
    store::{
        Amounts, BudgetStore, BudgetWindow, Limits, OverBudget, Quota, QuotaChange, QuotaStore,
        QuotaTaken, QuotaWant, SharedBudget, StoreError, StoreFuture, Tenant,
    },
};
use std::time::Duration;

/// The connection of a process to the store of its shared limits.
#[derive(Clone)]
pub(super) struct LimitStore {
    pub(super) connection: Connection,
    pub(super) environment: Environment,
}

/// Notes what a process receives.
struct Watch {
    time: Time,
    process: ProcessId,
    environment: Environment,
    limit: String,
    kind: LimitKind,
    answer: Option<LimitAnswer>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let what = What::Answered {
            limit: self.limit.clone(),
            kind: self.kind,
            mono: mono(&self.environment),
            answer: self.answer,
        };
        self.time.note(Some(self.process), what);
    }
}

impl LimitStore {
    /// Notes the answer of a request, or that the process has given it up.
    fn watch<T: Send + 'static>(
        &self,
        limit: String,
        kind: LimitKind,
        request: StoreFuture<T>,
        answer: impl FnOnce(&T) -> LimitAnswer + Send + 'static,
    ) -> StoreFuture<T> {
        let watch = Watch {
            time: self.connection.database.time.clone(),
            process: self.connection.process,
            environment: self.environment.clone(),
            limit,
            kind,
            answer: None,
        };
        Box::pin(async move {
            let mut watch = watch;
            let answered = request.await;
            watch.answer = answered.as_ref().ok().map(answer);
            answered
        })
    }
}

impl QuotaStore for LimitStore {
    fn take(
        &self,
        bucket: Str,
        quota: Quota,
        caller: Str,
        wants: Vec<QuotaWant>,
        ahead: [u64; 3],
    ) -> StoreFuture<QuotaTaken> {
        let store = &self.connection.database.store;
        let work = store.take(bucket.clone(), quota, caller, wants.clone(), ahead);
        let [ahead, ..] = ahead;
        let limit = bucket.to_string();
        let taken = self.connection.send(work, move |_, taken| {
            let calls = wants.iter().zip(&taken.granted).map(|(want, granted)| {
                (
                    want.owner.to_string(),
                    want.calls.len() as u64,
                    *granted as u64,
                )
            });
            vec![What::Taken {
                limit,
                calls: calls.collect(),
                ahead: if taken.ahead { ahead } else { 0 },
                wait: millis(taken.wait),
            }]
        });
        let limit = bucket.to_string();
        self.watch(limit, LimitKind::Quota, taken, move |taken| {
            LimitAnswer::Calls {
                now: taken.granted.iter().sum::<usize>() as u64,
                ahead: if taken.ahead { ahead } else { 0 },
            }
        })
    }

    fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()> {
        let unused = changes.iter().map(|change| match change {
            QuotaChange::Unused {
                amounts: [requests, ..],
                ..
            } => u64::try_from(*requests).unwrap_or(0),
            _ => 0,
        });
        let calls = unused.sum();
        let is_rejection = |change: &QuotaChange| matches!(change, QuotaChange::Rejected { .. });
        let rejected = changes.iter().any(is_rejection);
        let work = self
            .connection
            .database
            .store
            .record(bucket.clone(), quota, changes);
        let limit = bucket.to_string();
        let recorded = self.connection.send(work, move |_, ()| {
            vec![What::Returned {
                limit,
                calls,
                rejected,
            }]
        });
        let limit = bucket.to_string();
        self.watch(limit, LimitKind::Quota, recorded, |()| LimitAnswer::Other)
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
        let store = &self.connection.database.store;
        let request = caller.1;
        let work = store.hold(bucket.clone(), max, caller, used, wanted, lease);
        let limit = bucket.to_string();
        let held = self.connection.send(work, move |_, allowed| {
            vec![What::Held {
                limit,
                request,
                used,
                wanted,
                allowed: *allowed,
                lease: millis(lease),
            }]
        });
        let limit = bucket.to_string();
        self.watch(limit, LimitKind::Permits, held, |_| LimitAnswer::Other)
    }
}

/// The budgets of a tenant: one always, and one of the last hour, which is longer than a world.
pub(super) fn budgets(money: u64) -> Vec<SharedBudget> {
    let limits = Limits::new().money(money);
    let hour = SharedBudget::new("hour", Limits::new().money(money * 2));
    vec![
        SharedBudget::new("all", limits),
        hour.per(BudgetWindow::Hour),
    ]
}

/// The spending and the reservations of a tenant's budgets in the store.
pub(super) fn sums(
    database: &Database,
    tenant: &Tenant,
    budgets: &[SharedBudget],
) -> Vec<[u64; 2]> {
    let sums = budgets.iter().map(|budget| {
        let spent = database.store.spent(tenant.clone(), budget.clone());
        let spent = database.read(spent).unwrap_or_default();
        spent.map(|amounts| amounts.money)
    });
    sums.collect()
}

impl BudgetStore for LimitStore {
    fn reserve(
        &self,
        tenant: Tenant,
        id: Str,
        budgets: Vec<SharedBudget>,
        amounts: Amounts,
        lease: Duration,
    ) -> StoreFuture<Result<(), (Str, OverBudget)>> {
        let of = budgets.clone();
        let store = &self.connection.database.store;
        let work = store.reserve(tenant.clone(), id.clone(), budgets, amounts, lease);
        let reserved = self.connection.send(work, move |database, reserved| {
            vec![What::Reserved {
                id: id.to_string(),
                money: amounts.money,
                lease: millis(lease),
                is_granted: reserved.is_ok(),
                sums: sums(database, &tenant, &of),
                tenant: tenant.0.to_string(),
            }]
        });
        self.watch(String::new(), LimitKind::Money, reserved, |reserved| {
            LimitAnswer::Reserved(reserved.is_ok())
        })
    }

    fn settle(&self, tenant: Tenant, id: Str, actual: Amounts) -> StoreFuture<()> {
        let store = &self.connection.database.store;
        let work = store.settle(tenant.clone(), id.clone(), actual);
        let budgets = self.connection.database.budgets.clone();
        self.connection.send(work, move |database, ()| {
            vec![What::Settled {
                id: id.to_string(),
                money: actual.money,
                sums: sums(database, &tenant, &budgets),
                tenant: tenant.0.to_string(),
            }]
        })
    }

    fn extend(&self, tenant: Tenant, budget: SharedBudget, more: Amounts) -> StoreFuture<()> {
        let store = &self.connection.database.store;
        self.connection.ask(store.extend(tenant, budget, more))
    }

    fn spent(&self, tenant: Tenant, budget: SharedBudget) -> StoreFuture<[Amounts; 2]> {
        let store = &self.connection.database.store;
        self.connection.ask(store.spent(tenant, budget))
    }
}

/// Whether an error is one of the limits or their store, which says nothing about a provider.
pub(super) fn is_of_limits(error: &concentric_core::Error) -> bool {
    let source = std::error::Error::source(error);
    error.code() == Some("busy") || source.is_some_and(|source| source.is::<StoreError>())
}
