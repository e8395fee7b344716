//! Two tenants with the same ids: neither reads or changes what belongs to the other.

use super::{
    kit::{All, Every, Runs, Test, done, fails, same, same_run},
    ledger::{effect, finished, intent},
    threads::{WithThreads, add, id},
    values::{
        approve, cached, client, fill, key, key_of, question, running, secs, tenant, thread,
        waiting,
    },
};
use crate::StoreHarness;
use concentric_core::{
    ErrorKind, Outcome, RunId, Str, ToolOutcome,
    store::{
        CacheStore, Decisions, EffectKey, Ledger, LedgerEntry, MAX_TAKEOVERS, Memories, Once,
        Renewed, RunChange, RunKey, RunStatus, RunStore, StoreError, StoredDecision, StoredScope,
        ThreadStore,
    },
};

cases! {
    $ __store_tenants_of_runs tenants_of_runs [RunStore]
    another_tenant_reads_and_writes_no_run
    runs_of_two_tenants_with_the_same_ids_are_apart
    a_quarantined_run_is_released_by_its_tenant_only
}

cases! {
    $ __store_tenants_of_ledger tenants_of_ledger [Ledger]
    tenants_do_not_share_effects
}

cases! {
    $ __store_tenants_of_threads tenants_of_threads [ThreadStore]
    another_tenant_reads_and_writes_no_conversation
    conversations_of_two_tenants_with_the_same_ids_are_apart
}

cases! {
    $ __store_tenants_of_all tenants_of_all [RunStore, Ledger, Decisions, ThreadStore]
    a_deleted_conversation_takes_nothing_of_another_tenant
}

cases! {
    $ __store_tenants_of_every tenants_of_every
        [RunStore, Ledger, Once, Decisions, ThreadStore, Memories, CacheStore, BudgetStore]
    nothing_of_a_deleted_tenant_is_left
}

fn theirs(run: &str) -> RunKey {
    key_of("other", run)
}

async fn another_tenant_reads_and_writes_no_run<H: Runs>(test: Test<H>) {
    let fence = test.begin("driven", secs(30)).await;
    let version = test.waiting("waits", "q").await;
    test.begin("left", secs(0)).await;
    let over = test.begin("over", secs(30)).await;
    test.end("over", over).await;
    let runs = ["driven", "waits", "left", "over"];
    let mut before = Vec::new();
    for run in runs {
        before.push(test.get(run).await);
    }
    let (store, code) = (&test.store, "run_not_found");
    for run in runs {
        let of = format!("of the run `{run}` by another tenant");
        let fences = [fence, version];
        fails(store.get(theirs(run)).await, code, format!("`get` {of}"));
        for n in fences {
            let mut record = test.get(run).await;
            (record.key, record.version) = (theirs(run), n);
            let claim = store.claim(record, approve("q"), secs(30)).await;
            fails(claim, code, format!("`claim` {of}"));
            let change = || RunChange::from(running("theirs"));
            fails(
                store.amend(theirs(run), n, change()).await,
                code,
                format!("`amend` {of}"),
            );
            let saved = store.save(theirs(run), n, change(), secs(90)).await;
            fails(saved, code, format!("`save` {of}"));
            let renewed = store.renew(theirs(run), n, secs(90)).await;
            fails(renewed, code, format!("`renew` {of}"));
            let suspended = store.suspend(theirs(run), n, change()).await;
            fails(suspended, code, format!("`suspend` {of}"));
            fails(
                store.end(theirs(run), n, Ok(Outcome::Completed)).await,
                code,
                format!("`end` {of}"),
            );
        }
        let cancelled = done(store.cancel(theirs(run)).await, "`cancel`");
        same(cancelled, false, format!("the result of `cancel` {of}"));
        let released = done(store.release(theirs(run)).await, "`release`");
        same(released, false, format!("the result of `release` {of}"));
        let found = store.find_by_client_id(tenant("other"), thread(), client(run));
        fails(found.await, code, format!("`find_by_client_id` {of}"));
        let live = store.is_live(tenant("other"), thread(), client(run)).await;
        same(done(live, "`is_live`"), false, format!("`is_live` {of}"));
    }
    let withdrawn = store.withdraw(tenant("other"), thread()).await;
    same(
        done(withdrawn, "`withdraw`"),
        0,
        "the number of runs that another tenant withdraws",
    );
    let listed = store
        .list_by_thread(tenant("other"), thread(), None, 9)
        .await;
    same(
        done(listed, "`list_by_thread`"),
        [],
        "the runs that another tenant lists",
    );
    let waiting = store.list_waiting(tenant("other"), 9).await;
    same(
        done(waiting, "`list_waiting`"),
        [],
        "the waiting runs that another tenant lists",
    );
    let found = store
        .find_by_interrupt(tenant("other"), thread(), vec![question("q")])
        .await;
    fails(found, code, "`find_by_interrupt` by another tenant");
    // The parts of a key are not joined.
    for (of, thread) in [
        ("acmethread", ""),
        ("", "acmethread"),
        ("acme/thread", ""),
        ("acme", ""),
    ] {
        let odd = RunKey::new(tenant(of), id(thread), RunId::new("driven"));
        fails(
            store.get(odd).await,
            code,
            "`get` of a key with other borders between its parts",
        );
    }
    for (run, before) in runs.into_iter().zip(before) {
        let what = format!("the run `{run}` after calls of another tenant");
        same_run(&test.get(run).await, &before, what);
    }
}

