//! Cases of a [`RunStore`](concentric_core::store::RunStore): reads, writes, claims and lists.

use super::{
    kit::{Runs, Test, done, fails, names, same, same_run},
    values::{
        approve, at, client, key, question, running, running_after, secs, tenant, thread, waiting,
        waiting_after,
    },
};
use concentric_core::{
    CancelReason, ErrorKind, MessageId, Outcome, Reply, ThreadId, Transcript, Turn,
    store::{MAX_TAKEOVERS, RunChange, RunKey, RunRecord, RunStatus, RunStore},
};

cases! {
    $ __store_runs runs [RunStore]
    a_key_identifies_one_run
    an_unknown_run_is_not_found
    a_read_returns_what_was_written
    another_process_reads_what_was_written
    turns_are_kept_replaced_and_added
    a_change_that_keeps_missing_turns_is_not_written
    any_text_is_read_as_it_was_written
    a_large_state_is_read_as_it_was_written
    a_running_run_is_claimed_only_after_its_lease
    a_waiting_run_is_claimed_once
    a_claim_of_another_version_fails
    a_record_is_not_claimed_after_a_write
    a_claim_returns_the_record_that_a_read_returns
    replies_are_kept_until_the_next_write
    accepted_replies_are_not_replaced
    replies_to_further_interrupts_are_added
    a_write_with_an_older_fence_fails
    a_write_after_a_suspension_fails
    an_ended_run_stays_ended
    an_ended_run_keeps_its_outcome
    a_repeated_end_keeps_the_first_outcome
    waiting_and_ended_runs_are_kept
    versions_and_fences_are_unique
    a_client_id_may_repeat_when_its_run_is_not_live
    a_client_id_of_a_live_run_is_rejected
    waiting_runs_are_withdrawn_together
    a_withdrawn_run_is_not_claimed
    a_withdrawn_run_was_aborted_by_the_user
    a_state_is_amended_only_while_the_run_can_be_claimed
    a_run_is_found_by_each_of_its_interrupts
    the_newest_run_with_an_interrupt_is_found
    a_run_is_found_by_its_client_id
    of_runs_with_one_client_id_the_live_one_is_found
    the_runs_of_a_conversation_are_listed_in_order
    waiting_runs_are_listed_by_their_time
}

async fn a_key_identifies_one_run<H: Runs>(test: Test<H>) {
    test.begin("run", secs(30)).await;
    let again = test.begin_as("run", "other", secs(30)).await;
    fails(again, "run_exists", "`begin` with the key of a run");
    let fence = test.get("run").await.fence;
    test.end("run", fence).await;
    let again = test.begin_as("run", "other", secs(30)).await;
    fails(again, "run_exists", "`begin` with the key of an ended run");
}

async fn an_unknown_run_is_not_found<H: Runs>(test: Test<H>) {
    let (store, none) = (&test.store, || key("none"));
    let change = || RunChange::from(running("hi"));
    let code = "run_not_found";
    fails(store.get(none()).await, code, "`get` of an unknown run");
    let unknown = RunRecord::new(none(), client("none"), running("hi"));
    let claim = store.claim(unknown, Vec::new(), secs(30)).await;
    fails(claim, code, "`claim` of an unknown run");
    fails(
        store.amend(none(), 1, change()).await,
        code,
        "`amend` of an unknown run",
    );
    let save = store.save(none(), 1, change(), secs(30)).await;
    fails(save, code, "`save` of an unknown run");
    fails(
        store.renew(none(), 1, secs(30)).await,
        code,
        "`renew` of an unknown run",
    );
    let suspend = store.suspend(none(), 1, change()).await;
    fails(suspend, code, "`suspend` of an unknown run");
    fails(
        store.end(none(), 1, Ok(Outcome::Completed)).await,
        code,
        "`end` of an unknown run",
    );
    fails(
        test.asking(&["q"]).await,
        code,
        "`find_by_interrupt` without runs",
    );
    fails(
        test.of_client("none").await,
        code,
        "`find_by_client_id` without runs",
    );
    let cancelled = done(store.cancel(none()).await, "`cancel` of an unknown run");
    same(cancelled, false, "the result of `cancel` of an unknown run");
    let released = done(store.release(none()).await, "`release` of an unknown run");
    same(released, false, "the result of `release` of an unknown run");
    let withdrawn = done(
        store.withdraw(tenant("acme"), thread()).await,
        "`withdraw` without runs",
    );
    same(withdrawn, 0, "the result of `withdraw` without runs");
    let listed = store
        .list_by_thread(tenant("acme"), thread(), None, 9)
        .await;
    same(
        done(listed, "`list_by_thread` without runs"),
        [],
        "the list of runs",
    );
    let waiting = store.list_waiting(tenant("acme"), 9).await;
    same(
        done(waiting, "`list_waiting` without runs"),
        [],
        "the waiting runs",
    );
    let claimed = store.claim_abandoned(9, secs(30)).await;
    same(
        done(claimed, "`claim_abandoned` without runs"),
        [],
        "the abandoned runs",
    );
    same(
        test.is_live("none").await,
        false,
        "`is_live` of an unknown run",
    );
}

