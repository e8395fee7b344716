//! Questions: what a reply to one may say, whom it concerns, and that each has one end.

use crate::common::{Log, gate_fn, paced, tool};
use crate::kit::{Memory, Ran, Scene, World, drive, drive_with, number, told};
use concentric_core::{
    CancelReason, ChatRequest, Context, Event, Interrupt, InterruptHub, Message, Outcome, Part,
    PartKind, Reply, Role, ToolStatus,
    interrupt::{ScopeCalls, ScopeLifetime},
    store::{StoredScope, Tenant},
};
use concentric_tools::{Approval, ToolLifecycle, Toolset, Verdict};
use serde_json::json;
use std::{future::pending, time::Duration};

const N: &str = r#"{"n":1}"#;

fn refunds() -> Scene {
    Scene::round(vec![("refund", N)])
}

// ---- what a reply may hold for ----

fn limited(store: &Memory) -> Approval {
    Approval::for_tools("refund")
        .remember(store.clone())
        .remember_at_most(ScopeCalls::Arguments, ScopeLifetime::Thread)
}

fn remembering(log: &Log, approval: Approval) -> Toolset {
    Toolset::new().tool(number("refund", log)).gate(approval)
}

paced!(a_reply_holds_for_no_more_than_the_host_allows);
async fn a_reply_holds_for_no_more_than_the_host_allows() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = remembering(&log, limited(&store));
    let scene = refunds().with_world(World::new().thread("t"));
    let asked = scene.start(&tools).await;
    let ask = asked.ask("call-0-0");
    let schema = ask.response_schema.as_ref().unwrap();
    let remember = &schema["properties"]["remember"]["properties"];
    assert_eq!(remember["what"]["enum"], json!(["arguments"]));
    assert_eq!(remember["for"]["enum"], json!(["run", "thread"]));

    for (what, span) in [
        (ScopeCalls::Tool, ScopeLifetime::Run),
        (ScopeCalls::Arguments, ScopeLifetime::Always),
        (ScopeCalls::Tool, ScopeLifetime::Always),
    ] {
        for reply in [
            Reply::approve(ask.id.clone()),
            Reply::deny(ask.id.clone(), "no"),
        ] {
            let reply = vec![reply.remembered(what, span)];
            let ran = scene.resume(&tools, asked.state(), reply).await;
            assert_eq!(ran.end.unwrap_err().code(), Some("malformed_reply"));
        }
    }
    assert!(log.lines().is_empty() && store.remembered().is_empty());

    let reply = Reply::approve(ask.id).remembered(ScopeCalls::Arguments, ScopeLifetime::Thread);
    let ran = scene.resume(&tools, asked.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert!(matches!(store.remembered()[0].span, StoredScope::Thread(_)));
}

paced!(of_two_limits_the_narrower_holds);
async fn of_two_limits_the_narrower_holds() {
    let (log, store) = (Log::default(), Memory::new());
    let other =
        Approval::for_tools("refund").remember_at_most(ScopeCalls::Tool, ScopeLifetime::Run);
    let tools = remembering(&log, limited(&store)).gate(other);
    let ask = refunds().start(&tools).await.ask("call-0-0");
    let schema = ask.response_schema.as_ref().unwrap();
    let remember = &schema["properties"]["remember"]["properties"];
    assert_eq!(remember["what"]["enum"], json!(["arguments"]));
    assert_eq!(remember["for"]["enum"], json!(["run"]));
}

