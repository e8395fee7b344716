//! One test per statement of [`concentric_layers::compaction`].

use crate::histories::{
    Random, assert_subsequence, assert_view, assistant, cases, is_note, random_history, round, user,
};
use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, Finish, FinishReason, NoTools, ResponseHead, Role, SideEffects, Transcript,
    Turn, Usage, state::Slots,
};
use concentric_layers::{
    BudgetPlugin, CompactionLayer,
    budget::Limits,
    compaction::{self, Cause, CompactionDecision, NO_PROGRESS, Plan, Report, Trigger},
    tokens::ContextBudget,
};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, TestEnvironment, check_layer, drop_at_each_wait,
};
use futures_util::{StreamExt, future::join_all, stream};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_test::task;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn model() -> ScriptedModel {
    // Without a usage, which would correct the counter.
    let model = ScriptedModel::new().text("Yes.").usage(Usage::default());
    model.repeat()
}

/// A model that summarises.
fn summarizer() -> ScriptedModel {
    ScriptedModel::new().text("The summary.").repeat()
}

/// Compacts conversations of more than 200 tokens, and keeps 50.
fn layer(summarizer: &ScriptedModel) -> CompactionLayer {
    CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000)
        .when(Trigger::tokens(200))
        .keep(50)
}

/// A message of 20 tokens.
fn long(text: &str) -> String {
    format!("{text:-<80}")
}

/// Exchanges of 40 tokens each, and a message of the user.
fn exchanges(count: usize) -> Transcript {
    let turns = (0..count).flat_map(|n| [user(long(&format!("{n}?"))), assistant(long("."))]);
    turns.chain([user("Now?")]).collect()
}

fn texts(of: &Transcript) -> Vec<String> {
    let texts = of.iter().map(|turn| turn.as_message().text());
    texts
        .map(|text| text.trim_end_matches('-').to_owned())
        .collect()
}

fn request(of: &Transcript, context: &Context) -> ChatRequest {
    ChatRequest::new(of.clone()).with_context(context.clone())
}

/// The view of a conversation in a call of its own.
async fn view_in(layer: &CompactionLayer, of: &Transcript, context: &Context) -> Transcript {
    let model = model();
    let answer = layer
        .layer(model.clone())
        .oneshot(request(of, context))
        .await
        .unwrap();
    answer.collect().await.unwrap();
    model.request(0).transcript
}

async fn view(layer: &CompactionLayer, of: &Transcript) -> Transcript {
    view_in(layer, of, &Context::new()).await
}

fn overflow() -> Error {
    Error::new(ErrorKind::ContextWindow, "too long")
}

const NOTE: &str = "Summary of the conversation so far:\n\nThe summary.";

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(layer(&summarizer())).await;
    check_layer(layer(&summarizer()).when(Trigger::turns(0)).head(0)).await;
    check_layer(layer(&summarizer()).commit()).await;
}

#[tokio::test]
async fn c117_the_first_message_and_the_current_turn_stay() {
    let summarizer = summarizer();
    let all = exchanges(10);
    let sent = view(&layer(&summarizer), &all).await;
    assert_eq!(texts(&sent), ["0?", NOTE, "9?", ".", "Now?"]);
    assert!(is_note(sent.iter().nth(1).unwrap()));
    assert_eq!(summarizer.calls(), 1);

    // The model that summarises receives the turns as JSON, and no tools.
    let asked = summarizer.request(0);
    assert!(asked.tools.is_empty());
    assert_eq!(asked.options.max_output_tokens, Some(4_000));
    let text = asked.transcript.last().unwrap().as_message().text();
    let text: Value = serde_json::from_str(&text).unwrap();
    let conversation = text["conversation"].as_str().unwrap();
    assert!(conversation.starts_with("assistant: .---") && conversation.contains("user: 8?"));
    assert!(!conversation.contains("0?") && !conversation.contains("9?"));
    assert_eq!(text["previous_summary"], "");
}

#[tokio::test]
async fn c117_views_of_random_histories_have_whole_rounds() {
    let summarizer = summarizer();
    for seed in cases(40) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(14);
        let mut history = random_history(random, exchanges);
        let (head, keep) = (random.below(4) as usize, random.below(600));
        let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000)
            .when(Trigger::tokens(random.below(1_500)))
            .when(Trigger::turns(random.below(40) as usize))
            .keep(keep)
            .head(head)
            .max_summary(50);
        let context = Context::new();
        for _ in 0..4 {
            let sent = view_in(&layer, &history, &context).await;
            assert_view(&history, &sent);
            assert_subsequence(&history, &sent);
            let common = head.min(history.len());
            assert_eq!(sent.prefix(common), history.prefix(common), "{seed}");
            assert!(
                sent.iter().filter(|turn| is_note(turn)).count() <= 1,
                "{seed}"
            );
            // Another process has the same view.
            let resumed = Context::new();
            resumed.restore_state(&context.stored_state().unwrap());
            let idle = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1 << 40);
            assert_eq!(view_in(&idle, &history, &resumed).await, sent, "{seed}");
            // The next messages.
            let more = random_history(random, 1);
            history.push(assistant("Done."));
            history.extend(more.iter().cloned());
        }
    }
}

