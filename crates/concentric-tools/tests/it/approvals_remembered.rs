//! Decisions that hold for more than their call.

use crate::common::{Log, paced};
use crate::kit::{Memory, Scene, World, number, told};
use concentric_core::{
    Outcome, Reply, RunId, ThreadId, ToolStatus,
    store::{Decisions, RunClaim, RunKey, StoredScope, Tenant},
};
use concentric_tools::{Approval, Toolset};
use serde_json::json;
use std::sync::{Arc, OnceLock};

// ---- remembered decisions ----

fn remember(what: &str, span: &str, approved: bool) -> serde_json::Value {
    json!({"approved": approved, "remember": {"what": what, "for": span}})
}

fn remembering(log: &Log, store: &Memory) -> Toolset {
    Toolset::new()
        .tool(number("refund", log))
        .tool(number("mail", log))
        .gate(Approval::for_tools(["refund", "mail"]).remember(store.clone()))
}

/// Asks, and answers with `payload`.
async fn decide(world: &World, tools: &Toolset, n: u8, payload: serde_json::Value) {
    let arguments = format!("{{\"n\":{n}}}");
    let scene = Scene::round(vec![("refund", arguments.as_str())]).with_world(world.clone());
    let ran = scene.start(tools).await;
    let reply = Reply::resolve(ran.ask("call-0-0").id, payload);
    let ran = scene.resume(tools, ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
}

/// What becomes of a call of `refund` now.
async fn now(world: &World, tools: &Toolset, tool: &str, n: u8) -> &'static str {
    let arguments = format!("{{\"n\":{n}}}");
    let scene = Scene::round(vec![(tool, arguments.as_str())]).with_world(world.clone());
    let ran = scene.start(tools).await;
    match ran.outcome() {
        Outcome::Interrupted => "ask",
        _ => match ran.result("call-0-0").0 {
            ToolStatus::Done => "run",
            ToolStatus::Denied => "deny",
            other => panic!("{other:?}"),
        },
    }
}

paced!(c092_what_was_remembered_is_not_asked_again);
async fn c092_what_was_remembered_is_not_asked_again() {
    let log = Log::default();
    for approved in [true, false] {
        let known = if approved { "run" } else { "deny" };
        // The tool, always.
        let store = Memory::new();
        let tools = remembering(&log, &store);
        let world = World::new().tenant("acme").thread("t1");
        decide(&world, &tools, 1, remember("tool", "always", approved)).await;
        assert_eq!(now(&world, &tools, "refund", 1).await, known);
        assert_eq!(now(&world, &tools, "refund", 2).await, known);
        let elsewhere = world.clone().thread("t2");
        assert_eq!(now(&elsewhere, &tools, "refund", 2).await, known);
        assert_eq!(now(&world, &tools, "mail", 1).await, "ask", "another tool");
        let other = World::new().tenant("other").thread("t1");
        assert_eq!(
            now(&other, &tools, "refund", 1).await,
            "ask",
            "another tenant"
        );
        // It is listed, and can be revoked.
        let kept = store.list(Tenant("acme".into())).await.unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].span, StoredScope::Always);
        assert!(
            store
                .revoke(Tenant("acme".into()), kept[0].id.clone())
                .await
                .unwrap()
        );
        assert_eq!(now(&world, &tools, "refund", 1).await, "ask");

        // These arguments, in this thread.
        let store = Memory::new();
        let tools = remembering(&log, &store);
        decide(&world, &tools, 1, remember("arguments", "thread", approved)).await;
        assert_eq!(now(&world, &tools, "refund", 1).await, known);
        assert_eq!(now(&world, &tools, "refund", 2).await, "ask");
        assert_eq!(now(&elsewhere, &tools, "refund", 1).await, "ask");

        // This run.
        let store = Memory::new();
        let tools = remembering(&log, &store);
        decide(&world, &tools, 1, remember("tool", "run", approved)).await;
        assert_eq!(now(&world, &tools, "refund", 1).await, "ask", "another run");
        assert!(matches!(
            store.list(Tenant("acme".into())).await.unwrap()[0].span,
            StoredScope::Run { .. }
        ));
    }
}

// S65
paced!(a_decision_for_the_session_holds_in_its_forks);
async fn a_decision_for_the_session_holds_in_its_forks() {
    let log = Log::default();
    for approved in [true, false] {
        let known = if approved { "run" } else { "deny" };
        let store = Memory::new();
        let tools = remembering(&log, &store);
        let world = World::new().thread("t1");
        let session = world.clone().session("t1");
        decide(&session, &tools, 1, remember("tool", "session", approved)).await;
        let span = StoredScope::Session(ThreadId::new("t1"));
        assert_eq!(store.remembered()[0].span, span);
        for (world, expected) in [
            (session.clone(), known),
            (session.clone().thread("fork"), known),
            (session.session("t2"), "ask"),
            (world.clone(), "ask"),
            (world.thread("t2"), "ask"),
        ] {
            assert_eq!(now(&world, &tools, "refund", 2).await, expected);
        }
    }
}