paced!(what_was_asked_before_there_was_a_limit_holds_for_its_call_only);
async fn what_was_asked_before_there_was_a_limit_holds_for_its_call_only() {
    let (log, store) = (Log::default(), Memory::new());
    let free = remembering(&log, Approval::for_tools("refund").remember(store.clone()));
    let scene = refunds();
    let asked = scene.start(&free).await;
    let reply = Reply::approve(asked.ask("call-0-0").id)
        .remembered(ScopeCalls::Tool, ScopeLifetime::Always);
    let tools = remembering(&log, limited(&store));
    let ran = scene.resume(&tools, asked.state(), vec![reply]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert!(store.remembered().is_empty());
}

// ---- questions that expired ----

paced!(a_call_can_be_denied_after_its_question_has_expired);
async fn a_call_can_be_denied_after_its_question_has_expired() {
    let (log, minute) = (Log::default(), Duration::from_secs(60));
    let tools = remembering(&log, Approval::for_tools("refund").expires_after(minute));
    for (reply, status) in [
        (
            Reply::deny as fn(_, &'static str) -> Reply,
            ToolStatus::Denied,
        ),
        (|id, _| Reply::cancel(id), ToolStatus::Cancelled),
    ] {
        let scene = refunds();
        let asked = scene.start(&tools).await;
        let id = asked.ask("call-0-0").id;
        scene.world.clock.advance(minute);
        let late = vec![Reply::approve(id.clone())];
        let ran = scene.resume(&tools, asked.state(), late).await;
        assert_eq!(ran.end.unwrap_err().code(), Some("expired"));
        let ran = scene
            .resume(&tools, asked.state(), vec![reply(id, "no")])
            .await;
        assert_eq!(ran.result("call-0-0").0, status);
    }
    assert!(log.lines().is_empty());
}

// ---- each question is told once, and has one end ----

paced!(a_question_that_is_asked_again_is_told_once);
async fn a_question_that_is_asked_again_is_told_once() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        remembering(
            &log,
            Approval::for_tools("refund").on_approval(told(&watched)),
        )
        .notify_once(store.clone())
    };
    let scene = refunds();
    let asked = scene.start(&tools()).await;
    for _ in 0..3 {
        // Another process has nothing but the history, and asks the same.
        let state = asked.state();
        let open = state.open_round().unwrap();
        let request = ChatRequest::resume_history(state.transcript().clone(), open, vec![])
            .with_context(scene.world.context());
        let ran = drive(scene.model.agent(&tools()), request).await;
        assert_eq!(ran.ask("call-0-0").id, asked.ask("call-0-0").id);
    }
    assert_eq!(watched.lines(), ["requested call-0-0"]);
}

/// A run that is asked about by `then` and approved under `now`.
async fn approved(then: &Toolset, now: &Toolset) -> Ran {
    let scene = refunds();
    let asked = scene.start(then).await;
    let reply = vec![Reply::approve(asked.ask("call-0-0").id)];
    scene.resume(now, asked.state(), reply).await
}

