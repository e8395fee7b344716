//! Calls that may have been done by a process that died: nothing that has changed since, and
//! nothing that decides now, makes one of them "not run".

use crate::common::hooks::before_fn;
use crate::common::{Hook, Log, gate_fn, hook, pace, paced, tool_with_context};
use crate::kit::{Memory, Scene, by_person};
use concentric_core::hooks::{BeforeCall, Flow};
use concentric_core::{
    Arguments, CancelReason, ChatRequest, Context, Interrupt, Outcome, Reply, ReplyKind, Str,
    Suspension, ToolCall, ToolOutcome, ToolSpec, ToolStatus, interrupt, machine::RunState,
};
use concentric_tools::{Approval, Decided, Gate, Tool, ToolError, Toolset, Verdict};
use serde_json::json;
use std::{
    future::{pending, ready},
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{BoxError, service_fn};

/// What has changed when another process takes the run up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    /// There is no such tool any more.
    Gone,
    /// Its definition is another.
    Redefined,
    /// A gate denies now.
    Denied,
    /// A gate ends the run now.
    Halted,
    /// The arguments can't be prepared any more.
    Unprepared,
}

const ALL: [Since; 5] = [
    Since::Gone,
    Since::Redefined,
    Since::Denied,
    Since::Halted,
    Since::Unprepared,
];

/// What the tool says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Once,
    Keyed,
}

fn pay(log: &Log, class: Class, hangs: bool) -> Tool {
    let log = log.clone();
    let tool = tool_with_context("pay", "", move |crate::kit::Number { n }, _: Context| {
        log.add(format!("pay {n}"));
        async move {
            if hangs {
                pending::<()>().await;
            }
            "paid"
        }
    });
    match class {
        Class::Once => tool,
        Class::Keyed => tool.keyed(),
    }
}

/// The toolset of the process that dies.
fn before(log: &Log, class: Class, asks: bool, ledger: Option<&Memory>) -> Toolset {
    with(Toolset::new().tool(pay(log, class, true)), asks, ledger)
}

fn with(tools: Toolset, asks: bool, ledger: Option<&Memory>) -> Toolset {
    let tools = match asks {
        // Of one case, the tool is gone.
        true => tools.gate(Approval::for_tools("pay").names_inner_tools()),
        false => tools,
    };
    match ledger {
        Some(ledger) => tools.ledger(ledger.clone()),
        None => tools,
    }
}

fn after(log: &Log, class: Class, asks: bool, ledger: Option<&Memory>, since: Since) -> Toolset {
    let tool = pay(log, class, false);
    let tools = match since {
        Since::Gone => Toolset::new(),
        Since::Redefined => Toolset::new().tool(tool.group("other")),
        _ => Toolset::new().tool(tool),
    };
    let tools = with(tools, asks, ledger);
    match since {
        Since::Denied => tools.gate(gate_fn("now", |_: &ToolCall| Verdict::deny("not today"))),
        Since::Halted => tools.gate(gate_fn("now", |_: &ToolCall| Verdict::halt("closed"))),
        Since::Unprepared => {
            tools.prepare(|_: ToolCall| ready(Err(ToolError::new("it is not to be had"))))
        }
        _ => tools,
    }
}

/// Runs a call of `pay` until its process dies, and returns what was written down last.
async fn died(scene: &Scene, tools: &Toolset, asks: bool) -> RunState {
    let request = match asks {
        false => ChatRequest::user("go"),
        true => {
            let ran = scene.start(tools).await;
            let reply = Reply::approve(ran.asked()[0].id.clone());
            ChatRequest::resume(ran.state(), vec![reply])
        }
    };
    crate::kit::died(scene.model.agent(tools), request, scene.world.context()).await
}

