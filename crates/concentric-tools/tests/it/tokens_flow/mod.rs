//! Calls that are decided about without a record: the client holds the history, and a token proves
//! what was asked.

mod edits;

use crate::common::{Log, gate_fn, pace, paced};
use crate::kit::{ANY_REPLY, Call, Memory, Ran, Scene, World, drive, number, told};
use concentric_core::{
    Arguments, ChatRequest, Interrupt, Message, OpenRound, Outcome, Part, PartKind, Reply,
    ReplyKind, Str, ToolCall, ToolStatus, Transcript,
    interrupt::{ScopeCalls, ScopeLifetime},
    store::{Once, StoreFuture, Tenant},
};
use concentric_tools::{Approval, ApprovalTokens, Toolset, Verdict, token::TokenKeys};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

fn key(id: &str, byte: u8) -> TokenKeys {
    TokenKeys::new(id.to_owned(), vec![byte; 32]).unwrap()
}

fn tokens(store: &Memory) -> ApprovalTokens {
    ApprovalTokens::new(key("k1", 7), "https://agent.example", store.clone())
}

fn tools(log: &Log, store: &Memory) -> Toolset {
    Toolset::new()
        .tool(number("refund", log))
        .tool(number("write", log))
        .tool(number("read", log).read_only())
        .gate(Approval::for_tools("refund"))
        .tokens(tokens(store))
}

/// What the client has of an interrupted run: the conversation, the open message, the questions.
#[derive(Clone)]
struct Held {
    transcript: Transcript,
    open: OpenRound,
    asked: Vec<Interrupt>,
}

fn held(ran: &Ran) -> Held {
    let state = ran.state();
    let json = serde_json::to_string(&state.open_round().unwrap()).unwrap();
    Held {
        transcript: state.transcript().clone(),
        open: serde_json::from_str(&json).unwrap(),
        asked: ran.asked(),
    }
}

impl Held {
    fn token(&self, i: usize) -> Str {
        self.asked[i].metadata["token"].as_str().unwrap().into()
    }

    fn approve(&self, i: usize) -> Reply {
        Reply::approve(self.asked[i].id.clone()).with_token(self.token(i))
    }

    /// The same, with what `edit` makes of its calls.
    fn altered(&self, edit: impl Fn(usize, &mut concentric_core::ToolCallPart)) -> Self {
        let mut message: Message = self.open.message().clone();
        let mut at = 0;
        for part in &mut message.parts {
            if let PartKind::ToolCall(call) = &mut part.kind {
                edit(at, call);
                at += 1;
            }
        }
        Self {
            open: OpenRound::new(message).unwrap(),
            ..self.clone()
        }
    }
}

/// A request of that client to another process.
async fn resume(scene: &Scene, tools: &Toolset, held: &Held, replies: Vec<Reply>) -> Ran {
    resume_in(scene, &scene.world, tools, held, replies).await
}

async fn resume_in(
    scene: &Scene,
    world: &World,
    tools: &Toolset,
    held: &Held,
    replies: Vec<Reply>,
) -> Ran {
    let request = ChatRequest::resume_history(held.transcript.clone(), held.open.clone(), replies)
        .with_context(world.context());
    drive(scene.model.agent(tools), request).await
}

async fn suspended<C: Into<Call>>(tools: &Toolset, calls: Vec<C>) -> (Scene, Held) {
    let scene = Scene::round(calls);
    let ran = scene.start(tools).await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    let held = held(&ran);
    (scene, held)
}

/// The model reads that the approval is invalid, and the host is told why.
fn assert_invalid(ran: &Ran, call: &str, code: &str) {
    let (status, text) = ran.result(call);
    // What was decided about before may have been run then.
    let expected = match code {
        "used" => ToolStatus::Unknown,
        _ => ToolStatus::Denied,
    };
    assert_eq!(status, expected, "{text}");
    assert!(text.starts_with("approval-invalid"), "{text}");
    let told = ran.custom("approval-invalid");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["code"], code);
    assert_eq!(*ran.outcome(), Outcome::Completed);
}

