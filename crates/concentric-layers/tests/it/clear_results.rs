//! One test per statement of [`concentric_layers::clear_results`].

use crate::histories::{Random, assert_view, assistant, cases, random_history, round, user};
use concentric_core::{
    AgentLayer, ChatRequest, Context, Media, MediaSource, Message, MessageId, NoTools, Part,
    PartKind, Round, ToolContent, ToolOutcome, ToolResult, ToolStatus, Transcript, Turn, Usage,
};
use concentric_layers::{
    ClearToolResultsLayer, Next, TrimLayer, from_fn,
    tokens::{ContextBudget, Estimator, TokenCounter},
};
use concentric_test::{ScriptedModel, ScriptedTools, check_layer};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tower::{Layer, ServiceBuilder, ServiceExt};

fn model() -> ScriptedModel {
    // Without a usage, which would correct the counter.
    let model = ScriptedModel::new().text("Yes.").usage(Usage::default());
    model.repeat()
}

fn layer() -> ClearToolResultsLayer {
    ClearToolResultsLayer::new().trigger(0)
}

async fn view(layer: &ClearToolResultsLayer, of: &Transcript) -> Transcript {
    view_in(layer, of, &Context::new()).await
}

async fn view_in(layer: &ClearToolResultsLayer, of: &Transcript, context: &Context) -> Transcript {
    let model = model();
    let request = ChatRequest::new(of.clone()).with_context(context.clone());
    let answer = layer.layer(model.clone()).oneshot(request).await.unwrap();
    answer.collect().await.unwrap();
    model.request(0).transcript
}

/// A message of the user and rounds with results of 400 bytes.
fn rounds(count: usize) -> Transcript {
    let result = "r".repeat(400);
    let rounds = (0..count).map(|_| round("look", &[&result]));
    [user("Look.")].into_iter().chain(rounds).collect()
}

fn results(of: &Transcript) -> Vec<String> {
    let results = of.iter().flat_map(Turn::results);
    results
        .map(|it| it.outcome.content.text().into_owned())
        .collect()
}

fn cleared(of: &Transcript) -> usize {
    let results = results(of);
    results
        .iter()
        .filter(|it| *it == "[result cleared: 400 bytes]")
        .count()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(ClearToolResultsLayer::new()).await;
    check_layer(layer().inputs()).await;
}

#[tokio::test]
async fn results_are_cleared_over_the_trigger_only() {
    let all = rounds(10);
    let tokens = {
        let estimator = Estimator::new();
        all.iter().map(|turn| estimator.turn(turn)).sum::<u64>()
    };
    let at = |trigger: u64| ClearToolResultsLayer::new().trigger(trigger);
    assert_eq!(cleared(&view(&at(tokens), &all).await), 0);
    let sent = view(&at(tokens - 1), &all).await;
    assert_eq!(cleared(&sent), 7);
    assert_eq!(
        results(&sent)[7..],
        ["r".repeat(400), "r".repeat(400), "r".repeat(400)]
    );
    // Half of the context budget.
    for (budget, expected) in [(tokens * 2, 0), (tokens * 2 - 2, 7)] {
        let mut context = Context::new();
        context.provide(ContextBudget(budget));
        let sent = view_in(&ClearToolResultsLayer::new(), &all, &context).await;
        assert_eq!(cleared(&sent), expected);
    }
}

#[tokio::test]
async fn the_newest_results_stay_with_their_rounds() {
    let result = "r".repeat(400);
    let mut all = rounds(2);
    all.push(round("look", &[&result, &result, &result]));
    all.push(assistant("Seen."));
    for (keep, expected) in [
        (0, 5),
        (1, 2),
        (3, 2),
        (4, 1),
        (5, 0),
        (6, 0),
        (usize::MAX, 0),
    ] {
        assert_eq!(
            cleared(&view(&layer().keep(keep), &all).await),
            expected,
            "{keep}"
        );
    }
}

