//! The automaton of a set of rules.

use super::{Rule, RulesError};
use regex_automata::{
    Anchored, MatchKind,
    dfa::{Automaton as _, StartKind, dense},
    nfa::thompson,
    util::{primitives::StateID, start, syntax},
};
use std::collections::BTreeMap;

/// The maximum size of an automaton in bytes, and of its construction.
const SIZE: usize = 8 << 20;
const BUILD_SIZE: usize = 64 << 20;

/// The state from which nothing matches.
pub(super) const DEAD: u32 = 0;

/// The number of different states before the first byte. There are fewer: a rule only sees whether the byte is
/// one of a word, a line feed or a carriage return.
const CONTEXTS: usize = 8;

/// The context of a text that has no byte before it.
pub(super) const START: usize = 256;

/// The context of a text after an escape sequence for white space, such as `\n` in JSON. As after a space, a
/// word begins there.
pub(super) const ESCAPED: usize = 257;

/// A deterministic automaton, which reads a text from one possible start of a match.
///
/// The search is anchored, so that its state belongs to one start: a state of an unanchored search has all
/// starts in it, and bounded repetitions have exponentially many of those.
///
/// A match is reported by the state after the byte that follows it, since rules look ahead at one byte.
pub(super) struct Automaton {
    // The column of each byte.
    columns: [u8; 256],
    // A row per state: the next states by column, that at the end of the text, the length of the longest match
    // that a later state can report, and the index of the rules of such matches. A state is the index of its row.
    table: Vec<u32>,
    stride: u32,
    // The different states before the first byte; and a bit per one: that after each byte and at the start of a
    // text, and those from which a match may begin with a byte, or which precede a backslash.
    starts: [u32; CONTEXTS],
    contexts: [u8; 258],
    begins: [u8; 256],
    // The first state that reports matches, and the rules that they report, in order.
    matching: u32,
    matches: Vec<Box<[u16]>>,
    // Sets of rules, a bit per rule.
    sets: Vec<Vec<u64>>,
    // The length of the longest match of each rule.
    lengths: Vec<u32>,
}