paced!(paused f044_what_changed_since_a_call_was_begun_does_not_make_it_one_that_was_not_run);
async fn f044_what_changed_since_a_call_was_begun_does_not_make_it_one_that_was_not_run() {
    for class in [Class::Once, Class::Keyed] {
        for (asks, with_ledger) in [(false, false), (false, true), (true, false), (true, true)] {
            for since in ALL {
                let about = format!("{class:?}, asks {asks}, ledger {with_ledger}, {since:?}");
                let (log, store) = (Log::default(), Memory::new());
                let ledger = with_ledger.then_some(&store);
                let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
                let tools = before(&log, class, asks, ledger);
                let state = died(&scene, &tools, asks).await;
                assert_eq!(log.lines(), ["pay 1"], "{about}");

                let tools = after(&log, class, asks, ledger, since);
                let ran = scene.resume(&tools, state, vec![]).await;
                // To do it again does no harm where nothing stands against it.
                let matters = match since {
                    // Only to what somebody approved.
                    Since::Redefined => asks,
                    // What was approved was prepared then.
                    Since::Unprepared => !asks,
                    _ => true,
                };
                if class == Class::Keyed && !matters {
                    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done, "{about}");
                    assert_eq!(log.lines(), ["pay 1", "pay 1"], "{about}");
                    continue;
                }
                assert_eq!(log.lines(), ["pay 1"], "{about}");
                if *ran.outcome() == Outcome::Interrupted {
                    let ask = ran.ask("call-0-0");
                    assert_eq!(ask.reason, interrupt::UNKNOWN_EFFECT, "{about}");
                    // What a person says holds, whatever has changed.
                    let reply = vec![Reply::answer(ask.id.clone(), json!("it is paid"))];
                    let ran = scene.resume(&tools, ran.state(), reply).await;
                    let paid = (ToolStatus::Done, by_person("it is paid"));
                    assert_eq!(ran.result("call-0-0"), paid, "{about}");
                } else {
                    assert_eq!(class, Class::Keyed, "{about}");
                    let (status, text) = ran.result("call-0-0");
                    assert_eq!(status, ToolStatus::Unknown, "{about}: {text}");
                    let halts = matches!(ran.outcome(), Outcome::Halted { .. });
                    // Where somebody had approved it, the other policy is enough.
                    assert_eq!(halts, since == Since::Halted && !asks, "{about}");
                }
                assert_eq!(log.lines(), ["pay 1"], "{about}");
            }
        }
    }
}

