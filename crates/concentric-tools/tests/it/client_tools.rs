//! Calls that the client executes.

use crate::common::{Hook, Log, gate_fn, hook, paced, tool};
use crate::kit::{Ran, Scene, drive, halting, number};
use concentric_core::{
    CancelReason, Clearance, Context, Delivery, Error, ErrorKind, Outcome, Reply, ToolCall,
    ToolSpec, ToolSpecs, ToolStatus, interrupt,
};
use concentric_tools::{Approval, NoArguments, ToolError, Toolset, Verdict};
use serde_json::json;
use std::sync::{Arc, Mutex};

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

// ---- tools of the client ----

fn client_tools() -> ToolSpecs {
    let mut where_ = ToolSpec::new("where", "", json!({"type": "object"}));
    where_.output_schema = Some(Arc::new(json!({
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"]
    })));
    let beep = ToolSpec::new("beep", "", json!({"type": "object"}));
    ToolSpecs::new([Arc::new(where_), Arc::new(beep)])
}

async fn with_client(
    scene: &Scene,
    tools: &Toolset,
    mut request: concentric_core::ChatRequest,
) -> Ran {
    request.tools = client_tools();
    drive(
        scene.model.agent(tools),
        request.with_context(scene.world.context()),
    )
    .await
}

paced!(the_clients_tools_interrupt_the_run_and_are_answered);
async fn the_clients_tools_interrupt_the_run_and_are_answered() {
    for (reply, status, text) in [
        ("answer", ToolStatus::Done, r#"{"city":"Zug"}"#),
        (
            "wrong",
            ToolStatus::Failed,
            "does not match the output schema",
        ),
        ("deny", ToolStatus::Denied, "no GPS"),
        ("cancel", ToolStatus::Cancelled, "cancelled"),
    ] {
        let log = Log::default();
        let scene = Scene::round(vec![("where", "{}"), ("read", r#"{"n":1}"#)]);
        let tools = gated(&log);
        let ran = with_client(&scene, &tools, concentric_core::ChatRequest::user("go")).await;
        assert_eq!(*ran.outcome(), Outcome::Interrupted);
        let ask = ran.ask("call-0-0");
        assert_eq!(ask.reason, interrupt::CLIENT_TOOL);
        assert_eq!(log.lines(), ["read 1"]);
        let approve = Reply::approve(ask.id.clone());
        let request = concentric_core::ChatRequest::resume(ran.state(), vec![approve]);
        let refused = with_client(&scene, &tools, request).await;
        assert_eq!(refused.end.unwrap_err().code(), Some("malformed_reply"));
        let reply = match reply {
            "answer" => Reply::answer(ask.id, json!({"city": "Zug"})),
            "wrong" => Reply::answer(ask.id, json!({"town": "Zug"})),
            "deny" => Reply::deny(ask.id, "no GPS"),
            _ => Reply::cancel(ask.id),
        };
        let request = concentric_core::ChatRequest::resume(ran.state(), vec![reply]);
        let ran = with_client(&scene, &tools, request).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        let result = ran.result("call-0-0");
        assert_eq!(result.0, status);
        assert!(result.1.contains(text), "{}", result.1);
        assert_eq!(log.lines(), ["read 1"]);
    }
}

paced!(f025_a_long_answer_of_the_client_is_cut_as_a_tools_result);
async fn f025_a_long_answer_of_the_client_is_cut_as_a_tools_result() {
    let (log, scene) = (Log::default(), Scene::round(vec![("where", "{}")]));
    let tools = gated(&log);
    let ran = with_client(&scene, &tools, concentric_core::ChatRequest::user("go")).await;
    let id = ran.ask("call-0-0").id;
    let reply = Reply::answer(id, json!({"city": "x".repeat(1_000_000)}));
    let request = concentric_core::ChatRequest::resume(ran.state(), vec![reply]);
    let ran = with_client(&scene, &tools, request).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Done);
    assert_eq!(text.len(), 64 * 1024);
    assert!(text.contains("[... cut here"));
}

paced!(the_clients_tools_beside_gated_ones_are_answered_in_any_order);
async fn the_clients_tools_beside_gated_ones_are_answered_in_any_order() {
    for client_first in [true, false] {
        let log = Log::default();
        let scene = Scene::round(vec![
            ("where", "{}"),
            ("refund", r#"{"n":1}"#),
            ("write", r#"{"n":2}"#),
            ("beep", "{}"),
        ]);
        let tools = || gated(&log);
        let start = concentric_core::ChatRequest::user("go");
        let ran = with_client(&scene, &tools(), start).await;
        assert_eq!(ran.asked().len(), 3);
        assert!(log.lines().is_empty());
        let client = || {
            vec![
                Reply::answer(ran.ask("call-0-0").id, json!({"city": "Zug"})),
                Reply::answer(ran.ask("call-0-3").id, json!(null)),
            ]
        };
        let person = || vec![Reply::approve(ran.ask("call-0-1").id)];
        let (first, second) = match client_first {
            true => (client(), person()),
            false => (person(), client()),
        };
        let request = concentric_core::ChatRequest::resume(ran.state(), first);
        let next = with_client(&scene, &tools(), request).await;
        assert_eq!(*next.outcome(), Outcome::Interrupted);
        assert_eq!(log.count("write 2"), 0);
        let request = concentric_core::ChatRequest::resume(next.state(), second);
        let ran = with_client(&scene, &tools(), request).await;
        assert_eq!(*ran.outcome(), Outcome::Completed);
        assert_eq!(sorted(&log), ["refund 1", "write 2"]);
        assert_eq!(ran.results().len(), 4);
    }
}

paced!(what_the_client_did_is_kept_when_a_gate_halts_the_run);
async fn what_the_client_did_is_kept_when_a_gate_halts_the_run() {
    client_and("gate").await;
}

paced!(what_the_client_did_is_kept_when_a_tool_halts_the_run);
async fn what_the_client_did_is_kept_when_a_tool_halts_the_run() {
    client_and("tool").await;
}

paced!(what_the_client_did_is_kept_when_the_run_is_cancelled);
async fn what_the_client_did_is_kept_when_the_run_is_cancelled() {
    client_and("cancel").await;
}

/// The client has answered its call, and the run is stopped beside it.
async fn client_and(how: &'static str) {
    {
        let log = Log::default();
        let tools = || {
            let tools = Toolset::new()
                .tool(halting("halting", &log))
                .tool(concentric_tools::tool_with_context(
                    "cancelling",
                    "",
                    async |_: crate::kit::Number, context: Context| {
                        context.cancel(CancelReason::User)
                    },
                ))
                .max_parallel(1);
            let asked = log.clone();
            tools.gate(gate_fn("ask", move |call| match call.delivery() {
                Delivery::First if asked.lines().is_empty() => Verdict::ask(),
                _ if how == "gate" => Verdict::halt("enough"),
                _ => Verdict::ask(),
            }))
        };
        let name = if how == "cancel" {
            "cancelling"
        } else {
            "halting"
        };
        let scene = Scene::round(vec![(name, r#"{"n":1}"#), ("beep", "{}")]);
        let start = concentric_core::ChatRequest::user("go");
        let ran = with_client(&scene, &tools(), start).await;
        let replies = vec![
            Reply::approve(ran.ask("call-0-0").id),
            Reply::answer(ran.ask("call-0-1").id, "beeped"),
        ];
        if how == "gate" {
            log.add("halt now");
        }
        let request = concentric_core::ChatRequest::resume(ran.state(), replies);
        let ran = with_client(&scene, &tools(), request).await;
        assert!(!matches!(ran.outcome(), Outcome::Completed), "{how}");
        let done = (ToolStatus::Done, "beeped".to_owned());
        assert_eq!(ran.result("call-0-1"), done, "{how}");
    }
}

paced!(layers_see_no_call_that_was_denied);
async fn layers_see_no_call_that_was_denied() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Log::default();
    let watch = {
        let seen = seen.clone();
        hook(move |call: ToolCall| {
            let kind = match call.clearance() {
                Clearance::Decided(_) => "exactly",
                Clearance::Settled(_) => "settled",
                _ => "other",
            };
            seen.lock()
                .unwrap()
                .push((call.name().to_string(), kind, call.delivery()));
            Hook::Call(call)
        })
    };
    let tools = gated(&log).layer(watch);
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("read", r#"{"n":2}"#)]);
    let ran = scene.start(&tools).await;
    let reply = Reply::deny(ran.ask("call-0-0").id, "no");
    let _ = scene.resume(&tools, ran.state(), vec![reply]).await;
    assert_eq!(
        *seen.lock().unwrap(),
        [("read".to_owned(), "other", Delivery::First)]
    );
}

paced!(a_run_that_fails_while_others_wait_says_so);
async fn a_run_that_fails_while_others_wait_says_so() {
    let log = Log::default();
    let tools = gated(&log).tool(
        tool("fatal", "", async |_: NoArguments| {
            Err::<(), _>(ToolError::new("the disk is gone").fatal())
        })
        .read_only(),
    );
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("fatal", "{}")]);
    let ran = scene.start(&tools).await;
    let error: Error = ran.end.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tool);
    assert!(log.lines().is_empty());
}

paced!(a_state_that_somebody_has_cut_or_bent_is_refused);
async fn a_state_that_somebody_has_cut_or_bent_is_refused() {
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)]);
    let ran = scene.start(&gated(&log)).await;
    let json = ran.state().to_json().unwrap();
    let read = |json: &str| concentric_core::machine::RunState::from_json(json.as_bytes(), 1 << 20);
    for end in 0..json.len() {
        assert!(read(&json[..end]).is_err());
    }
    assert!(
        concentric_core::machine::RunState::from_json(json.as_bytes(), json.len() - 1).is_err()
    );
    for (from, to) in [
        ("\"version\":2", "\"version\":3"),
        ("call-0-0", "call-0-1"),
        ("call-0-1", "call-0-0"),
    ] {
        // In one place, so that it contradicts the rest.
        assert!(read(&json.replacen(from, to, 1)).is_err(), "{from}");
    }
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    assert!(read(&deep).is_err());
    assert!(log.lines().is_empty());
}
