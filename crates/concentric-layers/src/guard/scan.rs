//! The search for matches in a text that arrives in pieces.

use super::{
    Rule, Rules,
    automaton::{Automaton, DEAD, START},
};
use concentric_core::Str;
use std::{cmp::Reverse, ops::Range};

/// The number of bytes after which the states of a search that found nothing are kept.
const LONG: usize = 64;

/// The number of bytes after which the length of a search is checked.
const PIECE: usize = 64;

/// The number of such searches.
const TRAILS: usize = 4;

/// A text that arrives in pieces, and the part of it that a match may begin in.
pub(super) struct Scan {
    // The text from the first start at which a match is still possible.
    held: String,
    // The byte before it, or `START`.
    before: usize,
    // The search from the start of `held`, which has read all of it.
    search: Option<Search>,
    // Whether a match was replaced.
    is_changed: bool,
}

/// A search from one start.
#[derive(Clone, Copy)]
struct Search {
    // The number of bytes that were read.
    read: usize,
    state: u32,
    has_match: bool,
}

/// A match of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) rule: usize,
    /// The length of the replaced text in bytes.
    pub(super) len: usize,
}

/// The part of a text that is decided.
#[derive(Default)]
struct Decided {
    // The text with its replacements; `None` if it has none.
    text: Option<String>,
    // The end of the part that is in `text`.
    copied: usize,
    matches: Vec<Match>,
    // Whether a rule that blocks replaces.
    replaces_all: bool,
    is_blocked: bool,
}

/// The part of a text that may be released.
#[derive(Debug, Default)]
pub(super) struct Released {
    pub(super) text: Str,
    pub(super) matches: Vec<Match>,
    /// Whether a match blocks the rest of the text.
    pub(super) is_blocked: bool,
    /// Whether the text so far is not that of the pieces.
    pub(super) is_changed: bool,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            held: String::new(),
            before: START,
            search: None,
            is_changed: false,
        }
    }
}

impl Scan {
    /// Adds a piece of the text.
    pub(super) fn push(&mut self, rules: &Rules, piece: Str) -> Released {
        let mut decided = Decided::default();
        if self.held.is_empty() {
            let (kept, search) = find(rules, &piece, self.before, None, false, &mut decided);
            if kept == piece.len() && decided.text.is_none() {
                self.before = last_byte(&piece, self.before);
                return Released {
                    text: piece,
                    ..Released::default()
                };
            }
            let (done, held) = piece.split_at_checked(kept).unwrap_or((&piece, ""));
            self.before = last_byte(done, self.before);
            self.held.push_str(held);
            self.search = search;
            return self.release(decided, done);
        }
        let mut held = std::mem::take(&mut self.held);
        held.push_str(&piece);
        let search = self.search.take();
        let (kept, search) = find(rules, &held, self.before, search, false, &mut decided);
        let (done, _) = held.split_at_checked(kept).unwrap_or((&held, ""));
        self.before = last_byte(done, self.before);
        self.search = search;
        let released = self.release(decided, done);
        held.drain(..kept);
        self.held = held;
        released
    }

    /// Ends the text, and begins another one.
    pub(super) fn end(&mut self, rules: &Rules) -> Released {
        if self.held.is_empty() {
            let is_changed = self.is_changed;
            self.before = START;
            self.is_changed = false;
            return Released {
                is_changed,
                ..Released::default()
            };
        }
        let mut held = std::mem::take(&mut self.held);
        let mut decided = Decided::default();
        find(rules, &held, self.before, self.search, true, &mut decided);
        let released = self.release(decided, &held);
        held.clear();
        *self = Self {
            held,
            ..Self::default()
        };
        released
    }

    /// Drops the text so far.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn release(&mut self, mut decided: Decided, done: &str) -> Released {
        self.is_changed |= decided.text.is_some();
        let is_blocked = decided.is_blocked;
        let matches = std::mem::take(&mut decided.matches);
        let text = decided.rest(done).map_or_else(|| done.into(), Str::from);
        Released {
            text,
            matches,
            is_blocked,
            is_changed: self.is_changed,
        }
    }
}

/// Scans a whole text; `None` if nothing matches.
pub(super) fn whole(rules: &Rules, text: &str) -> Option<Released> {
    let decided = Decided::whole(rules, text, false);
    if decided.matches.is_empty() && !decided.is_blocked {
        return None;
    }
    Some(Scan::default().release(decided, text))
}

/// Returns a text with its matches replaced; `None` if it has none.
pub(super) fn replaced(rules: &Rules, text: &str) -> Option<String> {
    let decided = Decided::whole(rules, text, true);
    decided.rest(text)
}

/// Returns the matches of a text.
pub(super) fn matches(rules: &Rules, text: &str) -> Vec<Match> {
    Decided::whole(rules, text, true).matches
}

