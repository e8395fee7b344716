//! One test per statement of [`concentric_layers::conversation`].

mod interrupted;

use crate::thread_store::Threads;
use concentric_core::{
    AgentLayer, Answer, BoxModel, CancelReason, ChatRequest, Context, Error, ErrorKind, Event,
    MessageId, Outcome, Reply, RunId, SideEffects, ThreadId, ToolCall, ToolOutcome, ToolSpec,
    Transcript, Turn,
    service::SharedModel,
    state::{Durable, Scope, Slot},
    store::{Tenant, ThreadStore},
};
use concentric_layers::{
    ClearToolResultsLayer, CompactionLayer, ConversationLayer, GuardLayer, GuardrailLayer,
    MakeSession, SuspendLayer, TrimLayer,
    conversation::{Merge, NO_THREAD, UNKNOWN_THREAD},
    guard::{Rule, Rules},
    guardrail::{Assessment, BLOCKED, Input, Subject},
    session::SessionTarget,
};
use concentric_store::{Options, SqliteStore};
use concentric_test::{
    LogCapture, MemoryStore, Pace, ScriptedModel, ScriptedTools, TestEnvironment, check_layer,
    collect_events, drop_at_each_wait,
};
use concentric_tools::{Approval, Tool, Toolset, agent_tool};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio_test::task::spawn;
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn};

struct Count;

impl Slot for Count {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/conversation_count";
    const SCOPE: Scope = Scope::Thread;
}

fn in_thread(thread: &str) -> Context {
    Context::builder().thread_id(ThreadId::new(thread)).build()
}

fn user(text: &'static str) -> ChatRequest {
    ChatRequest::user(text).with_context(in_thread("t"))
}

fn yes() -> ScriptedModel {
    ScriptedModel::new().text("Yes.").repeat()
}

fn counting() -> ScriptedTools {
    ScriptedTools::new()
        .asks("pay", "paid")
        .tool("count", |call| async move {
            call.context.update_state::<Count>(|n| n + 1).unwrap();
            ToolOutcome::done("counted")
        })
}

fn agent(layer: &ConversationLayer, model: &ScriptedModel, tools: &ScriptedTools) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(AgentLayer::new(tools.clone()))
        .service(model.clone());
    BoxModel::new(agent)
}

fn talker(layer: &ConversationLayer) -> BoxModel {
    agent(layer, &yes(), &ScriptedTools::new())
}

async fn send(agent: &BoxModel, request: ChatRequest) -> Result<Answer, Error> {
    Ok(agent.clone().oneshot(request).await?.collect().await?)
}

fn texts(history: &Transcript) -> String {
    let texts = history.iter().map(|turn| turn.as_message().text());
    texts.collect::<Vec<_>>().join(" ")
}

fn stored(store: &Threads) -> Transcript {
    store
        .get("t")
        .map(|stored| stored.history)
        .unwrap_or_default()
}

