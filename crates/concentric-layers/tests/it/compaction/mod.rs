//! One test per statement of [`concentric_layers::compaction`].

mod committed;
mod cuts;
mod failures;
mod stored;

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
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
    assert!(
        text["conversation"][0]["assistant"]
            .as_str()
            .unwrap()
            .starts_with(".---")
    );
    let conversation = text["conversation"].to_string();
    assert!(conversation.contains(r#"{"user":"8?"#));
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
        let is_stored = Arc::new(AtomicBool::new(true));
        let stored = Arc::clone(&is_stored);
        let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000)
            .after(move |report| stored.store(report.summary.is_some(), Ordering::Relaxed))
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
            // Another process has the same view. Turns whose summary would be longer are left out in one run only.
            let resumed = Context::new();
            resumed.restore_state(&context.stored_state().unwrap());
            let idle = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1 << 40);
            let again = view_in(&idle, &history, &resumed).await;
            match is_stored.load(Ordering::Relaxed) {
                true => assert_eq!(again, sent, "{seed}"),
                false => assert_view(&history, &again),
            }
            // The next messages.
            let more = random_history(random, 1);
            history.push(assistant("Done."));
            history.extend(more.iter().cloned());
        }
    }
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
    let conversation = asked["conversation"].to_string();
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
