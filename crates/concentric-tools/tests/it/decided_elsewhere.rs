//! What a token, a client, a gate or a process that died has decided or begun, as another process
//! finds it.

use crate::common::hooks::before_fn;
use crate::common::{Log, gate_fn, paced, tool_with_context};
use crate::kit::{Memory, Model, Ran, Scene, died, drive, halting, number, saves};
use concentric_core::hooks::{BeforeCall, Flow};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Context, Event, Interrupt, Outcome, Reply,
    ToolCall, ToolSpec, ToolStatus,
    agent::{RoundDecision, StepDraft, StepGate, StepView},
    machine::RunState,
};
use concentric_tools::{
    Approval, ApprovalTokens, Tool, Toolset, Verdict, agent_tool, token::TokenKeys,
};
use serde_json::json;
use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::Layer;

fn tokens(store: &Memory) -> ApprovalTokens {
    let keys = TokenKeys::new("k1", vec![7; 32]).unwrap();
    ApprovalTokens::new(keys, "here", store.clone())
}

/// Hangs with n = 1.
fn pay(log: &Log, hangs: bool) -> Tool {
    let log = log.clone();
    tool_with_context("pay", "", move |crate::kit::Number { n }, _: Context| {
        log.add(format!("pay {n}"));
        async move {
            if hangs && n == 1 {
                pending::<()>().await;
            }
            "paid"
        }
    })
}

async fn hangs(agent: BoxModel, request: ChatRequest) {
    let run = drive(agent, request);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), run)
            .await
            .is_err()
    );
}

fn history(scene: &Scene, state: &RunState, replies: Vec<Reply>) -> ChatRequest {
    ChatRequest::resume_history(
        state.transcript().clone(),
        state.open_round().unwrap(),
        replies,
    )
    .with_context(scene.world.context())
}

fn proved(ask: &Interrupt) -> Reply {
    Reply::approve(ask.id.clone()).with_token(ask.metadata["token"].as_str().unwrap())
}

async fn begun_by_token(since: &str) -> (Log, Ran) {
    let (log, store) = (Log::default(), Memory::new());
    let tools = |tool: Tool| {
        Toolset::new()
            .tool(tool)
            .gate(Approval::for_tools("pay"))
            .tokens(tokens(&store))
            .ledger(store.clone())
    };
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let first = tools(pay(&log, true));
    let ran = scene.start(&first).await;
    let (ask, state) = (ran.asked()[0].clone(), ran.state());
    hangs(
        scene.model.agent(&first),
        history(&scene, &state, vec![proved(&ask)]),
    )
    .await;
    assert_eq!(log.lines(), ["pay 1"]);
    let mut reply = vec![proved(&ask)];
    let mut second = tools(pay(&log, false));
    match since {
        "redefined" => second = tools(pay(&log, false).group("other")),
        "gone" => {
            second = Toolset::new()
                .tool(number("x", &log))
                .tokens(tokens(&store))
                .ledger(store.clone())
        }
        "expired" => scene
            .world
            .clock
            .advance(Duration::from_secs(60 * 60 * 24 * 2)),
        "none" => reply = vec![],
        "no_token" => reply = vec![Reply::approve(ask.id.clone())],
        "effect" => {
            let ran = drive(scene.model.agent(&second), history(&scene, &state, reply)).await;
            let ask = ran.asked()[0].clone();
            assert_eq!(ask.reason, "unknown_effect");
            reply = vec![Reply::answer(ask.id, json!("it is paid"))];
        }
        _ => {}
    }
    let ran = drive(scene.model.agent(&second), history(&scene, &state, reply)).await;
    (log, ran)
}

async fn check_begun(since: &str) {
    let (log, ran) = begun_by_token(since).await;
    assert_eq!(log.lines(), ["pay 1"]);
    if *ran.outcome() == Outcome::Interrupted {
        return; // it is asked about again, and its token is used
    }
    let (status, text) = ran.result("call-0-0");
    assert!(
        !matches!(status, ToolStatus::Denied | ToolStatus::Cancelled),
        "{status:?}: {text}"
    );
}

