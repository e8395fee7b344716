use super::{
    RedisStore,
    db::Repeat,
    unknown,
    values::{Call, Method, Of, Reply, escape, span},
};
use crate::columns::{number, position};
use concentric_core::{
    Str,
    store::{
        Amounts, BudgetStore, BudgetWindow, Dimension, OverBudget, Quota, QuotaChange, QuotaStore,
        QuotaTaken, QuotaWant, SharedBudget, StoreError, StoreFuture, Tenant,
    },
};
use std::{sync::Arc, time::Duration};

/// The largest integer that the numbers of the script represent.
const MOST: u64 = 1 << 53;

impl<'a> Call<'a> {
    fn of_limits(of: Of<'a>, method: &'static str) -> Self {
        Self {
            method: Method::Limits(method),
            ..Self::new(of, method)
        }
    }

    fn of_bucket(bucket: &'a str, quota: &Quota, method: &'static str) -> Self {
        let call = Self::of_limits(Of::Bucket(bucket), method).int(span(quota.period()));
        quota.limits().into_iter().fold(call, |call, limit| {
            call.owned(if limit.is_finite() { limit } else { -1.0 }.to_string())
        })
    }

    fn of_budgets(tenant: &'a Tenant, method: &'static str) -> Self {
        let dimensions = Amounts::new().to_array().len();
        Self::of_limits(Of::Tenant(tenant), method).int(position(dimensions))
    }

    fn number(self, value: u64) -> Self {
        self.owned(value.min(MOST).to_string())
    }

    fn numbers(self, values: impl IntoIterator<Item = u64>) -> Self {
        values.into_iter().fold(self, Self::number)
    }

    fn budget(self, budget: &SharedBudget) -> Self {
        let (window, offset) = match budget.window {
            BudgetWindow::Hour => ("hour", 0),
            BudgetWindow::Day { offset } => ("day", offset),
            BudgetWindow::Month { offset } => ("month", offset),
            _ => ("always", 0),
        };
        self.owned(escape(&budget.key()))
            .text(window)
            .int(offset.into())
    }
}

fn expect_ok(reply: &Reply) -> Result<(), StoreError> {
    match reply.code()? {
        "ok" => Ok(()),
        other => Err(unknown(other)),
    }
}

impl QuotaStore for RedisStore {
    fn take(
        &self,
        bucket: Str,
        quota: Quota,
        caller: Str,
        wants: Vec<QuotaWant>,
        ahead: [u64; 3],
    ) -> StoreFuture<QuotaTaken> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_bucket(&bucket, &quota, "quota_take");
            let mut call = call.text(&caller).numbers(ahead).int(position(wants.len()));
            for want in &wants {
                call = call.text(&want.owner).int(position(want.calls.len()));
                call = call.numbers(want.calls.iter().copied().flatten());
            }
            // What a lost call has taken is unused.
            let reply = db.call(call, Repeat::No).await?;
            expect_ok(&reply)?;
            let granted = (3..3 + wants.len()).map(|at| reply.number(at));
            let granted = granted.map(|n| Ok(usize::try_from(n?).unwrap_or(usize::MAX)));
            let granted = granted.collect::<Result<_, StoreError>>()?;
            let wait = Duration::from_micros(reply.number(2)?);
            Ok(QuotaTaken::new(granted, reply.is(1)?, wait))
        })
    }

    fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let mut call = Call::of_bucket(&bucket, &quota, "quota_record");
            call = call.int(position(changes.len()));
            for change in &changes {
                call = of_change(call, change);
            }
            expect_ok(&db.call(call, Repeat::No).await?)
        })
    }

    fn hold(
        &self,
        bucket: Str,
        max: u64,
        (caller, request): (Str, u64),
        used: u64,
        wanted: u64,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_limits(Of::Bucket(&bucket), "permits_hold");
            let call = call
                .text(&caller)
                .numbers([request, max, used, wanted])
                .int(span(lease));
            let reply = db.call(call, Repeat::Yes).await?;
            expect_ok(&reply)?;
            reply.number(1)
        })
    }
}

fn of_change<'a>(call: Call<'a>, change: &QuotaChange) -> Call<'a> {
    match *change {
        QuotaChange::Unused { amounts, age } => {
            let call = call.text("unused");
            amounts.into_iter().fold(call, Call::int).int(span(age))
        }
        QuotaChange::Rejected { retry_after, age } => {
            let retry_after = retry_after.min(QuotaChange::LONGEST_RESET);
            call.text("rejected").int(span(retry_after)).int(span(age))
        }
        QuotaChange::Remaining(rest) => {
            rest.into_iter().fold(call.text("remaining"), |call, rest| {
                let (left, reset) = rest.unwrap_or_default();
                let reset = reset.min(QuotaChange::LONGEST_RESET);
                call.flag(rest.is_some()).int(left).int(span(reset))
            })
        }
        _ => call.text("unused").numbers([0; 4]),
    }
}

impl BudgetStore for RedisStore {
    fn reserve(
        &self,
        tenant: Tenant,
        id: Str,
        budgets: Vec<SharedBudget>,
        amounts: Amounts,
        lease: Duration,
    ) -> StoreFuture<Result<(), (Str, OverBudget)>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_budgets(&tenant, "budget_reserve")
                .text(&id)
                .int(span(lease));
            let mut call = call
                .numbers(amounts.to_array())
                .int(position(budgets.len()));
            for budget in &budgets {
                let limits = budget.limits.to_array().into_iter();
                call = limits.fold(call.budget(budget), |call, limit| match limit {
                    Some(limit) => call.number(limit),
                    None => call.int(-1),
                });
            }
            let reply = db.call(call, Repeat::Yes).await?;
            match reply.code()? {
                "ok" => Ok(Ok(())),
                "over" => {
                    let at = |at| {
                        reply
                            .number(at)
                            .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
                    };
                    let budget = budgets.get(at(1)?).ok_or_else(|| unknown("over"))?;
                    let dimension = Dimension::ALL.get(at(2)?).ok_or_else(|| unknown("over"))?;
                    let [limit, used, wanted] = [3, 4, 5].map(|at| reply.number(at));
                    let over = OverBudget::new(*dimension, limit?, used?, wanted?);
                    Ok(Err((budget.name.clone(), over)))
                }
                other => Err(unknown(other)),
            }
        })
    }

    fn settle(&self, tenant: Tenant, id: Str, actual: Amounts) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_budgets(&tenant, "budget_settle").text(&id);
            let call = call.numbers(actual.to_array());
            expect_ok(&db.call(call, Repeat::Yes).await?)
        })
    }

    fn extend(&self, tenant: Tenant, budget: SharedBudget, more: Amounts) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_budgets(&tenant, "budget_extend").budget(&budget);
            let call = call.numbers(more.to_array());
            expect_ok(&db.call(call, Repeat::No).await?)
        })
    }

    fn spent(&self, tenant: Tenant, budget: SharedBudget) -> StoreFuture<[Amounts; 2]> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of_budgets(&tenant, "budget_spent").budget(&budget);
            let reply = db.call(call, Repeat::Yes).await?;
            expect_ok(&reply)?;
            let mut all = [Amounts::new(); 2];
            let mut at = 1;
            for amounts in &mut all {
                let mut values = amounts.to_array();
                for value in &mut values {
                    *value = number(reply.int(at)?);
                    at += 1;
                }
                *amounts = Amounts::from_array(values);
            }
            Ok(all)
        })
    }
}
