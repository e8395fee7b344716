//! The turns of runs that wait.

use super::*;
use concentric_core::{
    Interrupt, Message, ToolStatus,
    agent::{FinishDecision, StepDecision, StepDraft, StepGate},
    machine::RunState,
    store::{Regenerate, RunStatus, RunStore},
};

/// Pays in the first step.
fn pays() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("Paid.")
}

/// The interrupted run of this request, and its state.
async fn interrupted(agent: &BoxModel, request: ChatRequest) -> RunState {
    let answer = send(agent, request).await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    *answer.finish.state.unwrap()
}

fn approved(state: &RunState) -> Vec<Reply> {
    let asked = state.interrupts().into_iter();
    asked
        .map(|asked| Reply::approve(asked.id.clone()))
        .collect()
}

/// Resumes a run whose state its host has kept.
fn resume(state: RunState) -> ChatRequest {
    let replies = approved(&state);
    ChatRequest::resume(state, replies).with_context(in_thread("t"))
}

/// Resumes a run whose state is stored.
fn reply(state: &RunState) -> ChatRequest {
    ChatRequest::replying(approved(state)).with_context(in_thread("t"))
}

/// Another run of the conversation.
async fn talk(store: &Threads, text: &'static str) {
    let talker = talker(&ConversationLayer::new(store.clone()));
    send(&talker, user(text)).await.unwrap();
}

#[tokio::test]
async fn a_run_that_waits_has_stored_its_closed_rounds() {
    for slow in [false, true] {
        let (threads, runs) = (Threads::new(slow), Arc::new(MemoryStore::new()));
        let tools = counting();
        let model = ScriptedModel::new()
            .text("Yes.")
            .then()
            .tool_call("count", json!({}))
            .then()
            .tool_call("pay", json!({}));
        let first = process(&threads, &runs, &model, &tools);
        send(&first, user("hi")).await.unwrap();
        let state = interrupted(&first, user("count, then pay")).await;
        let during = threads.get("t").unwrap();
        // Two turns from before, the message and the first round.
        assert_eq!(&during.history, state.transcript());
        assert_eq!((during.history.len(), during.slots.len()), (4, 0));

        let paid = ScriptedModel::new().text("Paid.");
        let second = process(&threads, &runs, &paid, &tools);
        let answer = send(&second, reply(&state)).await.unwrap();
        assert_eq!((answer.text(), tools.done()), ("Paid.".into(), 2));
        let after = threads.get("t").unwrap();
        assert_eq!(Some(&after.history), answer.transcript());
        assert_eq!((after.history.len(), &after.slots[0].value), (6, &json!(1)));
        assert_eq!(threads.appended(), [2, 2, 2]);
    }
}

#[tokio::test]
async fn each_wait_of_a_run_stores_the_rounds_since_the_last() {
    for (is_stored, talks) in [(false, false), (false, true), (true, false), (true, true)] {
        let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
        let pays_twice = ScriptedModel::new().tool_call("pay", json!({})).then();
        let model = pays_twice.tool_call("pay", json!({})).then().text("Paid.");
        let layer = ConversationLayer::new(threads.clone());
        let agent = match is_stored {
            true => process(&threads, &runs, &model, &counting()),
            false => agent(&layer, &model, &counting()),
        };
        let again = |state: &RunState| match is_stored {
            true => reply(state),
            false => resume(state.clone()),
        };
        let state = interrupted(&agent, user("pay twice")).await;
        assert_eq!(stored(&threads).len(), 1);
        // It waits again without a reply, which is no reason for a conflict with another run.
        let version = threads.get("t").unwrap().version;
        let asks = ChatRequest::resume(state.clone(), Vec::new()).with_context(in_thread("t"));
        let asks = match is_stored {
            true => ChatRequest::replying(Vec::new()).with_context(in_thread("t")),
            false => asks,
        };
        let state = interrupted(&agent, asks).await;
        assert_eq!(threads.get("t").unwrap().version, version);

        if talks {
            talk(&threads, "one").await;
        }
        let state = interrupted(&agent, again(&state)).await;
        let expected = if talks {
            "pay twice one Yes. "
        } else {
            "pay twice "
        };
        assert_eq!(texts(&stored(&threads)), expected);
        if talks {
            talk(&threads, "two").await;
        }
        send(&agent, again(&state)).await.unwrap();
        let expected = if talks {
            "pay twice one Yes.  two Yes.  Paid."
        } else {
            "pay twice   Paid."
        };
        assert_eq!(texts(&stored(&threads)), expected);
    }
}

