//! Cases of a [`RunStore`](concentric_core::store::RunStore): leases, takeovers, quarantine and cancellation.

use super::{
    kit::{Runs, Test, done, fails, names, same, same_run},
    values::{approve, at, client, key, running, secs, tenant, thread},
};
use concentric_core::store::{MAX_TAKEOVERS, Renewed, RunRecord, RunStatus, RunStore};
use std::time::Duration;

cases! {
    $ __store_leases leases [RunStore]
    a_lease_of_no_time_is_over_at_once
    the_longest_lease_lasts_for_a_hundred_years
    a_clock_that_steps_back_hands_over_no_run
    a_clock_that_steps_back_loses_no_run
    abandoned_runs_are_claimed_by_the_end_of_their_leases
    abandoned_runs_of_all_tenants_are_claimed
    an_abandoned_run_is_claimed_by_one_process
    a_given_up_claim_is_abandoned_at_once
    a_claim_after_an_expired_lease_is_a_takeover
    a_run_is_quarantined_after_five_takeovers
    the_last_owner_before_quarantine_may_write
    a_write_resets_takeovers
    a_suspension_resets_takeovers
    giving_up_a_claim_resets_takeovers
    a_renewal_does_not_reset_takeovers
    a_released_run_is_claimed_again
    only_quarantined_runs_are_released
    a_cancellation_is_seen_by_each_renewal
    a_cancellation_is_kept_for_a_takeover
    a_suspension_forgets_a_cancellation
    only_driven_and_abandoned_runs_are_cancelled
}

impl<H: Runs> Test<H> {
    async fn claim_abandoned(&self, limit: usize, lease: Duration) -> Vec<RunRecord> {
        let claimed = self.store.claim_abandoned(limit, lease).await;
        done(claimed, format!("`claim_abandoned` of at most {limit}"))
    }

    async fn renew(&self, run: &str, fence: u64, lease: Duration) -> Renewed {
        let renewed = self.store.renew(key(run), fence, lease).await;
        done(renewed, "`renew` with the newest fence")
    }

    async fn takeovers(&self, run: &str) -> u32 {
        self.get(run).await.takeovers
    }

    /// Takes a run `times` over, whose lease has expired, and lets the lease expire each time. Returns the last
    /// fence.
    async fn take_over(&self, run: &str, times: u32) -> u64 {
        let mut fence = 0;
        for n in 1..=times {
            let claimed = done(self.claim(run, secs(0)).await, format!("takeover {n}"));
            fence = claimed.fence;
        }
        fence
    }

    async fn cancel(&self, run: &str) -> bool {
        done(self.store.cancel(key(run)).await, "`cancel`")
    }

    async fn release(&self, run: &str) -> bool {
        done(self.store.release(key(run)).await, "`release`")
    }
}

async fn a_lease_of_no_time_is_over_at_once<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(0)).await;
    let record = test.get("run").await;
    let what = "the status and lease after `begin` for no time";
    same(
        (record.status, record.lease_until),
        (RunStatus::Abandoned, at(0)),
        what,
    );
    // No other process has claimed the run, so its owner may still write.
    let saved = test
        .store
        .save(key("run"), fence, running("2").into(), secs(0));
    done(saved.await, "`save` for no time");
    same(
        test.status("run").await,
        RunStatus::Abandoned,
        "the status after `save` for no time",
    );
    let claimed = done(test.claim("run", secs(0)).await, "`claim` for no time");
    same_run(
        &test.get("run").await,
        &claimed,
        "a run claimed for no time",
    );
    let claimed = test.claim_abandoned(9, secs(0)).await;
    same(
        names(&claimed),
        ["run"],
        "the runs that `claim_abandoned` for no time returns",
    );
    same(
        test.status("run").await,
        RunStatus::Abandoned,
        "the status after a claim for no time",
    );
}

async fn the_longest_lease_lasts_for_a_hundred_years<H: Runs>(test: Test<H>) {
    let year = 365 * 24 * 60 * 60;
    let fence = test.begin("run", Duration::MAX).await;
    for (lease, what) in [
        (Duration::MAX, "`renew`"),
        (secs(u64::MAX / 2), "`renew` for ages"),
    ] {
        let renewed = test.renew("run", fence, lease).await;
        same(
            renewed,
            Renewed::Held,
            format!("the result of {what} without end"),
        );
        let until = test.get("run").await.lease_until;
        let is_long = until >= at(99 * year) && until <= at(101 * year);
        same(
            is_long,
            true,
            format!("that a lease of {lease:?} lasts for 100 years ({until:?})"),
        );
    }
    test.set(99 * year);
    same(
        test.status("run").await,
        RunStatus::Running,
        "the status after 99 years",
    );
    same(
        test.claim_abandoned(9, secs(30)).await,
        [],
        "the abandoned runs after 99 years",
    );
    test.set(101 * year);
    same(
        test.status("run").await,
        RunStatus::Abandoned,
        "the status after 101 years",
    );
}

