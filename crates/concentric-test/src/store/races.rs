//! Several handles compete for a run, a key or a version: one of them wins.

#![expect(
    clippy::indexing_slicing,
    reason = "arrays with an entry for each case"
)]

use super::{
    kit::{LedgerOfRuns, Runs, Test, done, names, race, rounds, same},
    ledger::{effect, intent},
    threads::{WithThreads, add, id},
    values::{approve, client, key, running, secs, tenant, thread, waiting},
};
use crate::StoreHarness;
use concentric_core::store::{
    Ledger, LedgerEntry, Once, Renewed, RunChange, RunStatus, RunStore, StoreError, ThreadStore,
};
use std::fmt::Debug;

cases! {
    $ __store_races races [RunStore]
    one_of_two_processes_begins_a_run
    one_of_two_runs_with_a_client_id_begins
    one_of_two_processes_claims_a_waiting_run
    one_of_two_processes_takes_a_run_over
    two_processes_claim_different_abandoned_runs
    a_run_is_either_claimed_or_withdrawn
    a_run_is_either_claimed_or_amended
    an_owner_either_writes_or_loses_its_claim
    a_cut_connection_loses_no_acknowledged_write
}

cases! {
    $ __store_races_of_ledger races_of_ledger [RunStore, Ledger]
    one_of_two_processes_begins_an_effect
    an_effect_begins_with_a_claim_or_not_at_all
}

cases! {
    $ __store_races_of_once races_of_once [Once]
    one_of_two_processes_uses_a_key
}

cases! {
    $ __store_races_of_threads races_of_threads [ThreadStore]
    one_of_two_processes_appends_at_a_version
    one_of_two_processes_creates_a_conversation
    one_of_two_processes_forks_to_an_id
    a_conversation_has_each_acknowledged_change_once
}

/// The value of the only operation that succeeded; the other must have failed with one of `codes`.
#[track_caller]
fn winner<T: Debug>(results: [Result<T, StoreError>; 2], codes: &[&str], what: &str) -> (usize, T) {
    let mut won = Vec::new();
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => won.push((n, value)),
            Err(error) => {
                let is_expected = codes.contains(&error.code());
                let expected = format!("the error of the process that lost, one of {codes:?},");
                same(
                    is_expected,
                    true,
                    format!("{what}: that {error:?} is {expected}"),
                );
            }
        }
    }
    same(
        won.len(),
        1,
        format!("{what}: the number of processes that succeeded, of two,"),
    );
    won.remove(0)
}

async fn one_of_two_processes_begins_a_run<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        let change = || RunChange::from(running("hi"));
        let results = race(
            RunStore::begin(
                &test.store,
                key(&run),
                client(&format!("{run} a")),
                change(),
                secs(30),
            ),
            RunStore::begin(
                &other,
                key(&run),
                client(&format!("{run} b")),
                change(),
                secs(30),
            ),
        );
        let (won, fence) = winner(
            results.await,
            &["run_exists"],
            "`begin` of one key by two processes",
        );
        let record = test.get(&run).await;
        let expected = (fence, client(&format!("{run} {}", ["a", "b"][won])));
        same(
            (record.fence, record.client_id),
            expected,
            "the fence and client id of the run",
        );
    }
}

async fn one_of_two_runs_with_a_client_id_begins<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let (name, change) = (format!("{round}"), || RunChange::from(running("hi")));
        let runs = ["a", "b"].map(|of| format!("{round} {of}"));
        let results = race(
            RunStore::begin(
                &test.store,
                key(&runs[0]),
                client(&name),
                change(),
                secs(30),
            ),
            RunStore::begin(&other, key(&runs[1]), client(&name), change(), secs(30)),
        );
        winner(
            results.await,
            &["run_live"],
            "`begin` of two runs with one client id",
        );
    }
}

async fn one_of_two_processes_claims_a_waiting_run<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        test.waiting(&run, &run).await;
        let record = test.get(&run).await;
        let results = race(
            test.store.claim(record.clone(), approve(&run), secs(30)),
            other.claim(record, approve(&run), secs(30)),
        );
        let (_, record) = winner(
            results.await,
            &["already_resumed"],
            "`claim` by two processes",
        );
        same(
            test.get(&run).await.fence,
            record.fence,
            "the fence of the run",
        );
        test.end(&run, record.fence).await;
    }
}

