//! One test per statement of [`concentric_layers::tokens`].

use crate::histories::{Random, cases};
use concentric_core::{
    CallId, ChatRequest, Media, MediaSource, Message, Part, PartKind, Role, Round, SystemSegment,
    ToolCallPart, ToolOutcome, ToolResult, ToolSpec, Turn, Usage,
};
use concentric_layers::tokens::{BpeCounter, Estimator, TokenCounter};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

fn round(arguments: &str, result: &str) -> Turn {
    let id = CallId::new("call_1");
    let call = ToolCallPart::new(id.clone(), "look", arguments);
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let outcome = ToolOutcome::done(result);
    let result = ToolResult::new(id, "look", outcome);
    Round::new(message, vec![result]).unwrap().into()
}

#[test]
fn the_estimate_depends_on_the_kind_of_the_content() {
    let estimator = Estimator::new();
    let of = |kind: PartKind| {
        let message = Message::new(Role::User, vec![Part::new(kind)]);
        estimator.turn(&Turn::message(message).unwrap())
    };
    let media = || Media::new(MediaSource::Id("file".into()));
    assert_eq!(estimator.text("twelve bytes"), 3);
    // A token per character.
    assert_eq!(estimator.text("東京の天気はどうですか"), 11);
    assert_eq!(estimator.text("서울의 날씨"), 5);
    assert_eq!(of(PartKind::Text("twelve bytes".into())), 3);
    assert_eq!(of(PartKind::Image(media())), 1_000);
    assert_eq!(of(PartKind::Audio(media())), 500);
    assert_eq!(of(PartKind::File(media())), 3_000);
    // JSON has a token per 3.3 bytes; the name has one.
    assert_eq!(estimator.turn(&round(&"1".repeat(330), "")), 101);
    let json = format!("[\"{}\"]", "a".repeat(326));
    assert_eq!(estimator.turn(&round("", &json)), 101);
    let text = "a".repeat(330);
    assert_eq!(estimator.turn(&round("", &text)), 84);
}

#[test]
fn a_request_has_a_system_prompt_tools_and_turns() {
    for counter in [&Estimator::new() as &dyn TokenCounter, &BpeCounter::o200k()] {
        let mut request = ChatRequest::user("What is the weather?");
        let turns = counter.request(&request);
        assert_eq!(counter.prompt(&request), 0);
        request = request.with_system("Answer in one short sentence, please.");
        let system = counter.request(&request);
        assert!(system >= turns + 6, "{system}");
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tool = ToolSpec::new("weather", "Reads the weather of a city.", schema);
        request.tools.push(Arc::new(tool));
        let all = counter.request(&request);
        assert!(all >= system + 15, "{all}");
        assert_eq!(counter.prompt(&request), all - turns);
        assert!(counter.fits(&request, all) && !counter.fits(&request, all - 1));
    }
}

#[test]
fn a_correction_converges_within_three_calls() {
    let counted = |estimator: &Estimator| estimator.corrected(None, 1_000);
    for truth in [700, 1_000, 1_450, 2_600] {
        let estimator = Estimator::new();
        // Reports vary by a tenth.
        for (call, noise) in [110, 90, 100].into_iter().enumerate() {
            let mut usage = Usage::new(truth * noise / 100, 5);
            // A part of the input, not additional to it.
            usage.set_cached_input_tokens(Some(truth / 2));
            estimator.observe(None, 1_000, &usage);
            let error = counted(&estimator).abs_diff(truth) * 100 / truth;
            assert!(error <= 11, "{truth} after {call}: {error} %");
        }
        assert!(counted(&estimator).abs_diff(truth) * 100 / truth <= 3);
    }
    // A call counts as much as all before it.
    let estimator = Estimator::new();
    for (reported, expected) in [(2_000, 2_000), (1_000, 1_500), (1_000, 1_250)] {
        estimator.observe(None, 1_000, &Usage::new(reported, 5));
        assert_eq!(counted(&estimator), expected);
    }
}

#[test]
fn a_correction_is_bounded_and_belongs_to_a_model() {
    let estimator = Estimator::new();
    let named = |name: &'static str| {
        let mut request = ChatRequest::user("a".repeat(4_000));
        request.options_mut().model = Some(name.into());
        request
    };
    estimator.observe(Some("large"), 1_000, &Usage::new(90_000, 5));
    estimator.observe(Some("small"), 1_000, &Usage::new(9, 5));
    // Neither reports anything: an answer from a cache, and a provider without usage.
    estimator.observe(Some("none"), 1_000, &Usage::new(0, 5));
    estimator.observe(Some("none"), 1_000, &Usage::default());
    estimator.observe(Some("none"), 0, &Usage::new(9, 5));
    let counts = ["large", "small", "none"].map(|name| estimator.request(&named(name)));
    assert_eq!(counts, [3_000, 500, 1_000]);

    // The 64 models that were used last are known.
    for model in 0..63 {
        estimator.observe(Some(&model.to_string()), 1_000, &Usage::new(1_500, 5));
    }
    let counts = ["large", "small"].map(|name| estimator.request(&named(name)));
    assert_eq!(counts, [1_000, 500]);
}

