//! Changed calls, edits, and replies that are not accepted.

use super::*;

/// A user is asked about refunds, and a manager about those of more than 100.
fn two_gates(log: &Log, store: &Memory) -> Toolset {
    let large = concentric_tools::Matcher::when(|call: &ToolCall| {
        let arguments: serde_json::Value = serde_json::from_str(call.arguments().as_str()).unwrap();
        arguments["n"].as_u64().unwrap() > 100
    });
    Toolset::new()
        .tool(number("refund", log))
        .gate(Approval::for_tools("refund").replies([ReplyKind::Approve, ReplyKind::Edit]))
        .gate(Approval::for_tools(large).replies([ReplyKind::Approve, ReplyKind::Edit]))
        .tokens(tokens(store))
}

paced!(an_edit_that_another_gate_asks_about_has_a_token_of_its_own);
async fn an_edit_that_another_gate_asks_about_has_a_token_of_its_own() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = || two_gates(&log, &store);
    let (scene, first) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
    let edit = |n: u32, held: &Held| {
        let reply = Reply::approve_edited(held.asked[0].id.clone(), json!({"n": n}));
        reply.with_token(held.token(0))
    };
    let ran = resume(&scene, &tools(), &first, vec![edit(200, &first)]).await;
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    let second = held(&ran);
    let id = second.asked[0].id.as_str().to_owned();
    assert_eq!(id, format!("{}#edit-1", first.asked[0].id));
    assert_eq!(second.asked[0].metadata["arguments"], json!({"n": 200}));

    // Neither token is one for the other question, or for another edit.
    let other = Reply::approve(second.asked[0].id.clone()).with_token(first.token(0));
    let ran = resume(&scene, &tools(), &second, vec![other]).await;
    assert_invalid(&ran, "call-0-0", "interrupt");
    let other = Reply::approve(first.asked[0].id.clone()).with_token(second.token(0));
    let ran = resume(&scene, &tools(), &second, vec![other]).await;
    assert_invalid(&ran, "call-0-0", "interrupt");
    assert!(log.lines().is_empty());

    // The client holds the call as the model made it; what was edited is in the token.
    let ran = resume(&scene, &tools(), &second, vec![second.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(log.lines(), ["refund 200"]);
    for used in [second.approve(0), edit(201, &first)] {
        let ran = resume(&scene, &tools(), &second, vec![used]).await;
        assert_invalid(&ran, "call-0-0", "used");
    }
    assert_eq!(log.lines(), ["refund 200"]);
}

paced!(a_reply_that_is_not_accepted_uses_no_token_up);
async fn a_reply_that_is_not_accepted_uses_no_token_up() {
    let (log, store) = (Log::default(), Memory::new());
    let (scene, first) = suspended(&tools(&log, &store), vec![("refund", r#"{"n":1}"#)]).await;
    let id = || first.asked[0].id.clone();
    for reply in [
        Reply::answer(id(), "made up"),
        Reply::approve_edited(id(), json!({"n": 2})),
    ] {
        let reply = reply.with_token(first.token(0));
        let ran = resume(&scene, &tools(&log, &store), &first, vec![reply]).await;
        let told = ran.custom("approval-invalid");
        assert_eq!(told[0]["code"], "reply_not_accepted");
        // It is asked again, by the same name.
        assert_eq!(*ran.outcome(), Outcome::Interrupted);
        assert_eq!(ran.asked()[0].id, id());
        assert!(log.lines().is_empty());
    }
    let ran = resume(&scene, &tools(&log, &store), &first, vec![first.approve(0)]).await;
    assert_eq!(ran.result("call-0-0").0, ToolStatus::Done);
    assert_eq!(log.lines(), ["refund 1"]);
}

/// A store that forgets what it need not know any more.
#[derive(Clone)]
struct Forgetful(World, Arc<Mutex<HashMap<Str, SystemTime>>>);

impl Once for Forgetful {
    fn once(&self, _: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let mut known = self.1.lock().unwrap();
        let now = self.0.now();
        known.retain(|_, until| *until > now);
        // As a store does: a second use does not make it known for longer.
        let first = !known.contains_key(&key);
        known.entry(key).or_insert(now + keep);
        Box::pin(async move {
            pace().pass(&concentric_core::Context::new()).await;
            Ok(first)
        })
    }
}

paced!(a_used_question_is_known_as_long_as_any_token_counts);
async fn a_used_question_is_known_as_long_as_any_token_counts() {
    let day = Duration::from_secs(24 * 60 * 60);
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#)]);
    let store = Forgetful(scene.world.clone(), Arc::default());
    let tools = || {
        let keys = key("k1", 7).max_lifetime(90 * day);
        let tokens =
            ApprovalTokens::new(keys, "https://agent.example", store.clone()).lifetime(90 * day);
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund"))
            .tokens(tokens)
    };
    let first = held(&scene.start(&tools()).await);
    // Some time later the question is listed again, with a token that counts for longer.
    scene.world.clock.advance(60 * day);
    let second = held(&resume(&scene, &tools(), &first, vec![]).await);
    assert_eq!(first.asked[0].id, second.asked[0].id);
    resume(&scene, &tools(), &first, vec![first.approve(0)]).await;
    assert_eq!(log.lines(), ["refund 1"]);
    for days in [29, 4, 40, 16] {
        scene.world.clock.advance(days * day);
        resume(&scene, &tools(), &second, vec![second.approve(0)]).await;
        assert_eq!(log.lines(), ["refund 1"], "ran twice");
    }
}

paced!(what_a_layer_changed_can_only_be_approved_where_the_question_is_recorded);
async fn what_a_layer_changed_can_only_be_approved_where_the_question_is_recorded() {
    let (log, store) = (Log::default(), Memory::new());
    let tools = || {
        tools(&log, &store).layer(crate::common::hook(|mut call: ToolCall| {
            let text = call.arguments().as_str().replace('1', "2");
            call.set_arguments(Arguments::new(text));
            crate::common::Hook::Call(call)
        }))
    };
    let (scene, first) = suspended(&tools(), vec![("refund", r#"{"n":1}"#)]).await;
    let approve = vec![first.approve(0)];
    let ran = resume(&scene, &tools(), &first, approve).await;
    assert!(log.lines().is_empty());
    assert_eq!(*ran.outcome(), Outcome::Interrupted);
    let second = held(&ran);
    assert!(!second.asked[0].metadata.contains_key("token"));
    let approve = vec![Reply::approve(second.asked[0].id.clone())];
    let ran = resume(&scene, &tools(), &second, approve).await;
    assert!(log.lines().is_empty());
    let (status, text) = ran.result("call-0-0");
    assert_eq!(status, ToolStatus::Denied);
    assert!(text.contains("approval-invalid"), "{text}");
}
