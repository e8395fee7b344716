//! Calls that somebody decides about: suspended, taken up, denied, changed on their way.

mod mixes;

use crate::common::{Log, gate_fn, note, paced, tool};
use crate::kit::{
    Call, Memory, Minutes, Model, Scene, World, call_events, drive, drive_with, failing, halting,
    number, panicking, quietly, told,
};
use concentric_core::trace::TraceStep;
use concentric_core::{
    Delivery, ErrorKind, Event, InterruptHub, Outcome, Reply, ReplyKind, RunOverrides, ToolCall,
    ToolStatus, Turn, interrupt, store::Tenant,
};
use concentric_tools::{Approval, Matcher, NoArguments, SiblingPolicy, ToolPins, Toolset, Verdict};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn gated(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund").replies(crate::kit::ANY_REPLY))
}

fn ok(call: &str, text: &str) -> crate::kit::Result3 {
    (call.into(), ToolStatus::Done, text.into())
}

fn sorted(log: &Log) -> Vec<String> {
    let mut lines = log.lines();
    lines.sort();
    lines
}

// ---- a call that is asked about ----

paced!(c069_a_gated_call_is_not_run_and_suspends_the_run);
async fn c069_a_gated_call_is_not_run_and_suspends_the_run() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n": 1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    assert!(log.lines().is_empty());
    assert!(ran.results().is_empty());
    let ask = ran.ask("call-0-0");
    assert_eq!(ask.reason, interrupt::TOOL_CALL);
    assert_eq!(ask.metadata["tool"], "refund");
    assert_eq!(ask.metadata["arguments"], json!({"n": 1}));
    assert_eq!(ran.state().interrupts(), [&ask]);
}

paced!(c070_an_approved_call_runs_once);
async fn c070_an_approved_call_runs_once() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&gated(&log), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1"]);
    assert_eq!(ran.results(), [ok("call-0-0", "refund 1")]);
    assert_eq!(ran.transcript().len(), 3);
    assert!(matches!(ran.events[0], Event::Resumed));
}

paced!(c071_a_run_that_was_resumed_is_not_resumed_again);
async fn c071_a_run_that_was_resumed_is_not_resumed_again() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let (state, reply) = (ran.state(), Reply::approve(ran.ask("call-0-0").id));
    let request = concentric_core::ChatRequest::resume(state, vec![reply.clone()])
        .with_context(scene.world.context());
    let again = request.clone();
    let ran = drive(scene.model.agent(&gated(&log)), request).await;
    assert_eq!(log.lines(), ["refund 1"]);
    // The same request.
    let twice = drive(scene.model.agent(&gated(&log)), again).await;
    assert_eq!(twice.end.unwrap_err().kind(), ErrorKind::Conflict);
    // The history that came of it has nothing open.
    let messages = ran.transcript().iter().flat_map(|turn| {
        let results = turn.results().iter().cloned();
        let results: Vec<_> = results
            .map(|r| concentric_core::Part::new(concentric_core::PartKind::ToolResult(r)))
            .collect();
        let mut messages = vec![turn.as_message().clone()];
        if !results.is_empty() {
            let role = concentric_core::Role::Tool;
            messages.push(concentric_core::Message::new(role, results));
        }
        messages
    });
    let (_, open) = concentric_core::Transcript::from_history(
        messages.collect::<Vec<_>>(),
        concentric_core::transcript::Repair::Refuse,
    )
    .unwrap();
    assert!(open.is_none());
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(c072_a_denied_call_is_not_run_and_the_model_reads_why);
async fn c072_a_denied_call_is_not_run_and_the_model_reads_why() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let reply = Reply::deny(ran.ask("call-0-0").id, "too much");
    let ran = scene.resume(&gated(&log), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert!(log.lines().is_empty());
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Denied);
    assert!(text.contains("too much"));
    // The model was asked once more, with the result.
    assert_eq!(scene.model.requests().len(), 2);
}

paced!(c076_f048_a_tool_or_a_policy_that_changed_is_asked_about_again);
async fn c076_f048_a_tool_or_a_policy_that_changed_is_asked_about_again() {
    let log = Log::default();
    let other_tool = Toolset::new()
        .tool(
            number("refund", &log)
                .annotations(Default::default())
                .group("money"),
        )
        .gate(Approval::for_tools("refund"));
    let other_policy = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools(["refund", "mail"]).names_inner_tools());
    let more_gates = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools("refund"))
        .gate(gate_fn("more", |_| Verdict::Pass));
    for changed in [other_tool, other_policy, more_gates] {
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
        let tools = Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund"));
        let ran = scene.start(&tools).await;
        let reply = Reply::approve(ran.ask("call-0-0").id);
        let ran = scene.resume(&changed, ran.state(), vec![reply]).await;
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Denied);
        assert!(text.contains("Request approval again"), "{text}");
        assert!(log.lines().is_empty());
        assert_eq!(*ran.outcome(), Outcome::Completed);
    }
}