async fn a_read_returns_what_was_written<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    let record = test.get("run").await;
    same(record.key.clone(), key("run"), "the key of a new run");
    same(
        record.client_id.clone(),
        client("run"),
        "the client id of a new run",
    );
    same(record.status, RunStatus::Running, "the status of a new run");
    same(
        record.fence,
        fence,
        "the fence of a new run, which `begin` returned,",
    );
    same(record.lease_until, at(30), "the lease of a new run");
    same(record.takeovers, 0, "the takeovers of a new run");
    same(
        record.state == running("hi"),
        true,
        "that the state of a new run is read as written",
    );
    let begun = record.version;

    test.set(10);
    let saved = test
        .store
        .save(key("run"), fence, running("2").into(), secs(60));
    done(saved.await, "`save` with the newest fence");
    let record = test.get("run").await;
    same(
        record.state == running("2"),
        true,
        "that a saved state is read as written",
    );
    same(
        record.lease_until,
        at(70),
        "the lease after a save at 10 s for 60 s",
    );
    same(
        record.version > begun,
        true,
        "that the version increases with a save",
    );
    same(record.fence, fence, "the fence after a save");

    test.set(20);
    let renewed = test.store.renew(key("run"), fence, secs(90)).await;
    let _ = done(renewed, "`renew` with the newest fence");
    same(
        test.get("run").await.lease_until,
        at(110),
        "the lease after a renewal at 20 s for 90 s",
    );
    // A renewal may also shorten the lease.
    let renewed = test.store.renew(key("run"), fence, secs(5)).await;
    let _ = done(renewed, "`renew` for a shorter time");
    same(
        test.get("run").await.lease_until,
        at(25),
        "the lease after a renewal at 20 s for 5 s",
    );

    let suspended = test
        .store
        .suspend(key("run"), fence, waiting("3", "q").into());
    done(suspended.await, "`suspend` with the newest fence");
    let record = test.get("run").await;
    same(
        record.status,
        RunStatus::Suspended,
        "the status after a suspension",
    );
    same(
        record.state == waiting("3", "q"),
        true,
        "that the state of a suspension is read as written",
    );
    same(
        record.asked,
        [question("q")],
        "the interrupts that the run has raised",
    );
}

async fn another_process_reads_what_was_written<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    let fence = test.begin("run", secs(30)).await;
    let found = done(other.get(key("run")).await, "`get` by another process");
    same_run(
        &found,
        &test.get("run").await,
        "the run that another process reads",
    );
    let suspended = other.suspend(key("run"), fence, waiting("hi", "q").into());
    done(
        suspended.await,
        "`suspend` by another process with the fence",
    );
    same(
        test.status("run").await,
        RunStatus::Suspended,
        "the status that the first process reads",
    );
}

async fn turns_are_kept_replaced_and_added<H: Runs>(test: Test<H>) {
    let turns = |texts: &[&str]| -> Transcript {
        let texts = texts.iter();
        texts.map(|text| Turn::user(String::from(*text))).collect()
    };
    let state = |texts: &[&str]| running_after(turns(texts));
    let fence = RunStore::begin(
        &test.store,
        key("run"),
        client("run"),
        state(&["a", "b"]).into(),
        secs(30),
    );
    let fence = done(fence.await, "`begin` with two turns");
    let mut last: &[&str] = &["a", "b"];
    let steps: [&[&str]; 6] = [
        &["a", "b", "c", "d"],
        &["a", "b", "c", "d"],
        &["a", "x"],
        &["a", "x", "y"],
        &[],
        &["new"],
    ];
    for next in steps {
        // Turns that both have by value are not written again.
        let keep = last
            .iter()
            .zip(next)
            .take_while(|(one, other)| one == other)
            .count();
        let mut change = RunChange::new(&state(next));
        change.turns.drain(..keep);
        change.keep = keep;
        let saved = test.store.save(key("run"), fence, change, secs(30)).await;
        done(
            saved,
            format!("`save` of the turns {next:?} after {last:?}"),
        );
        let found = test.get("run").await.state;
        let what = format!("the transcript after the turns {last:?} were changed to {next:?}");
        same(found.transcript(), &turns(next), what);
        same(
            found == state(next),
            true,
            "that the rest of the state is read as written",
        );
        last = next;
    }
}

async fn a_change_that_keeps_missing_turns_is_not_written<H: Runs>(test: Test<H>) {
    let mut change = RunChange::new(&running("hi"));
    change.keep = 1;
    let begun = RunStore::begin(
        &test.store,
        key("new"),
        client("new"),
        change.clone(),
        secs(30),
    );
    fails(
        begun.await,
        "unwritable",
        "`begin` with a change that keeps turns",
    );
    fails(
        test.store.get(key("new")).await,
        "run_not_found",
        "`get` after a failed `begin`",
    );

    let fence = test.begin("run", secs(30)).await;
    let before = test.get("run").await;
    change.keep = 2;
    let saved = test
        .store
        .save(key("run"), fence, change.clone(), secs(30))
        .await;
    fails(saved, "unwritable", "`save` that keeps 2 turns of 1");
    let suspended = test.store.suspend(key("run"), fence, change.clone()).await;
    fails(suspended, "unwritable", "`suspend` that keeps 2 turns of 1");
    same_run(
        &test.get("run").await,
        &before,
        "a run after writes that failed",
    );
    let version = test.waiting("waits", "q").await;
    let before = test.get("waits").await;
    let amended = test.store.amend(key("waits"), version, change).await;
    fails(amended, "unwritable", "`amend` that keeps 2 turns of 1");
    same_run(
        &test.get("waits").await,
        &before,
        "a run after an `amend` that failed",
    );
}

async fn any_text_is_read_as_it_was_written<H: Runs>(test: Test<H>) {
    let odd =
        "\u{1} ' \" \\ % _ \r\n \u{2028} \u{fffd} é e\u{301} 漢字 🦀 \u{10ffff} {\"a\":1} --; DROP";
    let fence = test.begin("run", secs(30)).await;
    let state = || waiting(odd, "it's \"one\" % of _ them");
    done(
        test.store.suspend(key("run"), fence, state().into()).await,
        "`suspend` of a state with any characters",
    );
    let record = test.get("run").await;
    same(
        record.state == state(),
        true,
        "that any text is read as it was written",
    );
    // A store may be unable to store this one character, but must not lose it.
    let null = || RunChange::from(running("a\0b"));
    let begun = RunStore::begin(&test.store, key("null"), client("null"), null(), secs(30)).await;
    match begun {
        Ok(_) => {
            let is_same = test.get("null").await.state == running("a\0b");
            same(
                is_same,
                true,
                "that a null character is read as it was written",
            );
        }
        failed => fails(
            failed,
            "unwritable",
            "`begin` with a null character, if it fails,",
        ),
    }
    let found = test.asking(&["it's \"one\" % of _ them"]).await;
    same(
        done(found, "`find_by_interrupt`").key,
        key("run"),
        "the run with this interrupt",
    );
    let none = test.asking(&["its \"one\" % of _ them", "%"]).await;
    fails(none, "run_not_found", "`find_by_interrupt` of a pattern");
    // Ids may come from clients.
    let odd = RunKey::new(
        tenant("a'%"),
        ThreadId::new("t/\"漢"),
        client("run ; -- 🦀"),
    );
    let begun = RunStore::begin(
        &test.store,
        odd.clone(),
        client("'"),
        running("hi").into(),
        secs(30),
    );
    let fence = done(begun.await, "`begin` with a key of any characters");
    let record = done(
        test.store.get(odd.clone()).await,
        "`get` of a key of any characters",
    );
    same(
        (record.key, record.fence),
        (odd, fence),
        "the run with this key",
    );
}