paced!(paused f044_what_a_token_began_is_in_doubt_if_its_tool_is_redefined);
async fn f044_what_a_token_began_is_in_doubt_if_its_tool_is_redefined() {
    check_begun("redefined").await
}
paced!(paused f044_what_a_token_began_is_in_doubt_if_the_token_has_expired);
async fn f044_what_a_token_began_is_in_doubt_if_the_token_has_expired() {
    check_begun("expired").await
}
paced!(paused f044_what_a_token_began_is_in_doubt_if_nobody_replies);
async fn f044_what_a_token_began_is_in_doubt_if_nobody_replies() {
    check_begun("none").await
}
paced!(paused f044_what_a_token_began_is_in_doubt_if_the_proof_is_missing);
async fn f044_what_a_token_began_is_in_doubt_if_the_proof_is_missing() {
    check_begun("no_token").await
}
paced!(paused f044_what_a_token_began_is_in_doubt_if_its_effect_is_answered_without_a_record);
async fn f044_what_a_token_began_is_in_doubt_if_its_effect_is_answered_without_a_record() {
    check_begun("effect").await
}
paced!(paused f044_what_a_token_began_is_in_doubt_if_its_tool_is_gone);
async fn f044_what_a_token_began_is_in_doubt_if_its_tool_is_gone() {
    check_begun("gone").await
}

paced!(paused f038_an_approval_whose_proof_a_dead_process_used_up_still_counts);
async fn f038_an_approval_whose_proof_a_dead_process_used_up_still_counts() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = |hangs| {
        Toolset::new()
            .tool(pay(&log, hangs))
            .gate(Approval::for_tools("pay"))
            .tokens(tokens(&store))
            .ledger(store.clone())
            .max_parallel(1)
    };
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#), ("pay", r#"{"n":2}"#)]);
    let ran = scene.start(&tools(true)).await;
    let (asked, state) = (ran.asked(), ran.state());
    let request = history(&scene, &state, asked.iter().map(proved).collect());
    let state = died(
        scene.model.agent(&tools(true)),
        request,
        scene.world.context(),
    )
    .await;
    assert_eq!(log.lines(), ["pay 1"]);
    let ran = scene.resume(&tools(false), state, vec![]).await;
    let asked = ran.asked();
    let replies = asked
        .iter()
        .map(|ask| Reply::answer(ask.id.clone(), json!("it is paid")))
        .collect();
    let ran = scene.resume(&tools(false), ran.state(), replies).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    let (status, text) = ran.result("call-0-1");
    assert_eq!(status, ToolStatus::Done, "{text}");
    assert_eq!(log.lines(), ["pay 1", "pay 2"]);
}

