use super::{
    CLIENT_TOOL, Decision, Interrupt, Reply, ReplyError, ReplyKind, ScopeCalls, ScopeLifetime,
    TOOL_CALL, UNKNOWN_EFFECT,
};
use crate::{id::InterruptId, text::Str};
use serde_json::{Value, json};
use std::time::SystemTime;

fn decision(payload: Value) -> Result<Decision, ReplyError> {
    Reply::resolve(InterruptId::new("i"), payload).decision()
}

#[test]
fn a_reply_contains_exactly_one_decision() {
    assert!(matches!(
        decision(json!({"approved": true})),
        Ok(Decision::Approved { edited: None, .. })
    ));
    assert!(matches!(
        decision(json!({"result": null})),
        Ok(Decision::Answered(Value::Null))
    ));
    assert!(matches!(
        decision(json!({"approved": false, "reason": "no"})),
        Ok(Decision::Denied { .. })
    ));
    for wrong in [
        json!({}),
        json!(true),
        json!({"approved": "yes"}),
        json!({"approved": false, "editedArgs": {}}),
        json!({"approved": true, "editedArgs": []}),
        json!({"approved": true, "reason": "no"}),
        json!({"approved": false, "result": 1}),
        json!({"approved": true, "else": 1}),
        json!({"error": "no", "result": 1}),
        json!({"error": "no", "approved": false}),
        json!({"error": {"code": 1}}),
    ] {
        assert!(decision(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn only_client_tools_can_be_reported_as_failed() {
    let id = InterruptId::new("i");
    let reply = Reply::answer_failed(id.clone(), "no camera");
    assert_eq!(reply.decision(), Ok(Decision::Failed("no camera".into())));
    for (reason, fits) in [
        (CLIENT_TOOL, true),
        (TOOL_CALL, false),
        (UNKNOWN_EFFECT, false),
    ] {
        let asked = Interrupt::new(id.clone(), reason);
        let checked = asked.check(&reply, SystemTime::UNIX_EPOCH);
        assert_eq!(checked.is_ok(), fits, "{checked:?}");
    }
}

#[test]
fn late_denials_and_cancellations_are_accepted() {
    let id = InterruptId::new("i");
    let now = SystemTime::UNIX_EPOCH;
    let late = Err(ReplyError::Expired(id.clone()));
    for reason in [TOOL_CALL, CLIENT_TOOL, Str::from_static("other")] {
        let asked = Interrupt::new(id.clone(), reason.clone()).until(now);
        assert_eq!(asked.check(&Reply::cancel(id.clone()), now), Ok(()));
        assert_eq!(asked.check(&Reply::answer(id.clone(), 1), now), late);
        let denied = asked.check(&Reply::deny(id.clone(), "no"), now);
        assert_eq!(denied.is_ok(), reason != *"other", "{reason}");
    }
    let asked = Interrupt::new(id.clone(), TOOL_CALL).until(now);
    assert_eq!(asked.check(&Reply::approve(id), now), late);
}

#[test]
fn a_decision_scope_is_limited_by_the_interrupt() {
    let id = InterruptId::new("i");
    let asked = |schema: Value| {
        Interrupt::new(id.clone(), TOOL_CALL).with_response_schema(json!({"properties": schema}))
    };
    let limited = asked(json!({"remember": {"properties": {
        "what": {"enum": ["arguments"]},
        "for": {"enum": ["run", "thread"]},
    }}}));
    let unlimited = asked(json!({"remember": {"type": "object"}}));
    let silent = asked(json!({}));
    let without = Interrupt::new(id.clone(), TOOL_CALL);
    for (what, span, allowed) in [
        (ScopeCalls::Arguments, ScopeLifetime::Thread, true),
        (ScopeCalls::Arguments, ScopeLifetime::Always, false),
        (ScopeCalls::Tool, ScopeLifetime::Run, false),
    ] {
        for reply in [Reply::approve(id.clone()), Reply::deny(id.clone(), "no")] {
            let reply = reply.remembered(what, span);
            let now = SystemTime::UNIX_EPOCH;
            assert_eq!(limited.check(&reply, now).is_ok(), allowed, "{reply:?}");
            assert_eq!(unlimited.check(&reply, now), Ok(()));
            assert_eq!(without.check(&reply, now), Ok(()));
            let refused = silent.check(&reply, now).unwrap_err();
            assert_eq!(refused.code(), "malformed_reply");
        }
    }
}

#[test]
fn replies_of_unaccepted_kinds_are_rejected() {
    let id = InterruptId::new("i");
    let now = SystemTime::UNIX_EPOCH;
    let all = [
        (ReplyKind::Approve, Reply::approve(id.clone())),
        (ReplyKind::Deny, Reply::deny(id.clone(), "no")),
        (
            ReplyKind::Edit,
            Reply::approve_edited(id.clone(), json!({})),
        ),
        (ReplyKind::Answer, Reply::answer(id.clone(), 1)),
    ];
    for set in 0..16_u8 {
        let in_set = |at: &usize| set & (1 << at) != 0;
        let kinds = (0..4).filter(in_set).map(|at| all[at].0);
        let asked = Interrupt::new(id.clone(), TOOL_CALL).with_replies(kinds);
        for (at, (kind, reply)) in all.iter().enumerate() {
            assert_eq!(reply.decision().unwrap().kind(), Some(*kind));
            assert_eq!(asked.check(reply, now).is_ok(), in_set(&at), "{asked:?}");
        }
        assert_eq!(asked.check(&Reply::cancel(id.clone()), now), Ok(()));
    }
    // Interrupts of older versions accept all kinds; an invalid list accepts none.
    let old = Interrupt::new(id, TOOL_CALL);
    let broken = old.clone().with_metadata("replies", "approve");
    for (_, reply) in &all {
        assert_eq!(old.check(reply, now), Ok(()));
        assert!(broken.check(reply, now).is_err());
    }
}

#[test]
fn a_cancellation_has_no_payload() {
    let mut reply = Reply::cancel(InterruptId::new("i"));
    assert_eq!(reply.decision(), Ok(Decision::Cancelled));
    reply.payload = Some(json!({"approved": true}));
    assert!(reply.decision().is_err());
}

#[test]
fn debug_output_hides_approval_tokens() {
    let id = || InterruptId::new("i-1");
    let interrupt = Interrupt::new(id(), TOOL_CALL)
        .with_metadata("tool", "refund")
        .with_metadata("token", "secret-1");
    let reply = Reply::approve(id()).with_token("secret-2");
    let text = format!("{interrupt:?} {reply:?} {:?}", Reply::approve(id()));
    assert!(!text.contains("secret"), "{text}");
    assert!(
        text.contains("refund") && text.contains(r#""token": [hidden]"#),
        "{text}"
    );
    assert!(
        text.contains("token: Some([hidden])") && text.contains("token: None"),
        "{text}"
    );
}