async fn a_large_state_is_read_as_it_was_written<H: Runs>(test: Test<H>) {
    let large = || running(&"x é \"".repeat(700_000));
    let begun = RunStore::begin(
        &test.store,
        key("run"),
        client("run"),
        large().into(),
        secs(30),
    );
    let fence = done(begun.await, "`begin` with a state of 4 MiB");
    same(
        test.get("run").await.state == large(),
        true,
        "that a state of 4 MiB is read as written",
    );
    let saved = test
        .store
        .save(key("run"), fence, running("hi").into(), secs(30));
    done(saved.await, "`save` of a small state after a large one");
    same(
        test.get("run").await.state == running("hi"),
        true,
        "that it is replaced",
    );
}

async fn a_running_run_is_claimed_only_after_its_lease<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    let version = test.get("run").await.version;
    let claim = || test.claim_version("run", version, Vec::new(), secs(60));
    test.set(29);
    fails(
        claim().await,
        "already_resumed",
        "`claim` a second before the end of a lease",
    );
    test.set(30);
    same(
        test.status("run").await,
        RunStatus::Abandoned,
        "the status at the end of a lease",
    );
    let record = done(claim().await, "`claim` at the end of a lease");
    same(
        record.fence > fence,
        true,
        "that a claim has a greater fence",
    );
    same(
        record.status,
        RunStatus::Running,
        "the status after a claim",
    );
    same(
        record.lease_until,
        at(90),
        "the lease after a claim at 30 s for 60 s",
    );
    same_run(&test.get("run").await, &record, "a claimed run");
    fails(
        claim().await,
        "already_resumed",
        "a second `claim` of the same version",
    );
}

async fn a_waiting_run_is_claimed_once<H: Runs>(test: Test<H>) {
    let version = test.waiting("run", "q").await;
    let claim = || test.claim_version("run", version, approve("q"), secs(30));
    let record = done(claim().await, "`claim` of a waiting run");
    same(
        record.replies.clone(),
        approve("q"),
        "the replies of a claim",
    );
    same(record.replied_at, Some(at(0)), "the time of the replies");
    same_run(&test.get("run").await, &record, "a claimed run");
    fails(
        claim().await,
        "already_resumed",
        "a second `claim` of a waiting run",
    );
}

async fn a_claim_of_another_version_fails<H: Runs>(test: Test<H>) {
    let version = test.waiting("run", "q").await;
    let claim = |version| test.claim_version("run", version, Vec::new(), secs(30));
    for other in [0, version - 1, version + 1, u64::MAX] {
        let what = format!("`claim` of version {other} instead of {version}");
        fails(claim(other).await, "already_resumed", what);
    }
    done(claim(version).await, "`claim` of the newest version");
}

async fn a_record_is_not_claimed_after_a_write<H: Runs>(test: Test<H>) {
    let code = "already_resumed";
    test.waiting("run", "q").await;
    let read = test.get("run").await;
    let amended = test
        .store
        .amend(key("run"), read.version, waiting("2", "q").into());
    done(amended.await, "`amend` of a waiting run");
    let claim = test.store.claim(read, approve("q"), secs(30));
    fails(claim.await, code, "`claim` of a record before an `amend`");

    // Each write is followed by the end of the lease, so that the run can be claimed.
    let read = test.get("run").await;
    let claimed = done(test.claim("run", secs(10)).await, "`claim`");
    test.set(10);
    let claim = test.store.claim(read, approve("q"), secs(30));
    fails(claim.await, code, "`claim` of a record before a `claim`");
    same(
        test.get("run").await.replies,
        [],
        "the replies after a `claim` that failed",
    );

    let read = test.get("run").await;
    let saved = test
        .store
        .save(key("run"), claimed.fence, running("3").into(), secs(10));
    done(saved.await, "`save` with the newest fence");
    test.set(20);
    let claim = test.store.claim(read, Vec::new(), secs(30));
    fails(claim.await, code, "`claim` of a record before a `save`");

    let read = test.get("run").await;
    let swept = done(
        test.store.claim_abandoned(9, secs(10)).await,
        "`claim_abandoned`",
    );
    same(names(&swept), ["run"], "the abandoned runs");
    test.set(30);
    let claim = test.store.claim(read, Vec::new(), secs(30));
    let what = "`claim` of a record before a `claim_abandoned`";
    fails(claim.await, code, what);
    for mut expected in swept {
        expected.status = RunStatus::Abandoned;
        let what = "a run after a `claim` that failed";
        same_run(&test.get("run").await, &expected, what);
    }
}

async fn a_claim_returns_the_record_that_a_read_returns<H: Runs>(test: Test<H>) {
    let turns = |last: &str| -> Transcript {
        let texts = (0..100).map(|n| format!("{n} of {last}"));
        texts.map(Turn::user).collect()
    };
    // A run that has several turns, and has raised two interrupts.
    let begun = RunStore::begin(
        &test.store,
        key("run"),
        client("client"),
        running_after(turns("a")).into(),
        secs(30),
    );
    let fence = done(begun.await, "`begin` with 100 turns");
    test.suspend("run", fence, "q").await;
    let claimed = done(test.claim("run", secs(30)).await, "`claim`");
    let state = waiting_after(turns("b"), "p");
    let suspended = test.store.suspend(key("run"), claimed.fence, state.into());
    done(suspended.await, "`suspend` with the newest fence");

    test.set(5);
    let found = done(test.asking(&["q"]).await, "`find_by_interrupt`");
    let claim = test.store.claim(found, approve("p"), secs(30));
    let claimed = done(claim.await, "`claim` of the run with an interrupt");
    same_run(&test.get("run").await, &claimed, "a claimed run");

    // Its process dies, and another one amends it.
    test.set(35);
    let mut record = test.get("run").await;
    record.state = waiting_after(turns("c"), "p");
    let amended = test
        .store
        .amend(key("run"), record.version, record.state.clone().into());
    record.version = done(amended.await, "`amend` of an abandoned run");
    let claim = test.store.claim(record, approve("q"), secs(30));
    let claimed = done(claim.await, "`claim` of an amended run");
    same(claimed.takeovers, 1, "the takeovers of a claimed run");
    same_run(&test.get("run").await, &claimed, "an amended, claimed run");

    // For no time.
    test.set(65);
    let claimed = done(test.claim("run", secs(0)).await, "`claim` for no time");
    same_run(
        &test.get("run").await,
        &claimed,
        "a run claimed for no time",
    );
}

