//! Sessions whose conversations are stored, their health, idle end, forks and context budget.

use crate::thread_store::Threads;
use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Error, ErrorKind, Event, Outcome, Reply, ThreadId,
    ToolOutcome,
    state::{Durable, Scope, Slot, StoredSlot},
    store::Tenant,
};
use concentric_layers::session::{ContextBudget, MakeSession, Session, SessionTarget};
use concentric_test::{ScriptedModel, ScriptedTools};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_test::task::spawn;
use tower::{Layer, ServiceExt, service_fn};

struct Count;

impl Slot for Count {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/count";
    const SCOPE: Scope = Scope::Thread;
}

fn agent(model: &ScriptedModel, tools: &ScriptedTools) -> BoxModel {
    BoxModel::new(AgentLayer::new(tools.clone()).layer(model.clone()))
}

fn talker() -> BoxModel {
    agent(
        &ScriptedModel::new().text("Yes.").repeat(),
        &ScriptedTools::new(),
    )
}

fn counting() -> ScriptedTools {
    ScriptedTools::new().tool("count", |call| async move {
        call.context.update_state::<Count>(|n| n + 1).unwrap();
        ToolOutcome::done("counted")
    })
}

fn target(thread: &str) -> SessionTarget {
    SessionTarget::new(ThreadId::new(thread))
}

async fn open(sessions: MakeSession<BoxModel>) -> Session<BoxModel> {
    sessions.oneshot(target("t")).await.unwrap()
}

async fn say(session: &Session<BoxModel>, text: &'static str) -> Result<Answer, Error> {
    send(session, session.user(text)).await
}

async fn send(session: &Session<BoxModel>, request: ChatRequest) -> Result<Answer, Error> {
    let response = session.clone().oneshot(request).await?;
    Ok(response.collect().await?)
}

fn approving(session: &Session<BoxModel>) -> ChatRequest {
    let asked = session.interrupts().into_iter();
    session.replying(asked.map(|asked| Reply::approve(asked.id)).collect())
}

fn count(slots: &[StoredSlot]) -> Option<&serde_json::Value> {
    slots.iter().map(|slot| &slot.value).next()
}

#[tokio::test]
async fn s080_a_session_continues_a_stored_conversation() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let model = ScriptedModel::new()
            .tool_call("count", json!({}))
            .then()
            .text("One.");
        let sessions = MakeSession::new(agent(&model, &counting())).store(store.clone());
        let first = open(sessions).await;
        say(&first, "count").await.unwrap();
        assert_eq!(
            (first.history().len(), count(&store.get("t").unwrap().slots)),
            (3, Some(&json!(1)))
        );
        // The process ends in the second turn.
        let never = ScriptedModel::new().text("I ").never();
        first
            .set_agent(agent(&never, &ScriptedTools::new()))
            .unwrap();
        let turn = first.clone().oneshot(first.user("and?")).await.unwrap();
        drop((turn, first));

        let model = ScriptedModel::new()
            .tool_call("count", json!({}))
            .then()
            .text("Two.");
        let seen = Arc::new(Mutex::new(0));
        let seen_by_start = Arc::clone(&seen);
        let sessions = MakeSession::new(agent(&model, &counting()))
            .store(store.clone())
            .on_start(move |target| {
                *seen_by_start.lock().unwrap() = target.history.len();
                async { Ok(()) }
            });
        let second = open(sessions).await;
        assert_eq!((second.history().len(), *seen.lock().unwrap()), (3, 3));
        say(&second, "count").await.unwrap();
        assert_eq!(second.history().len(), 6);
        assert_eq!(count(&store.get("t").unwrap().slots), Some(&json!(2)));
    }
}

#[tokio::test]
async fn a_suspended_turn_is_resumed_by_another_session_once() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let make = |tools: &ScriptedTools| {
            let model = ScriptedModel::new()
                .tool_call("pay", json!({}))
                .then()
                .text("Paid.");
            MakeSession::new(agent(&model, tools)).store(store.clone())
        };
        let tools = ScriptedTools::new().asks("pay", "done");
        let first = open(make(&tools)).await;
        let asked = say(&first, "pay").await.unwrap();
        assert_eq!(asked.finish.outcome, Outcome::Interrupted);
        drop(first);

        let paid = ScriptedModel::new().text("Paid.");
        let resuming = || MakeSession::new(agent(&paid, &tools)).store(store.clone());
        let (second, third) = (open(resuming()).await, open(resuming()).await);
        assert_eq!(
            (second.interrupts().len(), third.interrupts().len()),
            (1, 1)
        );
        let answer = send(&second, approving(&second)).await.unwrap();
        assert_eq!((answer.text(), tools.done()), ("Paid.".into(), 1));
        // The third was opened before the second has resumed the turn.
        let error = send(&third, approving(&third)).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Conflict, Some("thread_moved"))
        );
        assert_eq!(tools.done(), 1);
        let fourth = open(resuming()).await;
        assert_eq!((fourth.history().len(), fourth.interrupts().len()), (3, 0));
    }
}

