//! One test per statement of [`concentric_layers::trim`].

use crate::histories::{
    Random, assert_subsequence, assert_view, assistant, cases, is_note, random_history, round, user,
};
use concentric_core::{
    AgentLayer, ChatRequest, Context, Error, Event, NoTools, Part, PartKind, Reply, Role,
    Transcript, Turn, Usage,
};
use concentric_layers::{
    Next, TrimLayer, from_fn,
    tokens::{ContextBudget, Estimator, TokenCounter},
};
use concentric_test::{ScriptedModel, ScriptedTools, TestEnvironment, check_layer};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tower::{Layer, ServiceBuilder, ServiceExt};

fn model() -> ScriptedModel {
    // Without a usage, which would correct the counter.
    let model = ScriptedModel::new().text("Yes.").usage(Usage::default());
    model.repeat()
}

/// The view of a conversation in a call of its own.
async fn view(layer: &TrimLayer, of: &Transcript) -> Transcript {
    view_in(layer, of, &Context::new()).await
}

async fn view_in(layer: &TrimLayer, of: &Transcript, context: &Context) -> Transcript {
    let model = model();
    let request = ChatRequest::new(of.clone()).with_context(context.clone());
    let answer = layer.layer(model.clone()).oneshot(request).await.unwrap();
    answer.collect().await.unwrap();
    model.request(0).transcript
}

fn exchanges(count: usize) -> Transcript {
    let turns = (0..count).flat_map(|n| [user(format!("{n}?")), assistant(format!("{n}."))]);
    let mut all: Transcript = turns.collect();
    all.push(user("Now?"));
    all
}

fn texts(of: &Transcript) -> Vec<String> {
    of.iter().map(|turn| turn.as_message().text()).collect()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(TrimLayer::turns(1)).await;
    check_layer(TrimLayer::tokens(1).drop_reasoning(1).drop_media(1)).await;
}

#[tokio::test]
async fn a_limit_counts_turns_messages_or_tokens() {
    let all = exchanges(10);
    assert_eq!(view(&TrimLayer::turns(21), &all).await, all);
    // At most 80 % of 20, 10 and 5.
    assert_eq!(view(&TrimLayer::turns(20), &all).await.len(), 16);
    assert_eq!(view(&TrimLayer::messages(10), &all).await.len(), 8);
    let short = view(&TrimLayer::turns(5).head(2).marker("(removed)"), &all).await;
    assert_eq!(texts(&short), ["0?", "0.", "(removed)", "Now?"]);
    assert!(is_note(short.iter().nth(2).unwrap()));
    let whole = TrimLayer::turns(5).head(usize::MAX);
    assert_eq!(view(&whole, &all).await, all);

    // A round with two results is three messages.
    let mut rounds: Transcript = [user("Look.")].into_iter().collect();
    rounds.push(round("look", &["a", "b"]));
    rounds.push(assistant("Seen."));
    rounds.push(user("And?"));
    assert_eq!(view(&TrimLayer::messages(6), &rounds).await, rounds);
    assert_eq!(view(&TrimLayer::messages(5), &rounds).await.len(), 2);

    // The system prompt is a part of the request: 10 tokens of turns, and 10 of the prompt.
    let all: Transcript = [
        user("a".repeat(20)),
        assistant("a".repeat(12)),
        user("12345678"),
    ]
    .into_iter()
    .collect();
    for (tokens, turns) in [(20, 3), (19, 2)] {
        let model = model();
        let request = ChatRequest::new(all.clone()).with_system("a".repeat(40));
        let layer = TrimLayer::tokens(tokens);
        layer.layer(model.clone()).oneshot(request).await.unwrap();
        assert_eq!(model.request(0).transcript.len(), turns, "{tokens}");
    }
}

#[tokio::test]
async fn a_lower_context_budget_is_the_limit() {
    let all: Transcript = (0..10)
        .flat_map(|_| [user("a".repeat(40)), assistant("a".repeat(40))])
        .chain([user("Now?")])
        .collect();
    for (budget, turns) in [(1_000, 21), (100, 8)] {
        let mut context = Context::new();
        context.provide(ContextBudget(budget));
        let view = view_in(&TrimLayer::tokens(1_000), &all, &context).await;
        assert_eq!(view.len(), turns);
    }
}

