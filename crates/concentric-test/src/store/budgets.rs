//! Cases of a [`BudgetStore`].

#![expect(
    clippy::indexing_slicing,
    reason = "arrays with an entry for each case"
)]

use super::{
    kit::{Numbers, Test, done, rounds, same, seed, since_1970},
    values::{at, secs, tenant},
};
use crate::StoreHarness;
use concentric_core::{
    Str,
    store::{
        Amounts, BudgetState, BudgetStore, BudgetWindow, Dimension, Limits, OverBudget,
        SharedBudget, Tenant,
    },
};
use std::time::Duration;

cases! {
    $ __store_budgets budgets [BudgetStore]
    all_budgets_are_reserved_or_none
    a_reservation_is_settled_once
    a_reservation_of_a_dead_process_is_charged_in_full
    a_window_begins_anew
    an_extension_raises_the_limits
    tenants_do_not_share_budgets
    processes_reserve_no_more_than_the_limit_at_the_same_time
    random_reservations_equal_the_reference
}

trait WithBudgets: StoreHarness<Store: BudgetStore> {}

impl<H: StoreHarness<Store: BudgetStore>> WithBudgets for H {}

fn budget(name: &'static str, money: u64) -> SharedBudget {
    SharedBudget::new(name, Limits::new().money(money))
}

fn money(money: u64) -> Amounts {
    Amounts::new().money(money)
}

fn acme() -> Tenant {
    tenant("acme")
}

type Reserved = Result<(), (Str, OverBudget)>;

async fn reserve<S: BudgetStore>(
    store: &S,
    id: &str,
    budgets: &[SharedBudget],
    amounts: Amounts,
) -> Reserved {
    let id = id.to_owned().into();
    done(
        store
            .reserve(acme(), id, budgets.to_vec(), amounts, secs(60))
            .await,
        "`reserve`",
    )
}

async fn settle<S: BudgetStore>(store: &S, id: &str, actual: Amounts) {
    done(
        store.settle(acme(), id.to_owned().into(), actual).await,
        "`settle`",
    );
}

/// The money that is spent and reserved.
async fn spent<S: BudgetStore>(store: &S, budget: &SharedBudget) -> (u64, u64) {
    let [spent, reserved] = done(store.spent(acme(), budget.clone()).await, "`spent`");
    (spent.money, reserved.money)
}

async fn all_budgets_are_reserved_or_none<H: WithBudgets>(test: Test<H>) {
    let other = test.harness.open().await;
    let all = [budget("tenant", 100), budget("key", 70)];
    same(
        reserve(&test.store, "1", &all, money(60)).await.is_ok(),
        true,
        "that a call fits",
    );
    let over = reserve(&other, "2", &all, money(20)).await;
    let expected = OverBudget::new(Dimension::Money, 70, 60, 20);
    same(
        over,
        Err(("key".into(), expected)),
        "the budget that another call does not fit",
    );
    same(
        spent(&other, &all[0]).await,
        (0, 60),
        "the outer budget after that",
    );
    same(
        reserve(&other, "2", &all, money(10)).await.is_ok(),
        true,
        "that a smaller call fits",
    );
    let over = reserve(&other, "3", &all, money(50))
        .await
        .err()
        .map(|(name, _)| name);
    same(
        over,
        Some("tenant".into()),
        "the first budget that a call does not fit",
    );
    let large = u64::MAX - 5;
    let over = reserve(&other, "4", &all, money(large)).await.is_err();
    same(over, true, "that the largest amount does not fit");
    let free = [SharedBudget::new("free", Limits::new())];
    same(
        reserve(&other, "5", &free, money(large)).await.is_ok(),
        true,
        "that it fits a budget without limits",
    );
}

async fn a_reservation_is_settled_once<H: WithBudgets>(test: Test<H>) {
    let all = [budget("b", 100)];
    same(
        reserve(&test.store, "1", &all, money(60)).await.is_ok(),
        true,
        "that a call fits",
    );
    same(
        reserve(&test.store, "1", &all, money(60)).await.is_ok(),
        true,
        "that a repetition reserves nothing else",
    );
    same(
        spent(&test.store, &all[0]).await,
        (0, 60),
        "the budget after a repetition",
    );
    for _ in 0..2 {
        settle(&test.store, "1", money(25)).await;
        same(
            spent(&test.store, &all[0]).await,
            (25, 0),
            "the budget after a settlement",
        );
    }
    for _ in 0..2 {
        settle(&test.store, "late", money(25)).await;
    }
    same(
        reserve(&test.store, "late", &all, money(60)).await.is_ok(),
        true,
        "that a request that arrives after its settlement is answered",
    );
    same(
        spent(&test.store, &all[0]).await,
        (25, 0),
        "the budget after that",
    );
    test.set(120);
    test.harness.purge().await;
    same(
        spent(&test.store, &all[0]).await,
        (25, 0),
        "the budget after the end of the lease",
    );
    same(
        reserve(&test.store, "2", &all, money(75)).await.is_ok(),
        true,
        "that the rest can be reserved",
    );
    settle(&test.store, "2", money(100)).await;
    same(
        spent(&test.store, &all[0]).await,
        (125, 0),
        "the budget after more was used than reserved",
    );
}