paced!(a_question_has_one_end_also_if_its_call_does_not_run);
async fn a_question_has_one_end_also_if_its_call_does_not_run() {
    let log = Log::default();
    // The gates have one name, so that they are no other policy.
    let gate = |verdict: fn() -> Verdict| gate_fn("gate", move |_| verdict());
    for (case, told_last) in [
        (
            "the policy changed",
            "denied call-0-0 The tool or its approval rules changed",
        ),
        (
            "the tool changed",
            "denied call-0-0 The tool or its approval rules changed",
        ),
        (
            "the tool is gone",
            "denied call-0-0 The tool no longer exists.",
        ),
        ("a gate denies", "denied call-0-0 not now"),
        ("a gate halts", "denied call-0-0 stop"),
        ("it runs", r#"approved call-0-0 {"n":1}"#),
    ] {
        let (watched, store) = (Log::default(), Memory::new());
        let approval = || {
            Approval::for_tools("refund")
                .names_inner_tools()
                .on_approval(told(&watched))
        };
        let with = |approval: Approval, verdict: fn() -> Verdict| {
            Toolset::new()
                .gate(approval)
                .gate(gate(verdict))
                .notify_once(store.clone())
        };
        let refund = || number("refund", &log);
        let then = with(approval(), || Verdict::Pass).tool(refund());
        let now = match case {
            "the policy changed" => with(approval().ask("mail"), || Verdict::Pass).tool(refund()),
            "the tool changed" => with(approval(), || Verdict::Pass).tool(refund().read_only()),
            "the tool is gone" => with(approval(), || Verdict::Pass),
            "a gate denies" => with(approval(), || Verdict::deny("not now")).tool(refund()),
            "a gate halts" => with(approval(), || Verdict::halt("stop")).tool(refund()),
            _ => with(approval(), || Verdict::Pass).tool(refund()),
        };
        let ran = approved(&then, &now).await;
        assert!(ran.end.is_ok(), "{case}");
        let told = watched.lines();
        assert_eq!(told.len(), 2, "{case}: {told:?}");
        assert_eq!(told[0], "requested call-0-0");
        assert!(told[1].starts_with(told_last), "{case}: {told:?}");
    }
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(a_question_that_no_gate_would_ask_any_more_has_its_end);
async fn a_question_that_no_gate_would_ask_any_more_has_its_end() {
    // The rule is gone, and nobody remembers who was told that it asked.
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = |approval: Approval| {
        remembering(&log, approval.on_approval(told(&watched))).notify_once(store.clone())
    };
    let ran = approved(
        &tools(Approval::for_tools("refund")),
        &tools(Approval::for_tools("mail").names_inner_tools()),
    )
    .await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
    assert_eq!(watched.lines().len(), 2, "{:?}", watched.lines());
}

paced!(a_cancel_of_a_round_ends_the_questions_beside_it);
async fn a_cancel_of_a_round_ends_the_questions_beside_it() {
    let (log, watched, context) = (Log::default(), Log::default(), World::new().context());
    let forever = tool("read", "", |crate::kit::Number { .. }| async {
        pending::<String>().await
    });
    let tools = remembering(
        &log,
        Approval::for_tools("refund").on_approval(told(&watched)),
    )
    .tool(forever.read_only());
    let mut here = ToolLifecycle::new(tools).with_context(context.clone());
    let parts = ["refund", "read"].into_iter().enumerate().map(|(i, name)| {
        let call = crate::kit::call_part(0, i, &(name, N).into());
        Part::new(PartKind::ToolCall(call))
    });
    let message = Message::new(Role::Assistant, parts.collect());
    let cancel = async {
        tokio::task::yield_now().await;
        context.cancel(CancelReason::User);
    };
    let (end, ()) = tokio::join!(here.execute_round(message), cancel);
    end.unwrap();
    assert_eq!(
        watched.lines(),
        ["requested call-0-0", "cancelled call-0-0"]
    );
}

// ---- live questions of one id ----

/// What a question of a live run says.
fn asks(event: &Event) -> Option<Interrupt> {
    match event {
        Event::Custom(custom) if custom.name == *"interrupt" => {
            serde_json::from_value(custom.value.clone()).ok()
        }
        _ => None,
    }
}

paced!(a_live_question_is_not_lost_to_another_of_its_id);
async fn a_live_question_is_not_lost_to_another_of_its_id() {
    let (log, live) = (Log::default(), InterruptHub::new());
    let tools = remembering(
        &log,
        Approval::for_tools("refund").live(&live, Duration::from_secs(60)),
    );
    // Two worlds count their ids alike.
    let (first, second) = (refunds(), refunds());
    let request = |context: Context| ChatRequest::user("go").with_context(context);
    let second_run = async {
        while live.interrupts(&Tenant::default()).is_empty() {
            tokio::task::yield_now().await;
        }
        let request = request(second.world.context());
        let ran = drive(second.model.agent(&tools), request).await;
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
        // The first still waits, and is what the reply is to.
        let asked = live.interrupts(&Tenant::default());
        assert_eq!(asked.len(), 1);
        let reply = Reply::approve(asked[0].id.clone());
        live.reply(&Tenant::default(), reply.clone(), first.world.now())
            .unwrap();
        let again = live.reply(&Tenant::default(), reply, first.world.now());
        assert_eq!(again.unwrap_err().code(), "unknown_interrupt");
        assert!(live.interrupts(&Tenant::default()).is_empty());
    };
    let mut seen = 0;
    let agent = first.model.agent(&tools);
    let first_run = drive_with(agent, request(first.world.context()), |event| {
        seen += usize::from(asks(event).is_some());
    });
    let (ran, ()) = tokio::join!(first_run, second_run);
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(seen, 1);
    assert_eq!(log.lines(), ["refund 1"]);
}