#[tokio::test]
async fn the_current_exchange_is_always_sent_whole() {
    let mut all = exchanges(3);
    for _ in 0..4 {
        all.push(round("look", &["seen"]));
    }
    // The user's message and four rounds.
    assert_eq!(view(&TrimLayer::turns(5), &all).await.len(), 5);
    // It exceeds the limit, so that nothing else is sent, but the head.
    for layer in [
        TrimLayer::turns(4),
        TrimLayer::turns(0),
        TrimLayer::tokens(0),
    ] {
        assert_eq!(
            view(&layer, &all).await,
            all.turns_after(6).into_iter().collect()
        );
        let short = texts(&view(&layer.head(1).marker("(removed)"), &all).await);
        assert_eq!(short, ["0?", "(removed)", "Now?", "", "", "", ""]);
    }

    // A message that was added to the run belongs to its exchange, if that fits.
    all.push(user("Faster!"));
    all.push(round("look", &["seen"]));
    assert_eq!(texts(&view(&TrimLayer::turns(7), &all).await)[0], "Now?");
    let short = texts(&view(&TrimLayer::turns(6), &all).await);
    assert_eq!(short, ["", "", "Faster!", ""]);
}

#[tokio::test]
async fn c117_c120_a_view_has_whole_rounds_and_the_history_is_kept() {
    let mut random = Random::new(7);
    let history = random_history(&mut random, 12);
    let model = model();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(TrimLayer::turns(8).head(1))
        .service(model.clone());
    let answer = agent
        .oneshot(ChatRequest::new(history.clone()))
        .await
        .unwrap();
    let answer = answer.collect().await.unwrap();
    let view = model.request(0).transcript;
    assert_view(&history, &view);
    assert_eq!(view.iter().next(), history.iter().next());
    assert!(view.len() < history.len());
    // Case C120.
    let kept = answer.transcript().unwrap();
    assert_eq!(kept.prefix(history.len()), history);
    assert_eq!(kept.len(), history.len() + 1);
}

#[tokio::test]
async fn random_views_keep_the_rules() {
    for seed in cases(150) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(12);
        let history = random_history(random, exchanges);
        let limit = random.below(2_000);
        let layer = match random.below(3) {
            0 => TrimLayer::turns((limit / 50) as usize),
            1 => TrimLayer::messages((limit / 30) as usize),
            _ => TrimLayer::tokens(limit),
        };
        let head = random.below(4) as usize;
        let layer = layer.head(head).marker("(removed)");
        let sent = view(&layer, &history).await;
        assert_view(&history, &sent);
        assert_subsequence(&history, &sent);
        let common = head.min(history.len());
        assert_eq!(sent.prefix(common), history.prefix(common), "{seed}");
        let reduced = layer.drop_reasoning(1).drop_media(1);
        let sent = view(&reduced, &history).await;
        assert_view(&history, &sent);
        // The parts of the current exchange are whole.
        let newest = history
            .rev()
            .position(|turn| turn.as_message().role == Role::User);
        let newest = newest.unwrap_or(0) + 1;
        assert!(
            sent.rev().take(newest).eq(history.rev().take(newest)),
            "{seed}"
        );
    }
}

#[tokio::test]
async fn reasoning_and_media_of_old_exchanges_are_left_out() {
    let media = concentric_core::Media::new(concentric_core::MediaSource::Id("file".into()));
    let reasoned = |text: &str| {
        let parts = vec![
            Part::new(PartKind::Reasoning("Hm.".into())),
            Part::text(text.to_owned()),
        ];
        Turn::message(concentric_core::Message::new(Role::Assistant, parts)).unwrap()
    };
    let pictured = || {
        let parts = vec![
            Part::text("Look: "),
            Part::new(PartKind::Image(media.clone())),
        ];
        Turn::message(concentric_core::Message::new(Role::User, parts)).unwrap()
    };
    let all: Transcript = [
        pictured(),
        reasoned("1"),
        pictured(),
        reasoned("2"),
        pictured(),
    ]
    .into_iter()
    .collect();
    let layer = TrimLayer::turns(10).drop_reasoning(2).drop_media(1);
    let sent = view(&layer, &all).await;
    let counts: Vec<usize> = sent
        .iter()
        .map(|turn| turn.as_message().parts.len())
        .collect();
    assert_eq!(counts, [2, 1, 2, 2, 2]);
    assert_eq!(
        texts(&sent),
        ["Look: [image]", "1", "Look: [image]", "2", "Look: "]
    );
    // The current exchange is never changed.
    let layer = layer.drop_media(0);
    assert_eq!(view(&layer, &all).await.last(), all.last());
    let mut longer = all.clone();
    longer.push(round("look", &["seen"]));
    longer.push(pictured());
    let sent = view(&layer, &longer).await;
    assert!(sent.rev().take(3).eq(longer.rev().take(3)));

    // What a model generated stays, and a message is never empty.
    let generated = |kind: PartKind| {
        let message = concentric_core::Message::new(Role::Assistant, vec![Part::new(kind)]);
        Turn::message(message).unwrap()
    };
    let of: Transcript = [
        user("1"),
        generated(PartKind::Image(media.clone())),
        generated(PartKind::Reasoning("Hm.".into())),
        user("2"),
    ]
    .into_iter()
    .collect();
    let layer = TrimLayer::turns(10).drop_reasoning(1).drop_media(1);
    assert_eq!(view(&layer, &of).await, of);
}