#[tokio::test]
async fn a_turn_that_another_process_resumes_keeps_its_changes_of_slots() {
    let store = Threads::new(false);
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let first = MakeSession::new(agent(&model, &counting().asks("pay", "done")));
    let first = open(first.store(store.clone())).await;
    let asked = say(&first, "count, then pay").await.unwrap();
    assert_eq!(asked.finish.outcome, Outcome::Interrupted);
    assert_eq!(count(&store.get("t").unwrap().slots), None);
    drop(first);

    // Nothing reads the slot before the turn ends.
    let paid = ScriptedModel::new().text("Paid.");
    let tools = ScriptedTools::new().asks("pay", "done");
    let second = MakeSession::new(agent(&paid, &tools)).store(store.clone());
    let second = open(second).await;
    let answer = send(&second, approving(&second)).await.unwrap();
    assert_eq!((answer.text(), tools.done()), ("Paid.".into(), 1));
    assert_eq!(count(&store.get("t").unwrap().slots), Some(&json!(1)));
    assert_eq!(count(&second.slots().snapshot().unwrap()), Some(&json!(1)));
}

#[tokio::test]
async fn a_stored_fork_continues_the_session_of_its_origin() {
    let store = Threads::new(false);
    let sessions = MakeSession::new(talker()).store(store.clone());
    let session = open(sessions.clone()).await;
    say(&session, "hi").await.unwrap();
    session.fork(ThreadId::new("fork")).await.unwrap();
    let seen = Arc::new(Mutex::new(None));
    let inner = talker();
    let seen_by_agent = Arc::clone(&seen);
    let agent = BoxModel::new(service_fn(move |request: ChatRequest| {
        *seen_by_agent.lock().unwrap() = request.context.session_id().cloned();
        inner.clone().oneshot(request)
    }));
    let fork = MakeSession::new(agent).store(store).oneshot(target("fork"));
    say(&fork.await.unwrap(), "hi").await.unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(ThreadId::new("t")));
}

#[tokio::test]
async fn a_suspended_turn_shares_the_stored_history() {
    let store = Threads::new(false);
    let model = ScriptedModel::new()
        .text("Yes.")
        .then()
        .tool_call("pay", json!({}));
    let tools = ScriptedTools::new().asks("pay", "done");
    let session = open(MakeSession::new(agent(&model, &tools)).store(store.clone())).await;
    say(&session, "hi").await.unwrap();
    say(&session, "pay").await.unwrap();
    let stored = store.get("t").unwrap();
    let (state, _) = stored.suspended.unwrap();
    // The stored turns and the new one are one list again.
    assert_eq!((stored.history.len(), state.transcript().len()), (2, 3));
    assert!(state.transcript().extends(&stored.history));
}

#[tokio::test]
async fn of_two_sessions_of_one_conversation_the_later_fails_and_ends() {
    let store = Threads::new(true);
    let sessions = MakeSession::new(talker()).store(store.clone());
    let (one, two) = (open(sessions.clone()).await, open(sessions.clone()).await);
    say(&one, "hi").await.unwrap();
    let error = say(&two, "hi").await.unwrap_err();
    assert_eq!(error.code(), Some("thread_moved"));
    assert!(two.has_ended());
    assert_eq!(
        say(&two, "hi").await.unwrap_err().code(),
        Some("session_ended")
    );
    assert_eq!(store.get("t").unwrap().history.len(), 2);
    say(&open(sessions).await, "again").await.unwrap();
    assert_eq!(store.get("t").unwrap().history.len(), 4);
}

#[tokio::test]
async fn a_turn_that_cannot_be_stored_fails_as_its_last_item() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let session = open(MakeSession::new(talker()).store(store.clone())).await;
        store.fail_next();
        let body = session
            .clone()
            .oneshot(session.user("hi"))
            .await
            .unwrap()
            .body;
        let items: Vec<_> = body.collect().await;
        let finishes = |item: &Result<Event, Error>| item.as_ref().is_ok_and(Event::is_finish);
        assert!(!items.iter().any(finishes));
        let error = items.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.code(), Some("store_failed"));
        assert_eq!((session.history().len(), session.turns()), (0, 0));
        say(&session, "hi").await.unwrap();
        assert_eq!(store.get("t").unwrap().history.len(), 2);
        // Opening fails, too.
        store.fail_next();
        let sessions = MakeSession::new(talker()).store(store);
        assert!(sessions.oneshot(target("t")).await.is_err());
    }
}