paced!(f044_a_tool_that_waits_and_had_begun_is_in_doubt_beside_a_halt);
async fn f044_a_tool_that_waits_and_had_begun_is_in_doubt_beside_a_halt() {
    let log = Log::default();
    let inner = Toolset::new()
        .tool(number("write", &log))
        .tool(number("refund", &log))
        .gate(Approval::for_tools("refund"));
    let model = Model::saying(|_, request| {
        let turns = request.transcript.iter();
        match turns.filter(|turn| !turn.results().is_empty()).count() {
            0 => crate::kit::call_events(0, &[("write", r#"{"n":1}"#).into()]),
            1 => crate::kit::call_events(1, &[("refund", r#"{"n":2}"#).into()]),
            _ => vec![Event::text("found")],
        }
    });
    let tools = Toolset::new()
        .tool(agent_tool("deeper", "", model.agent(&inner)))
        .tool(halting("stop", &log))
        .max_parallel(1);
    let scene = Scene::round(vec![("deeper", r#"{"task":"x"}"#), ("stop", r#"{"n":9}"#)]);
    let ran = scene.start(&tools).await;
    assert_eq!(log.lines(), ["write 1", "stop 9"]);
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Unknown, "{text}");
}

paced!(paused f044_a_call_in_doubt_stays_so_when_a_sibling_halts_the_run);
async fn f044_a_call_in_doubt_stays_so_when_a_sibling_halts_the_run() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = |hangs, verdict: Verdict| {
        Toolset::new()
            .tool(pay(&log, hangs))
            .tool(number("x", &log))
            .gate(Approval::for_tools(["pay", "x"]))
            .tokens(tokens(&store))
            .ledger(store.clone())
            .gate(gate_fn("now", move |call: &ToolCall| {
                match *call.name() == *"x" {
                    true => verdict.clone(),
                    false => Verdict::Pass,
                }
            }))
    };
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#), ("x", r#"{"n":2}"#)]);
    let first = tools(true, Verdict::Pass);
    let ran = scene.start(&first).await;
    let (asked, state) = (ran.asked(), ran.state());
    hangs(
        scene.model.agent(&first),
        history(&scene, &state, vec![proved(&asked[0])]),
    )
    .await;
    assert_eq!(log.lines(), ["pay 1"]);
    let replies = asked.iter().map(proved).collect();
    let ran = drive(
        scene.model.agent(&tools(false, Verdict::halt("closed"))),
        history(&scene, &state, replies),
    )
    .await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Unknown, "{text}");
}

paced!(f044_a_hook_that_blocks_what_had_begun_leaves_it_in_doubt);
async fn f044_a_hook_that_blocks_what_had_begun_leaves_it_in_doubt() {
    let log = Log::default();
    let inner = Toolset::new()
        .tool(number("write", &log))
        .tool(number("refund", &log))
        .gate(Approval::for_tools("refund"));
    let model = Model::saying(|_, request| {
        let turns = request.transcript.iter();
        match turns.filter(|turn| !turn.results().is_empty()).count() {
            0 => crate::kit::call_events(0, &[("write", r#"{"n":1}"#).into()]),
            1 => crate::kit::call_events(1, &[("refund", r#"{"n":2}"#).into()]),
            _ => vec![Event::text("found")],
        }
    });
    let closed = Arc::new(Mutex::new(false));
    let is_closed = closed.clone();
    let tools = Toolset::new()
        .tool(agent_tool("deeper", "", model.agent(&inner)))
        .layer(before_fn("hours", move |_: &mut BeforeCall| {
            Ok(match *is_closed.lock().unwrap() {
                true => Flow::deny("The office is closed, so it was not run."),
                false => Flow::Continue,
            })
        }));
    let scene = Scene::round(vec![("deeper", r#"{"task":"x"}"#)]);
    let ran = scene.start(&tools).await;
    assert_eq!(log.lines(), ["write 1"]);
    *closed.lock().unwrap() = true;
    let replies = ran
        .asked()
        .into_iter()
        .map(|ask| Reply::approve(ask.id))
        .collect();
    let ran = scene.resume(&tools, ran.state(), replies).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Unknown, "{status:?} {text}");
}

paced!(paused f038_of_two_who_bring_one_token_neither_is_told_what_is_not_so);
async fn f038_of_two_who_bring_one_token_neither_is_told_what_is_not_so() {
    let (log, store) = (Log::default(), Memory::new());
    let slow = Arc::new(Mutex::new(true));
    let is_slow = slow.clone();
    let tools = Toolset::new()
        .tool(pay(&log, false))
        .gate(Approval::for_tools("pay"))
        .tokens(tokens(&store))
        .ledger(store.clone())
        .layer(concentric_layers::tool_from_fn(
            move |call: ToolCall, mut next: concentric_layers::NextTool| {
                let first = std::mem::take(&mut *is_slow.lock().unwrap());
                async move {
                    if first {
                        tokio::time::sleep(Duration::from_secs(5)).await;
                    }
                    next.run(call).await
                }
            },
        ));
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let ran = scene.start(&tools).await;
    let (ask, state) = (ran.asked()[0].clone(), ran.state());
    let one = drive(
        scene.model.agent(&tools),
        history(&scene, &state, vec![proved(&ask)]),
    );
    let two = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drive(
            scene.model.agent(&tools),
            history(&scene, &state, vec![proved(&ask)]),
        )
        .await
    };
    let (one, two) = tokio::join!(one, two);
    let (one, two) = (one.result("call-0-0"), two.result("call-0-0"));
    assert!(
        !(one.0 == ToolStatus::Done && two.0 == ToolStatus::Denied),
        "{one:?} {two:?}"
    );
}

// ---- step gates and the client's tools ----
struct Rounds(RoundDecision, Log);

impl StepGate for Rounds {
    fn name(&self) -> &str {
        "rounds"
    }
    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        self.1.add("gate");
        Ok(self.0.clone())
    }
}

fn gated(scene: &Scene, tools: &Toolset, says: RoundDecision, log: &Log) -> BoxModel {
    BoxModel::new(
        AgentLayer::new(tools.clone())
            .gate(Rounds(says, log.clone()))
            .layer(scene.model.boxed()),
    )
}

fn with_camera(mut request: ChatRequest) -> ChatRequest {
    request.tools.push(Arc::new(ToolSpec::new(
        "camera",
        "",
        json!({"type": "object"}),
    )));
    request
}

paced!(a_gate_does_not_deny_what_the_client_has_done);
async fn a_gate_does_not_deny_what_the_client_has_done() {
    let (log, scene, tools) = (
        Log::default(),
        Scene::round(vec![("camera", "{}")]),
        Toolset::new(),
    );
    let skip = RoundDecision::skip("not now");
    let request = with_camera(ChatRequest::user("go").with_context(scene.world.context()));
    let goes_on = gated(&scene, &tools, RoundDecision::Continue, &log);
    let ran = drive(goes_on, request).await;
    assert_eq!(log.lines(), ["gate"]);
    let reply = Reply::answer(ran.asked()[0].id.clone(), json!("clicked"));
    let request = with_camera(
        ChatRequest::resume(ran.state(), vec![reply]).with_context(scene.world.context()),
    );
    let ran = drive(gated(&scene, &tools, skip, &log), request).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Done, "{status:?} {text}");
}

paced!(a_round_that_is_skipped_is_not_the_clients_to_run_either);
async fn a_round_that_is_skipped_is_not_the_clients_to_run_either() {
    let log = Log::default();
    let tools = Toolset::new().tool(number("x", &log));
    let scene = Scene::round(vec![("x", r#"{"n":1}"#), ("camera", "{}")]);
    let request = with_camera(ChatRequest::user("go").with_context(scene.world.context()));
    let ran = drive(
        gated(&scene, &tools, RoundDecision::skip("not now"), &log),
        request,
    )
    .await;
    assert_eq!(log.lines(), ["gate"]);
    assert_eq!(*ran.outcome(), Outcome::Completed, "{:?}", ran.asked());
}

paced!(a_denial_counts_where_the_gate_that_asked_is_gone);
async fn a_denial_counts_where_the_gate_that_asked_is_gone() {
    let log = Log::default();
    let tools = Toolset::new().tool(number("x", &log));
    let scene = Scene::round(vec![("x", r#"{"n":1}"#)]);
    let ask = RoundDecision::ask(Interrupt::new(
        concentric_core::InterruptId::new("q"),
        "may_i",
    ));
    let request = ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive(gated(&scene, &tools, ask, &log), request).await;
    let reply = Reply::deny(ran.asked()[0].id.clone(), "no");
    scene.resume(&tools, ran.state(), vec![reply]).await;
    assert_eq!(log.lines(), ["gate"]);
}

paced!(paused f044_a_new_ledger_knows_nothing_of_what_was_begun_without_it);
async fn f044_a_new_ledger_knows_nothing_of_what_was_begun_without_it() {
    let (log, store) = (Log::default(), Memory::new());
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let agent = scene.model.agent(&Toolset::new().tool(pay(&log, true)));
    let state = died(agent, ChatRequest::user("go"), scene.world.context()).await;
    let tools = Toolset::new().tool(pay(&log, false)).ledger(store);
    // The next one dies, too, as soon as it has written down that it takes the call up.
    let states = Arc::new(Mutex::new(Vec::new()));
    let mut request = ChatRequest::resume(state, vec![]).with_context(scene.world.context());
    request.checkpoint = Some(saves(&states));
    drive(scene.model.agent(&tools), request).await;
    assert_eq!(log.lines(), ["pay 1"]);
    let state = states.lock().unwrap().remove(0);
    scene.resume(&tools, state, vec![]).await;
    assert_eq!(log.lines(), ["pay 1"]);
}

paced!(f038_a_token_that_is_brought_again_finds_what_came_of_its_call);
async fn f038_a_token_that_is_brought_again_finds_what_came_of_its_call() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = Toolset::new()
        .tool(crate::kit::failing("pay", &log))
        .gate(Approval::for_tools("pay"))
        .tokens(tokens(&store))
        .ledger(store.clone());
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#)]);
    let ran = scene.start(&tools).await;
    let (ask, state) = (ran.asked()[0].clone(), ran.state());
    let mut came = Vec::new();
    for _ in 0..2 {
        let request = history(&scene, &state, vec![proved(&ask)]);
        let ran = drive(scene.model.agent(&tools), request).await;
        came.push(ran.result("call-0-0"));
    }
    assert_eq!(came[0].0, ToolStatus::Failed);
    assert_eq!(came[0], came[1]);
    assert_eq!(log.lines(), ["pay 1"]);
}

paced!(paused f038_a_denial_by_token_counts_after_a_crash);
async fn f038_a_denial_by_token_counts_after_a_crash() {
    let (log, store) = (Log::default(), Memory::new());
    let scene = Scene::round(vec![("pay", r#"{"n":1}"#), ("pay", r#"{"n":2}"#)]);
    let first = Toolset::new()
        .tool(pay(&log, true))
        .ledger(store.clone())
        .max_parallel(1);
    let state = died(
        scene.model.agent(&first),
        ChatRequest::user("go"),
        scene.world.context(),
    )
    .await;
    assert_eq!(log.lines(), ["pay 1"]);
    let tools = Toolset::new()
        .tool(pay(&log, false))
        .gate(Approval::for_tools("pay"))
        .tokens(tokens(&store))
        .ledger(store.clone());
    let ran = scene.resume(&tools, state, vec![]).await;
    let (ask, effect, state) = (ran.ask("call-0-1"), ran.ask("call-0-0"), ran.state());
    assert_eq!(ask.reason, "tool_call");
    let deny =
        Reply::deny(ask.id.clone(), "no").with_token(ask.metadata["token"].as_str().unwrap());
    drive(
        scene.model.agent(&tools),
        history(&scene, &state, vec![deny]),
    )
    .await;
    assert_eq!(log.lines(), ["pay 1"]);
    let replies = vec![
        Reply::approve(ask.id),
        Reply::answer(effect.id, json!("it is paid")),
    ];
    scene.resume(&tools, state, replies).await;
    assert_eq!(log.lines(), ["pay 1"]);
}

struct AskSecond;

impl StepGate for AskSecond {
    fn name(&self) -> &str {
        "second"
    }
    async fn before_step(
        &self,
        step: &mut StepDraft,
    ) -> Result<concentric_core::agent::StepDecision, BoxError> {
        use concentric_core::agent::StepDecision;
        let id = step.interrupt_id("second");
        Ok(match (step.step, step.reply(&id)) {
            (1, None) => StepDecision::ask(Interrupt::new(id, "may_i")),
            (1, Some(_)) => return Err("the budget's service is down".into()),
            _ => StepDecision::Continue,
        })
    }
}

paced!(effects_of_earlier_rounds_are_said_when_a_resumed_run_fails);
async fn effects_of_earlier_rounds_are_said_when_a_resumed_run_fails() {
    let log = Log::default();
    let tools = Toolset::new().tool(number("x", &log));
    let scene = Scene::round(vec![("x", r#"{"n":1}"#)]);
    let agent = || {
        BoxModel::new(
            AgentLayer::new(tools.clone())
                .gate(AskSecond)
                .layer(scene.model.boxed()),
        )
    };
    let ran = drive(
        agent(),
        ChatRequest::user("go").with_context(scene.world.context()),
    )
    .await;
    let reply = Reply::approve(ran.asked()[0].id.clone());
    let request = ChatRequest::resume(ran.state(), vec![reply]).with_context(scene.world.context());
    let ran = drive(agent(), request).await;
    let error = ran.end.unwrap_err();
    assert_ne!(
        error.effects(),
        concentric_core::SideEffects::None,
        "{error:?}"
    );
}