#[tokio::test]
async fn the_rest_of_a_turn_follows_later_turns() {
    for merge in [Merge::Append, Merge::ServerWins, Merge::ClientOverwrites] {
        for max_turns in [usize::MAX, 1, 0] {
            let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
            for text in ["one", "two"] {
                talk(&threads, text).await;
            }
            let model = pays();
            let layer = ConversationLayer::new(threads.clone()).history(merge);
            let agent = ServiceBuilder::new()
                .layer(SuspendLayer::new(Arc::clone(&runs)))
                .layer(layer.max_turns(max_turns).required())
                .layer(AgentLayer::new(counting()))
                .service(model.clone());
            let agent = BoxModel::new(agent);
            let state = interrupted(&agent, user("pay")).await;
            let before = match merge {
                Merge::ClientOverwrites => "pay",
                _ => "one Yes. two Yes. pay",
            };
            assert_eq!(texts(&stored(&threads)), before, "{merge:?} {max_turns}");
            talk(&threads, "hi").await;
            send(&agent, reply(&state)).await.unwrap();
            // The model continues the conversation as the run has left it.
            let seen = model.request(1).transcript;
            assert!(texts(&seen).ends_with("pay "), "{merge:?} {max_turns}");
            let expected = format!("{before} hi Yes.  Paid.");
            assert_eq!(texts(&stored(&threads)), expected, "{merge:?} {max_turns}");
        }
    }
}

#[tokio::test]
async fn the_rest_of_a_turn_follows_an_answer_that_was_regenerated() {
    let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
    talk(&threads, "hi").await;
    let request = |text: &'static str| {
        let message = Message::user(text).with_id(MessageId::new("u2"));
        let turns = [Turn::message(message).unwrap()];
        ChatRequest::new(turns.into_iter().collect()).with_context(in_thread("t"))
    };
    let agent = |model: &ScriptedModel| {
        let layer = ConversationLayer::new(threads.clone()).history(Merge::ServerWins);
        let agent = ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(&runs)))
            .layer(layer)
            .layer(AgentLayer::new(counting()))
            .service(model.clone());
        BoxModel::new(agent)
    };
    let paying = agent(&pays());
    let state = interrupted(&paying, request("pay")).await;
    // The client edits the message, which the run has not answered yet.
    let model = yes();
    let mut edited = request("talk");
    edited.context.extensions_mut().insert(Regenerate);
    send(&agent(&model), edited).await.unwrap();
    assert_eq!(texts(&model.request(0).transcript), "hi Yes. talk");
    send(&paying, reply(&state)).await.unwrap();
    assert_eq!(texts(&stored(&threads)), "hi Yes. talk Yes.  Paid.");
}

