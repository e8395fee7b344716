//! A long conversation before a model call: its limits, the plan of a compaction, and the count of a text.

use super::{
    drive::block_on,
    script::{Model, Script},
};
use concentric_core::{
    BoxModel, CallId, ChatRequest, Error, Message, ModelService, Part, PartKind, Role, Round,
    ToolCallPart, ToolOutcome, ToolResult, Transcript, Turn,
};
use concentric_layers::{
    ClearToolResultsLayer, CompactionLayer, TrimLayer,
    compaction::{CompactionDecision, Plan, Trigger},
};
use std::{
    hint::black_box,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};
use tower::{Layer, ServiceExt};

/// Messages of the user, and rounds of tool calls.
static TURNS: LazyLock<Transcript> = LazyLock::new(|| {
    let turns = (0..5_000).flat_map(|n| {
        let id = CallId::new(format!("call_{n}"));
        let call = ToolCallPart::new(id.clone(), "look", "{}");
        let call = Part::new(PartKind::ToolCall(call));
        let message = Message::new(Role::Assistant, vec![call]);
        let result = ToolResult::new(id, "look", ToolOutcome::done("seen"));
        let round = Round::new(message, vec![result]).expect("the call has a result");
        [Turn::user(format!("{n:-<80}")), Turn::from(round)]
    });
    turns.chain([Turn::user("Now?")]).collect()
});

/// A long conversation without a layer.
pub(crate) fn none(count: u64) {
    calls(&Model(Script::Text(1)), count);
}

/// A compaction that is due, up to the decision of a hook to skip it.
pub(crate) fn plan(count: u64) {
    static PLANNED: AtomicU64 = AtomicU64::new(0);
    let before = PLANNED.load(Ordering::Relaxed);
    let layer = CompactionLayer::new(BoxModel::new(Model(Script::Text(1))), 1 << 40)
        .when(Trigger::tokens(1_000))
        .keep(5_000)
        .before(async |plan: Plan| {
            assert!(plan.turns.len() > 9_000, "most turns are planned");
            PLANNED.fetch_add(1, Ordering::Relaxed);
            CompactionDecision::Skip
        });
    calls(&layer.layer(Model(Script::Text(1))), count);
    assert_eq!(PLANNED.load(Ordering::Relaxed) - before, count);
}

/// A cut of a conversation to its newest turns.
pub(crate) fn trim(count: u64) {
    let layer = TrimLayer::turns(100);
    calls(&layer.layer(Model(Script::Text(1))), count);
}

/// Placeholders for all results.
pub(crate) fn clear_results(count: u64) {
    let layer = ClearToolResultsLayer::new()
        .trigger(1_000)
        .keep(0)
        .placeholder("");
    calls(&layer.layer(Model(Script::Text(1))), count);
}

fn calls<S>(service: &S, count: u64)
where
    S: ModelService<Error = Error> + Clone,
{
    for _ in 0..count {
        let request = ChatRequest::new(TURNS.clone());
        let answer = block_on(service.clone().oneshot(request));
        black_box(answer.expect("the call must not fail"));
    }
}

#[cfg(feature = "tokens-openai")]
pub(crate) mod text {
    //! A text that is counted.

    use concentric_layers::tokens::{BpeCounter, Estimator, TokenCounter};
    use std::{fmt::Write, sync::LazyLock};

    /// A MiB of text, with few words that are repeated.
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let words = [
            "the weather",
            "of Zürich,",
            "is",
            "{\"a\": 1}\n",
            "tokenised",
        ];
        let (mut text, mut state) = (String::new(), 1_u64);
        while text.len() < 1 << 20 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let word = words.get((state >> 33) as usize % words.len());
            let word = word.copied().unwrap_or_default();
            let number = (state >> 40) % 20_000;
            let _ = write!(text, "{word} w{number} ");
        }
        text
    });

    /// A new counter has not counted the text before.
    fn count<C: TokenCounter>(counter: impl Fn() -> C, count: u64) {
        for _ in 0..count {
            assert!(counter().text(&TEXT) > 100_000, "the text is counted");
        }
    }

    pub(crate) fn bpe(times: u64) {
        count(BpeCounter::o200k, times);
    }

    pub(crate) fn estimate(times: u64) {
        count(Estimator::new, times);
    }
}
