//! Questions that are answered while the run stays open.

use crate::common::{Log, gate_fn, paced};
use crate::kit::{ANY_REPLY, Ran, Scene, World, drive_with, halting, number, told};
use concentric_core::{
    CancelReason, Context, Event, InterruptHub, Outcome, Reply, Str, ToolStatus,
    interrupt::{ScopeCalls, ScopeLifetime},
    store::Tenant,
};
use concentric_tools::{Approval, Toolset, Verdict};
use serde_json::json;
use std::time::Duration;

fn gated(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund"))
}

// ---- a run that stays open ----

/// Drives a live run; `on` is called with each question.
async fn live_run(
    scene: &Scene,
    tools: &Toolset,
    context: Context,
    mut on: impl FnMut(concentric_core::Interrupt),
) -> Ran {
    let request = concentric_core::ChatRequest::user("go").with_context(context);
    drive_with(scene.model.agent(tools), request, |event| {
        if let Event::Custom(custom) = event
            && custom.name == "interrupt"
        {
            on(serde_json::from_value(custom.value.clone()).unwrap());
        }
    })
    .await
}

fn live_tools(log: &Log, watched: &Log, live: &InterruptHub) -> Toolset {
    let approval = Approval::for_tools("refund")
        .replies(ANY_REPLY)
        .live(live, Duration::from_secs(60))
        .on_approval(told(watched));
    Toolset::new()
        .tool(number("refund", log))
        .tool(halting("halting", log).read_only())
        .tool(number("read", log).read_only())
        .gate(approval)
}

paced!(c091_a_live_question_that_nobody_answers_in_time_denies);
async fn c091_a_live_question_that_nobody_answers_in_time_denies() {
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let clock = scene.world.clock.clone();
    let tools = live_tools(&log, &watched, &live);
    let mut late = None;
    let ran = live_run(&scene, &tools, scene.world.context(), |ask| {
        late = Some(ask.id);
        clock.advance(Duration::from_secs(60));
    })
    .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Denied);
    assert!(text.contains("in time"));
    assert!(log.lines().is_empty());
    assert_eq!(watched.lines().len(), 2);
    let reply = Reply::approve(late.unwrap());
    let error = live
        .reply(&Tenant::default(), reply, scene.world.now())
        .unwrap_err();
    assert_eq!(error.code(), "unknown_interrupt");
}