#[tokio::test]
async fn the_rest_of_a_turn_is_found_after_a_rewrite() {
    /// Replaces all turns once the run has a round.
    struct Shortens;

    impl StepGate for Shortens {
        fn name(&self) -> &str {
            "shortens"
        }

        async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
            let turns = step.transcript.len();
            if step.transcript.last().unwrap().as_round().is_some() {
                step.rewrite(turns - 1, vec![Turn::user("summary")])?;
            }
            Ok(StepDecision::Continue)
        }
    }

    for talks in [false, true] {
        let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
        for text in ["one", "two", "three"] {
            talk(&threads, text).await;
        }
        let model = pays();
        let agent = ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(&runs)))
            .layer(ConversationLayer::new(threads.clone()))
            .layer(AgentLayer::new(counting()).gate(Shortens))
            .service(model.clone());
        let agent = BoxModel::new(agent);
        let state = interrupted(&agent, user("pay")).await;
        if talks {
            talk(&threads, "hi").await;
        }
        send(&agent, reply(&state)).await.unwrap();
        assert_eq!(texts(&model.request(1).transcript), "summary pay ");
        let expected = match talks {
            true => "one Yes. two Yes. three Yes. pay hi Yes.  Paid.",
            false => "summary pay  Paid.",
        };
        assert_eq!(texts(&stored(&threads)), expected);
    }
}

#[tokio::test]
async fn a_run_that_was_rewritten_before_it_waits_stores_all_rounds() {
    /// Replaces the earlier turns in the first step.
    struct Shortens;

    impl StepGate for Shortens {
        fn name(&self) -> &str {
            "shortens"
        }

        async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
            let turns = step.transcript.len();
            if turns > 2 && step.transcript.last().unwrap().as_round().is_none() {
                step.rewrite(turns - 1, vec![Turn::user("summary")])?;
            }
            Ok(StepDecision::Continue)
        }
    }

    for talks in [false, true] {
        let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
        for text in ["one", "two", "three"] {
            talk(&threads, text).await;
        }
        let mut model = ScriptedModel::new().tool_call("pay", json!({})).then();
        for _ in 0..4 {
            model = model.tool_call("count", json!({})).then();
        }
        let agent = ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(&runs)))
            .layer(ConversationLayer::new(threads.clone()))
            .layer(AgentLayer::new(counting()).gate(Shortens))
            .service(model.text("Paid."));
        let agent = BoxModel::new(agent);
        let state = interrupted(&agent, user("pay")).await;
        assert_eq!(texts(&stored(&threads)), "summary pay");
        if talks {
            talk(&threads, "hi").await;
        }
        send(&agent, reply(&state)).await.unwrap();
        let expected = match talks {
            true => "summary pay hi Yes.      Paid.",
            false => "summary pay      Paid.",
        };
        assert_eq!(texts(&stored(&threads)), expected);
    }
}

#[tokio::test]
async fn a_round_with_another_outcome_replaces_that_of_a_lost_attempt() {
    let threads = Threads::default();
    let layer = ConversationLayer::new(threads.clone());
    let tools = counting();
    let asks_again = ScriptedModel::new().tool_call("pay", json!({})).then();
    let first = agent(&layer, &asks_again.tool_call("pay", json!({})), &tools);
    let state = interrupted(&first, user("pay")).await;
    // This attempt denies the call, asks again, and is lost before its state is stored.
    let denied = state.interrupts().into_iter();
    let denied = denied.map(|asked| Reply::deny(asked.id.clone(), "no"));
    let denied = ChatRequest::resume(state.clone(), denied.collect());
    interrupted(&first, denied.with_context(in_thread("t"))).await;
    talk(&threads, "hi").await;

    let second = agent(&layer, &ScriptedModel::new().text("Paid."), &tools);
    send(&second, resume(state)).await.unwrap();
    let history = stored(&threads);
    assert_eq!(texts(&history), "pay  hi Yes. Paid.");
    let round = history.iter().find_map(Turn::as_round).unwrap();
    let result = &round.results()[0];
    assert_eq!((result.outcome.status, tools.done()), (ToolStatus::Done, 1));
}