impl Automaton {
    pub(super) fn new(rules: &[Rule]) -> Result<Self, RulesError> {
        let too_large = |_| RulesError::TooLarge;
        let mut patterns = Vec::with_capacity(rules.len());
        let mut lengths = Vec::with_capacity(rules.len());
        for rule in rules {
            let name = || rule.name.clone();
            let pattern = syntax::parse(&rule.pattern).map_err(|error| RulesError::Pattern {
                rule: name(),
                message: error.to_string(),
            })?;
            let properties = pattern.properties();
            if properties.look_set().contains_word_unicode() {
                return Err(RulesError::UnicodeWordBoundary { rule: name() });
            }
            if properties.minimum_len().unwrap_or_default() == 0 {
                return Err(RulesError::EmptyMatch { rule: name() });
            }
            let most = [properties.maximum_len(), rule.at_most];
            let most = most.into_iter().flatten().min();
            let most = most.ok_or_else(|| RulesError::Unbounded { rule: name() })?;
            lengths.push(u32::try_from(most).unwrap_or(u32::MAX));
            patterns.push(pattern);
        }
        let nfa = thompson::Compiler::new()
            .configure(thompson::Config::new().nfa_size_limit(Some(SIZE)))
            .build_many_from_hir(&patterns)
            .map_err(|_| RulesError::TooLarge)?;
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(SIZE))
            .determinize_size_limit(Some(BUILD_SIZE));
        let dfa = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&nfa)
            .map_err(too_large)?;
        Self::from_dfa(&dfa, lengths)
    }

    /// Copies the states of `dfa` that can be reached, those that report matches last.
    fn from_dfa(dfa: &dense::DFA<Vec<u32>>, lengths: Vec<u32>) -> Result<Self, RulesError> {
        let classes = dfa.byte_classes();
        let columns =
            std::array::from_fn(|byte| u8::try_from(byte).map_or(0, |byte| classes.get(byte)));
        let mut bytes: Vec<u8> = Vec::new();
        for byte in 0..=u8::MAX {
            if usize::from(classes.get(byte)) == bytes.len() {
                bytes.push(byte);
            }
        }
        let start = |before: Option<u8>| {
            let config = start::Config::new().anchored(Anchored::Yes);
            dfa.start_state(&config.look_behind(before))
        };
        let mut starts = [StateID::ZERO; 257];
        for (before, id) in starts.iter_mut().enumerate() {
            *id = start(u8::try_from(before).ok()).map_err(|_| RulesError::TooLarge)?;
        }

        // In the order in which they are reached; and the place of each state in it, by the row of its id.
        let mut found: Vec<StateID> = Vec::new();
        let mut places: Vec<Option<usize>> = Vec::new();
        let mut reach = |id: StateID, found: &mut Vec<StateID>| {
            let row = id.as_usize() >> dfa.stride2();
            if row >= places.len() {
                places.resize(row + 1, None);
            }
            let known = places.get(row).copied().flatten();
            known.unwrap_or_else(|| {
                if let Some(place) = places.get_mut(row) {
                    *place = Some(found.len());
                }
                found.push(id);
                found.len() - 1
            })
        };
        let starts = starts.map(|id| reach(id, &mut found));
        // The places of the next states.
        let mut rows: Vec<Vec<usize>> = Vec::new();
        while let Some(id) = found.get(rows.len()).copied() {
            let next = bytes.iter().map(|byte| dfa.next_state(id, *byte));
            let next = next.chain([dfa.next_eoi_state(id)]);
            let row = next.map(|id| reach(id, &mut found)).collect();
            rows.push(row);
        }

        let rules_of = |id: StateID| -> Box<[u16]> {
            let count = if dfa.is_match_state(id) {
                dfa.match_len(id)
            } else {
                0
            };
            let rules = (0..count).map(|at| dfa.match_pattern(id, at).as_u32());
            rules.filter_map(|rule| u16::try_from(rule).ok()).collect()
        };
        let reported: Vec<Box<[u16]>> = found.iter().map(|id| rules_of(*id)).collect();
        let later = later(&rows, &reported, lengths.len());
        let longest = |set: &[u64]| {
            let lengths = lengths.iter().enumerate();
            let of = lengths.filter(|(rule, _)| contains(set, *rule));
            of.map(|(_, length)| *length).max().unwrap_or_default()
        };
        // The dead state has the empty set.
        let mut sets = vec![Vec::new()];
        let mut indices: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
        let later: Vec<usize> = later
            .into_iter()
            .map(|set| {
                *indices.entry(set).or_insert_with_key(|set| {
                    sets.push(set.clone());
                    sets.len() - 1
                })
            })
            .collect();
        let longest: Vec<u32> = sets.iter().map(|set| longest(set)).collect();
        let longest = |at: usize| later.get(at).and_then(|set| longest.get(*set)).copied();

        // The states are numbered again: the dead one, then others, then those that report matches.
        let stride = bytes.len() + 3;
        let is_dead = |at: usize| {
            reported.get(at).is_some_and(|rules| rules.is_empty()) && longest(at) == Some(0)
        };
        let mut order: Vec<usize> = (0..found.len()).filter(|at| !is_dead(*at)).collect();
        order.sort_by_key(|at| reported.get(*at).is_some_and(|rules| !rules.is_empty()));
        let mut names = vec![DEAD; found.len()];
        for (new, old) in order.iter().enumerate() {
            let name = u32::try_from((new + 1) * stride).map_err(|_| RulesError::TooLarge)?;
            if let Some(of) = names.get_mut(*old) {
                *of = name;
            }
        }
        let name = |at: &usize| names.get(*at).copied().unwrap_or(DEAD);
        let mut table = vec![DEAD; stride];
        let mut matches = Vec::new();
        let mut matching = None;
        for old in &order {
            let (Some(row), Some(rules), Some(longest), Some(later)) = (
                rows.get(*old),
                reported.get(*old),
                longest(*old),
                later.get(*old),
            ) else {
                continue;
            };
            if !rules.is_empty() {
                matching.get_or_insert(table.len());
                matches.push(rules.clone());
            }
            table.extend(row.iter().map(name));
            table.push(longest);
            table.push(u32::try_from(*later).map_err(|_| RulesError::TooLarge)?);
        }
        let number = |of: usize| u32::try_from(of).map_err(|_| RulesError::TooLarge);
        let mut automaton = Self {
            columns,
            stride: number(stride)?,
            starts: [DEAD; CONTEXTS],
            contexts: [0; 258],
            begins: [0; 256],
            matching: number(matching.unwrap_or(table.len()))?,
            table,
            matches,
            sets,
            lengths,
        };
        automaton.set_starts(starts.map(|at| name(&at)))?;
        Ok(automaton)
    }

    /// Sets the states before the first byte, by the byte before it.
    fn set_starts(&mut self, states: [u32; 257]) -> Result<(), RulesError> {
        let mut starts: Vec<u32> = states.to_vec();
        starts.sort_unstable();
        starts.dedup();
        for (at, start) in starts.into_iter().enumerate() {
            *self.starts.get_mut(at).ok_or(RulesError::TooLarge)? = start;
            let bit = 1 << at;
            for (context, _) in self
                .contexts
                .iter_mut()
                .zip(&states)
                .filter(|(_, of)| **of == start)
            {
                *context = bit;
            }
            for byte in 0..=u8::MAX {
                if self.next(start, byte) != DEAD
                    && let Some(begins) = self.begins.get_mut(usize::from(byte))
                {
                    *begins |= bit;
                }
            }
        }
        let space = self.context(usize::from(b' '));
        if let Some(escaped) = self.contexts.get_mut(ESCAPED) {
            *escaped = space;
        }
        // Places after a backslash are not skipped, since they may be in an escape sequence.
        if let Some(begins) = self.begins.get_mut(usize::from(b'\\')) {
            *begins = u8::MAX;
        }
        Ok(())
    }

    #[inline(always)]
    fn cell(&self, state: u32, column: u32) -> u32 {
        let at = state.wrapping_add(column) as usize;
        self.table.get(at).copied().unwrap_or(DEAD)
    }

    /// The context of a text whose first byte follows `before`, or begins the text, if it is [`START`].
    #[inline(always)]
    pub(super) fn context(&self, before: usize) -> u8 {
        self.contexts.get(before).copied().unwrap_or_default()
    }

    /// Skips bytes with which no match begins, except for backslashes, and returns the others with the context before them.
    #[inline(always)]
    pub(super) fn begin<'a>(&self, mut context: u8, mut bytes: &'a [u8]) -> Option<(&'a [u8], u8)> {
        loop {
            let (byte, others) = bytes.split_first()?;
            let byte = usize::from(*byte);
            let begins = self.begins.get(byte).copied().unwrap_or_default();
            if begins & context != 0 {
                return Some((bytes, context));
            }
            context = self.context(byte);
            bytes = others;
        }
    }

    /// The state before the first byte.
    #[inline(always)]
    pub(super) fn start(&self, context: u8) -> u32 {
        let at = context.trailing_zeros() as usize;
        self.starts.get(at).copied().unwrap_or(DEAD)
    }

    /// The state after `byte`.
    #[inline(always)]
    pub(super) fn next(&self, state: u32, byte: u8) -> u32 {
        let column = self.columns.get(usize::from(byte)).copied();
        self.cell(state, u32::from(column.unwrap_or_default()))
    }

    /// The state after the end of the text.
    pub(super) fn end(&self, state: u32) -> u32 {
        self.cell(state, self.stride.wrapping_sub(3))
    }

    /// Whether a state after `state` can report a match of at least `read` bytes.
    #[inline(always)]
    pub(super) fn may_match(&self, state: u32, read: usize) -> bool {
        read <= self.cell(state, self.stride.wrapping_sub(2)) as usize
    }

    /// Whether a state after `state` can report a match of `rule`, of any length.
    pub(super) fn continues(&self, state: u32, rule: usize) -> bool {
        let set = self.cell(state, self.stride.wrapping_sub(1)) as usize;
        self.sets.get(set).is_some_and(|set| contains(set, rule))
    }

    /// The length of the longest match of `rule`.
    pub(super) fn longest(&self, rule: usize) -> usize {
        self.lengths.get(rule).map_or(0, |length| *length as usize)
    }

    /// Whether nothing matches from `state`, or it reports matches.
    #[inline(always)]
    pub(super) fn is_dead_or_match(&self, state: u32) -> bool {
        // The dead state is the lowest one, and those that report matches are the highest ones.
        state.wrapping_sub(1) >= self.matching.wrapping_sub(1)
    }

    /// Whether `state` reports matches.
    #[inline(always)]
    pub(super) fn is_match(&self, state: u32) -> bool {
        state >= self.matching
    }

    /// The rules that match a text of `length` bytes, which ends before the last byte that was read.
    pub(super) fn matches(&self, state: u32, length: usize) -> impl Iterator<Item = usize> {
        let at = state.checked_sub(self.matching).unwrap_or(u32::MAX) / self.stride.max(1);
        let rules = self.matches.get(at as usize).into_iter().flatten();
        let rules = rules.map(|rule| usize::from(*rule));
        rules.filter(move |rule| {
            let longest = self.lengths.get(*rule);
            longest.is_some_and(|longest| length <= *longest as usize)
        })
    }
}