async fn a_clock_that_steps_back_hands_over_no_run<H: Runs>(test: Test<H>) {
    test.set(1_000);
    let fence = test.begin("run", secs(30)).await;
    for now in [1_010, 0, 500, 1_029] {
        test.set(now);
        let what = format!("at {now} s, before the end of the lease at 1,030 s");
        same(
            test.status("run").await,
            RunStatus::Running,
            format!("the status {what}"),
        );
        let claim = test.claim("run", secs(30)).await;
        fails(claim, "already_resumed", format!("`claim` {what}"));
        same(
            test.claim_abandoned(9, secs(30)).await,
            [],
            format!("the abandoned runs {what}"),
        );
    }
    // A renewal counts from the time of the store, also if that is earlier.
    test.set(0);
    same(
        test.renew("run", fence, secs(30)).await,
        Renewed::Held,
        "the result of `renew`",
    );
    test.set(29);
    let claim = test.claim("run", secs(30)).await;
    fails(
        claim,
        "already_resumed",
        "`claim` before the end of a lease renewed at an earlier time",
    );
    test.set(30);
    done(
        test.claim("run", secs(30)).await,
        "`claim` at the end of the renewed lease",
    );
}

async fn a_clock_that_steps_back_loses_no_run<H: Runs>(test: Test<H>) {
    test.set(100_000);
    let waits = test.waiting("waits", "q").await;
    let fence = test.begin("over", secs(30)).await;
    test.end("over", fence).await;
    let driven = test.begin("driven", secs(30)).await;
    for now in [0, 100_000, 50_000] {
        test.set(now);
        test.harness.purge().await;
        for (run, status) in [
            ("waits", RunStatus::Suspended),
            ("over", RunStatus::Ended),
            ("driven", RunStatus::Running),
        ] {
            let what = format!("the status of the run `{run}` after the clock stepped to {now} s");
            same(test.status(run).await, status, what);
        }
    }
    let saved = test
        .store
        .save(key("driven"), driven, running("on").into(), secs(30));
    done(saved.await, "`save` after the clock stepped back");
    let claim = test
        .claim_version("waits", waits, approve("q"), secs(30))
        .await;
    let claimed = done(claim, "`claim` after the clock stepped back");
    same(
        claimed.replied_at,
        Some(at(50_000)),
        "the time of the replies",
    );
    test.end("waits", claimed.fence).await;
}

async fn abandoned_runs_are_claimed_by_the_end_of_their_leases<H: Runs>(test: Test<H>) {
    for (run, lease) in [("late", 50), ("soon", 20), ("next", 30), ("long", 900)] {
        test.begin(run, secs(lease)).await;
    }
    test.waiting("waits", "q").await;
    let fence = test.begin("over", secs(1)).await;
    test.end("over", fence).await;
    test.set(19);
    same(
        test.claim_abandoned(9, secs(30)).await,
        [],
        "the abandoned runs before any lease ends",
    );
    test.set(60);
    same(
        test.claim_abandoned(0, secs(30)).await,
        [],
        "at most 0 abandoned runs",
    );
    let first = test.claim_abandoned(1, secs(30)).await;
    same(names(&first), ["soon"], "the run whose lease expired first");
    let rest = test.claim_abandoned(usize::MAX, secs(40)).await;
    same(
        names(&rest),
        ["next", "late"],
        "the other abandoned runs, in the order of their leases",
    );
    for (record, until) in first.iter().chain(&rest).zip([90, 100, 100]) {
        let run = record.key.run.as_str();
        same(
            record.status,
            RunStatus::Running,
            format!("the status of the claimed run `{run}`"),
        );
        same(
            record.lease_until,
            at(until),
            format!("the lease of the claimed run `{run}`"),
        );
        same(
            record.takeovers,
            1,
            format!("the takeovers of the claimed run `{run}`"),
        );
        same_run(
            &test.get(run).await,
            record,
            format!("the claimed run `{run}`"),
        );
        same(
            test.renew(run, record.fence, secs(30)).await,
            Renewed::Held,
            "the result of `renew`",
        );
    }
    same(
        test.claim_abandoned(9, secs(30)).await,
        [],
        "the abandoned runs after all were claimed",
    );
}