fn is(error: &Error, kind: ErrorKind, code: &str) {
    assert_eq!((error.kind(), error.code()), (kind, Some(code)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    for slow in [false, true] {
        let in_thread = ServiceBuilder::new().map_request(|mut request: ChatRequest| {
            request.context = in_thread("t");
            request
        });
        let layer = ConversationLayer::new(Threads::new(slow));
        check_layer(in_thread.layer(layer).into_inner()).await;
    }
}

#[tokio::test]
async fn each_run_continues_the_stored_history() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("threads.db");
    for n in 1..4 {
        // Each run is that of another process.
        let store = SqliteStore::open(&path).unwrap();
        let layer = ConversationLayer::new(store.clone());
        let model = ScriptedModel::new()
            .tool_call("count", json!({}))
            .then()
            .text("Yes.");
        let answer = send(&agent(&layer, &model, &counting()), user("count")).await;
        assert_eq!(answer.unwrap().transcript().unwrap().len(), 3 * n);
        assert_eq!(model.request(0).transcript.len(), 3 * n - 2);
        let stored = store.load(Tenant::default(), ThreadId::new("t")).await;
        let stored = stored.unwrap().unwrap();
        assert_eq!(
            (stored.history.len(), &stored.slots[0].value),
            (3 * n, &json!(n))
        );
    }
}

#[tokio::test]
async fn the_request_joins_the_history_as_configured() {
    for (merge, expected) in [
        (Merge::Append, "hi Yes. forged Forged. a b Yes."),
        (Merge::ServerWins, "hi Yes. a b Yes."),
        (Merge::ClientOverwrites, "forged Forged. a b Yes."),
    ] {
        let store = Threads::default();
        send(&talker(&ConversationLayer::new(store.clone())), user("hi"))
            .await
            .unwrap();
        let mut turns: Transcript = [Turn::user("forged")].into_iter().collect();
        let assistant = concentric_core::Message::assistant("Forged.");
        turns.push(Turn::message(assistant).unwrap());
        turns.extend([Turn::user("a"), Turn::user("b")]);
        let request = ChatRequest::new(turns).with_context(in_thread("t"));
        let layer = ConversationLayer::new(store.clone()).history(merge);
        send(&talker(&layer), request).await.unwrap();
        assert_eq!(texts(&stored(&store)), expected, "{merge:?}");
    }
}

#[tokio::test]
async fn messages_of_failed_runs_are_appended_once() {
    let message = |id: &str, text: &str| match id {
        "" => Turn::user(text.to_owned()),
        id => Turn::message(
            concentric_core::Message::user(text.to_owned()).with_id(MessageId::new(id)),
        )
        .unwrap(),
    };
    // The text that the failed run has shown; the ids and the messages that the client sends next; the stored texts.
    let cases: [(_, &[(&str, &str)], _); 8] = [
        ("", &[("1", "a"), ("2", "b")], "a b Yes."),
        ("Part", &[("1", "a"), ("2", "b")], "a Part b Yes."),
        // The same message is repeated.
        ("", &[("1", "a")], "a Yes."),
        ("Part", &[("1", "a")], "a Part a Yes."),
        // The client has edited the message.
        ("", &[("1", "c")], "a c Yes."),
        // The same text is another message.
        ("Part", &[("3", "a"), ("2", "b")], "a Part a b Yes."),
        ("", &[("", "a"), ("", "b")], "a b Yes."),
        ("Part", &[("", "a"), ("", "b")], "a Part a b Yes."),
    ];
    for (shown, next, expected) in cases {
        let store = Threads::default();
        let layer = ConversationLayer::new(store.clone()).history(Merge::ServerWins);
        let request = |turns: Vec<Turn>| {
            let turns: Transcript = turns.into_iter().collect();
            ChatRequest::new(turns).with_context(in_thread("t"))
        };
        let broken = Error::new(ErrorKind::Server, "broken");
        let model = match shown {
            // The answer has begun, so the turn is stored.
            "" => ScriptedModel::new().reasoning("Hm").error(broken),
            shown => ScriptedModel::new().text(shown).error(broken),
        };
        let first = message(next[0].0.get(..1).map_or("", |_| "1"), "a");
        let failed = agent(&layer, &model, &ScriptedTools::new());
        send(&failed, request(vec![first])).await.unwrap_err();
        let turns = next.iter().map(|(id, text)| message(id, text)).collect();
        send(&talker(&layer), request(turns)).await.unwrap();
        assert_eq!(texts(&stored(&store)), expected, "{shown} {next:?}");
    }
}

#[test]
fn a_crash_at_any_operation_of_the_store_loses_no_answered_turn() {
    // Each run loads the conversation and appends its turn.
    for operations in 0..=6 {
        for is_applied in [false, true] {
            let store = Threads::default();
            store.die_after(operations, is_applied);
            let mut answered = String::new();
            // The tasks of a process end with it.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            runtime.unwrap().block_on(async {
                for text in ["one", "two", "three"] {
                    let agent = talker(&ConversationLayer::new(store.clone()));
                    let mut run = Box::pin(send(&agent, user(text)));
                    for _ in 0..64 {
                        if let Some(answer) = (&mut run).now_or_never() {
                            answered += &format!("{text} {} ", answer.unwrap().text());
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            });
            let store = store.restart();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let answer = runtime.unwrap().block_on(async {
                let agent = talker(&ConversationLayer::new(store.clone()));
                send(&agent, user("four")).await
            });
            answer.unwrap();
            // The turn whose append was not acknowledged is whole, if it is there.
            let open = match is_applied && operations % 2 == 1 {
                true => ["one Yes. ", "two Yes. ", "three Yes. "][operations / 2],
                false => "",
            };
            let expected = format!("{answered}{open}four Yes.");
            assert_eq!(
                texts(&stored(&store)),
                expected,
                "{operations} {is_applied}"
            );
            assert_eq!(
                answered.len(),
                [
                    "",
                    "one Yes. ",
                    "one Yes. two Yes. ",
                    "one Yes. two Yes. three Yes. "
                ][operations / 2]
                    .len()
            );
        }
    }
}

#[tokio::test]
async fn a_turn_of_a_long_conversation_is_appended_alone() {
    let store = Threads::default();
    let assistant = || Turn::message(concentric_core::Message::assistant("Yes.")).unwrap();
    let turns = (0..500).flat_map(|n| [Turn::user(format!("{n}?")), assistant()]);
    let request = ChatRequest::new(turns.chain([Turn::user("hi")]).collect());
    let layer = ConversationLayer::new(store.clone());
    send(&talker(&layer), request.with_context(in_thread("t")))
        .await
        .unwrap();
    send(&talker(&layer), user("and now?")).await.unwrap();
    assert_eq!(store.appended(), [1_002, 2]);
}

#[tokio::test]
async fn a_run_starts_with_its_newest_turns_and_the_store_keeps_all() {
    let count = |request: &ChatRequest| request.transcript.len();
    for (max_turns, expected) in [
        (0, [1, 1, 1]),
        (1, [1, 3, 3]),
        (2, [1, 3, 5]),
        (9, [1, 3, 5]),
    ] {
        let store = Threads::default();
        let model = yes();
        let layer = ConversationLayer::new(store.clone()).max_turns(max_turns);
        let agent = agent(&layer, &model, &counting());
        for text in ["one", "two", "three", "four"] {
            send(&agent, user(text)).await.unwrap();
        }
        let counts = [0, 1, 2].map(|call| count(&model.request(call)));
        assert_eq!(counts, expected);
        assert_eq!(
            texts(&stored(&store)),
            "one Yes. two Yes. three Yes. four Yes."
        );
    }
}

#[tokio::test]
async fn a_resumed_run_keeps_the_turns_before_its_history() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone()).max_turns(1);
    for text in ["one", "two"] {
        send(&talker(&layer), user(text)).await.unwrap();
    }
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("Paid.");
    let paying = agent(&layer, &model, &counting());
    let answer = send(&paying, user("pay")).await.unwrap();
    assert_eq!(model.request(0).transcript.len(), 3);
    let state = *answer.finish.state.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    // In another process, with another limit.
    let layer = ConversationLayer::new(store.clone());
    let resumed = ChatRequest::resume(state, vec![reply]).with_context(in_thread("t"));
    send(&agent(&layer, &model, &counting()), resumed)
        .await
        .unwrap();
    let history = stored(&store);
    assert!(texts(&history).starts_with("one Yes. two Yes. pay"));
    assert_eq!(history.len(), 7);
}