async fn replies_are_kept_until_the_next_write<H: Runs>(test: Test<H>) {
    for is_suspended in [false, true] {
        let run = if is_suspended { "suspended" } else { "saved" };
        let version = test.waiting(run, run).await;
        let claim = test.claim_version(run, version, approve(run), secs(30));
        let fence = done(claim.await, "`claim` of a waiting run").fence;
        let renewed = test.store.renew(key(run), fence, secs(60)).await;
        let _ = done(renewed, "`renew` with the newest fence");
        same(
            test.get(run).await.replies,
            approve(run),
            "the replies after a renewal",
        );
        match is_suspended {
            true => test.suspend(run, fence, run).await,
            false => {
                let saved = test
                    .store
                    .save(key(run), fence, running("on").into(), secs(60));
                done(saved.await, "`save` with the newest fence");
            }
        }
        let record = test.get(run).await;
        let what = "the replies after a write, whose state contains them,";
        same(
            (record.replies, record.replied_at),
            (Vec::new(), None),
            what,
        );
    }
}

async fn accepted_replies_are_not_replaced<H: Runs>(test: Test<H>) {
    let version = test.waiting("run", "q").await;
    let claim = test.claim_version("run", version, approve("q"), secs(30));
    let version = done(claim.await, "`claim` of a waiting run").version;
    // The process that holds the claim dies.
    test.set(30);
    let denied = vec![Reply::deny(question("q"), "no")];
    let claim = test.claim_version("run", version, denied, secs(30));
    let record = done(claim.await, "`claim` of an abandoned run");
    same(
        record.replies.clone(),
        approve("q"),
        "the replies that were accepted first",
    );
    same(
        record.replied_at,
        Some(at(0)),
        "the time at which replies were accepted first",
    );
    same_run(&test.get("run").await, &record, "a claimed run");
}

async fn replies_to_further_interrupts_are_added<H: Runs>(test: Test<H>) {
    let version = test.waiting("run", "q").await;
    let claim = test.claim_version("run", version, approve("q"), secs(30));
    let version = done(claim.await, "`claim` of a waiting run").version;
    // The process that holds the claim dies, and so does the next one.
    let mut replies = vec![Reply::deny(question("q"), "no")];
    replies.extend(approve("p"));
    test.set(30);
    let claim = test.claim_version("run", version, replies, secs(30));
    let version = done(claim.await, "`claim` of an abandoned run").version;
    test.set(60);
    let claim = test.claim_version("run", version, Vec::new(), secs(30));
    let record = done(claim.await, "`claim` of an abandoned run");
    let expected = [approve("q"), approve("p")].concat();
    same(
        record.replies.clone(),
        expected,
        "the replies of both claims",
    );
    same(
        record.replied_at,
        Some(at(0)),
        "the time at which replies were accepted first",
    );
    same_run(&test.get("run").await, &record, "a claimed run");
}

/// Checks that no write with `fence` succeeds, and that none changes the run.
async fn all_writes_fail<H: Runs>(test: &Test<H>, fence: u64, code: &str, what: &str) {
    let before = test.get("run").await;
    let change = || RunChange::from(running("late"));
    let store = &test.store;
    let saved = store.save(key("run"), fence, change(), secs(90)).await;
    fails(saved, code, format!("`save` {what}"));
    let renewed = store.renew(key("run"), fence, secs(90)).await;
    fails(renewed, code, format!("`renew` {what}"));
    let renewed = store.renew(key("run"), fence, secs(0)).await;
    fails(renewed, code, format!("`renew` for no time {what}"));
    let suspended = store
        .suspend(key("run"), fence, waiting("late", "late").into())
        .await;
    fails(suspended, code, format!("`suspend` {what}"));
    if code != "run_ended" {
        fails(
            store.end(key("run"), fence, Ok(Outcome::Completed)).await,
            code,
            format!("`end` {what}"),
        );
    }
    let after = test.get("run").await;
    same_run(&after, &before, format!("a run after writes {what}"));
    fails(
        test.asking(&["late"]).await,
        "run_not_found",
        "`find_by_interrupt` of a failed write",
    );
}

// Case F047.
async fn a_write_with_an_older_fence_fails<H: Runs>(test: Test<H>) {
    let old = test.begin("run", secs(30)).await;
    test.set(30);
    let claimed = test.claim("run", secs(30)).await;
    let new = done(claimed, "`claim` of an abandoned run").fence;
    all_writes_fail(
        &test,
        old,
        "stale_claim",
        "with the fence of an earlier claim",
    )
    .await;
    all_writes_fail(
        &test,
        new + 1,
        "stale_claim",
        "with a fence that no claim has",
    )
    .await;
    all_writes_fail(&test, 0, "stale_claim", "with the fence 0").await;
    // The same holds when the newer lease has expired as well, and after the run has ended.
    test.set(90);
    all_writes_fail(
        &test,
        old,
        "stale_claim",
        "with the fence of an earlier claim",
    )
    .await;
    test.end("run", new).await;
    all_writes_fail(
        &test,
        old,
        "stale_claim",
        "with an older fence after the end",
    )
    .await;
}

