//! Cases of a [`QuotaStore`].

use super::{
    kit::{Numbers, Test, done, rounds, same, seed, since_1970},
    values::{at, secs},
};
use crate::StoreHarness;
use concentric_core::{
    Str,
    store::{PermitState, Quota, QuotaChange, QuotaState, QuotaStore, QuotaTaken, QuotaWant},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

cases! {
    $ __store_quotas quotas [QuotaStore]
    a_period_has_no_more_calls_than_the_quota
    owners_are_served_in_turns
    a_process_that_does_not_ask_again_delays_no_other
    unused_amounts_are_returned
    a_rejected_call_closes_the_bucket_for_all
    the_limits_of_a_provider_are_followed
    a_clock_that_steps_back_frees_nothing
    buckets_are_separate
    permits_are_divided_and_end_with_their_leases
    processes_take_no_more_than_the_quota_at_the_same_time
    random_calls_equal_the_reference
}

trait WithQuotas: StoreHarness<Store: QuotaStore> {}

impl<H: StoreHarness<Store: QuotaStore>> WithQuotas for H {}

const ONE: [u64; 3] = [1, 0, 0];

fn per_second(requests: u64) -> Quota {
    Quota::per(secs(1)).requests(requests)
}

fn wants(owner: &str, calls: usize) -> Vec<QuotaWant> {
    vec![QuotaWant::new(owner.to_owned(), vec![ONE; calls])]
}

async fn take<S: QuotaStore>(
    store: &S,
    quota: Quota,
    caller: &str,
    wants: Vec<QuotaWant>,
) -> QuotaTaken {
    let caller = caller.to_owned().into();
    done(
        store
            .take("bucket".into(), quota, caller, wants, [0; 3])
            .await,
        "`take`",
    )
}

async fn granted<S: QuotaStore>(
    store: &S,
    quota: Quota,
    caller: &str,
    owner: &str,
    calls: usize,
) -> usize {
    let taken = take(store, quota, caller, wants(owner, calls)).await;
    taken.granted.iter().sum()
}

async fn record<S: QuotaStore>(store: &S, quota: Quota, change: QuotaChange) {
    done(
        store.record("bucket".into(), quota, vec![change]).await,
        "`record`",
    );
}

fn unused(amounts: [i64; 3]) -> QuotaChange {
    QuotaChange::Unused {
        amounts,
        age: Duration::ZERO,
    }
}

impl<H: StoreHarness> Test<H> {
    fn set_millis(&self, millis: u64) {
        self.clock.set(at(0) + Duration::from_millis(millis));
    }
}

async fn a_period_has_no_more_calls_than_the_quota<H: WithQuotas>(test: Test<H>) {
    let (store, other) = (&test.store, test.harness.open().await);
    let quota = per_second(10);
    same(
        granted(store, quota, "a", "x", 4).await,
        4,
        "the calls of a new bucket that begin",
    );
    test.set_millis(500);
    let taken = take(&other, quota, "b", wants("x", 9)).await;
    let expected = QuotaTaken::new(vec![6], false, Duration::from_millis(500));
    same(
        taken,
        expected,
        "the calls of another process, and their wait,",
    );
    test.set_millis(999);
    same(
        granted(&other, quota, "b", "x", 3).await,
        0,
        "the calls that begin before the period is over",
    );
    test.harness.purge().await;
    test.set_millis(1_000);
    same(
        granted(&other, quota, "b", "x", 9).await,
        4,
        "the calls that begin when a period is over",
    );
    test.set_millis(1_500);
    same(
        granted(store, quota, "a", "x", 9).await,
        0,
        "the calls that begin when it is the turn of another process",
    );
    same(
        granted(&other, quota, "b", "x", 5).await,
        1,
        "the calls that waited, of the eighth of the quota that begins at once while two processes wait",
    );
    for _ in 0..2 {
        let none = store.take(
            "none".into(),
            per_second(0),
            "a".into(),
            wants("x", 1),
            [0; 3],
        );
        same(
            done(none.await, "`take`").granted,
            vec![0],
            "the calls of a quota of none",
        );
    }
}

async fn owners_are_served_in_turns<H: WithQuotas>(test: Test<H>) {
    let other = test.harness.open().await;
    let quota = per_second(20);
    let first = granted(&test.store, quota, "a", "many", 20).await;
    same(first, 20, "the first calls");
    // One owner waits with many calls in two processes, and another one with few in one of them.
    let waits = take(&other, quota, "b", wants("few", 3)).await;
    same(waits.granted, vec![0], "the calls of another owner");
    let (mut many, mut few) = (0, 0);
    for step in 0..=20 {
        test.set_millis(1_000 + 50 * step);
        many += granted(&test.store, quota, "a", "many", 64).await;
        let both = vec![
            QuotaWant::new("many", vec![ONE; 40]),
            QuotaWant::new("few", vec![ONE; 3]),
        ];
        let taken = take(&other, quota, "b", both).await;
        many += taken.granted.first().copied().unwrap_or_default();
        few += taken.granted.get(1).copied().unwrap_or_default();
    }
    // Those of a second, and an eighth that may begin at once.
    let what =
        format!("that {many} and {few} calls of two owners are almost all of 22, and equal,");
    let is_fair = (20..=22).contains(&(many + few)) && many.abs_diff(few) <= 2;
    same(is_fair, true, what);
}

async fn a_process_that_does_not_ask_again_delays_no_other<H: WithQuotas>(test: Test<H>) {
    let quota = per_second(4);
    same(
        granted(&test.store, quota, "a", "x", 4).await,
        4,
        "the first calls",
    );
    let dead = take(&test.store, quota, "dead", wants("y", 4)).await;
    same(dead.wait, secs(1), "the wait of a process that dies");
    test.set_millis(1_000);
    same(
        granted(&test.store, quota, "a", "x", 4).await,
        0,
        "the calls that begin before those of a process in time",
    );
    test.set_millis(1_500);
    same(
        granted(&test.store, quota, "a", "x", 4).await,
        2,
        "the calls that begin at an even rate when the other process has not asked",
    );
}

async fn unused_amounts_are_returned<H: WithQuotas>(test: Test<H>) {
    let quota = Quota::per(secs(60)).input_tokens(1_000);
    let call = |tokens| vec![QuotaWant::new("x", vec![[1, tokens, 0]])];
    let store = &test.store;
    let begins = async |tokens| take(store, quota, "a", call(tokens)).await.granted == [1];
    same(begins(900).await, true, "that a call begins");
    same(
        begins(200).await,
        false,
        "that a call begins beyond the quota",
    );
    record(store, quota, unused([0, 800, 0])).await;
    same(
        begins(900).await,
        true,
        "that a call begins after tokens were returned",
    );
    record(store, quota, unused([0, 500, 0])).await;
    record(store, quota, unused([0, -400, 0])).await;
    same(
        begins(200).await,
        false,
        "that a call begins after tokens were used beyond the estimate",
    );
    test.set(60);
    same(
        begins(1_000).await,
        true,
        "that a call begins after the period",
    );
    test.set(90);
    // Of a call whose period is over.
    let late = QuotaChange::Unused {
        amounts: [0, 1_000, 0],
        age: secs(80),
    };
    record(store, quota, late).await;
    same(
        begins(10).await,
        false,
        "that a call begins after tokens of an earlier period were returned",
    );
}

async fn a_rejected_call_closes_the_bucket_for_all<H: WithQuotas>(test: Test<H>) {
    let other = test.harness.open().await;
    let quota = per_second(8);
    same(
        granted(&test.store, quota, "a", "x", 2).await,
        2,
        "the first calls",
    );
    let rejected = |millis| QuotaChange::Rejected {
        retry_after: secs(3),
        age: Duration::from_millis(millis),
    };
    test.set_millis(50);
    record(&test.store, quota, rejected(50)).await;
    test.set_millis(100);
    // It was under way at the same time.
    record(&test.store, quota, rejected(100)).await;
    test.set_millis(2_900);
    same(
        granted(&other, quota, "b", "x", 1).await,
        0,
        "the calls of another process while the bucket is closed",
    );
    let taken = take(&other, quota, "b", wants("x", 1)).await;
    same(
        taken.wait,
        Duration::from_millis(200),
        "the wait until the bucket opens",
    );
    test.set_millis(3_100);
    // Half, and a tenth more for each of 3.05 periods.
    same(
        granted(&other, quota, "b", "x", 9).await,
        6,
        "the calls after that",
    );
    test.set(10);
    same(
        granted(&other, quota, "b", "x", 9).await,
        8,
        "the calls after the quota has recovered",
    );
    // More calls wait than are examined at once, and all of them fit.
    let many = Quota::per(secs(60)).requests(30_000);
    let closed = test.store.record("many".into(), many, vec![rejected(0)]);
    done(closed.await, "`record`");
    let ask = async |caller: &'static str| {
        let calls = ["w", "x", "y", "z"].map(|owner| QuotaWant::new(owner, vec![ONE; 20]));
        let taken = test
            .store
            .take("many".into(), many, caller.into(), calls.into(), [0; 3]);
        done(taken.await, "`take`")
    };
    test.set_millis(12_900);
    for caller in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        same(
            ask(caller).await.granted,
            vec![0; 4],
            "the calls of a closed bucket",
        );
    }
    test.set_millis(13_100);
    let taken = ask("1").await;
    same(
        (taken.granted.iter().sum::<usize>() > 0, taken.wait),
        (true, Duration::from_millis(10)),
        "whether calls begin, and the wait of the others,",
    );
}