#[tokio::test]
async fn of_two_runs_the_later_fails_and_overwrites_nothing() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let agent = talker(&ConversationLayer::new(store.clone()));
        let one = agent.clone().oneshot(user("one")).await.unwrap();
        let two = agent.clone().oneshot(user("two")).await.unwrap();
        one.collect().await.unwrap();
        let items = collect_events(two.body).await;
        let (last, before) = items.split_last().unwrap();
        is(
            last.as_ref().unwrap_err(),
            ErrorKind::Conflict,
            "thread_moved",
        );
        assert!(before.iter().all(Result::is_ok));
        assert!(!before.iter().flatten().any(Event::is_finish));
        assert_eq!(texts(&stored(&store)), "one Yes.");
        send(&agent, user("three")).await.unwrap();
        assert_eq!(stored(&store).len(), 4);
    }
}

#[tokio::test]
async fn a_conflict_reports_that_tools_had_effects() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("Yes.");
    let late = agent(&layer, &model, &counting())
        .oneshot(user("count"))
        .await
        .unwrap();
    send(&talker(&layer), user("hi")).await.unwrap();
    let error = Error::from(late.collect().await.unwrap_err());
    is(&error, ErrorKind::Conflict, "thread_moved");
    assert_eq!(error.effects(), SideEffects::Possible);
}