#[tokio::test]
async fn tenants_do_not_share_conversations() {
    let sessions = MakeSession::new(talker()).store(Threads::new(false));
    let of = |tenant: &'static str| target("t").with_tenant(Tenant(tenant.into()));
    let a = sessions.clone().oneshot(of("a")).await.unwrap();
    say(&a, "hi").await.unwrap();
    let b = sessions.clone().oneshot(of("b")).await.unwrap();
    assert_eq!(b.history().len(), 0);
    let request = a.user("hi");
    assert_eq!(
        request.context.extensions().get(),
        Some(&Tenant("a".into()))
    );
    assert_eq!(sessions.oneshot(of("a")).await.unwrap().history().len(), 2);
}

#[tokio::test]
async fn every_run_of_a_session_belongs_to_its_tenant() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let inner = talker();
    let agent = BoxModel::new(service_fn(move |request: ChatRequest| {
        let tenant = request.context.extensions().get::<Tenant>();
        log.lock().unwrap().push(tenant.cloned());
        inner.clone().oneshot(request)
    }));
    // Without a store, and with a request that the session has not made.
    let session = MakeSession::new(agent);
    let session = session.oneshot(target("t").with_tenant(Tenant("a".into())));
    let session = session.await.unwrap();
    let fork = session.fork(ThreadId::new("u")).await.unwrap();
    for session in [&session, &fork] {
        let answer = session.clone().oneshot(ChatRequest::user("hi")).await;
        answer.unwrap().collect().await.unwrap();
        say(session, "hi").await.unwrap();
    }
    let expected = vec![Some(Tenant("a".into())); 4];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn the_agent_that_is_replaced_may_use_the_session_when_it_is_dropped() {
    struct Uses(Arc<Mutex<Option<Session<Dropped>>>>);
    impl Drop for Uses {
        fn drop(&mut self) {
            if let Some(session) = &*self.0.lock().unwrap() {
                session.history();
            }
        }
    }
    type Dropped = Option<Arc<Uses>>;
    let slot = Arc::new(Mutex::new(None));
    let sessions = MakeSession::new(Some(Arc::new(Uses(Arc::clone(&slot)))));
    let session = sessions.oneshot(target("t")).await.unwrap();
    *slot.lock().unwrap() = Some(session.clone());
    session.set_agent(None).unwrap();
    slot.lock().unwrap().take();
}

#[tokio::test(start_paused = true)]
async fn health_reports_turns_and_idle_time() {
    let never = ScriptedModel::new().never().repeat();
    let sessions = MakeSession::new(agent(&never, &ScriptedTools::new())).queue(1);
    let session = open(sessions).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(
        (session.is_active(), session.turns(), session.has_ended()),
        (false, 0, false)
    );
    assert_eq!(session.idle(), Some(Duration::from_secs(3)));
    let mut active = spawn(session.clone().oneshot(session.user("hi")));
    let mut queued = spawn(session.clone().oneshot(session.user("hi")));
    assert!(active.poll().is_pending());
    assert!(queued.poll().is_pending());
    assert_eq!(
        (session.is_active(), session.turns(), session.idle()),
        (true, 2, None)
    );
    drop((active, queued));
    assert_eq!(session.idle(), Some(Duration::ZERO));
    session.close();
    assert!(session.has_ended());
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_ends_and_an_active_one_does_not() {
    let ended = Arc::new(Mutex::new(0));
    let ends = Arc::clone(&ended);
    let never = ScriptedModel::new().never().repeat();
    let sessions = MakeSession::new(agent(&never, &ScriptedTools::new()))
        .end_when_idle(Duration::from_secs(10))
        .on_end(move |_| *ends.lock().unwrap() += 1);
    let session = open(sessions.clone()).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let mut turn = spawn(session.clone().oneshot(session.user("hi")));
    assert!(turn.poll().is_pending());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!session.has_ended());
    drop(turn);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!session.has_ended());
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(session.has_ended());
    assert_eq!(*ended.lock().unwrap(), 1);
    let error = say(&session, "hi").await.unwrap_err();
    assert_eq!(error.code(), Some("session_ended"));

    // A session that is dropped ends at once, and its task with it.
    drop(open(sessions.clone()).await);
    assert_eq!(*ended.lock().unwrap(), 2);
    let tasks = tokio::runtime::Handle::current().metrics();
    tokio::task::yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0);
    let zero = open(sessions.clone().end_when_idle(Duration::ZERO)).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(zero.has_ended());
    // With a turn that is active when the task begins.
    let zero = open(sessions.clone().end_when_idle(Duration::ZERO)).await;
    let mut turn = spawn(zero.clone().oneshot(zero.user("hi")));
    assert!(turn.poll().is_pending());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!zero.has_ended());
    drop(turn);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(zero.has_ended());
    let forever = open(sessions.end_when_idle(Duration::MAX)).await;
    tokio::time::sleep(Duration::from_secs(1 << 30)).await;
    assert!(!forever.has_ended());
}

