//! Cases of a [`Ledger`].

use super::{
    kit::{LedgerOfRuns, Test, done, fails, same},
    values::{key, secs, tenant},
};
use crate::StoreHarness;
use concentric_core::{
    Context, ToolOutcome,
    store::{EffectKey, Intent, Ledger, LedgerEntry, RunClaim, StoreError},
};
use serde_json::json;

cases! {
    $ __store_ledger ledger [Ledger]
    an_effect_begins_once
    the_first_outcome_of_an_effect_stays
    a_success_replaces_a_failure_of_a_repeatable_effect
    an_effect_of_another_tool_or_arguments_is_rejected
    arguments_are_compared_as_json
    an_effect_without_an_outcome_is_retracted
    a_large_outcome_is_read_as_it_was_written
    another_process_reads_the_outcome_of_an_effect
}

cases! {
    $ __store_ledger_of_runs ledger_of_runs [RunStore, Ledger]
    an_effect_requires_the_newest_claim
    an_effect_of_a_waiting_or_ended_run_is_rejected
    an_outcome_is_recorded_after_the_claim_is_lost
}

pub(super) fn effect(name: &str) -> EffectKey {
    EffectKey::new(tenant("acme"), name.to_owned())
}

pub(super) fn intent(claim: Option<(&str, u64)>) -> Intent {
    let mut intent = Intent::new("refund".into(), "{}".into(), &Context::new());
    intent.claim = claim.map(|(run, fence)| RunClaim::new(key(run), fence));
    intent
}

pub(super) fn finished(outcome: &ToolOutcome) -> LedgerEntry {
    LedgerEntry::Finished(Box::new(outcome.clone()))
}

trait WithLedger: StoreHarness<Store: Ledger> {}

impl<H: StoreHarness<Store: Ledger>> WithLedger for H {}

/// Begins an effect outside a run.
async fn begin<H: WithLedger>(test: &Test<H>, name: &str) -> LedgerEntry {
    let begun = Ledger::begin(&test.store, effect(name), intent(None)).await;
    done(begun, "`begin` of an effect")
}

async fn finish<H: WithLedger>(test: &Test<H>, name: &str, outcome: &ToolOutcome) {
    let finished = test.store.finish(effect(name), outcome.clone()).await;
    done(finished, "`finish` of an effect");
}

async fn known<H: WithLedger>(test: &Test<H>, name: &str) -> LedgerEntry {
    done(test.store.known(effect(name)).await, "`known`")
}

async fn an_effect_begins_once<H: WithLedger>(test: Test<H>) {
    same(
        known(&test, "e").await,
        LedgerEntry::New,
        "an effect that was not begun",
    );
    same(
        begin(&test, "e").await,
        LedgerEntry::New,
        "the first `begin` of an effect",
    );
    same(
        known(&test, "e").await,
        LedgerEntry::Started,
        "an effect that was begun",
    );
    same(
        begin(&test, "e").await,
        LedgerEntry::Started,
        "the second `begin` of an effect",
    );
    let outcome = ToolOutcome::done("paid").with_data(json!({"n": 1, "text": "🦀 '\""}));
    finish(&test, "e", &outcome).await;
    same(
        begin(&test, "e").await,
        finished(&outcome),
        "`begin` of a finished effect",
    );
    same(
        known(&test, "e").await,
        finished(&outcome),
        "a finished effect",
    );
    same(
        begin(&test, "other").await,
        LedgerEntry::New,
        "the first `begin` of another effect",
    );
}

async fn the_first_outcome_of_an_effect_stays<H: WithLedger>(test: Test<H>) {
    begin(&test, "e").await;
    let first = ToolOutcome::done("paid");
    finish(&test, "e", &first).await;
    for later in [ToolOutcome::failed("no"), ToolOutcome::done("again")] {
        finish(&test, "e", &later).await;
        same(
            known(&test, "e").await,
            finished(&first),
            "the outcome, which is the first,",
        );
    }
    let none = test.store.finish(effect("none"), first).await;
    fails(
        none,
        "run_not_found",
        "`finish` of an effect that was not begun",
    );
    same(
        known(&test, "none").await,
        LedgerEntry::New,
        "an effect that was not begun",
    );
}