async fn a_reservation_of_a_dead_process_is_charged_in_full<H: WithBudgets>(test: Test<H>) {
    let all = [budget("tenant", 1_000), budget("key", 1_000)];
    for n in 0..100 {
        let reserved = reserve(&test.store, &n.to_string(), &all, money(7)).await;
        same(reserved.is_ok(), true, "that a call fits");
    }
    let other = test.harness.open().await;
    test.set(59);
    same(
        spent(&other, &all[0]).await,
        (0, 700),
        "the budget before the end of the leases",
    );
    test.set(60);
    for budget in &all {
        same(
            spent(&other, budget).await,
            (700, 0),
            "a budget after the end of the leases",
        );
    }
    // It was stopped, and continues.
    test.set(61);
    settle(&test.store, "0", money(2)).await;
    settle(&test.store, "0", money(2)).await;
    settle(&test.store, "1", money(10)).await;
    test.harness.purge().await;
    same(
        spent(&other, &all[1]).await,
        (698, 0),
        "the budget after late settlements",
    );
    test.set(60 + 60 * 60);
    settle(&test.store, "2", money(2)).await;
    same(
        spent(&other, &all[1]).await,
        (698, 0),
        "the budget after a settlement that is more than an hour late",
    );
}

async fn a_window_begins_anew<H: WithBudgets>(test: Test<H>) {
    // 1_700_000_000 is 2023-11-14 22:13:20 UTC.
    let of = |name, window| budget(name, 100).per(window);
    let day = of("b", BudgetWindow::Day { offset: 0 });
    let early_day = of("b", BudgetWindow::Day { offset: 120 });
    let hour = of("b", BudgetWindow::Hour);
    let month = of("b", BudgetWindow::Month { offset: 0 });
    let all = [day, early_day, hour, month, budget("b", 100)];
    same(
        reserve(&test.store, "1", &all, money(10)).await.is_ok(),
        true,
        "that a call fits",
    );
    settle(&test.store, "1", money(10)).await;
    for (seconds, expected) in [
        (6_399, [10, 10, 0, 10, 10]),
        (3_600, [10, 10, 10, 10, 10]),
        (3_700, [10, 10, 0, 10, 10]),
        (6_400, [0, 10, 0, 10, 10]),
        // The day of UTC+2 ends at 22:00 UTC.
        (85_600, [0, 0, 0, 10, 10]),
        // The end of November.
        (1_388_799, [0, 0, 0, 10, 10]),
        (1_388_800, [0, 0, 0, 0, 10]),
    ] {
        test.set(seconds);
        let mut found = Vec::new();
        for budget in &all {
            found.push(spent(&test.store, budget).await.0);
        }
        same(
            found,
            expected.to_vec(),
            format!(
                "the spending after {seconds} s by day, by another day, in an hour, by month and always,"
            ),
        );
    }
    // The spending of a call counts in the window in which it began.
    let day = &all[..1];
    same(
        reserve(&test.store, "2", day, money(40)).await.is_ok(),
        true,
        "that a call fits",
    );
    test.set(1_388_800 + 24 * 60 * 60);
    settle(&test.store, "2", money(40)).await;
    same(
        spent(&test.store, &all[0]).await,
        (0, 0),
        "the day after that of a call",
    );
}

async fn an_extension_raises_the_limits<H: WithBudgets>(test: Test<H>) {
    let all = [budget("b", 100).per(BudgetWindow::Day { offset: 0 })];
    same(
        reserve(&test.store, "1", &all, money(120)).await.is_ok(),
        false,
        "that a large call fits",
    );
    done(
        test.store.extend(acme(), all[0].clone(), money(50)).await,
        "`extend`",
    );
    same(
        reserve(&test.store, "1", &all, money(120)).await.is_ok(),
        true,
        "that it fits after an extension",
    );
    test.set(24 * 60 * 60);
    same(
        reserve(&test.store, "2", &all, money(120)).await.is_ok(),
        false,
        "that it fits on the next day",
    );
}