async fn a_write_after_a_suspension_fails<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    test.suspend("run", fence, "q").await;
    all_writes_fail(&test, fence, "stale_claim", "after a suspension").await;
}

async fn an_ended_run_stays_ended<H: Runs>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    test.set(10);
    test.end("run", fence).await;
    let record = test.get("run").await;
    same(record.status, RunStatus::Ended, "the status after the end");
    test.set(99);
    fails(
        test.claim("run", secs(30)).await,
        "run_ended",
        "`claim` of an ended run",
    );
    let amended = test
        .store
        .amend(key("run"), record.version, running("on").into())
        .await;
    fails(amended, "run_ended", "`amend` of an ended run");
    all_writes_fail(&test, fence, "run_ended", "after the end").await;
    // A repeated end is no error.
    test.end("run", fence).await;
    test.harness.purge().await;
    same_run(
        &test.get("run").await,
        &record,
        "a run that was ended again",
    );
}

/// An outcome of each kind.
fn outcomes() -> Vec<Result<Outcome, ErrorKind>> {
    let aborted = |reason| Ok(Outcome::Aborted { reason });
    let reason = "it's \"over\" \0 \u{1} {\"Ok\":1} % 漢 🦀";
    let mut all = vec![
        Ok(Outcome::Completed),
        Ok(Outcome::Interrupted),
        Ok(Outcome::Halted {
            reason: reason.into(),
        }),
        Ok(Outcome::StepLimit),
        Ok(Outcome::CallLimit),
        aborted(CancelReason::User),
        aborted(CancelReason::Disconnected),
        aborted(CancelReason::Shutdown),
        aborted(CancelReason::Other(reason.into())),
    ];
    let kinds = [
        ErrorKind::Authentication,
        ErrorKind::Permission,
        ErrorKind::NotFound,
        ErrorKind::InvalidRequest,
        ErrorKind::ContextWindow,
        ErrorKind::ContentFilter,
        ErrorKind::RateLimited,
        ErrorKind::Quota,
        ErrorKind::Overloaded,
        ErrorKind::Server,
        ErrorKind::Timeout,
        ErrorKind::Connection,
        ErrorKind::Truncated,
        ErrorKind::Protocol,
        ErrorKind::TooLarge,
        ErrorKind::Tool,
        ErrorKind::Configuration,
        ErrorKind::Cancelled,
        ErrorKind::Waiting,
        ErrorKind::Conflict,
        ErrorKind::Halted,
        ErrorKind::Other,
    ];
    all.extend(kinds.map(Err));
    all
}

async fn an_ended_run_keeps_its_outcome<H: Runs>(test: Test<H>) {
    for (n, outcome) in outcomes().into_iter().enumerate() {
        let run = format!("run {n}");
        let fence = test.begin(&run, secs(30)).await;
        let of = |what| format!("the outcome of {what} that ends with {outcome:?}");
        let found = test.get(&run).await.outcome;
        same(found, None, of("a driven run"));
        test.suspend(&run, fence, &run).await;
        let found = test.get(&run).await.outcome;
        same(found, None, of("a waiting run"));
        let claimed = done(test.claim(&run, secs(30)).await, "`claim`");
        same(claimed.outcome, None, of("a claimed run"));
        test.end_as(&run, claimed.fence, outcome.clone()).await;
        let found = test.get(&run).await.outcome;
        same(found, Some(outcome.clone()), of("a run"));
        let found = done(test.asking(&[&run]).await, "`find_by_interrupt`").outcome;
        let what = of("a run, found by its interrupt,");
        same(found, Some(outcome.clone()), what);
        let found = done(test.of_client(&run).await, "`find_by_client_id`").outcome;
        let what = of("a run, found by its client id,");
        same(found, Some(outcome.clone()), what);
    }
    // In another process, and later.
    test.set(3_600);
    test.harness.purge().await;
    let other = test.harness.open().await;
    for (n, outcome) in outcomes().into_iter().enumerate() {
        let found = done(other.get(key(&format!("run {n}"))).await, "`get`").outcome;
        let what = "the outcome that another process reads after an hour";
        same(found, Some(outcome), what);
    }
}

async fn a_repeated_end_keeps_the_first_outcome<H: Runs>(test: Test<H>) {
    let (first, second) = (Err(ErrorKind::Timeout), Ok(Outcome::Completed));
    for (run, [first, second]) in [
        ("failed", [first.clone(), second.clone()]),
        ("completed", [second, first]),
    ] {
        let fence = test.begin(run, secs(30)).await;
        test.end_as(run, fence, first.clone()).await;
        let ended = test.get(run).await;
        // The answer was lost, so the run is ended again.
        test.end_as(run, fence, second).await;
        let again = test.get(run).await;
        let what = format!("the outcome of the run `{run}` that was ended twice");
        same(again.outcome.clone(), Some(first), what);
        same_run(&again, &ended, "a run that was ended twice");
    }
}

async fn waiting_and_ended_runs_are_kept<H: Runs>(test: Test<H>) {
    test.waiting("waits", "q").await;
    test.begin("left", secs(30)).await;
    let fence = test.begin("over", secs(30)).await;
    test.end("over", fence).await;
    test.set(3_600);
    test.harness.purge().await;
    for (run, status) in [
        ("waits", RunStatus::Suspended),
        ("left", RunStatus::Abandoned),
        ("over", RunStatus::Ended),
    ] {
        same(
            test.status(run).await,
            status,
            format!("the status of the run `{run}` after an hour"),
        );
    }
    let record = test.get("waits").await;
    let claim = test.store.claim(record, approve("q"), secs(30));
    done(claim.await, "`claim` after an hour");
}