async fn the_limits_of_a_provider_are_followed<H: WithQuotas>(test: Test<H>) {
    let quota = per_second(100);
    let mut rest = [None; 4];
    rest[0] = Some((2, secs(30)));
    record(&test.store, quota, QuotaChange::Remaining(rest)).await;
    same(
        granted(&test.store, quota, "a", "x", 9).await,
        2,
        "the calls of which a provider has two left",
    );
    let taken = take(&test.store, quota, "a", wants("x", 9)).await;
    same(
        taken.wait,
        secs(1),
        "the wait for the time of the reset, at most a second,",
    );
    test.set(30);
    same(
        granted(&test.store, quota, "a", "x", 9).await,
        9,
        "the calls after the reset",
    );
}

async fn a_clock_that_steps_back_frees_nothing<H: WithQuotas>(test: Test<H>) {
    let quota = per_second(5);
    test.set(100);
    same(
        granted(&test.store, quota, "a", "x", 5).await,
        5,
        "the first calls",
    );
    for seconds in [0, 50, 100] {
        test.set(seconds);
        let what = format!("the calls at {seconds} s, after those at 100 s,");
        same(granted(&test.store, quota, "a", "x", 5).await, 0, what);
    }
    test.set(101);
    same(
        granted(&test.store, quota, "a", "x", 5).await,
        5,
        "the calls after the period",
    );
}