async fn a_success_replaces_a_failure_of_a_repeatable_effect<H: WithLedger>(test: Test<H>) {
    let [failed, done_] = [ToolOutcome::failed("busy"), ToolOutcome::done("paid")];
    let later = [ToolOutcome::failed("again"), ToolOutcome::denied("no")];
    for (name, repeatable, last) in [("a", true, &done_), ("b", false, &failed)] {
        let intent = || intent(None).repeatable(repeatable);
        let begin = || Ledger::begin(&test.store, effect(name), intent());
        done(begin().await, "`begin` of an effect");
        let finish = async |outcome: &ToolOutcome| {
            finish(&test, name, outcome).await;
            known(&test, name).await
        };
        let what = format!("the outcome of an effect (repeatable: {repeatable})");
        same(finish(&failed).await, finished(&failed), &what);
        for outcome in &later {
            same(
                finish(outcome).await,
                finished(&failed),
                format!("{what} after {outcome:?}"),
            );
        }
        let begun = done(begin().await, "`begin` of a finished effect");
        same(begun, finished(&failed), format!("{what}, begun again"));
        same(
            finish(&done_).await,
            finished(last),
            format!("{what} after a success"),
        );
        same(
            finish(&failed).await,
            finished(last),
            format!("{what} after another failure"),
        );
    }
}