paced!(c077_a_tool_that_is_gone_is_not_run);
async fn c077_a_tool_that_is_gone_is_not_run() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let tools = Toolset::new()
        .tool(number("read", &log))
        .gate(Approval::for_tools("refund").names_inner_tools());
    let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Failed);
    assert!(text.contains("no tool `refund`"), "{text}");
    assert!(log.lines().is_empty());
}

paced!(c078_a_read_only_sibling_runs_at_once_and_is_not_run_again);
async fn c078_a_read_only_sibling_runs_at_once_and_is_not_run_again() {
    let log = Log::default();
    let scene = Scene::round(vec![("read", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]);
    let ran = scene.start(&gated(&log)).await;
    assert_eq!(log.lines(), ["read 1"]);
    let open = ran.state().open_round().unwrap();
    let done = open.calls().next().unwrap().1.unwrap();
    assert_eq!(done.content.text(), "read 1");
    let reply = Reply::approve(ran.ask("call-0-1").id);
    let ran = scene.resume(&gated(&log), ran.state(), vec![reply]).await;
    assert_eq!(log.lines(), ["read 1", "refund 2"]);
    assert_eq!(
        ran.results(),
        [ok("call-0-0", "read 1"), ok("call-0-1", "refund 2")]
    );
}

paced!(c079_held_siblings_run_in_order_when_the_run_goes_on);
async fn c079_held_siblings_run_in_order_when_the_run_goes_on() {
    let log = Log::default();
    let tools = || gated(&log).siblings(SiblingPolicy::HoldAll).max_parallel(1);
    let scene = Scene::round(vec![
        ("read", r#"{"n":1}"#),
        ("refund", r#"{"n":2}"#),
        ("write", r#"{"n":3}"#),
    ]);
    let ran = scene.start(&tools()).await;
    assert!(log.lines().is_empty());
    let reply = Reply::approve(ran.ask("call-0-1").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["read 1", "refund 2", "write 3"]);
    assert_eq!(ran.results().len(), 3);
}

paced!(c080_every_call_has_one_result_whatever_becomes_of_siblings);
async fn c080_every_call_has_one_result_whatever_becomes_of_siblings() {
    for siblings in [
        SiblingPolicy::RunReadOnly,
        SiblingPolicy::RunAll,
        SiblingPolicy::HoldAll,
    ] {
        for together in [false, true] {
            let log = Log::default();
            let tools = || {
                let tools = gated(&log).siblings(siblings);
                if together { tools.all_at_once() } else { tools }
            };
            let scene = Scene::round(vec![
                ("refund", r#"{"n":1}"#),
                ("read", r#"{"n":2}"#),
                ("write", r#"{"n":3}"#),
                ("refund", r#"{"n":4}"#),
            ]);
            let ran = scene.start(&tools()).await;
            let (reads, writes) = (log.count("read 2"), log.count("write 3"));
            match siblings {
                SiblingPolicy::RunReadOnly => assert_eq!((reads, writes), (1, 0)),
                SiblingPolicy::RunAll => assert_eq!((reads, writes), (1, 1)),
                _ => assert_eq!((reads, writes), (0, 0)),
            }
            let first = Reply::approve(ran.ask("call-0-0").id);
            let second = Reply::deny(ran.ask("call-0-3").id, "no");
            let ran = if together {
                scene
                    .resume(&tools(), ran.state(), vec![first, second])
                    .await
            } else {
                // One by one.
                let ran = scene.resume(&tools(), ran.state(), vec![first]).await;
                assert_eq!(log.count("refund 1"), 1, "{siblings:?}");
                assert_eq!(ran.asked().len(), 1);
                assert_eq!(log.count("write 3"), writes, "what is held waits for all");
                scene.resume(&tools(), ran.state(), vec![second]).await
            };
            assert_eq!(*ran.outcome(), Outcome::Completed);
            assert_eq!(
                sorted(&log),
                ["read 2", "refund 1", "write 3"],
                "{siblings:?}"
            );
            let ids: Vec<_> = ran.results().into_iter().map(|(id, ..)| id).collect();
            assert_eq!(ids, ["call-0-0", "call-0-1", "call-0-2", "call-0-3"]);
        }
    }
}

paced!(c081_two_questions_are_presented_together);
async fn c081_two_questions_are_presented_together() {
    let log = Log::default();
    let calls = || vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    // All at once: one answer is missing, and nothing runs.
    let tools = || gated(&log).all_at_once();
    let scene = Scene::round(calls());
    let ran = scene.start(&tools()).await;
    assert_eq!(ran.asked().len(), 2);
    let state = ran.state();
    let first = Reply::approve(ran.ask("call-0-0").id);
    let refused = scene
        .resume(&tools(), state.clone(), vec![first.clone()])
        .await;
    let error = refused.end.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.code(), Some("missing_reply"));
    assert!(log.lines().is_empty());
    let second = Reply::approve(ran.ask("call-0-1").id);
    let ran = scene.resume(&tools(), state, vec![second, first]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(sorted(&log), ["refund 1", "refund 2"]);
    // By default what is answered goes on.
    let log = Log::default();
    let scene = Scene::round(calls());
    let ran = scene.start(&gated(&log)).await;
    let second = Reply::approve(ran.ask("call-0-1").id);
    let first = ran.ask("call-0-0");
    let ran = scene
        .resume(&gated(&log), ran.state(), vec![second.clone()])
        .await;
    assert_eq!(log.lines(), ["refund 2"]);
    assert_eq!(
        ran.asked(),
        std::slice::from_ref(&first),
        "the rest stays open, as it was"
    );
    // What was answered can't be answered again.
    let again = scene.resume(&gated(&log), ran.state(), vec![second]).await;
    assert_eq!(again.end.unwrap_err().code(), Some("unknown_interrupt"));
    let reply = Reply::approve(first.id);
    let ran = scene.resume(&gated(&log), ran.state(), vec![reply]).await;
    assert_eq!(log.lines(), ["refund 2", "refund 1"]);
    assert_eq!(ran.results().len(), 2);
}

paced!(c082_a_batch_with_a_wrong_reply_is_rejected_as_a_whole);
async fn c082_a_batch_with_a_wrong_reply_is_rejected_as_a_whole() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").expires_after(Duration::from_secs(60)))
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]);
    let ran = scene.start(&tools()).await;
    let (state, one, two) = (ran.state(), ran.ask("call-0-0").id, ran.ask("call-0-1").id);
    let good = || Reply::approve(one.clone());
    let mut cancelled = Reply::cancel(two.clone());
    cancelled.payload = Some(json!({"approved": true}));
    let mut empty = good();
    empty.payload = None;
    for (replies, code) in [
        (vec![good(), good()], "duplicate_reply"),
        (
            vec![good(), Reply::deny(one.clone(), "x")],
            "duplicate_reply",
        ),
        (
            vec![good(), Reply::approve(crate::kit::id("msg_9/0/call-0-0"))],
            "unknown_interrupt",
        ),
        (
            vec![good(), Reply::approve(crate::kit::id(""))],
            "unknown_interrupt",
        ),
        (
            vec![good(), Reply::resolve(two.clone(), json!({}))],
            "malformed_reply",
        ),
        (
            vec![good(), Reply::resolve(two.clone(), json!("yes"))],
            "malformed_reply",
        ),
        (
            vec![good(), Reply::resolve(two.clone(), json!({"approved": 1}))],
            "malformed_reply",
        ),
        (
            vec![
                good(),
                Reply::resolve(two.clone(), json!({"approved": true, "x": 1})),
            ],
            "malformed_reply",
        ),
        (
            vec![
                good(),
                Reply::resolve(
                    two.clone(),
                    json!({"approved": false, "editedArgs": {"n": 1}}),
                ),
            ],
            "malformed_reply",
        ),
        (vec![good(), cancelled], "malformed_reply"),
        (vec![empty], "malformed_reply"),
    ] {
        let text = format!("{replies:?}");
        let ran = scene.resume(&tools(), state.clone(), replies).await;
        let error = ran.end.unwrap_err();
        assert_eq!(error.code(), Some(code), "{text}");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(log.lines().is_empty(), "{text}");
        assert!(ran.events.is_empty());
    }
    // Too late: the host is told, and can give the question up.
    scene.world.clock.advance(Duration::from_secs(60));
    let ran = scene.resume(&tools(), state.clone(), vec![good()]).await;
    assert_eq!(ran.end.unwrap_err().code(), Some("expired"));
    assert!(log.lines().is_empty());
    let given_up = vec![Reply::cancel(one.clone()), Reply::cancel(two.clone())];
    let ran = scene.resume(&tools(), state, given_up).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
}

paced!(c083_edited_arguments_run_after_they_were_validated);
async fn c083_edited_arguments_run_after_they_were_validated() {
    for (edited, ran_with, status) in [
        (json!({"n": 7}), Some("refund 7"), ToolStatus::Done),
        // A rule denies these.
        (json!({"n": 13}), None, ToolStatus::Denied),
    ] {
        let log = Log::default();
        let watched = Log::default();
        let unlucky = Matcher::when(|call| call.arguments().as_str().contains("13"));
        let tools = || {
            Toolset::new().tool(number("refund", &log)).gate(
                Approval::for_tools("refund")
                    .replies([ReplyKind::Edit])
                    .deny(unlucky.clone(), "unlucky")
                    .on_approval(told(&watched)),
            )
        };
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
        let ran = scene.start(&tools()).await;
        let reply = Reply::approve_edited(ran.ask("call-0-0").id, edited.clone());
        let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(ran.result("call-0-0").0, status, "{edited}");
        assert_eq!(
            log.lines(),
            ran_with.into_iter().collect::<Vec<_>>(),
            "{edited}"
        );
        // The decision was taken, and is told once, whatever came of it.
        assert_eq!(watched.lines().len(), 2, "{edited}: {:?}", watched.lines());
    }
}

paced!(c084_a_cancelled_question_gives_a_cancelled_result);
async fn c084_a_cancelled_question_gives_a_cancelled_result() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let reply = Reply::cancel(ran.ask("call-0-0").id);
    let ran = scene.resume(&gated(&log), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
    assert!(log.lines().is_empty());
}

paced!(c085_a_predicate_that_fails_means_that_somebody_is_asked);
async fn c085_a_predicate_that_fails_means_that_somebody_is_asked() {
    quietly();
    let predicates = [
        Matcher::try_when(|_| Err("no idea".into())),
        Matcher::when(|_| panic!("on purpose")),
        Matcher::when_async(async |_| Err("no idea".into())),
        Matcher::when_async(async |_| panic!("on purpose")),
    ];
    for predicate in predicates {
        for rule in ["allow", "ask", "deny"] {
            let log = Log::default();
            let approval = match rule {
                "allow" => Approval::new().allow(predicate.clone()),
                "ask" => Approval::new().ask(predicate.clone()),
                _ => Approval::new().deny(predicate.clone(), "no"),
            };
            let tools = Toolset::new().tool(number("refund", &log)).gate(approval);
            let ran = Scene::round(vec![("refund", r#"{"n":1}"#)])
                .start(&tools)
                .await;
            assert_eq!(*ran.outcome(), Outcome::Interrupted, "{rule}");
            assert!(log.lines().is_empty());
        }
    }
}

paced!(c086_an_exact_name_wins_over_a_wildcard_of_the_run);
async fn c086_an_exact_name_wins_over_a_wildcard_of_the_run() {
    let log = Log::default();
    let tools = gated(&log);
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":2}"#)]);
    let own = RunOverrides::new().gate(Approval::new().allow("*"));
    let ran = scene.start_with(own, &tools).await;
    assert_eq!(ran.asked().len(), 1);
    assert_eq!(ran.ask("call-0-0").metadata["tool"], "refund");
    // A name is as exact in a list.
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools(["refund", "mail_*"]).names_inner_tools());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let own = RunOverrides::new().gate(Approval::new().allow("*"));
    let ran = scene.start_with(own, &tools).await;
    assert_eq!(ran.asked().len(), 1);
    // Of two that are as exact, the run's own holds only where the agent's lets it.
    for (may_loosen, outcome) in [(false, Outcome::Interrupted), (true, Outcome::Completed)] {
        let approval = match may_loosen {
            true => Approval::for_tools("refund").runs_may_allow(),
            false => Approval::for_tools("refund"),
        };
        let tools = Toolset::new().tool(number("refund", &log)).gate(approval);
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
        let own = RunOverrides::new().gate(Approval::new().allow("refund"));
        let ran = scene.start_with(own, &tools).await;
        assert_eq!(*ran.outcome(), outcome, "may loosen: {may_loosen}");
        assert_eq!(log.count("refund 1"), usize::from(may_loosen));
    }
    // A rule that denies is weakened by none.
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::new().deny("re*", "never").allow("refund"));
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let own = RunOverrides::new().gate(Approval::new().allow("refund"));
    let ran = scene.start_with(own, &tools).await;
    assert_eq!(ran.result("call-0-0"), (ToolStatus::Denied, "never".into()));
    assert!(log.lines().is_empty());
}

paced!(a_run_has_an_approval_of_its_own);
async fn a_run_has_an_approval_of_its_own() {
    // Also where no gate is, and where the gates know nothing of it.
    for with_gate in [false, true] {
        let log = Log::default();
        let tools = Toolset::new().tool(number("refund", &log));
        let tools = match with_gate {
            true => tools.gate(gate_fn("no opinion", |_| Verdict::Pass)),
            false => tools,
        };
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
        let own = || RunOverrides::new().gate(Approval::for_tools("refund"));
        let ran = scene.start_with(own(), &tools).await;
        assert!(log.lines().is_empty());
        let reply = Reply::approve(ran.ask("call-0-0").id);
        let ran = scene
            .resume_with(own(), &tools, ran.state(), vec![reply])
            .await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(log.lines(), ["refund 1"]);
    }
}

paced!(a_runs_own_approval_tells_its_own_watchers_beside_a_gate);
async fn a_runs_own_approval_tells_its_own_watchers_beside_a_gate() {
    let (log, watched) = (Log::default(), Log::default());
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools("mail").names_inner_tools());
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let own = Approval::for_tools("refund")
        .message(|_| "Really?".to_owned())
        .on_approval(told(&watched));
    let ran = scene
        .start_with(RunOverrides::new().gate(own), &tools)
        .await;
    assert_eq!(ran.ask("call-0-0").message.unwrap(), "Really?");
    assert_eq!(watched.lines(), ["requested call-0-0"]);
}

// ---- who is told ----

paced!(watchers_are_told_once_of_each_decision);
async fn watchers_are_told_once_of_each_decision() {
    let (log, watched) = (Log::default(), Log::default());
    let tools = || {
        Toolset::new().tool(number("refund", &log)).gate(
            Approval::for_tools("refund")
                .replies(crate::kit::ANY_REPLY)
                .on_approval(told(&watched)),
        )
    };
    let scene = Scene::round(vec![
        ("refund", r#"{"n":0}"#),
        ("refund", r#"{"n":1}"#),
        ("refund", r#"{"n":2}"#),
        ("refund", r#"{"n":3}"#),
        ("refund", r#"{"n":4}"#),
    ]);
    let ran = scene.start(&tools()).await;
    let requested: Vec<_> = (0..5).map(|i| format!("requested call-0-{i}")).collect();
    assert_eq!(watched.lines(), requested);
    let ask = |i: usize| ran.ask(&format!("call-0-{i}")).id;
    let replies = vec![
        Reply::approve(ask(0)),
        Reply::deny(ask(1), "no"),
        Reply::answer(ask(2), "paid"),
        Reply::cancel(ask(3)),
    ];
    let last = ran.ask("call-0-4").id;
    let ran = scene.resume(&tools(), ran.state(), replies).await;
    let decided = [
        r#"approved call-0-0 {"n":0}"#,
        "denied call-0-1 no",
        r#"answered call-0-2 "paid""#,
        "cancelled call-0-3",
    ];
    assert_eq!(watched.lines()[5..], decided);
    let reply = Reply::approve_edited(last, json!({"n": 9}));
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(watched.lines()[9..], [r#"approved call-0-4 {"n":9}"#]);
    let paid = crate::kit::by_person("paid");
    assert_eq!(ran.result("call-0-2"), (ToolStatus::Done, paid));
    assert_eq!(log.lines(), ["refund 0", "refund 9"]);
}

paced!(c087_a_decision_is_told_once_over_two_processes_that_share_a_store);
async fn c087_a_decision_is_told_once_over_two_processes_that_share_a_store() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .notify_once(store.clone())
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]);
    let ran = scene.start(&tools()).await;
    let (state, one, two) = (ran.state(), ran.ask("call-0-0").id, ran.ask("call-0-1").id);
    let replies = || vec![Reply::approve(one.clone()), Reply::deny(two.clone(), "no")];
    scene.resume(&tools(), state.clone(), replies()).await;
    scene.resume(&tools(), state, replies()).await;
    assert_eq!(
        watched.lines(),
        [
            "requested call-0-0",
            "requested call-0-1",
            r#"approved call-0-0 {"n":1}"#,
            "denied call-0-1 no",
        ]
    );
}

paced!(a_watcher_that_panics_changes_nothing);
async fn a_watcher_that_panics_changes_nothing() {
    quietly();
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(|_| panic!("on purpose")))
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1"]);
}

// ---- live or resumed ----

paced!(c089_live_and_resumed_execution_are_the_same);
async fn c089_live_and_resumed_execution_are_the_same() {
    let build = |log: &Log, minutes: &Minutes, live: Option<&InterruptHub>| {
        let approval = Approval::for_tools("refund");
        let approval = match live {
            Some(live) => approval.live(live, Duration::from_secs(60)),
            None => approval,
        };
        Toolset::new()
            .tool(number("refund", log).layer(note("own", log)))
            .tool(number("read", log).read_only())
            .tool(number("write", log))
            .layer(note("outer", log))
            .layer(note("inner", log))
            .gate(approval)
            .trace(minutes.sink())
            .max_parallel(1)
    };
    let calls = || {
        vec![
            ("refund", r#"{"n":1}"#),
            ("read", r#"{"n":2}"#),
            ("write", r#"{"n":3}"#),
        ]
    };
    let (live_log, live_minutes) = (Log::default(), Minutes::default());
    let scene = Scene::round(calls());
    let live = InterruptHub::new();
    let tools = build(&live_log, &live_minutes, Some(&live));
    let request = concentric_core::ChatRequest::user("go").with_context(scene.world.context());
    let now = scene.world.now();
    let live_ran = drive_with(scene.model.agent(&tools), request, |event| {
        if let Event::Custom(custom) = event
            && custom.name == "interrupt"
        {
            let id = custom.value["id"].as_str().unwrap();
            live.reply(&Tenant::default(), Reply::approve(crate::kit::id(id)), now)
                .unwrap();
        }
    })
    .await;
    let live_model = scene.model;

    let (log, minutes) = (Log::default(), Minutes::default());
    let scene = Scene::round(calls());
    let ran = scene.start(&build(&log, &minutes, None)).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene
        .resume(&build(&log, &minutes, None), ran.state(), vec![reply])
        .await;

    assert_eq!(live_ran.results(), ran.results());
    assert_eq!(
        sorted(&live_log),
        sorted(&log),
        "layers are called the same"
    );
    assert_eq!(live_minutes.lasting(), minutes.lasting());
    let sent = |model: &Model| serde_json::to_value(&model.requests()[1].transcript).unwrap();
    assert_eq!(
        sent(&live_model),
        sent(&scene.model),
        "the model sees the same"
    );
    // What tells them apart is the delivery.
    let origins = |minutes: &Minutes, step: fn(&TraceStep) -> bool| {
        let all = minutes.all().into_iter();
        let mut of =
            all.filter(|e| e.call_id.as_ref().unwrap().as_str() == "call-0-0" && step(&e.step));
        of.next().unwrap().delivery
    };
    let settled = |step: &TraceStep| matches!(step, TraceStep::Settled(_));
    let taken_up = |step: &TraceStep| matches!(step, TraceStep::Resumed(_));
    assert_eq!(origins(&live_minutes, settled), Delivery::First);
    assert_eq!(origins(&minutes, settled), Delivery::Resumed);
    assert_eq!(origins(&live_minutes, taken_up), Delivery::First);
    assert_eq!(origins(&minutes, taken_up), Delivery::Resumed);
}

paced!(c090_of_two_calls_of_a_tool_only_the_approved_one_runs);
async fn c090_of_two_calls_of_a_tool_only_the_approved_one_runs() {
    for approved in [0, 1] {
        let log = Log::default();
        let scene = Scene::round(vec![("refund", r#"{"n":0}"#), ("refund", r#"{"n":1}"#)]);
        let ran = scene.start(&gated(&log)).await;
        let reply = |i: usize| {
            let id = ran.ask(&format!("call-0-{i}")).id;
            match i == approved {
                true => Reply::approve(id),
                false => Reply::deny(id, "no"),
            }
        };
        let ran = scene
            .resume(&gated(&log), ran.state(), vec![reply(1), reply(0)])
            .await;
        assert_eq!(log.lines(), [format!("refund {approved}")]);
        assert_eq!(ran.results().len(), 2);
    }
}