#[tokio::test]
async fn failures_exceptions_and_small_results_stay() {
    let text = "r".repeat(400);
    let of = |outcome: ToolOutcome, name: &'static str| {
        let id = concentric_core::CallId::new("call_1");
        let call = concentric_core::ToolCallPart::new(id.clone(), name, "{}");
        let part = Part::new(PartKind::ToolCall(call));
        let message = Message::new(concentric_core::Role::Assistant, vec![part]);
        let round = Round::new(message, vec![ToolResult::new(id, name, outcome)]);
        Transcript::from_iter([user("Look."), round.unwrap().into()])
    };
    let layer = layer().keep(0).except(["plan"]);
    for all in [
        of(ToolOutcome::failed(text.clone()), "look"),
        of(ToolOutcome::denied(text.clone()), "look"),
        of(ToolOutcome::unknown(text.clone()), "look"),
        of(ToolOutcome::done(text.clone()), "plan"),
        of(ToolOutcome::done("[result cleared: 400 bytes]"), "look"),
    ] {
        let sent = view(&layer, &all).await;
        // Nothing was copied.
        assert!(sent.extends(&all) && all.extends(&sent));
    }
    // Structured data is not sent to models, and stays for the layers inside.
    let mut outcome = ToolOutcome::done(text.clone());
    outcome.data = Some(Arc::new(json!({"rows": [1, 2]})));
    let all = of(outcome, "look");
    let sent = view(&layer, &all).await;
    let result = &sent.last().unwrap().results()[0];
    assert_eq!(result.outcome.content.text(), "[result cleared: 400 bytes]");
    assert_eq!(result.outcome.status, ToolStatus::Done);
    assert_eq!(
        result.outcome.data,
        all.last().unwrap().results()[0].outcome.data
    );
}

#[tokio::test]
async fn clearing_stops_when_enough_is_reclaimed() {
    let all = rounds(10);
    // A round has 106 tokens, and 14 without its result.
    for (least, expected) in [(0, 7), (1, 1), (92, 1), (93, 2), (644, 7), (645, 0)] {
        let layer = layer().clear_at_least(least);
        assert_eq!(cleared(&view(&layer, &all).await), expected, "{least}");
    }
    // Each time.
    let (layer, context) = (layer().clear_at_least(92), Context::new());
    for expected in 1..=3 {
        assert_eq!(cleared(&view_in(&layer, &all, &context).await), expected);
    }
}

#[tokio::test]
async fn arguments_are_cleared_unless_they_are_signed() {
    let all = rounds(2);
    let arguments = |of: &Transcript| {
        let calls = of.iter().flat_map(|turn| turn.as_message().tool_calls());
        calls
            .map(|call| call.arguments.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    let kept = "{\"city\":\"Paris\"}";
    assert_eq!(arguments(&view(&layer().keep(1), &all).await), [kept, kept]);
    assert_eq!(
        arguments(&view(&layer().keep(1).inputs(), &all).await),
        ["{}", kept]
    );

    let signed = all.iter().map(|turn| {
        let Some(round) = turn.as_round() else {
            return turn.clone();
        };
        let mut message = round.message().clone();
        let data = concentric_core::message::ProviderData::new("p", json!("signature"));
        message.parts[0].provider_data = Some(Arc::new(data));
        Round::new(message, round.results().to_vec())
            .unwrap()
            .into()
    });
    let signed: Transcript = signed.collect();
    let sent = view(&layer().keep(1).inputs(), &signed).await;
    assert_eq!(
        (arguments(&sent), cleared(&sent)),
        (vec![kept.to_owned(); 2], 1)
    );
}

#[tokio::test]
async fn a_cleared_result_stays_cleared_in_its_run() {
    let layer = ClearToolResultsLayer::new().trigger(800);
    let context = Context::new();
    let mut all = rounds(8);
    let mut sent: Vec<Transcript> = Vec::new();
    for _ in 0..12 {
        sent.push(view_in(&layer, &all, &context).await);
        all.push(round("look", &["r".repeat(400).as_str()]));
    }
    let counts: Vec<usize> = sent.iter().map(cleared).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    let changes = sent
        .windows(2)
        .filter(|pair| !pair[1].extends(&pair[0]))
        .count();
    assert!(
        changes <= 3,
        "the prefix is stable between changes: {counts:?}"
    );

    // Another process continues, also below the trigger.
    let resumed = Context::new();
    resumed.restore_state(&context.stored_state().unwrap());
    let last = sent.last().unwrap();
    let before = all.prefix(all.len() - 1);
    let high = ClearToolResultsLayer::new().trigger(1 << 40);
    assert_eq!(view_in(&high, &before, &resumed).await, *last);
    // A nested run and another run have their own place.
    assert_eq!(
        cleared(&view_in(&high, &all, &resumed.child().build()).await),
        0
    );
    assert_eq!(cleared(&view(&high, &all).await), 0);
}

#[tokio::test]
async fn the_conversation_and_its_store_keep_the_results() {
    let all = rounds(10);
    let model = model();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(layer())
        .layer(TrimLayer::turns(6))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::new(all.clone())).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(answer.transcript().unwrap().prefix(all.len()), all);
    assert_eq!(cleared(&model.request(0).transcript), 7);
}

#[tokio::test]
async fn random_views_keep_the_rules() {
    for seed in cases(100) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(12);
        let history = random_history(random, exchanges);
        let keep = random.below(5) as usize;
        let layer = ClearToolResultsLayer::new()
            .trigger(random.below(2_000))
            .keep(keep)
            .inputs();
        let layer = layer.clear_at_least(random.below(400));
        let sent = view(&layer, &history).await;
        assert_eq!(sent.len(), history.len());
        if keep > 0 {
            assert_view(&history, &sent);
        }
        for (one, other) in history.iter().zip(sent.iter()) {
            let (one, other) = (one.as_message(), other.as_message());
            // Only arguments change.
            let signed = |message: &Message| {
                let data = message.parts.iter().map(|part| part.provider_data.clone());
                data.collect::<Vec<_>>()
            };
            assert_eq!(signed(one), signed(other), "{seed}");
            assert_eq!((&one.id, one.text()), (&other.id, other.text()));
        }
        // A second layer finds nothing.
        assert_eq!(view(&layer, &sent).await.len(), sent.len());
    }
}