async fn abandoned_runs_of_all_tenants_are_claimed<H: Runs>(test: Test<H>) {
    for of in ["acme", "other"] {
        let key = super::values::key_of(of, "run");
        let begun = RunStore::begin(
            &test.store,
            key,
            client("run"),
            running("hi").into(),
            secs(30),
        );
        done(begun.await, "`begin` of a new run");
    }
    test.set(30);
    let claimed = test.claim_abandoned(9, secs(30)).await;
    let mut tenants: Vec<_> = claimed
        .iter()
        .map(|record| record.key.tenant.0.as_str())
        .collect();
    tenants.sort_unstable();
    same(
        tenants,
        ["acme", "other"],
        "the tenants of the abandoned runs",
    );
}

async fn an_abandoned_run_is_claimed_by_one_process<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for n in 0..5_u64 {
        test.begin(&n.to_string(), secs(n)).await;
    }
    test.set(30);
    let mut claimed = names(&test.claim_abandoned(2, secs(30)).await);
    let second = other.claim_abandoned(9, secs(30)).await;
    claimed.extend(names(&done(second, "`claim_abandoned` by another process")));
    same(
        claimed,
        ["0", "1", "2", "3", "4"],
        "the runs that two processes claimed, one after the other,",
    );
    let record = test.get("0").await;
    let claim = other.claim(record, Vec::new(), secs(30)).await;
    fails(
        claim,
        "already_resumed",
        "`claim` of a run that `claim_abandoned` returned",
    );
}

async fn a_given_up_claim_is_abandoned_at_once<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(900)).await;
    test.set(10);
    same(
        test.renew("run", fence, secs(0)).await,
        Renewed::Held,
        "the result of `renew` for no time",
    );
    let record = test.get("run").await;
    same(
        record.status,
        RunStatus::Abandoned,
        "the status after a claim was given up",
    );
    let claimed = test.claim_abandoned(9, secs(30)).await;
    same(
        names(&claimed),
        ["run"],
        "the runs that another process claims at once",
    );
    let late = test.store.renew(key("run"), fence, secs(30)).await;
    fails(
        late,
        "stale_claim",
        "`renew` by the process that gave up the claim",
    );
}

async fn a_claim_after_an_expired_lease_is_a_takeover<H: Runs>(test: Test<H>) {
    // A waiting run has no lease that could expire.
    test.waiting("run", "q").await;
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    );
    same(
        claimed.takeovers,
        0,
        "the takeovers after a claim of a waiting run",
    );
    test.set(30);
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of an abandoned run",
    );
    same(
        claimed.takeovers,
        1,
        "the takeovers after a claim of an abandoned run",
    );
    test.set(60);
    let claimed = test.claim_abandoned(1, secs(30)).await;
    let takeovers: Vec<_> = claimed.iter().map(|record| record.takeovers).collect();
    same(takeovers, [2], "the takeovers after `claim_abandoned`");
    same(
        test.takeovers("run").await,
        2,
        "the takeovers that `get` returns",
    );
}

async fn a_run_is_quarantined_after_five_takeovers<H: Runs>(test: Test<H>) {
    test.begin("run", secs(10)).await;
    test.begin("sibling", secs(10)).await;
    for n in 1..=MAX_TAKEOVERS {
        test.set(u64::from(n) * 10);
        let what = format!("the status before takeover {n}");
        same(test.status("run").await, RunStatus::Abandoned, what);
        // Both ways to take a run over count.
        let record = match n % 2 {
            0 => done(test.claim("run", secs(10)).await, format!("takeover {n}")),
            _ => {
                let claimed = test.claim_abandoned(1, secs(10)).await;
                let claimed = claimed.into_iter().find(|record| record.key == key("run"));
                match claimed {
                    Some(record) => record,
                    // The sibling, which is written in time, was abandoned first.
                    None => done(test.claim("run", secs(10)).await, format!("takeover {n}")),
                }
            }
        };
        same(
            record.takeovers,
            n,
            format!("the takeovers after takeover {n}"),
        );
        same(
            record.status,
            RunStatus::Running,
            format!("the status after takeover {n}"),
        );
        let sibling = done(test.store.get(key("sibling")).await, "`get`");
        let saved = test.store.save(
            key("sibling"),
            sibling.fence,
            running("on").into(),
            secs(20),
        );
        done(saved.await, "`save` of another run");
    }
    test.set(u64::from(MAX_TAKEOVERS) * 10 + 10);
    let quarantined = RunStatus::Quarantined;
    same(
        test.status("run").await,
        quarantined,
        "the status when the lease after takeover 5 ends",
    );
    let before = test.get("run").await;
    let claim = test.claim("run", secs(30)).await;
    fails(claim, "run_quarantined", "`claim` of a quarantined run");
    let claim = test
        .claim_version("run", before.version - 1, Vec::new(), secs(30))
        .await;
    fails(
        claim,
        "run_quarantined",
        "`claim` of an older version of a quarantined run",
    );
    let amended = test
        .store
        .amend(key("run"), before.version, running("on").into())
        .await;
    fails(amended, "run_quarantined", "`amend` of a quarantined run");
    same(
        test.claim_abandoned(9, secs(30)).await,
        [],
        "the abandoned runs, without a quarantined one,",
    );
    same(
        test.is_live("run").await,
        true,
        "`is_live` of a quarantined run",
    );
    let listed = test
        .store
        .list_by_thread(tenant("acme"), thread(), None, 9)
        .await;
    let mut listed = done(listed, "`list_by_thread`").into_iter();
    let listed = listed
        .find(|run| run.key == key("run"))
        .map(|run| run.status);
    same(
        listed,
        Some(quarantined),
        "the status of a quarantined run in the list",
    );
    test.harness.purge().await;
    test.set(10_000);
    same_run(&test.get("run").await, &before, "a quarantined run");
    same(
        test.status("sibling").await,
        RunStatus::Abandoned,
        "the status of another run",
    );
}