/// The requests of a run with `steps` rounds after `history`.
async fn run(layer: &TrimLayer, history: Transcript, steps: usize) -> Vec<ChatRequest> {
    let mut model = ScriptedModel::new();
    for _ in 0..steps {
        model = model.tool_call("look", json!({})).then();
    }
    let model = model.text("Done.");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "seen"),
        ))
        .layer(layer.clone())
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::new(history)).await.unwrap();
    answer.collect().await.unwrap();
    model.requests()
}

#[tokio::test]
async fn the_prefix_is_the_same_between_two_cuts() {
    let requests = run(&TrimLayer::turns(40).head(1), exchanges(19), 20).await;
    let mut cuts = 0;
    for pair in requests.windows(2) {
        let (one, next) = (&pair[0].transcript, &pair[1].transcript);
        // The same turns, not equal ones.
        if !next.extends(one) {
            cuts += 1;
            assert_eq!(next.len(), 32);
        }
    }
    // At 41 turns, and 9 turns later each.
    assert_eq!(cuts, 3);
}

#[tokio::test]
async fn each_change_is_an_event() {
    let env = TestEnvironment::new();
    let mut all = exchanges(10);
    let context = env.context();
    let layer = TrimLayer::turns(10);
    let events = async |of: &Transcript| {
        let request = ChatRequest::new(of.clone()).with_context(context.clone());
        let agent = AgentLayer::new(NoTools).layer(layer.layer(model()));
        let mut seen = Vec::new();
        let mut body = agent.oneshot(request).await.unwrap().body;
        use futures_util::StreamExt;
        while let Some(Ok(event)) = body.next().await {
            if let Event::Custom(custom) = event {
                assert_eq!(custom.name, "concentric.trim");
                seen.push(custom.value.clone());
            }
        }
        seen
    };
    assert_eq!(events(&all).await, [json!({"turns": 13, "over": false})]);
    for _ in 0..10 {
        all.push(round("look", &["seen"]));
    }
    assert_eq!(events(&all).await, [json!({"turns": 20, "over": true})]);
    all.push(round("look", &["seen"]));
    assert!(events(&all).await.is_empty());
}

#[tokio::test]
async fn a_cut_is_kept_over_a_suspension_if_it_still_applies() {
    let layer = TrimLayer::turns(20);
    let context = Context::new();
    let all = exchanges(10);
    let first = view_in(&layer, &all, &context).await;
    // Another process, in which the limit is not exceeded.
    let resumed = Context::new();
    let stored = serde_json::to_string(&context.stored_state().unwrap()).unwrap();
    resumed.restore_state(&serde_json::from_str::<Vec<_>>(&stored).unwrap());
    let more = TrimLayer::turns(100);
    assert_eq!(view_in(&more, &all, &resumed).await, first);
    // A conversation that was changed meanwhile.
    let other: Transcript = all.iter().skip(3).cloned().collect();
    assert_eq!(view_in(&more, &other, &resumed).await, other);
    // One that ends where the cut does.
    let resumed = Context::new();
    resumed.restore_state(&context.stored_state().unwrap());
    let cut = all.prefix(all.len() - first.len());
    assert_eq!(view_in(&more, &cut, &resumed).await, cut);
}

#[tokio::test]
async fn a_round_that_was_suspended_is_sent_after_the_same_turns() {
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let model = model.then().text("Done.");
    let tools = ScriptedTools::new().asks("pay", "paid");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(TrimLayer::turns(20))
        .service(model.clone());
    let run = async |request: ChatRequest| {
        let answer = agent.clone().oneshot(request).await.unwrap();
        answer.collect().await.unwrap().finish.state
    };
    let state = *run(ChatRequest::new(exchanges(10))).await.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    run(ChatRequest::resume(state, vec![reply])).await;
    let (first, next) = (model.request(0).transcript, model.request(1).transcript);
    assert_eq!((first.len(), next.prefix(16)), (16, first));
    assert_eq!(next.last().unwrap().results().len(), 1);
}

#[tokio::test]
async fn an_agent_in_the_models_place_has_its_own_cut() {
    let inner = ScriptedModel::new().text("Done.").repeat();
    let nested = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(TrimLayer::turns(8))
        .service(inner.clone());
    let model = ScriptedModel::new().tool_call("look", json!({}));
    let model = model.then().tool_call("look", json!({})).then();
    let model = model.tool_call("look", json!({})).then().text("Done.");
    let seen = model.clone();
    // Each call also asks an agent about another conversation.
    let both = from_fn(move |request: ChatRequest, mut next: Next| {
        let nested = nested.clone();
        async move {
            let mut other = request.clone();
            other.transcript = exchanges(15);
            nested.oneshot(other).await?.collect().await?;
            next.run(request).await
        }
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "seen"),
        ))
        .layer(TrimLayer::turns(20))
        .layer(both)
        .service(model);
    let answer = agent.oneshot(ChatRequest::new(exchanges(10))).await;
    answer.unwrap().collect().await.unwrap();
    let lengths = seen.requests().into_iter();
    let lengths: Vec<usize> = lengths.map(|it| it.transcript.len()).collect();
    assert_eq!(lengths, [16, 17, 18, 19]);
    let lengths = inner.requests().into_iter();
    assert!(lengths.map(|it| it.transcript.len()).all(|it| it == 6));
}

