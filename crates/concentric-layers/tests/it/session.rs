//! Conversations: turns one by one, and what the next one goes on with.

use concentric_core::{
    AgentLayer, Answer, BoxError, BoxModel, CancelReason, ChatRequest, Error, ErrorKind, Event,
    Interrupt, Outcome, Reply, SideEffects, Suspension, ThreadId, ToolCall, ToolOutcome, ToolSpec,
    agent::{StepDecision, StepDraft, StepGate},
    state::{Durable, Scope, Slot, Slots},
};
use concentric_layers::session::{MakeSession, Session, SessionTarget};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, Spurious, drop_at_each_wait, tools::question, watched,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_test::task::spawn;
use tower::{Layer, ServiceExt, service_fn};

fn agent(model: &ScriptedModel, tools: &ScriptedTools) -> BoxModel {
    BoxModel::new(AgentLayer::new(tools.clone()).layer(model.clone()))
}

fn talker() -> ScriptedModel {
    ScriptedModel::new().text("Yes.").repeat()
}

async fn open(sessions: MakeSession<BoxModel>) -> Session<BoxModel> {
    let target = SessionTarget::new(ThreadId::new("t"));
    sessions.oneshot(target).await.unwrap()
}

async fn session(model: &ScriptedModel) -> Session<BoxModel> {
    open(MakeSession::new(agent(model, &ScriptedTools::new()))).await
}

async fn say(session: &Session<BoxModel>, text: &'static str) -> Result<Answer, Error> {
    let response = session.clone().oneshot(session.user(text)).await?;
    Ok(response.collect().await?)
}

#[tokio::test]
async fn each_turn_goes_on_with_what_was_said_before() {
    let model = talker();
    let session = session(&model).await;
    for turns in [2, 4, 6] {
        let answer = say(&session, "Really?").await.unwrap();
        assert_eq!(answer.transcript().unwrap().len(), turns);
        assert_eq!(session.history().len(), turns);
    }
    assert_eq!(model.request(2).transcript.len(), 5);
    assert_eq!(
        model.request(2).context.thread_id(),
        Some(session.thread_id())
    );
}

#[tokio::test]
async fn c122_a_turn_more_than_there_is_room_for_is_refused_at_once() {
    for (queue, code) in [(0, "busy"), (2, "queue_full")] {
        let model = ScriptedModel::new().never().repeat();
        let agent = agent(&model, &ScriptedTools::new());
        let session = open(MakeSession::new(agent).queue(queue)).await;
        let mut turns: Vec<_> = (0..=queue)
            .map(|_| spawn(session.clone().oneshot(session.user("hi"))))
            .collect();
        for turn in &mut turns {
            assert!(turn.poll().is_pending());
        }
        let error = say(&session, "me, too").await.unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Overloaded, Some(code))
        );
        assert_eq!(session.turns(), queue + 1);
        drop(turns);
        assert_eq!(session.turns(), 0);
    }
}

#[tokio::test]
async fn c123_a_cancelled_turn_has_its_outcome_and_the_next_one_begins() {
    let model = ScriptedModel::new().text("I ").never().then().text("Yes.");
    let agent = agent(&model, &ScriptedTools::new());
    let session = open(MakeSession::new(agent).queue(2)).await;
    let first = session.clone().oneshot(session.user("one")).await.unwrap();
    let mut first = Box::pin(first.body);
    while !matches!(first.next().await.unwrap().unwrap(), Event::TextDelta(_)) {}
    let mut second = spawn(session.clone().oneshot(session.user("two")));
    let mut third = spawn(session.clone().oneshot(session.user("three")));
    assert!(second.poll().is_pending());
    assert!(third.poll().is_pending());

    assert_eq!(session.cancel_queued(), 2);
    let error = third.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::Cancelled);
    let mut second = spawn(session.clone().oneshot(session.user("two again")));
    assert!(second.poll().is_pending());

    assert!(session.cancel());
    let Some(Ok(Event::Finish(finish))) = first.next().await else {
        panic!("it has its outcome");
    };
    let reason = CancelReason::User;
    assert_eq!(finish.outcome, Outcome::Aborted { reason });
    let second = second.await.unwrap().collect().await.unwrap();
    assert_eq!(second.text(), "Yes.");
    // What was said of the cancelled one is kept.
    assert_eq!(session.history().len(), 4);
    assert!(!session.cancel());
}