fn last_byte(text: &str, otherwise: usize) -> usize {
    text.bytes().next_back().map_or(otherwise, usize::from)
}

/// Decides about `text` from its start, for which `search` is in progress. Returns the first start at which a
/// match is still possible, and the search from it.
///
/// The matches are the leftmost ones. Of those with the same start, it is the one of the first rule; of those
/// with the same rule, the longest one that the rule accepts. The search continues at the end of a match.
fn find(
    rules: &Rules,
    text: &str,
    before: usize,
    mut search: Option<Search>,
    is_end: bool,
    decided: &mut Decided,
) -> (usize, Option<Search>) {
    let automaton = rules.automaton();
    let bytes = text.as_bytes();
    let mut trails = Trails::default();
    let mut start = 0;
    let before = |start: usize| match start.checked_sub(1) {
        Some(at) => bytes.get(at).map_or(START, |byte| usize::from(*byte)),
        None => before,
    };
    loop {
        let mut from = match search.take() {
            Some(search) => search,
            None => {
                let mut last = before(start);
                let rest = bytes.get(start..).unwrap_or_default();
                let entered = rest.iter().enumerate().find_map(|(at, byte)| {
                    let state = automaton.next(automaton.start(last), *byte);
                    last = usize::from(*byte);
                    (state != DEAD).then_some((at, state))
                });
                let Some((at, state)) = entered else {
                    return (bytes.len(), None);
                };
                start += at;
                Search {
                    read: 1,
                    state,
                    has_match: false,
                }
            }
        };
        if from.is_alive_after(rules, bytes, start, is_end, &mut trails) {
            return (start, Some(from));
        }
        if from.has_match {
            trails = Trails::default();
            if let Some((end, found)) = resolve(rules, text, start, before(start), is_end) {
                if decided.replace(rules, text, found) {
                    return (bytes.len(), None);
                }
                start = end;
                continue;
            }
        } else if from.read > LONG && trails.joined.is_none() {
            trails.add(automaton, bytes, start, before(start), from.read);
        }
        start += 1;
    }
}

impl Search {
    /// Reads the rest of the text; `false` once no further match is possible.
    #[inline(always)]
    fn is_alive_after(
        &mut self,
        rules: &Rules,
        bytes: &[u8],
        start: usize,
        is_end: bool,
        trails: &mut Trails,
    ) -> bool {
        let automaton = rules.automaton();
        let is_alive = match trails.trails.is_empty() {
            true => self.read(automaton, bytes, start),
            false => self.read_along(automaton, bytes, start, trails),
        };
        if is_alive && is_end {
            self.has_match |= automaton.is_match(automaton.end(self.state));
            return false;
        }
        is_alive
    }

    #[inline(always)]
    fn read(&mut self, automaton: &Automaton, bytes: &[u8], start: usize) -> bool {
        let mut rest = bytes
            .get(start.wrapping_add(self.read)..)
            .unwrap_or_default();
        let mut state = self.state;
        // States that report matches are the highest ones.
        let mut highest = state;
        let is_alive = loop {
            // The length is checked once for several bytes, since `Automaton::matches` checks it, too.
            let (piece, later) = rest.split_at_checked(PIECE).unwrap_or((rest, &[]));
            let mut left = piece;
            while state != DEAD
                && let Some((byte, others)) = left.split_first()
            {
                left = others;
                state = automaton.next(state, *byte);
                highest = highest.max(state);
            }
            self.read = self.read.wrapping_add(piece.len().wrapping_sub(left.len()));
            if state == DEAD || !automaton.may_match(state, self.read) {
                break false;
            }
            if later.is_empty() {
                break true;
            }
            rest = later;
        };
        self.state = state;
        self.has_match |= automaton.is_match(highest);
        is_alive
    }

    /// As `read`, until the search joins an earlier one that found nothing.
    fn read_along(
        &mut self,
        automaton: &Automaton,
        bytes: &[u8],
        start: usize,
        trails: &mut Trails,
    ) -> bool {
        trails.joined = None;
        loop {
            let at = start.wrapping_add(self.read);
            if let Some(trail) = trails.join(at, self.state) {
                self.read = trail.end().wrapping_sub(start);
                self.state = trail.states.last().copied().unwrap_or(DEAD);
                if self.state == DEAD {
                    return false;
                }
                continue;
            }
            let Some(byte) = bytes.get(at) else {
                return true;
            };
            self.state = automaton.next(self.state, *byte);
            self.read = self.read.wrapping_add(1);
            trails.extend(self.state);
            if self.state == DEAD {
                return false;
            }
            self.has_match |= automaton.is_match(self.state);
            if !automaton.may_match(self.state, self.read) {
                return false;
            }
        }
    }
}

/// The states of searches that found nothing. Where another search is in the same state at the same place, it
/// continues as they did, so that a long text without matches takes linear time.
#[derive(Default)]
struct Trails {
    // Few, since the searches of a text have few kinds of states.
    trails: Vec<Trail>,
    // The one that the last search joined.
    joined: Option<usize>,
    // The one that is replaced next.
    oldest: usize,
}