async fn runs_of_two_tenants_with_the_same_ids_are_apart<H: Runs>(test: Test<H>) {
    let store = &test.store;
    let begin_theirs = async |run: &str| {
        let begun = RunStore::begin(
            store,
            theirs(run),
            client(run),
            running("theirs").into(),
            secs(60),
        );
        done(begun.await, "`begin` with the ids of another tenant's run")
    };
    let driven = test.begin("driven", secs(60)).await;
    test.waiting("waits", "q").await;
    let theirs_driven = begin_theirs("driven").await;
    let fence = begin_theirs("waits").await;
    let waits = store.suspend(theirs("waits"), fence, waiting("theirs", "q").into());
    done(waits.await, "`suspend` with the newest fence");
    let before = [test.get("driven").await, test.get("waits").await];

    // The fence of one tenant's run is worth nothing for that of the other.
    let state = || RunChange::from(running("late"));
    let saved = store
        .save(key("driven"), theirs_driven, state(), secs(90))
        .await;
    fails(
        saved,
        "stale_claim",
        "`save` with the fence of another tenant's run",
    );
    let renewed = store.renew(theirs("driven"), driven, secs(90)).await;
    fails(
        renewed,
        "stale_claim",
        "`renew` with the fence of another tenant's run",
    );

    let found = store
        .find_by_interrupt(tenant("other"), thread(), vec![question("q")])
        .await;
    same(
        done(found, "`find_by_interrupt`").key,
        theirs("waits"),
        "the run with the interrupt",
    );
    let found = done(test.asking(&["q"]).await, "`find_by_interrupt`");
    same(found.key, key("waits"), "the run with the interrupt");
    let listed = store
        .list_by_thread(tenant("other"), thread(), None, 9)
        .await;
    let listed = done(listed, "`list_by_thread`")
        .into_iter()
        .map(|run| run.key);
    same(
        listed.collect::<Vec<_>>(),
        [theirs("waits"), theirs("driven")],
        "the runs of another tenant",
    );

    let saved = store.save(
        theirs("driven"),
        theirs_driven,
        running("2").into(),
        secs(90),
    );
    done(saved.await, "`save` of another tenant");
    let cancelled = store.cancel(theirs("driven")).await;
    same(
        done(cancelled, "`cancel`"),
        true,
        "the result of `cancel` of another tenant",
    );
    let version = done(store.get(theirs("waits")).await, "`get` of another tenant").version;
    let amended = store
        .amend(theirs("waits"), version, waiting("2", "q2").into())
        .await;
    done(amended, "`amend` of another tenant");
    let record = done(store.get(theirs("waits")).await, "`get` of another tenant");
    let claimed = store.claim(record, approve("q2"), secs(30)).await;
    let fence = done(claimed, "`claim` of another tenant").fence;
    let waits = store.suspend(theirs("waits"), fence, waiting("3", "q3").into());
    done(waits.await, "`suspend` of another tenant");
    let withdrawn = store.withdraw(tenant("other"), thread()).await;
    same(
        done(withdrawn, "`withdraw`"),
        1,
        "the number of withdrawn runs of another tenant",
    );
    let ended = store.end(theirs("driven"), theirs_driven, Err(ErrorKind::Quota));
    done(ended.await, "`end` of another tenant");
    let found = store.find_by_client_id(tenant("other"), thread(), client("driven"));
    let found = done(found.await, "`find_by_client_id` of another tenant");
    same(
        (found.key, found.outcome),
        (theirs("driven"), Some(Err(ErrorKind::Quota))),
        "the run that another tenant finds by its client id",
    );
    let found = done(test.of_client("driven").await, "`find_by_client_id`");
    same(
        (found.key, found.outcome),
        (key("driven"), None),
        "the run that is found by a client id that another tenant has, too,",
    );
    let live = store
        .is_live(tenant("other"), thread(), client("driven"))
        .await;
    same(
        done(live, "`is_live`"),
        false,
        "`is_live` of an ended run of another tenant",
    );

    for before in before {
        let run = before.key.run.to_string();
        let what = format!("the run `{run}` after calls of another tenant for its own");
        same_run(&test.get(&run).await, &before, what);
    }
    same(
        test.is_live("driven").await,
        true,
        "`is_live` of a driven run",
    );
    let renewed = store.renew(key("driven"), driven, secs(60)).await;
    let what = "the renewal of a run after another tenant cancelled its own";
    same(done(renewed, "`renew`"), Renewed::Held, what);
}