#[tokio::test]
async fn a_turn_that_fails_or_is_dropped_is_as_if_it_had_not_been() {
    let broken = || Error::new(ErrorKind::Server, "broken");
    let model = ScriptedModel::new()
        .error(broken())
        .then()
        .text("I ")
        .error(broken())
        .then()
        .text("I ")
        .never()
        .then()
        .text("Yes.");
    let session = session(&model).await;
    assert_eq!(
        say(&session, "one").await.unwrap_err().kind(),
        ErrorKind::Server
    );
    assert_eq!(
        say(&session, "two").await.unwrap_err().kind(),
        ErrorKind::Server
    );
    let body = session
        .clone()
        .oneshot(session.user("three"))
        .await
        .unwrap();
    drop(body);
    assert_eq!((session.turns(), session.history().len()), (0, 0));
    assert_eq!(say(&session, "four").await.unwrap().text(), "Yes.");
    assert_eq!(model.request(3).transcript.len(), 1);
}

// ---- turns that wait ----

fn payer() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("Paid.")
        .repeat();
    (model, ScriptedTools::new().asks("pay", "done"))
}

#[tokio::test]
async fn a_turn_that_asks_waits_for_replies_and_nothing_else() {
    let (model, tools) = payer();
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    let refused = session.clone().oneshot(session.replying(vec![])).await;
    assert_eq!(refused.unwrap_err().code(), Some("run_not_found"));

    let asked = say(&session, "pay").await.unwrap();
    assert_eq!(asked.finish.outcome, Outcome::Interrupted);
    assert_eq!(
        say(&session, "hello?").await.unwrap_err().code(),
        Some("waiting")
    );
    assert_eq!(
        session.set_agent(agent(&model, &tools)).unwrap_err().code(),
        Some("waiting")
    );

    // A reply to something else changes nothing.
    let wrong = vec![Reply::approve(concentric_core::InterruptId::new("?"))];
    let error = session
        .clone()
        .oneshot(session.replying(wrong))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some("unknown_interrupt"));
    let id = session.interrupts()[0].id.clone();
    let request = session.replying(vec![Reply::approve(id)]);
    let answer = session.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.collect().await.unwrap().text(), "Paid.");
    assert!(session.interrupts().is_empty());
    assert_eq!((tools.done(), session.history().len()), (1, 3));
}

#[tokio::test]
async fn replies_are_taken_once_also_if_the_turn_fails_then() {
    let broken = Error::new(ErrorKind::Server, "broken");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(broken)
        .then()
        .text("Yes.");
    let tools = ScriptedTools::new().asks("pay", "done");
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    say(&session, "pay").await.unwrap();
    let id = session.interrupts()[0].id.clone();
    let again = || session.replying(vec![Reply::approve(id.clone())]);
    let body = session.clone().oneshot(again()).await.unwrap();
    let failed = body.collect().await.unwrap_err();
    assert_ne!(
        Error::from(failed).effects(),
        concentric_core::SideEffects::None
    );
    assert_eq!(tools.done(), 1);
    let refused = session.clone().oneshot(again()).await.unwrap_err();
    assert_eq!(refused.code(), Some("run_not_found"));
    assert_eq!(say(&session, "still there?").await.unwrap().text(), "Yes.");
    assert_eq!(tools.done(), 1);
}