#[test]
fn an_idle_end_requires_a_runtime() {
    let sessions = MakeSession::new(talker()).end_when_idle(Duration::from_secs(1));
    let made = sessions.oneshot(target("t")).now_or_never();
    assert_eq!(made.unwrap().unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn s083_a_fork_can_be_refused_and_changed_before_it_exists() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let forks = Arc::clone(&seen);
        let sessions = MakeSession::new(talker())
            .store(store.clone())
            .on_fork(|target| {
                let refused = target.thread.as_str() == "forbidden";
                async move {
                    tokio::task::yield_now().await;
                    match refused {
                        true => Err("not this one".into()),
                        false => Ok(()),
                    }
                }
            })
            .on_fork(move |target| {
                forks
                    .lock()
                    .unwrap()
                    .push((target.thread.clone(), target.history.len()));
                if target.thread.as_str() == "empty" {
                    target.history = concentric_core::Transcript::new();
                }
                async { Ok(()) }
            });
        let session = open(sessions).await;
        say(&session, "hi").await.unwrap();
        let error = session.fork(ThreadId::new("forbidden")).await.unwrap_err();
        assert_eq!(error.message(), "not this one");
        assert!(store.get("forbidden").is_none());
        assert!(seen.lock().unwrap().is_empty());

        let fork = session.fork(ThreadId::new("fork")).await.unwrap();
        assert_eq!(store.get("fork").unwrap().history.len(), 2);
        say(&fork, "hi").await.unwrap();
        assert_eq!(store.get("fork").unwrap().history.len(), 4);
        assert_eq!(store.get("t").unwrap().history.len(), 2);
        let empty = session.fork(ThreadId::new("empty")).await.unwrap();
        assert_eq!(empty.history().len(), 0);
        let taken = session.fork(ThreadId::new("fork")).await.unwrap_err();
        assert_eq!(taken.code(), Some("thread_moved"));
        session.close();
        let ended = session.fork(ThreadId::new("late")).await.unwrap_err();
        assert_eq!(ended.code(), Some("session_ended"));
    }
}

#[tokio::test]
async fn s084_a_switch_of_the_model_derives_the_context_budget_anew() {
    /// An agent, and the context window of its model.
    type Sized = (u64, Arc<Mutex<Vec<Option<u64>>>>);
    fn agent((window, seen): &Sized) -> BoxModel {
        let (_, seen) = (window, Arc::clone(seen));
        let inner = talker();
        BoxModel::new(service_fn(move |request: ChatRequest| {
            let budget = request.context.capability::<ContextBudget>();
            seen.lock().unwrap().push(budget.map(|budget| budget.0));
            inner.clone().oneshot(request)
        }))
    }
    let seen = Arc::default();
    let windows = Arc::new(Mutex::new(128_000));
    let current = Arc::clone(&windows);
    let sessions = MakeSession::new(agent(&(128_000, Arc::clone(&seen))))
        .context_budget(move |_| *current.lock().unwrap() - 8_000);
    let session = open(sessions).await;
    assert_eq!(session.context_budget(), Some(120_000));
    say(&session, "hi").await.unwrap();
    *windows.lock().unwrap() = 16_000;
    // Only a switch derives it.
    assert_eq!(session.context_budget(), Some(120_000));
    session
        .set_agent(agent(&(16_000, Arc::clone(&seen))))
        .unwrap();
    assert_eq!(session.context_budget(), Some(8_000));
    say(&session, "hi").await.unwrap();
    let fork = session.fork(ThreadId::new("fork")).await.unwrap();
    say(&fork, "hi").await.unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        [Some(120_000), Some(8_000), Some(8_000)]
    );

    let without = open(MakeSession::new(agent(&(0, Arc::clone(&seen))))).await;
    say(&without, "hi").await.unwrap();
    assert_eq!(
        (without.context_budget(), seen.lock().unwrap().last()),
        (None, Some(&None))
    );
}