#[tokio::test]
async fn a_resumed_run_does_not_conflict_with_a_run_that_ends_before_it() {
    // The other run begins and ends while the resumed one is driven.
    for slow in [false, true] {
        let threads = Threads::new(slow);
        let layer = ConversationLayer::new(threads.clone());
        let agent = agent(&layer, &pays(), &counting());
        let state = interrupted(&agent, user("pay")).await;
        let resumed = agent.oneshot(resume(state)).await.unwrap();
        talk(&threads, "hi").await;
        resumed.collect().await.unwrap();
        assert_eq!(texts(&stored(&threads)), "pay hi Yes.  Paid.");
    }
}

#[tokio::test]
async fn a_resumed_run_keeps_the_slots_of_later_turns() {
    struct Other;

    impl Slot for Other {
        type Value = u32;
        type Keep = Durable;
        const NAME: &'static str = "test/conversation_other";
        const SCOPE: Scope = Scope::Thread;
    }

    let tools = counting().tool("other", |call| async move {
        call.context.update_state::<Other>(|n| n + 1).unwrap();
        ToolOutcome::done("counted")
    });
    let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
    let run = |name: &'static str| {
        let model = ScriptedModel::new().tool_call(name, json!({})).then();
        model.text("Yes.")
    };
    for name in ["count", "other"] {
        let agent = process(&threads, &runs, &run(name), &tools);
        send(&agent, user("count")).await.unwrap();
    }
    let model = ScriptedModel::new().tool_call("count", json!({})).then();
    let model = model.tool_call("pay", json!({})).then().text("Paid.");
    let agent = process(&threads, &runs, &model, &tools);
    let state = interrupted(&agent, user("pay")).await;
    for _ in 0..2 {
        let agent = process(&threads, &runs, &run("other"), &tools);
        send(&agent, user("count")).await.unwrap();
    }
    send(&agent, reply(&state)).await.unwrap();
    let slots = threads.get("t").unwrap().slots;
    let values: Vec<_> = slots.iter().map(|slot| &slot.value).collect();
    assert_eq!(values, [&json!(2), &json!(3)]);
}

#[tokio::test]
async fn a_run_of_the_release_before_keeps_the_slots_of_later_turns() {
    let (threads, tools) = (Threads::default(), counting());
    let layer = ConversationLayer::new(threads.clone());
    let counts = || {
        let model = ScriptedModel::new().tool_call("count", json!({})).then();
        agent(&layer, &model.text("Yes."), &tools)
    };
    send(&counts(), user("count")).await.unwrap();
    let waits = agent(&layer, &pays(), &tools);
    let mut state = interrupted(&waits, user("pay")).await;
    // That release has stored all slots of the conversation, and refuses the version of this one.
    let now = threads.get("t").unwrap();
    let mut slots = state.take_slots();
    let mut all = slots.iter_mut();
    let base = all.find(|slot| slot.slot == "concentric/conversation");
    let base = base.unwrap();
    assert_eq!(base.version, 2);
    base.version = 1;
    base.value = json!({"version": now.version, "slots": now.slots});
    let state = state.with_slots(slots);
    send(&counts(), user("count")).await.unwrap();
    send(&waits, resume(state)).await.unwrap();
    let slots = threads.get("t").unwrap().slots;
    let values: Vec<_> = slots.iter().map(|slot| &slot.value).collect();
    assert_eq!(values, [&json!(2)]);
}

#[tokio::test]
async fn the_turn_of_a_run_that_is_not_resumed_stays_valid() {
    let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let agent = process(&threads, &runs, &model, &counting());
    let state = interrupted(&agent, user("count, then pay")).await;
    let withdrawn = runs.withdraw(Tenant::default(), ThreadId::new("t"));
    assert_eq!(withdrawn.await.unwrap(), 1);
    let error = send(&agent, reply(&state)).await.unwrap_err();
    is(&error, ErrorKind::Conflict, "run_ended");
    let model = yes();
    let layer = ConversationLayer::new(threads.clone());
    send(&super::agent(&layer, &model, &counting()), user("hi"))
        .await
        .unwrap();
    let seen = model.request(0).transcript;
    assert_eq!(texts(&seen), "count, then pay  hi");
    // A history without an open round.
    let messages = seen.iter().flat_map(|turn| {
        let results = turn.results().iter().cloned();
        let results = results.map(|result| {
            let part = concentric_core::PartKind::ToolResult(result);
            concentric_core::Message::new(
                concentric_core::Role::Tool,
                vec![concentric_core::Part::new(part)],
            )
        });
        [turn.as_message().clone()].into_iter().chain(results)
    });
    let refuse = concentric_core::transcript::Repair::Refuse;
    let (read, open) = Transcript::from_history(messages, refuse).unwrap();
    assert_eq!((read, open), (seen, None));
}