/// Replies yes to all that waits.
async fn approve(session: &Session<BoxModel>) -> Result<Answer, Error> {
    let response = session.clone().oneshot(approving(session)).await?;
    Ok(response.collect().await?)
}

fn approving(session: &Session<BoxModel>) -> ChatRequest {
    let asked = session.interrupts().into_iter();
    let replies: Vec<_> = asked.map(|asked| Reply::approve(asked.id)).collect();
    assert!(!replies.is_empty());
    session.replying(replies)
}

#[tokio::test]
async fn a_reply_whose_turn_is_dropped_before_it_did_anything_can_be_given_again() {
    let (model, tools) = payer();
    // Another layer of the agent is slow, twice.
    let (agent, slow) = (agent(&model, &tools), Arc::new(AtomicUsize::new(2)));
    let slowly = service_fn(move |request: ChatRequest| {
        let hangs = request.resume.is_some()
            && slow
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        let agent = agent.clone();
        async move {
            match hangs {
                true => std::future::pending().await,
                false => agent.oneshot(request).await,
            }
        }
    });
    let session = open(MakeSession::new(BoxModel::new(slowly)).queue(1)).await;
    say(&session, "pay").await.unwrap();
    let asked = session.interrupts();

    let mut hangs = spawn(session.clone().oneshot(approving(&session)));
    assert!(hangs.poll().is_pending());
    assert!(session.interrupts().is_empty());
    drop(hangs);
    assert_eq!(session.interrupts(), asked);
    // The next one that has waited for its place finds the question there.
    let mut hangs = spawn(session.clone().oneshot(approving(&session)));
    assert!(hangs.poll().is_pending());
    let mut next = spawn(session.clone().oneshot(session.user("hello?")));
    assert!(next.poll().is_pending());
    drop(hangs);
    assert_eq!(next.await.unwrap_err().code(), Some("waiting"));

    // The body is dropped before the tool runs.
    let response = session.clone().oneshot(approving(&session)).await.unwrap();
    let mut body = Box::pin(response.body);
    assert!(matches!(body.next().await, Some(Ok(Event::Resumed))));
    drop(body);
    assert_eq!(session.interrupts(), asked);
    assert_eq!(approve(&session).await.unwrap().text(), "Paid.");
    assert_eq!((tools.done(), session.history().len()), (1, 3));
}

#[tokio::test]
async fn a_reply_whose_turn_fails_after_a_tool_that_changes_nothing_can_be_given_again() {
    let broken = Error::new(ErrorKind::Server, "broken");
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .error(broken)
        .then()
        .text("I ")
        .end_early()
        .then()
        .text("Seen.");
    let mut look = ToolSpec::new("look", "", json!({"type": "object"}));
    look.annotations.read_only = true;
    let seen = service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("seen")) });
    let tools = ScriptedTools::new()
        .service(look, seen)
        .waits("look", |call| Suspension::new(vec![question(call)]));
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    say(&session, "look").await.unwrap();
    let asked = session.interrupts();
    for done in [1, 2] {
        let error = approve(&session).await.unwrap_err();
        assert_eq!((error.effects(), tools.done()), (SideEffects::None, done));
        assert_eq!(session.interrupts(), asked);
    }
    assert_eq!(approve(&session).await.unwrap().text(), "Seen.");
    assert_eq!((tools.done(), session.history().len()), (3, 3));
}

/// Asks before the second model call.
struct MayGoOn;

impl StepGate for MayGoOn {
    fn name(&self) -> &str {
        "may_go_on"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let id = step.interrupt_id("may_go_on");
        Ok(match (step.step, step.reply(&id)) {
            (1, None) => StepDecision::ask(Interrupt::new(id, "test:go_on")),
            _ => StepDecision::Continue,
        })
    }
}