paced!(c070_a_call_that_is_proved_to_be_approved_runs_once);
async fn c070_a_call_that_is_proved_to_be_approved_runs_once() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n": 1}"#)]).await;
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(
        ran.result("call-0-0"),
        (ToolStatus::Done, "refund 1".into())
    );
    assert_eq!(log.lines(), ["refund 1"]);
    assert_eq!(ran.transcript().len(), 3);
}

paced!(c071_f038_a_token_counts_once);
async fn c071_f038_a_token_counts_once() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_invalid(&ran, "call-0-0", "used");
    // A denial uses it up, too. The ids of this world are those of the first.
    let store = Memory::new();
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let deny = Reply::deny(held.asked[0].id.clone(), "no").with_token(held.token(0));
    let ran = resume(&scene, &tools(&log, &store), &held, vec![deny]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Denied);
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_invalid(&ran, "call-0-0", "used");
    assert_eq!(log.lines(), ["refund 1"]);
    // Approve and deny in one request.
    let deny = Reply::deny(held.asked[0].id.clone(), "no").with_token(held.token(0));
    let ran = resume(
        &scene,
        &tools(&log, &store),
        &held,
        vec![held.approve(0), deny],
    )
    .await;
    assert_eq!(ran.end.unwrap_err().code(), Some("duplicate_reply"));
}

