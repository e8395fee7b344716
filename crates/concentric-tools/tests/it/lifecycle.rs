//! What outlives a process: effects and decisions; and the lifecycle of tools in a loop of one's own.

use crate::common::{Hook, Log, hook, pace, paced, tool_with_context};
use crate::kit::{Call, Memory, Model, Ran, Scene, World, call_part, drive, number, quietly, told};
use concentric_core::{
    Annotations, CallId, CancelReason, ChatRequest, Context, CustomEvent, ErrorKind, Event,
    Executor, Message, MessageId, Outcome, Part, PartKind, ProviderData, Reply, Role, ToolCall,
    ToolCallPart, ToolOutcome, ToolSpec, ToolSpecs, ToolStatus, Transcript, Turn, interrupt,
    machine::RunState,
    store::{Checkpoint, ClaimCell, RunClaim, RunKey, Tenant},
};
use concentric_tools::{
    Approval, RoundEnd, Skill, Skills, Tool, ToolLifecycle, Toolset, agent_tool,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::ServiceExt;

// ---- processes that die ----

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

/// Runs until nothing happens any more; what was written down last is what another process finds.
async fn crash(scene: &Scene, tools: &Toolset, mut request: ChatRequest) -> RunState {
    let states = Arc::new(Mutex::new(Vec::new()));
    let saved = states.clone();
    let checkpoint = Checkpoint::new(move |state: RunState| {
        saved.lock().unwrap().push(crate::kit::written(&state));
        Box::pin(async {
            pace().pass(&Context::new()).await;
            Ok(())
        })
    });
    request.checkpoint = Some(checkpoint);
    let run = async {
        let agent = scene.model.agent(tools);
        let request = request.with_context(scene.world.context());
        let response = agent.oneshot(request).await.unwrap();
        let mut body = std::pin::pin!(response.body);
        while let Some(event) = body.next().await {
            assert!(!event.unwrap().is_finish(), "it ends");
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(1), run).await;
    assert!(ended.is_err(), "it hangs");
    states.lock().unwrap().pop().unwrap()
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
    let cell = ClaimCell::new(key.clone());
    cell.set(RunClaim::new(key, 7));
    context.extensions_mut().insert(cell);
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
        let key = concentric_tools::token::Key::new("k", vec![7; 32]).unwrap();
        let keys = concentric_tools::token::TokenKeys::new(key);
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

// ---- a loop of one's own ----

fn message(id: &str, calls: Vec<(&str, &str)>) -> Message {
    let parts = calls
        .into_iter()
        .enumerate()
        .map(|(i, call)| Part::new(PartKind::ToolCall(call_part(0, i, &Call::from(call)))));
    Message::new(Role::Assistant, parts.collect()).with_id(MessageId::new(id))
}

fn gated(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund"))
}

fn lifecycle(world: &World, tools: Toolset) -> ToolLifecycle {
    let mut before = Transcript::new();
    before.push_user("go");
    ToolLifecycle::new(tools)
        .with_context(world.context())
        .after(before)
}

fn suspended(end: RoundEnd) -> RunState {
    match end {
        RoundEnd::Suspended(state) => crate::kit::written(&state),
        other => panic!("{other:?}"),
    }
}

paced!(a_round_is_suspended_here_and_resumed_there);
async fn a_round_is_suspended_here_and_resumed_there() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let calls = vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":2}"#)];
    let end = here.execute_round(message("m1", calls)).await.unwrap();
    let state = suspended(end);
    assert!(log.lines().is_empty());
    assert_eq!(here.suspend().unwrap().interrupts(), state.interrupts());
    assert!(here.capture_turn().is_none());
    // Nothing else can be said or done now.
    assert!(here.push(Turn::user("hello?")).is_err());
    let again = here
        .execute_round(message("m2", vec![("write", r#"{"n":3}"#)]))
        .await;
    assert!(again.is_err());

    let mut there = ToolLifecycle::new(gated(&log)).with_context(world.context());
    let id = state.interrupts()[0].id.clone();
    let wrong = vec![Reply::approve(crate::kit::id("x"))];
    let error = there.resume(state.clone(), wrong).await.unwrap_err();
    assert_eq!(error.code(), Some("unknown_interrupt"));
    assert!(log.lines().is_empty());
    let end = there.resume(state, vec![Reply::approve(id)]).await.unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    assert_eq!(round.results().len(), 2);
    let mut lines = log.lines();
    lines.sort();
    assert_eq!(lines, ["refund 1", "write 2"]);
    let turn = there.capture_turn().unwrap();
    assert_eq!(turn.len(), 2);
    assert!(there.capture_turn().is_none(), "at most once");
    there
        .push(Turn::message(Message::assistant("done")).unwrap())
        .unwrap();
    assert_eq!(there.transcript().len(), 3);
    // The next round begins.
    let end = there
        .execute_round(message("m3", vec![("read", r#"{"n":4}"#)]))
        .await
        .unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert_eq!(there.capture_turn().unwrap().len(), 4);
}

paced!(a_wrong_reply_leaves_a_round_suspended);
async fn a_wrong_reply_leaves_a_round_suspended() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let end = here
        .execute_round(message("m1", vec![("refund", r#"{"n":1}"#)]))
        .await
        .unwrap();
    let state = suspended(end);
    let wrong = vec![Reply::approve(crate::kit::id("x"))];
    here.resume(state.clone(), wrong).await.unwrap_err();
    assert!(here.suspend().is_some());
    let id = state.interrupts()[0].id.clone();
    let end = here
        .resume(state, vec![Reply::deny(id, "no")])
        .await
        .unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert!(here.suspend().is_none());
    assert!(log.lines().is_empty());
}

paced!(a_round_that_halts_ends_the_run_of_the_loop);
async fn a_round_that_halts_ends_the_run_of_the_loop() {
    let (log, world) = (Log::default(), World::new());
    let tools = Toolset::new().tool(crate::kit::halting("stop", &log));
    let mut here = lifecycle(&world, tools);
    let end = here
        .execute_round(message("m1", vec![("stop", r#"{"n":1}"#)]))
        .await
        .unwrap();
    let RoundEnd::Ended { round, outcome } = end else {
        panic!("{end:?}");
    };
    assert!(matches!(outcome, Outcome::Halted { .. }));
    assert_eq!(round.results().len(), 1);
    let again = here
        .execute_round(message("m2", vec![("stop", r#"{"n":1}"#)]))
        .await;
    assert!(again.is_err());
}

paced!(a_message_keeps_what_its_provider_wants_back);
async fn a_message_keeps_what_its_provider_wants_back() {
    let (log, world) = (Log::default(), World::new());
    let data = Some(Arc::new(ProviderData::new(
        "gemini",
        json!({"thoughtSignature": "abc"}),
    )));
    let call = ToolCallPart::new(CallId::new("c1"), "read", r#"{"n":1}"#);
    let parts = vec![
        Part::text("Let me see.").with_provider_data(data.clone()),
        Part::new(PartKind::ToolCall(call)).with_provider_data(data),
    ];
    let message = Message::new(Role::Assistant, parts).with_id(MessageId::new("m1"));
    let mut here = lifecycle(&world, gated(&log));
    let end = here.execute_round(message.clone()).await.unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    let data = |message: &Message| -> Vec<_> {
        message
            .parts
            .iter()
            .map(|part| part.provider_data.clone())
            .collect()
    };
    assert_eq!(data(round.message()), data(&message));
    assert_eq!(round.message().id, message.id);
}

paced!(the_clients_tools_are_asked_of_whoever_drives_the_loop);
async fn the_clients_tools_are_asked_of_whoever_drives_the_loop() {
    let (log, world) = (Log::default(), World::new());
    let client = ToolSpecs::new([Arc::new(ToolSpec::new(
        "beep",
        "",
        json!({"type": "object"}),
    ))]);
    let make = || lifecycle(&world, gated(&log)).with_client_tools(client.clone());
    let mut here = make();
    assert_eq!(here.specs().len(), 4);
    let calls = vec![("beep", "{}"), ("write", r#"{"n":1}"#)];
    let end = here.execute_round(message("m1", calls)).await.unwrap();
    let state = suspended(end);
    let ask = state.interrupts()[0].clone();
    assert_eq!(ask.reason, interrupt::CLIENT_TOOL);
    assert_eq!(log.lines(), ["write 1"]);
    let end = make()
        .resume(state, vec![Reply::answer(ask.id, "beeped")])
        .await
        .unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    assert_eq!(round.results()[0].outcome.content.text(), "beeped");
    assert_eq!(log.lines(), ["write 1"]);
}

paced!(f033_the_greatest_depth_holds_in_a_loop_of_ones_own);
async fn f033_the_greatest_depth_holds_in_a_loop_of_ones_own() {
    let (log, world) = (Log::default(), World::new());
    let agent = agent_tool("a", "", Model::silent().agent(&gated(&log))).max_depth(1);
    let tools = Toolset::new().tool(agent).tool(number("read", &log));
    let outer = world.context();
    let top = ToolLifecycle::new(tools.clone()).with_context(outer.clone());
    assert_eq!(top.specs().len(), 2);
    let mut deep = ToolLifecycle::new(tools).with_context(outer.child().build());
    assert_eq!(deep.specs().len(), 1, "it is not offered");
    let end = deep
        .execute_round(message("m1", vec![("a", r#"{"task":"x"}"#)]))
        .await
        .unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    assert_eq!(round.results()[0].outcome.status, ToolStatus::Failed);
}

paced!(paused an_agent_that_says_much_does_not_hang_in_a_loop_of_ones_own);
async fn an_agent_that_says_much_does_not_hang_in_a_loop_of_ones_own() {
    let world = World::new();
    let model = Model::saying(|_, _| (0..3000).map(|_| Event::text("x")).collect());
    let tools = Toolset::new().tool(agent_tool("a", "", model.agent(&Toolset::new())));
    let mut here = lifecycle(&world, tools);
    let round = here.execute_round(message("m1", vec![("a", r#"{"task":"x"}"#)]));
    let end = tokio::time::timeout(Duration::from_secs(60), round).await;
    assert!(matches!(
        end.expect("it ends").unwrap(),
        RoundEnd::Closed(_)
    ));
}

/// A tool whose first calls never end.
fn hangs_once(name: &'static str, log: &Log) -> Tool {
    let (log, called) = (log.clone(), Arc::new(AtomicBool::new(false)));
    tool_with_context(name, "", move |crate::kit::Number { n }, _: Context| {
        let (log, called) = (log.clone(), called.clone());
        async move {
            log.add(format!("{name} {n}"));
            if !called.swap(true, Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            format!("{name} {n}")
        }
    })
}

/// Polls `round` until nothing happens any more, and drops it.
async fn dropped(round: impl Future<Output = Result<RoundEnd, concentric_core::Error>>) {
    let ended = tokio::time::timeout(Duration::from_secs(1), round).await;
    assert!(ended.is_err(), "it hangs");
}

paced!(a_state_of_a_round_that_went_on_since_is_refused);
async fn a_state_of_a_round_that_went_on_since_is_refused() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let first = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let ids: Vec<_> = first.interrupts().iter().map(|it| it.id.clone()).collect();
    let approve = |i: usize| vec![Reply::approve(ids[i].clone())];
    let second = suspended(here.resume(first.clone(), approve(0)).await.unwrap());
    for replies in [approve(0), approve(1), vec![]] {
        let error = here.resume(first.clone(), replies).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
    assert_eq!(log.lines(), ["refund 1"]);
    // The round stays as it was.
    assert_eq!(here.suspend().unwrap(), second);
    let end = here.resume(second.clone(), approve(1)).await.unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    for state in [first, second] {
        let error = here.resume(state, approve(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
    assert_eq!(log.lines(), ["refund 1", "refund 2"]);
}

paced!(paused a_round_whose_future_is_dropped_goes_on_and_hides_nothing);
async fn a_round_whose_future_is_dropped_goes_on_and_hides_nothing() {
    let (log, world) = (Log::default(), World::new());
    let tools = Toolset::new()
        .tool(number("write", &log))
        .tool(hangs_once("read", &log).read_only())
        .tool(hangs_once("once", &log));
    let mut here = lifecycle(&world, tools);
    let n = r#"{"n":1}"#;
    let calls = vec![("write", n), ("read", n), ("once", n)];
    dropped(here.execute_round(message("m1", calls))).await;
    assert_eq!(log.lines(), ["write 1", "read 1", "once 1"]);
    // Nothing else can be said or done now.
    assert!(here.push(Turn::user("hello?")).is_err());
    assert!(here.capture_turn().is_none());
    let error = here.execute_round(message("m2", vec![("write", n)])).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidRequest);

    let state = crate::kit::written(&here.suspend().unwrap());
    let state = suspended(here.resume(state, vec![]).await.unwrap());
    let ask = state.interrupts()[0].clone();
    assert_eq!(ask.reason, interrupt::UNKNOWN_EFFECT);
    let answer = vec![Reply::answer(ask.id, "it was done")];
    let end = here.resume(state, answer).await.unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    let texts = round.results().iter().map(|it| it.outcome.content.text());
    assert_eq!(
        texts.collect::<Vec<_>>(),
        ["write 1", "read 1", &crate::kit::by_person("it was done")]
    );
    assert_eq!(log.lines(), ["write 1", "read 1", "once 1", "read 1"]);
    assert!(here.capture_turn().is_some());
}

paced!(paused a_resume_whose_future_is_dropped_has_taken_its_replies);
async fn a_resume_whose_future_is_dropped_has_taken_its_replies() {
    let (log, world) = (Log::default(), World::new());
    let tools = Toolset::new()
        .tool(hangs_once("refund", &log))
        .gate(Approval::for_tools("refund"));
    let mut here = lifecycle(&world, tools);
    let first = message("m1", vec![("refund", r#"{"n":1}"#)]);
    let asked = suspended(here.execute_round(first).await.unwrap());
    let approve = || vec![Reply::approve(asked.interrupts()[0].id.clone())];
    dropped(here.resume(asked.clone(), approve())).await;
    let error = here.resume(asked.clone(), approve()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let state = here.suspend().unwrap();
    let state = suspended(here.resume(state, vec![]).await.unwrap());
    assert_eq!(state.interrupts()[0].reason, interrupt::UNKNOWN_EFFECT);
    assert_eq!(log.lines(), ["refund 1"]);
}

/// What a stopped round has come to: `write`, which runs, and `once`, which waits for it.
fn assert_stopped(here: &ToolLifecycle, log: &Log) {
    let last = here.transcript().last().unwrap();
    let statuses: Vec<_> = last.results().iter().map(|it| it.outcome.status).collect();
    assert_eq!(statuses, [ToolStatus::Unknown, ToolStatus::Cancelled]);
    assert_eq!(log.lines(), ["write 1"]);
}

fn one_after_the_other(log: &Log) -> Toolset {
    Toolset::new()
        .tool(hangs_once("write", log))
        .tool(number("once", log))
        .max_parallel(1)
}

fn two_calls() -> Message {
    message("m1", vec![("write", r#"{"n":1}"#), ("once", r#"{"n":2}"#)])
}

paced!(paused a_cancel_stops_a_round);
async fn a_cancel_stops_a_round() {
    let (log, context) = (Log::default(), World::new().context());
    let mut here = ToolLifecycle::new(one_after_the_other(&log)).with_context(context.clone());
    let cancel = async {
        tokio::task::yield_now().await;
        context.cancel(CancelReason::User);
    };
    let round = tokio::time::timeout(Duration::from_secs(1), here.execute_round(two_calls()));
    let (end, ()) = tokio::join!(round, cancel);
    let RoundEnd::Ended { outcome, .. } = end.expect("it ends").unwrap() else {
        panic!("it goes on");
    };
    let reason = CancelReason::User;
    assert_eq!(outcome, Outcome::Aborted { reason });
    assert_stopped(&here, &log);
}

paced!(paused a_deadline_stops_a_round);
async fn a_deadline_stops_a_round() {
    let (log, world) = (Log::default(), World::new());
    let minute = Duration::from_secs(60);
    let context = world.builder().deadline(world.now() + minute).build();
    let mut here = ToolLifecycle::new(one_after_the_other(&log)).with_context(context);
    let pass = async {
        tokio::task::yield_now().await;
        world.clock.advance(minute);
    };
    let round = tokio::time::timeout(Duration::from_secs(1), here.execute_round(two_calls()));
    let (end, ()) = tokio::join!(round, pass);
    let error = end.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_stopped(&here, &log);
}

paced!(nothing_runs_in_a_round_that_begins_or_goes_on_too_late);
async fn nothing_runs_in_a_round_that_begins_or_goes_on_too_late() {
    for which in ["cancelled", "late"] {
        let (log, watched, world) = (Log::default(), Log::default(), World::new());
        let tools = || {
            Toolset::new()
                .tool(number("refund", &log))
                .tool(number("write", &log))
                .gate(Approval::for_tools("refund").on_approval(told(&watched)))
        };
        let stopped = || {
            let context = world.builder().deadline(world.now()).build();
            match which {
                "late" => ToolLifecycle::new(tools()).with_context(context),
                _ => {
                    let context = world.context();
                    context.cancel(CancelReason::User);
                    ToolLifecycle::new(tools()).with_context(context)
                }
            }
        };
        let calls = vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":2}"#)];
        let end = stopped().execute_round(message("m1", calls.clone())).await;
        assert_eq!(end.is_err(), which == "late", "{end:?}");
        assert!(watched.lines().is_empty());

        let mut here = ToolLifecycle::new(tools()).with_context(world.context());
        let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
        let end = stopped().resume(state, vec![]).await;
        assert_eq!(end.is_err(), which == "late", "{end:?}");
        // Who was told that somebody is asked is told that nobody is any more.
        assert_eq!(
            watched.lines(),
            ["requested call-0-0", "cancelled call-0-0"]
        );
        assert!(log.lines().is_empty());
    }
}

paced!(a_message_that_calls_nothing_of_ours_is_refused_and_changes_nothing);
async fn a_message_that_calls_nothing_of_ours_is_refused_and_changes_nothing() {
    let (log, world) = (Log::default(), World::new());
    let mut here = lifecycle(&world, gated(&log));
    let mut search = ToolCallPart::new(CallId::new("s1"), "web_search", "{}");
    search.executor = Executor::Provider;
    let parts = vec![
        Part::text("Let me see."),
        Part::new(PartKind::ToolCall(search)),
    ];
    let said = Message::new(Role::Assistant, parts);
    let error = here.execute_round(said.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    here.push(Turn::message(said).unwrap()).unwrap();
    let end = here
        .execute_round(message("m2", vec![("read", r#"{"n":1}"#)]))
        .await
        .unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert_eq!(here.transcript().len(), 3);
}

paced!(events_that_never_end_let_others_have_their_turn);
async fn events_that_never_end_let_others_have_their_turn() {
    for echoes in [false, true] {
        let context = World::new().context();
        let x = || Event::Custom(Box::new(CustomEvent::new("x", json!(1))));
        let says = move |crate::kit::Number { .. }, cx: Context| async move {
            while cx.send(x()).await.is_ok() && !echoes {}
            std::future::pending::<()>().await;
        };
        let tools = Toolset::new().tool(tool_with_context("says", "", says));
        let heard = Arc::new(AtomicUsize::new(0));
        let (counted, back) = (heard.clone(), context.clone());
        let mut here = ToolLifecycle::new(tools)
            .with_context(context.clone())
            .on_event(move |event| {
                let heard = counted.fetch_add(1, Ordering::SeqCst);
                assert!(heard < 100_000, "nobody else has a turn");
                if echoes {
                    back.emit(event).unwrap();
                }
            });
        let cancel = async {
            while heard.load(Ordering::SeqCst) < 5_000 {
                tokio::task::yield_now().await;
            }
            context.cancel(CancelReason::User);
        };
        let round = here.execute_round(message("m1", vec![("says", r#"{"n":1}"#)]));
        let (end, ()) = tokio::join!(round, cancel);
        assert!(matches!(end.unwrap(), RoundEnd::Ended { .. }));
    }
}

// ---- decisions that are told ahead ----

paced!(decisions_are_told_ahead_and_not_again);
async fn decisions_are_told_ahead_and_not_again() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let ids: Vec<_> = state
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let replies = || {
        vec![
            Reply::approve(ids[0].clone()),
            Reply::deny(ids[1].clone(), "no"),
        ]
    };
    // A wrong one tells nobody.
    let wrong = [
        Reply::approve(ids[0].clone()),
        Reply::approve(crate::kit::id("x")),
    ];
    assert!(here.notify_decisions(&state, &wrong).await.is_err());
    assert_eq!(watched.lines().len(), 2);
    here.notify_decisions(&state, &replies()).await.unwrap();
    here.notify_decisions(&state, &replies()).await.unwrap();
    let told = [r#"approved call-0-0 {"n":1}"#, "denied call-0-1 no"];
    assert_eq!(watched.lines()[2..], told);
    assert!(log.lines().is_empty());
    let end = lifecycle(&world, tools())
        .resume(state, replies())
        .await
        .unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert_eq!(log.lines(), ["refund 1"]);
    assert_eq!(watched.lines().len(), 4, "not told again");
}

paced!(a_decision_that_is_told_ahead_is_about_what_will_run);
async fn a_decision_that_is_told_ahead_is_about_what_will_run() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(
                Approval::for_tools("refund")
                    .replies(crate::kit::ANY_REPLY)
                    .on_approval(told(&watched)),
            )
            .prepare(async |call: ToolCall| {
                let text = call.arguments().as_str().replace('1', "5");
                Ok(text.as_str().into())
            })
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let ids: Vec<_> = state
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let replies = vec![
        Reply::approve(ids[0].clone()),
        Reply::approve_edited(ids[1].clone(), json!({"n": 7})),
    ];
    here.notify_decisions(&state, &replies).await.unwrap();
    let told = [
        r#"approved call-0-0 {"n":5}"#,
        r#"approved call-0-1 {"n":7}"#,
    ];
    assert_eq!(watched.lines()[2..], told);
}

paced!(a_decision_about_a_changed_call_is_told_ahead_too);
async fn a_decision_about_a_changed_call_is_told_ahead_too() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .layer(hook(|mut call: ToolCall| {
                let text = call.arguments().as_str().replace('1', "5");
                call.set_arguments(text.as_str().into());
                Hook::Call(call)
            }))
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let first = message("m1", vec![("refund", r#"{"n":1}"#)]);
    let state = suspended(here.execute_round(first).await.unwrap());
    let id = state.interrupts()[0].id.clone();
    let end = here.resume(state, vec![Reply::approve(id)]).await.unwrap();
    let state = suspended(end);
    let before = watched.lines().len();
    let replies = [Reply::approve(state.interrupts()[0].id.clone())];
    here.notify_decisions(&state, &replies).await.unwrap();
    assert_eq!(watched.lines()[before..], [r#"approved call-0-0 {"n":5}"#]);
    here.resume(state, replies.to_vec()).await.unwrap();
    assert_eq!(watched.lines().len(), before + 1);
    assert_eq!(log.lines(), ["refund 5"]);
}

paced!(what_comes_of_a_run_is_the_same_whether_it_was_looked_at);
async fn what_comes_of_a_run_is_the_same_whether_it_was_looked_at() {
    // A resume without replies asks the same again, and runs nothing.
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":2}"#)]);
    let mut ran: Ran = scene.start(&gated(&log)).await;
    let first = ran.asked();
    for _ in 0..3 {
        ran = scene.resume(&gated(&log), ran.state(), vec![]).await;
        assert_eq!(ran.asked(), first);
    }
    assert!(log.lines().is_empty());
    let request = ChatRequest::resume(ran.state(), vec![Reply::approve(first[0].id.clone())])
        .with_context(scene.world.context());
    let ran = drive(scene.model.agent(&gated(&log)), request).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines().len(), 2);
}

paced!(a_skill_stays_active_where_its_run_is_resumed);
async fn a_skill_stays_active_where_its_run_is_resumed() {
    let (log, world) = (Log::default(), World::new());
    let wrapped = || {
        let refunds = Skill::new("refunds", "Pays back.", "Look first.").unlocks("write");
        Skills::new().skill(refunds).wrap(gated(&log)).unwrap()
    };
    let offers = |there: &mut ToolLifecycle, skills| {
        let request = there.apply_skill_loads(skills);
        request.tools.get("write").is_some()
    };
    let (tools, skills) = wrapped();
    let mut here = lifecycle(&world, tools);
    assert!(!offers(&mut here, &skills));
    let load = ("load_skill", r#"{"name":"refunds"}"#);
    let calls = vec![load, ("refund", r#"{"n":1}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());

    let (tools, skills) = wrapped();
    let mut there = lifecycle(&world, tools);
    assert!(!offers(&mut there, &skills));
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    there.resume(state, vec![reply]).await.unwrap();
    assert!(offers(&mut there, &skills));
}
