//! Cases of [`Decisions`].

use super::{
    kit::{Test, done, same},
    values::{at, tenant},
};
use crate::StoreHarness;
use concentric_core::{
    RunId, Str, ThreadId,
    store::{Decisions, StoredDecision, StoredScope},
};

cases! {
    $ __store_decisions decisions [Decisions]
    a_decision_applies_within_its_span
    a_run_decision_does_not_apply_in_another_conversation
    a_decision_replaces_one_for_the_same_calls
    decisions_are_listed_newest_first
    a_decision_is_read_as_it_was_written
    a_decision_is_revoked_once
    another_process_sees_a_decision
    tenants_do_not_share_decisions
}

trait WithDecisions: StoreHarness<Store: Decisions> {}

impl<H: StoreHarness<Store: Decisions>> WithDecisions for H {}

pub(super) fn decision_of(
    of: &'static str,
    tool: &str,
    span: StoredScope,
    allow: bool,
) -> StoredDecision {
    let (tool, definition) = (Str::from(tool.to_owned()), Str::from("d1"));
    StoredDecision::new(tenant(of), tool, definition, None, span, allow, None, at(0))
}

fn decision(tool: &str, span: StoredScope, allow: bool) -> StoredDecision {
    decision_of("acme", tool, span, allow)
}

fn in_run(thread: Option<&str>, run: &str) -> StoredScope {
    StoredScope::Run {
        thread: thread.map(ThreadId::new),
        run: RunId::new(run),
    }
}

async fn remember<H: WithDecisions>(test: &Test<H>, decision: &StoredDecision) {
    done(test.store.remember(decision.clone()).await, "`remember`");
}

/// The decisions about the tool `refund` in this run, conversation and session.
async fn recall<H: WithDecisions>(
    test: &Test<H>,
    run: &str,
    thread: Option<&str>,
    session: Option<&str>,
) -> Vec<StoredDecision> {
    let [thread, session] = [thread, session].map(|id| id.map(ThreadId::new));
    let run = RunId::new(run);
    let recalled = test
        .store
        .recall(tenant("acme"), "refund".into(), run, thread, session);
    done(recalled.await, "`recall`")
}

/// Checks decisions, the newest of which is the first.
#[track_caller]
fn same_all(found: Vec<StoredDecision>, expected: &[&StoredDecision], what: &str) {
    let expected: Vec<_> = expected
        .iter()
        .map(|decision| (*decision).clone())
        .collect();
    same(found, expected, what);
}

async fn list<H: WithDecisions>(test: &Test<H>) -> Vec<StoredDecision> {
    done(test.store.list(tenant("acme")).await, "`list`")
}

async fn a_decision_applies_within_its_span<H: WithDecisions>(test: Test<H>) {
    let run = decision("refund", in_run(Some("t"), "r"), true);
    let thread = decision("refund", StoredScope::Thread(ThreadId::new("t")), false);
    let session = decision("refund", StoredScope::Session(ThreadId::new("s")), true);
    let always = decision("refund", StoredScope::Always, true);
    let other = decision("search", StoredScope::Always, true);
    for decision in [&run, &thread, &session, &always, &other] {
        remember(&test, decision).await;
    }
    let recall = async |run, thread, session| recall(&test, run, thread, session).await;
    let here = recall("r", Some("t"), Some("s")).await;
    same_all(
        here,
        &[&always, &session, &thread, &run],
        "the decisions of the run, thread and session",
    );
    let here = recall("r", Some("t"), None).await;
    same_all(
        here,
        &[&always, &thread, &run],
        "the decisions of the run and thread",
    );
    let here = recall("x", Some("t"), None).await;
    same_all(
        here,
        &[&always, &thread],
        "the decisions of another run of the thread",
    );
    let here = recall("r", None, None).await;
    same_all(here, &[&always], "the decisions of a run without a thread");
    // Ids of runs, threads and sessions are not mixed up.
    let here = recall("t", Some("r"), None).await;
    same_all(
        here,
        &[&always],
        "the decisions of a run `t` of the thread `r`",
    );
    let here = recall("", Some("s"), Some("t")).await;
    same_all(
        here,
        &[&always],
        "the decisions of the thread `s` and the session `t`",
    );
}

async fn a_run_decision_does_not_apply_in_another_conversation<H: WithDecisions>(test: Test<H>) {
    let spans = [
        (Some("a/b"), "c"),
        (Some("a"), "b/c"),
        (Some("a"), "c"),
        (None, "c"),
    ];
    let decision = |(thread, run)| decision("refund", in_run(thread, run), true);
    for span in spans {
        remember(&test, &decision(span)).await;
    }
    for (thread, run) in spans {
        let found = recall(&test, run, thread, None).await;
        let what = format!("the decisions of the run `{run}` of the thread {thread:?}");
        same_all(found, &[&decision((thread, run))], &what);
    }
    let found = recall(&test, "c", Some("other"), None).await;
    same_all(found, &[], "the decisions of a run of another thread");
}