/// Counts its own calls.
#[derive(Default)]
struct Counting(AtomicUsize);

impl TokenCounter for Counting {
    fn text(&self, text: &str) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        text.len() as u64
    }
}

#[test]
fn a_counter_needs_no_more_than_the_count_of_a_text() {
    let counter = Arc::new(Counting::default());
    let request = ChatRequest::user("1234").with_system("12");
    let shared: Arc<dyn TokenCounter> = counter.clone();
    assert_eq!(shared.request(&request), 4 + 4 + 2);
    assert_eq!(counter.0.load(Ordering::Relaxed), 2);
}

/// Texts and their counts by tiktoken.
const VECTORS: [(&str, u64, u64); 6] = [
    ("", 0, 0),
    ("hello world", 2, 2),
    ("This is a test!         ", 6, 6),
    ("🌶 is hot", 4, 5),
    ("🥳🥳", 4, 6),
    ("The quick brown fox jumps over the lazy dog.", 10, 10),
];

#[test]
fn byte_pairs_are_those_of_openai() {
    let (o200k, cl100k) = (BpeCounter::o200k(), BpeCounter::cl100k());
    for (text, o200k_count, cl100k_count) in VECTORS {
        let own = bpe_openai::o200k_base().count(text) as u64;
        assert_eq!(o200k.text(text), own, "{text}");
        let own = bpe_openai::cl100k_base().count(text) as u64;
        assert_eq!(cl100k.text(text), own, "{text}");
        assert_eq!(
            (o200k.text(text), cl100k.text(text)),
            (o200k_count, cl100k_count),
            "{text}"
        );
    }
    let text = "Nothing here is repeated by chance: 東京, Zürich, 서울. ".repeat(20);
    let own = bpe_openai::o200k_base().count(text.as_str()) as u64;
    // The second count is a kept one.
    assert_eq!([o200k.text(&text), o200k.text(&text)], [own; 2]);
}

#[test]
fn words_have_the_tokens_of_the_whole_text() {
    let parts = [
        "a", "Word", "It's", "'ll", "'LL", "Zürich", "東京", "\u{301}", "12", "3456", ".", "//",
        "\"", " ", " ", " ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{2028}", "🥳",
    ];
    let counters = [
        (BpeCounter::o200k(), bpe_openai::o200k_base()),
        (BpeCounter::cl100k(), bpe_openai::cl100k_base()),
    ];
    for seed in cases(300) {
        let random = &mut Random::new(seed);
        let mut text = "x".repeat(64);
        for _ in 0..random.below(120) {
            text.push_str(parts[random.below(parts.len() as u64) as usize]);
        }
        for (counter, tokenizer) in &counters {
            let own = tokenizer.count(text.as_str()) as u64;
            assert_eq!(counter.text(&text), own, "{seed}: {text:?}");
        }
    }
}

/// Text of a MiB that is no repetition; less in a build without optimisation.
fn mebibyte() -> String {
    let length = if cfg!(debug_assertions) {
        1 << 16
    } else {
        1 << 20
    };
    let mut text = String::new();
    let mut state = 1_u64;
    while text.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let words = [
            "the ",
            "weather ",
            "of ",
            "Zürich, ",
            "{\"a\": 1}\n",
            "is ",
            "tokenised ",
        ];
        text.push_str(words[(state >> 33) as usize % words.len()]);
    }
    text
}

#[test]
fn a_mebibyte_is_counted() {
    let text = mebibyte();
    let bytes = text.len() as u64;
    let estimate = Estimator::new().text(&text);
    assert!((bytes / 5..bytes / 2).contains(&estimate), "{estimate}");
    let bpe = BpeCounter::o200k();
    let count = bpe.text(&text);
    assert!((bytes / 5..bytes / 2).contains(&count), "{count}");
    assert_eq!(bpe.text(&text), count);

    let request = ChatRequest::user(text);
    assert!(!BpeCounter::o200k().fits(&request, 1_000));
    assert!(bpe.fits(&request, 1 << 20));
}

#[test]
fn a_system_segment_is_counted_as_text() {
    let mut request = ChatRequest::user("");
    request.system.push(SystemSegment::new("東京"));
    assert_eq!(Estimator::new().prompt(&request), 2);
}