async fn versions_and_fences_are_unique<H: Runs>(test: Test<H>) {
    let mut fences = Vec::new();
    for run in ["a", "b", "c"] {
        let fence = test.begin(run, secs(30)).await;
        let mut version = test.get(run).await.version;
        fences.push(fence);
        let mut newer = async |what: &str| {
            let found = test.get(run).await.version;
            same(
                found > version,
                true,
                format!("that the version increases with {what}"),
            );
            version = found;
        };
        let saved = test
            .store
            .save(key(run), fence, running("on").into(), secs(30));
        done(saved.await, "`save` with the newest fence");
        newer("a save").await;
        test.suspend(run, fence, run).await;
        newer("a suspension").await;
        let claimed = done(test.claim(run, secs(30)).await, "`claim` of a waiting run");
        fences.push(claimed.fence);
        newer("a claim").await;
    }
    let count = fences.len();
    let is_rising = fences.chunks(2).all(|pair| pair.is_sorted());
    same(
        is_rising,
        true,
        format!("that fences increase with claims ({fences:?})"),
    );
    fences.sort_unstable();
    fences.dedup();
    same(
        fences.len(),
        count,
        "the number of different fences of all runs",
    );
}

async fn a_client_id_may_repeat_when_its_run_is_not_live<H: Runs>(test: Test<H>) {
    same(test.is_live("r1").await, false, "`is_live` without runs");
    let begin = async |run: &str| {
        let begun = test.begin_as(run, "r1", secs(30)).await;
        done(
            begun,
            "`begin` with the client id of a run that is not live",
        )
    };
    let fence = begin("over").await;
    same(test.is_live("r1").await, true, "`is_live` of a driven run");
    test.end("over", fence).await;
    same(test.is_live("r1").await, false, "`is_live` of an ended run");
    let fence = begin("waits").await;
    test.suspend("waits", fence, "q").await;
    same(
        test.is_live("r1").await,
        false,
        "`is_live` of a waiting run",
    );
    begin("third").await;
    same(test.is_live("r1").await, true, "`is_live` of a driven run");
    for run in ["over", "waits", "third"] {
        same(test.get(run).await.client_id, client("r1"), "the client id");
    }
}

async fn a_client_id_of_a_live_run_is_rejected<H: Runs>(test: Test<H>) {
    done(
        test.begin_as("first", "r1", secs(30)).await,
        "`begin` of a new run",
    );
    let again = async |what: &str| {
        let again = test.begin_as("second", "r1", secs(30)).await;
        fails(
            again,
            "run_live",
            format!("`begin` with the client id of {what}"),
        );
        fails(
            test.store.get(key("second")).await,
            "run_not_found",
            "`get` after a failed `begin`",
        );
        same(
            test.is_live("r1").await,
            true,
            format!("`is_live` of {what}"),
        );
    };
    again("a driven run").await;
    // Another process will resume it.
    test.set(30);
    again("an abandoned run").await;
    for _ in 0..MAX_TAKEOVERS {
        let claimed = test.claim("first", secs(0)).await;
        done(claimed, "`claim` of an abandoned run");
    }
    same(
        test.status("first").await,
        RunStatus::Quarantined,
        "the status after 5 takeovers",
    );
    again("a quarantined run").await;
    done(
        test.begin_as("second", "r2", secs(30)).await,
        "`begin` with another client id",
    );
    // Client ids are those of a tenant and a conversation.
    for (of, thread) in [("other", "thread"), ("acme", "other")] {
        let live = test
            .store
            .is_live(tenant(of), ThreadId::new(thread), client("r1"))
            .await;
        let what = format!("`is_live` for the tenant `{of}` and the thread `{thread}`");
        same(done(live, &what), false, &what);
        let key = RunKey::new(tenant(of), ThreadId::new(thread), client("x"));
        let begun = RunStore::begin(
            &test.store,
            key,
            client("r1"),
            running("hi").into(),
            secs(30),
        );
        done(begun.await, "`begin` with the client id of a run elsewhere");
    }
}

async fn waiting_runs_are_withdrawn_together<H: Runs>(test: Test<H>) {
    let withdraw = async |of: &'static str, thread: &str| {
        let withdrawn = test.store.withdraw(tenant(of), ThreadId::new(thread)).await;
        done(withdrawn, "`withdraw`")
    };
    for run in ["1", "2", "3"] {
        test.waiting(run, run).await;
    }
    let elsewhere = RunKey::new(tenant("acme"), ThreadId::new("other"), client("1"));
    let begun = RunStore::begin(
        &test.store,
        elsewhere.clone(),
        client("1"),
        running("hi").into(),
        secs(30),
    );
    let fence = done(begun.await, "`begin` in another conversation");
    let waits = test
        .store
        .suspend(elsewhere.clone(), fence, waiting("hi", "1").into());
    done(waits.await, "`suspend` with the newest fence");
    let claimed = done(test.claim("3", secs(30)).await, "`claim` of a waiting run");
    test.begin("4", secs(30)).await;
    test.begin("abandoned", secs(0)).await;

    same(
        withdraw("other", "thread").await,
        0,
        "the withdrawn runs of another tenant",
    );
    same(
        withdraw("acme", "none").await,
        0,
        "the withdrawn runs of a conversation without runs",
    );
    same(
        withdraw("acme", "thread").await,
        2,
        "the number of withdrawn runs",
    );
    same(
        withdraw("acme", "thread").await,
        0,
        "the number of runs that are withdrawn again",
    );
    for (run, status) in [
        ("1", RunStatus::Ended),
        ("2", RunStatus::Ended),
        // A claimed run is not withdrawn, even if it has waited before.
        ("3", RunStatus::Running),
        ("4", RunStatus::Running),
        ("abandoned", RunStatus::Abandoned),
    ] {
        let what = format!("the status of the run `{run}` after `withdraw`");
        same(test.status(run).await, status, what);
    }
    let other = done(
        test.store.get(elsewhere).await,
        "`get` in another conversation",
    );
    same(
        other.status,
        RunStatus::Suspended,
        "the status of a run of another conversation",
    );
    test.suspend("3", claimed.fence, "again").await;
}

async fn a_withdrawn_run_is_not_claimed<H: Runs>(test: Test<H>) {
    let version = test.waiting("run", "q").await;
    let withdrawn = test.store.withdraw(tenant("acme"), thread()).await;
    same(
        done(withdrawn, "`withdraw`"),
        1,
        "the number of withdrawn runs",
    );
    let newest = test.get("run").await.version;
    same(
        newest > version,
        true,
        "that the version increases with the end of a run",
    );
    for version in [version, newest] {
        let claim = test.claim_version("run", version, approve("q"), secs(30));
        fails(claim.await, "run_ended", "`claim` of a withdrawn run");
    }
    // A late reply still finds the run that it belongs to.
    let record = done(
        test.asking(&["q"]).await,
        "`find_by_interrupt` of a withdrawn run",
    );
    same(
        record.status,
        RunStatus::Ended,
        "the status of a withdrawn run",
    );
    same(record.replies, [], "the replies of a withdrawn run");
}