paced!(c072_a_denial_is_told_to_the_model_and_a_cancel_and_an_answer_too);
async fn c072_a_denial_is_told_to_the_model_and_a_cancel_and_an_answer_too() {
    let log = Log::default();
    let replies: [(fn(&Held) -> Reply, ToolStatus, &str); 3] = [
        (
            |held| Reply::deny(held.asked[0].id.clone(), "too much"),
            ToolStatus::Denied,
            "too much",
        ),
        (
            |held| Reply::cancel(held.asked[0].id.clone()),
            ToolStatus::Cancelled,
            "cancelled",
        ),
        (
            |held| Reply::answer(held.asked[0].id.clone(), "paid"),
            ToolStatus::Done,
            "paid",
        ),
    ];
    for (reply, status, text) in replies {
        // The ids of each world count from one, and so do the tokens'.
        let store = Memory::new();
        let tools = Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").replies(ANY_REPLY))
            .tokens(tokens(&store));
        let (scene, held) = suspended(&tools, vec![("refund", r#"{"n":1}"#)]).await;
        let reply = reply(&held).with_token(held.token(0));
        let ran = resume(&scene, &tools, &held, vec![reply]).await;
        let result = ran.result("call-0-0");
        assert_eq!(result.0, status);
        assert!(result.1.contains(text));
    }
    assert!(log.lines().is_empty());
}

paced!(c073_f037_a_wrong_or_missing_token_runs_nothing);
async fn c073_f037_a_wrong_or_missing_token_runs_nothing() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let approve = || Reply::approve(held.asked[0].id.clone());
    let good = held.token(0);
    let mut flipped = good.as_str().to_owned().into_bytes();
    let middle = flipped.len() / 2;
    flipped[middle] = if flipped[middle] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    let cut = &good.as_str()[..good.len() - 4];
    for (reply, codes) in [
        (approve(), &["missing"][..]),
        (approve().with_token(""), &["malformed"]),
        (approve().with_token("yes"), &["malformed"]),
        (approve().with_token("A".repeat(10_000)), &["malformed"]),
        (
            approve().with_token(flipped.as_str()),
            &["forged", "malformed", "unknown_key"],
        ),
        (approve().with_token(cut), &["forged", "malformed"]),
        (
            approve().with_token(format!("{good}=").as_str()),
            &["malformed"],
        ),
        // What must not run for an approval must not be answered either.
        (
            Reply::answer(held.asked[0].id.clone(), "paid"),
            &["missing"],
        ),
        (Reply::deny(held.asked[0].id.clone(), "no"), &["missing"]),
        (Reply::cancel(held.asked[0].id.clone()), &["missing"]),
    ] {
        let ran = resume(&scene, &tools(&log, &store), &held, vec![reply]).await;
        let code = ran.custom("approval-invalid")[0]["code"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(codes.contains(&code.as_str()), "{code}");
        assert_invalid(&ran, "call-0-0", &code);
    }
    // Another service's key of the same name, another audience, no key at all.
    let forger = Toolset::new()
        .tool(number("refund", &log))
        .tool(number("write", &log))
        .tool(number("read", &log).read_only())
        .gate(Approval::for_tools("refund"));
    let keys = |byte| key("k1", byte);
    let cases = [
        (
            forger.clone().tokens(ApprovalTokens::new(
                keys(8),
                "https://agent.example",
                store.clone(),
            )),
            "forged",
        ),
        (
            forger.clone().tokens(ApprovalTokens::new(
                keys(7),
                "https://other.example",
                store.clone(),
            )),
            "audience",
        ),
        (
            forger.clone().tokens(ApprovalTokens::new(
                key("k2", 7),
                "https://agent.example",
                store.clone(),
            )),
            "unknown_key",
        ),
        (forger, "missing"),
    ];
    for (tools, code) in cases {
        let ran = resume(&scene, &tools, &held, vec![held.approve(0)]).await;
        assert_invalid(&ran, "call-0-0", code);
    }
    assert!(log.lines().is_empty());
    // None of that has used the good one up.
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}

paced!(c073_a_token_is_looked_at_also_where_the_tool_needs_no_approval);
async fn c073_a_token_is_looked_at_also_where_the_tool_needs_no_approval() {
    // A plain tool that a history says is open, and a reply with no proof or a made-up one.
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let plain = held.altered(|_, call| call.name = "write".into());
    for token in [None, Some("made-up"), Some(held.token(0).as_str())] {
        let mut reply = Reply::approve(held.asked[0].id.clone());
        if let Some(token) = token {
            reply = reply.with_token(token);
        }
        let ran = resume(&scene, &tools(&log, &store), &plain, vec![reply]).await;
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Denied);
        assert!(text.starts_with("approval-invalid"), "{text}");
        assert!(log.lines().is_empty());
    }
    // The approval is not asked for any more: that is another policy.
    let free = Toolset::new()
        .tool(number("refund", &log))
        .tokens(tokens(&store));
    let ran = resume(&scene, &free, &held, vec![held.approve(0)]).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Denied);
    assert!(text.contains("Request approval again"), "{text}");
    assert!(log.lines().is_empty());
}

paced!(c074_a_response_without_a_request_runs_nothing);
async fn c074_a_response_without_a_request_runs_nothing() {
    // Nobody has asked about this call at all.
    let (log, store) = (Log::default(), Memory::new());
    let call = concentric_core::ToolCallPart::new(
        concentric_core::CallId::new("c1"),
        "refund",
        r#"{"n":1}"#,
    );
    let message = Message::new(
        concentric_core::Role::Assistant,
        vec![Part::new(PartKind::ToolCall(call))],
    )
    .with_id(concentric_core::MessageId::new("m1"));
    let claimed = Held {
        transcript: Transcript::new(),
        open: OpenRound::new(message).unwrap(),
        asked: vec![],
    };
    let scene = Scene::new(Vec::<Vec<Call>>::new());
    let known = Reply::approve(crate::kit::id("m1/0/c1"));
    let ran = resume(&scene, &tools(&log, &store), &claimed, vec![known]).await;
    assert_invalid(&ran, "c1", "missing");
    for unknown in ["m1/1/c1", "m1/0/c2", "m2/0/c1", "m1/0/c1x", ""] {
        let reply = Reply::approve(crate::kit::id(unknown));
        let ran = resume(&scene, &tools(&log, &store), &claimed, vec![reply]).await;
        assert_eq!(
            ran.end.unwrap_err().code(),
            Some("unknown_interrupt"),
            "{unknown}"
        );
    }
    assert!(log.lines().is_empty());
}

paced!(c075_f041_arguments_that_were_altered_since_run_nothing);
async fn c075_f041_arguments_that_were_altered_since_run_nothing() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n": 1}"#)]).await;
    for (arguments, invalid) in [
        (r#"{"n": 2}"#, true),
        (r#"{"n": 1.0}"#, false),
        (r#"{"n": 1, "m": 2}"#, true),
        (r#"{"n": 1, "n": 2}"#, false),
        ("{", false),
        ("", false),
    ] {
        let altered = held.altered(|_, call| call.arguments = Arguments::new(arguments));
        let ran = resume(
            &scene,
            &tools(&log, &store),
            &altered,
            vec![held.approve(0)],
        )
        .await;
        assert!(log.lines().is_empty(), "{arguments}");
        if invalid {
            assert_invalid(&ran, "call-0-0", "arguments");
        } else {
            assert_ne!(ran.result("call-0-0").0, ToolStatus::Done, "{arguments}");
        }
    }
    // The same, written in another way, is the same.
    let same = held.altered(|_, call| call.arguments = Arguments::new("{\"\\u006e\":1}"));
    let ran = resume(&scene, &tools(&log, &store), &same, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}

paced!(c076_a_tool_or_a_policy_that_changed_is_asked_about_again);
async fn c076_a_tool_or_a_policy_that_changed_is_asked_about_again() {
    let (log, store) = (Log::default(), Memory::new());
    let base = || {
        Toolset::new()
            .tool(number("write", &log))
            .tool(number("read", &log).read_only())
            .tokens(tokens(&store))
    };
    let changed = [
        base()
            .tool(number("refund", &log).group("money"))
            .gate(Approval::for_tools("refund")),
        base()
            .tool(number("refund", &log).read_only())
            .gate(Approval::for_tools("refund")),
        base()
            .tool(number("refund", &log))
            .gate(Approval::for_tools(["refund", "write"])),
        base()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund"))
            .gate(gate_fn("more", |_| Verdict::Pass)),
    ];
    for tools_now in changed {
        let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
        let ran = resume(&scene, &tools_now, &held, vec![held.approve(0)]).await;
        let (status, text) = ran.result("call-0-0");
        assert_eq!(status, ToolStatus::Denied);
        assert!(text.contains("Request approval again"), "{text}");
    }
    assert!(log.lines().is_empty());
}

paced!(c077_a_tool_that_is_gone_is_not_run);
async fn c077_a_tool_that_is_gone_is_not_run() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let gone = Toolset::new()
        .tool(number("read", &log))
        .gate(Approval::for_tools("refund").names_inner_tools())
        .tokens(tokens(&store));
    let ran = resume(&scene, &gone, &held, vec![held.approve(0)]).await;
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Failed);
    assert!(text.contains("no tool `refund`"), "{text}");
    assert!(log.lines().is_empty());
}

paced!(f039_a_token_counts_for_its_call_only);
async fn f039_a_token_counts_for_its_call_only() {
    let (log, store) = (Log::default(), Memory::new());
    // Swapped between two calls of one round, of the same tool and the same arguments.
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":1}"#)];
    let (scene, held) = suspended(&tools(&log, &store), calls).await;
    let swapped = vec![
        Reply::approve(held.asked[0].id.clone()).with_token(held.token(1)),
        Reply::approve(held.asked[1].id.clone()).with_token(held.token(0)),
    ];
    let ran = resume(&scene, &tools(&log, &store), &held, swapped).await;
    assert!(log.lines().is_empty());
    assert_eq!(ran.custom("approval-invalid").len(), 2);
    // Of another run, whose call looks the same.
    let (_, other) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let (_, two) = {
        // Another message id: the worlds count alike, so this is the second of one world.
        let scene = Scene::new(vec![
            vec![("read", r#"{"n":1}"#)],
            vec![("refund", r#"{"n":1}"#)],
        ]);
        let ran = scene.start(&tools(&log, &store)).await;
        (1, self::held(&ran))
    };
    let foreign = vec![Reply::approve(two.asked[0].id.clone()).with_token(other.token(0))];
    let ran = resume(&scene, &tools(&log, &store), &two, foreign).await;
    assert_eq!(ran.custom("approval-invalid").len(), 1);
    assert_eq!(log.lines(), ["read 1"]);
    // For a call that was moved to another place, or has another id or name.
    for edit in [
        (|call| call.id = concentric_core::CallId::new("x"))
            as fn(&mut concentric_core::ToolCallPart),
        |call| call.name = "write".into(),
    ] {
        let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
        let altered = held.altered(|_, call| edit(call));
        let id = {
            let call = altered.open.calls().next().unwrap().0.id.clone();
            let message = altered.open.message().id.clone().unwrap();
            crate::kit::id(&format!("{message}/0/{call}"))
        };
        let reply = Reply::approve(id).with_token(held.token(0));
        let ran = resume(&scene, &tools(&log, &store), &altered, vec![reply]).await;
        assert_eq!(ran.custom("approval-invalid").len(), 1);
    }
    assert_eq!(log.lines(), ["read 1"]);
}

paced!(f039_a_token_counts_for_its_tenant_only);
async fn f039_a_token_counts_for_its_tenant_only() {
    let (log, store) = (Log::default(), Memory::new());
    let scene =
        Scene::round(vec![("refund", r#"{"n":1}"#)]).with_world(World::new().tenant("acme"));
    let ran = scene.start(&tools(&log, &store)).await;
    let held = held(&ran);
    for other in [
        World::new(),
        World::new().tenant("evil"),
        World::new().tenant("acm"),
    ] {
        let approve = vec![held.approve(0)];
        let ran = resume_in(&scene, &other, &tools(&log, &store), &held, approve).await;
        assert_invalid(&ran, "call-0-0", "tenant");
    }
    assert!(log.lines().is_empty());
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}

paced!(f040_a_token_expires_by_the_runs_clock);
async fn f040_a_token_expires_by_the_runs_clock() {
    let log = Log::default();
    // A day, unless the approval or the tokens say otherwise.
    let hour = Duration::from_secs(3600);
    let stores: Vec<_> = (0..6).map(|_| Memory::new()).collect();
    let build = |which: usize, store: &Memory| {
        let approval = Approval::for_tools("refund");
        let approval = if which == 2 {
            approval.expires_after(hour)
        } else {
            approval
        };
        let proofs = tokens(store);
        let proofs = if which == 1 {
            proofs.lifetime(hour)
        } else {
            proofs
        };
        Toolset::new()
            .tool(number("refund", &log))
            .gate(approval)
            .tokens(proofs)
    };
    for (which, lifetime) in [(0, hour * 24), (1, hour), (2, hour)] {
        let (scene, held) = suspended(
            &build(which, &stores[which]),
            vec![("refund", r#"{"n":1}"#)],
        )
        .await;
        let expires = held.asked[0].expires_at.unwrap();
        assert_eq!(expires, scene.world.now() + lifetime);
        scene
            .world
            .clock
            .advance(lifetime + Duration::from_secs(60));
        let ran = resume(
            &scene,
            &build(which, &stores[which]),
            &held,
            vec![held.approve(0)],
        )
        .await;
        assert_invalid(&ran, "call-0-0", "expired");
        let store = &stores[which + 3];
        let (scene, held) = suspended(&build(which, store), vec![("refund", r#"{"n":1}"#)]).await;
        scene
            .world
            .clock
            .advance(lifetime - Duration::from_secs(60));
        let ran = resume(&scene, &build(which, store), &held, vec![held.approve(0)]).await;
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    }
}

paced!(f040_a_token_that_expired_still_proves_a_denial_once);
async fn f040_a_token_that_expired_still_proves_a_denial_once() {
    for (reply, status) in [
        (
            Reply::deny as fn(_, &'static str) -> Reply,
            ToolStatus::Denied,
        ),
        (|id, _| Reply::cancel(id), ToolStatus::Cancelled),
    ] {
        let (log, store) = (Log::default(), Memory::new());
        let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
        let days = Duration::from_secs(3 * 24 * 3600);
        scene.world.clock.advance(days);
        let denial = reply(held.asked[0].id.clone(), "too much");
        let forged = denial.clone().with_token("x");
        let ran = resume(&scene, &tools(&log, &store), &held, vec![forged]).await;
        assert_invalid(&ran, "call-0-0", "malformed");
        let denial = denial.with_token(held.token(0));
        let ran = resume(&scene, &tools(&log, &store), &held, vec![denial.clone()]).await;
        let (denied, text) = ran.result("call-0-0");
        assert_eq!(denied, status);
        assert!(!text.contains("approval-invalid"), "{text}");
        let ran = resume(&scene, &tools(&log, &store), &held, vec![denial]).await;
        assert!(ran.result("call-0-0").1.starts_with("approval-invalid"));
        assert!(log.lines().is_empty());
    }
}

paced!(f040_no_question_outlives_the_longest_token_and_none_goes_without);
async fn f040_no_question_outlives_the_longest_token_and_none_goes_without() {
    let log = Log::default();
    let week = Duration::from_secs(7 * 24 * 3600);
    let refund = || Approval::for_tools("refund");
    for (which, approval, lifetime) in [
        ("tokens", refund(), week * 2),
        ("approval", refund().expires_after(week * 2), week),
        ("for ever", refund().expires_after(Duration::MAX), week),
    ] {
        let store = Memory::new();
        let tools = Toolset::new()
            .tool(number("refund", &log))
            .gate(approval)
            .tokens(tokens(&store).lifetime(lifetime));
        let (scene, held) = suspended(&tools, vec![("refund", r#"{"n":1}"#)]).await;
        let expires_at = held.asked[0].expires_at.unwrap();
        assert_eq!(expires_at, scene.world.now() + week, "{which}");
        let ran = resume(&scene, &tools, &held, vec![held.approve(0)]).await;
        assert_eq!(ran.result("call-0-0").0, ToolStatus::Done, "{which}");
    }
    // Keys that last for ever do not, either.
    let store = Memory::new();
    let keys = key("k1", 7).max_lifetime(Duration::MAX);
    let tokens = ApprovalTokens::new(keys, "here", store).lifetime(Duration::MAX);
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(refund())
        .tokens(tokens);
    let (_, held) = suspended(&tools, vec![("refund", r#"{"n":1}"#)]).await;
    assert!(!held.token(0).is_empty());
}

paced!(what_a_token_approves_holds_for_no_more_than_the_host_allows);
async fn what_a_token_approves_holds_for_no_more_than_the_host_allows() {
    // Nobody has recorded what the question allowed.
    let (log, store) = (Log::default(), Memory::new());
    let tools = || {
        let approval = Approval::for_tools("refund")
            .remember(store.clone())
            .remember_at_most(ScopeCalls::Arguments, ScopeLifetime::Run);
        Toolset::new()
            .tool(number("refund", &log))
            .gate(approval)
            .tokens(tokens(&store))
    };
    let (scene, held) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
    let approve = held
        .approve(0)
        .remembered(ScopeCalls::Tool, ScopeLifetime::Always);
    let ran = resume(&scene, &tools(), &held, vec![approve]).await;
    assert_asked_again(&ran, &held, "reply_not_accepted");
    assert!(store.remembered().is_empty());
    let approve = held
        .approve(0)
        .remembered(ScopeCalls::Arguments, ScopeLifetime::Run);
    let ran = resume(&scene, &tools(), &held, vec![approve]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(store.remembered().len(), 1);
}

/// The reply was refused, and its question is asked as before.
fn assert_asked_again(ran: &Ran, held: &Held, code: &str) {
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    assert_eq!(ran.custom("approval-invalid")[0]["code"], code);
    let (before, now) = (&held.asked[0], ran.ask("call-0-0"));
    assert_eq!(before.id, now.id);
    assert_eq!(before.metadata["arguments"], now.metadata["arguments"]);
}

paced!(a_token_remembers_only_what_its_question_offers);
async fn a_token_remembers_only_what_its_question_offers() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let remember = held
        .approve(0)
        .remembered(ScopeCalls::Arguments, ScopeLifetime::Run);
    let ran = resume(&scene, &tools(&log, &store), &held, vec![remember]).await;
    assert_asked_again(&ran, &held, "reply_not_accepted");
    assert!(log.lines().is_empty());
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}

paced!(an_edit_that_does_not_fit_the_tool_uses_no_token_up);
async fn an_edit_that_does_not_fit_the_tool_uses_no_token_up() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").replies(ANY_REPLY))
            .tokens(tokens(&store))
    };
    let (scene, held) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
    let edit = |n: u32| {
        let reply = Reply::approve_edited(held.asked[0].id.clone(), json!({"n": n}));
        reply.with_token(held.token(0))
    };
    let ran = resume(&scene, &tools(), &held, vec![edit(700)]).await;
    assert_asked_again(&ran, &held, "invalid_edit");
    assert!(log.lines().is_empty());
    let ran = resume(&scene, &tools(), &held, vec![edit(7)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(log.lines(), ["refund 7"]);
}

paced!(f040_a_key_is_rotated);
async fn f040_a_key_is_rotated() {
    let (log, store) = (Log::default(), Memory::new());
    let with = |keys: TokenKeys| {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund"))
            .tokens(ApprovalTokens::new(
                keys,
                "https://agent.example",
                store.clone(),
            ))
    };
    let old = with(key("k1", 7));
    let (scene, held) = suspended(&old, vec![("refund", r#"{"n":1}"#)]).await;
    let gone = with(key("k2", 9));
    let ran = resume(&scene, &gone, &held, vec![held.approve(0)]).await;
    assert_invalid(&ran, "call-0-0", "unknown_key");
}

paced!(a_store_that_fails_means_that_a_token_is_not_believed);
async fn a_store_that_fails_means_that_a_token_is_not_believed() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    store.fail_rest(true);
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_invalid(&ran, "call-0-0", "unsure");
    assert!(log.lines().is_empty());
    store.fail_rest(false);
    let ran = resume(&scene, &tools(&log, &store), &held, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
}

paced!(c083_edits_are_validated_and_judged_anew);
async fn c083_edits_are_validated_and_judged_anew() {
    for (edited, status, ran_with) in [
        (json!({"n": 7}), ToolStatus::Done, Some("refund 7")),
        (json!({"n": 13}), ToolStatus::Denied, None),
    ] {
        let (log, store) = (Log::default(), Memory::new());
        let unlucky = concentric_tools::Matcher::when(|call: &ToolCall| {
            call.arguments().as_str().contains("13")
        });
        let tools = || {
            Toolset::new()
                .tool(number("refund", &log))
                .gate(
                    Approval::for_tools("refund")
                        .replies([ReplyKind::Edit])
                        .deny(unlucky.clone(), "unlucky"),
                )
                .tokens(tokens(&store))
        };
        let (scene, held) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
        let reply = Reply::approve_edited(held.asked[0].id.clone(), edited);
        let ran = resume(
            &scene,
            &tools(),
            &held,
            vec![reply.with_token(held.token(0))],
        )
        .await;
        assert_eq!(ran.result("call-0-0").0, status);
        assert_eq!(log.lines(), ran_with.into_iter().collect::<Vec<_>>());
    }
}

paced!(what_prepare_made_is_what_the_token_is_for);
async fn what_prepare_made_is_what_the_token_is_for() {
    let (log, store) = (Log::default(), Memory::new());
    let with = |to: &'static str| {
        tools(&log, &store).prepare(move |call: ToolCall| async move {
            Ok(Arguments::new(call.arguments().as_str().replace('1', to)))
        })
    };
    let (scene, held) = suspended(&with("5"), vec![("refund", r#"{"n":1}"#)]).await;
    assert_eq!(held.asked[0].metadata["arguments"], json!({"n": 5}));
    // It makes something else now: that was not approved.
    let ran = resume(&scene, &with("6"), &held, vec![held.approve(0)]).await;
    assert_invalid(&ran, "call-0-0", "arguments");
    let ran = resume(&scene, &with("5"), &held, vec![held.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(log.lines(), ["refund 5"]);
}

paced!(c080_every_call_of_a_claimed_round_has_one_result);
async fn c080_every_call_of_a_claimed_round_has_one_result() {
    let (log, store) = (Log::default(), Memory::new());
    let calls = vec![
        ("refund", r#"{"n":1}"#),
        ("read", r#"{"n":2}"#),
        ("write", r#"{"n":3}"#),
        ("refund", r#"{"n":4}"#),
        ("nothing", "{}"),
    ];
    let (scene, held) = suspended(&tools(&log, &store), calls).await;
    assert_eq!(log.lines(), ["read 2"]);
    assert_eq!(held.asked.len(), 2);
    let deny = Reply::deny(held.asked[1].id.clone(), "no").with_token(held.token(1));
    let ran = resume(
        &scene,
        &tools(&log, &store),
        &held,
        vec![held.approve(0), deny],
    )
    .await;
    assert_eq!(*ran.outcome(), Outcome::Completed, "{:?}", ran.asked());
    let results = ran.results();
    let ids: Vec<_> = results.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(
        ids,
        ["call-0-0", "call-0-1", "call-0-2", "call-0-3", "call-0-4"]
    );
    assert_eq!(log.count("read 2"), 1);
    assert_eq!(log.count("refund 1"), 1);
    assert_eq!(log.count("refund 4"), 0);
    // What nobody was asked about is not run on the word of a history.
    assert_eq!(log.count("write 3"), 0);
}

paced!(f042_a_part_that_is_answered_leaves_the_rest_to_be_answered);
async fn f042_a_part_that_is_answered_leaves_the_rest_to_be_answered() {
    let (log, store) = (Log::default(), Memory::new());
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let (scene, first) = suspended(&tools(&log, &store), calls).await;
    let approve = vec![first.approve(1)];
    let ran = resume(&scene, &tools(&log, &store), &first, approve).await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    assert_eq!(log.lines(), ["refund 2"]);
    let second = held(&ran);
    assert_eq!(
        second.asked.len(),
        1,
        "what is open is asked: {:?}",
        second.asked
    );
    let approve = vec![second.approve(0)];
    let ran = resume(&scene, &tools(&log, &store), &second, approve).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines(), ["refund 2", "refund 1"]);
    assert_eq!(ran.results().len(), 2);
    // The history before that can't be used to run the second one again.
    let approve = vec![first.approve(1)];
    resume(&scene, &tools(&log, &store), &first, approve).await;
    assert_eq!(log.lines().len(), 2);
}

paced!(c087_a_decision_without_a_record_is_told_once);
async fn c087_a_decision_without_a_record_is_told_once() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .tokens(tokens(&store))
            .notify_once(store.clone())
    };
    let (scene, held) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
    for _ in 0..2 {
        resume(&scene, &tools(), &held, vec![held.approve(0)]).await;
    }
    assert_eq!(
        watched.lines(),
        ["requested call-0-0", r#"approved call-0-0 {"n":1}"#]
    );
    assert_eq!(log.lines(), ["refund 1"]);
}

paced!(a_claimed_call_that_nobody_has_replied_to_is_not_run);
async fn a_claimed_call_that_nobody_has_replied_to_is_not_run() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, held) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    for name in ["refund", "write", "read"] {
        let claimed = held.altered(|_, call| call.name = name.into());
        let ran = resume(&scene, &tools(&log, &store), &claimed, vec![]).await;
        assert!(log.lines().is_empty(), "{name}");
        match name {
            "refund" => assert_eq!(ran.asked().len(), 1),
            _ => assert_eq!(ran.result("call-0-0").0, ToolStatus::Cancelled),
        }
    }
}