#[tokio::test]
async fn c118_an_unchanged_history_is_not_sent_again() {
    let summarizer = summarizer();
    let model = ScriptedModel::new().error(overflow()).repeat();
    let huge: Transcript = [user("a".repeat(4 << 20))].into_iter().collect();
    for all in [&huge, &Transcript::from_iter([user("Hi.")])] {
        let calls = model.calls();
        let answer = layer(&summarizer).layer(model.clone());
        let error = answer
            .oneshot(request(all, &Context::new()))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::ContextWindow, Some(NO_PROGRESS))
        );
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!((model.calls() - calls, summarizer.calls()), (1, 0));
    }
}

#[tokio::test]
async fn s070_an_overflow_is_recovered_once() {
    let summarizer = summarizer();
    let all = exchanges(10);
    // The trigger does not hold.
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000).keep(50);
    let model = ScriptedModel::new().error(overflow()).then().text("Yes.");
    let context = Context::new();
    let answer = layer
        .layer(model.clone())
        .oneshot(request(&all, &context))
        .await
        .unwrap();
    assert_eq!(answer.text().await.unwrap(), "Yes.");
    assert_eq!(model.request(0).transcript, all);
    assert_eq!(
        texts(&model.request(1).transcript),
        ["0?", NOTE, "9?", ".", "Now?"]
    );
    // The next step has the summary, too.
    assert_eq!(
        view_in(&layer, &all, &context).await,
        model.request(1).transcript
    );

    // A second overflow is returned.
    let model = ScriptedModel::new().error(overflow()).repeat();
    let error = layer
        .layer(model.clone())
        .oneshot(request(&all, &Context::new()))
        .await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.message(), error.code(), model.calls()),
        ("too long", None, 2)
    );
    assert_eq!(error.attempts(), 2);
    // Other errors are, too, and this one if there is no recovery.
    let other = Error::new(ErrorKind::Overloaded, "busy");
    for (layer, error) in [(layer.clone(), other), (layer.no_recovery(), overflow())] {
        let model = ScriptedModel::new().error(error.clone());
        let failed = layer
            .layer(model.clone())
            .oneshot(request(&all, &Context::new()))
            .await;
        assert_eq!(
            (failed.unwrap_err().kind(), model.calls()),
            (error.kind(), 1)
        );
    }
}

#[tokio::test]
async fn an_overflow_after_a_possible_effect_is_passed() {
    let summarizer = summarizer();
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000).keep(50);
    let calls = Arc::new(AtomicUsize::new(0));
    for is_stated in [true, false] {
        calls.store(0, Ordering::Relaxed);
        let counted = Arc::clone(&calls);
        let model = service_fn(move |request: ChatRequest| {
            counted.fetch_add(1, Ordering::Relaxed);
            let error = match is_stated {
                true => overflow().with_effects(SideEffects::Possible),
                // A layer in between has replaced the error of an agent.
                false => {
                    request.context.count_effect();
                    overflow()
                }
            };
            std::future::ready(Err::<ChatResponse<EventStream>, _>(error))
        });
        let context = Context::new();
        let error = layer
            .layer(model)
            .oneshot(request(&exchanges(10), &context))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::ContextWindow, None)
        );
        assert_eq!((calls.load(Ordering::Relaxed), summarizer.calls()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_is_given_up_with_the_run() {
    let layer = layer(&summarizer()).before(|_| std::future::pending());
    let model = model();
    let all = exchanges(10);
    let context = Context::new();
    let call = layer.layer(model.clone());
    let mut call = task::spawn(call.oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    context.cancel(CancelReason::User);
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Cancelled);

    let soon = std::time::SystemTime::now() + Duration::from_secs(5);
    let context = Context::builder().deadline(soon).build();
    let call = layer.layer(model.clone()).oneshot(request(&all, &context));
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_skipped_request_does_not_raise_the_trigger() {
    let summarizer = summarizer();
    let layer = layer(&summarizer).before(async |plan: Plan| match plan.cause {
        Cause::Request => CompactionDecision::Skip,
        _ => CompactionDecision::Proceed,
    });
    let context = Context::new();
    let mut all = exchanges(4);
    for _ in 0..3 {
        compaction::request(&context).unwrap();
        assert_eq!(view_in(&layer, &all, &context).await, all);
    }
    // 201 tokens.
    all.push(assistant(long(".")));
    all.push(user(long("Now?")));
    view_in(&layer, &all, &context).await;
    assert_eq!(summarizer.calls(), 1);
}

#[tokio::test]
async fn an_overflow_in_a_committed_answer_is_passed() {
    let model = ScriptedModel::new().text("It ").error(overflow());
    let answer = layer(&summarizer()).layer(model.clone());
    let answer = answer
        .oneshot(request(&exchanges(4), &Context::new()))
        .await
        .unwrap();
    let error = answer.collect().await.unwrap_err().error;
    assert_eq!((error.kind(), model.calls()), (ErrorKind::ContextWindow, 1));
}

/// A model that records its usage, as those of providers do.
fn recording(model: ScriptedModel) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let model = model.clone();
        async move {
            let head = ResponseHead::new("p", "small");
            request.context.record_usage(&head, Usage::new(300, 7));
            model.oneshot(request).await
        }
    }))
}