async fn a_withdrawn_run_was_aborted_by_the_user<H: Runs>(test: Test<H>) {
    test.waiting("run", "q").await;
    test.waiting("claimed", "p").await;
    let claimed = done(test.claim("claimed", secs(30)).await, "`claim`");
    let withdrawn = test.store.withdraw(tenant("acme"), thread()).await;
    same(
        done(withdrawn, "`withdraw`"),
        1,
        "the number of withdrawn runs",
    );
    let aborted = || {
        Some(Ok(Outcome::Aborted {
            reason: CancelReason::User,
        }))
    };
    let what = "the outcome of a withdrawn run";
    same(test.get("run").await.outcome, aborted(), what);
    let what = "the outcome of a claimed run after `withdraw`";
    same(test.get("claimed").await.outcome, None, what);
    // An earlier owner does not know that it was withdrawn.
    let fence = test.get("run").await.fence;
    test.end("run", fence).await;
    let what = "the outcome of a withdrawn run that was ended again";
    same(test.get("run").await.outcome, aborted(), what);
    test.end("claimed", claimed.fence).await;
}

async fn a_state_is_amended_only_while_the_run_can_be_claimed<H: Runs>(test: Test<H>) {
    let amend = |version, said: &str| {
        test.store
            .amend(key("run"), version, waiting(said, "q").into())
    };
    let version = test.waiting("run", "q").await;
    let mut expected = test.get("run").await;
    let newer = done(amend(version, "2").await, "`amend` of a waiting run");
    same(
        newer > version,
        true,
        "that `amend` returns a greater version",
    );
    expected.version = newer;
    expected.state = waiting("2", "q");
    same_run(&test.get("run").await, &expected, "an amended run");
    fails(
        amend(version, "3").await,
        "already_resumed",
        "`amend` of an older version",
    );
    let claim = test.claim_version("run", version, approve("q"), secs(30));
    fails(
        claim.await,
        "already_resumed",
        "`claim` of the version before an `amend`",
    );

    let claim = test.claim_version("run", newer, approve("q"), secs(30));
    let mut expected = done(claim.await, "`claim` of an amended run");
    test.set(29);
    fails(
        amend(expected.version, "3").await,
        "already_resumed",
        "`amend` of a driven run",
    );
    test.set(30);
    let amended = amend(expected.version, "3").await;
    expected.version = done(amended, "`amend` of an abandoned run");
    expected.state = waiting("3", "q");
    expected.status = RunStatus::Abandoned;
    // The accepted replies of an abandoned run stay.
    same_run(&test.get("run").await, &expected, "an amended run");
    let claimed = test.claim("run", secs(30)).await;
    test.end("run", done(claimed, "`claim` of an amended run").fence)
        .await;
    let version = test.get("run").await.version;
    fails(
        amend(version, "4").await,
        "run_ended",
        "`amend` of an ended run",
    );
}

async fn a_run_is_found_by_each_of_its_interrupts<H: Runs>(test: Test<H>) {
    test.waiting("run", "q1").await;
    let found = async |ids: &[&str]| {
        done(
            test.asking(ids).await,
            format!("`find_by_interrupt` of {ids:?}"),
        )
    };
    same(
        found(&["q1"]).await.key,
        key("run"),
        "the run with this interrupt",
    );
    same(
        found(&["other", "q1"]).await.key,
        key("run"),
        "the run with one of the interrupts",
    );
    let elsewhere =
        test.store
            .find_by_interrupt(tenant("acme"), ThreadId::new("other"), vec![question("q1")]);
    fails(
        elsewhere.await,
        "run_not_found",
        "`find_by_interrupt` in another conversation",
    );
    for none in [&["other"] as &[_], &[]] {
        let what = format!("`find_by_interrupt` of {none:?}");
        fails(test.asking(none).await, "run_not_found", what);
    }
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    );
    let saved = test
        .store
        .save(key("run"), claimed.fence, running("on").into(), secs(30));
    done(saved.await, "`save` with the newest fence");
    same(
        found(&["q1"]).await.key,
        key("run"),
        "the run of an answered interrupt",
    );
    test.suspend("run", claimed.fence, "q2").await;
    let mut record = found(&["q2"]).await;
    record.asked.sort();
    same(
        record.asked,
        [question("q1"), question("q2")],
        "all interrupts of the run",
    );
    let many: Vec<String> = (0..5_000).map(|n| format!("no {n}'")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["q1"]).collect();
    same(
        found(&many).await.key,
        key("run"),
        "the run of one of 5,000 interrupts",
    );
    let claimed = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    );
    test.end("run", claimed.fence).await;
    same(
        found(&["q1"]).await.status,
        RunStatus::Ended,
        "the status of the run when it has ended",
    );
}

async fn the_newest_run_with_an_interrupt_is_found<H: Runs>(test: Test<H>) {
    for run in ["b", "c", "a"] {
        test.waiting(run, "q").await;
        let found = done(test.asking(&["q", "p"]).await, "`find_by_interrupt`");
        same(found.key, key(run), "the newest run with the interrupt");
    }
    let claimed = done(test.claim("a", secs(30)).await, "`claim` of a waiting run");
    test.end("a", claimed.fence).await;
    let found = done(test.asking(&["q"]).await, "`find_by_interrupt`");
    same(
        found.key,
        key("a"),
        "the newest run with the interrupt, which has ended,",
    );
}