async fn tenants_do_not_share_budgets<H: WithBudgets>(test: Test<H>) {
    let all = vec![budget("b", 100)];
    for of in ["acme", "other", "", "acme:lb", "{acme}"] {
        for (id, fits) in [("1", true), ("2", false)] {
            let reserved =
                test.store
                    .reserve(tenant(of), id.into(), all.clone(), money(60), secs(60));
            let what = format!("that the call {id} of the tenant `{of}` fits");
            same(done(reserved.await, "`reserve`").is_ok(), fits, what);
        }
    }
    done(
        test.store
            .settle(tenant("other"), "1".into(), money(1))
            .await,
        "`settle`",
    );
    same(
        spent(&test.store, &all[0]).await,
        (0, 60),
        "the budget after a settlement of another tenant",
    );
}

async fn processes_reserve_no_more_than_the_limit_at_the_same_time<H: WithBudgets>(test: Test<H>) {
    for round in 0..rounds() {
        let name: Str = format!("b{round}").into();
        let limits = Limits::new().model_calls(10);
        let mut tasks = Vec::new();
        for n in 0..20 {
            let store = test.harness.open().await;
            let budgets = vec![SharedBudget::new(name.clone(), limits)];
            let id = format!("{round} {n}").into();
            let call = Amounts::new().model_calls(1);
            tasks.push(tokio::spawn(async move {
                store.reserve(acme(), id, budgets, call, secs(60)).await
            }));
        }
        let mut sum = 0;
        for task in tasks {
            sum += usize::from(
                task.await
                    .is_ok_and(|reserved| matches!(reserved, Ok(Ok(())))),
            );
        }
        same(
            sum,
            10,
            "the number of calls that 20 processes reserve of 10",
        );
    }
}

async fn random_reservations_equal_the_reference<H: WithBudgets>(test: Test<H>) {
    let mut now = at(1_000);
    for n in 0..rounds() {
        let seed = seed() + n;
        let random = Numbers::new(seed);
        let of: Tenant = Tenant(format!("tenant {seed}").into());
        let windows = [
            BudgetWindow::Always,
            BudgetWindow::Hour,
            BudgetWindow::Day { offset: -300 },
            BudgetWindow::Month { offset: 60 },
        ];
        let budgets: Vec<_> = windows
            .into_iter()
            .enumerate()
            .map(|(n, window)| {
                let limits = Limits::new().money(500 + 100 * n as u64).model_calls(40);
                SharedBudget::new(format!("b{n}"), limits).per(window)
            })
            .collect();
        let mut state = BudgetState::default();
        for step in 0..80 {
            let longest = match random.below(40) {
                0 => 90_000_000,
                1 | 2 => 4_000_000,
                _ => 2_000,
            };
            now += Duration::from_millis(random.below(longest));
            test.clock.set(now);
            let at = since_1970(now);
            let what = format!("of seed {seed}, step {step}");
            let id = format!("r{}", random.below(12));
            let amounts = money(random.below(120)).model_calls(random.below(2));
            let some: Vec<_> = budgets
                .iter()
                .filter(|_| random.below(2) == 0)
                .cloned()
                .collect();
            match random.below(6) {
                0 => {
                    let budget = &budgets[usize::try_from(random.below(4)).unwrap_or_default()];
                    done(
                        test.store
                            .extend(of.clone(), budget.clone(), money(30))
                            .await,
                        "`extend`",
                    );
                    state.extend(budget, money(30), at);
                }
                1 | 2 => {
                    let settled = test.store.settle(of.clone(), id.clone().into(), amounts);
                    done(settled.await, "`settle`");
                    state.settle(&id, amounts, at);
                }
                _ => {
                    let lease = secs(random.below(30));
                    let reserved = test.store.reserve(
                        of.clone(),
                        id.clone().into(),
                        some.clone(),
                        amounts,
                        lease,
                    );
                    let reserved = done(reserved.await, "`reserve`");
                    let expected = state.reserve(&id, &some, amounts, lease, at);
                    same(reserved, expected, format!("the reservation {what}"));
                }
            }
            for budget in &budgets {
                let found = done(
                    test.store.spent(of.clone(), budget.clone()).await,
                    "`spent`",
                );
                same(
                    found,
                    state.spent(budget, at),
                    format!("the budget `{}` {what}", budget.name),
                );
            }
        }
    }
}