struct Trail {
    start: usize,
    // The states after each byte, up to the dead one or to the length of the longest match.
    states: Vec<u32>,
}

impl Trail {
    /// The place of the last state.
    fn end(&self) -> usize {
        self.start.wrapping_add(self.states.len())
    }
}

impl Trails {
    /// Repeats a search that has read `count` bytes.
    #[cold]
    fn add(
        &mut self,
        automaton: &Automaton,
        bytes: &[u8],
        start: usize,
        before: usize,
        count: usize,
    ) {
        let mut state = automaton.start(before);
        let read = bytes.iter().skip(start).take(count);
        let states = read.map(|byte| {
            state = automaton.next(state, *byte);
            state
        });
        let states = states.collect();
        let trail = Trail { start, states };
        match self.trails.get_mut(self.oldest) {
            Some(oldest) => *oldest = trail,
            None => self.trails.push(trail),
        }
        self.oldest = (self.oldest + 1) % TRAILS;
    }

    /// Returns the trail that was in `state` before the byte `at`, unless the search has joined one before.
    fn join(&mut self, at: usize, state: u32) -> Option<&Trail> {
        if self.joined.is_some() {
            return None;
        }
        self.joined = self.trails.iter().position(|trail| {
            let index = at.wrapping_sub(trail.start).wrapping_sub(1);
            trail.states.get(index) == Some(&state)
        });
        self.trails.get(self.joined?)
    }

    /// Adds a state to the trail that the search has joined.
    fn extend(&mut self, state: u32) {
        if let Some(trail) = self.joined.and_then(|at| self.trails.get_mut(at)) {
            trail.states.push(state);
        }
    }
}

/// Returns the rule of the match that begins at `start`, and the end of the match.
fn resolve(
    rules: &Rules,
    text: &str,
    start: usize,
    before: usize,
    is_end: bool,
) -> Option<(usize, Found)> {
    let automaton = rules.automaton();
    let mut state = automaton.start(before);
    let mut ends: Vec<(usize, Reverse<usize>)> = Vec::new();
    let mut report = |state: u32, end: usize| {
        if automaton.is_match(state) {
            let rules = automaton.matches(state, end.wrapping_sub(start));
            ends.extend(rules.map(|rule| (rule, Reverse(end))));
        }
    };
    let mut bytes = text.bytes().enumerate().skip(start);
    let is_over = loop {
        let Some((at, byte)) = bytes.next() else {
            break is_end;
        };
        state = automaton.next(state, byte);
        report(state, at);
        let read = at.wrapping_sub(start).wrapping_add(1);
        if state == DEAD || !automaton.may_match(state, read) {
            break false;
        }
    };
    if is_over {
        report(automaton.end(state), text.len());
    }
    ends.sort_unstable();
    ends.dedup_by(|next, longest| {
        next.0 == longest.0 && rules.rule(next.0).is_some_and(Rule::is_longest)
    });
    ends.into_iter().find_map(|(rule, Reverse(end))| {
        let found = text.get(start..end)?;
        let part = rules.rule(rule)?.accept(found)?;
        let part = start.wrapping_add(part.start)..start.wrapping_add(part.end);
        Some((end, Found { rule, part }))
    })
}

/// A match, and the part of it that is replaced.
struct Found {
    rule: usize,
    part: Range<usize>,
}

impl Decided {
    fn whole(rules: &Rules, text: &str, replaces_all: bool) -> Self {
        let mut decided = Self {
            replaces_all,
            ..Self::default()
        };
        find(rules, text, START, None, true, &mut decided);
        decided
    }

    /// Returns the text with its replacements; `None` if it has none.
    fn rest(self, text: &str) -> Option<String> {
        let mut all = self.text?;
        if !self.is_blocked {
            all.push_str(text.get(self.copied..).unwrap_or_default());
        }
        Some(all)
    }

    /// Replaces a part of the text; `true` if nothing after it is released.
    fn replace(&mut self, rules: &Rules, text: &str, found: Found) -> bool {
        let Found { rule, part } = found;
        let Some(of) = rules.rule(rule) else {
            return false;
        };
        let secret = text.get(part.clone()).unwrap_or_default();
        if secret.is_empty() {
            // The text matches, and none of it is replaced.
            return false;
        }
        self.matches.push(Match {
            rule,
            len: secret.len(),
        });
        if of.is_flag() {
            return false;
        }
        let text_so_far = self.text.get_or_insert_default();
        text_so_far.push_str(text.get(self.copied..part.start).unwrap_or_default());
        self.copied = part.end;
        if of.is_block() && !self.replaces_all {
            self.is_blocked = true;
            return true;
        }
        of.replace_in(secret, text_so_far);
        false
    }
}