async fn a_quarantined_run_is_released_by_its_tenant_only<H: Runs>(test: Test<H>) {
    for key in [key("run"), theirs("run")] {
        let begun = RunStore::begin(
            &test.store,
            key.clone(),
            client("run"),
            running("hi").into(),
            secs(0),
        );
        done(begun.await, "`begin` of a new run");
        for _ in 0..MAX_TAKEOVERS {
            let record = done(test.store.get(key.clone()).await, "`get`");
            let claim = test.store.claim(record, Vec::new(), secs(0)).await;
            done(claim, "`claim` of an abandoned run");
        }
    }
    let released = test.store.release(theirs("run")).await;
    same(
        done(released, "`release`"),
        true,
        "the result of `release` of another tenant",
    );
    let status = test.status("run").await;
    same(
        status,
        RunStatus::Quarantined,
        "the status after another tenant released its own run",
    );
    let claimed = done(
        test.store.claim_abandoned(9, secs(30)).await,
        "`claim_abandoned`",
    );
    let claimed: Vec<_> = claimed.into_iter().map(|record| record.key).collect();
    same(claimed, [theirs("run")], "the abandoned runs");
}

async fn tenants_do_not_share_effects<H: StoreHarness<Store: Ledger>>(test: Test<H>) {
    let store = &test.store;
    let theirs = || EffectKey::new(tenant("other"), "e");
    let begin = async |key| {
        done(
            Ledger::begin(store, key, intent(None)).await,
            "`begin` of an effect",
        )
    };
    let known = async |key| done(store.known(key).await, "`known`");
    same(
        begin(effect("e")).await,
        LedgerEntry::New,
        "the first `begin` of an effect",
    );
    same(
        known(theirs()).await,
        LedgerEntry::New,
        "the effect of another tenant",
    );
    let finish = store.finish(theirs(), ToolOutcome::done("theirs")).await;
    fails(finish, "run_not_found", "`finish` of another tenant");
    done(store.retract(theirs()).await, "`retract` of another tenant");
    same(
        known(effect("e")).await,
        LedgerEntry::Started,
        "the effect after calls of another tenant",
    );

    same(
        begin(theirs()).await,
        LedgerEntry::New,
        "`begin` of the effect of another tenant",
    );
    let outcome = ToolOutcome::done("ours");
    done(
        store.finish(effect("e"), outcome.clone()).await,
        "`finish` of an effect",
    );
    same(
        known(theirs()).await,
        LedgerEntry::Started,
        "the effect of another tenant",
    );
    done(store.retract(theirs()).await, "`retract` of another tenant");
    same(
        known(theirs()).await,
        LedgerEntry::New,
        "the effect of another tenant",
    );
    same(
        known(effect("e")).await,
        finished(&outcome),
        "the effect after `retract` of another tenant",
    );
}