#[tokio::test]
async fn a_reply_to_a_gate_whose_turn_is_dropped_or_fails_can_be_given_again() {
    let broken = Error::new(ErrorKind::Server, "broken");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("I ")
        .never()
        .then()
        .error(broken)
        .then()
        .text("Paid.");
    let tools = ScriptedTools::new().answers("pay", "done");
    let agent = AgentLayer::new(tools.clone()).gate(MayGoOn);
    let session = open(MakeSession::new(BoxModel::new(agent.layer(model)))).await;
    say(&session, "pay").await.unwrap();
    let asked = session.interrupts();

    let response = session.clone().oneshot(approving(&session)).await.unwrap();
    let mut body = Box::pin(response.body);
    while !matches!(body.next().await.unwrap().unwrap(), Event::TextDelta(_)) {}
    drop(body);
    assert_eq!(session.interrupts(), asked);

    // What was paid before the question is told of by the error, and is not of this turn.
    let error = approve(&session).await.unwrap_err();
    assert_eq!(error.effects(), SideEffects::Committed);
    assert_eq!(session.interrupts(), asked);

    assert_eq!(approve(&session).await.unwrap().text(), "Paid.");
    assert_eq!((tools.done(), session.history().len()), (1, 3));
}

#[tokio::test]
async fn a_reply_whose_turn_is_dropped_once_its_tool_was_started_is_not_taken_again() {
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let tools = ScriptedTools::new()
        .never("pay")
        .waits("pay", |call| Suspension::new(vec![question(call)]));
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    say(&session, "pay").await.unwrap();
    let request = approving(&session);
    let mut body = Box::pin(session.clone().oneshot(request).await.unwrap().body);
    assert!(matches!(body.next().await, Some(Ok(Event::Resumed))));
    assert!(spawn(body.next()).poll().is_pending());
    assert_eq!(tools.live(), 1);
    drop(body);
    assert!(session.interrupts().is_empty() && !session.give_up());
    assert_eq!(session.history().len(), 0);
}

#[tokio::test]
async fn a_turn_that_a_hook_ends_when_it_is_replied_to_is_in_the_history() {
    use concentric_core::Str;
    use concentric_core::hooks::{self, Flow, Hooks};

    struct Closed(Flow<Str>);
    impl Hooks for Closed {
        fn id(&self) -> &str {
            "closed"
        }
        async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
            Ok(match request.resume {
                Some(_) => self.0.clone(),
                None => Flow::Continue,
            })
        }
    }
    let halted = Outcome::Halted {
        reason: "closed".into(),
    };
    for (flow, outcome, turns) in [
        (Flow::halt("closed"), halted, 2),
        (Flow::answer("Closed."), Outcome::Completed, 3),
    ] {
        let (model, tools) = payer();
        let agent = hooks::run(Arc::new(Closed(flow))).layer(agent(&model, &tools));
        let session = open(MakeSession::new(BoxModel::new(agent))).await;
        say(&session, "pay").await.unwrap();
        let answer = approve(&session).await.unwrap();
        assert_eq!(answer.finish.outcome, outcome);
        assert_eq!((session.history().len(), tools.done()), (turns, 0));
        assert!(session.interrupts().is_empty());
        // The round is closed: the model can be sent it.
        assert_eq!(say(&session, "and now?").await.unwrap().text(), "Paid.");
        assert_eq!(model.request(1).transcript.len(), turns + 1);
    }
}

#[tokio::test]
async fn a_turn_that_waits_can_be_given_up() {
    let (model, tools) = payer();
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    say(&session, "pay").await.unwrap();
    assert!(session.give_up());
    assert!(!session.give_up());
    say(&session, "never mind").await.unwrap();
    assert_eq!((tools.done(), session.history().len()), (0, 2));
}

// ---- the conversation ----

struct Turns;

impl Slot for Turns {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/turns";
    const SCOPE: Scope = Scope::Thread;
}

fn turns(session: &Session<BoxModel>) -> u32 {
    let mut context = concentric_core::Context::new();
    context.set_thread_slots(session.slots().clone());
    *context.state::<Turns>().unwrap()
}

