//! What gates decide, of which calls, and what becomes of calls that are changed on their way.

use crate::common::{Hook, Log, gate_fn, hook, note, pace, paced, tool};
use crate::kit::{ANY_REPLY, Memory, Scene, drive, halting, number, quietly, told};
use concentric_core::{
    Arguments, CancelReason, Context, ErrorKind, Outcome, Reply, Str, ToolCall, ToolOutcome,
    ToolSpec, ToolStatus,
};
use concentric_tools::{
    Approval, Decided, Gate, Matcher, NoArguments, ToolError, Toolset, Verdict,
};
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn gated(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund"))
}

fn sorted(log: &Log) -> Vec<String> {
    let mut lines = log.lines();
    lines.sort();
    lines
}

// ---- halt ----

paced!(c047_no_tool_runs_after_a_halt_in_a_gate);
async fn c047_no_tool_runs_after_a_halt_in_a_gate() {
    let log = Log::default();
    let tools = gated(&log).gate(gate_fn("stop", |call| match call.arguments().as_str() {
        r#"{"n":2}"# => Verdict::halt("enough"),
        _ => Verdict::Pass,
    }));
    let scene = Scene::round(vec![
        ("read", r#"{"n":1}"#),
        ("write", r#"{"n":2}"#),
        ("refund", r#"{"n":3}"#),
    ]);
    let ran = scene.start(&tools).await;
    assert!(log.lines().is_empty());
    assert_eq!(
        *ran.outcome(),
        Outcome::Halted {
            reason: "enough".into()
        }
    );
    let statuses: Vec<_> = ran.results().into_iter().map(|(_, s, _)| s).collect();
    assert_eq!(
        statuses,
        [
            ToolStatus::Cancelled,
            ToolStatus::Denied,
            ToolStatus::Cancelled
        ]
    );
    assert_eq!(scene.model.requests().len(), 1);
}

paced!(c048_a_halt_is_neither_an_error_nor_a_cancel);
async fn c048_a_halt_is_neither_an_error_nor_a_cancel() {
    let log = Log::default();
    let calls = || vec![("x", r#"{"n":1}"#)];
    let halted = Scene::round(calls())
        .start(&Toolset::new().tool(halting("x", &log)))
        .await;
    let reason: Str = "enough".into();
    assert_eq!(*halted.outcome(), Outcome::Halted { reason });

    let failed = Scene::round(calls())
        .start(
            &Toolset::new().tool(tool("x", "", async |_: crate::kit::Number| {
                Err::<(), _>(ToolError::new("broken").fatal())
            })),
        )
        .await;
    assert_eq!(failed.end.unwrap_err().kind(), ErrorKind::Tool);

    let cancelled = Scene::round(calls())
        .start(&Toolset::new().tool(concentric_tools::tool_with_context(
            "x",
            "",
            async |_: crate::kit::Number, context: Context| context.cancel(CancelReason::User),
        )))
        .await;
    let reason = CancelReason::User;
    assert_eq!(*cancelled.outcome(), Outcome::Aborted { reason });
}

paced!(c050_every_call_has_a_result_after_a_halt_or_an_abort);
async fn c050_every_call_has_a_result_after_a_halt_or_an_abort() {
    let log = Log::default();
    for stop in ["halt", "abort"] {
        let stopping = concentric_tools::tool_with_context(
            "stop",
            "",
            move |_: NoArguments, context: Context| async move {
                match stop {
                    "halt" => ToolOutcome::done("x").and_halt("enough"),
                    _ => {
                        context.cancel(CancelReason::User);
                        ToolOutcome::done("x")
                    }
                }
            },
        );
        let tools = gated(&log).tool(stopping.read_only()).max_parallel(1);
        let scene = Scene::round(vec![
            ("refund", r#"{"n":1}"#),
            ("stop", "{}"),
            ("read", r#"{"n":2}"#),
            ("write", r#"{"n":3}"#),
        ]);
        let ran = scene.start(&tools).await;
        let ids: Vec<_> = ran.results().into_iter().map(|(id, ..)| id).collect();
        assert_eq!(
            ids,
            ["call-0-0", "call-0-1", "call-0-2", "call-0-3"],
            "{stop}"
        );
        let last = ran.transcript().last().unwrap().results();
        assert_eq!(last.len(), 4);
        assert!(log.lines().is_empty(), "{stop}: {:?}", log.lines());
    }
}

paced!(c051_no_call_starts_after_an_abort_from_inside_a_hook);
async fn c051_no_call_starts_after_an_abort_from_inside_a_hook() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number("read", &log))
        .layer(hook(|call: ToolCall| {
            if call.id().as_str() == "call-0-1" {
                call.context.cancel(CancelReason::User);
            }
            Hook::Call(call)
        }))
        .max_parallel(1);
    let calls = vec![
        ("read", r#"{"n":1}"#),
        ("read", r#"{"n":2}"#),
        ("read", r#"{"n":3}"#),
    ];
    let ran = Scene::round(calls).start(&tools).await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert_eq!(log.count("read 3"), 0);
    assert_eq!(ran.results().len(), 3);
}

paced!(c051_a_call_that_was_not_started_is_not_said_to_have_been);
async fn c051_a_call_that_was_not_started_is_not_said_to_have_been() {
    let log = Log::default();
    let cancel = concentric_tools::tool_with_context(
        "cancel",
        "",
        async |_: NoArguments, context: Context| context.cancel(CancelReason::User),
    );
    let tools = Toolset::new()
        .tool(cancel)
        .tool(number("write", &log))
        .max_parallel(1);
    let calls = vec![("cancel", "{}"), ("write", r#"{"n":1}"#)];
    let ran = Scene::round(calls).start(&tools).await;
    assert!(log.lines().is_empty());
    assert_eq!(ran.result("call-0-1").0, ToolStatus::Cancelled);
}

// ---- gates and layers ----

/// A layer that writes another number into the arguments.
fn rewrite(
    from: &'static str,
    to: &'static str,
) -> impl tower::Layer<
    concentric_core::BoxTool,
    Service: tower::Service<
        ToolCall,
        Response = ToolOutcome,
        Error = tower::BoxError,
        Future: Send + 'static,
    > + Clone
                 + Send
                 + Sync
                 + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    hook(move |mut call: ToolCall| {
        let text = call.arguments().as_str().replace(from, to);
        call.set_arguments(Arguments::new(text));
        Hook::Call(call)
    })
}

paced!(c088_no_layer_weakens_a_gate);
async fn c088_no_layer_weakens_a_gate() {
    // Around all tools, around this one, inside another layer: what was approved is what runs.
    for place in 0..3 {
        let log = Log::default();
        let tools = || {
            let refund = number("refund", &log);
            let tools = Toolset::new().gate(Approval::for_tools("refund"));
            match place {
                0 => tools.tool(refund).layer(rewrite("1", "11")),
                1 => tools.tool(refund.layer(rewrite("1", "11"))),
                _ => tools
                    .tool(refund.layer(note("inner", &Log::default())))
                    .layer(note("outer", &Log::default()))
                    .layer(rewrite("1", "11")),
            }
        };
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
        let ran = scene.start(&tools()).await;
        assert_eq!(ran.ask("call-0-0").metadata["arguments"], json!({"n": 1}));
        let reply = Reply::approve(ran.ask("call-0-0").id);
        let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
        assert!(log.lines().is_empty(), "{place}");
        let ask = ran.ask("call-0-0");
        assert_eq!(ask.metadata["arguments"], json!({"n": 11}));
        assert_eq!(ask.metadata["changed"], true);
        let ran = scene
            .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
            .await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(log.lines(), ["refund 11"], "{place}");
    }
}

paced!(c088_a_layer_cannot_change_what_a_gate_let_pass_into_what_it_asks_about);
async fn c088_a_layer_cannot_change_what_a_gate_let_pass_into_what_it_asks_about() {
    // The gate looks at the arguments: small ones are not its business.
    let big = || {
        Matcher::name("refund").and(Matcher::when(|call| {
            !matches!(call.arguments().as_str(), r#"{"n":1}"# | r#"{"n":2}"#)
        }))
    };
    let gates: [(&str, fn(Matcher) -> Approval); 2] = [
        ("ask", |big| Approval::new().ask(big)),
        ("deny", |big| Approval::new().deny(big, "too much")),
    ];
    for (rule, gate) in gates {
        for inside in [false, true] {
            let log = Log::default();
            let tools = || {
                let refund = number("refund", &log);
                match inside {
                    false => Toolset::new().tool(refund).layer(rewrite("1", "100")),
                    true => Toolset::new().tool(refund.layer(rewrite("1", "100"))),
                }
                .gate(gate(big()))
            };
            let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
            let ran = scene.start(&tools()).await;
            assert!(
                log.lines().is_empty(),
                "{rule}, {inside}: {:?}",
                log.lines()
            );
            if rule == "ask" {
                let ask = ran.ask("call-0-0");
                assert_eq!(ask.metadata["arguments"], json!({"n": 100}));
                let reply = Reply::approve(ask.id);
                let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
                assert_eq!(*ran.outcome(), Outcome::Completed);
                assert_eq!(log.lines(), ["refund 100"]);
            } else {
                assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
            }
        }
    }
}

paced!(a_layer_may_change_what_no_gate_minds);
async fn a_layer_may_change_what_no_gate_minds() {
    let log = Log::default();
    let tools = gated(&log).layer(rewrite("1", "2"));
    let ran = Scene::round(vec![("write", r#"{"n":1}"#)])
        .start(&tools)
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["write 2"]);
}

paced!(c088_a_layer_that_forges_a_call_fails_the_run);
async fn c088_a_layer_that_forges_a_call_fails_the_run() {
    let log = Log::default();
    let tools = gated(&log).layer(hook(|call: ToolCall| {
        let forged = ToolCall::new(
            concentric_core::ToolCallPart::new(call.id().clone(), "refund", r#"{"n":1}"#),
            call.context.clone(),
        );
        Hook::Call(forged)
    }));
    let ran = Scene::round(vec![("read", r#"{"n":1}"#)])
        .start(&tools)
        .await;
    assert_eq!(ran.end.unwrap_err().kind(), ErrorKind::Configuration);
    assert!(log.lines().is_empty());
}

paced!(c088_a_layer_that_calls_twice_makes_the_same_call_twice_and_no_other);
async fn c088_a_layer_that_calls_twice_makes_the_same_call_twice_and_no_other() {
    // A retry around an approved call: each attempt is the very call that was approved.
    let log = Log::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let flaky = {
        let (log, seen) = (log.clone(), seen.clone());
        concentric_tools::tool_with_context(
            "refund",
            "",
            move |crate::kit::Number { n }, context: Context| {
                log.add(format!("refund {n}"));
                seen.lock().unwrap().push(context.idempotency_key());
                let first = log.lines().len() == 1;
                async move {
                    match first {
                        true => Err(ToolError::new("try again")),
                        false => Ok("paid"),
                    }
                }
            },
        )
    };
    let again = concentric_layers::tool_from_fn(
        async |call: ToolCall, mut next: concentric_layers::NextTool| {
            let first = next.run(call.clone()).await?;
            match first.status {
                ToolStatus::Failed => next.run(call).await,
                _ => Ok(first),
            }
        },
    );
    let tools = || {
        Toolset::new()
            .tool(flaky.clone())
            .gate(Approval::for_tools("refund"))
            .layer(again)
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "paid".into()));
    assert_eq!(log.lines(), ["refund 1", "refund 1"]);
    let seen = seen.lock().unwrap();
    assert!(seen[0].is_some());
    assert_eq!(seen[0], seen[1]);
}

paced!(what_was_changed_on_the_way_is_told_and_remembered_as_it_runs);
async fn what_was_changed_on_the_way_is_told_and_remembered_as_it_runs() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(
                Approval::for_tools("refund")
                    .on_approval(told(&watched))
                    .remember(store.clone()),
            )
            .layer(rewrite("1", "11"))
            .notify_once(store.clone())
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 11"]);
    let approved: Vec<_> = watched
        .lines()
        .into_iter()
        .filter(|line| line.starts_with("approved"))
        .collect();
    assert_eq!(
        approved,
        [
            r#"approved call-0-0 {"n":1}"#,
            r#"approved call-0-0 {"n":11}"#
        ]
    );
}

paced!(a_changed_call_that_is_edited_and_changed_again_is_another_question);
async fn a_changed_call_that_is_edited_and_changed_again_is_another_question() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").replies(ANY_REPLY))
            .layer(rewrite("1", "2"))
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let first = ran.ask("call-0-0");
    let reply = Reply::approve_edited(first.id.clone(), json!({"n": 31}));
    let ran = scene
        .resume(&tools(), ran.state(), vec![reply.clone()])
        .await;
    assert!(log.lines().is_empty());
    let second = ran.ask("call-0-0");
    assert_eq!(second.metadata["arguments"], json!({"n": 32}));
    assert_ne!(
        first.id, second.id,
        "a late reply to one is none to the other"
    );
}

// ---- limits ----

paced!(c098_a_call_over_the_limit_is_skipped_and_no_step_starts);
async fn c098_a_call_over_the_limit_is_skipped_and_no_step_starts() {
    let log = Log::default();
    let scene = Scene::round(vec![
        ("read", r#"{"n":1}"#),
        ("refund", r#"{"n":2}"#),
        ("refund", r#"{"n":3}"#),
    ]);
    let agent = |tools: &Toolset| {
        let layer = concentric_core::AgentLayer::new(tools.clone()).call_limit(2);
        concentric_core::BoxModel::new(tower::Layer::layer(&layer, scene.model.boxed()))
    };
    let request = concentric_core::ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive(agent(&gated(&log)), request).await;
    // The third is over the limit, and nobody is asked about it.
    assert_eq!(ran.asked().len(), 1);
    let reply = Reply::deny(ran.ask("call-0-1").id, "no");
    let request = concentric_core::ChatRequest::resume(ran.state(), vec![reply])
        .with_context(scene.world.context());
    let ran = drive(agent(&gated(&log)), request).await;
    assert_eq!(*ran.outcome(), Outcome::CallLimit);
    assert_eq!(log.lines(), ["read 1"]);
    let statuses: Vec<_> = ran
        .results()
        .into_iter()
        .map(|(_, status, _)| status)
        .collect();
    assert_eq!(
        statuses,
        [ToolStatus::Done, ToolStatus::Denied, ToolStatus::Failed]
    );
    assert_eq!(scene.model.requests().len(), 1);
}

paced!(c099_calls_are_not_counted_again_after_a_pause);
async fn c099_calls_are_not_counted_again_after_a_pause() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log).max_calls(2))
            .gate(Approval::for_tools("refund"))
            .max_calls_per_round(2)
    };
    let scene = Scene::new(vec![
        vec![("refund", r#"{"n":1}"#)],
        vec![("refund", r#"{"n":2}"#)],
        vec![("refund", r#"{"n":3}"#)],
    ]);
    let agent = |tools: &Toolset| {
        let layer = concentric_core::AgentLayer::new(tools.clone()).call_limit(3);
        concentric_core::BoxModel::new(tower::Layer::layer(&layer, scene.model.boxed()))
    };
    let go = |request: concentric_core::ChatRequest| {
        drive(agent(&tools()), request.with_context(scene.world.context()))
    };
    let mut ran = go(concentric_core::ChatRequest::user("go")).await;
    for step in 0..2 {
        // Looked at without an answer in between: it is the same question.
        let state = ran.state();
        let looked = go(concentric_core::ChatRequest::resume(state, vec![])).await;
        let reply = Reply::approve(looked.ask(&format!("call-{step}-0")).id);
        ran = go(concentric_core::ChatRequest::resume(
            looked.state(),
            vec![reply],
        ))
        .await;
    }
    // The third call is over the tool's limit, and within the run's.
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1", "refund 2"]);
    let (status, text) = ran.result("call-2-0");
    assert_eq!(status, ToolStatus::Failed);
    assert!(text.contains("the limit is 2 calls"), "{text}");
}

// ---- prepare ----

paced!(what_a_person_sees_is_what_prepare_made_and_what_runs);
async fn what_a_person_sees_is_what_prepare_made_and_what_runs() {
    let log = Log::default();
    let prepared = Arc::new(AtomicUsize::new(0));
    let tools = || {
        let prepared = prepared.clone();
        gated(&log).prepare(move |call: ToolCall| {
            prepared.fetch_add(1, Ordering::SeqCst);
            async move { Ok(Arguments::new(call.arguments().as_str().replace('1', "5"))) }
        })
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    let ask = ran.ask("call-0-0");
    assert_eq!(ask.metadata["arguments"], json!({"n": 5}));
    let ran = scene
        .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
        .await;
    assert_eq!(sorted(&log), ["refund 5", "write 5"]);
    // The history keeps what the model wrote.
    let round = ran
        .transcript()
        .iter()
        .find(|t| !t.results().is_empty())
        .unwrap()
        .clone();
    let call = round.as_message().tool_calls().next().unwrap().clone();
    assert_eq!(call.arguments.as_str(), r#"{"n":1}"#);
}

paced!(a_prepare_that_fails_or_panics_or_spoils_the_arguments_fails_its_call);
async fn a_prepare_that_fails_or_panics_or_spoils_the_arguments_fails_its_call() {
    quietly();
    for fault in ["fail", "panic", "panic later", "spoil", "not json"] {
        let log = Log::default();
        let asked = Log::default();
        let tools = gated(&log)
            .gate({
                let asked = asked.clone();
                gate_fn("seen", move |call| {
                    asked.add(call.id().to_string());
                    Verdict::Pass
                })
            })
            .prepare(move |call: ToolCall| {
                let hit = call.id().as_str() == "call-0-0";
                assert!(!hit || fault != "panic", "on purpose");
                async move {
                    match fault {
                        _ if !hit => Ok(call.arguments().clone()),
                        "fail" => Err(ToolError::new("no such order")),
                        "panic later" => panic!("on purpose"),
                        "spoil" => Ok(Arguments::new(r#"{"n":1000}"#)),
                        _ => Ok(Arguments::new("{")),
                    }
                }
            });
        let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("read", r#"{"n":2}"#)]);
        let ran = scene.start(&tools).await;
        assert_eq!(*ran.outcome(), Outcome::Completed, "{fault}");
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Failed, "{fault}");
        assert_eq!(log.lines(), ["read 2"], "{fault}");
        assert_eq!(
            asked.lines(),
            ["call-0-1"],
            "{fault}: no gate sees the other"
        );
    }
}

// ---- arguments ----

paced!(f029_invalid_arguments_reach_no_gate);
async fn f029_invalid_arguments_reach_no_gate() {
    for arguments in [
        "",
        "null",
        "[]",
        "1",
        "{",
        r#"{"n":1}{"n":2}"#,
        r#"{"n":1000}"#,
        r#"{"n":"1"}"#,
        r#"{"n":1,"n":2}"#,
        r#"{"n":1,"x":{"a":1,"a":2}}"#,
        r#"{"n":NaN}"#,
        r#"{"$serde_json::private::RawValue":"{\"n\":1}"}"#,
        r#"{"n":1,"$serde_json::private::RawValue":"{\"n\":2}"}"#,
        r#"{"n":1,"x":{"$serde_json::private::Number":"1"}}"#,
    ] {
        let (log, asked) = (Log::default(), Log::default());
        let seen = asked.clone();
        let tools = Toolset::new()
            .tool(number("refund", &log))
            .gate(gate_fn("ask", move |call| {
                seen.add(call.arguments().as_str());
                Verdict::ask()
            }));
        let ran = Scene::round(vec![("refund", arguments)])
            .start(&tools)
            .await;
        assert_eq!(*ran.outcome(), Outcome::Completed, "{arguments}");
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Failed, "{arguments}");
        assert!(asked.lines().is_empty(), "{arguments}");
        assert!(log.lines().is_empty());
    }
}

paced!(f030_empty_and_null_arguments_are_an_empty_object);
async fn f030_empty_and_null_arguments_are_an_empty_object() {
    for arguments in ["", "   ", "null", "{}", " {} "] {
        let log = Log::default();
        let ran_with = log.clone();
        let tools = || {
            let log = ran_with.clone();
            let now = tool("now", "", move |NoArguments {}| {
                log.add("now");
                async { "noon" }
            });
            Toolset::new().tool(now).gate(Approval::for_tools("now"))
        };
        let scene = Scene::round(vec![("now", arguments)]);
        let ran = scene.start(&tools()).await;
        let ask = ran.ask("call-0-0");
        assert_eq!(ask.metadata["arguments"], json!({}));
        let ran = scene
            .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
            .await;
        assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "noon".into()));
        assert_eq!(log.lines(), ["now"]);
    }
}

paced!(f030_two_spaces_are_an_empty_object);
async fn f030_two_spaces_are_an_empty_object() {
    let tools = Toolset::new()
        .tool(tool("now", "", async |NoArguments {}| "noon"))
        .gate(Approval::for_tools("now"));
    let ran = Scene::round(vec![("now", "  ")]).start(&tools).await;
    assert_eq!(ran.ask("call-0-0").metadata["arguments"], json!({}));
}

paced!(f029_what_is_approved_is_what_runs_to_the_byte);
async fn f029_what_is_approved_is_what_runs_to_the_byte() {
    // The tool is a service: it sees the call as it is.
    for arguments in [
        r#"{"n": 1, "big": 123456789012345678901234567890, "e": 1e2, "s": "é\u00e9"}"#,
        r#"{"z":1,"a":{"y":[1,2,{"b":0.1000}]}}"#,
    ] {
        let ran_with = Arc::new(Mutex::new(Vec::new()));
        let tools = || {
            let ran_with = ran_with.clone();
            let service = tower::service_fn(move |call: ToolCall| {
                ran_with.lock().unwrap().push(call.arguments().clone());
                async move {
                    pace().pass(&call.context).await;
                    Ok::<_, tower::BoxError>(ToolOutcome::done("ok"))
                }
            });
            let spec = ToolSpec::new("any", "", json!({"type": "object"}));
            Toolset::new()
                .tool(concentric_tools::Tool::new(spec, service))
                .gate(Approval::for_tools("any"))
        };
        let scene = Scene::round(vec![("any", arguments)]);
        let ran = scene.start(&tools()).await;
        let ask = ran.ask("call-0-0");
        let ran = scene
            .resume(&tools(), ran.state(), vec![Reply::approve(ask.id.clone())])
            .await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let ran_with = ran_with.lock().unwrap();
        assert_eq!(ran_with[0].as_str(), arguments);
        // What the person was shown, too: no digit is lost.
        let shown = match ask.metadata.get("argumentsText") {
            Some(text) => text.as_str().unwrap().to_owned(),
            None => ask.metadata["arguments"].to_string(),
        };
        assert_eq!(
            concentric_tools::Digest::of_json(&shown).unwrap(),
            concentric_tools::Digest::of_json(arguments).unwrap(),
            "shown {shown}"
        );
    }
}

// ---- several gates ----

struct Later(&'static str, Verdict, Arc<tokio::sync::Barrier>, Log);

impl Gate for Later {
    fn policy(&self) -> Str {
        self.0.into()
    }

    fn decide(&self, _: &ToolCall) -> Decided {
        let (verdict, barrier, log) = (self.1.clone(), self.2.clone(), self.3.clone());
        let name = self.0;
        Decided::later(async move {
            log.add(format!("{name} asked"));
            barrier.wait().await;
            Ok(verdict)
        })
    }
}

paced!(paused gates_that_take_time_are_waited_for_side_by_side);
async fn gates_that_take_time_are_waited_for_side_by_side() {
    let log = Log::default();
    // Two gates and two calls: all four are waited for at once, or for ever.
    let barrier = Arc::new(tokio::sync::Barrier::new(4));
    let tools = Toolset::new()
        .tool(number("read", &log).read_only())
        .gate(Later("a", Verdict::Allow, barrier.clone(), log.clone()))
        .gate(Later("b", Verdict::Pass, barrier, log.clone()));
    let scene = Scene::round(vec![("read", r#"{"n":1}"#), ("read", r#"{"n":2}"#)]);
    let ran = tokio::time::timeout(Duration::from_secs(60), scene.start(&tools))
        .await
        .expect("they are asked at once");
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines().len(), 6);
}

paced!(the_strictest_of_several_gates_holds);
async fn the_strictest_of_several_gates_holds() {
    quietly();
    type Make = fn() -> Verdict;
    let verdicts: [(Make, &str); 5] = [
        (|| Verdict::Pass, "run"),
        (|| Verdict::Allow, "run"),
        (Verdict::ask, "ask"),
        (|| Verdict::deny("no"), "deny"),
        (|| Verdict::halt("stop"), "halt"),
    ];
    for (i, (first, _)) in verdicts.into_iter().enumerate() {
        for (j, (second, _)) in verdicts.into_iter().enumerate() {
            let log = Log::default();
            let tools = Toolset::new()
                .tool(number("x", &log))
                .gate(gate_fn("first", move |_| first()))
                .gate(gate_fn("second", move |_| second()));
            let ran = Scene::round(vec![("x", r#"{"n":1}"#)]).start(&tools).await;
            let came = match ran.outcome() {
                Outcome::Interrupted => "ask",
                Outcome::Halted { .. } => "halt",
                _ => match ran.result("call-0-0").0 {
                    ToolStatus::Denied => "deny",
                    _ => "run",
                },
            };
            assert_eq!(came, verdicts[i.max(j)].1);
            assert_eq!(log.lines().len(), usize::from(came == "run"));
        }
    }
}

struct Broken(&'static str);

impl Gate for Broken {
    fn policy(&self) -> Str {
        self.0.into()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        let context = call.context.clone();
        let later = async move { pace().pass(&context).await };
        match self.0 {
            "panics" => panic!("on purpose"),
            "fails later" => Decided::later(async {
                later.await;
                Err("no idea".into())
            }),
            _ => Decided::later(async {
                later.await;
                panic!("on purpose")
            }),
        }
    }
}

paced!(a_gate_that_fails_denies);
async fn a_gate_that_fails_denies() {
    quietly();
    for how in ["panics", "fails later", "panics later"] {
        let log = Log::default();
        let tools = Toolset::new()
            .tool(number("x", &log))
            .gate(gate_fn("allows", |_| Verdict::Allow))
            .gate(Broken(how));
        let ran = Scene::round(vec![("x", r#"{"n":1}"#)]).start(&tools).await;
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied, "{how}");
        assert!(log.lines().is_empty());
    }
}

paced!(paused f036_no_tool_runs_before_every_gate_has_decided);
async fn f036_no_tool_runs_before_every_gate_has_decided() {
    struct Slow(Log);
    impl Gate for Slow {
        fn policy(&self) -> Str {
            "slow".into()
        }
        fn decide(&self, call: &ToolCall) -> Decided {
            let (log, slow) = (self.0.clone(), call.name().as_str() == "slow");
            Decided::later(async move {
                if slow {
                    tokio::time::sleep(Duration::from_secs(9)).await;
                }
                log.add("decided");
                Ok(if slow {
                    Verdict::halt("stop")
                } else {
                    Verdict::Allow
                })
            })
        }
    }
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number("fast", &log).read_only())
        .tool(number("slow", &log))
        .gate(Slow(log.clone()));
    let scene = Scene::round(vec![("fast", r#"{"n":1}"#), ("slow", r#"{"n":2}"#)]);
    let ran = scene.start(&tools).await;
    assert!(matches!(ran.outcome(), Outcome::Halted { .. }));
    assert_eq!(log.lines(), ["decided", "decided"]);
}

paced!(a_gate_that_denies_now_what_it_asked_about_is_heard);
async fn a_gate_that_denies_now_what_it_asked_about_is_heard() {
    let log = Log::default();
    let closed = Arc::new(AtomicUsize::new(0));
    let tools = || {
        let closed = closed.clone();
        Toolset::new()
            .tool(number("refund", &log))
            .gate(gate_fn("till", move |_| {
                match closed.load(Ordering::SeqCst) {
                    0 => Verdict::ask(),
                    _ => Verdict::deny("The till is closed."),
                }
            }))
    };
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let ran = scene.start(&tools()).await;
    closed.store(1, Ordering::SeqCst);
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let closed = (ToolStatus::Denied, "The till is closed.".into());
    assert_eq!(ran.result("call-0-0"), closed);
    assert!(log.lines().is_empty());
}