#[tokio::test]
async fn c119_a_failed_summary_is_a_truncation_whose_usage_counts() {
    let ended = |reason| {
        ScriptedModel::new()
            .text("Half a su")
            .finish(Finish::new(reason, Usage::default()))
    };
    let failing: [&dyn Fn() -> ScriptedModel; 6] = [
        &|| ScriptedModel::new().error(Error::new(ErrorKind::Server, "broken")),
        &|| {
            ScriptedModel::new()
                .text("It ")
                .error(Error::new(ErrorKind::Connection, "cut"))
        },
        &|| ScriptedModel::new().text("  "),
        &|| ended(FinishReason::Length),
        &|| ended(FinishReason::ContentFilter),
        &|| ScriptedModel::new().text("a".repeat(10_000)),
    ];
    for failing in failing {
        let layer = CompactionLayer::new(recording(failing().repeat()), 1_000)
            .when(Trigger::tokens(200))
            .keep(50);
        let model = model();
        let agent = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
        let answer = agent
            .oneshot(ChatRequest::new(exchanges(10)))
            .await
            .unwrap();
        let finish = answer.collect().await.unwrap().finish;
        assert_eq!(
            texts(&model.request(0).transcript),
            ["0?", "9?", ".", "Now?"]
        );
        let usage = finish.run_usage();
        let small = usage
            .models()
            .iter()
            .find(|it| it.model.as_deref() == Some("small"))
            .unwrap();
        assert_eq!(small.usage, Usage::new(300, 7));
    }
}

#[tokio::test]
async fn a_failed_summary_is_tried_again_after_growth_only() {
    let summarizer = ScriptedModel::new()
        .error(Error::new(ErrorKind::Server, "broken"))
        .repeat();
    let layer = layer(&summarizer);
    let context = Context::new();
    let mut all = exchanges(5);
    // 202 tokens, and 20 more in each step.
    let mut calls = Vec::new();
    for _ in 0..24 {
        view_in(&layer, &all, &context).await;
        calls.push(summarizer.calls());
        all.push(assistant(long(".")));
        all.push(user("Now?"));
    }
    assert_eq!(calls[0], 1);
    // At 220 tokens of the view, at 242, and so on.
    let attempts = *calls.last().unwrap();
    assert!((2..=4).contains(&attempts), "{calls:?}");
}

#[tokio::test]
async fn c120_the_stored_history_is_unchanged() {
    let all = exchanges(10);
    let model = model();
    let summarizer = summarizer();
    let agent = AgentLayer::new(NoTools).layer(layer(&summarizer).layer(model.clone()));
    let answer = agent.oneshot(ChatRequest::new(all.clone())).await.unwrap();
    let mut body = answer.body;
    let (mut finish, mut customs) = (None, Vec::new());
    while let Some(event) = body.next().await {
        match event.unwrap() {
            Event::TranscriptReplaced(_) => panic!("the consumer's conversation is unchanged"),
            Event::Custom(custom) => customs.push((custom.name.clone(), custom.value.clone())),
            Event::Finish(it) => finish = Some(it),
            _ => {}
        }
    }
    let kept = finish.unwrap().transcript.unwrap();
    assert_eq!(kept.prefix(all.len()), all);
    assert_eq!(model.request(0).transcript.len(), 5);
    let value = json!({"turns": 18, "tokens_before": 401, "tokens_after": 74, "summarised": true});
    assert_eq!(customs, [("concentric.compacted".into(), value)]);
}

#[tokio::test]
async fn c121_a_hook_that_panics_is_ignored() {
    let summarizer = summarizer();
    let now = layer(&summarizer)
        .before(|_| -> std::future::Ready<CompactionDecision> { panic!("a hook") })
        .after(|_| panic!("a hook"));
    assert_eq!(view(&now, &exchanges(10)).await.len(), 5);
    let later = layer(&summarizer).before(async |_| {
        tokio::task::yield_now().await;
        panic!("a hook")
    });
    assert_eq!(view(&later, &exchanges(10)).await.len(), 5);
}