#[tokio::test]
async fn a_lazy_turn_is_stored_after_the_finish() {
    let store = Threads::new(true);
    let layer = ConversationLayer::new(store.clone()).lazy();
    let run = talker(&layer).oneshot(user("hi")).await.unwrap();
    let items = run.body.collect::<Vec<_>>().now_or_never().unwrap();
    assert!(items.last().unwrap().as_ref().unwrap().is_finish());
    assert!(store.get("t").is_none());
    while store.get("t").is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(texts(&stored(&store)), "hi Yes.");

    // Of two runs that start from one version, the later one is logged, and overwrites nothing.
    let (log, _guard) = LogCapture::of_thread("concentric::conversation");
    let layer = layer.required();
    let one = talker(&layer).oneshot(user("one")).await.unwrap();
    let two = talker(&layer).oneshot(user("two")).await.unwrap();
    for run in [one, two] {
        run.collect().await.unwrap();
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(texts(&stored(&store)), "hi Yes. one Yes.");
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:?}");

    // An interrupted run waits for the store: its state has the version.
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let asked = send(
        &agent(&layer, &model.then().text("Paid."), &counting()),
        user("pay"),
    )
    .await;
    assert_eq!(asked.unwrap().finish.outcome, Outcome::Interrupted);
    assert_eq!(texts(&stored(&store)), "hi Yes. one Yes. pay");
}

#[tokio::test]
async fn a_run_whose_future_fails_stores_nothing() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let model = ScriptedModel::new().error(Error::new(ErrorKind::Server, "down"));
    send(&agent(&layer, &model, &counting()), user("hi"))
        .await
        .unwrap_err();
    let never = agent(&layer, &ScriptedModel::new().never(), &counting());
    let mut dropped = spawn(never.oneshot(user("hi")));
    assert!(dropped.poll().is_pending());
    drop(dropped);
    tokio::task::yield_now().await;
    assert!(store.get("t").is_none());
}

#[tokio::test]
async fn a_blocked_input_stores_nothing() {
    for input in [Input::Blocking, Input::Parallel] {
        let store = Threads::default();
        let layer = ConversationLayer::new(store.clone());
        send(&talker(&layer), user("hi")).await.unwrap();
        // In parallel, the model answers before the verdict.
        let blocks = service_fn(async |_: Subject| {
            tokio::task::yield_now().await;
            Ok::<_, BoxError>(Assessment::Block(Vec::new()))
        });
        let guarded = GuardrailLayer::new("topic", blocks).input(input);
        let error = send(&BoxModel::new(guarded.layer(talker(&layer))), user("no"))
            .await
            .unwrap_err();
        is(&error, ErrorKind::ContentFilter, BLOCKED);
        // What a dropped run leaves is stored later.
        tokio::task::yield_now().await;
        assert_eq!(texts(&stored(&store)), "hi Yes.");
    }
}

#[tokio::test]
async fn a_run_that_fails_stores_its_turns_so_far() {
    for slow in [false, true] {
        let error = || Error::new(ErrorKind::Server, "down");
        for model in [
            ScriptedModel::new().text("I ").error(error()),
            ScriptedModel::new().text("I ").end_early(),
        ] {
            let store = Threads::new(slow);
            let layer = ConversationLayer::new(store.clone());
            let response = agent(&layer, &model, &counting())
                .oneshot(user("hi"))
                .await
                .unwrap();
            let items = collect_events(response.body).await;
            let (last, before) = items.split_last().unwrap();
            assert!(last.is_err() && before.iter().all(Result::is_ok));
            // The turn is stored before the error is yielded.
            assert_eq!(texts(&stored(&store)), "hi I ");
            send(&talker(&layer), user("again")).await.unwrap();
            assert_eq!(texts(&stored(&store)), "hi I  again Yes.");
        }
    }
}

#[tokio::test]
async fn a_run_whose_answer_is_blocked_stores_its_rounds() {
    for slow in [false, true] {
        let store = Threads::new(slow);
        let rules = Rules::new([Rule::literals("x", ["Bluebird"]).block()]).unwrap();
        let model = ScriptedModel::new()
            .tool_call("count", "{}")
            .then()
            .text("Counted the Bluebird.");
        let agent = ServiceBuilder::new()
            .layer(ConversationLayer::new(store.clone()))
            .layer(GuardLayer::new(rules).block_with("Sorry."))
            .layer(AgentLayer::new(counting()))
            .service(model);
        let answer = send(&BoxModel::new(agent), user("hi")).await.unwrap();
        assert_eq!(answer.text(), "Counted the Sorry.");
        let stored = stored(&store);
        assert_eq!(stored.len(), 2, "{stored:?}");
        let round = stored.last().unwrap().as_round().unwrap();
        assert_eq!(round.results()[0].outcome.content.text(), "counted");
    }
}