#[track_caller]
fn moved(result: Result<u64, StoreError>, what: &str) {
    fails(result, "thread_moved", what);
}

async fn another_tenant_reads_and_writes_no_conversation<H: WithThreads>(test: Test<H>) {
    let version = test.append("t", 0, add(0, &["secret"])).await;
    let store = &test.store;
    let other = || tenant("other");
    let loaded = done(
        store.load(other(), id("t")).await,
        "`load` by another tenant",
    );
    same(
        loaded.is_none(),
        true,
        "that another tenant loads no conversation",
    );
    let found = store.turns(other(), id("t"), Some(0), 9).await;
    let found = done(found, "`turns` by another tenant");
    same(found, None, "the turns that another tenant reads");
    let appended = store
        .append(other(), id("t"), version, add(1, &["x"]))
        .await;
    moved(appended, "`append` by another tenant");
    let forked = store
        .fork(other(), id("t"), version, id("u"), add(1, &[]))
        .await;
    moved(forked, "`fork` by another tenant");
    let listed = done(store.list_threads(other(), None, 9).await, "`list_threads`");
    same(listed, [], "the conversations that another tenant lists");
    let deleted = done(
        store.delete(other(), id("t")).await,
        "`delete` by another tenant",
    );
    same(deleted, false, "the result of `delete` by another tenant");
    same(
        test.texts("t").await,
        ("secret".to_owned(), version),
        "the conversation",
    );
    let odd = store.load(tenant("acmet"), id("")).await;
    let odd = done(odd, "`load` of a key with another border between its parts");
    same(
        odd.is_none(),
        true,
        "that the parts of a key are not joined",
    );
}

async fn conversations_of_two_tenants_with_the_same_ids_are_apart<H: WithThreads>(test: Test<H>) {
    let store = &test.store;
    let other = || tenant("other");
    let change = |text| {
        let mut change = add(0, &[text]);
        change.id = Some("change 1".into());
        change
    };
    let version = test.append("t", 0, change("ours")).await;
    let theirs = store.append(other(), id("t"), 0, change("theirs")).await;
    let theirs = done(
        theirs,
        "`append` with the ids of another tenant's conversation and change",
    );
    same(
        test.texts("t").await,
        ("ours".to_owned(), version),
        "the conversation",
    );
    let listed = done(store.list_threads(other(), None, 9).await, "`list_threads`");
    let listed: Vec<_> = listed
        .iter()
        .map(|it| (it.thread.as_str(), it.version))
        .collect();
    same(
        listed,
        [("t", theirs)],
        "the conversations of another tenant",
    );
    let forked = store
        .fork(other(), id("t"), theirs, id("u"), add(1, &["x"]))
        .await;
    done(forked, "`fork` of another tenant");
    same(
        test.load("u").await.is_none(),
        true,
        "that a fork belongs to the tenant of its source",
    );
    let deleted = done(
        store.delete(other(), id("t")).await,
        "`delete` of another tenant",
    );
    same(deleted, true, "the result of `delete` of another tenant");
    same(
        test.texts("t").await,
        ("ours".to_owned(), version),
        "the conversation",
    );
    let left = done(
        store.load(other(), id("u")).await,
        "`load` of another tenant",
    );
    same(
        left.unwrap_or_default().history.len(),
        2,
        "the number of turns of another tenant's fork",
    );
}

