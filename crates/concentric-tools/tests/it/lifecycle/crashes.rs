//! Processes that die.

use super::*;

/// A tool that logs its number and its key, and, in the process that dies, never ends.
fn effect(name: &'static str, log: &Log, hangs: bool) -> Tool {
    let log = log.clone();
    tool_with_context(
        name,
        "",
        move |crate::kit::Number { n }, context: Context| {
            let log = log.clone();
            async move {
                let key = context.idempotency_key().unwrap();
                log.add(format!("{name} {n} {key}"));
                if hangs {
                    std::future::pending::<()>().await;
                }
                format!("{name} {n}")
            }
        },
    )
}

/// Runs until nothing happens any more.
async fn crash(scene: &Scene, tools: &Toolset, request: ChatRequest) -> RunState {
    crate::kit::died(scene.model.agent(tools), request, scene.world.context()).await
}

async fn crashed(tools: &Toolset, calls: Vec<(&'static str, &'static str)>) -> (Scene, RunState) {
    let scene = Scene::round(calls);
    let state = crash(&scene, tools, ChatRequest::user("go")).await;
    (scene, state)
}

/// Tools of each class; those of the process that dies hang.
fn classes(log: &Log, hangs: bool) -> Toolset {
    let mut idempotent = Annotations::default();
    idempotent.idempotent = true;
    Toolset::new()
        .tool(effect("read", log, hangs).read_only())
        .tool(effect("set", log, hangs).annotations(idempotent))
        .tool(effect("pay", log, hangs).keyed())
        .tool(effect("once", log, hangs))
}