paced!(c091_a_live_question_is_answered_denied_or_cancelled);
async fn c091_a_live_question_is_answered_denied_or_cancelled() {
    let replies: [(fn(concentric_core::InterruptId) -> Reply, _, &[&str]); 5] = [
        (Reply::approve, ToolStatus::Done, &["refund 1"]),
        (
            |id| Reply::approve_edited(id, json!({"n": 7})),
            ToolStatus::Done,
            &["refund 7"],
        ),
        (|id| Reply::deny(id, "no"), ToolStatus::Denied, &[]),
        (Reply::cancel, ToolStatus::Cancelled, &[]),
        (|id| Reply::answer(id, "paid"), ToolStatus::Done, &[]),
    ];
    for (reply, status, ran_with) in replies {
        let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
        let scene =
            Scene::round(vec![("refund", r#"{"n":1}"#)]).with_world(World::new().tenant("acme"));
        let tools = live_tools(&log, &watched, &live);
        let now = scene.world.now();
        let tenant = Tenant("acme".into());
        let ran = live_run(&scene, &tools, scene.world.context(), |ask| {
            assert_eq!(live.interrupts(&tenant), std::slice::from_ref(&ask));
            assert!(live.interrupts(&Tenant::default()).is_empty());
            let other = live.reply(&Tenant("other".into()), reply(ask.id.clone()), now);
            assert_eq!(other.unwrap_err().code(), "unknown_interrupt");
            for malformed in [
                Reply::resolve(ask.id.clone(), json!({})),
                // The tool does not take these arguments.
                Reply::approve_edited(ask.id.clone(), json!({"n": 700})),
                // The question does not offer this.
                Reply::approve(ask.id.clone()).remembered(ScopeCalls::Tool, ScopeLifetime::Always),
            ] {
                let error = live.reply(&tenant, malformed, now).unwrap_err();
                assert_eq!(error.code(), "malformed_reply");
            }
            live.reply(&tenant, reply(ask.id.clone()), now).unwrap();
            let twice = live.reply(&tenant, reply(ask.id), now).unwrap_err();
            assert_eq!(twice.code(), "unknown_interrupt");
        })
        .await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(ran.result("call-0-0").0, status);
        assert_eq!(log.lines(), ran_with);
        assert_eq!(watched.lines().len(), 2, "{:?}", watched.lines());
        assert!(live.interrupts(&tenant).is_empty());
    }
}

paced!(c091_a_cancelled_run_takes_its_live_question_back);
async fn c091_a_cancelled_run_takes_its_live_question_back() {
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let tools = live_tools(&log, &watched, &live);
    let context = scene.world.context();
    let ran = live_run(&scene, &tools, context.clone(), |_| {
        context.cancel(CancelReason::User);
    })
    .await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert!(log.lines().is_empty());
    assert!(live.interrupts(&Tenant::default()).is_empty());
    assert_eq!(ran.results().len(), 1);
    assert_eq!(
        watched.lines().len(),
        2,
        "the question has an end: {:?}",
        watched.lines()
    );
}

paced!(c091_a_call_that_waits_live_is_not_said_to_have_been_started);
async fn c091_a_call_that_waits_live_is_not_said_to_have_been_started() {
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let tools = live_tools(&log, &watched, &live);
    let context = scene.world.context();
    let ran = live_run(&scene, &tools, context.clone(), |_| {
        context.cancel(CancelReason::User);
    })
    .await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Denied, "{text}");
    assert!(
        text.contains("stopped before the call was approved"),
        "{text}"
    );
}

paced!(c091_a_dropped_run_takes_its_live_question_back);
async fn c091_a_dropped_run_takes_its_live_question_back() {
    use futures_util::StreamExt;
    use tower::ServiceExt;
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let tools = live_tools(&log, &watched, &live);
    let request = concentric_core::ChatRequest::user("go").with_context(scene.world.context());
    let mut body = scene
        .model
        .agent(&tools)
        .oneshot(request)
        .await
        .unwrap()
        .body;
    let asked = loop {
        if let Event::Custom(custom) = body.next().await.unwrap().unwrap()
            && custom.name == "interrupt"
        {
            break custom.value["id"].as_str().unwrap().to_owned();
        }
    };
    drop(body);
    assert!(live.interrupts(&Tenant::default()).is_empty());
    let reply = Reply::approve(crate::kit::id(&asked));
    assert!(
        live.reply(&Tenant::default(), reply, scene.world.now())
            .is_err()
    );
    assert!(log.lines().is_empty());
}

paced!(paused a_halt_does_not_wait_for_a_live_question);
async fn a_halt_does_not_wait_for_a_live_question() {
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("halting", r#"{"n":2}"#)]);
    let tools = live_tools(&log, &watched, &live);
    let run = live_run(&scene, &tools, scene.world.context(), |_| {});
    let ran = tokio::time::timeout(Duration::from_secs(600), run)
        .await
        .expect("the halted run ends");
    assert!(matches!(ran.outcome(), Outcome::Halted { .. }));
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
    assert_eq!(log.lines(), ["halting 2"]);
    assert!(live.interrupts(&Tenant::default()).is_empty());
}

paced!(a_live_approval_with_edits_that_a_gate_halts_on_halts);
async fn a_live_approval_with_edits_that_a_gate_halts_on_halts() {
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let tools = live_tools(&log, &watched, &live).gate(gate_fn("13", |call| {
        match call.arguments().as_str().contains("13") {
            true => Verdict::halt("unlucky"),
            false => Verdict::Pass,
        }
    }));
    let now = scene.world.now();
    let ran = live_run(&scene, &tools, scene.world.context(), |ask| {
        let reply = Reply::approve_edited(ask.id, json!({"n": 13}));
        live.reply(&Tenant::default(), reply, now).unwrap();
    })
    .await;
    let reason: Str = "unlucky".into();
    assert_eq!(*ran.outcome(), Outcome::Halted { reason });
    assert!(log.lines().is_empty());
}

paced!(paused no_time_limit_of_the_stack_runs_while_somebody_decides);
async fn no_time_limit_of_the_stack_runs_while_somebody_decides() {
    let limit = || tower::timeout::TimeoutLayer::new(Duration::from_secs(1));
    let log = Log::default();
    let tools = || {
        gated(&log)
            .layer(limit())
            .tool(number("own", &log).layer(limit()))
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    // The same live.
    let (log, watched, live) = (Log::default(), Log::default(), InterruptHub::new());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let tools = live_tools(&log, &watched, &live).layer(limit());
    let now = scene.world.now();
    let (ask, answer) = tokio::sync::oneshot::channel();
    let mut ask = Some(ask);
    let person = async {
        let id = answer.await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        live.reply(&Tenant::default(), Reply::approve(id), now)
            .unwrap();
    };
    let run = live_run(&scene, &tools, scene.world.context(), |asked| {
        ask.take().unwrap().send(asked.id).unwrap();
    });
    let (ran, ()) = tokio::join!(run, person);
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}