#[tokio::test]
async fn a_view_around_the_loop_is_an_error_within_a_conversation() {
    fn around(layer: impl Layer<BoxModel, Service: SharedModel>) -> BoxModel {
        let agent = BoxModel::new(AgentLayer::new(ScriptedTools::new()).layer(yes()));
        BoxModel::new(layer.layer(agent))
    }
    let small = || BoxModel::new(yes());
    for view in [
        around(TrimLayer::turns(2)),
        around(ClearToolResultsLayer::new()),
        around(CompactionLayer::new(small(), 1_000)),
    ] {
        let store = Threads::new(false);
        let layer = ConversationLayer::new(store.clone());
        for text in ["a", "b"] {
            send(&talker(&layer), user(text)).await.unwrap();
        }
        let whole = stored(&store);
        let agent = BoxModel::new(layer.layer(view.clone()));
        let error = send(&agent, user("c")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert_eq!(stored(&store), whole);
        // A session stores its turns as well.
        let make = MakeSession::new(view.clone()).store(store.clone());
        let session = make.oneshot(SessionTarget::new(ThreadId::new("t")));
        let session = BoxModel::new(session.await.unwrap());
        let error = send(&session, ChatRequest::user("c")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert_eq!(stored(&store), whole);
        // Without a conversation, the run begins with what is left.
        send(&view, user("c")).await.unwrap();
    }
}

#[tokio::test]
async fn a_disconnect_keeps_the_turns_so_far() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("I ")
        .never();
    let mut response = agent(&layer, &model, &counting())
        .oneshot(user("count"))
        .await
        .unwrap();
    while model.calls() < 2 || model.items() < 3 {
        response.body.next().await.unwrap().unwrap();
    }
    drop(response);
    tokio::task::yield_now().await;
    let history = stored(&store);
    assert_eq!(history.iter().nth(1).unwrap().results().len(), 1);
    assert!(texts(&history).ends_with("I "));
    // Slots as well.
    let slots = store.get("t").unwrap().slots;
    assert_eq!(slots.len(), 1);
}

#[tokio::test]
async fn a_disconnect_during_a_call_closes_its_round() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let model = ScriptedModel::new().tool_call("wait", json!({}));
    let tools = ScriptedTools::new().tool("wait", |_| std::future::pending());
    let mut body = agent(&layer, &model, &tools)
        .oneshot(user("wait"))
        .await
        .unwrap()
        .body;
    while let Some(item) = body.next().now_or_never() {
        item.unwrap().unwrap();
    }
    drop(body);
    tokio::task::yield_now().await;
    let history = stored(&store);
    assert_eq!(history.len(), 2);
    assert_eq!(history.last().unwrap().results().len(), 1);
    send(&talker(&layer), user("again")).await.unwrap();
    assert_eq!(stored(&store).len(), 4);
}

#[tokio::test]
async fn a_conflict_of_a_failed_run_is_not_its_error() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone()).required();
    let model = ScriptedModel::new()
        .text("I ")
        .error(Error::new(ErrorKind::Server, "down"));
    let late = agent(&layer, &model, &counting())
        .oneshot(user("late"))
        .await
        .unwrap();
    send(&talker(&layer), user("hi")).await.unwrap();
    let error = Error::from(late.collect().await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(texts(&stored(&store)), "hi Yes.");
}

#[tokio::test]
async fn a_dropped_body_without_an_agent_frees_its_run() {
    let layer = ConversationLayer::new(Threads::default());
    let model = ScriptedModel::new().text("I ").never();
    let mut request = user("hi");
    let held = Arc::new(());
    request.context.extensions_mut().insert(Arc::clone(&held));
    let response = tower::Layer::layer(&layer, model).oneshot(request).await;
    let mut response = response.unwrap();
    response.body.next().await.unwrap().unwrap();
    drop(response);
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn a_second_attempt_starts_from_the_newest_version() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let request = user("again");
    let attempt = request.clone();
    let fails = ScriptedModel::new().error(Error::new(ErrorKind::Server, "down"));
    let failed = send(&agent(&layer, &fails, &counting()), attempt).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Server);
    send(&talker(&layer), user("hi")).await.unwrap();
    send(&talker(&layer), request).await.unwrap();
    assert_eq!(texts(&stored(&store)), "hi Yes. again Yes.");
}