/// The rules of the matches that a later state can report, for each state: a bit per rule.
fn later(rows: &[Vec<usize>], reported: &[Box<[u16]>], count: usize) -> Vec<Vec<u64>> {
    let words = count.div_ceil(64);
    let reported = reported.iter().map(|rules| {
        let mut set = vec![0_u64; words];
        for rule in rules {
            if let Some(word) = set.get_mut(usize::from(*rule) / 64) {
                *word |= 1 << (rule % 64);
            }
        }
        set
    });
    let reported: Vec<Vec<u64>> = reported.collect();
    // Most columns of a row have the same state.
    let rows = rows.iter().map(|row| {
        let mut next = row.clone();
        next.sort_unstable();
        next.dedup();
        next
    });
    let rows: Vec<Vec<usize>> = rows.collect();
    let mut later = vec![vec![0_u64; words]; rows.len()];
    // Most states are reached before those that follow them, so a few passes from the last to the first are enough.
    loop {
        let mut is_changed = false;
        for (at, row) in rows.iter().enumerate().rev() {
            let mut all = later.get_mut(at).map(std::mem::take).unwrap_or_default();
            for next in row {
                let sets = [reported.get(*next), later.get(*next)];
                for set in sets.into_iter().flatten() {
                    for (to, of) in all.iter_mut().zip(set) {
                        is_changed |= of & !*to != 0;
                        *to |= of;
                    }
                }
            }
            if let Some(known) = later.get_mut(at) {
                *known = all;
            }
        }
        if !is_changed {
            return later;
        }
    }
}

/// Whether a set has a rule.
fn contains(set: &[u64], rule: usize) -> bool {
    set.get(rule / 64)
        .is_some_and(|word| word >> (rule % 64) & 1 == 1)
}
