//! Random conversations, and the rules that every view of one keeps.

use concentric_core::{
    Author, CallId, Media, MediaSource, Message, Part, PartKind, ProviderData, Role, Round,
    ToolCallPart, ToolOutcome, ToolResult, Transcript, Turn,
};
use serde_json::json;
use std::{collections::HashSet, sync::Arc};

/// A generator of numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn text(&mut self, limit: u64) -> String {
        let words = ["the ", "weather ", "Zürich ", "東京 ", "is ", "{\"a\":1} "];
        let count = self.below(limit) + 1;
        let word = |_| words[(self.next() % 6) as usize];
        (0..count).map(word).collect()
    }
}

/// The number of random cases, and the seed of the first: `CONCENTRIC_WINDOW_CASES`,
/// `CONCENTRIC_WINDOW_SEED`.
pub(crate) fn cases(default: u64) -> std::ops::Range<u64> {
    let var = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let cases = var("CONCENTRIC_WINDOW_CASES").unwrap_or(default);
    let seed = var("CONCENTRIC_WINDOW_SEED").unwrap_or_else(|| {
        let time = std::time::SystemTime::UNIX_EPOCH.elapsed();
        time.map_or(1, |time| time.as_secs()) << 24
    });
    println!("CONCENTRIC_WINDOW_SEED={seed} CONCENTRIC_WINDOW_CASES={cases}");
    seed..seed + cases
}

fn signature(random: &mut Random) -> Option<Arc<ProviderData>> {
    let data = json!({"signature": format!("sig-{}", random.next())});
    Some(Arc::new(ProviderData::new("p", data)))
}

fn by_model(part: Part) -> Part {
    part.by(Author::Model {
        provider: "p".into(),
        model: "m".into(),
    })
}

fn reasoning(random: &mut Random) -> Part {
    let text = random.text(20);
    let part = Part::new(PartKind::Reasoning(text.into()));
    by_model(part).with_provider_data(signature(random))
}

fn image() -> Part {
    let media = Media::new(MediaSource::Base64("iVBORw0KGgo=".into()));
    Part::new(PartKind::Image(media.with_media_type("image/png")))
}

pub(crate) fn user(text: impl Into<String>) -> Turn {
    Turn::user(text.into())
}

pub(crate) fn assistant(text: impl Into<String>) -> Turn {
    let part = by_model(Part::text(text.into()));
    Turn::message(Message::new(Role::Assistant, vec![part])).unwrap()
}

/// A round with one call for each result.
pub(crate) fn round(name: &'static str, results: &[&str]) -> Turn {
    let id = |index: usize| CallId::new(format!("call_{index}"));
    let calls = (0..results.len()).map(|index| {
        let call = ToolCallPart::new(id(index), name, "{\"city\":\"Paris\"}");
        by_model(Part::new(PartKind::ToolCall(call)))
    });
    let message = Message::new(Role::Assistant, calls.collect());
    let results = results.iter().enumerate().map(|(index, text)| {
        ToolResult::new(id(index), name, ToolOutcome::done((*text).to_owned()))
    });
    Round::new(message, results.collect()).unwrap().into()
}

fn random_round(random: &mut Random) -> Turn {
    let mut parts = Vec::new();
    if random.below(2) == 0 {
        parts.push(reasoning(random));
    }
    if random.below(3) == 0 {
        let text = random.text(10);
        parts.push(by_model(Part::text(text)));
    }
    let mut results = Vec::new();
    for _ in 0..=random.below(3) {
        let id = CallId::new(format!("call_{}", random.next()));
        let call = ToolCallPart::new(id.clone(), "weather", json!({"city": "Paris"}));
        let mut part = by_model(Part::new(PartKind::ToolCall(call)));
        if random.below(3) == 0 {
            part.provider_data = signature(random);
        }
        parts.push(part);
        let text = random.text(200);
        let outcome = match random.below(6) {
            0 => ToolOutcome::failed(text),
            1 => ToolOutcome::denied(text),
            _ => ToolOutcome::done(text),
        };
        results.push(ToolResult::new(id, "weather", outcome));
    }
    let message = Message::new(Role::Assistant, parts);
    Round::new(message, results).unwrap().into()
}

/// A conversation that ends as one does before a model call: with a message of the user, or a round.
pub(crate) fn random_history(random: &mut Random, exchanges: u64) -> Transcript {
    let mut history = Transcript::new();
    for exchange in 0..=exchanges {
        let mut parts = vec![Part::text(random.text(60)).by(Author::User)];
        if random.below(6) == 0 {
            parts.push(image().by(Author::User));
        }
        history.push(Turn::message(Message::new(Role::User, parts)).unwrap());
        for _ in 0..random.below(5) {
            history.push(random_round(random));
            if random.below(6) == 0 {
                // A message of the user during the run.
                history.push(user(random.text(10)));
            }
        }
        if exchange < exchanges && random.below(8) > 0 {
            let mut parts = vec![by_model(Part::text(random.text(60)))];
            if random.below(2) == 0 {
                parts.insert(0, reasoning(random));
            }
            history.push(Turn::message(Message::new(Role::Assistant, parts)).unwrap());
        }
    }
    history
}

/// Whether a layer wrote the message.
pub(crate) fn is_note(turn: &Turn) -> bool {
    let mut parts = turn.as_message().parts.iter();
    parts.any(|part| matches!(part.author, Author::Layer { .. }))
}

/// Asserts that a view has calls with their results only, and the newest message of the user and what
/// follows it.
pub(crate) fn assert_view(of: &Transcript, view: &Transcript) {
    // Turns can't be open, so this checks the order and that none is repeated.
    for turn in view.iter() {
        let calls: Vec<&CallId> = turn
            .as_message()
            .tool_calls()
            .map(|call| &call.id)
            .collect();
        let results: Vec<&CallId> = turn.results().iter().map(|it| &it.call_id).collect();
        assert_eq!(calls, results);
        assert_eq!(calls.iter().collect::<HashSet<_>>().len(), calls.len());
    }
    let by_user = |turn: &&Turn| turn.as_message().role == Role::User && !is_note(turn);
    let newest = of.iter().rfind(by_user);
    assert!(newest.is_none_or(|newest| view.iter().any(|turn| turn == newest)));
    assert_eq!(view.last(), of.last(), "the model answers to the last turn");
}

/// Asserts that the turns of a view, except notes, are turns of the conversation, in its order.
pub(crate) fn assert_subsequence(of: &Transcript, view: &Transcript) {
    let mut all = of.iter();
    for turn in view.iter().filter(|turn| !is_note(turn)) {
        assert!(all.any(|it| it == turn), "changed or moved: {turn:?}");
    }
}