#[tokio::test]
async fn hooks_skip_replace_and_observe() {
    let (summarizer, seen) = (summarizer(), Arc::new(Mutex::new(Vec::new())));
    let reports = Arc::clone(&seen);
    let layer = layer(&summarizer).after(move |report: &Report| {
        let summary = report.summary.as_deref().map(str::to_owned);
        reports
            .lock()
            .unwrap()
            .push((report.cause, report.turns, summary));
    });
    let all = exchanges(10);
    let skipping = layer.clone().before(async |plan: Plan| {
        assert_eq!(
            (plan.cause, plan.turns.len(), plan.tokens),
            (Cause::Trigger, 17, 401)
        );
        CompactionDecision::Skip
    });
    assert_eq!(view(&skipping, &all).await, all);
    assert!(seen.lock().unwrap().is_empty());

    let own = layer
        .clone()
        .before(async |_| CompactionDecision::Instead("My own.".into()));
    let sent = view(&own, &all).await;
    assert!(texts(&sent)[1].ends_with("My own."));
    assert_eq!(summarizer.calls(), 0);
    let expected = (Cause::Trigger, 18, Some("My own.".to_owned()));
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [expected]);

    // An overflow is not skipped, and no summary is not one.
    for decision in [
        CompactionDecision::Skip,
        CompactionDecision::Instead(" ".into()),
    ] {
        let layer = layer
            .clone()
            .before(move |_| std::future::ready(decision.clone()));
        let model = ScriptedModel::new().error(overflow()).then().text("Yes.");
        let all = exchanges(4);
        layer
            .layer(model.clone())
            .oneshot(request(&all, &Context::new()))
            .await
            .unwrap();
        assert_eq!(texts(&model.request(1).transcript)[1], NOTE);
    }
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(cause, ..)| *cause == Cause::Overflow) && seen.len() == 2);
}

#[tokio::test]
async fn a_later_summary_includes_the_earlier_one() {
    let summarizer = ScriptedModel::new()
        .text("One.")
        .then()
        .text("Two.")
        .repeat();
    let layer = layer(&summarizer);
    let context = Context::new();
    let mut all = exchanges(10);
    view_in(&layer, &all, &context).await;
    for n in 10..20 {
        all.push(assistant(long(".")));
        all.push(user(long(&format!("{n}?"))));
        view_in(&layer, &all, &context).await;
    }
    let sent = view_in(&layer, &all, &context).await;
    assert_eq!(sent.iter().filter(|turn| is_note(turn)).count(), 1);
    assert!(texts(&sent)[1].ends_with("Two."));
    let asked = summarizer
        .request(1)
        .transcript
        .last()
        .unwrap()
        .as_message()
        .text();
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert_eq!(asked["previous_summary"], "One.");
    // The turns since only.
    let conversation = asked["conversation"].as_str().unwrap();
    assert!(
        conversation.contains("9?") && !conversation.contains("8?"),
        "{conversation}"
    );
}

#[tokio::test]
async fn the_prefix_is_the_same_between_compactions() {
    let summarizer = summarizer();
    let mut model = ScriptedModel::new();
    for _ in 0..30 {
        model = model.tool_call("look", json!({})).then();
    }
    let model = model.text("Done.");
    let tools = ScriptedTools::new().answers("look", long("seen"));
    let agent = AgentLayer::new(tools).layer(layer(&summarizer).layer(model.clone()));
    let answer = agent
        .oneshot(ChatRequest::new(exchanges(10)))
        .await
        .unwrap();
    answer.collect().await.unwrap();
    let requests = model.requests();
    let moved = requests.windows(2).filter(|pair| {
        let (one, next) = (&pair[0].transcript, &pair[1].transcript);
        !next.extends(one)
    });
    assert_eq!(moved.count(), summarizer.calls() - 1);
    assert!(
        (3..10).contains(&summarizer.calls()),
        "{}",
        summarizer.calls()
    );
    for request in &requests {
        let users = request
            .transcript
            .iter()
            .filter(|turn| turn.as_message().text() == "Now?");
        assert_eq!(users.count(), 1, "the task stays");
    }
}

#[tokio::test]
async fn a_long_exchange_is_summarised_up_to_its_last_round() {
    let summarizer = summarizer();
    let layer = layer(&summarizer).max_summary(20);
    let mut all = Transcript::from_iter([user("The task.")]);
    for n in 0..12 {
        all.push(round("look", &[&long(&format!("result {n}"))]));
    }
    let sent = view(&layer, &all).await;
    // The head is the message of the user.
    assert_eq!(texts(&sent)[..2], ["The task.", NOTE]);
    assert_eq!(sent.len(), 3);
    assert_subsequence(&all, &sent);

    // Without a head, the messages of the user are kept after the summary.
    let mut all = exchanges(2);
    all.push(round("look", &[&long("a")]));
    all.push(user("Faster!"));
    for n in 0..12 {
        all.push(round("look", &[&long(&format!("result {n}"))]));
    }
    let sent = view(&layer.clone().head(0), &all).await;
    assert_eq!(texts(&sent)[..3], [NOTE, "Now?", "Faster!"]);
    assert_eq!(sent.len(), 4);
    // A round that is larger than what is kept stays: the model has not seen it.
    all.push(round("look", &[&"a".repeat(4_000)]));
    let sent = view(&layer.head(0), &all).await;
    assert_eq!(sent.last(), all.last());
    assert_eq!(sent.len(), 4);
}