#[tokio::test]
async fn nested_runs_and_concurrent_runs_have_their_own_cuts() {
    let layer = TrimLayer::turns(20);
    let context = Context::new();
    let (long, short) = (exchanges(10), exchanges(2));
    assert_eq!(view_in(&layer, &long, &context).await.len(), 16);
    assert_eq!(
        view_in(&layer, &short, &context.child().build()).await,
        short
    );
    assert_eq!(view_in(&layer, &short, &Context::new()).await, short);
    assert_eq!(view_in(&layer, &long, &context).await.len(), 16);
}

/// Counts its calls for turns.
#[derive(Default)]
struct Counting(AtomicUsize);

impl TokenCounter for Counting {
    fn text(&self, text: &str) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        text.len() as u64
    }
}

#[tokio::test]
async fn a_step_counts_its_new_turn_only() {
    let counter = Arc::new(Counting::default());
    let layer = TrimLayer::tokens(1 << 40).counter(Arc::clone(&counter));
    let context = Context::new();
    let mut all = exchanges(1_000);
    assert!(all.extends(&view_in(&layer, &all, &context).await));
    assert_eq!(counter.0.swap(0, Ordering::Relaxed), all.len());
    for _ in 0..3 {
        all.push(user("one more"));
        let view = view_in(&layer, &all, &context).await;
        assert!(view.extends(&all) && all.extends(&view), "shared");
        assert_eq!(counter.0.swap(0, Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn a_step_without_a_cut_is_as_fast_for_long_conversations() {
    let layer = TrimLayer::tokens(1 << 40);
    let time = async |count: usize| {
        let (mut all, context) = (exchanges(count), Context::new());
        view_in(&layer, &all, &context).await;
        let mut least = Duration::MAX;
        for _ in 0..50 {
            all.push(user("one more"));
            let start = Instant::now();
            view_in(&layer, &all, &context).await;
            least = least.min(start.elapsed());
        }
        least
    };
    let (short, long) = (time(10).await, time(20_000).await);
    println!("a step after 20 turns: {short:?}; after 40,000: {long:?}");
    assert!(long < short * 10, "{short:?}, {long:?}");
}

#[tokio::test]
async fn the_counter_learns_from_the_innermost_layer() {
    let all = exchanges(100);
    let reporting = || model().usage(Usage::new(1_000, 1)).repeat();
    let counted = |estimator: &Estimator| estimator.corrected(None, 100);
    let estimator = Estimator::new();
    let layer = TrimLayer::tokens(1 << 40).counter(estimator.clone());
    let request = || ChatRequest::new(all.clone());
    let count = estimator.request(&request());
    let answer = layer.layer(reporting()).oneshot(request()).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(estimator.request(&request()), 1_000.min(count * 3));

    // Another layer inside sends less: the usage is not that of the outer layer's count.
    let estimator = Estimator::new();
    let outer = TrimLayer::tokens(1 << 40).counter(estimator.clone());
    let stack = ServiceBuilder::new()
        .layer(outer)
        .layer(TrimLayer::turns(3))
        .layer(TrimLayer::tokens(1 << 40))
        .service(reporting());
    let answer = stack.oneshot(request()).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(counted(&estimator), 100);
}

#[tokio::test]
async fn around_an_agent_the_run_has_what_is_left() {
    let model = model();
    let agent = TrimLayer::turns(10).layer(AgentLayer::new(NoTools).layer(model.clone()));
    let answer = agent
        .oneshot(ChatRequest::new(exchanges(10)))
        .await
        .unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(answer.transcript().unwrap().len(), 9);
}

#[tokio::test]
async fn a_retry_of_a_call_has_the_same_view() {
    let layer = TrimLayer::turns(10);
    let twice = from_fn(async |request: ChatRequest, mut next: Next| {
        next.run(request.clone()).await?;
        next.run(request).await
    });
    let model = model();
    let stack = ServiceBuilder::new()
        .layer(twice)
        .layer(layer)
        .service(model.clone());
    let answer = stack.oneshot(ChatRequest::new(exchanges(10))).await;
    answer
        .unwrap()
        .collect()
        .await
        .map_err(Error::from)
        .unwrap();
    assert_eq!(model.request(0).transcript, model.request(1).transcript);
}