#[tokio::test]
async fn c112_a_fork_goes_on_by_itself() {
    let model = talker();
    let tools = ScriptedTools::new().tool("count", |call| async move {
        call.context.update_state::<Turns>(|n| n + 1).unwrap();
        concentric_core::ToolOutcome::done("counted")
    });
    let counting = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("One more.")
        .then()
        .tool_call("count", json!({}))
        .then()
        .text("One more.");
    let session = open(MakeSession::new(agent(&counting, &tools))).await;
    say(&session, "count").await.unwrap();
    let fork = session.fork(ThreadId::new("fork")).await.unwrap();
    say(&fork, "count").await.unwrap();
    assert_eq!((turns(&session), turns(&fork)), (1, 2));
    assert_eq!((session.history().len(), fork.history().len()), (3, 6));
    fork.set_agent(agent(&model, &tools)).unwrap();
    say(&fork, "and now?").await.unwrap();
    assert_eq!(model.request(0).transcript.len(), 7);
    assert_eq!(model.request(0).context.thread_id(), Some(fork.thread_id()));
    assert_ne!(fork.thread_id(), session.thread_id());
    let session_id = model.request(0).context.session_id().cloned();
    assert_eq!(session_id.as_ref(), Some(session.thread_id()));
    fork.reset().unwrap();
    assert_eq!((fork.history().len(), session.history().len()), (0, 3));
    // What is kept of a conversation is forgotten with it.
    assert_eq!((turns(&fork), turns(&session)), (0, 1));
}

#[tokio::test]
async fn what_a_conversation_was_is_given_when_it_is_opened() {
    let model = talker();
    let first = session(&model).await;
    say(&first, "hi").await.unwrap();
    let target = SessionTarget::new(ThreadId::new("t"))
        .after(first.history())
        .with_slots(Slots::restore(first.slots().snapshot().unwrap()));
    let sessions = MakeSession::new(agent(&model, &ScriptedTools::new()));
    let second = sessions.oneshot(target).await.unwrap();
    say(&second, "again").await.unwrap();
    assert_eq!(second.history().len(), 4);
}

#[tokio::test]
async fn a_start_may_refuse_and_an_end_comes_once() {
    let (model, ended) = (talker(), Arc::new(Mutex::new(Vec::new())));
    let ends = ended.clone();
    let sessions = MakeSession::new(agent(&model, &ScriptedTools::new()))
        .on_start(|target| {
            let known = target.thread.as_str() == "t";
            async move {
                match known {
                    true => Ok(()),
                    false => Err("who is that?".into()),
                }
            }
        })
        .on_end(move |history| ends.lock().unwrap().push(history.len()));
    let stranger = SessionTarget::new(ThreadId::new("?"));
    let error = sessions.clone().oneshot(stranger).await.unwrap_err();
    assert_eq!(error.message(), "who is that?");
    assert!(ended.lock().unwrap().is_empty());

    let session = open(sessions.clone()).await;
    say(&session, "hi").await.unwrap();
    session.close();
    session.close();
    assert_eq!(
        say(&session, "hi").await.unwrap_err().code(),
        Some("session_ended")
    );
    drop(session);
    assert_eq!(*ended.lock().unwrap(), [2]);
    drop(open(sessions).await);
    assert_eq!(*ended.lock().unwrap(), [2, 0]);
}

#[tokio::test]
async fn to_close_a_session_cancels_the_turn_that_runs() {
    let model = ScriptedModel::new().text("I ").never().repeat();
    let session = session(&model).await;
    let turn = session.clone().oneshot(session.user("hi")).await.unwrap();
    session.close();
    let answer = turn.collect().await.unwrap();
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
}