async fn buckets_are_separate<H: WithQuotas>(test: Test<H>) {
    let quota = per_second(1);
    for bucket in ["", "a", "a:b", "a/b", "{a}", "漢字 'x' %", "A"] {
        let taken = test
            .store
            .take(bucket.into(), quota, "p".into(), wants("x", 2), [0; 3]);
        same(
            done(taken.await, "`take`").granted,
            vec![1],
            format!("the calls of the new bucket `{bucket}`"),
        );
        let held = test
            .store
            .hold(bucket.into(), 1, ("p".into(), 1), 0, 5, secs(60))
            .await;
        same(
            done(held, "`hold`"),
            1,
            format!("the permits of the new bucket `{bucket}`"),
        );
    }
}

async fn permits_are_divided_and_end_with_their_leases<H: WithQuotas>(test: Test<H>) {
    let other = test.harness.open().await;
    let requests = AtomicU64::new(0);
    let hold = async |store: &H::Store, caller: &'static str, used, wanted| {
        let caller = (caller.into(), requests.fetch_add(1, Ordering::Relaxed) + 1);
        let held = store.hold("bucket".into(), 10, caller, used, wanted, secs(30));
        done(held.await, "`hold`")
    };
    same(
        hold(&test.store, "a", 0, 20).await,
        10,
        "the permits of the first process",
    );
    same(hold(&other, "b", 0, 20).await, 0, "those of another one");
    same(
        hold(&test.store, "a", 10, 20).await,
        5,
        "those of the first one, which uses more",
    );
    same(
        hold(&other, "b", 0, 20).await,
        0,
        "those of the other one while all are used",
    );
    same(
        hold(&test.store, "a", 6, 20).await,
        5,
        "those of the first one, which has given some up",
    );
    same(hold(&other, "b", 0, 20).await, 4, "those that are free");
    same(
        hold(&other, "b", 1, 1).await,
        1,
        "those of a process that wants one",
    );
    same(
        hold(&test.store, "a", 5, 20).await,
        9,
        "those that no other one wants",
    );
    test.set(29);
    same(
        hold(&other, "b", 1, 5).await,
        1,
        "those of a process while the other one holds the rest",
    );
    test.harness.purge().await;
    test.set(30);
    same(
        hold(&other, "b", 1, 20).await,
        10,
        "those of a process after the lease of the other one",
    );
    same(
        hold(&other, "b", 0, 0).await,
        0,
        "those of a process that wants none",
    );
    same(
        hold(&test.store, "a", 0, 20).await,
        10,
        "those of a process that asks again",
    );
    // More processes than permits.
    let one = async |caller: &'static str, wanted| {
        let caller = (caller.into(), requests.fetch_add(1, Ordering::Relaxed) + 1);
        let held = test
            .store
            .hold("one".into(), 1, caller, 0, wanted, secs(30));
        done(held.await, "`hold`")
    };
    let mut turns = [0; 3];
    for second in 30..60 {
        test.set(second);
        for _ in 0..2 {
            let mut sum = 0;
            for (caller, turns) in ["a", "b", "c"].into_iter().zip(&mut turns) {
                let held = one(caller, 1).await;
                sum += held;
                *turns += held;
            }
            same(sum <= 1, true, "that one process has the only permit");
        }
    }
    same(
        turns.iter().all(|it| *it >= 10),
        true,
        format!("that each process has the only permit in turn, not {turns:?},"),
    );
    for caller in ["b", "c"] {
        same(
            one(caller, 0).await,
            0,
            "the permits of a process that wants none",
        );
    }
    same(one("a", 1).await, 1, "those of the last one");
    test.set(30);
    requests.store(0, Ordering::Relaxed);
    same(
        hold(&test.store, "a", 0, 1).await,
        0,
        "those of a request that arrives after a later one of its process",
    );
    requests.store(100, Ordering::Relaxed);
    same(
        hold(&other, "b", 0, 20).await,
        0,
        "those of another process after that",
    );
    // The process has given up all of them.
    same(
        hold(&test.store, "a", 0, 0).await,
        0,
        "those of a process that wants none",
    );
    requests.store(0, Ordering::Relaxed);
    same(
        hold(&test.store, "a", 0, 1).await,
        0,
        "those of a late request of a process that wants none",
    );
    requests.store(200, Ordering::Relaxed);
    same(
        hold(&other, "b", 0, 20).await,
        10,
        "those of another process after that request",
    );
}