async fn one_of_two_processes_takes_a_run_over<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        test.begin(&run, secs(0)).await;
        let record = test.get(&run).await;
        let sweep = test.store.claim_abandoned(9, secs(30));
        let claim = other.claim(record, Vec::new(), secs(30));
        let (swept, claimed) = tokio::join!(tokio::spawn(sweep), tokio::spawn(claim));
        let swept = swept.map_or(Vec::new(), |swept| done(swept, "`claim_abandoned`"));
        let claimed = claimed.map(|claimed| claimed.is_ok()).unwrap_or_default();
        let what =
            "the number of processes that took the run over, by `claim_abandoned` or by `claim`,";
        same(swept.len() + usize::from(claimed), 1, what);
        let record = test.get(&run).await;
        same(record.takeovers, 1, "the takeovers of the run");
        test.end(&run, record.fence).await;
    }
}

async fn two_processes_claim_different_abandoned_runs<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let runs: Vec<String> = (0..6).map(|n| format!("{round} {n}")).collect();
        for run in &runs {
            test.begin(run, secs(0)).await;
        }
        let results = race(
            test.store.claim_abandoned(4, secs(30)),
            other.claim_abandoned(4, secs(30)),
        );
        let mut found = Vec::new();
        for result in results.await {
            let claimed = done(result, "`claim_abandoned`");
            same(claimed.len() <= 4, true, "that at most 4 runs are claimed");
            found.extend(claimed);
        }
        // A process may find fewer than there are while another one claims them.
        found.extend(done(
            test.store.claim_abandoned(9, secs(30)).await,
            "`claim_abandoned`",
        ));
        let mut claimed = names(&found);
        claimed.sort_unstable();
        same(
            &claimed,
            &runs,
            "the runs that two processes claimed, each once,",
        );
        for record in found {
            same(record.takeovers, 1, "the takeovers of a claimed run");
            test.end(record.key.run.as_str(), record.fence).await;
        }
    }
}

async fn a_run_is_either_claimed_or_withdrawn<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        test.waiting(&run, &run).await;
        let record = test.get(&run).await;
        let claim = test.store.claim(record, approve(&run), secs(30));
        let withdraw = other.withdraw(tenant("acme"), thread());
        let (claimed, withdrawn) = tokio::join!(tokio::spawn(claim), tokio::spawn(withdraw));
        let claimed = claimed.map(|claimed| claimed.ok()).unwrap_or_default();
        let withdrawn = withdrawn.map_or(9, |withdrawn| done(withdrawn, "`withdraw`"));
        let what = "the number of withdrawn runs, and of claims of the same run,";
        same(withdrawn + usize::from(claimed.is_some()), 1, what);
        if let Some(record) = claimed {
            test.end(&run, record.fence).await;
        }
        same(
            test.status(&run).await,
            RunStatus::Ended,
            "the status of the run",
        );
    }
}

async fn a_run_is_either_claimed_or_amended<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        let version = test.waiting(&run, &run).await;
        let record = test.get(&run).await;
        let claim = test.store.claim(record, Vec::new(), secs(30));
        let amend = other.amend(key(&run), version, waiting("amended", &run).into());
        let (claimed, amended) = tokio::join!(tokio::spawn(claim), tokio::spawn(amend));
        let claimed = claimed.map(|claimed| claimed.ok()).unwrap_or_default();
        let amended = amended.map(|amended| amended.is_ok()).unwrap_or_default();
        same(
            claimed.is_some(),
            !amended,
            "that a run is claimed, if it is not amended at the same version,",
        );
        let text = if amended { "amended" } else { "hi" };
        let is_same = test.get(&run).await.state == waiting(text, &run);
        same(
            is_same,
            true,
            "that the run has the state of the process that won",
        );
        let withdrawn = test.store.withdraw(tenant("acme"), thread()).await;
        done(withdrawn, "`withdraw`");
        if let Some(record) = claimed {
            same(
                record.state == waiting("hi", &run),
                true,
                "that the claimed state is the stored one",
            );
            test.end(&run, record.fence).await;
        }
    }
}