async fn the_last_owner_before_quarantine_may_write<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    test.take_over("run", MAX_TAKEOVERS - 1).await;
    let claimed = done(test.claim("run", secs(30)).await, "takeover 5");
    same(
        claimed.status,
        RunStatus::Running,
        "the status during the lease after takeover 5",
    );
    same(
        test.renew("run", claimed.fence, secs(30)).await,
        Renewed::Held,
        "the result of `renew`",
    );
    test.suspend("run", claimed.fence, "q").await;
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    );
    test.end("run", claimed.fence).await;
}

/// Checks that a run, which is abandoned without takeovers, can be taken over five more times.
async fn five_more_takeovers<H: Runs>(test: &Test<H>, after: &str) {
    same(
        test.takeovers("run").await,
        0,
        format!("the takeovers after {after}"),
    );
    test.take_over("run", MAX_TAKEOVERS).await;
    let what = format!("the status 5 takeovers after {after}");
    same(test.status("run").await, RunStatus::Quarantined, what);
}

async fn a_write_resets_takeovers<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    let fence = test.take_over("run", MAX_TAKEOVERS - 1).await;
    let saved = test
        .store
        .save(key("run"), fence, running("on").into(), secs(0));
    done(saved.await, "`save` with the newest fence");
    five_more_takeovers(&test, "a write").await;
}

async fn a_suspension_resets_takeovers<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    let fence = test.take_over("run", MAX_TAKEOVERS - 1).await;
    test.suspend("run", fence, "q").await;
    let claimed = done(test.claim("run", secs(0)).await, "`claim` of a waiting run");
    same(
        claimed.takeovers,
        0,
        "the takeovers after a claim of a waiting run",
    );
    five_more_takeovers(&test, "a suspension").await;
}

async fn giving_up_a_claim_resets_takeovers<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    test.take_over("run", MAX_TAKEOVERS - 1).await;
    let claimed = done(test.claim("run", secs(30)).await, "takeover 5");
    same(
        test.renew("run", claimed.fence, secs(0)).await,
        Renewed::Held,
        "the result of `renew`",
    );
    same(
        test.status("run").await,
        RunStatus::Abandoned,
        "the status after a claim was given up",
    );
    five_more_takeovers(&test, "a claim was given up").await;
}

async fn a_renewal_does_not_reset_takeovers<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    test.take_over("run", MAX_TAKEOVERS - 1).await;
    let claimed = done(test.claim("run", secs(30)).await, "takeover 5");
    same(
        test.renew("run", claimed.fence, secs(60)).await,
        Renewed::Held,
        "the result of `renew`",
    );
    same(
        test.takeovers("run").await,
        MAX_TAKEOVERS,
        "the takeovers after a renewal",
    );
    test.set(60);
    same(
        test.status("run").await,
        RunStatus::Quarantined,
        "the status after the renewed lease",
    );
}

async fn a_released_run_is_claimed_again<H: Runs>(test: Test<H>) {
    test.begin("run", secs(0)).await;
    test.take_over("run", MAX_TAKEOVERS).await;
    let before = test.get("run").await;
    same(
        test.release("run").await,
        true,
        "the result of `release` of a quarantined run",
    );
    same(
        test.release("run").await,
        false,
        "the result of a second `release`",
    );
    let record = test.get("run").await;
    same(
        record.status,
        RunStatus::Abandoned,
        "the status of a released run",
    );
    same(
        record.state == before.state,
        true,
        "that the state of a released run is kept",
    );
    five_more_takeovers(&test, "a release").await;
    same(
        test.release("run").await,
        true,
        "the result of `release` of a quarantined run",
    );
    let claimed = test.claim_abandoned(9, secs(30)).await;
    same(
        names(&claimed),
        ["run"],
        "the abandoned runs after a release",
    );
}