#[tokio::test]
async fn triggers_are_alternatives_and_combinations() {
    let all = exchanges(10);
    // 401 tokens and 21 turns.
    for (triggers, holds) in [
        (vec![Trigger::tokens(401)], false),
        (vec![Trigger::tokens(400)], true),
        (vec![Trigger::fraction(0.41)], false),
        (vec![Trigger::fraction(0.4)], true),
        (vec![Trigger::turns(21)], false),
        (vec![Trigger::turns(20)], true),
        (vec![Trigger::tokens(400).and(Trigger::turns(21))], false),
        (vec![Trigger::tokens(400).and(Trigger::turns(20))], true),
        (vec![Trigger::tokens(1_000), Trigger::turns(20)], true),
        (vec![], false),
        (vec![Trigger::fraction(f64::NAN)], false),
        (vec![Trigger::fraction(-1.0)], true),
        (vec![Trigger::tokens(u64::MAX)], false),
    ] {
        let summarizer = summarizer();
        let mut layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000).keep(50);
        for trigger in &triggers {
            layer = layer.when(*trigger);
        }
        view(&layer, &all).await;
        assert_eq!(summarizer.calls() > 0, holds, "{triggers:?}");
    }
    // By default, at 85 % of the window, or of a context budget.
    for (window, budget, holds) in [
        (472, None, false),
        (471, None, true),
        (9_000, Some(471), true),
    ] {
        let summarizer = summarizer();
        let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), window).keep(50);
        let mut context = Context::new();
        if let Some(budget) = budget {
            context.provide(ContextBudget(budget));
        }
        view_in(&layer, &all, &context).await;
        assert_eq!(summarizer.calls() > 0, holds, "{window} {budget:?}");
    }
}

#[tokio::test]
async fn the_reported_usage_counts_if_it_is_larger() {
    let summarizer = summarizer();
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000)
        .when(Trigger::tokens(10_000))
        .keep(50)
        .counter(Bytes);
    let context = Context::new();
    let mut all = exchanges(10);
    let mut usage = Usage::new(9_900, 1);
    usage.set_cached_input_tokens(Some(9_000));
    let model = ScriptedModel::new().text("Yes.").usage(usage).repeat();
    let call = async |all: &Transcript| {
        let answer = layer
            .layer(model.clone())
            .oneshot(request(all, &context))
            .await;
        answer.unwrap().collect().await.unwrap();
        summarizer.calls()
    };
    assert_eq!(call(&all).await, 0);
    all.push(assistant("a".repeat(99)));
    assert_eq!(call(&all).await, 0);
    all.push(user("a".repeat(200)));
    assert_eq!(call(&all).await, 1);
}

/// Counts bytes.
struct Bytes;

impl concentric_layers::tokens::TokenCounter for Bytes {
    fn text(&self, text: &str) -> u64 {
        text.len() as u64
    }

    fn turn(&self, turn: &Turn) -> u64 {
        turn.as_message().text().len() as u64
    }
}

#[tokio::test]
async fn a_summary_is_used_by_resumed_and_later_runs_of_its_thread() {
    let summarizer = summarizer();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let in_thread = |slots: &Slots| {
        let mut context = Context::new();
        context.set_thread_slots(slots.clone());
        context
    };
    let mut all = exchanges(10);
    let first = view_in(&layer, &all, &in_thread(&thread)).await;
    assert_eq!(summarizer.calls(), 1);
    // Another run in another process, with a history that was loaded.
    let stored = serde_json::to_string(&thread.snapshot().unwrap()).unwrap();
    let restored = Slots::restore(serde_json::from_str::<Vec<_>>(&stored).unwrap());
    let json = serde_json::to_string(&all).unwrap();
    all = serde_json::from_str(&json).unwrap();
    assert_eq!(view_in(&layer, &all, &in_thread(&restored)).await, first);
    all.push(assistant("Yes."));
    all.push(user("And?"));
    let more = view_in(&layer, &all, &in_thread(&restored)).await;
    assert_eq!((more.prefix(first.len()), summarizer.calls()), (first, 1));

    // A run that is resumed without a thread.
    let context = Context::new();
    view_in(&layer, &all, &context).await;
    let resumed = Context::new();
    resumed.restore_state(&context.stored_state().unwrap());
    view_in(&layer, &all, &resumed).await;
    assert_eq!(summarizer.calls(), 2);

    // A covered turn was edited.
    let edited = all.iter().enumerate().map(|(index, turn)| match index {
        3 => assistant(long("another answer")),
        _ => turn.clone(),
    });
    let edited: Transcript = edited.collect();
    view_in(&layer, &edited, &in_thread(&restored)).await;
    assert_eq!(summarizer.calls(), 3);
    // A shorter history is below the trigger.
    let short = exchanges(2);
    assert_eq!(view_in(&layer, &short, &in_thread(&restored)).await, short);
}