async fn an_owner_either_writes_or_loses_its_claim<H: Runs>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let run = format!("run {round}");
        let fence = test.begin(&run, secs(0)).await;
        let save = test
            .store
            .save(key(&run), fence, running("saved").into(), secs(0));
        let take = other.claim_abandoned(1, secs(30));
        let (saved, taken) = tokio::join!(tokio::spawn(save), tokio::spawn(take));
        let saved = saved.map(|saved| saved.is_ok()).unwrap_or_default();
        let taken = taken.map_or(Vec::new(), |taken| done(taken, "`claim_abandoned`"));
        let record = test.get(&run).await;
        let text = if saved { "saved" } else { "hi" };
        same(
            record.state == running(text),
            true,
            "that the run has the last acknowledged state",
        );
        if let [taken] = &*taken {
            let is_new = taken.state == running(text);
            same(
                is_new,
                true,
                "that the process that takes a run over has the last acknowledged state",
            );
            let late = test
                .store
                .save(key(&run), fence, running("late").into(), secs(0))
                .await;
            same(late.is_err(), true, "that a write after the takeover fails");
        }
        test.end(&run, record.fence).await;
    }
}

async fn a_cut_connection_loses_no_acknowledged_write<H: Runs>(test: Test<H>) {
    for round in 0..rounds() {
        let run = format!("run {round}");
        let fence = test.begin(&run, secs(30)).await;
        let mut last = String::from("hi");
        for n in 0..3 {
            let next = format!("{round} {n}");
            let save = test
                .store
                .save(key(&run), fence, running(&next).into(), secs(30));
            let save = tokio::spawn(save);
            test.harness.cut_connections().await;
            let saved = save.await.is_ok_and(|saved| saved.is_ok());
            // The first operation after a cut may find the broken connection.
            let mut found = test.store.get(key(&run)).await;
            for _ in 0..5 {
                if let Err(StoreError::Failed(_)) = found {
                    found = test.store.get(key(&run)).await;
                }
            }
            let found = done(found, "`get` after the connections were cut").state;
            let is_next = found == running(&next);
            let is_whole = is_next || (!saved && found == running(&last));
            let what = format!("that the state is the last acknowledged one (saved: {saved})");
            same(is_whole, true, what);
            last = if is_next { next } else { last };
        }
        let mut renewed = test.store.renew(key(&run), fence, secs(30)).await;
        for _ in 0..5 {
            if let Err(StoreError::Failed(_)) = renewed {
                renewed = test.store.renew(key(&run), fence, secs(30)).await;
            }
        }
        let what = "the result of `renew` after the connections were cut";
        same(done(renewed, "`renew`"), Renewed::Held, what);
    }
}

async fn one_of_two_processes_begins_an_effect<H: LedgerOfRuns>(test: Test<H>) {
    let other = test.harness.open().await;
    let fence = test.begin("run", secs(30)).await;
    for round in 0..rounds() {
        let name = format!("e{round}");
        let begin =
            |store: &H::Store| Ledger::begin(store, effect(&name), intent(Some(("run", fence))));
        let results = race(begin(&test.store), begin(&other)).await;
        let mut entries = results.map(|entry| done(entry, "`begin` of an effect"));
        entries.sort_by_key(|entry| *entry != LedgerEntry::New);
        let expected = [LedgerEntry::New, LedgerEntry::Started];
        same(
            entries,
            expected,
            "what two processes find that begin one effect",
        );
    }
}

async fn an_effect_begins_with_a_claim_or_not_at_all<H: LedgerOfRuns>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let (run, name) = (format!("run {round}"), format!("e{round}"));
        let fence = test.begin(&run, secs(0)).await;
        let begin = Ledger::begin(&test.store, effect(&name), intent(Some((&run, fence))));
        let take = other.claim_abandoned(1, secs(30));
        let (begun, taken) = tokio::join!(tokio::spawn(begin), tokio::spawn(take));
        let begun = begun.map(|begun| begun.is_ok()).unwrap_or_default();
        let taken = taken.map_or(Vec::new(), |taken| done(taken, "`claim_abandoned`"));
        let known = done(test.store.known(effect(&name)).await, "`known`");
        let expected = if begun {
            LedgerEntry::Started
        } else {
            LedgerEntry::New
        };
        same(
            known,
            expected,
            "the effect, which is begun only if its `begin` succeeded,",
        );
        if !taken.is_empty() {
            let late =
                Ledger::begin(&test.store, effect("late"), intent(Some((&run, fence)))).await;
            same(
                late.is_err(),
                true,
                "that an effect of an earlier claim is rejected",
            );
        }
        let fence = test.get(&run).await.fence;
        test.end(&run, fence).await;
    }
}

