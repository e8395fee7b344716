//! The search for matches in a text that arrives in pieces.

use super::{
    Rules,
    automaton::{Automaton, DEAD, ESCAPED, START},
};
use concentric_core::Str;
use std::ops::Range;

/// The number of bytes after which the states of a search that found nothing are kept.
const LONG: usize = 64;

/// The number of such searches.
const TRAILS: usize = 4;

/// The number of bytes after which the length of a search is checked.
const PIECE: usize = 64;

/// The sign before the letter of an escape sequence.
const BACKSLASH: u8 = b'\\';

/// A text that arrives in pieces, and the part of it that a match may begin in.
pub(super) struct Scan {
    // The text from the first start at which a match is still possible, and the search from it, which has read
    // all of it and continues in the next piece. Without a search, nothing is held.
    held: String,
    search: Option<Search>,
    // Earlier searches, which have read a part of that text.
    trails: Trails,
    // The match that is replaced already, and whose tail follows.
    tail: Option<Tail>,
    // The byte before that text, `START`, or `ESCAPED`.
    before: usize,
    // Whether a match was replaced.
    is_changed: bool,
}

/// A search from one start.
#[derive(Clone, Copy)]
struct Search {
    start: usize,
    // The number of bytes that were read.
    read: usize,
    state: u32,
    has_match: bool,
}

/// What follows a match of the maximum length, as far as the pattern continues. It is dropped, so that no part
/// of a secret is released.
#[derive(Clone, Copy)]
struct Tail {
    rule: usize,
    state: u32,
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
    // The last match, if it continues after the text.
    tail: Option<Tail>,
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
            search: None,
            trails: Trails::default(),
            tail: None,
            before: START,
            is_changed: false,
        }
    }
}

impl Scan {
    /// Adds a piece of the text, and replaces it by the text that is released. Returns that text in place of the
    /// piece if a rule matches, or if nothing is released.
    pub(super) fn push(&mut self, rules: &Rules, piece: &mut Str) -> Option<Released> {
        if let Some(tail) = self.tail.take() {
            return self.push_after(rules, tail, piece);
        }
        let automaton = rules.automaton();
        let search = match self.search.take() {
            Some(search) => {
                self.held.push_str(piece);
                search.resume(automaton, self.held.as_bytes(), self.before)
            }
            None => {
                let search = Search::first(automaton, piece.as_bytes(), 0, self.before);
                if search.is_none() {
                    self.before = last_byte(piece, self.before);
                    return None;
                }
                self.held.push_str(piece);
                search
            }
        };
        if let Some(search) = search
            && !search.is_open(automaton, self.held.len())
        {
            return Some(self.decide(rules, search, false));
        }
        let end = self.hold(search);
        *piece = Str::from(self.held.get(..end).unwrap_or_default());
        self.held.drain(..end);
        piece.is_empty().then(Released::default)
    }

    /// Adds a piece that follows a match of the maximum length.
    #[inline(never)]
    fn push_after(&mut self, rules: &Rules, mut tail: Tail, piece: &mut Str) -> Option<Released> {
        let end = tail.end(rules.automaton(), piece, 0);
        let (dropped, rest) = piece.split_at(end.unwrap_or(piece.len()));
        self.before = last_byte(dropped, self.before);
        if end.is_none() {
            self.tail = Some(tail);
            return Some(Released::default());
        }
        *piece = Str::from(rest);
        self.push(rules, piece)
    }

    /// Ends the text, and begins another one.
    pub(super) fn end(&mut self, rules: &Rules) -> Released {
        let released = match self.search.take() {
            Some(search) => self.decide(rules, search, true),
            None => Released {
                is_changed: self.is_changed,
                ..Released::default()
            },
        };
        *self = Self {
            held: std::mem::take(&mut self.held),
            ..Self::default()
        };
        released
    }

    /// Drops the text so far.
    /// Whether a part of the text is held.
    pub(super) const fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Decides about the text that is held, in which something matches or may match from the start of `search`.
    #[inline(never)]
    fn decide(&mut self, rules: &Rules, search: Search, is_end: bool) -> Released {
        let mut decided = Decided::default();
        let (text, trails) = (&self.held, &mut self.trails);
        let search = find(
            rules,
            text,
            self.before,
            search,
            is_end,
            trails,
            &mut decided,
        );
        self.tail = decided.tail;
        let end = self.hold(search);
        let mut released = decided.released(self.held.get(..end).unwrap_or_default());
        self.held.drain(..end);
        self.is_changed |= released.is_changed;
        released.is_changed = self.is_changed;
        released
    }