#[tokio::test]
async fn a_cancelled_run_stores_its_closed_rounds() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("I ")
        .never();
    let request = user("count");
    let context = request.context.clone();
    let mut response = agent(&layer, &model, &counting())
        .oneshot(request)
        .await
        .unwrap();
    while model.calls() < 2 || model.items() < 3 {
        response.body.next().await.unwrap().unwrap();
    }
    context.cancel(CancelReason::User);
    let answer = response.collect().await.unwrap();
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
    let history = stored(&store);
    assert_eq!(Some(&history), answer.finish.transcript.as_ref());
    assert_eq!(history.iter().nth(1).unwrap().results().len(), 1);
}

#[tokio::test]
async fn tenants_do_not_share_conversations() {
    let store = Threads::default();
    let agent = talker(&ConversationLayer::new(store.clone()));
    for tenant in ["", "a", "b"] {
        let mut request = user("hi");
        request
            .context
            .extensions_mut()
            .insert(Tenant(tenant.into()));
        let answer = send(&agent, request).await.unwrap();
        assert_eq!(answer.transcript().unwrap().len(), 2, "{tenant}");
    }
}

#[tokio::test]
async fn a_run_needs_a_conversation() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let error = send(&talker(&layer), ChatRequest::user("hi"))
        .await
        .unwrap_err();
    is(&error, ErrorKind::Configuration, NO_THREAD);
    let model = yes();
    let strict = agent(&layer.clone().create(false), &model, &counting());
    let error = send(&strict, user("hi")).await.unwrap_err();
    is(&error, ErrorKind::NotFound, UNKNOWN_THREAD);
    assert_eq!(model.calls(), 0);
    send(&talker(&layer), user("hi")).await.unwrap();
    send(&strict, user("hi")).await.unwrap();
}