#[tokio::test]
async fn nested_runs_do_not_use_the_summary_of_their_thread() {
    let summarizer = summarizer();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let mut context = Context::new();
    context.set_thread_slots(thread.clone());
    let all = exchanges(10);
    let sent = view_in(&layer, &all, &context).await;
    let nested = context.child().build();
    let other: Transcript = exchanges(12);
    view_in(&layer, &other, &nested).await;
    assert_eq!(summarizer.calls(), 2);
    // The parent's is still there.
    assert_eq!(view_in(&layer, &all, &context).await, sent);
    let mut later = Context::new();
    later.set_thread_slots(thread);
    assert_eq!(view_in(&layer, &all, &later).await, sent);
    assert_eq!(summarizer.calls(), 2);
}

#[tokio::test]
async fn parallel_runs_of_a_thread_have_valid_views() {
    let summarizer = ScriptedModel::new().pause().text("The summary.").repeat();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let runs = (0..8).map(|run| {
        let (layer, thread) = (&layer, &thread);
        async move {
            let mut context = Context::new();
            context.set_thread_slots(thread.clone());
            let mut all = exchanges(10 + run);
            for _ in 0..3 {
                let sent = view_in(layer, &all, &context).await;
                assert_view(&all, &sent);
                assert_subsequence(&all, &sent);
                all.push(assistant("Yes."));
                all.push(user("And?"));
            }
        }
    });
    join_all(runs).await;
    assert!(summarizer.calls() <= 8);
}

#[tokio::test]
async fn a_compaction_can_be_requested() {
    let summarizer = summarizer();
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1 << 40).keep(10);
    // By a tool.
    let model = ScriptedModel::new()
        .tool_call("compact", json!({}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().tool("compact", async |call| {
        compaction::request(&call.context).unwrap();
        concentric_core::ToolOutcome::done("It will be.")
    });
    let agent = AgentLayer::new(tools).layer(layer.layer(model.clone()));
    let answer = agent.oneshot(ChatRequest::new(exchanges(4))).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(model.request(0).transcript.len(), 9);
    assert_eq!(
        texts(&model.request(1).transcript)[..3],
        ["0?", NOTE, "Now?"]
    );
    assert_eq!(summarizer.calls(), 1);

    // By a host, once.
    let context = Context::new();
    compaction::request(&context).unwrap();
    let all = exchanges(4);
    for _ in 0..2 {
        assert_eq!(view_in(&layer, &all, &context).await.len(), 3);
    }
    assert_eq!(summarizer.calls(), 2);
    // There is nothing to summarise.
    compaction::request(&context).unwrap();
    let short = exchanges(0);
    assert_eq!(view_in(&layer, &short, &context).await, short);
}

/// The conversation of a run after it, and the conversations that replaced the consumer's.
async fn committed(
    layer: CompactionLayer,
    all: &Transcript,
) -> (Vec<ChatRequest>, Transcript, usize) {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = AgentLayer::new(tools).layer(layer.layer(model.clone()));
    let mut body = agent
        .oneshot(ChatRequest::new(all.clone()))
        .await
        .unwrap()
        .body;
    let (mut kept, mut replaced) = (None, 0);
    while let Some(event) = body.next().await {
        match event.unwrap() {
            Event::TranscriptReplaced(_) => replaced += 1,
            Event::Finish(finish) => kept = finish.transcript,
            _ => {}
        }
    }
    (model.requests(), kept.unwrap(), replaced)
}

#[tokio::test]
async fn a_committed_summary_replaces_the_conversation() {
    let summarizer = summarizer();
    let all = exchanges(10);
    let (requests, kept, replaced) = committed(layer(&summarizer).commit(), &all).await;
    let expected = ["0?", NOTE, "9?", ".", "Now?"];
    assert_eq!(texts(&requests[0].transcript), expected);
    assert!(requests[1].transcript.extends(&requests[0].transcript));
    assert_eq!(texts(&kept.prefix(5)), expected);
    assert_eq!((kept.len(), replaced, summarizer.calls()), (7, 1, 1));

    // The message of the user is there once, wherever it was.
    let mut exchange = Transcript::from_iter([user("The task.")]);
    for n in 0..12 {
        exchange.push(round("look", &[&long(&format!("result {n}"))]));
    }
    for head in [0, 1, 3] {
        let layer = layer(&summarizer).max_summary(20).head(head).commit();
        let (requests, kept, _) = committed(layer, &exchange).await;
        for of in [&requests[0].transcript, &requests[1].transcript, &kept] {
            let tasks = texts(of).iter().filter(|text| *text == "The task.").count();
            let notes = of.iter().filter(|turn| is_note(turn)).count();
            assert_eq!((tasks, notes), (1, 1), "{head}");
        }
    }

    // A second compaction folds the committed summary in.
    let mut longer = kept;
    for n in 0..10 {
        longer.push(user(long(&format!("more {n}"))));
        longer.push(assistant(long(".")));
    }
    longer.push(user("Now?"));
    let (_, kept, _) = committed(layer(&summarizer).commit(), &longer).await;
    assert_eq!(kept.iter().filter(|turn| is_note(turn)).count(), 1);
    let last = summarizer.requests().pop().unwrap().transcript;
    let asked = last.last().unwrap().as_message().text();
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert!(
        asked["previous_summary"]
            .as_str()
            .unwrap()
            .contains("The summary.")
    );
    assert!(
        !asked["conversation"]
            .as_str()
            .unwrap()
            .contains("The summary.")
    );
}

#[tokio::test]
async fn a_summary_that_was_not_committed_is_not_made_again() {
    let summarizer = summarizer();
    let all = exchanges(10);
    let layer = layer(&summarizer).commit();
    // The model fails, or the process ends, before the commit.
    let context = Context::new();
    let failing = ScriptedModel::new().error(Error::new(ErrorKind::Server, "broken"));
    let failed = layer.layer(failing).oneshot(request(&all, &context)).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Server);
    let stored = context.stored_state().unwrap();
    let resumed = Context::new();
    resumed.restore_state(&stored);
    for context in [context, resumed] {
        let model = model();
        let agent = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
        let answer = agent.oneshot(request(&all, &context)).await.unwrap();
        let kept = answer.collect().await.unwrap();
        assert_eq!(kept.transcript().unwrap().len(), 6);
        assert_eq!(summarizer.calls(), 1);
    }
}