paced!(paused f044_what_may_run_again_does_with_the_same_key);
async fn f044_what_may_run_again_does_with_the_same_key() {
    for with_ledger in [false, true] {
        for name in ["read", "set", "pay"] {
            let (log, store) = (Log::default(), Memory::new());
            let tools = |hangs| match with_ledger {
                true => classes(&log, hangs).ledger(store.clone()),
                false => classes(&log, hangs),
            };
            let (scene, state) = crashed(&tools(true), vec![(name, r#"{"n":1}"#)]).await;
            assert_eq!(log.lines().len(), 1);
            let ran = scene.resume(&tools(false), state, vec![]).await;
            assert_eq!(*ran.outcome(), Outcome::Completed, "{name}");
            assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
            let lines = log.lines();
            assert_eq!(lines.len(), 2);
            assert_eq!(lines[0], lines[1], "the same key");
        }
    }
}

paced!(paused f044_what_may_run_once_is_asked_about_and_not_run_again);
async fn f044_what_may_run_once_is_asked_about_and_not_run_again() {
    for with_ledger in [false, true] {
        for answer in ["answer", "cancel"] {
            let (log, store) = (Log::default(), Memory::new());
            let tools = |hangs| match with_ledger {
                true => classes(&log, hangs).ledger(store.clone()),
                false => classes(&log, hangs),
            };
            let calls = vec![("once", r#"{"n":1}"#), ("read", r#"{"n":2}"#)];
            let (scene, state) = crashed(&tools(true), calls).await;
            let ran = scene.resume(&tools(false), state, vec![]).await;
            assert_eq!(
                log.lines().iter().filter(|l| l.starts_with("once")).count(),
                1
            );
            let ask = ran.ask("call-0-0");
            assert_eq!(ask.reason, interrupt::UNKNOWN_EFFECT);
            assert_eq!(ran.asked().len(), 1);
            for wrong in [
                Reply::approve(ask.id.clone()),
                Reply::deny(ask.id.clone(), "no"),
            ] {
                let ran = scene.resume(&tools(false), ran.state(), vec![wrong]).await;
                assert_eq!(ran.end.unwrap_err().code(), Some("malformed_reply"));
            }
            let (reply, status) = match answer {
                "answer" => (Reply::answer(ask.id, "it went through"), ToolStatus::Done),
                _ => (Reply::cancel(ask.id), ToolStatus::Unknown),
            };
            let ran = scene.resume(&tools(false), ran.state(), vec![reply]).await;
            assert_eq!(*ran.outcome(), Outcome::Completed);
            assert_eq!(ran.result("call-0-0").0, status);
            assert_eq!(
                log.lines().iter().filter(|l| l.starts_with("once")).count(),
                1
            );
            if with_ledger {
                let known = store.effects();
                assert_eq!(known.len(), 1);
                assert_eq!(known[0].as_ref().unwrap().status, status);
            }
        }
    }
}

paced!(paused f044_an_approved_call_that_was_running_is_not_run_again);
async fn f044_an_approved_call_that_was_running_is_not_run_again() {
    for with_ledger in [false, true] {
        let (log, store) = (Log::default(), Memory::new());
        let tools = |hangs| {
            let tools = classes(&log, hangs).gate(Approval::for_tools("once"));
            match with_ledger {
                true => tools.ledger(store.clone()),
                false => tools,
            }
        };
        let scene = Scene::round(vec![("once", r#"{"n":1}"#)]);
        let ran = scene.start(&tools(false)).await;
        let reply = Reply::approve(ran.ask("call-0-0").id);
        let request = ChatRequest::resume(ran.state(), vec![reply]);
        let state = crash(&scene, &tools(true), request).await;
        assert_eq!(log.lines().len(), 1);
        let ran = scene.resume(&tools(false), state, vec![]).await;
        assert_eq!(log.lines().len(), 1, "with a ledger: {with_ledger}");
        assert_eq!(ran.ask("call-0-0").reason, interrupt::UNKNOWN_EFFECT);
    }
}

paced!(paused f044_a_call_that_was_not_begun_is_run_where_the_ledger_says_so);
async fn f044_a_call_that_was_not_begun_is_run_where_the_ledger_says_so() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = |hangs| classes(&log, hangs).ledger(store.clone()).max_parallel(1);
    let calls = vec![("once", r#"{"n":1}"#), ("once", r#"{"n":2}"#)];
    let (scene, state) = crashed(&tools(true), calls).await;
    assert_eq!(log.lines().len(), 1);
    let ran = scene.resume(&tools(false), state, vec![]).await;
    assert_eq!(ran.asked().len(), 1);
    let ask = ran.ask("call-0-0");
    assert_eq!(ask.reason, interrupt::UNKNOWN_EFFECT);
    // It waits for its sibling, as any call does that is not read-only.
    assert_eq!(log.lines().len(), 1);
    let answer = vec![Reply::answer(ask.id.clone(), json!("paid"))];
    let ran = scene.resume(&tools(false), ran.state(), answer).await;
    assert_eq!(ran.result("call-0-0").1, crate::kit::by_person("paid"));
    assert_eq!(ran.result("call-0-1").0, ToolStatus::Done);
    assert_eq!(log.lines().len(), 2);
    assert!(log.lines()[1].starts_with("once 2"));
}

paced!(paused f044_what_is_written_down_as_done_is_not_run_at_all);
async fn f044_what_is_written_down_as_done_is_not_run_at_all() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = |hangs| {
        Toolset::new()
            .tool(effect("once", &log, false))
            .tool(effect("pay", &log, false).keyed())
            .tool(effect("read", &log, hangs).read_only())
            .ledger(store.clone())
    };
    let calls = vec![
        ("once", r#"{"n":1}"#),
        ("pay", r#"{"n":2}"#),
        ("read", r#"{"n":3}"#),
    ];
    let (scene, state) = crashed(&tools(true), calls).await;
    let before = log.lines();
    let ran = scene.resume(&tools(false), state, vec![]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(
        log.lines().len(),
        before.len() + 1,
        "only the read-only one"
    );
    assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "once 1".into()));
    assert_eq!(ran.result("call-0-1"), (ToolStatus::Done, "pay 2".into()));
}

paced!(paused f044_a_tool_may_know_what_came_of_a_call);
async fn f044_a_tool_may_know_what_came_of_a_call() {
    quietly();
    for with_ledger in [false, true] {
        for knows in ["yes", "no", "panics"] {
            let (log, store) = (Log::default(), Memory::new());
            let tools = |hangs| {
                let once =
                    effect("once", &log, hangs).reconcile(move |call: ToolCall| async move {
                        assert!(call.is_recovered());
                        match knows {
                            "yes" => Some(ToolOutcome::done("it is paid")),
                            "no" => None,
                            _ => panic!("on purpose"),
                        }
                    });
                let tools = Toolset::new().tool(once);
                match with_ledger {
                    true => tools.ledger(store.clone()),
                    false => tools,
                }
            };
            let (scene, state) = crashed(&tools(true), vec![("once", r#"{"n":1}"#)]).await;
            let ran = scene.resume(&tools(false), state, vec![]).await;
            assert_eq!(log.lines().len(), 1);
            if knows == "yes" {
                let paid = (ToolStatus::Done, "it is paid".to_owned());
                assert_eq!(ran.result("call-0-0"), paid);
            } else {
                let ask = ran.ask("call-0-0");
                assert_eq!(
                    ask.reason,
                    interrupt::UNKNOWN_EFFECT,
                    "{knows} {with_ledger}"
                );
            }
        }
    }
}

paced!(f044_no_tool_runs_if_the_ledger_fails_and_the_run_fails);
async fn f044_no_tool_runs_if_the_ledger_fails_and_the_run_fails() {
    let (log, store) = (Log::default(), Memory::new());
    store.fail_begin(true);
    let tools = classes(&log, false).ledger(store.clone());
    let scene = Scene::round(vec![("once", r#"{"n":1}"#)]);
    let ran = scene.start(&tools).await;
    let error = ran.end.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(error.code(), Some("store_failed"));
    assert!(log.lines().is_empty());
    // A read-only tool needs no ledger.
    let ran = Scene::round(vec![("read", r#"{"n":1}"#)])
        .start(&tools)
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
}

paced!(f044_what_was_done_is_told_also_if_it_cannot_be_written_down);
async fn f044_what_was_done_is_told_also_if_it_cannot_be_written_down() {
    let (log, store) = (Log::default(), Memory::new());
    store.fail_finish(true);
    let tools = classes(&log, false).ledger(store.clone());
    let ran = Scene::round(vec![("once", r#"{"n":1}"#)])
        .start(&tools)
        .await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(store.effects(), [None], "it stays begun");
}

paced!(paused no_ambiguity_is_hidden_when_the_run_is_stopped_beside_it);
async fn no_ambiguity_is_hidden_when_the_run_is_stopped_beside_it() {
    for how in ["halt", "cancel", "ask and cancel"] {
        let log = Log::default();
        let tools = |hangs| {
            let halting = tool_with_context(
                "stop",
                "",
                move |crate::kit::Number { .. }, cx: Context| async move {
                    match (hangs, how) {
                        (true, _) => std::future::pending().await,
                        (_, "halt") => ToolOutcome::done("x").and_halt("enough"),
                        (_, "cancel") => {
                            cx.cancel(CancelReason::User);
                            std::future::pending().await
                        }
                        _ => ToolOutcome::done("x"),
                    }
                },
            );
            Toolset::new()
                .tool(halting.read_only())
                .tool(effect("once", &log, hangs))
        };
        let calls = vec![("once", r#"{"n":1}"#), ("stop", r#"{"n":2}"#)];
        let (scene, state) = crashed(&tools(true), calls).await;
        let ran = scene.resume(&tools(false), state, vec![]).await;
        let ran = match how {
            "ask and cancel" => {
                // Waits for a person, and is given up before the round goes on.
                let context = scene.world.context();
                context.cancel(CancelReason::User);
                scene
                    .resume_in(context, &tools(false), ran.state(), vec![])
                    .await
            }
            _ => ran,
        };
        assert_eq!(log.lines().len(), 1);
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Unknown, "{how}: {text}");
    }
}

paced!(paused a_cancel_before_a_recovered_call_starts_hides_nothing);
async fn a_cancel_before_a_recovered_call_starts_hides_nothing() {
    let log = Log::default();
    let (scene, state) = crashed(&classes(&log, true), vec![("once", r#"{"n":1}"#)]).await;
    let context = scene.world.context();
    context.cancel(CancelReason::User);
    let ran = scene
        .resume_in(context, &classes(&log, false), state, vec![])
        .await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
}

paced!(f046_an_intent_names_the_claim_of_its_run);
async fn f046_an_intent_names_the_claim_of_its_run() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = classes(&log, false).ledger(store.clone());
    let scene = Scene::round(vec![("once", r#"{"n":1}"#)]);
    let mut context = scene.world.context();
    let key = RunKey::new(
        Tenant::default(),
        concentric_core::ThreadId::new("t"),
        concentric_core::RunId::new("r"),
    );
    let claim = RunClaim::new(key.clone(), 7);
    context.set_run_claim(key, Arc::new(OnceLock::from(claim)));
    scene.start_in(context, &tools).await;
    let begun = store.begun();
    assert_eq!(begun.len(), 1);
    assert_eq!(begun[0].1.claim.as_ref().unwrap().fence, 7);
    assert_eq!(begun[0].1.arguments, r#"{"n":1}"#);
}

paced!(paused an_agent_whose_process_died_is_not_begun_anew);
async fn an_agent_whose_process_died_is_not_begun_anew() {
    // An agent is a tool that may do anything: without a word of it, somebody is asked.
    let log = Log::default();
    let tools = |hangs| {
        let inner = Toolset::new()
            .tool(number("write", &log))
            .tool(effect("slow", &log, hangs).read_only());
        let model = Model::new(vec![vec![("write", r#"{"n":1}"#), ("slow", r#"{"n":2}"#)]]);
        Toolset::new().tool(agent_tool("a", "", model.agent(&inner)))
    };
    let (scene, state) = crashed(&tools(true), vec![("a", r#"{"task":"x"}"#)]).await;
    assert_eq!(log.count("write 1"), 1);
    let ran = scene.resume(&tools(false), state, vec![]).await;
    assert_eq!(log.count("write 1"), 1);
    assert_eq!(ran.ask("call-0-0").reason, interrupt::UNKNOWN_EFFECT);
}

paced!(paused f044_an_approval_by_token_that_was_taken_up_before_the_crash_is_in_doubt);
async fn f044_an_approval_by_token_that_was_taken_up_before_the_crash_is_in_doubt() {
    // The token is used up, so it proves nothing now; but the call may have run.
    let (log, store) = (Log::default(), Memory::new());
    let tools = |hangs| {
        let keys = concentric_tools::token::TokenKeys::new("k", vec![7; 32]).unwrap();
        classes(&log, hangs)
            .gate(Approval::for_tools("once"))
            .tokens(concentric_tools::ApprovalTokens::new(
                keys,
                "here",
                store.clone(),
            ))
    };
    let scene = Scene::round(vec![("once", r#"{"n":1}"#)]);
    let ran = scene.start(&tools(false)).await;
    let ask = ran.ask("call-0-0");
    let token = ask.metadata["token"].as_str().unwrap();
    let reply = Reply::approve(ask.id.clone()).with_token(token);
    let state = ran.state();
    let open = state.open_round().unwrap();
    let request = ChatRequest::resume_history(state.transcript().clone(), open, vec![reply]);
    let state = crash(&scene, &tools(true), request).await;
    assert_eq!(log.lines().len(), 1);
    let ran = scene.resume(&tools(false), state, vec![]).await;
    assert_eq!(log.lines().len(), 1);
    assert_eq!(ran.ask("call-0-0").reason, interrupt::UNKNOWN_EFFECT);
}