paced!(outside_a_session_a_decision_for_it_is_for_the_conversation);
async fn outside_a_session_a_decision_for_it_is_for_the_conversation() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = remembering(&log, &store);
    let world = World::new().thread("t1");
    decide(&world, &tools, 1, remember("tool", "session", true)).await;
    let kept = store.remembered();
    assert_eq!(kept[0].span, StoredScope::Thread(ThreadId::new("t1")));
    let nowhere = World::new();
    decide(&nowhere, &tools, 1, remember("tool", "session", true)).await;
    let kept = store.remembered();
    let in_run = |it: &&_| matches!(it, StoredScope::Run { .. });
    assert_eq!(kept.iter().map(|it| &it.span).filter(in_run).count(), 1);
}

paced!(c092_a_tool_that_changed_is_asked_about_again);
async fn c092_a_tool_that_changed_is_asked_about_again() {
    let (log, store) = (Log::default(), Memory::new());
    let world = World::new();
    decide(
        &world,
        &remembering(&log, &store),
        1,
        remember("tool", "always", true),
    )
    .await;
    assert_eq!(
        now(&world, &remembering(&log, &store), "refund", 1).await,
        "run"
    );
    let changed = Toolset::new()
        .tool(number("refund", &log).group("money"))
        .gate(
            Approval::for_tools(["refund", "mail"])
                .names_inner_tools()
                .remember(store.clone()),
        );
    assert_eq!(now(&world, &changed, "refund", 1).await, "ask");
}

paced!(c092_what_is_remembered_does_not_overrule_a_rule_that_denies);
async fn c092_what_is_remembered_does_not_overrule_a_rule_that_denies() {
    let (log, store) = (Log::default(), Memory::new());
    let world = World::new();
    decide(
        &world,
        &remembering(&log, &store),
        1,
        remember("tool", "always", true),
    )
    .await;
    let tools = Toolset::new().tool(number("refund", &log)).gate(
        Approval::for_tools(["refund"])
            .deny("refund", "closed")
            .remember(store.clone()),
    );
    assert_eq!(now(&world, &tools, "refund", 1).await, "deny");
    // A store that fails means that somebody is asked.
    store.fail_rest(true);
    assert_eq!(
        now(&world, &remembering(&log, &store), "refund", 1).await,
        "ask"
    );
}

paced!(c092_for_the_run_means_also_when_it_goes_on_elsewhere);
async fn c092_for_the_run_means_also_when_it_goes_on_elsewhere() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = remembering(&log, &store);
    let scene = Scene::new(vec![
        vec![("refund", r#"{"n":1}"#)],
        vec![("refund", r#"{"n":2}"#)],
    ]);
    // The run is in a store, and keeps its name there.
    let context = |run: &'static str| {
        let mut context = scene.world.builder().run_id(RunId::new(run)).build();
        let key = RunKey::new(Tenant::default(), ThreadId::new("t"), RunId::new("first"));
        let claim = RunClaim::new(key.clone(), 1);
        context.set_run_claim(key, Arc::new(OnceLock::from(claim)));
        context
    };
    let ran = scene.start_in(context("first"), &tools).await;
    let payload = remember("tool", "run", true);
    let reply = Reply::resolve(ran.ask("call-0-0").id, payload);
    let ran = scene
        .resume_in(context("second"), &tools, ran.state(), vec![reply])
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1", "refund 2"]);
    let (thread, run) = (None, RunId::new("first"));
    assert_eq!(store.remembered()[0].span, StoredScope::Run { thread, run });
}

paced!(c092_one_answer_that_is_remembered_does_not_hide_the_other);
async fn c092_one_answer_that_is_remembered_does_not_hide_the_other() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        Toolset::new().tool(number("refund", &log)).gate(
            Approval::for_tools("refund")
                .remember(store.clone())
                .on_approval(told(&watched)),
        )
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]);
    let ran = scene.start(&tools()).await;
    let replies = vec![
        Reply::resolve(ran.ask("call-0-0").id, remember("tool", "always", true)),
        Reply::deny(ran.ask("call-0-1").id, "not this one"),
    ];
    let ran = scene.resume(&tools(), ran.state(), replies).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1"]);
    // The decision that is remembered waits for its store; the other does not wait for it.
    let mut decided = watched.lines().split_off(2);
    decided.sort();
    assert_eq!(
        decided,
        [
            r#"approved call-0-0 {"n":1}"#,
            "denied call-0-1 not this one"
        ]
    );
}