#[tokio::test]
async fn c117_committed_random_histories_have_whole_rounds() {
    let summarizer = summarizer();
    for seed in cases(40) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(14);
        let history = random_history(random, exchanges);
        let head = random.below(4) as usize;
        let layer = layer(&summarizer).head(head).max_summary(20).commit();
        let (requests, kept, _) = committed(layer, &history).await;
        let sent = &requests[0].transcript;
        let newest = |of: &Transcript| {
            let mut turns = of.rev().map(Turn::as_message);
            turns
                .find(|it| {
                    it.role == Role::User && !is_note(&Turn::message((*it).clone()).unwrap())
                })
                .cloned()
        };
        assert_eq!(newest(sent), newest(&history), "{seed}");
        assert!(
            kept.iter().filter(|turn| is_note(turn)).count() <= 1,
            "{seed}"
        );
        for turn in sent.iter() {
            assert_eq!(turn.as_message().tool_calls().count(), turn.results().len());
        }
    }
}

#[tokio::test]
async fn a_cancelled_run_drops_its_summary() {
    let env = TestEnvironment::new();
    let summarizer = ScriptedModel::new().never();
    let layer = layer(&summarizer);
    let (model, all) = (model(), exchanges(10));

    let context = env.context();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    assert_eq!(summarizer.live(), 1);
    context.cancel(CancelReason::User);
    assert!(call.is_woken());
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!((summarizer.live(), model.calls()), (0, 0));

    // The deadline of the run.
    let summarizer = ScriptedModel::new().never();
    let layer = self::layer(&summarizer);
    let deadline = env.context().now() + Duration::from_secs(5);
    let context = env.context_builder().deadline(deadline).build();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    env.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!((summarizer.live(), model.calls()), (0, 0));

    // The time of the summary: the turns are left out.
    let summarizer = ScriptedModel::new().never();
    let layer = self::layer(&summarizer).timeout(Duration::from_secs(5));
    let context = env.context();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    env.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    call.await.unwrap().collect().await.unwrap();
    assert_eq!(
        texts(&model.request(0).transcript),
        ["0?", "9?", ".", "Now?"]
    );
    assert_eq!(summarizer.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_leaves_no_call() {
    let gate = Gate::default();
    gate.open();
    let summarizer = ScriptedModel::new()
        .pause()
        .text("The ")
        .pause()
        .text("summary.")
        .repeat();
    let model = ScriptedModel::new()
        .pause()
        .error(overflow())
        .then()
        .pause()
        .text("Yes.")
        .repeat();
    let run = || {
        let layer = layer(&summarizer).before(async |_| {
            tokio::task::yield_now().await;
            CompactionDecision::Proceed
        });
        let service = layer.layer(model.clone());
        async move {
            let answer = service
                .oneshot(request(&exchanges(10), &Context::new()))
                .await;
            if let Ok(answer) = answer {
                let _ = answer.collect().await;
            }
        }
    };
    drop_at_each_wait(run, async |_| {
        assert_eq!((summarizer.live(), model.live()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_summary_is_charged_to_the_budget_of_the_run() {
    let summarizer = ScriptedModel::new()
        .text("The summary.")
        .usage(Usage::new(500, 9))
        .repeat();
    let budget = BudgetPlugin::new(Limits::new().input_tokens(100_000));
    let charged = BoxModel::new(budget.model().layer(summarizer.clone()));
    let compaction = CompactionLayer::new(charged, 1_000)
        .when(Trigger::tokens(200))
        .keep(50);
    let spent = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&spent);
    let model = service_fn(move |request: ChatRequest| {
        let budget = request.context.capability::<concentric_layers::Budget>();
        let spent = budget.unwrap().spent();
        *seen.lock().unwrap() = (spent.input_tokens, spent.model_calls);
        let events = [
            Ok(Event::text("Yes.")),
            Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        ];
        let body = EventStream::new(stream::iter(events));
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let agent = AgentLayer::new(NoTools).layer(compaction.layer(model));
    let agent = budget.run().layer(agent);
    let answer = agent
        .oneshot(ChatRequest::new(exchanges(10)))
        .await
        .unwrap();
    answer.collect().await.unwrap();
    assert_eq!(*spent.lock().unwrap(), (500, 1));
}

#[tokio::test]
async fn an_exhausted_budget_means_a_truncation() {
    let summarizer = summarizer();
    let budget = BudgetPlugin::new(Limits::new().input_tokens(100));
    let charged = BoxModel::new(budget.model().layer(summarizer.clone()));
    let compaction = CompactionLayer::new(charged, 1_000)
        .when(Trigger::tokens(200))
        .keep(50);
    let model = model();
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(NoTools))
        .layer(compaction)
        .layer(budget.model())
        .service(model.clone());
    let answer = agent
        .oneshot(ChatRequest::new(exchanges(10)))
        .await
        .unwrap();
    answer.collect().await.unwrap();
    assert_eq!(summarizer.calls(), 0);
    assert_eq!(
        texts(&model.request(0).transcript),
        ["0?", "9?", ".", "Now?"]
    );
}

#[tokio::test]
async fn a_large_conversation_is_summarised_within_its_limits() {
    let summarizer = summarizer();
    let mut all = Transcript::from_iter([user("The task.")]);
    for _ in 0..100 {
        all.push(round("look", &[&"Zürich".repeat(8_000)]));
    }
    all.push(assistant("Done."));
    all.push(user("Now?"));
    let layer = layer(&summarizer).max_input(100_000).prompt("Summarise.");
    let sent = view(&layer, &all).await;
    assert_eq!(sent.len(), 4);
    let asked = summarizer.request(0);
    assert_eq!(asked.system.text(), "Summarise.");
    let text = asked.transcript.last().unwrap().as_message().text();
    assert!((90_000..110_000).contains(&text.len()), "{}", text.len());
    assert!(text.contains("bytes left out"));
}

#[tokio::test]
async fn a_plan_for_ten_thousand_turns_is_fast() {
    let summarizer = summarizer();
    let all: Transcript = (0..5_000)
        .flat_map(|n| [user(long(&format!("{n}?"))), round("look", &["seen"])])
        .chain([assistant("Done."), user("Now?")])
        .collect();
    // A usual window, in which nothing is due, and what the summary takes.
    let layer = CompactionLayer::new(BoxModel::new(summarizer), 1 << 40);
    let planned = Arc::new(Mutex::new(None));
    let at = Arc::clone(&planned);
    let due = layer
        .clone()
        .when(Trigger::tokens(1_000))
        .keep(5_000)
        .before(move |_| {
            *at.lock().unwrap() = Some(Instant::now());
            std::future::ready(CompactionDecision::Skip)
        });
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let context = Context::new();
        let start = Instant::now();
        view_in(&due, &all, &context).await;
        least = least.min(planned.lock().unwrap().unwrap() - start);
    }
    println!("10,002 turns are counted and planned in {least:?}");
    let limit = Duration::from_millis(if cfg!(debug_assertions) { 2_000 } else { 5 });
    assert!(least < limit, "{least:?}");

    // A later step.
    let context = Context::new();
    let mut all = all;
    view_in(&layer, &all, &context).await;
    let mut least = Duration::MAX;
    for _ in 0..20 {
        all.push(user("one more"));
        let start = Instant::now();
        view_in(&layer, &all, &context).await;
        least = least.min(start.elapsed());
    }
    println!("a step with one more turn takes {least:?}");
    assert!(least < limit / 4, "{least:?}");
}