    /// Sets the search from whose start the text is held, and returns the end of the text that is not.
    #[inline(always)]
    fn hold(&mut self, search: Option<Search>) -> usize {
        let end = search.map_or(self.held.len(), |search| search.start);
        self.before = byte_before(self.held.as_bytes(), end, self.before);
        if !self.trails.trails.is_empty() {
            self.trails.release(end, search.is_none());
        }
        self.search = search.map(|search| Search { start: 0, ..search });
        end
    }
}

/// Scans a whole text; `None` if nothing matches.
pub(super) fn whole(rules: &Rules, text: &str) -> Option<Released> {
    let decided = Decided::whole(rules, text, false);
    if decided.matches.is_empty() && !decided.is_blocked {
        return None;
    }
    Some(decided.released(text))
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

/// The byte before the place `at`, or `ESCAPED`; that before the first one is `before`.
#[inline(always)]
fn byte_before(bytes: &[u8], at: usize, before: usize) -> usize {
    let Some(last) = at.checked_sub(1) else {
        return before;
    };
    let byte = bytes.get(last).copied().unwrap_or_default();
    let is_after_backslash = || match last.checked_sub(1) {
        Some(at) => bytes.get(at) == Some(&BACKSLASH),
        None => before == usize::from(BACKSLASH),
    };
    if is_space(byte) && is_after_backslash() {
        return ESCAPED;
    }
    usize::from(byte)
}

/// Whether a letter stands for white space after a backslash.
const fn is_space(letter: u8) -> bool {
    matches!(letter, b'b' | b'f' | b'n' | b'r' | b't')
}

fn last_byte(text: &str, otherwise: usize) -> usize {
    byte_before(text.as_bytes(), text.len(), otherwise)
}

/// Decides about `text` up to the first start at which a match is still possible, and returns the search from it.
///
/// The matches are the leftmost ones. Of those with the same start, it is the one of the first rule; of those
/// with the same rule, the longest one that the rule accepts. The search continues at the end of a match.
#[inline(never)]
fn find(
    rules: &Rules,
    text: &str,
    before: usize,
    mut search: Search,
    is_end: bool,
    trails: &mut Trails,
    decided: &mut Decided,
) -> Option<Search> {
    let automaton = rules.automaton();
    let bytes = text.as_bytes();
    loop {
        if search.is_alive_after(automaton, bytes, is_end, trails) {
            return Some(search);
        }
        let start = search.start;
        let before = |place| byte_before(bytes, place, before);
        let mut next = start.wrapping_add(1);
        if search.has_match {
            *trails = Trails::default();
            if let Some(found) = resolve(rules, text, start, before(start), is_end) {
                let (end, tail) = (found.end, found.tail);
                if decided.replace(rules, text, found) {
                    return None;
                }
                next = end;
                if let Some((read, mut tail)) = tail {
                    let Some(after) = tail.end(automaton, text, read) else {
                        decided.copied = text.len();
                        decided.tail = Some(tail);
                        return None;
                    };
                    next = after.max(end);
                    decided.copied = next;
                }
            }
        } else if search.read > LONG && trails.joined.is_none() {
            trails.add(automaton, bytes, start, before(start), search.read);
        }
        search = Search::first(automaton, bytes, next, before(next))?;
    }
}

impl Search {
    /// Searches from `start`, and from each later place if nothing matches from it. Returns the first search
    /// that has a match, has read all of the text, or is long.
    #[inline(never)]
    fn first(automaton: &Automaton, bytes: &[u8], start: usize, before: usize) -> Option<Self> {
        let mut rest = bytes.get(start..)?;
        let mut context = automaton.context(before);
        let mut is_escaped = before == usize::from(BACKSLASH);
        loop {
            let (from, context_of) = match is_escaped {
                true => (rest, context),
                false => automaton.begin(context, rest)?,
            };
            let (first, others) = from.split_first()?;
            let mut search = Self {
                start: bytes.len().wrapping_sub(from.len()),
                read: 0,
                state: automaton.start(context_of),
                has_match: false,
            };
            search.step(automaton, from.get(..LONG).unwrap_or(from));
            if search.state != DEAD {
                return Some(search);
            }
            context = automaton.context(match is_escaped && is_space(*first) {
                true => ESCAPED,
                false => usize::from(*first),
            });
            is_escaped = *first == BACKSLASH;
            rest = others;
        }
    }

    /// Continues with a text that is longer now, as [`first`](Self::first).
    fn resume(mut self, automaton: &Automaton, bytes: &[u8], before: usize) -> Option<Self> {
        let left = LONG.saturating_sub(self.read);
        let rest = bytes.get(self.start.wrapping_add(self.read)..)?;
        self.step(automaton, rest.get(..left).unwrap_or(rest));
        if self.has_match || self.state != DEAD {
            return Some(self);
        }
        let next = self.start.wrapping_add(1);
        Self::first(automaton, bytes, next, byte_before(bytes, next, before))
    }

    /// Reads `bytes` up to the first match, or up to the one after which nothing matches.
    #[inline(always)]
    fn step(&mut self, automaton: &Automaton, bytes: &[u8]) {
        let mut left = bytes;
        let mut state = self.state;
        while let Some((byte, others)) = left.split_first() {
            left = others;
            state = automaton.next(state, *byte);
            if automaton.is_dead_or_match(state) {
                break;
            }
        }
        self.state = state;
        self.read = self.read.wrapping_add(bytes.len().wrapping_sub(left.len()));
        self.has_match |= automaton.is_match(state);
    }

    /// Whether no match was found in a text of `len` bytes, and one may end after it.
    #[inline(always)]
    fn is_open(&self, automaton: &Automaton, len: usize) -> bool {
        !self.has_match
            && self.start.wrapping_add(self.read) == len
            && automaton.may_match(self.state, self.read)
    }

    /// Reads the rest of the text; `false` once no further match is possible.
    #[inline(always)]
    fn is_alive_after(
        &mut self,
        automaton: &Automaton,
        bytes: &[u8],
        is_end: bool,
        trails: &mut Trails,
    ) -> bool {
        let is_alive = match trails.trails.is_empty() {
            true => self.read(automaton, bytes),
            false => self.read_along(automaton, bytes, trails),
        };
        if is_alive && is_end {
            self.has_match |= automaton.is_match(automaton.end(self.state));
            return false;
        }
        is_alive
    }

    #[inline(always)]
    fn read(&mut self, automaton: &Automaton, bytes: &[u8]) -> bool {
        // The length is checked once for several bytes, since `Automaton::matches` checks it, too.
        while automaton.may_match(self.state, self.read) {
            let end = self.start.wrapping_add(self.read);
            let rest = bytes.get(end..).unwrap_or_default();
            if rest.is_empty() {
                return true;
            }
            self.step(automaton, rest.get(..PIECE).unwrap_or(rest));
        }
        false
    }

    /// As `read`, until the search joins an earlier one that found nothing.
    #[inline(never)]
    fn read_along(&mut self, automaton: &Automaton, bytes: &[u8], trails: &mut Trails) -> bool {
        trails.joined = None;
        while automaton.may_match(self.state, self.read) {
            let at = self.start.wrapping_add(self.read);
            if let Some((end, state)) = trails.join(at, self.state) {
                self.read = end.wrapping_sub(self.start);
                self.state = state;
                continue;
            }
            let Some(byte) = bytes.get(at) else {
                return true;
            };
            self.state = automaton.next(self.state, *byte);
            self.read = self.read.wrapping_add(1);
            trails.extend(self.state);
            self.has_match |= automaton.is_match(self.state);
        }
        false
    }
}

/// The states of searches that found nothing. Where another search is in the same state at the same place, it
/// continues as they did, so that a long text without matches takes linear time, also in pieces.
#[derive(Default)]
struct Trails {
    // Few, since the searches of a text have few kinds of states.
    trails: Vec<Trail>,
    // The one that the last search joined.
    joined: Option<usize>,
    // The one that is replaced next.
    oldest: usize,
    // The place of the first byte of the text, which moves as text is released.
    base: usize,
}

struct Trail {
    // Counted as `Trails::base`.
    start: usize,
    // The states after each byte, up to the dead one or to the length of the longest match.
    states: Vec<u32>,
}

impl Trails {
    /// Removes the first `count` bytes of the text, or all that is known of it.
    fn release(&mut self, count: usize, is_over: bool) {
        if is_over {
            *self = Self::default();
            return;
        }
        self.base = self.base.wrapping_add(count);
        for trail in &mut self.trails {
            let released = self.base.saturating_sub(trail.start);
            // Not each time, since the others are moved.
            if released > trail.states.len() / 2 {
                let released = released.min(trail.states.len());
                trail.states.drain(..released);
                // One long event must not keep its memory.
                trail.states.shrink_to(2 * trail.states.len());
                trail.start = trail.start.wrapping_add(released);
            }
        }
    }

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
        let mut state = automaton.start(automaton.context(before));
        let read = bytes.iter().skip(start).take(count);
        let states = read.map(|byte| {
            state = automaton.next(state, *byte);
            state
        });
        let states = states.collect();
        let start = self.base.wrapping_add(start);
        let trail = Trail { start, states };
        match self.trails.get_mut(self.oldest) {
            Some(oldest) => *oldest = trail,
            None => self.trails.push(trail),
        }
        self.oldest = (self.oldest + 1) % TRAILS;
    }

    /// Returns the end and the last state of the trail that was in `state` before the byte `at`, unless the search has
    /// joined one before.
    fn join(&mut self, at: usize, state: u32) -> Option<(usize, u32)> {
        if self.joined.is_some() {
            return None;
        }
        let at = self.base.wrapping_add(at);
        self.joined = self.trails.iter().position(|trail| {
            let index = at.wrapping_sub(trail.start).wrapping_sub(1);
            trail.states.get(index) == Some(&state)
        });
        let trail = self.trails.get(self.joined?)?;
        let end = trail.start.wrapping_add(trail.states.len());
        Some((end.wrapping_sub(self.base), *trail.states.last()?))
    }

    /// Adds a state to the trail that the search has joined.
    fn extend(&mut self, state: u32) {
        if let Some(trail) = self.joined.and_then(|at| self.trails.get_mut(at)) {
            trail.states.push(state);
        }
    }
}

