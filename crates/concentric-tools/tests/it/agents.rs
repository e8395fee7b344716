//! Agents as tools: runs inside runs.

use crate::common::{Log, gate_fn, pace, paced, tool_with_context};
use crate::kit::{ANY_REPLY, Call, Model, Ran, Scene, drive, drive_with, halting, number};
use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, Context, Event, InterruptHub, Outcome, Reply,
    SubAgentEvent, ToolCall, ToolStatus, interrupt, store::Tenant,
};
use concentric_tools::{Approval, NoArguments, SiblingPolicy, Tool, Toolset, Verdict, agent_tool};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::Layer;

const TASK: &str = r#"{"task":"look into it"}"#;

/// A model that makes the calls of its script by what the transcript says is done, so that it goes
/// on rightly in any process: one round after the other, then "done".
fn by_history(rounds: Vec<Vec<(&'static str, &'static str)>>) -> Model {
    Model::saying(move |_, request| {
        let done = request
            .transcript
            .iter()
            .filter(|t| !t.results().is_empty())
            .count();
        match rounds.get(done) {
            Some(calls) => {
                let calls: Vec<Call> = calls.iter().map(|call| (*call).into()).collect();
                crate::kit::call_events(done, &calls)
            }
            None => vec![Event::text("found")],
        }
    })
}

/// An agent with `tools`, as a tool.
#[expect(clippy::needless_pass_by_value, reason = "it reads as a builder")]
fn sub(name: &'static str, tools: Toolset, rounds: Vec<Vec<(&'static str, &'static str)>>) -> Tool {
    agent_tool(name, "", by_history(rounds).agent(&tools)).max_depth(8)
}

fn nested(events: &[Event]) -> Vec<&SubAgentEvent> {
    let mut all = Vec::new();
    for event in events {
        if let Event::SubAgent(inner) = event {
            all.push(&**inner);
        }
    }
    all
}

fn inner_tools(log: &Log) -> Toolset {
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund").replies(ANY_REPLY))
}