async fn a_decision_replaces_one_for_the_same_calls<H: WithDecisions>(test: Test<H>) {
    remember(&test, &decision("refund", StoredScope::Always, true)).await;
    let search = decision("search", StoredScope::Always, true);
    remember(&test, &search).await;
    let mut now = decision("refund", StoredScope::Always, false);
    now.reason = Some("too much".into());
    now.at = at(9);
    remember(&test, &now).await;
    let found = recall(&test, "r", None, None).await;
    same_all(found, &[&now], "the decisions after one for the same calls");
    same(
        list(&test).await,
        [now, search],
        "all decisions, the newest first,",
    );
}

async fn decisions_are_listed_newest_first<H: WithDecisions>(test: Test<H>) {
    let mut expected = Vec::new();
    for tool in ["b", "c", "a", "d"] {
        let decision = decision(tool, StoredScope::Always, true);
        remember(&test, &decision).await;
        expected.insert(0, decision);
    }
    same(
        list(&test).await,
        expected,
        "all decisions, the newest first,",
    );
}

async fn a_decision_is_read_as_it_was_written<H: WithDecisions>(test: Test<H>) {
    let odd = "it's \"one\" % _ \\ 漢字 🦀";
    let mut decision = decision(odd, in_run(Some(odd), odd), false);
    decision.arguments = Some("sha256:9".into());
    decision.reason = Some(odd.repeat(10_000).into());
    remember(&test, &decision).await;
    same(
        list(&test).await == [decision],
        true,
        "that a decision is read as written",
    );
}

async fn a_decision_is_revoked_once<H: WithDecisions>(test: Test<H>) {
    let decision = decision("refund", StoredScope::Always, true);
    let kept = self::decision("search", StoredScope::Always, true);
    for decision in [&decision, &kept] {
        remember(&test, decision).await;
    }
    let revoke = async |id: &str| {
        let revoked = test
            .store
            .revoke(tenant("acme"), id.to_owned().into())
            .await;
        done(revoked, "`revoke`")
    };
    same(
        revoke("none").await,
        false,
        "the result of `revoke` of an unknown decision",
    );
    same(revoke(&decision.id).await, true, "the result of `revoke`");
    same(
        revoke(&decision.id).await,
        false,
        "the result of a second `revoke`",
    );
    same(list(&test).await, [kept], "the decisions after `revoke`");
    same_all(
        recall(&test, "r", None, None).await,
        &[],
        "the decisions about a tool after `revoke`",
    );
}

async fn another_process_sees_a_decision<H: WithDecisions>(test: Test<H>) {
    let other = test.harness.open().await;
    let decision = decision("refund", StoredScope::Always, true);
    remember(&test, &decision).await;
    test.harness.purge().await;
    let found = done(
        other.list(tenant("acme")).await,
        "`list` by another process",
    );
    same(
        found,
        [decision.clone()],
        "the decisions that another process reads",
    );
    let revoked = other.revoke(tenant("acme"), decision.id).await;
    same(
        done(revoked, "`revoke` by another process"),
        true,
        "the result of `revoke`",
    );
    same(
        list(&test).await,
        [],
        "the decisions that the first process reads",
    );
}

async fn tenants_do_not_share_decisions<H: WithDecisions>(test: Test<H>) {
    let span = || StoredScope::Thread(ThreadId::new("t"));
    let [ours, theirs] = [("acme", true), ("other", false)]
        .map(|(of, allow)| decision_of(of, "refund", span(), allow));
    same(
        ours.id == theirs.id,
        true,
        "that the decisions have the same id",
    );
    let recall = async |of| {
        let (run, thread) = (RunId::new("r"), Some(ThreadId::new("t")));
        let found = test
            .store
            .recall(tenant(of), "refund".into(), run, thread, None)
            .await;
        done(found, "`recall`")
    };
    remember(&test, &ours).await;
    same(recall("other").await, [], "what another tenant recalls");
    let listed = done(test.store.list(tenant("other")).await, "`list`");
    same(listed, [], "the list of another tenant");
    let revoked = test.store.revoke(tenant("other"), ours.id.clone()).await;
    same(
        done(revoked, "`revoke`"),
        false,
        "the result of `revoke` by another tenant",
    );
    remember(&test, &theirs).await;
    same(
        recall("acme").await,
        [ours.clone()],
        "what a tenant recalls",
    );
    same(
        recall("other").await,
        [theirs.clone()],
        "what another tenant recalls",
    );
    let revoked = test.store.revoke(tenant("other"), ours.id.clone()).await;
    same(
        done(revoked, "`revoke`"),
        true,
        "the result of `revoke` by the other tenant of its own",
    );
    same(
        recall("acme").await,
        [ours],
        "what a tenant recalls after another one revoked its own",
    );
}