paced!(paused f044_what_the_ledger_knows_to_be_done_is_the_outcome_whatever_changed);
async fn f044_what_the_ledger_knows_to_be_done_is_the_outcome_whatever_changed() {
    for since in ALL {
        let (log, store) = (Log::default(), Memory::new());
        let scene = Scene::round(vec![("pay", r#"{"n":1}"#), ("wait", "{}")]);
        let wait = || {
            Tool::new(
                ToolSpec::new("wait", "", json!({"type": "object"})),
                service_fn(|call: ToolCall| async move {
                    pace().pass(&call.context).await;
                    pending::<()>().await;
                    Ok::<_, BoxError>(ToolOutcome::done(""))
                }),
            )
            .read_only()
        };
        let tools = with(
            Toolset::new().tool(pay(&log, Class::Once, false)),
            false,
            Some(&store),
        );
        let state = died(&scene, &tools.tool(wait()), false).await;
        let tools = after(&log, Class::Once, false, Some(&store), since);
        let ran = scene.resume(&tools, state, vec![]).await;
        let paid = (ToolStatus::Done, "paid".to_owned());
        assert_eq!(ran.result("call-0-0"), paid, "{since:?}");
        assert_eq!(log.lines(), ["pay 1"]);
    }
}

paced!(paused f044_what_the_ledger_knows_not_to_be_begun_is_denied_as_any_call);
async fn f044_what_the_ledger_knows_not_to_be_begun_is_denied_as_any_call() {
    let (log, store) = (Log::default(), Memory::new());
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#), ("pay", r#"{"n":2}"#)]);
    let tools = before(&log, Class::Keyed, false, Some(&store)).max_parallel(1);
    let state = died(&scene, &tools, false).await;
    let tools = after(&log, Class::Keyed, false, Some(&store), Since::Denied);
    let ran = scene.resume(&tools, state, vec![]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
    let denied = (ToolStatus::Denied, "not today".to_owned());
    assert_eq!(ran.result("call-0-1"), denied);
}

paced!(paused f044_a_call_that_is_asked_about_or_held_stays_in_doubt_when_it_is_cancelled);
async fn f044_a_call_that_is_asked_about_or_held_stays_in_doubt_when_it_is_cancelled() {
    // It may run again, and is asked about first.
    let log = Log::default();
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let state = died(&scene, &before(&log, Class::Keyed, false, None), false).await;
    let tools = with(
        Toolset::new().tool(pay(&log, Class::Keyed, false)),
        true,
        None,
    );
    let ran = scene.resume(&tools, state, vec![]).await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    let id = ran.asked()[0].id.clone();
    for reply in [Reply::deny(id.clone(), "no"), Reply::cancel(id.clone())] {
        let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
    }
    let context = scene.world.context();
    context.cancel(CancelReason::User);
    let ran = scene
        .resume_in(context, &tools, ran.state(), vec![Reply::approve(id)])
        .await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
    assert_eq!(log.lines(), ["pay 1"]);
}

paced!(paused f044_what_a_person_says_that_a_call_did_is_not_undone_by_a_layer_that_fails);
async fn f044_what_a_person_says_that_a_call_did_is_not_undone_by_a_layer_that_fails() {
    for how in ["fails", "panics", "waits"] {
        crate::kit::quietly();
        let log = Log::default();
        let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
        let state = died(&scene, &before(&log, Class::Once, false, None), false).await;
        let fails = Arc::new(Mutex::new(false));
        let now = fails.clone();
        let tool = pay(&log, Class::Once, false);
        let tools = Toolset::new().tool(tool).layer(hook(move |call: ToolCall| {
            let id = call.context.interrupt_id().unwrap();
            match (*now.lock().unwrap(), how) {
                (false, _) => Hook::Call(call),
                (true, "fails") => Hook::Fail("service overloaded".into()),
                (true, "panics") => panic!("on purpose"),
                (true, _) => {
                    let asks = Suspension::new(vec![Interrupt::new(id, "confirm")]);
                    Hook::Fail(concentric_core::Error::suspended(asks).into())
                }
            }
        }));
        let ran = scene.resume(&tools, state, vec![]).await;
        let answer = Reply::answer(ran.ask("call-0-0").id, json!("it is paid"));
        *fails.lock().unwrap() = true;
        let ran = scene.resume(&tools, ran.state(), vec![answer]).await;
        let paid = (ToolStatus::Done, by_person("it is paid"));
        assert_eq!(ran.result("call-0-0"), paid, "{how}");
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Other {
    #[expect(dead_code, reason = "what the model did not write")]
    other: u8,
}

paced!(paused f044_a_recovered_call_that_is_refused_inside_the_stack_may_have_been_done);
async fn f044_a_recovered_call_that_is_refused_inside_the_stack_may_have_been_done() {
    for how in ["blocked", "changed", "invalid"] {
        let log = Log::default();
        let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
        let state = died(&scene, &before(&log, Class::Keyed, false, None), false).await;
        let tools = Toolset::new().tool(pay(&log, Class::Keyed, false));
        let tools = match how {
            "blocked" => tools.layer(before_fn("no", |_: &mut BeforeCall| {
                Ok(Flow::deny("not today"))
            })),
            "changed" => tools
                .gate(gate_fn("g", |call: &ToolCall| {
                    match call.arguments().as_str().contains('2') {
                        true => Verdict::deny("not two"),
                        false => Verdict::Pass,
                    }
                }))
                .layer(hook(|mut call: ToolCall| {
                    call.set_arguments(Arguments::new(r#"{"n":2}"#));
                    Hook::Call(call)
                })),
            _ => {
                let tool = tool_with_context("pay", "", |Other { .. }, _: Context| async { "" });
                Toolset::new().tool(tool.keyed())
            }
        };
        let ran = scene.resume(&tools, state, vec![]).await;
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Unknown, "{how}: {text}");
        assert_eq!(log.lines(), ["pay 1"]);
    }
}

/// Has its run cancelled while it decides.
struct Cancels(Context);

impl Gate for Cancels {
    fn policy(&self) -> Str {
        "cancels".into()
    }

    fn decide(&self, _: &ToolCall) -> Decided {
        let context = self.0.clone();
        Decided::later(async move {
            context.cancel(CancelReason::User);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Verdict::Pass)
        })
    }
}

paced!(paused f044_a_cancel_while_gates_decide_denies_nothing_that_may_have_been_done);
async fn f044_a_cancel_while_gates_decide_denies_nothing_that_may_have_been_done() {
    let log = Log::default();
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let state = died(&scene, &before(&log, Class::Keyed, false, None), false).await;
    let context = scene.world.context();
    let tools = Toolset::new()
        .tool(pay(&log, Class::Keyed, false))
        .gate(Cancels(context.clone()));
    let ran = scene.resume_in(context, &tools, state, vec![]).await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
    assert_eq!(log.lines(), ["pay 1"]);
}

paced!(f025_a_result_that_somebody_gives_is_cut_as_the_tools_own);
async fn f025_a_result_that_somebody_gives_is_cut_as_the_tools_own() {
    let log = Log::default();
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let tool = pay(&log, Class::Once, false).max_result_bytes(300);
    let approval = Approval::for_tools("pay").replies([ReplyKind::Answer]);
    let tools = Toolset::new().tool(tool).gate(approval);
    let ran = scene.start(&tools).await;
    let long = json!("x".repeat(100_000));
    let reply = Reply::answer(ran.asked()[0].id.clone(), long);
    let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Done);
    assert!(
        text.len() <= 300 && text.contains("[... cut here"),
        "{text}"
    );
}

// ---- tools that asked themselves ----

/// Asks before it pays.
fn asks_itself(log: &Log) -> Tool {
    let log = log.clone();
    let spec = ToolSpec::new("pay", "", json!({"type": "object"}));
    Tool::new(
        spec,
        service_fn(move |call: ToolCall| {
            let log = log.clone();
            async move {
                pace().pass(&call.context).await;
                if call.resumed().is_none() {
                    let id = call.context.interrupt_id().unwrap();
                    let ask = Interrupt::new(id, "address").with_message("Where to?");
                    return Err(
                        concentric_core::Error::suspended(Suspension::new(vec![ask])).into(),
                    );
                }
                log.add(format!("pay {}", call.arguments().as_str()));
                Ok::<_, BoxError>(ToolOutcome::done("paid"))
            }
        }),
    )
}

paced!(f048_a_tool_that_waited_is_not_gone_on_with_when_the_gates_do_not_let_it);
async fn f048_a_tool_that_waited_is_not_gone_on_with_when_the_gates_do_not_let_it() {
    for since in [Since::Denied, Since::Halted, Since::Redefined] {
        for gated in [false, true] {
            let log = Log::default();
            let own = |tools: Toolset| match gated {
                true => tools.gate(gate_fn("minds", |_: &ToolCall| Verdict::Pass)),
                false => tools,
            };
            let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
            let ran = scene
                .start(&own(Toolset::new().tool(asks_itself(&log))))
                .await;
            let reply = Reply::answer(ran.asked()[0].id.clone(), json!("here"));
            let tool = asks_itself(&log);
            let tools = match since {
                Since::Redefined => own(Toolset::new().tool(tool.group("other"))),
                Since::Halted => own(Toolset::new().tool(tool))
                    .gate(gate_fn("now", |_: &ToolCall| Verdict::halt("closed"))),
                _ => own(Toolset::new().tool(tool))
                    .gate(gate_fn("now", |_: &ToolCall| Verdict::deny("not today"))),
            };
            let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
            // It had begun, and nobody but the tool knows what it does before it asks.
            assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown, "{since:?}");
            assert!(log.lines().is_empty(), "{since:?}");
        }
    }
}

paced!(a_gate_that_decides_otherwise_now_is_heard_before_a_tool_goes_on);
async fn a_gate_that_decides_otherwise_now_is_heard_before_a_tool_goes_on() {
    // The policy is the same, and what it says is another.
    let (log, closed) = (Log::default(), Arc::new(Mutex::new(Verdict::Pass)));
    let says = closed.clone();
    let gate = gate_fn("hours", move |_: &ToolCall| says.lock().unwrap().clone());
    let tools = Toolset::new().tool(asks_itself(&log)).gate(gate);
    let ask = Verdict::Ask(concentric_tools::Ask::default());
    for verdict in [Verdict::deny("no"), Verdict::halt("no"), ask] {
        *closed.lock().unwrap() = Verdict::Pass;
        let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
        let ran = scene.start(&tools).await;
        let reply = Reply::answer(ran.asked()[0].id.clone(), json!("here"));
        *closed.lock().unwrap() = verdict;
        let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
        assert_ne!(ran.result("call-0-0").0, ToolStatus::Done);
        assert!(log.lines().is_empty());
    }
}
