//! Where a conversation is cut, and what is sent then.

use super::*;
use concentric_layers::{
    ClearToolResultsLayer, TrimLayer,
    tokens::{Estimator, TokenCounter},
};

#[tokio::test]
async fn a_cut_keeps_as_much_as_the_limits_allow() {
    let all = exchanges(10);
    // The newest three turns have 41 tokens.
    for (keep, turns) in [(41, 3), (40, 2)] {
        let sent = view(&layer(&summarizer()).keep(keep), &all).await;
        assert_eq!(sent.len(), 2 + turns, "{keep}");
    }
    // 40 % of the window, less the first turn, the summary and the system prompt.
    for (prompt, turns) in [("", 17), ("a", 12)] {
        let (model, layer) = (model(), layer(&summarizer()).keep(20_000));
        let request = ChatRequest::new(all.clone()).with_system(prompt.repeat(400));
        layer.layer(model.clone()).oneshot(request).await.unwrap();
        assert_eq!(model.request(0).transcript.len(), 2 + turns);
    }
}

#[tokio::test]
async fn a_summary_that_makes_no_request_shorter_is_not_sent() {
    // 15 tokens for a turn of 20, and what introduces them.
    let summarizer = ScriptedModel::new().text("a".repeat(60)).repeat();
    let layer = layer(&summarizer);
    let model = ScriptedModel::new().error(overflow()).repeat();
    let context = Context::new();
    let call = layer.layer(model.clone());
    let error = call.oneshot(request(&exchanges(1), &context)).await;
    assert_eq!(error.unwrap_err().code(), Some(NO_PROGRESS));
    assert_eq!((model.calls(), summarizer.calls()), (1, 1));
    // Nor is it stored.
    let resumed = Context::new();
    resumed.restore_state(&context.stored_state().unwrap());
    let all = exchanges(1);
    assert_eq!(view_in(&layer, &all, &resumed).await, all);
}

#[tokio::test]
async fn the_earlier_summary_stays_if_a_later_one_fails() {
    let broken = Error::new(ErrorKind::Server, "broken");
    let layer = layer(&ScriptedModel::new().text("One.").then().error(broken));
    let context = Context::new();
    let mut all = exchanges(10);
    view_in(&layer, &all, &context).await;
    for n in 10..20 {
        all.push(assistant(long(".")));
        all.push(user(long(&format!("{n}?"))));
    }
    let sent = view_in(&layer, &all, &context).await;
    let one = "Summary of the conversation so far:\n\nOne.";
    assert_eq!(texts(&sent), ["0?", one, ".", "19?"]);
}

#[tokio::test]
async fn of_many_messages_in_an_exchange_the_newest_stay() {
    let mut all = Transcript::new();
    for n in 0..8 {
        all.push(user(long(&n.to_string())));
        all.push(round("look", &[&long("seen")]));
    }
    // Up to half of the trigger, less the summary: 90 tokens.
    let layer = layer(&summarizer()).head(0).max_summary(20);
    let sent = view(&layer, &all).await;
    assert_eq!(texts(&sent), [NOTE, "3", "4", "5", "6", "7", ""]);
    // A newest message that is longer stays.
    let mut all = Transcript::from_iter([user("a".repeat(600))]);
    all.extend((0..8).map(|_| round("look", &[&long("seen")])));
    let sent = view(&layer, &all).await;
    assert_eq!(sent.iter().nth(1), all.iter().next());
}

#[tokio::test]
async fn an_exchange_of_messages_alone_is_not_summarised() {
    let summarizer = summarizer();
    let mut all: Transcript = (0..3).map(|n| user(long(&n.to_string()))).collect();
    all.push(round("look", &[&long("seen")]));
    let model = ScriptedModel::new().error(overflow()).repeat();
    let layer = layer(&summarizer).head(0);
    let error = layer
        .layer(model.clone())
        .oneshot(request(&all, &Context::new()))
        .await;
    assert_eq!(error.unwrap_err().code(), Some(NO_PROGRESS));
    assert_eq!((model.calls(), summarizer.calls()), (1, 0));
}

#[tokio::test]
async fn each_text_is_shortened_for_the_model_that_summarises() {
    let summarizer = summarizer();
    let mut all = Transcript::from_iter([user("The task.")]);
    all.push(round(
        "look",
        &[&format!("first{}last", "-".repeat(50_000))],
    ));
    all.push(assistant("Done."));
    all.push(user("Now?"));
    view(&layer(&summarizer), &all).await;
    let asked = summarizer.request(0).transcript;
    let text = asked.last().unwrap().as_message().text();
    assert!((8_000..9_000).contains(&text.len()), "{}", text.len());
    assert!(text.contains("first-") && text.contains("-last"));
}

/// Counts bytes, and records what it counted of the requests whose usage was reported.
#[derive(Default)]
struct Recording(Mutex<Vec<u64>>);

impl TokenCounter for Recording {
    fn text(&self, text: &str) -> u64 {
        text.len() as u64
    }

    fn turn(&self, turn: &Turn) -> u64 {
        turn.as_message().text().len() as u64
    }

    fn observe(&self, _: Option<&str>, count: u64, _: &Usage) {
        self.0.lock().unwrap().push(count);
    }
}

#[tokio::test]
async fn the_reported_usage_is_that_of_the_request_and_its_conversation() {
    let (summarizer, counter) = (summarizer(), Arc::new(Recording::default()));
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1 << 40)
        .when(Trigger::tokens(10_000))
        .counter(Arc::clone(&counter));
    let model = ScriptedModel::new()
        .text("Yes.")
        .usage(Usage::new(9_900, 1));
    let model = model.repeat();
    let context = Context::new();
    for text in ["one", "another conversation"] {
        let of = Transcript::from_iter([user(text.repeat(10)), assistant("."), user("Now?")]);
        let request = request(&of, &context).with_system("123");
        let answer = layer.layer(model.clone()).oneshot(request).await.unwrap();
        answer.collect().await.unwrap();
    }
    assert_eq!(*counter.0.lock().unwrap(), [3 + 35, 3 + 205]);
    assert_eq!(summarizer.calls(), 0);
}

#[tokio::test]
async fn each_layer_of_a_stack_learns_from_what_it_has_sent() {
    let all = Transcript::from_iter([
        user("Look."),
        round("look", &["r".repeat(400).as_str()]),
        user("And?"),
    ]);
    // Clearing sends something else than the layer around it has counted.
    for (trigger, learns) in [(1 << 40, [true; 3]), (0, [false, true, true])] {
        let counters = [(); 3].map(|()| Estimator::new());
        let [outer, middle, inner] = counters.clone();
        let model = ScriptedModel::new().text("Yes.").usage(Usage::new(90, 1));
        let clear = ClearToolResultsLayer::new().trigger(trigger).keep(0);
        let stack = ServiceBuilder::new()
            .layer(CompactionLayer::new(BoxModel::new(summarizer()), 1 << 40).counter(outer))
            .layer(clear.counter(middle))
            .layer(TrimLayer::tokens(1 << 40).counter(inner))
            .service(model);
        let answer = stack.oneshot(request(&all, &Context::new())).await;
        answer.unwrap().collect().await.unwrap();
        let learned = counters.map(|it| it.corrected(None, 1_000) != 1_000);
        assert_eq!(learned, learns, "{trigger}");
    }
}