paced!(the_events_of_an_inner_run_are_nested_in_the_outer_ones);
async fn the_events_of_an_inner_run_are_nested_in_the_outer_ones() {
    let log = Log::default();
    let tools = Toolset::new().tool(sub(
        "research",
        inner_tools(&log),
        vec![vec![("read", r#"{"n":1}"#)]],
    ));
    let ran = Scene::round(vec![("research", TASK)]).start(&tools).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "found".into()));
    let inner = nested(&ran.events);
    assert!(
        inner
            .iter()
            .all(|event| event.agent.as_deref() == Some("research"))
    );
    assert!(
        inner
            .iter()
            .all(|event| event.call_id.as_ref().unwrap().as_str() == "call-0-0")
    );
    assert!(inner.iter().all(|event| event.run_id == inner[0].run_id));
    let texts: Vec<_> = inner
        .iter()
        .filter(|e| matches!(e.event, Event::TextDelta(_)))
        .collect();
    assert_eq!(texts.len(), 1);
    let results: Vec<_> = inner
        .iter()
        .filter(|e| matches!(e.event, Event::ToolResult(_)))
        .collect();
    assert_eq!(results.len(), 1);
    // The inner call is in no outer result.
    assert_eq!(ran.results().len(), 1);
}

/// A tool `mid` with an agent that calls `leaf`, and so on; the innermost asks about a refund.
fn tower_of(log: &Log, depth: usize) -> Toolset {
    let mut tools = inner_tools(log);
    let mut rounds = vec![
        vec![("write", r#"{"n":1}"#)],
        vec![("refund", r#"{"n":2}"#), ("read", r#"{"n":3}"#)],
        vec![("write", r#"{"n":4}"#)],
    ];
    for _ in 0..depth {
        tools = Toolset::new().tool(sub("deeper", tools, rounds));
        rounds = vec![vec![("deeper", TASK)]];
    }
    tools
}

paced!(a_question_of_an_inner_run_is_answered_through_the_outer_one);
async fn a_question_of_an_inner_run_is_answered_through_the_outer_one() {
    for depth in 1..4 {
        for answer in ["approve", "deny", "cancel", "answer"] {
            let log = Log::default();
            let scene = Scene::round(vec![("deeper", TASK)]);
            let ran = scene.start(&tower_of(&log, depth)).await;
            assert_eq!(*ran.outcome(), Outcome::Interrupted, "{depth}");
            assert_eq!(log.lines(), ["write 1", "read 3"]);
            let asked = ran.asked();
            assert_eq!(asked.len(), 1);
            assert_eq!(asked[0].reason, interrupt::TOOL_CALL);
            assert_eq!(asked[0].metadata["tool"], "refund");
            assert_eq!(asked[0].metadata["agent"], "deeper");
            let id = asked[0].id.clone();
            let reply = match answer {
                "approve" => Reply::approve(id),
                "deny" => Reply::deny(id, "no"),
                "cancel" => Reply::cancel(id),
                _ => Reply::answer(id, "paid"),
            };
            // Another process: other values of everything.
            let ran = scene
                .resume(&tower_of(&log, depth), ran.state(), vec![reply])
                .await;
            assert_eq!(*ran.outcome(), Outcome::Completed, "{depth} {answer}");
            let expected: &[&str] = match answer {
                "approve" => &["write 1", "read 3", "refund 2", "write 4"],
                _ => &["write 1", "read 3", "write 4"],
            };
            assert_eq!(log.lines(), expected, "{depth} {answer}: everything once");
            assert_eq!(ran.result("call-0-0"), (ToolStatus::Done, "found".into()));
        }
    }
}

paced!(a_reply_that_is_wrong_for_an_inner_run_runs_nothing);
async fn a_reply_that_is_wrong_for_an_inner_run_runs_nothing() {
    let log = Log::default();
    let scene = Scene::round(vec![("deeper", TASK)]);
    let ran = scene.start(&tower_of(&log, 2)).await;
    let id = ran.asked()[0].id.clone();
    let before = log.lines();
    for (reply, code) in [
        (
            Reply::approve(crate::kit::id("msg_1/0/call-0-0")),
            "unknown_interrupt",
        ),
        (
            Reply::resolve(id.clone(), serde_json::json!({"yes": 1})),
            "malformed_reply",
        ),
    ] {
        let ran = scene
            .resume(&tower_of(&log, 2), ran.state(), vec![reply])
            .await;
        assert_eq!(ran.end.unwrap_err().code(), Some(code));
    }
    assert_eq!(log.lines(), before);
}

paced!(two_agents_that_ask_at_once_are_answered_in_any_order);
async fn two_agents_that_ask_at_once_are_answered_in_any_order() {
    for order in [
        vec![vec![0, 1]],
        vec![vec![1, 0]],
        vec![vec![0], vec![1]],
        vec![vec![1], vec![0]],
    ] {
        let log = Log::default();
        let tools = || {
            let rounds = |n| vec![vec![("refund", n)], vec![("write", n)]];
            Toolset::new()
                .tool(sub("a", inner_tools(&log), rounds(r#"{"n":1}"#)))
                .tool(sub("b", inner_tools(&log), rounds(r#"{"n":2}"#)))
                .tool(number("plain", &log))
        };
        let scene = Scene::round(vec![("a", TASK), ("plain", r#"{"n":9}"#), ("b", TASK)]);
        let mut ran = scene.start(&tools()).await;
        assert_eq!(ran.asked().len(), 2);
        assert_eq!(log.lines(), ["plain 9"]);
        let ids: Vec<_> = ran.asked().into_iter().map(|ask| ask.id).collect();
        assert_ne!(ids[0], ids[1]);
        let steps = order.len();
        for (at, batch) in order.clone().into_iter().enumerate() {
            let replies = batch
                .iter()
                .map(|i: &usize| Reply::approve(ids[*i].clone()));
            ran = scene.resume(&tools(), ran.state(), replies.collect()).await;
            if at + 1 < steps {
                assert_eq!(ran.asked().len(), 1);
            }
        }
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(
            lines,
            ["plain 9", "refund 1", "refund 2", "write 1", "write 2"],
            "{order:?}"
        );
        assert_eq!(ran.results().len(), 3);
    }
}

paced!(one_agent_that_asks_two_things_is_answered_one_by_one);
async fn one_agent_that_asks_two_things_is_answered_one_by_one() {
    for first in [0, 1] {
        let log = Log::default();
        let tools = || {
            Toolset::new().tool(sub(
                "a",
                inner_tools(&log),
                vec![vec![
                    ("refund", r#"{"n":0}"#),
                    ("write", r#"{"n":5}"#),
                    ("refund", r#"{"n":1}"#),
                ]],
            ))
        };
        let scene = Scene::round(vec![("a", TASK)]);
        let ran = scene.start(&tools()).await;
        let ids: Vec<_> = ran.asked().into_iter().map(|ask| ask.id).collect();
        assert_eq!(ids.len(), 2);
        let reply = Reply::approve(ids[first].clone());
        let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
        assert_eq!(log.lines(), [format!("refund {first}")]);
        let left = ran.asked();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].id, ids[1 - first]);
        let reply = Reply::deny(left[0].id.clone(), "no");
        let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(log.lines(), [format!("refund {first}"), "write 5".into()]);
    }
}

paced!(a_gated_agent_is_asked_about_and_asks_by_itself);
async fn a_gated_agent_is_asked_about_and_asks_by_itself() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(sub(
                "a",
                inner_tools(&log),
                vec![vec![("refund", r#"{"n":1}"#)]],
            ))
            .gate(Approval::for_tools("a"))
    };
    let scene = Scene::round(vec![("a", TASK)]);
    let ran = scene.start(&tools()).await;
    assert_eq!(ran.ask("call-0-0").metadata["tool"], "a");
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let ask = ran.asked().remove(0);
    assert_eq!(ask.metadata["tool"], "refund");
    assert!(log.lines().is_empty());
    let ran = scene
        .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(a_gated_agent_whose_call_a_layer_changes_asks_by_itself_and_goes_on);
async fn a_gated_agent_whose_call_a_layer_changes_asks_by_itself_and_goes_on() {
    let log = Log::default();
    let tools = || {
        Toolset::new()
            .tool(sub(
                "a",
                inner_tools(&log),
                vec![
                    vec![("write", r#"{"n":1}"#)],
                    vec![("refund", r#"{"n":2}"#)],
                ],
            ))
            .gate(Approval::for_tools("a"))
            .layer(crate::common::hook(|mut call: ToolCall| {
                let text = call.arguments().as_str().replace("look", "stare");
                call.set_arguments(text.as_str().into());
                crate::common::Hook::Call(call)
            }))
    };
    let scene = Scene::round(vec![("a", TASK)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    let ask = ran.ask("call-0-0");
    assert_eq!(ask.metadata["changed"], true);
    let ran = scene
        .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
        .await;
    let ask = ran.asked().remove(0);
    assert_eq!(ask.metadata["tool"], "refund");
    let ran = scene
        .resume(&tools(), ran.state(), vec![Reply::approve(ask.id)])
        .await;
    assert_eq!(*ran.outcome(), Outcome::Completed, "{:?}", ran.asked());
    assert_eq!(log.lines(), ["write 1", "refund 2"]);
}

paced!(the_gates_of_the_outer_agent_hold_inside);
async fn the_gates_of_the_outer_agent_hold_inside() {
    for depth in 1..4 {
        let log = Log::default();
        let tools = || {
            // The inner agents have no rule about writing.
            tower_of(&log, depth).gate(Approval::new().deny("write", "not in here").ask("read"))
        };
        let scene = Scene::round(vec![("deeper", TASK)]);
        let ran = scene.start(&tools()).await;
        assert!(log.lines().is_empty(), "{depth}: {:?}", log.lines());
        let mut asked: Vec<_> = ran
            .asked()
            .into_iter()
            .map(|ask| ask.metadata["tool"].as_str().unwrap().to_owned())
            .collect();
        asked.sort();
        assert_eq!(asked, ["read", "refund"]);
        let replies = ran
            .asked()
            .into_iter()
            .map(|ask| Reply::approve(ask.id))
            .collect();
        let ran = scene.resume(&tools(), ran.state(), replies).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(lines, ["read 3", "refund 2"]);
    }
}

paced!(a_policy_that_changed_while_an_inner_run_waits_is_heard);
async fn a_policy_that_changed_while_an_inner_run_waits_is_heard() {
    let log = Log::default();
    let scene = Scene::round(vec![("deeper", TASK)]);
    let ran = scene.start(&tower_of(&log, 1)).await;
    assert_eq!(log.lines(), ["write 1", "read 3"]);
    let reply = Reply::approve(ran.asked()[0].id.clone());
    let closed = tower_of(&log, 1).gate(Approval::new().deny("refund", "The till is closed."));
    let ran = scene.resume(&closed, ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.count("refund 2"), 0);
}

paced!(f033_an_agent_is_not_offered_at_the_greatest_depth);
async fn f033_an_agent_is_not_offered_at_the_greatest_depth() {
    // An agent that calls itself, as often as it may.
    let names = Arc::new(Mutex::new(Vec::<Vec<String>>::new()));
    let seen = names.clone();
    let model = Model::saying(move |_, request| {
        let names = request
            .tools
            .iter()
            .map(|spec| spec.name.to_string())
            .collect();
        seen.lock().unwrap().push(names);
        match request
            .transcript
            .last()
            .is_some_and(|turn| turn.results().is_empty())
        {
            // It calls it whether it is offered or not.
            true => crate::kit::call_events(0, &[("again", TASK).into()]),
            false => vec![Event::text("enough")],
        }
    });
    let agent = Arc::new(Mutex::new(None::<BoxModel>));
    let myself = {
        let agent = agent.clone();
        tower::service_fn(move |request: ChatRequest| {
            let agent = agent.lock().unwrap().clone().unwrap();
            tower::ServiceExt::oneshot(agent, request)
        })
    };
    let tools = Toolset::new().tool(agent_tool("again", "", myself).max_depth(3));
    *agent.lock().unwrap() = Some(model.agent(&tools));
    let own = agent.lock().unwrap().clone().unwrap();
    let scene = Scene::new(Vec::<Vec<Call>>::new());
    let request = ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive(own, request).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    let names = names.lock().unwrap();
    // Depths 0 to 3, each asked twice; the deepest has no such tool, and its call is refused.
    assert_eq!(names.len(), 8);
    assert_eq!(names.iter().filter(|names| names.is_empty()).count(), 2);
}

paced!(a_cancel_stops_the_inner_run);
async fn a_cancel_stops_the_inner_run() {
    let log = Log::default();
    let cancelling = tool_with_context("cancel", "", async |_: NoArguments, context: Context| {
        // The inner run alone, and then whoever called it.
        context.parent().unwrap().cancel(CancelReason::User);
        std::future::pending::<()>().await;
    });
    let tools = Toolset::new().tool(sub(
        "a",
        inner_tools(&log).tool(cancelling),
        vec![vec![("cancel", "{}"), ("write", r#"{"n":1}"#)]],
    ));
    let tools = tools.max_parallel(1);
    let ran = Scene::round(vec![("a", TASK)]).start(&tools).await;
    let reason = CancelReason::User;
    assert_eq!(*ran.outcome(), Outcome::Aborted { reason });
    assert_eq!(ran.results().len(), 1);
}

paced!(an_inner_run_that_is_cancelled_alone_is_a_cancelled_call);
async fn an_inner_run_that_is_cancelled_alone_is_a_cancelled_call() {
    let log = Log::default();
    let cancelling = tool_with_context("cancel", "", async |_: NoArguments, context: Context| {
        context.cancel(CancelReason::User);
    });
    let tools = Toolset::new().tool(sub(
        "a",
        inner_tools(&log).tool(cancelling),
        vec![vec![("cancel", "{}")], vec![("write", r#"{"n":1}"#)]],
    ));
    let ran = Scene::round(vec![("a", TASK)]).start(&tools).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled);
    assert!(log.lines().is_empty());
}

paced!(how_an_inner_run_ends_is_told_to_the_outer_model);
async fn how_an_inner_run_ends_is_told_to_the_outer_model() {
    let log = Log::default();
    let failing = BoxModel::new(tower::service_fn(|request: ChatRequest| async move {
        pace().pass(&request.context).await;
        let error = concentric_core::Error::new(concentric_core::ErrorKind::Server, "it burns");
        Err::<concentric_core::ChatResponse<futures_util::stream::Empty<_>>, _>(error)
    }));
    let limited = {
        let model =
            Model::saying(|at, _| crate::kit::call_events(at, &[("read", r#"{"n":1}"#).into()]));
        BoxModel::new(
            AgentLayer::new(inner_tools(&log))
                .step_limit(2)
                .layer(model.boxed()),
        )
    };
    let halted = by_history(vec![vec![("halting", r#"{"n":1}"#)]])
        .agent(&Toolset::new().tool(halting("halting", &log)));
    for (agent, text) in [
        (failing, "The agent failed."),
        (limited, "limit"),
        (halted, "was stopped: enough"),
    ] {
        let tools = Toolset::new().tool(agent_tool("a", "", agent));
        let ran = Scene::round(vec![("a", TASK)]).start(&tools).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let (status, told) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Failed);
        assert!(told.contains(text), "{told}");
    }
}

paced!(an_agent_that_halts_after_it_was_resumed_ends_its_own_run);
async fn an_agent_that_halts_after_it_was_resumed_ends_its_own_run() {
    let log = Log::default();
    let tools = || {
        let inner =
            Toolset::new()
                .tool(number("refund", &log))
                .gate(gate_fn("gate", |call: &ToolCall| match call.replies() {
                    [] => Verdict::ask(),
                    _ => Verdict::halt("enough"),
                }));
        Toolset::new().tool(sub("a", inner, vec![vec![("refund", r#"{"n":1}"#)]]))
    };
    let scene = Scene::round(vec![("a", TASK)]);
    let ran = scene.start(&tools()).await;
    let reply = Reply::approve(ran.asked()[0].id.clone());
    let ran = scene.resume(&tools(), ran.state(), vec![reply]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Failed);
    assert!(text.contains("enough"));
    assert!(log.lines().is_empty());
}

paced!(siblings_of_an_agent_that_asks_are_not_run_again);
async fn siblings_of_an_agent_that_asks_are_not_run_again() {
    for siblings in [
        SiblingPolicy::RunReadOnly,
        SiblingPolicy::RunAll,
        SiblingPolicy::HoldAll,
    ] {
        let log = Log::default();
        let tools = || {
            Toolset::new()
                .tool(sub(
                    "a",
                    inner_tools(&log),
                    vec![vec![("refund", r#"{"n":1}"#)]],
                ))
                .tool(number("plain", &log))
                .tool(number("mail", &log))
                .gate(Approval::for_tools("mail"))
                .siblings(siblings)
        };
        let scene = Scene::round(vec![
            ("a", TASK),
            ("plain", r#"{"n":2}"#),
            ("mail", r#"{"n":3}"#),
        ]);
        let mut ran = scene.start(&tools()).await;
        let mut rounds = 0;
        while *ran.outcome() == Outcome::Interrupted {
            let replies = ran
                .asked()
                .into_iter()
                .map(|ask| Reply::approve(ask.id))
                .collect();
            ran = scene.resume(&tools(), ran.state(), replies).await;
            rounds += 1;
            assert!(rounds < 4);
        }
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(lines, ["mail 3", "plain 2", "refund 1"], "{siblings:?}");
    }
}

paced!(the_usage_and_the_run_of_an_inner_run_are_data_of_its_result);
async fn the_usage_and_the_run_of_an_inner_run_are_data_of_its_result() {
    let log = Log::default();
    let tools = || {
        Toolset::new().tool(sub(
            "a",
            inner_tools(&log),
            vec![vec![("refund", r#"{"n":1}"#)]],
        ))
    };
    let scene = Scene::round(vec![("a", TASK)]);
    let first = scene.start(&tools()).await;
    let run = nested(&first.events)[0].run_id.clone();
    let reply = Reply::approve(first.asked()[0].id.clone());
    let ran = scene.resume(&tools(), first.state(), vec![reply]).await;
    let data = data_of(&ran);
    assert_eq!(data["runId"], run.as_str(), "it is the same run");
    assert_eq!(data["usage"]["input_tokens"], 2);
    assert!(nested(&ran.events).iter().all(|event| event.run_id == run));
}

fn data_of(ran: &Ran) -> serde_json::Value {
    ran.events
        .iter()
        .find_map(|event| match event {
            Event::ToolResult(result) => result.outcome.data.as_deref().cloned(),
            _ => None,
        })
        .unwrap()
}

paced!(the_outer_consumer_sees_inner_events_while_they_happen);
async fn the_outer_consumer_sees_inner_events_while_they_happen() {
    let log = Log::default();
    let tools = Toolset::new().tool(sub(
        "a",
        inner_tools(&log),
        vec![vec![("read", r#"{"n":1}"#)]],
    ));
    let scene = Scene::round(vec![("a", TASK)]);
    let request = ChatRequest::user("go").with_context(scene.world.context());
    let mut order = Vec::new();
    drive_with(scene.model.agent(&tools), request, |event| {
        order.push(match event {
            Event::SubAgent(_) => "inner",
            Event::ToolResult(_) => "result",
            _ => "outer",
        });
    })
    .await;
    let result = order.iter().position(|what| *what == "result").unwrap();
    let last = order.iter().rposition(|what| *what == "inner").unwrap();
    assert!(last < result);
}

paced!(a_live_question_of_an_inner_run_is_in_the_outer_stream);
async fn a_live_question_of_an_inner_run_is_in_the_outer_stream() {
    let (log, live) = (Log::default(), InterruptHub::new());
    let inner = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools("refund").live(&live, Duration::from_secs(60)));
    let tools = Toolset::new().tool(sub("a", inner, vec![vec![("refund", r#"{"n":1}"#)]]));
    let scene = Scene::round(vec![("a", TASK)]);
    let now = scene.world.now();
    let request = ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive_with(scene.model.agent(&tools), request, |event| {
        if let Event::SubAgent(inner) = event
            && let Event::Custom(custom) = &inner.event
        {
            let id = crate::kit::id(custom.value["id"].as_str().unwrap());
            live.reply(&Tenant::default(), Reply::approve(id), now)
                .unwrap();
        }
    })
    .await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(an_inner_run_that_is_given_up_while_it_asks_has_one_result);
async fn an_inner_run_that_is_given_up_while_it_asks_has_one_result() {
    // The outer run is cancelled by the one who was to answer.
    let log = Log::default();
    let scene = Scene::round(vec![("deeper", TASK)]);
    let ran = scene.start(&tower_of(&log, 2)).await;
    let before = log.lines();
    let context = scene.world.context();
    context.cancel(CancelReason::User);
    let reply = Reply::approve(ran.asked()[0].id.clone());
    let ran = scene
        .resume_in(context, &tower_of(&log, 2), ran.state(), vec![reply])
        .await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    assert_eq!(ran.results().len(), 1);
    assert_eq!(log.lines(), before);
}

paced!(an_agent_that_is_gone_or_changed_does_not_go_on);
async fn an_agent_that_is_gone_or_changed_does_not_go_on() {
    let log = Log::default();
    for gone in [true, false] {
        let scene = Scene::round(vec![("deeper", TASK)]);
        let ran = scene.start(&tower_of(&log, 1)).await;
        let before = log.lines();
        let tools = match gone {
            true => Toolset::new(),
            false => {
                let other = sub("deeper", inner_tools(&log), vec![]).group("other");
                Toolset::new().tool(other)
            }
        };
        let reply = Reply::approve(ran.asked()[0].id.clone());
        let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
        // It had begun, and may have done something.
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Unknown);
        assert_eq!(log.lines(), before);
    }
}

paced!(an_agent_whose_questions_are_answered_together_does_not_lose_its_run);
async fn an_agent_whose_questions_are_answered_together_does_not_lose_its_run() {
    let log = Log::default();
    let tools = || {
        let rounds = vec![vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]];
        Toolset::new().tool(sub("a", inner_tools(&log).all_at_once(), rounds))
    };
    let scene = Scene::round(vec![("a", TASK)]);
    let ran = scene.start(&tools()).await;
    let ids: Vec<_> = ran.asked().into_iter().map(|ask| ask.id).collect();
    assert_eq!(ids.len(), 2);
    let one = vec![Reply::approve(ids[0].clone())];
    let refused = scene.resume(&tools(), ran.state(), one).await;
    assert_eq!(refused.end.unwrap_err().code(), Some("missing_reply"));
    assert!(log.lines().is_empty());
    let both = ids.into_iter().map(Reply::approve).collect();
    let ran = scene.resume(&tools(), ran.state(), both).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 1", "refund 2"]);
}