#[tokio::test]
async fn random_steps_have_the_views_of_another_process() {
    for seed in cases(100) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(12);
        let history = random_history(random, exchanges);
        let layer = ClearToolResultsLayer::new()
            .trigger(random.below(2_000))
            .keep(random.below(5) as usize)
            .clear_at_least(random.below(4) * 100);
        let context = Context::new();
        let mut len = 0;
        while len < history.len() {
            len += 1 + random.below(3) as usize;
            let all = history.prefix(len);
            // It has the durable state only.
            let other = Context::new();
            other.restore_state(&context.stored_state().unwrap());
            let sent = view_in(&layer, &all, &context).await;
            assert_eq!(sent, view_in(&layer, &all, &other).await, "{seed}");
        }
    }
}

/// Counts how often a turn is weighed.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl TokenCounter for Counting {
    fn text(&self, text: &str) -> u64 {
        Estimator::new().text(text)
    }

    fn turn(&self, turn: &Turn) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        Estimator::new().turn(turn)
    }
}

#[tokio::test]
async fn a_step_weighs_the_newest_turns_only() {
    let kept_always = layer().except(["look"]);
    for layer in [layer(), kept_always, layer().clear_at_least(1_000)] {
        let counter = Counting::default();
        let layer = layer.counter(counter.clone());
        let (context, mut all) = (Context::new(), rounds(100));
        view_in(&layer, &all, &context).await;
        counter.0.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            all.push(round("look", &["r".repeat(400).as_str()]));
            view_in(&layer, &all, &context).await;
        }
        let count = counter.0.load(Ordering::Relaxed);
        assert!(count <= 100 * 12, "{count}");
    }
}

#[tokio::test]
async fn a_changed_message_keeps_its_id_and_media_are_cleared() {
    let media = Media::new(MediaSource::Id("file".into()));
    let rounds = rounds(1);
    let all = rounds.iter().map(|turn| {
        let Some(round) = turn.as_round() else {
            return turn.clone();
        };
        let mut message = round.message().clone();
        message.id = Some(MessageId::new("m1"));
        let mut results = round.results().to_vec();
        let parts = vec![Part::new(PartKind::Image(media.clone()))];
        results[0].outcome.content = ToolContent::Parts(parts);
        Round::new(message, results).unwrap().into()
    });
    let all: Transcript = all.collect();
    let sent = view(&layer().keep(0), &all).await;
    assert_eq!(results(&sent), ["[result cleared: 0 bytes]"]);
    let id = |of: &Transcript| of.last().unwrap().as_message().id.clone();
    assert_eq!((id(&sent), id(&sent).is_some()), (id(&all), true));
}

#[tokio::test]
async fn an_agent_in_the_models_place_has_its_own_place() {
    // The outer agent has nothing to clear after the first step, and the inner one has.
    let inner = model();
    let nested = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(layer().keep(0))
        .service(inner.clone());
    let looks = |model: ScriptedModel| {
        let model = model.tool_call("look", json!({}));
        model.usage(Usage::default()).then()
    };
    let model = looks(looks(ScriptedModel::new())).text("Done.");
    let seen = model.clone();
    let both = from_fn(move |request: ChatRequest, mut next: Next| {
        let nested = nested.clone();
        async move {
            let mut other = request.clone();
            other.transcript = rounds(20);
            other.transcript.push(user("And?"));
            nested.oneshot(other).await?.collect().await?;
            next.run(request).await
        }
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "seen"),
        ))
        .layer(layer().clear_at_least(93))
        .layer(both)
        .service(model);
    let answer = agent.oneshot(ChatRequest::new(rounds(10))).await;
    answer.unwrap().collect().await.unwrap();
    let counts = seen.requests().into_iter();
    let counts: Vec<usize> = counts.map(|it| cleared(&it.transcript)).collect();
    assert_eq!(counts, [2, 4, 6]);
    let counts = inner.requests().into_iter();
    assert!(counts.map(|it| cleared(&it.transcript)).all(|it| it == 20));
}
