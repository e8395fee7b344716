//! What is to hold, whatever was killed.

use super::{
    agent::{Calls, class_of},
    world::{Class, Entry, World, call_of},
};
use concentric_core::{Role, ToolContent, Transcript, interrupt};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Counts of runs that are over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Calls that the model made.
    calls: usize,
    /// Calls whose effect is in the world.
    effects: usize,
    /// Effects beyond the first of a call, of tools that must not be repeated and of all others
    /// under another key.
    twice: usize,
    /// Calls without an outcome.
    lost: usize,
    /// Calls whose outcome was unknown, and which a person or a reconciler settled.
    unknown: usize,
    /// Results that differ from the world.
    wrong: usize,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.effects += other.effects;
        self.twice += other.twice;
        self.lost += other.lost;
        self.unknown += other.unknown;
        self.wrong += other.wrong;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            calls,
            effects,
            twice,
            lost,
            unknown,
            wrong,
        } = self;
        write!(
            f,
            "{calls} calls, {effects} with effects, {twice} effects twice, {lost} outcomes lost, \
             {unknown} unknown outcomes settled by a person or a reconciler, {wrong} results that \
             differ from the effects"
        )
    }
}

/// Checks a run that is over, also if nobody has seen its end.
pub fn check(world: &World, script: &[Calls], about: &str) -> Figures {
    let entries = world.entries();
    let mut figures = effects(world, &entries);
    let calls: Vec<(&str, &str)> = script
        .iter()
        .flat_map(|calls| calls.iter().copied())
        .collect();
    figures.calls = calls.len();
    let over = entries.iter().find_map(|entry| match entry {
        Entry::Over(transcript) => Some(transcript),
        _ => None,
    });
    nothing_twice(world, &entries, about);
    nothing_early(&entries, about);
    nothing_asked_again(&entries, about);
    let Some(over) = over else {
        // Nobody has the transcript; what was done can still be told.
        let is_lost = |id: &&str| !is_settled(world, &entries, id);
        let lost: Vec<_> = calls.iter().map(|(_, id)| *id).filter(is_lost).collect();
        figures.lost = lost.len();
        assert!(lost.is_empty(), "{about}: {lost:?} were lost");
        return figures;
    };
    // It is read back as what has one outcome per call.
    let transcript: Transcript = serde_json::from_value(over.clone()).unwrap();
    let results = results(&transcript, script, about);
    figures.lost = calls.len() - results.len();
    let done: BTreeSet<String> = world.done().into_iter().collect();
    for (tool, id) in calls {
        let text = &results[id];
        // What the model reads of a result that a person supplied, before that itself.
        let by_person = text.strip_prefix("A person supplied this result, not the tool:\n");
        let says = by_person
            .unwrap_or(text)
            .strip_prefix(id)
            .unwrap_or_else(|| panic!("{about}: {text}"));
        let asked = entries.iter().any(|entry| {
            matches!(entry, Entry::Asked { reason, call, .. }
                if interrupt::UNKNOWN_EFFECT == reason.as_str() && call == id)
        });
        let found = |found: bool| {
            entries.iter().any(|entry| {
                matches!(entry, Entry::Reconciled { call, did } if call == id && *did == found)
            })
        };
        match says {
            ": done" => {}
            // Only those of whom nobody knows what came of them, and somebody was asked.
            ": seen done" | ": seen not done" => assert!(asked, "{about}: {text}"),
            ": found done" => assert!(found(true), "{about}: {text}"),
            ": found not done" => assert!(found(false), "{about}: {text}"),
            other => panic!("{about}: {id}{other}"),
        }
        if says != ": done" {
            assert_eq!(class_of(tool), Class::AtMostOnce, "{about}: {text}");
        }
        if class_of(tool) != Class::ReadOnly {
            let claims = !says.ends_with("not done");
            figures.wrong += usize::from(claims != done.contains(id));
            assert_eq!(claims, done.contains(id), "{about}: {text}");
        }
    }
    figures
}