async fn only_quarantined_runs_are_released<H: Runs>(test: Test<H>) {
    test.begin("abandoned", secs(0)).await;
    test.take_over("abandoned", MAX_TAKEOVERS - 1).await;
    test.begin("driven", secs(0)).await;
    test.take_over("driven", MAX_TAKEOVERS - 1).await;
    done(test.claim("driven", secs(30)).await, "takeover 5");
    test.waiting("waits", "q").await;
    let fence = test.begin("over", secs(0)).await;
    test.end("over", fence).await;
    for run in ["abandoned", "driven", "waits", "over"] {
        let before = test.get(run).await;
        same(
            test.release(run).await,
            false,
            format!("the result of `release` of the run `{run}`"),
        );
        same_run(&test.get(run).await, &before, format!("the run `{run}`"));
    }
}

async fn a_cancellation_is_seen_by_each_renewal<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    let fence = test.begin("run", secs(30)).await;
    let sibling = test.begin("sibling", secs(30)).await;
    same(
        test.renew("run", fence, secs(30)).await,
        Renewed::Held,
        "a renewal without a cancellation",
    );
    let before = test.get("run").await;
    let cancelled = done(
        other.cancel(key("run")).await,
        "`cancel` by another process",
    );
    same(cancelled, true, "the result of `cancel` of a driven run");
    let after = test.get("run").await;
    same(
        (after.status, after.fence),
        (before.status, before.fence),
        "the status and fence after `cancel`",
    );
    let requested = Renewed::CancelRequested;
    same(
        test.renew("run", fence, secs(30)).await,
        requested,
        "the renewal after `cancel`",
    );
    let saved = test
        .store
        .save(key("run"), fence, running("on").into(), secs(30));
    done(saved.await, "`save` of a cancelled run");
    same(
        test.cancel("run").await,
        true,
        "the result of a second `cancel`",
    );
    same(
        test.renew("run", fence, secs(30)).await,
        requested,
        "a later renewal after `cancel`",
    );
    let renewed = test.renew("sibling", sibling, secs(30)).await;
    same(renewed, Renewed::Held, "the renewal of another run");
}

async fn a_cancellation_is_kept_for_a_takeover<H: Runs>(test: Test<H>) {
    test.begin("run", secs(30)).await;
    same(
        test.cancel("run").await,
        true,
        "the result of `cancel` of a driven run",
    );
    test.set(30);
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of an abandoned run",
    );
    let renewed = test.renew("run", claimed.fence, secs(30)).await;
    same(
        renewed,
        Renewed::CancelRequested,
        "the renewal by the process that took the run over",
    );

    test.begin("left", secs(0)).await;
    same(
        test.cancel("left").await,
        true,
        "the result of `cancel` of an abandoned run",
    );
    let claimed = test.claim_abandoned(9, secs(30)).await;
    same(names(&claimed), ["left"], "the abandoned runs");
    for record in claimed {
        let renewed = test.renew("left", record.fence, secs(30)).await;
        same(
            renewed,
            Renewed::CancelRequested,
            "the renewal by the process that took the run over",
        );
    }
}

async fn a_suspension_forgets_a_cancellation<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    same(
        test.cancel("run").await,
        true,
        "the result of `cancel` of a driven run",
    );
    test.suspend("run", fence, "q").await;
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    );
    let renewed = test.renew("run", claimed.fence, secs(30)).await;
    same(
        renewed,
        Renewed::Held,
        "a renewal after the cancelled run was suspended and claimed",
    );
}

async fn only_driven_and_abandoned_runs_are_cancelled<H: Runs>(test: Test<H>) {
    test.waiting("waits", "q").await;
    let fence = test.begin("over", secs(30)).await;
    test.end("over", fence).await;
    for run in ["waits", "over", "none"] {
        same(
            test.cancel(run).await,
            false,
            format!("the result of `cancel` of the run `{run}`"),
        );
    }
    let claimed = done(
        test.claim("waits", secs(30)).await,
        "`claim` of a waiting run",
    );
    let renewed = test.renew("waits", claimed.fence, secs(30)).await;
    same(
        renewed,
        Renewed::Held,
        "a renewal after `cancel` of the waiting run had no effect",
    );
}