async fn one_of_two_processes_uses_a_key<H: StoreHarness<Store: Once>>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() * 5 {
        let once =
            |store: &H::Store| store.once(tenant("acme"), format!("{round}").into(), secs(9));
        let results = race(once(&test.store), once(&other)).await;
        let firsts = results
            .map(|first| done(first, "`once`"))
            .into_iter()
            .filter(|first| *first);
        same(
            firsts.count(),
            1,
            "the number of processes that use a key first, of two,",
        );
    }
}

async fn one_of_two_processes_appends_at_a_version<H: WithThreads>(test: Test<H>) {
    let other = test.harness.open().await;
    let (mut version, mut expected) = (0, Vec::new());
    for round in 0..rounds() {
        let texts = ["one", "two"].map(|name| format!("{name}{round}"));
        let keep = expected.len();
        let append = |store: &H::Store, text: &str| {
            store.append(tenant("acme"), id("t"), version, add(keep, &[text]))
        };
        let results = race(append(&test.store, &texts[0]), append(&other, &texts[1])).await;
        let (won, next) = winner(
            results,
            &["thread_moved"],
            "`append` by two processes at one version",
        );
        version = next;
        expected.push(texts[won].clone());
        same(
            test.texts("t").await,
            (expected.join(" "), version),
            "the conversation",
        );
    }
}

async fn one_of_two_processes_creates_a_conversation<H: WithThreads>(test: Test<H>) {
    let other = test.harness.open().await;
    for round in 0..rounds() {
        let thread = format!("t{round}");
        let create = |store: &H::Store, text: &str| {
            store.append(tenant("acme"), id(&thread), 0, add(0, &[text]))
        };
        let results = race(create(&test.store, "one"), create(&other, "two")).await;
        let (won, version) = winner(results, &["thread_moved"], "creation by two processes");
        let expected = (["one", "two"][won].to_owned(), version);
        same(test.texts(&thread).await, expected, "the conversation");
    }
}

async fn one_of_two_processes_forks_to_an_id<H: WithThreads>(test: Test<H>) {
    let other = test.harness.open().await;
    let version = test.append("t", 0, add(0, &["a"])).await;
    for round in 0..rounds() {
        let to = format!("f{round}");
        let fork = |store: &H::Store, text: &str| {
            store.fork(tenant("acme"), id("t"), version, id(&to), add(1, &[text]))
        };
        let results = race(fork(&test.store, "one"), fork(&other, "two")).await;
        let (won, version) = winner(
            results,
            &["thread_moved"],
            "`fork` by two processes to one id",
        );
        let expected = (format!("a {}", ["one", "two"][won]), version);
        same(test.texts(&to).await, expected, "the fork");
    }
}

async fn a_conversation_has_each_acknowledged_change_once<H: WithThreads>(test: Test<H>) {
    let (mut version, mut expected) = (0, Vec::<String>::new());
    for round in 0..rounds() * 2 {
        let mut change = add(expected.len(), &[&format!("{round}")]);
        change.id = Some(format!("change {round}").into());
        let append = test
            .store
            .append(tenant("acme"), id("t"), version, change.clone());
        let append = tokio::spawn(append);
        test.harness.cut_connections().await;
        // Whether or not the change was applied, and whether or not its answer was lost, it is repeated.
        let _ = append.await;
        let mut again = test.try_append("t", version, change.clone()).await;
        for _ in 0..5 {
            if let Err(StoreError::Failed(_)) = again {
                again = test.try_append("t", version, change.clone()).await;
            }
        }
        version = done(again, "a repeated `append`");
        expected.push(round.to_string());
        same(
            test.texts("t").await,
            (expected.join(" "), version),
            "the conversation",
        );
    }
}