/// Counts the effects in the world, and the calls whose outcome was unknown.
fn effects(world: &World, entries: &[Entry]) -> Figures {
    let done = world.done();
    let distinct: BTreeSet<_> = done.iter().collect();
    let mut at_most_once = BTreeSet::new();
    let mut acts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for entry in entries {
        match entry {
            Entry::Started { call, class, .. } if *class == Class::AtMostOnce => {
                at_most_once.insert(&**call);
            }
            Entry::Effect {
                call, did: true, ..
            } if at_most_once.contains(&**call) => *acts.entry(call).or_default() += 1,
            Entry::Asked { reason, call, .. } if interrupt::UNKNOWN_EFFECT == reason.as_str() => {
                unknown.insert(call);
            }
            Entry::Reconciled { call, .. } => {
                unknown.insert(call);
            }
            _ => {}
        }
    }
    let repeated = acts.values().map(|times| times - 1).sum::<usize>();
    Figures {
        effects: distinct.len(),
        twice: done.len() - distinct.len() + repeated,
        unknown: unknown.len(),
        ..Figures::default()
    }
}

/// No effect under two keys, and none that is not to be done twice begun twice.
fn nothing_twice(world: &World, entries: &[Entry], about: &str) {
    let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Started {
                call, class, key, ..
            } => {
                keys.entry(call).or_default().insert(key);
                if *class == Class::AtMostOnce {
                    *starts.entry(call).or_default() += 1;
                }
            }
            Entry::Effect { call, key, did } => {
                assert_eq!(call_of(key), call);
                if *did && starts.contains_key(&**call) {
                    *effects.entry(call).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    for (call, keys) in keys {
        assert_eq!(keys.len(), 1, "{about}: {call} under {keys:?}");
    }
    for (call, n) in starts.iter().chain(&effects) {
        assert_eq!(*n, 1, "{about}: {call}");
    }
    let done = world.done();
    let distinct: BTreeSet<_> = done.iter().collect();
    assert_eq!(done.len(), distinct.len(), "{about}: {done:?}");
}

/// No tool before its round was written down, nor before it was approved.
fn nothing_early(entries: &[Entry], about: &str) {
    let (mut checkpointed, mut accepted) = (false, BTreeSet::new());
    for entry in entries {
        match entry {
            Entry::Checkpointed => checkpointed = true,
            Entry::Accepted(ids) => accepted.extend(ids.iter().map(|id| call_of(id))),
            Entry::Started { call, fence, .. } => {
                assert!(checkpointed && *fence > 0, "{about}: {call} ran too early");
                let gated = ["refund", "wire", "confirm"];
                let gated = gated.iter().any(|name| call.ends_with(name));
                assert!(
                    !gated || accepted.contains(&**call),
                    "{about}: {call} was not approved"
                );
            }
            _ => {}
        }
    }
}

/// What was answered is not asked again; watchers of a decision are told at most once.
fn nothing_asked_again(entries: &[Entry], about: &str) {
    let (mut accepted, mut told) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        match entry {
            Entry::Accepted(ids) => accepted.extend(ids),
            Entry::Asked { id, .. } => {
                assert!(!accepted.contains(id), "{about}: {id} was asked again");
            }
            Entry::Approved(call) => assert!(told.insert(call), "{about}: {call} told twice"),
            _ => {}
        }
    }
}

/// Whether something came of a call.
fn is_settled(world: &World, entries: &[Entry], id: &str) -> bool {
    let told = |entry: &Entry| match entry {
        Entry::Effect { call, .. } | Entry::Reconciled { call, .. } => call == id,
        Entry::Accepted(ids) => ids
            .iter()
            .any(|question| question.ends_with("#effect") && call_of(question) == id),
        _ => false,
    };
    entries.iter().any(told) || world.done().iter().any(|done| done == id)
}

/// The one result of each call, if the transcript has all of them in their places.
fn results(transcript: &Transcript, script: &[Calls], about: &str) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let turns: Vec<_> = transcript.iter().collect();
    let rounds = turns
        .iter()
        .filter(|turn| turn.as_message().role == Role::Assistant)
        .filter(|turn| turn.as_round().is_some());
    let rounds: Vec<_> = rounds.collect();
    assert_eq!(rounds.len(), script.len(), "{about}");
    for (turn, calls) in rounds.iter().zip(script) {
        let made: Vec<_> = turn
            .as_message()
            .tool_calls()
            .map(|c| c.id.as_str())
            .collect();
        let wanted: Vec<_> = calls.iter().map(|(_, id)| *id).collect();
        assert_eq!(made, wanted, "{about}");
        let answered: Vec<_> = turn.results().iter().map(|r| r.call_id.as_str()).collect();
        assert_eq!(answered, wanted, "{about}");
        for result in turn.results() {
            let ToolContent::Text(text) = &result.outcome.content else {
                panic!("{about}: {result:?}");
            };
            let id = result.call_id.to_string();
            assert!(results.insert(id, text.to_string()).is_none(), "{about}");
        }
    }
    results
}