#[tokio::test]
async fn a_denied_call_stores_its_round_once() {
    let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
    let agent = process(&threads, &runs, &pays(), &counting());
    let state = interrupted(&agent, user("pay")).await;
    talk(&threads, "hi").await;
    let denied = Reply::deny(state.interrupts()[0].id.clone(), "no");
    let request = ChatRequest::replying(vec![denied]).with_context(in_thread("t"));
    send(&agent, request).await.unwrap();
    assert_eq!(texts(&stored(&threads)), "pay hi Yes.  Paid.");
}

#[tokio::test]
async fn a_run_that_conflicts_fails_before_it_waits() {
    let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
    let tools = counting();
    let late = process(&threads, &runs, &pays(), &tools);
    let late = late.oneshot(user("pay")).await.unwrap();
    talk(&threads, "hi").await;
    let error = Error::from(late.collect().await.unwrap_err());
    is(&error, ErrorKind::Conflict, "thread_moved");
    assert_eq!(tools.done(), 0);
    assert_eq!(texts(&stored(&threads)), "hi Yes.");
    let waiting = runs.list_waiting(Tenant::default(), 9).await.unwrap();
    assert!(waiting.is_empty());
}

#[tokio::test]
async fn a_wait_that_cannot_be_stored_leaves_the_turn_to_the_resumed_run() {
    for is_later in [false, true] {
        let (log, _guard) = LogCapture::of_thread("concentric::conversation");
        let (threads, runs) = (Threads::default(), Arc::new(MemoryStore::new()));
        // The layer requires that turns are stored.
        let agent = process(&threads, &runs, &pays(), &counting());
        let run = agent.clone().oneshot(user("pay")).await.unwrap();
        threads.fail_next();
        let answer = run.collect().await.unwrap();
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
        assert!(threads.get("t").is_none());
        assert_eq!(log.take().len(), 1);
        if is_later {
            talk(&threads, "hi").await;
        }
        let state = *answer.finish.state.unwrap();
        send(&agent, reply(&state)).await.unwrap();
        let expected = if is_later {
            "hi Yes. pay  Paid."
        } else {
            "pay  Paid."
        };
        assert_eq!(texts(&stored(&threads)), expected);
    }
}

#[tokio::test]
async fn the_run_of_a_deleted_conversation_has_no_effects() {
    let threads = Threads::default();
    let tools = counting();
    let agent = agent(&ConversationLayer::new(threads.clone()), &pays(), &tools);
    let state = interrupted(&agent, user("pay")).await;
    let deleted = threads.delete(Tenant::default(), ThreadId::new("t"));
    assert!(deleted.await.unwrap());
    let error = send(&agent, resume(state.clone())).await.unwrap_err();
    is(&error, ErrorKind::Conflict, "thread_moved");
    assert_eq!((error.effects(), tools.done()), (SideEffects::None, 0));
    assert!(threads.get("t").is_none());

    // It is deleted while the run is driven.
    talk(&threads, "hi").await;
    let resumed = agent.oneshot(resume(state)).await.unwrap();
    let deleted = threads.delete(Tenant::default(), ThreadId::new("t"));
    assert!(deleted.await.unwrap());
    let error = Error::from(resumed.collect().await.unwrap_err());
    is(&error, ErrorKind::Conflict, "thread_moved");
    assert!(threads.get("t").is_none());
}

