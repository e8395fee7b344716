//! What was decided is decided: by another way in, by a layer that fails or asks, by a state that is
//! older, nothing is made of it twice.

use crate::common::{Hook, Log, gate_fn, hook, pace, paced};
use crate::kit::{Call, Memory, Model, Ran, Scene, drive, drive_with, number};
use concentric_core::{
    Arguments, CallId, CancelReason, ChatRequest, Error, ErrorKind, Event, Executor, Interrupt,
    InterruptHub, Message, MessageId, OpenRound, Outcome, Part, PartKind, Reply, Role, Suspension,
    ToolCall, ToolCallPart, ToolOutcome, ToolSpec, ToolStatus, Transcript, store::Tenant,
};
use concentric_tools::{
    Approval, ApprovalTokens, Matcher, RoundEnd, SiblingPolicy, Tool, ToolLifecycle, Toolset,
    Verdict, agent_tool, token::TokenKeys,
};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{BoxError, service_fn};

fn tokens(store: &Memory) -> ApprovalTokens {
    let keys = TokenKeys::new("k1", vec![7; 32]).unwrap();
    ApprovalTokens::new(keys, "here", store.clone())
}

/// Answers live questions as they come, and returns them.
async fn run_live(
    scene: &Scene,
    tools: &Toolset,
    live: &InterruptHub,
    mut reply: impl FnMut(&Interrupt) -> Reply,
) -> (Ran, Vec<Interrupt>) {
    let (world, mut asked) = (scene.world.clone(), Vec::new());
    let request = ChatRequest::user("go").with_context(scene.world.context());
    let ran = drive_with(scene.model.agent(tools), request, |event| {
        if let Event::Custom(custom) = event
            && custom.name == *"interrupt"
        {
            let ask: Interrupt = serde_json::from_value(custom.value.clone()).unwrap();
            live.reply(&Tenant::default(), reply(&ask), world.now())
                .unwrap();
            asked.push(ask);
        }
    })
    .await;
    (ran, asked)
}

// ---- tokens beside another way to reply ----

paced!(f038_what_is_asked_live_leaves_no_proof_behind);
async fn f038_what_is_asked_live_leaves_no_proof_behind() {
    let (log, store, live) = (Log::default(), Memory::new(), InterruptHub::new());
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(Approval::for_tools("refund").live(&live, Duration::from_secs(60)))
        .tokens(tokens(&store));
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let deny = |ask: &Interrupt| Reply::deny(ask.id.clone(), "no");
    let (ran, asked) = run_live(&scene, &tools, &live, deny).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].metadata.contains_key("token"));
}

paced!(f038_what_was_decided_by_its_state_is_not_decided_again_by_its_token);
async fn f038_what_was_decided_by_its_state_is_not_decided_again_by_its_token() {
    for with_ledger in [false, true] {
        for denied in [false, true] {
            let (log, store) = (Log::default(), Memory::new());
            let tools = Toolset::new()
                .tool(number("refund", &log))
                .gate(Approval::for_tools("refund"))
                .tokens(tokens(&store));
            let tools = match with_ledger {
                true => tools.ledger(store.clone()),
                false => tools,
            };
            let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
            let ran = scene.start(&tools).await;
            let (ask, state) = (ran.asked()[0].clone(), ran.state());
            let (transcript, open) = (state.transcript().clone(), state.open_round().unwrap());
            let reply = match denied {
                true => Reply::deny(ask.id.clone(), "no"),
                false => Reply::approve(ask.id.clone()),
            };
            scene.resume(&tools, state, vec![reply]).await;
            let before = log.lines();
            assert_eq!(before.len(), usize::from(!denied));

            let token = ask.metadata["token"].as_str().unwrap();
            let reply = Reply::approve(ask.id.clone()).with_token(token);
            let request = ChatRequest::resume_history(transcript, open, vec![reply])
                .with_context(scene.world.context());
            let ran = drive(scene.model.agent(&tools), request).await;
            assert_eq!(log.lines(), before, "ledger {with_ledger}, denied {denied}");
            let status = ran.result("call-0-0").0;
            let known = with_ledger && !denied;
            assert_eq!(status == ToolStatus::Done, known, "{status:?}");
        }
    }
}

