//! What outlives a process: effects and decisions; and the lifecycle of tools in a loop of one's own.

mod crashes;
mod notices;
mod single;

use crate::common::{Hook, Log, hook, paced, tool_with_context};
use crate::kit::{Call, Memory, Model, Ran, Scene, World, call_part, drive, number, quietly, told};
use concentric_core::{
    Annotations, CallId, CancelReason, ChatRequest, Context, CustomEvent, ErrorKind, Event,
    Executor, Message, MessageId, Outcome, Part, PartKind, ProviderData, Reply, Role, RoundCall,
    ToolCall, ToolCallPart, ToolOutcome, ToolSpec, ToolSpecs, ToolStatus, Transcript, Turn,
    interrupt,
    machine::RunState,
    store::{RunClaim, RunKey, Tenant},
};
use concentric_tools::{
    Approval, RoundEnd, Skill, Skills, Tool, ToolLifecycle, Toolset, agent_tool,
};
use serde_json::json;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

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