#[tokio::test]
async fn an_answer_that_waits_to_be_accepted_is_not_stored() {
    struct Accepts;

    impl StepGate for Accepts {
        fn name(&self) -> &str {
            "accepts"
        }

        async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
            let id = step.interrupt_id("accepts");
            Ok(match step.reply(&id) {
                Some(_) => FinishDecision::Finish,
                None => FinishDecision::ask(Interrupt::new(id, "accept")),
            })
        }
    }

    let threads = Threads::default();
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .text("Yes.");
    let agent = ServiceBuilder::new()
        .layer(ConversationLayer::new(threads.clone()))
        .layer(AgentLayer::new(counting()).gate(Accepts))
        .service(model);
    let agent = BoxModel::new(agent);
    let state = interrupted(&agent, user("count")).await;
    assert_eq!(texts(&stored(&threads)), "count ");
    talk(&threads, "hi").await;
    send(&agent, resume(state)).await.unwrap();
    assert_eq!(texts(&stored(&threads)), "count  hi Yes. Yes.");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_while_it_waits_for_the_store_is_stored_in_part_or_not_at_all() {
    let (threads, runs) = (Threads::new(true), Arc::new(MemoryStore::new()));
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let run = || {
        let agent = process(&threads, &runs, &model.clone().repeat(), &counting());
        async move { drop(send(&agent, user("pay")).await) }
    };
    let mut last = 0;
    let drops = drop_at_each_wait(run, async |_| {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
        let history = stored(&threads);
        // The message, and the rounds that had ended, or been begun.
        assert!(history.len() <= last + 3, "{}", texts(&history));
        last = history.len();
    });
    assert!(drops.await > 3);
    talk(&threads, "hi").await;
    assert_eq!(stored(&threads).len(), last + 2);
}

const LEASE: Duration = Duration::from_secs(30);

/// The texts of messages and the names of results, without those of other turns.
fn shape(history: &Transcript) -> String {
    let turns = history.iter().map(|turn| {
        let results = turn.results().iter().map(|result| result.name.as_str());
        let results: Vec<_> = results.collect();
        format!("{}{}", turn.as_message().text(), results.join(","))
    });
    turns.collect::<Vec<_>>().join(" ")
}