#[tokio::test]
async fn a_turn_that_is_closed_is_in_the_history_at_the_end() {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let ends = ended.clone();
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("It is ")
        .never();
    let sessions = MakeSession::new(agent(&model, &tools))
        .on_end(move |history| ends.lock().unwrap().push(history.len()));
    let session = open(sessions).await;
    let turn = session.clone().oneshot(session.user("pay")).await.unwrap();
    let mut body = turn.body;
    while tools.done() == 0 {
        body.next().await.unwrap().unwrap();
    }
    session.close();
    // The turn runs.
    assert!(ended.lock().unwrap().is_empty());
    while body.next().await.is_some() {}
    assert_eq!(*ended.lock().unwrap(), [session.history().len()]);
    assert!(session.history().len() > 1);
    drop((body, session));
    assert_eq!(ended.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_queued_turn_does_not_hold_up_the_end() {
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = ended.clone();
    let sessions = MakeSession::new(agent(&talker(), &ScriptedTools::new()))
        .queue(1)
        .on_end(move |_| {
            ends.fetch_add(1, Ordering::SeqCst);
        });
    let session = open(sessions).await;
    let _queued = session.clone().oneshot(session.user("hi"));
    session.close();
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_end_that_panics_does_not_keep_the_others_from_theirs() {
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = ended.clone();
    let sessions = MakeSession::new(agent(&talker(), &ScriptedTools::new()))
        .on_end(move |_| {
            ends.fetch_add(1, Ordering::SeqCst);
        })
        .on_end(|_| panic!("it is broken"));
    open(sessions).await.close();
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

// ---- slots and history are of one moment ----

fn counts(outcome: fn() -> ToolOutcome) -> ScriptedTools {
    ScriptedTools::new().tool("count", move |call| async move {
        call.context.update_state::<Turns>(|n| n + 1).unwrap();
        outcome()
    })
}

#[tokio::test]
async fn a_turn_that_failed_leaves_no_trace_in_slots() {
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .error(Error::new(ErrorKind::Server, "it broke"))
        .then()
        .tool_call("count", json!({}))
        .then()
        .text("One.");
    let session = open(MakeSession::new(agent(
        &model,
        &counts(|| ToolOutcome::done("counted")),
    )))
    .await;
    say(&session, "count").await.unwrap_err();
    assert_eq!((session.history().len(), turns(&session)), (0, 0));
    say(&session, "count").await.unwrap();
    assert_eq!((session.history().len(), turns(&session)), (3, 1));
}

#[tokio::test]
async fn a_turn_that_was_dropped_leaves_no_trace_in_slots() {
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("One.")
        .never();
    let tools = counts(|| ToolOutcome::done("counted"));
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    let turn = session.clone().oneshot(session.user("hi")).await.unwrap();
    let mut body = turn.body;
    while tools.done() == 0 {
        body.next().await.unwrap().unwrap();
    }
    // Nothing of the running turn is in a fork, either.
    let fork = session.fork(ThreadId::new("fork")).await.unwrap();
    assert_eq!((fork.history().len(), turns(&fork)), (0, 0));
    assert_eq!((session.history().len(), turns(&session)), (0, 0));
    drop(body);
    assert_eq!((session.history().len(), turns(&session)), (0, 0));
}

#[tokio::test]
async fn a_turn_that_waits_has_its_slots_when_it_continues() {
    let make = || {
        let tools = counts(|| ToolOutcome::done("counted")).asks("pay", "paid");
        let model = ScriptedModel::new()
            .tool_call("count", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
            .tool_call("count", json!({}))
            .then()
            .text("Paid.");
        open(MakeSession::new(agent(&model, &tools)))
    };
    let session = make().await;
    say(&session, "pay").await.unwrap();
    assert_eq!((session.history().len(), turns(&session)), (0, 0));
    approve(&session).await.unwrap();
    assert_eq!(turns(&session), 2);

    let session = make().await;
    say(&session, "pay").await.unwrap();
    assert!(session.give_up());
    assert_eq!((session.history().len(), turns(&session)), (0, 0));
}

#[tokio::test]
async fn what_others_change_in_slots_during_a_turn_is_kept() {
    struct Other;
    impl Slot for Other {
        type Value = u32;
        type Keep = Durable;
        const NAME: &'static str = "test/other";
        const SCOPE: Scope = Scope::Thread;
    }
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("One.");
    let tools = counts(|| ToolOutcome::done("counted"));
    let session = open(MakeSession::new(agent(&model, &tools))).await;
    let mut host = concentric_core::Context::new();
    host.set_thread_slots(session.slots().clone());
    let turn = session.clone().oneshot(session.user("hi")).await.unwrap();
    host.update_state::<Other>(|n| n + 7).unwrap();
    turn.collect().await.unwrap();
    assert_eq!((turns(&session), *host.state::<Other>().unwrap()), (1, 7));
}

// ---- waits ----

#[tokio::test(start_paused = true)]
async fn a_queued_turn_ends_with_the_deadline_of_its_run() {
    let model = ScriptedModel::new().text("I ").never().repeat();
    let session = open(MakeSession::new(agent(&model, &ScriptedTools::new())).queue(2)).await;
    let held = session.clone().oneshot(session.user("hi")).await.unwrap();
    for seconds in [0, 5] {
        let context = concentric_core::Context::new();
        let deadline = context.now() + Duration::from_secs(seconds);
        let context = concentric_core::Context::builder()
            .deadline(deadline)
            .build();
        let late = session.user("and?").with_context(context);
        let error = session.clone().oneshot(late).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
    assert_eq!((session.turns(), model.calls()), (1, 1));
    drop(held);
    drop(session.clone().oneshot(session.user("hi")).await.unwrap());
}

// ---- polls ----

#[tokio::test]
async fn dropped_wherever_it_waits_a_turn_leaves_the_session_idle() {
    let model = ScriptedModel::new()
        .paced(Pace::NextTick)
        .text("Yes.")
        .repeat();
    let session = open(MakeSession::new(agent(&model, &ScriptedTools::new())).queue(1)).await;
    let run = || {
        let session = session.clone();
        async move { tokio::join!(say(&session, "one"), say(&session, "two")) }
    };
    let check = async |_| {
        assert_eq!((session.turns(), model.live()), (0, 0));
        assert_eq!(session.history().len() % 2, 0);
        session.reset().unwrap();
    };
    assert!(drop_at_each_wait(run, check).await > 2);
}

#[test]
fn turns_that_are_polled_for_nothing_are_woken_all_the_same() {
    for pace in Pace::ALL {
        let turns = watched(async move {
            let model = ScriptedModel::new().paced(pace).text("Yes.").repeat();
            let sessions = MakeSession::new(agent(&model, &ScriptedTools::new())).queue(2);
            let session = open(sessions).await;
            let turn = async |text| {
                let call = session.clone().oneshot(session.user(text));
                let answer = Spurious::new(call).await.unwrap();
                Spurious::new(answer.body).count().await
            };
            tokio::join!(turn("one"), turn("two"), turn("three"));
            session.history().len()
        });
        assert_eq!(turns, 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_from_many_tasks_run_one_by_one_and_none_is_lost() {
    let model = talker();
    let agent = agent(&model, &ScriptedTools::new());
    let session = open(MakeSession::new(agent).queue(100)).await;
    let done = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|at| {
            let (session, done) = (session.clone(), done.clone());
            tokio::spawn(async move {
                let response = session.clone().oneshot(session.user("hi")).await.unwrap();
                let mut body = Box::pin(response.body);
                // Some hang up.
                while let Some(event) = body.next().await {
                    event.unwrap();
                    if at % 10 == 0 {
                        return;
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 90);
    assert_eq!(model.most_live(), 1);
    assert_eq!(session.history().len(), 180);
    assert_eq!(session.turns(), 0);
}
