//! Rules for memories shared by both stores.

use crate::Fault;
use concentric_core::store::{Memory, StoreError};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

/// The maximum number of memories of one owner; the oldest are removed.
pub(crate) const MAX_PER_OWNER: usize = 1_000;

/// The maximum size of a memory in bytes.
pub(crate) const MAX_BYTES: usize = 8 << 10;

pub(crate) fn check(memory: &Memory) -> Result<(), StoreError> {
    let (bytes, max) = (memory.text.len(), MAX_BYTES);
    match bytes > max {
        true => Err(StoreError::unwritable(Fault::TooLarge { bytes, max })),
        false => Ok(()),
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Returns the memories that have words of `query`, the best match first. A word counts for more the
/// fewer memories have it; of equal matches, the newest is first.
pub(crate) fn rank(memories: Vec<Memory>, query: &str, limit: usize) -> Vec<Memory> {
    let query: HashSet<String> = words(query).collect();
    let has: Vec<HashSet<String>> = memories
        .iter()
        .map(|memory| {
            words(&memory.text)
                .filter(|word| query.contains(word))
                .collect()
        })
        .collect();
    let mut found_in: HashMap<&str, usize> = HashMap::new();
    for word in has.iter().flatten() {
        *found_in.entry(word).or_default() += 1;
    }
    // In thousandths, since floating-point numbers have no total order.
    let weight = |word: &String| {
        let count = found_in.get(word.as_str()).copied().unwrap_or(1).max(1);
        1_000 + 1_000 * memories.len() / count
    };
    let scores: Vec<usize> = has
        .iter()
        .map(|words| words.iter().map(weight).sum())
        .collect();
    let mut ranked: Vec<(usize, Memory)> = scores.into_iter().zip(memories).collect();
    ranked.retain(|(score, _)| *score > 0);
    ranked.sort_by(|(score, a), (other, b)| {
        let key = |score, memory: &Memory| Reverse((score, memory.at));
        let by_score = key(*score, a).cmp(&key(*other, b));
        by_score.then_with(|| a.id.as_str().cmp(b.id.as_str()))
    });
    ranked.truncate(limit);
    ranked.into_iter().map(|(_, memory)| memory).collect()
}