/// A process dies at each operation of the store of conversations, before and after it is applied.
#[test]
fn a_crash_at_any_operation_loses_and_repeats_no_round() {
    for operations in 0..=4 {
        for (is_applied, reads) in [(false, false), (true, false), (false, true), (true, true)] {
            for talks in [false, true] {
                let world = TestEnvironment::new();
                let options = Options::new().clock(world.clock().clone());
                let runs = Arc::new(MemoryStore::with_options(options));
                let first = Threads::default();
                first.die_after(operations, is_applied);
                let runtime = || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_time()
                        .build();
                    runtime.unwrap()
                };
                // May read a value, asks for an approval, and answers.
                let model = || {
                    let model = match reads {
                        true => ScriptedModel::new().tool_call("read", json!({})).then(),
                        false => ScriptedModel::new(),
                    };
                    model.tool_call("pay", json!({})).then().text("Paid.")
                };
                let mut read = ToolSpec::new("read", "", json!({"type": "object"}));
                read.annotations.read_only = true;
                let tools = ScriptedTools::new().asks("pay", "paid").service(
                    read,
                    service_fn(async |_: ToolCall| Ok::<_, BoxError>(ToolOutcome::done("1"))),
                );
                let context = || {
                    let context = world.context_builder().thread_id(ThreadId::new("t"));
                    context.build()
                };
                let dies = runtime();
                dies.block_on(async {
                    let agent = process(&first, &runs, &model(), &tools);
                    let request = ChatRequest::user("pay").with_context(context());
                    let mut run = Box::pin(async {
                        let answer = send(&agent, request).await.unwrap();
                        let replies = approved(&answer.finish.state.unwrap());
                        let reply = ChatRequest::replying(replies).with_context(context());
                        send(&agent, reply).await.unwrap();
                    });
                    for _ in 0..256 {
                        if (&mut run).now_or_never().is_some() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    std::mem::forget(run);
                });
                drop(dies);
                world.advance(LEASE);
                let threads = first.restart();
                let case = format!("{operations} {is_applied} {reads} {talks}");
                runtime().block_on(async {
                    if talks {
                        talk(&threads, "hi").await;
                    }
                    let environment = world.environment();
                    let layer = SuspendLayer::new(Arc::clone(&runs));
                    let left = layer.claim_abandoned(&environment, 9).await.unwrap();
                    let mut is_over = left.is_empty();
                    for request in left {
                        let continues = request.transcript.len() > 1;
                        let model = match continues || !reads {
                            true => ScriptedModel::new().text("Paid."),
                            false => ScriptedModel::new()
                                .tool_call("pay", json!({}))
                                .then()
                                .text("Paid."),
                        };
                        let agent = process(&threads, &runs, &model, &tools);
                        let answer = send(&agent, request).await.unwrap();
                        is_over = answer.finish.outcome != Outcome::Interrupted;
                    }
                    let waiting = runs.list_waiting(Tenant::default(), 9).await.unwrap();
                    for run in waiting {
                        let state = runs.get(run.key).await.unwrap().state;
                        let model = ScriptedModel::new().text("Paid.");
                        let agent = process(&threads, &runs, &model, &tools);
                        let reply = ChatRequest::replying(approved(&state)).with_context(context());
                        send(&agent, reply).await.unwrap();
                        is_over = true;
                    }
                    assert!(is_over, "{case}");
                });
                let history = shape(&stored(&threads));
                println!("{case}: {history}");
                let rounds = history.matches("read").count();
                let paid = history.matches("Paid.").count();
                // A run whose conversation is not loaded was not begun.
                let begun = usize::from(operations > 0);
                // The model of the resumed run answers again, after the turns of another run.
                let again = usize::from((operations, is_applied, talks) == (3, true, true));
                let read = if reads { begun } else { 0 };
                assert_eq!((rounds, paid), (read, begun + again), "{case}: {history}");
                assert_eq!(
                    history.matches("pay").count(),
                    2 * begun,
                    "{case}: {history}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_run_waits_in_the_store_of_its_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(dir.path().join("runs.db")).unwrap();
    let process = |model: ScriptedModel| {
        let agent = ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(sqlite.clone())))
            .layer(ConversationLayer::new(sqlite.clone()).required())
            .layer(AgentLayer::new(counting()))
            .service(model);
        BoxModel::new(agent)
    };
    let model = ScriptedModel::new()
        .tool_call("count", json!({}))
        .then()
        .tool_call("pay", json!({}));
    let state = interrupted(&process(model), user("count, then pay")).await;
    let load = || sqlite.load(Tenant::default(), ThreadId::new("t"));
    let during = load().await.unwrap().unwrap();
    assert_eq!(&during.history, state.transcript());
    let waiting = sqlite.list_waiting(Tenant::default(), 9).await.unwrap();
    assert_eq!(waiting[0].status, RunStatus::Suspended);

    let talks = process(yes());
    send(&talks, user("hi")).await.unwrap();
    send(&process(ScriptedModel::new().text("Paid.")), reply(&state))
        .await
        .unwrap();
    let after = load().await.unwrap().unwrap();
    assert_eq!(texts(&after.history), "count, then pay  hi Yes.  Paid.");
    let ended = sqlite.get(waiting[0].key.clone()).await.unwrap();
    assert_eq!(ended.outcome, Some(Ok(Outcome::Completed)));
}