// ---- layers on calls that are settled ----

paced!(f037_a_layer_that_asks_does_not_open_a_call_that_was_settled);
async fn f037_a_layer_that_asks_does_not_open_a_call_that_was_settled() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number("write", &log))
        .gate(Approval::for_tools("refund").names_inner_tools())
        .layer(hook(|call: ToolCall| {
            let id = call.context.interrupt_id().unwrap();
            let asks = Suspension::new(vec![Interrupt::new(id, "confirm")]);
            Hook::Fail(Error::suspended(asks).into())
        }));
    let call = ToolCallPart::new(CallId::new("c1"), "write", r#"{"n":1}"#);
    let part = Part::new(PartKind::ToolCall(call));
    let claimed = Message::new(Role::Assistant, vec![part]).with_id(MessageId::new("m1"));
    let open = OpenRound::new(claimed).unwrap();
    let scene = Scene::new(Vec::<Vec<Call>>::new());
    let request = ChatRequest::resume_history(Transcript::new(), open, vec![])
        .with_context(scene.world.context());
    let ran = drive(scene.model.agent(&tools), request).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(ran.result("c1").0, ToolStatus::Cancelled);
    assert!(log.lines().is_empty());
}

// ---- calls that had begun and waited ----

paced!(f044_an_agent_that_has_done_something_and_asks_is_not_said_not_to_have_started);
async fn f044_an_agent_that_has_done_something_and_asks_is_not_said_not_to_have_started() {
    for verdict in [Verdict::halt("closed"), Verdict::deny("not today")] {
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
        let now = Arc::new(Mutex::new(Verdict::Pass));
        let says = now.clone();
        let of = match verdict {
            Verdict::Halt(_) => "pay",
            _ => "deeper",
        };
        let tools = Toolset::new()
            .tool(agent_tool("deeper", "", model.agent(&inner)))
            .tool(number("pay", &log))
            .gate(Approval::for_tools("pay"))
            .gate(gate_fn("hours", move |call: &ToolCall| {
                match *call.name() == *of {
                    true => says.lock().unwrap().clone(),
                    false => Verdict::Pass,
                }
            }))
            .siblings(SiblingPolicy::RunAll);
        let scene = Scene::round(vec![("deeper", r#"{"task":"x"}"#), ("pay", r#"{"n":9}"#)]);
        let ran = scene.start(&tools).await;
        assert_eq!(log.lines(), ["write 1"]);
        *now.lock().unwrap() = verdict;
        let replies = ran.asked().into_iter().map(|ask| Reply::approve(ask.id));
        let ran = scene.resume(&tools, ran.state(), replies.collect()).await;
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Unknown, "{text}");
    }
}

paced!(what_a_client_has_done_is_kept_when_the_run_stops);
async fn what_a_client_has_done_is_kept_when_the_run_stops() {
    let (scene, tools) = (Scene::round(vec![("camera", "{}")]), Toolset::new());
    let spec = || Arc::new(ToolSpec::new("camera", "", json!({"type": "object"})));
    let mut request = ChatRequest::user("go").with_context(scene.world.context());
    request.tools.push(spec());
    let ran = drive(scene.model.agent(&tools), request).await;
    let reply = Reply::answer(ran.asked()[0].id.clone(), json!("clicked"));
    let context = scene.world.context();
    context.cancel(CancelReason::User);
    let mut request = ChatRequest::resume(ran.state(), vec![reply]).with_context(context);
    request.tools.push(spec());
    let ran = drive(scene.model.agent(&tools), request).await;
    assert!(matches!(ran.outcome(), Outcome::Aborted { .. }));
    let clicked = (ToolStatus::Done, "clicked".to_owned());
    assert_eq!(ran.result("call-0-0"), clicked);
}

// ---- questions of one round ----

paced!(a_call_that_is_held_twice_for_live_questions_runs);
async fn a_call_that_is_held_twice_for_live_questions_runs() {
    let (log, live) = (Log::default(), InterruptHub::new());
    let strict = Arc::new(Mutex::new(false));
    let is_strict = strict.clone();
    let minds = Matcher::when(move |call: &ToolCall| match call.name().as_str() {
        "x" => true,
        "y" => *is_strict.lock().unwrap(),
        _ => false,
    });
    let tools = Toolset::new()
        .tool(number("x", &log))
        .tool(number("y", &log))
        .tool(number("z", &log))
        .gate(Approval::for_tools(minds).live(&live, Duration::from_secs(60)));
    let scene = Scene::round(vec![
        ("x", r#"{"n":1}"#),
        ("y", r#"{"n":2}"#),
        ("z", r#"{"n":3}"#),
    ]);
    let (ran, asked) = run_live(&scene, &tools, &live, |ask| {
        *strict.lock().unwrap() = true;
        Reply::approve(ask.id.clone())
    })
    .await;
    assert_eq!(asked.len(), 2);
    assert_eq!(ran.result("call-0-2").0, ToolStatus::Done);
    assert_eq!(log.lines(), ["x 1", "y 2", "z 3"]);
}

paced!(all_at_once_holds_for_what_is_asked_from_inside_the_stack);
async fn all_at_once_holds_for_what_is_asked_from_inside_the_stack() {
    let log = Log::default();
    let sevens = Matcher::when(|call: &ToolCall| call.arguments().as_str().contains('7'));
    let tools = Toolset::new()
        .tool(number("a", &log))
        .tool(number("b", &log))
        .gate(Approval::new().ask(sevens))
        .layer(hook(|mut call: ToolCall| {
            call.set_arguments(Arguments::new(r#"{"n":7}"#));
            Hook::Call(call)
        }))
        .all_at_once();
    let scene = Scene::round(vec![("a", r#"{"n":1}"#), ("b", r#"{"n":2}"#)]);
    let ran = scene.start(&tools).await;
    assert_eq!(ran.asked().len(), 2);
    let one = vec![Reply::approve(ran.asked()[0].id.clone())];
    let refused = scene.resume(&tools, ran.state(), one).await;
    assert_eq!(refused.end.unwrap_err().code(), Some("missing_reply"));
    assert!(log.lines().is_empty());
}

paced!(an_older_state_is_older_also_if_a_tool_asks_the_same_again);
async fn an_older_state_is_older_also_if_a_tool_asks_the_same_again() {
    let log = Log::default();
    let charged = log.clone();
    let spec = ToolSpec::new("pay", "", json!({"type": "object"}));
    let tool = Tool::new(
        spec,
        service_fn(move |call: ToolCall| {
            let log = charged.clone();
            async move {
                pace().pass(&call.context).await;
                let times = call.replies().len();
                if times > 0 {
                    log.add("charged");
                }
                let id = call.context.interrupt_id().unwrap();
                let count = log.lines().len();
                let ask = Interrupt::new(id, "more").with_metadata("count", count);
                Err::<ToolOutcome, BoxError>(Error::suspended(Suspension::new(vec![ask])).into())
            }
        }),
    );
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tool(tool));
    let mut call = ToolCallPart::new(CallId::new("c1"), "pay", "{}");
    call.executor = Executor::Loop;
    let part = Part::new(PartKind::ToolCall(call));
    let message = Message::new(Role::Assistant, vec![part]);
    let RoundEnd::Suspended(first) = lifecycle.execute_round(message).await.unwrap() else {
        panic!("it asks");
    };
    let reply = || vec![Reply::resolve(first.interrupts()[0].id.clone(), json!({}))];
    let RoundEnd::Suspended(second) = lifecycle.resume((*first).clone(), reply()).await.unwrap()
    else {
        panic!("it asks again");
    };
    let error = lifecycle
        .resume((*first).clone(), reply())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(log.lines(), ["charged"]);
    lifecycle.resume(*second, reply()).await.unwrap();
    assert_eq!(log.lines(), ["charged", "charged"]);
}
