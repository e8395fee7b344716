//! Replies of operators.

use super::*;
use concentric_core::{
    Context, ErrorKind, EventStream, Reply,
    store::{RunKey, RunStatus, RunStore},
};
use std::time::Duration;

/// The status of the run `r`.
async fn status(site: &Site) -> RunStatus {
    let (thread, run) = ("t".to_owned(), "r".to_owned());
    let found = site.store.find_by_client_id(
        Tenant::default(),
        concentric_core::ThreadId::new(thread),
        concentric_core::RunId::new(run),
    );
    found.await.unwrap().status
}

/// Posts the form that has this decision, with a field, and follows the run to its end.
async fn decide(decision: &str, field: Option<(&str, &str)>) -> (Site, String) {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    let mut form = Form::deciding(&page, decision);
    if let Some((name, value)) = field {
        form.set(name, value);
    }
    let answer = site.post(&ann, &form).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert_eq!(
        answer.headers["location"],
        "/console/run?tenant=&thread=t&run=r"
    );
    let events = site.follow(&ann).await;
    assert_eq!(status(&site).await, RunStatus::Ended);
    assert!(site.page(&ann, "/approvals").await.contains("No run waits"));
    (site, events)
}

#[tokio::test]
async fn an_approval_resumes_the_run() {
    let (site, events) = decide("approve", None).await;
    assert_eq!(*site.paid.lock().unwrap(), [r#"{"amount":5}"#]);
    assert!(events.contains("[Done: paid"), "{events}");
    assert!(site.page(&all("ann"), RUN).await.contains("[Done: paid"));
}

#[tokio::test]
async fn a_reply_states_the_operator() {
    let mut site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let (sender, mut replies) = tokio::sync::mpsc::unbounded_channel();
    let probe = service_fn(move |request: ChatRequest| {
        let taken = request.resume.and_then(|resume| resume.take());
        sender.send(taken.unwrap().1).unwrap();
        async { Err::<ChatResponse<EventStream>, _>(Error::new(ErrorKind::Server, "no")) }
    });
    site.console = site.console.replies(probe);
    let ann = all("ann");
    let form = Form::deciding(&site.page(&ann, "/approvals").await, "approve");
    site.post(&ann, &form).await;
    let replies = replies.recv().await.unwrap();
    assert_eq!(replies[0].by.as_deref(), Some("ann"));
}

#[tokio::test]
async fn a_denial_tells_the_model_its_reason() {
    let (site, events) = decide("deny", Some(("reason", " too much "))).await;
    assert!(site.paid.lock().unwrap().is_empty());
    assert!(
        events.contains("[Denied: ") && events.contains("too much"),
        "{events}"
    );
    let (site, _) = decide("deny", Some(("reason", ""))).await;
    assert!(site.paid.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_edited_call_runs_with_its_arguments() {
    let (site, _) = decide("edit", Some(("arguments", r#"{"amount": 4}"#))).await;
    assert_eq!(*site.paid.lock().unwrap(), [r#"{"amount":4}"#]);
}

#[tokio::test]
async fn a_supplied_result_replaces_the_call() {
    let (site, events) = decide("answer", Some(("result", "by cheque"))).await;
    assert!(site.paid.lock().unwrap().is_empty());
    assert!(events.contains("by cheque"), "{events}");
}

#[tokio::test]
async fn a_dismissed_call_does_not_run() {
    let (site, _) = decide("cancel", None).await;
    assert!(site.paid.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_invalid_reply_leaves_the_question_open() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    let edit = Form::deciding(&page, "edit");
    for arguments in ["", "{", "[]", "5", "{\"a\": 1} x"] {
        let answer = site
            .post(&ann, &edit.clone().and("arguments", arguments))
            .await;
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    for decision in ["", "other"] {
        let answer = site
            .post(&ann, &edit.clone().and("decision", decision))
            .await;
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    assert_eq!(status(&site).await, RunStatus::Suspended);
    assert!(site.paid.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_decision_that_the_gate_excludes_is_not_offered() {
    let model = Model::pays(&json!({"amount": 5}));
    let site = Site::with(model, |tools| tools.gate(Approval::for_tools(["pay"])));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    assert!(!page.contains("value=\"edit\"") && !page.contains("value=\"answer\""));
    let form = Form::deciding(&page, "approve").and("arguments", "{}");
    let answer = site.post(&ann, &form.and("decision", "edit")).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert_eq!(status(&site).await, RunStatus::Suspended);
}

#[tokio::test]
async fn the_second_of_two_operators_is_told() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let (ann, bob) = (all("ann"), all("bob"));
    let (of_ann, of_bob) = (
        site.page(&ann, "/approvals").await,
        site.page(&bob, "/approvals").await,
    );
    let (approve, deny) = (
        Form::deciding(&of_ann, "approve"),
        Form::deciding(&of_bob, "deny"),
    );
    // At once: one of them claims the run.
    let (first, second) = tokio::join!(site.post(&ann, &approve), site.post(&bob, &deny));
    let mut answers = [first, second];
    answers.sort_by_key(|answer| answer.status);
    let [first, second] = answers;
    assert_eq!((first.status, second.status), (303, 409), "{}", second.body);
    assert!(
        second.body.contains("has been answered already"),
        "{}",
        second.body
    );
    site.follow(&ann).await;
    // And later.
    let late = site.post(&ann, &approve).await;
    assert_eq!(late.status, 409, "{}", late.body);
    assert!(late.body.contains("has been answered already"));
    assert!(site.paid.lock().unwrap().len() <= 1);
}

#[tokio::test]
async fn an_approval_does_not_resume_a_newer_run_that_asks_under_the_same_id() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let ann = all("ann");
    let form = Form::deciding(&site.page(&ann, "/approvals").await, "approve");
    let thread = || concentric_core::ThreadId::new("t");
    let run = || concentric_core::RunId::new("r");
    let key = site
        .store
        .find_by_client_id(Tenant::default(), thread(), run());
    let older = site.store.get(key.await.unwrap().key).await.unwrap();
    let question = older.state.interrupts()[0].id.clone();
    let newer = concentric_core::RunId::new("s");
    let key = RunKey::new(Tenant::default(), thread(), newer.clone());
    let (asked, state, lease) = (older.key, older.state, std::time::Duration::from_secs(60));
    let begun = RunStore::begin(&site.store, key.clone(), newer, state.clone().into(), lease);
    let fence = begun.await.unwrap();
    site.store.suspend(key, fence, state.into()).await.unwrap();
    let answer = site.post(&ann, &form).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    // Nor one that asks after the form was checked.
    let mut context = Context::builder().thread_id(thread()).build();
    context.extensions_mut().insert(Tenant::default());
    context.extensions_mut().insert(asked);
    let request = ChatRequest::replying(vec![Reply::approve(question)]).with_context(context);
    let error = site.agent.clone().oneshot(request).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(site.paid.lock().unwrap().is_empty());
    assert_eq!(status(&site).await, RunStatus::Suspended);
}

#[tokio::test]
async fn questions_that_belong_together_have_one_form() {
    let (one, two) = (json!({"amount": 1}), json!({"amount": 2}));
    let site = Site::with(Model::calls(&[&one, &two]), Toolset::all_at_once);
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    let form = Form::with(&page, "<fieldset>");
    let mut fields = Vec::new();
    let mut decisions = ["approve", "deny"].into_iter();
    for (name, value) in form.fields {
        let is_last = name == "digest";
        fields.push((name, value));
        if is_last {
            fields.push(("decision".to_owned(), decisions.next().unwrap().to_owned()));
            fields.push(("reason".to_owned(), "no".to_owned()));
        }
    }
    let action = form.action;
    let answer = site.post(&ann, &Form { action, fields }).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    site.follow(&ann).await;
    assert_eq!(*site.paid.lock().unwrap(), [r#"{"amount":1}"#]);
}

#[tokio::test]
async fn a_reply_needs_both_rights() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let page = site.page(&all("ann"), "/approvals").await;
    let form = Form::deciding(&page, "approve");
    let ann = || Operator::new("ann", [Tenant::default()]);
    for operator in [ann(), ann().content(), ann().decide(), ann().cancel()] {
        let page = site.page(&operator, "/approvals").await;
        assert!(!page.contains("<form"), "{page}");
        assert_eq!(site.post(&operator, &form).await.status, 403);
    }
    assert_eq!(status(&site).await, RunStatus::Suspended);
}

#[tokio::test]
async fn a_run_is_cancelled_by_those_who_may() {
    let site = Site::new(Model::writes("Hello.").endless());
    let run = site.start_endless("", "r").await;
    let ann = all("ann");
    let form = Form::with(&site.page(&ann, RUN).await, "Cancel the run");
    let viewer = Operator::new("ann", [Tenant::default()]).content().decide();
    assert!(!site.page(&viewer, RUN).await.contains("Cancel the run"));
    assert_eq!(site.post(&viewer, &form).await.status, 403);
    assert_eq!(site.post(&ann, &form).await.status, 303);
    let events = site.follow(&ann).await;
    assert!(events.contains("cancelled: user"), "{events}");
    assert_eq!(site.post(&ann, &form).await.status, 409);
    drop(run);
}

#[tokio::test]
async fn a_decision_is_stored_for_further_calls() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    for decision in ["approve", "deny"] {
        let label = format!("<label for=\"{decision}-for-");
        assert!(page.contains(&label), "{page}");
    }
    // It needs a right of its own.
    let without = Operator::new("ann", [Tenant::default()]);
    let without = without.content().decide();
    let plain = site.page(&without, "/approvals").await;
    assert!(!plain.contains("Further calls"), "{plain}");
    let form = Form::deciding(&plain, "approve").and("remember", "tool-thread");
    assert_eq!(site.post(&without, &form).await.status, 403);
    assert_eq!(status(&site).await, RunStatus::Suspended);
    let form = Form::deciding(&page, "approve");
    let answer = site.post(&ann, &form.clone().and("remember", "all")).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    let answer = site.post(&ann, &form.and("remember", "tool-thread")).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    site.follow(&ann).await;
    // The next call of this conversation runs without a question.
    let events = site.start("", "next").await;
    assert!(events.contains("[Done: paid"), "{events}");
    assert_eq!(site.paid.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn the_strictest_gate_limits_the_further_calls() {
    let site = Site::with(Model::pays(&json!({"amount": 5})), |tools| {
        tools.gate(Approval::for_tools(["pay"]).remember_at_most(
            concentric_core::interrupt::ScopeCalls::Arguments,
            concentric_core::interrupt::ScopeLifetime::Thread,
        ))
    });
    site.start("", "r").await;
    let page = site.page(&all("ann"), "/approvals").await;
    assert!(page.contains("\"arguments-thread\""), "{page}");
    assert!(!page.contains("\"tool-thread\""), "{page}");
    assert!(!page.contains("\"arguments-always\""), "{page}");
    let form = Form::deciding(&page, "approve").and("remember", "tool-always");
    let answer = site.post(&all("ann"), &form).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert_eq!(status(&site).await, RunStatus::Suspended);
}

#[tokio::test]
async fn a_quarantined_run_is_released_by_those_who_may() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let waiting = site.store.list_waiting(Tenant::default(), 1).await.unwrap();
    let record = site.store.get(waiting[0].key.clone()).await.unwrap();
    let claimed = site.store.claim(record, Vec::new(), Duration::ZERO);
    claimed.await.unwrap();
    for _ in 0..concentric_core::store::MAX_TAKEOVERS {
        let claimed = site.store.claim_abandoned(1, Duration::ZERO).await;
        assert_eq!(claimed.unwrap().len(), 1);
    }
    assert_eq!(status(&site).await, RunStatus::Quarantined);
    let ann = all("ann");
    let page = site.page(&ann, RUN).await;
    assert!(page.contains("badge quarantined"), "{page}");
    let form = Form::with(&page, "Release the run");
    let without = Operator::new("ann", [Tenant::default()]).content();
    let page = site.page(&without, RUN).await;
    assert!(!page.contains("Release the run"), "{page}");
    assert_eq!(site.post(&without, &form).await.status, 403);
    // The token of another form of the same run.
    let cancel = form.clone();
    let mut other = cancel;
    other.action = "/console/run/cancel".to_owned();
    assert_eq!(site.post(&ann, &other).await.status, 403);
    assert_eq!(status(&site).await, RunStatus::Quarantined);
    assert_eq!(site.post(&ann, &form).await.status, 303);
    assert_eq!(status(&site).await, RunStatus::Abandoned);
    assert_eq!(site.post(&ann, &form).await.status, 409);
}