async fn a_deleted_conversation_takes_nothing_of_another_tenant<H: All>(test: Test<H>) {
    let store = &test.store;
    let fence = test.begin("run", secs(30)).await;
    let before = test.get("run").await;
    let begun = Ledger::begin(store, effect("e"), intent(Some(("run", fence)))).await;
    done(begun, "`begin` of an effect");
    let decision = |of| {
        let (tool, definition) = (Str::from("t"), Str::from("d"));
        let span = StoredScope::Thread(id("thread"));
        let at = super::values::at(0);
        StoredDecision::new(tenant(of), tool, definition, None, span, true, None, at)
    };
    for of in ["acme", "other"] {
        done(store.remember(decision(of)).await, "`remember`");
    }
    let begun = RunStore::begin(
        store,
        theirs("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    );
    done(begun.await, "`begin` of another tenant");
    let deleted = store.delete(tenant("other"), id("thread")).await;
    done(deleted, "`delete` of another tenant");
    fails(
        store.get(theirs("run")).await,
        "run_not_found",
        "`get` of a deleted run of another tenant",
    );
    same_run(
        &test.get("run").await,
        &before,
        "a run after another tenant deleted its conversation",
    );
    let known = done(store.known(effect("e")).await, "`known`");
    same(
        known,
        LedgerEntry::Started,
        "an effect after another tenant deleted its conversation",
    );
    let left = done(store.list(tenant("acme")).await, "`list`");
    same(
        left,
        [decision("acme")],
        "the decisions after another tenant deleted its conversation",
    );
}

/// The entries of a tenant that [`fill`] has stored and that the store still has.
async fn left<H: Every>(test: &Test<H>, of: &'static str) -> Vec<&'static str> {
    let (store, tenant) = (&test.store, || tenant(of));
    let mut left = Vec::new();
    let mut note = |is_left: bool, entry| {
        if is_left {
            left.push(entry);
        }
    };
    let listed = store.list_threads(tenant(), None, 9).await;
    note(!done(listed, "`list_threads`").is_empty(), "conversations");
    for (run, entry) in [("run", "the run"), ("waits", "the waiting run")] {
        note(store.get(key_of(of, run)).await.is_ok(), entry);
    }
    let asked = store.find_by_interrupt(tenant(), thread(), vec![question("q")]);
    note(asked.await.is_ok(), "the interrupt");
    for (effect, entry) in [
        ("of run", "the effect"),
        ("of none", "the effect of no run"),
    ] {
        let known = store.known(EffectKey::new(tenant(), effect)).await;
        note(done(known, "`known`") != LedgerEntry::New, entry);
    }
    let decisions = done(Decisions::list(store, tenant()).await, "`list`");
    note(!decisions.is_empty(), "the decisions");
    for (owner, entry) in [
        ("ada", "the memory"),
        ("a:b", "the memory of another owner"),
    ] {
        let found = store.search(tenant(), owner.into(), "tea".into(), 9).await;
        note(!done(found, "`search`").is_empty(), entry);
    }
    for (key, entry) in cached(of).into_iter().zip([
        "the cached value of a conversation",
        "the cached value of a stored conversation",
        "the cached value of no conversation",
    ]) {
        let found = store.get_entry(key).await;
        note(done(found, "`get_entry`").is_some(), entry);
    }
    // The last one, since it uses the key.
    let is_first = store.once(tenant(), "key".into(), secs(90)).await;
    note(!done(is_first, "`once`"), "the used key");
    left
}

async fn nothing_of_a_deleted_tenant_is_left<H: Every>(test: Test<H>) {
    let store = &test.store;
    for of in ["acme", "other"] {
        fill(store, of).await;
    }
    let before = left(&test, "acme").await;
    same(before.len(), 13, "the number of entries of a tenant");
    let waiting = test.get("waits").await;
    let fence = test.get("run").await.fence;
    for expected in [2, 0] {
        let deleted = done(store.delete_tenant(tenant("acme")).await, "`delete_tenant`");
        same(deleted, expected, "the number of deleted conversations");
    }
    let saved = store.save(key("run"), fence, running("late").into(), secs(60));
    fails(saved.await, "run_not_found", "`save` of a deleted run");
    let claimed = store.claim(waiting, approve("q"), secs(60));
    fails(claimed.await, "run_not_found", "`claim` of a deleted run");
    let other = test.harness.open().await;
    let listed = other.list_threads(tenant("acme"), None, 9).await;
    same(
        done(listed, "`list_threads`"),
        [],
        "the conversations of a deleted tenant",
    );
    let nothing: Vec<&str> = Vec::new();
    let found = left(&test, "acme").await;
    same(found, nothing, "the entries of a deleted tenant");
    let found = left(&test, "other").await;
    same(found, before, "the entries of another tenant");
    // The ids can be used again.
    let deleted = store.delete_tenant(tenant("acme")).await;
    done(deleted, "`delete_tenant`");
    fill(store, "acme").await;
    let is_newer = test.get("run").await.fence > fence;
    same(is_newer, true, "that a later fence is greater");
}