#[tokio::test]
async fn a_history_that_cannot_be_loaded_fails_the_run() {
    let store = Threads::default();
    let model = yes();
    let agent = agent(&ConversationLayer::new(store.clone()), &model, &counting());
    store.fail_next();
    let error = send(&agent, user("hi")).await.unwrap_err();
    is(&error, ErrorKind::Server, "store_failed");
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_turn_that_cannot_be_stored_is_delivered_unless_required() {
    for required in [false, true] {
        let store = Threads::default();
        let layer = ConversationLayer::new(store.clone());
        let layer = if required { layer.required() } else { layer };
        let response = talker(&layer).oneshot(user("hi")).await.unwrap();
        store.fail_next();
        match (required, response.collect().await) {
            (false, Ok(answer)) => assert_eq!(answer.text(), "Yes."),
            (true, Err(failed)) => is(&failed.error, ErrorKind::Server, "store_failed"),
            (_, other) => panic!("{other:?}"),
        }
        assert!(store.get("t").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_has_thirty_seconds_for_a_turn() {
    let store = Threads::default();
    let agent = talker(&ConversationLayer::new(store.clone()).required());
    let response = agent.oneshot(user("hi")).await.unwrap();
    store.hang();
    let start = tokio::time::Instant::now();
    let error = response.collect().await.unwrap_err().error;
    is(&error, ErrorKind::Server, "store_failed");
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_the_history_ends_with_the_run() {
    let store = Threads::default();
    store.hang();
    let model = yes();
    let agent = agent(&ConversationLayer::new(store), &model, &counting());
    let request = user("hi");
    let context = request.context.clone();
    let mut call = spawn(agent.clone().oneshot(request));
    assert!(call.poll().is_pending());
    context.cancel(CancelReason::User);
    let error = call.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let context = Context::builder().thread_id(ThreadId::new("t"));
    let soon = std::time::SystemTime::now() + Duration::from_secs(5);
    let request = ChatRequest::user("hi").with_context(context.deadline(soon).build());
    let error = send(&agent, request).await.unwrap_err();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Timeout, 0));
}

#[tokio::test]
async fn a_turn_whose_body_is_dropped_while_the_store_is_slow_is_stored_once() {
    for (model, expected) in [
        (yes(), "hi Yes."),
        (ScriptedModel::new().text("I ").end_early(), "hi I "),
    ] {
        let store = Threads::new(true);
        let layer = ConversationLayer::new(store.clone());
        let run = agent(&layer, &model, &counting()).oneshot(user("hi"));
        let mut body = run.await.unwrap().body;
        // Until the store is asked.
        while let Some(item) = body.next().now_or_never() {
            item.unwrap().unwrap();
        }
        drop(body);
        assert!(store.get("t").is_none());
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        assert_eq!(texts(&stored(&store)), expected);
        assert_eq!(store.appended().len(), 1);
    }

    let (log, _guard) = LogCapture::of_thread("concentric::conversation");
    let store = Threads::new(true);
    let run = talker(&ConversationLayer::new(store.clone())).oneshot(user("hi"));
    let mut body = run.await.unwrap().body;
    while let Some(item) = body.next().now_or_never() {
        item.unwrap().unwrap();
    }
    store.fail_next();
    drop(body);
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(log.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_stores_its_turn_completely_or_not_at_all() {
    let store = Threads::new(true);
    let agent = talker(&ConversationLayer::new(store.clone()));
    let run = || {
        let agent = agent.clone();
        async move { drop(send(&agent, user("hi")).await) }
    };
    let drops = drop_at_each_wait(run, async |_| {
        assert_eq!(stored(&store).len() % 2, 0);
    });
    assert!(drops.await > 2);
    let history = stored(&store);
    assert!(history.len() > 1);
    send(&agent, user("hi")).await.unwrap();
    assert_eq!(stored(&store).len(), history.len() + 2);
}

fn process(
    threads: &Threads,
    runs: &Arc<MemoryStore>,
    model: &ScriptedModel,
    tools: &ScriptedTools,
) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::clone(runs)))
        .layer(ConversationLayer::new(threads.clone()).required())
        .layer(AgentLayer::new(tools.clone()))
        .service(model.clone());
    BoxModel::new(agent)
}

/// A slot whose value cannot be serialised once it has a key.
struct Broken;

impl Slot for Broken {
    type Value = std::collections::BTreeMap<Vec<u8>, u8>;
    type Keep = Durable;
    const NAME: &'static str = "test/conversation_broken";
    const SCOPE: Scope = Scope::Thread;
}

#[tokio::test]
async fn a_slot_that_cannot_be_stored_does_not_lose_a_suspended_run() {
    let tools = counting().tool("break", |call| async move {
        let broken = call
            .context
            .update_state::<Broken>(|_| [(vec![1], 1)].into());
        broken.map_or_else(
            |error| ToolOutcome::failed(error.to_string()),
            |_| ToolOutcome::done("broken"),
        )
    });
    let threads = Threads::default();
    let model = ScriptedModel::new()
        .tool_call("break", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let layer = ConversationLayer::new(threads.clone());
    let asked = send(&agent(&layer, &model, &tools), user("pay")).await;
    let asked = asked.unwrap();
    assert_eq!(asked.finish.outcome, Outcome::Interrupted);
    let state = *asked.finish.state.unwrap();

    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let request = ChatRequest::resume(state, vec![reply]).with_context(in_thread("t"));
    let model = ScriptedModel::new().text("Paid.");
    let answer = send(&agent(&layer, &model, &tools), request).await.unwrap();
    assert_eq!((answer.text(), tools.done()), ("Paid.".into(), 2));

    // A layer that must store fails the run instead.
    let model = ScriptedModel::new()
        .tool_call("break", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let layer = ConversationLayer::new(Threads::default()).required();
    let failed = send(&agent(&layer, &model, &tools), user("pay")).await;
    assert_eq!(failed.unwrap_err().effects(), SideEffects::Possible);
}

#[tokio::test]
async fn a_resumed_run_that_ends_without_effects_stores_nothing_more() {
    for has_effects in [false, true] {
        let store = Threads::default();
        let layer = ConversationLayer::new(store.clone());
        let model = ScriptedModel::new()
            .tool_call("pay", json!({}))
            .then()
            .text("I ")
            .error(Error::new(ErrorKind::Server, "down"));
        // A denied call of a toolset is no effect.
        let spec = ToolSpec::new("pay", "", json!({"type": "object"}));
        let pay = service_fn(async |_: ToolCall| Ok::<_, BoxError>(ToolOutcome::done("paid")));
        let tools = Toolset::new()
            .tool(Tool::new(spec, pay))
            .gate(Approval::for_tools("pay"));
        let agent = ServiceBuilder::new()
            .layer(layer)
            .layer(AgentLayer::new(tools))
            .service(model);
        let agent = BoxModel::new(agent);
        let answer = send(&agent, user("pay")).await.unwrap();
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
        let state = *answer.finish.state.unwrap();
        let reply = match has_effects {
            true => Reply::approve(state.interrupts()[0].id.clone()),
            false => Reply::deny(state.interrupts()[0].id.clone(), "no"),
        };
        let resumed = ChatRequest::resume(state, vec![reply]).with_context(in_thread("t"));
        send(&agent, resumed).await.unwrap_err();
        let expected = if has_effects { "pay  I " } else { "pay" };
        assert_eq!(texts(&stored(&store)), expected);
    }
}

#[test]
fn a_run_that_is_resumed_after_its_append_appends_once() {
    const LEASE: Duration = Duration::from_secs(30);
    let world = TestEnvironment::new();
    let options = Options::new().clock(world.clock().clone());
    let runs = Arc::new(MemoryStore::with_options(options));
    let threads = Threads::default();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    let dies = runtime();
    let body = dies.block_on(async {
        let model = ScriptedModel::new()
            .tool_call("count", json!({}))
            .then()
            .text("One.");
        let agent = process(&threads, &runs, &model, &counting());
        let context = world.context_builder().thread_id(ThreadId::new("t"));
        let context = context.run_id(RunId::new("run")).build();
        let request = ChatRequest::user("count").with_context(context);
        let mut response = agent.oneshot(request).await.unwrap();
        threads.hang();
        while threads.get("t").is_none() {
            tokio::select! {
                _ = response.body.next() => {}
                () = tokio::task::yield_now() => {}
            }
        }
        response.body
    });
    // The process ends after the append, and before the end of the run is stored.
    drop(dies);
    drop(body);
    threads.heal();
    world.advance(LEASE);
    let before = threads.get("t").unwrap();
    runtime().block_on(async {
        let layer = SuspendLayer::new(Arc::clone(&runs));
        let environment = world.environment();
        let abandoned = || layer.claim_abandoned(&environment, 9);
        let left = abandoned().await.unwrap();
        assert_eq!(left.len(), 1);
        for request in left {
            let model = ScriptedModel::new().text("Two.");
            let agent = process(&threads, &runs, &model, &counting());
            send(&agent, request).await.unwrap();
        }
        assert!(abandoned().await.unwrap().is_empty());
    });
    let after = threads.get("t").unwrap();
    assert_eq!(
        (after.version, &after.history),
        (before.version, &before.history)
    );
    assert_eq!(after.history.len(), 3);
}

#[tokio::test]
async fn an_agent_that_is_a_tool_does_not_append() {
    let store = Threads::default();
    let layer = ConversationLayer::new(store.clone());
    let inner = agent(&layer, &yes(), &ScriptedTools::new());
    let tools = Toolset::new().tool(agent_tool("helper", "Helps.", inner));
    let arguments = json!({"input": "help"});
    let model = ScriptedModel::new()
        .tool_call("helper", arguments)
        .then()
        .text("Done.");
    let outer = ServiceBuilder::new()
        .layer(layer)
        .layer(AgentLayer::new(tools))
        .service(model.clone());
    let answer = send(&BoxModel::new(outer), user("hi")).await.unwrap();
    assert_eq!(answer.text(), "Done.");
    assert_eq!(stored(&store).len(), 3);
}

#[tokio::test]
async fn a_wrong_place_fails_the_first_call() {
    let layer = ConversationLayer::new(Threads::default());
    let in_loop = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(layer.clone())
        .service(yes());
    let twice = |inner: ConversationLayer| {
        ServiceBuilder::new()
            .layer(layer.clone())
            .layer(inner)
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(yes())
    };
    let make = MakeSession::new(talker(&layer));
    let session = make
        .oneshot(SessionTarget::new(ThreadId::new("t")))
        .await
        .unwrap();
    for agent in [
        BoxModel::new(in_loop),
        BoxModel::new(twice(layer.clone())),
        BoxModel::new(twice(ConversationLayer::new(Threads::default()))),
        BoxModel::new(session),
    ] {
        let error = send(&agent, user("hi")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    }
}

#[tokio::test]
async fn large_turns_pass_through_the_limit_of_the_store() {
    let store = MemoryStore::new();
    let agent = agent(&ConversationLayer::new(store.clone()), &yes(), &counting());
    let request = ChatRequest::user("x".repeat(4 << 20)).with_context(in_thread("t"));
    send(&agent, request).await.unwrap();
    let stored = store.load(Tenant::default(), ThreadId::new("t")).await;
    assert_eq!(stored.unwrap().unwrap().history.len(), 2);
    // A model at its own pace.
    let paced = yes().paced(Pace::NextTick);
    let paced = self::agent(&ConversationLayer::new(store), &paced, &counting());
    let answer = send(&paced, user("hi")).await.unwrap();
    assert_eq!(answer.transcript().unwrap().len(), 4);
}