async fn an_effect_of_another_tool_or_arguments_is_rejected<H: WithLedger>(test: Test<H>) {
    let begin = |tool: &'static str, arguments: &'static str| {
        let intent = Intent::new(tool.into(), arguments.into(), &Context::new());
        Ledger::begin(&test.store, effect("e"), intent)
    };
    let arguments = r#"{"to":"ann","n":1}"#;
    let begun = done(begin("pay", arguments).await, "`begin` of an effect");
    same(begun, LedgerEntry::New, "the first `begin` of an effect");
    let code = "effect_mismatch";
    fails(
        begin("refund", arguments).await,
        code,
        "`begin` of the effect of another tool",
    );
    let changed = begin("pay", r#"{"to":"bob","n":1}"#).await;
    fails(changed, code, "`begin` of an effect with other arguments");
    finish(&test, "e", &ToolOutcome::done("paid")).await;
    fails(
        begin("refund", arguments).await,
        code,
        "`begin` of the finished effect of another tool",
    );
}

async fn arguments_are_compared_as_json<H: WithLedger>(test: Test<H>) {
    let begin = |name: &str, arguments: &'static str| {
        let intent = Intent::new("pay".into(), arguments.into(), &Context::new());
        Ledger::begin(&test.store, effect(name), intent)
    };
    done(
        begin("e", r#"{"to":"ann","n":1}"#).await,
        "`begin` of an effect",
    );
    let again = begin("e", r#"{ "n": 1, "to": "ann" }"#).await;
    let again = done(again, "`begin` with the same arguments in another notation");
    same(
        again,
        LedgerEntry::Started,
        "the second `begin` of an effect",
    );
    // Arguments of a model may be no JSON.
    done(
        begin("odd", "{").await,
        "`begin` with arguments that are no JSON",
    );
    done(begin("odd", "{").await, "`begin` with the same arguments");
    fails(
        begin("odd", "{ ").await,
        "effect_mismatch",
        "`begin` with other arguments",
    );
}

async fn an_effect_without_an_outcome_is_retracted<H: WithLedger>(test: Test<H>) {
    let retract = async |name: &str| {
        let retracted = test.store.retract(effect(name)).await;
        done(retracted, format!("`retract` of the effect `{name}`"));
    };
    // An unknown effect is no error.
    retract("e").await;
    same(
        begin(&test, "e").await,
        LedgerEntry::New,
        "`begin` after `retract` of an unknown effect",
    );
    retract("other").await;
    same(
        begin(&test, "e").await,
        LedgerEntry::Started,
        "`begin` after `retract` of another effect",
    );
    retract("e").await;
    same(
        known(&test, "e").await,
        LedgerEntry::New,
        "an effect that was retracted",
    );
    same(
        begin(&test, "e").await,
        LedgerEntry::New,
        "`begin` after `retract`",
    );
    let outcome = ToolOutcome::done("paid");
    finish(&test, "e", &outcome).await;
    retract("e").await;
    same(
        known(&test, "e").await,
        finished(&outcome),
        "a finished effect after `retract`",
    );
}

async fn a_large_outcome_is_read_as_it_was_written<H: WithLedger>(test: Test<H>) {
    begin(&test, "e").await;
    let outcome = ToolOutcome::done("x é \"".repeat(700_000));
    finish(&test, "e", &outcome).await;
    let is_same = known(&test, "e").await == finished(&outcome);
    same(is_same, true, "that an outcome of 4 MiB is read as written");
}

async fn another_process_reads_the_outcome_of_an_effect<H: WithLedger>(test: Test<H>) {
    let other = test.harness.open().await;
    begin(&test, "e").await;
    let again = Ledger::begin(&other, effect("e"), intent(None)).await;
    same(
        done(again, "`begin` by another process"),
        LedgerEntry::Started,
        "an effect that was begun",
    );
    let outcome = ToolOutcome::done("paid");
    done(
        other.finish(effect("e"), outcome.clone()).await,
        "`finish` by another process",
    );
    test.harness.purge().await;
    same(
        known(&test, "e").await,
        finished(&outcome),
        "the outcome that the first process reads",
    );
}

async fn begin_in<H: LedgerOfRuns>(
    test: &Test<H>,
    name: &str,
    run: &str,
    fence: u64,
) -> Result<LedgerEntry, StoreError> {
    Ledger::begin(&test.store, effect(name), intent(Some((run, fence)))).await
}

async fn an_effect_requires_the_newest_claim<H: LedgerOfRuns>(test: Test<H>) {
    let old = test.begin("run", secs(30)).await;
    let begin = async |name: &str, fence| begin_in(&test, name, "run", fence).await;
    let begun = done(
        begin("a", old).await,
        "`begin` of an effect with the newest fence",
    );
    same(begun, LedgerEntry::New, "the first `begin` of an effect");
    test.set(30);
    let new = done(
        test.claim("run", secs(30)).await,
        "`claim` of an abandoned run",
    )
    .fence;
    let what = "`begin` of an effect with the fence of an earlier claim";
    fails(begin("b", old).await, "stale_claim", what);
    same(
        known(&test, "b").await,
        LedgerEntry::New,
        "the effect after a `begin` that failed",
    );
    // An older claim does not get the outcome of a known effect either.
    fails(begin("a", old).await, "stale_claim", what);
    fails(
        begin("b", new + 1).await,
        "stale_claim",
        "`begin` of an effect with an unknown fence",
    );
    let begun = done(
        begin("a", new).await,
        "`begin` of an effect with the newest fence",
    );
    same(
        begun,
        LedgerEntry::Started,
        "the second `begin` of an effect",
    );
    let begun = done(
        begin("b", new).await,
        "`begin` of an effect with the newest fence",
    );
    same(
        begun,
        LedgerEntry::New,
        "the first `begin` of another effect",
    );
    let none = begin_in(&test, "d", "none", new).await;
    fails(
        none,
        "stale_claim",
        "`begin` of an effect of an unknown run",
    );
}

async fn an_effect_of_a_waiting_or_ended_run_is_rejected<H: LedgerOfRuns>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    test.suspend("run", fence, "q").await;
    let waits = begin_in(&test, "a", "run", fence).await;
    fails(
        waits,
        "stale_claim",
        "`begin` of an effect of a waiting run",
    );
    let fence = done(
        test.claim("run", secs(30)).await,
        "`claim` of a waiting run",
    )
    .fence;
    test.end("run", fence).await;
    let over = begin_in(&test, "a", "run", fence).await;
    fails(over, "stale_claim", "`begin` of an effect of an ended run");
    same(
        known(&test, "a").await,
        LedgerEntry::New,
        "an effect that was not begun",
    );
}

async fn an_outcome_is_recorded_after_the_claim_is_lost<H: LedgerOfRuns>(test: Test<H>) {
    let old = test.begin("run", secs(30)).await;
    done(
        begin_in(&test, "a", "run", old).await,
        "`begin` of an effect",
    );
    test.set(30);
    let new = done(
        test.claim("run", secs(30)).await,
        "`claim` of an abandoned run",
    )
    .fence;
    // The effect took place, although another process drives the run now.
    let outcome = ToolOutcome::done("paid");
    finish(&test, "a", &outcome).await;
    let begun = done(
        begin_in(&test, "a", "run", new).await,
        "`begin` by the next owner",
    );
    same(
        begun,
        finished(&outcome),
        "the effect that an earlier owner finished",
    );
}