/// Returns the match that begins at `start`.
#[inline(never)]
fn resolve(rules: &Rules, text: &str, start: usize, before: usize, is_end: bool) -> Option<Found> {
    let automaton = rules.automaton();
    let mut state = automaton.start(automaton.context(before));
    // The ends of the matches of each rule.
    let mut ends: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut report = |state: u32, end: usize| {
        if automaton.is_match(state) {
            for rule in automaton.matches(state, end.wrapping_sub(start)) {
                match ends.iter_mut().find(|(of, _)| *of == rule) {
                    Some((_, ends)) => ends.push(end),
                    None => ends.push((rule, vec![end])),
                }
            }
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
    ends.into_iter().find_map(|(rule, ends)| {
        let of = rules.rule(rule)?;
        let longest = ends.iter().rev().enumerate().take(of.tries());
        let mut longest = longest.filter_map(|(shorter, end)| {
            let part = of.accept(text.get(start..*end)?)?;
            Some((shorter, *end, part))
        });
        let (shorter, end, part) = longest.next()?;
        let part = start.wrapping_add(part.start)..start.wrapping_add(part.end);
        let may_continue = shorter == 0 && !part.is_empty() && !of.is_flag();
        Some(Found {
            rule,
            part,
            end,
            tail: may_continue
                .then(|| Tail::after(rules, text, start, before, rule))
                .flatten(),
        })
    })
}

/// A match, and the part of it that is replaced.
struct Found {
    rule: usize,
    part: Range<usize>,
    end: usize,
    // Where the tail of a match of the maximum length begins.
    tail: Option<(usize, Tail)>,
}

impl Tail {
    /// Returns the tail of the match that begins at `start`, if the pattern continues beyond the maximum length.
    fn after(
        rules: &Rules,
        text: &str,
        start: usize,
        before: usize,
        rule: usize,
    ) -> Option<(usize, Self)> {
        let automaton = rules.automaton();
        let end = start.checked_add(automaton.longest(rule))?.checked_add(1)?;
        let mut state = automaton.start(automaton.context(before));
        for byte in text.as_bytes().get(start..end)? {
            state = automaton.next(state, *byte);
            if state == DEAD {
                return None;
            }
        }
        let tail = Self { rule, state };
        automaton.continues(state, rule).then_some((end, tail))
    }

    /// Reads the text from the byte `start`, and returns the end of the tail; `None` if more may follow.
    fn end(&mut self, automaton: &Automaton, text: &str, start: usize) -> Option<usize> {
        let mut bytes = text.bytes().enumerate().skip(start);
        let (mut at, _) = bytes.find(|(_, byte)| {
            self.state = automaton.next(self.state, *byte);
            !automaton.continues(self.state, self.rule)
        })?;
        while !text.is_char_boundary(at) {
            at = at.wrapping_sub(1);
        }
        Some(at)
    }
}

impl Decided {
    fn whole(rules: &Rules, text: &str, replaces_all: bool) -> Self {
        let mut decided = Self {
            replaces_all,
            ..Self::default()
        };
        if let Some(search) = Search::first(rules.automaton(), text.as_bytes(), 0, START) {
            let trails = &mut Trails::default();
            find(rules, text, START, search, true, trails, &mut decided);
        }
        decided
    }

    /// The part `text` that is decided, with its replacements.
    fn released(mut self, text: &str) -> Released {
        let (matches, is_blocked) = (std::mem::take(&mut self.matches), self.is_blocked);
        let by = self.rest(text);
        Released {
            is_changed: by.is_some(),
            text: by.map_or_else(|| text.into(), Str::from),
            matches,
            is_blocked,
        }
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
    #[inline(never)]
    fn replace(&mut self, rules: &Rules, text: &str, found: Found) -> bool {
        let Found { rule, part, .. } = found;
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