async fn processes_take_no_more_than_the_quota_at_the_same_time<H: WithQuotas>(test: Test<H>) {
    for round in 0..rounds() {
        let bucket: Str = format!("bucket {round}").into();
        let mut tasks = Vec::new();
        for n in 0..8 {
            let store = test.harness.open().await;
            let (bucket, caller) = (bucket.clone(), format!("{n}").into());
            tasks.push(tokio::spawn(async move {
                store
                    .take(bucket, per_second(10), caller, wants("x", 3), [0; 3])
                    .await
            }));
        }
        let mut sum = 0;
        for task in tasks {
            let taken = task.await.ok().and_then(Result::ok).unwrap_or_default();
            sum += taken.granted.iter().sum::<usize>();
        }
        // Of the last call, a part may be set aside for a process that has asked before.
        same(
            (8..=10).contains(&sum),
            true,
            format!("that 8 processes take 8 to 10 calls of 10, not {sum},"),
        );
    }
}

async fn random_calls_equal_the_reference<H: WithQuotas>(test: Test<H>) {
    let stores = [test.harness.open().await, test.harness.open().await];
    let mut now = at(1_000);
    for n in 0..rounds() {
        let seed = seed() + n;
        let random = Numbers::new(seed);
        let bucket: Str = format!("bucket {seed}").into();
        let mut quota = Quota::per(secs(1 + random.below(3))).requests(20);
        if random.below(2) == 0 {
            quota = quota.input_tokens(1_000).output_tokens(500);
        }
        let (mut state, mut permits) = (QuotaState::default(), PermitState::default());
        // Of three processes.
        let max = 1 + random.below(10);
        for step in 0..80 {
            now += Duration::from_micros(random.below(400_000));
            test.clock.set(now);
            let at = since_1970(now);
            let what = format!("of seed {seed}, step {step}");
            let store = stores
                .get(usize::from(random.below(2) == 0))
                .unwrap_or(&test.store);
            let caller = format!("p{}", random.below(3));
            match random.below(8) {
                0 => {
                    let changes = change(&random);
                    done(
                        store.record(bucket.clone(), quota, vec![changes]).await,
                        "`record`",
                    );
                    state.record(&quota, &changes, at);
                }
                1 => {
                    let (request, used, wanted) =
                        (random.below(3), random.below(4), random.below(9));
                    let lease = secs(1 + random.below(4));
                    let held = store.hold(
                        bucket.clone(),
                        max,
                        (caller.clone().into(), request),
                        used,
                        wanted,
                        lease,
                    );
                    let expected = permits.hold(max, (&caller, request), used, wanted, lease, at);
                    same(
                        done(held.await, "`hold`"),
                        expected,
                        format!("the permits {what}"),
                    );
                }
                _ => {
                    let owners = 1 + random.below(2);
                    let call = |_| [1, random.below(200), random.below(100)];
                    let wants: Vec<_> = (0..owners)
                        .map(|n| (format!("o{}", n + random.below(2)), random.below(8)))
                        .map(|(owner, calls)| QuotaWant::new(owner, (0..calls).map(call).collect()))
                        .collect();
                    let ahead = [random.below(3), 0, random.below(2) * 50];
                    let taken = store.take(
                        bucket.clone(),
                        quota,
                        caller.clone().into(),
                        wants.clone(),
                        ahead,
                    );
                    let taken = done(taken.await, "`take`");
                    let expected = state.take(&quota, &caller, &wants, ahead, at);
                    same(taken, expected, format!("the calls {what}"));
                }
            }
        }
    }
}

fn change(random: &Numbers) -> QuotaChange {
    let signed = |n: u64| {
        i64::try_from(random.below(n)).unwrap_or_default()
            - i64::try_from(n / 3).unwrap_or_default()
    };
    let age = Duration::from_millis(random.below(2_000));
    match random.below(4) {
        0 => QuotaChange::Rejected {
            retry_after: Duration::from_millis(random.below(300)),
            age,
        },
        1 => {
            let rest = [(); 4].map(|()| (random.below(2) == 0).then(|| (signed(30), age / 4)));
            QuotaChange::Remaining(rest)
        }
        _ => QuotaChange::Unused {
            amounts: [signed(2), signed(200), signed(100)],
            age,
        },
    }
}