async fn a_run_is_found_by_its_client_id<H: Runs>(test: Test<H>) {
    let odd = "r1 ; % '🦀' :";
    let begun = test.begin_as("run", odd, secs(30)).await;
    let fence = done(begun, "`begin` of a run");
    let begun = test.begin_as("other", "r2", secs(30)).await;
    done(begun, "`begin` of another run");
    let status = async |expected: RunStatus, what: &str| {
        let found = done(test.of_client(odd).await, "`find_by_client_id`");
        let found = (found.key, found.client_id, found.status);
        let what = format!("the run that is found by its client id, {what},");
        same(found, (key("run"), client(odd), expected), what);
    };
    status(RunStatus::Running, "when it is driven").await;
    let found = done(test.of_client(odd).await, "`find_by_client_id`");
    same(
        found.lease_until,
        at(30),
        "the lease of a run that is found",
    );
    test.set(30);
    status(RunStatus::Abandoned, "when its lease has expired").await;
    test.suspend("run", fence, "q").await;
    status(RunStatus::Suspended, "when it waits").await;
    let claimed = done(test.claim("run", secs(30)).await, "`claim`");
    status(RunStatus::Running, "when it is claimed").await;
    test.end("run", claimed.fence).await;
    status(RunStatus::Ended, "when it has ended").await;

    let code = "run_not_found";
    // The key of a run is not its client id, and ids are no patterns.
    for none in ["run", "r%", "", "r1"] {
        let what = format!("`find_by_client_id` of `{none}`");
        fails(test.of_client(none).await, code, what);
    }
    for (of, thread) in [("acme", "other"), ("other", "thread"), ("acmethread", "")] {
        let (of, thread) = (tenant(of), ThreadId::new(thread));
        let found = test.store.find_by_client_id(of, thread, client(odd));
        let what = "`find_by_client_id` in another conversation";
        fails(found.await, code, what);
    }
}

async fn of_runs_with_one_client_id_the_live_one_is_found<H: Runs>(test: Test<H>) {
    let begin = async |run: &str| {
        let begun = test.begin_as(run, "r1", secs(30)).await;
        done(begun, "`begin` with the client id of an earlier run")
    };
    let found = async |expected: &str, what: &str| {
        let found = done(test.of_client("r1").await, "`find_by_client_id`");
        let what = format!("the run that is found by its client id, {what},");
        same(found.key, key(expected), what);
    };
    let fence = begin("b").await;
    test.suspend("b", fence, "q").await;
    let fence = begin("c").await;
    found("c", "of one that waits and a newer one").await;
    test.end("c", fence).await;
    found("c", "of one that waits and a newer one that has ended").await;
    let fence = begin("a").await;
    test.end("a", fence).await;
    found("a", "of two that have ended, the newer one").await;
    let claimed = done(test.claim("b", secs(30)).await, "`claim`");
    found("b", "of one that is driven and two newer ones").await;
    test.set(30);
    found("b", "of one that is abandoned and two newer ones").await;
    test.end("b", claimed.fence).await;
    found("a", "of three that have ended, the newest").await;
}

async fn waiting_runs_are_listed_by_their_time<H: Runs>(test: Test<H>) {
    test.begin("driven", secs(30)).await;
    for (now, run) in [(1, "b"), (2, "c"), (3, "a")] {
        test.set(now);
        test.waiting(run, run).await;
    }
    let waiting = async |limit| {
        let found = test.store.list_waiting(tenant("acme"), limit).await;
        let found = done(found, "`list_waiting`").into_iter();
        found
            .map(|run| (run.key, run.client_id, run.status))
            .collect::<Vec<_>>()
    };
    let all = ["b", "c", "a"].map(|run| (key(run), client(run), RunStatus::Suspended));
    same(waiting(9).await, all.clone(), "the waiting runs");
    same(
        waiting(2).await,
        all.iter().take(2).cloned().collect::<Vec<_>>(),
        "at most 2 waiting runs",
    );
    same(waiting(0).await, [], "at most 0 waiting runs");
    done(test.claim("c", secs(30)).await, "`claim`");
    let left: Vec<_> = all.into_iter().filter(|(of, ..)| *of != key("c")).collect();
    same(
        waiting(usize::MAX).await,
        left,
        "the waiting runs without one that is driven",
    );
}

async fn the_runs_of_a_conversation_are_listed_in_order<H: Runs>(test: Test<H>) {
    test.begin("driven", secs(30)).await;
    test.begin("late", secs(9)).await;
    for run in ["b", "c", "a"] {
        test.waiting(run, run).await;
    }
    let fence = test.begin("over", secs(30)).await;
    test.end("over", fence).await;
    test.set(10);
    let listed = async |message: Option<&'static str>, limit| {
        let message = message.map(MessageId::new);
        let found = test
            .store
            .list_by_thread(tenant("acme"), thread(), message, limit);
        let found = done(found.await, "`list_by_thread`").into_iter();
        found
            .map(|run| (run.key.run.to_string(), run.status))
            .collect::<Vec<_>>()
    };
    // Waiting runs first, then the others by the end of their leases.
    let all = [
        ("b", RunStatus::Suspended),
        ("c", RunStatus::Suspended),
        ("a", RunStatus::Suspended),
        ("late", RunStatus::Abandoned),
        ("driven", RunStatus::Running),
    ];
    let all = all.map(|(run, status)| (run.to_owned(), status));
    let first = |n: usize| all.iter().take(n).cloned().collect::<Vec<_>>();
    same(listed(None, 9).await, first(9), "the list of runs");
    same(
        listed(Some("m"), usize::MAX).await,
        first(9),
        "the list of the runs of their message",
    );
    same(
        listed(None, 2).await,
        first(2),
        "the list of at most 2 runs",
    );
    same(
        listed(None, 0).await,
        first(0),
        "the list of at most 0 runs",
    );
    same(
        listed(Some("other"), 9).await,
        first(0),
        "the list of the runs of another message",
    );
    let found = test.store.list_by_thread(tenant("acme"), thread(), None, 1);
    let found = done(found.await, "`list_by_thread`");
    let found = found.into_iter().map(|run| run.client_id);
    same(
        found.collect::<Vec<_>>(),
        [client("b")],
        "the client id of a listed run",
    );
    let abandoned = done(
        test.store.claim_abandoned(9, secs(30)).await,
        "`claim_abandoned`",
    );
    same(names(&abandoned), ["late"], "the abandoned runs");
}
