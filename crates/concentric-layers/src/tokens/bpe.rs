use super::TokenCounter;
use bpe_openai::Tokenizer;
use concentric_core::{ChatRequest, Part, PartKind, ToolContent};
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

/// The number of texts whose counts are kept.
const TEXTS: usize = 64 << 10;

/// Shorter texts are counted each time.
const SHORT: usize = 64;

/// The number of words of a text that are encoded once.
const WORDS: usize = 16 << 10;

/// Counts tokens as OpenAI's models do, by byte pair encoding.
///
/// The text of messages, tools and the system prompt is counted exactly; the rest of a request, as its
/// images, is [estimated](TokenCounter::turn). Created at the first use, an encoding takes about 0.1 s and
/// 30 MB for the process.
///
/// The counts of the last 64 Ki to 128 Ki texts are kept, so a conversation that is loaded again is not
/// encoded again. Clones share them.
#[derive(Clone)]
pub struct BpeCounter {
    tokenizer: &'static Tokenizer,
    known: Arc<Known>,
}

impl BpeCounter {
    /// The encoding `o200k_base`: GPT-4o, o1 and later models.
    pub fn o200k() -> Self {
        Self::new(bpe_openai::o200k_base())
    }

    /// The encoding `cl100k_base`: GPT-4 and GPT-3.5.
    pub fn cl100k() -> Self {
        Self::new(bpe_openai::cl100k_base())
    }

    fn new(tokenizer: &'static Tokenizer) -> Self {
        Self {
            tokenizer,
            known: Arc::default(),
        }
    }

    /// Counts the tokens of a text, up to a number above `limit`.
    fn count(&self, text: &str, limit: u64) -> u64 {
        let (mut known, mut sum) = (HashMap::new(), 0);
        for word in words(text) {
            if sum > limit {
                break;
            }
            sum += known.get(word).copied().unwrap_or_else(|| {
                let count = self.tokenizer.count(word) as u64;
                if known.len() < WORDS {
                    known.insert(word, count);
                }
                count
            });
        }
        sum
    }
}

/// Splits a text before each space that is between an ASCII letter and a character of ASCII that is no
/// white space.
///
/// The parts have as many tokens as the text: no token has characters from both sides of such a space, and no pattern
/// of an encoding depends on the text before it, or looks beyond it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let places = text.as_bytes().windows(3).enumerate();
    let starts = places.filter_map(|(at, bytes)| match bytes {
        [b'!'..=b'~', b' ', b'A'..=b'Z' | b'a'..=b'z'] => Some(at + 1),
        _ => None,
    });
    let mut from = 0;
    starts.chain([text.len()]).map(move |to| {
        let word = text.get(from..to).unwrap_or_default();
        from = to;
        word
    })
}

impl TokenCounter for BpeCounter {
    fn text(&self, text: &str) -> u64 {
        match text.len() {
            ..SHORT => self.tokenizer.count(text) as u64,
            _ => self.known.get_or(text, || self.count(text, u64::MAX)),
        }
    }

    fn fits(&self, request: &ChatRequest, limit: u64) -> bool {
        // A token has at least one byte. A text over the limit is not encoded to its end.
        let is_too_long = |text: &str| text.len() as u64 > limit && self.count(text, limit) > limit;
        let messages = request.transcript.rev().flat_map(|turn| {
            let parts = turn.as_message().parts.iter().filter_map(text_of);
            let results = turn.results().iter();
            let results = results.filter_map(|result| match &result.outcome.content {
                ToolContent::Text(text) => Some(text.as_str()),
                _ => None,
            });
            parts.chain(results)
        });
        let system = request.system.iter().map(|segment| segment.text.as_str());
        !messages.chain(system).any(is_too_long) && self.request(request) <= limit
    }
}

fn text_of(part: &Part) -> Option<&str> {
    match &part.kind {
        PartKind::Text(text) => Some(text),
        _ => None,
    }
}

impl fmt::Debug for BpeCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BpeCounter").finish_non_exhaustive()
    }
}

/// The counts of texts, by a hash with a random key.
#[derive(Default)]
struct Known {
    hasher: RandomState,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    // The texts that were used since `old` was replaced.
    new: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
}

impl Known {
    fn get_or(&self, text: &str, count: impl FnOnce() -> u64) -> u64 {
        let counts = || self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = self.hasher.hash_one(text);
        let known = counts().get(key);
        known.unwrap_or_else(|| {
            let count = count();
            counts().insert(key, count);
            count
        })
    }
}

impl Counts {
    fn get(&mut self, key: u64) -> Option<u64> {
        if let Some(count) = self.new.get(&key) {
            return Some(*count);
        }
        let count = self.old.remove(&key)?;
        self.insert(key, count);
        Some(count)
    }

    fn insert(&mut self, key: u64, count: u64) {
        if self.new.len() >= TEXTS {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key, count);
    }
}
