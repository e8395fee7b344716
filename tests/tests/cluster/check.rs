//! What must hold at the end, whatever failed.

use super::{
    agent::{Script, class_of},
    history::{Note, What},
    worker::Answer,
    world::{Class, Entry, call_of},
};
use concentric_core::{Role, ToolContent, ToolStatus, Transcript, interrupt};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::Duration,
};

/// All that is known at the end.
pub struct Outcome {
    pub entries: Vec<Entry>,
    /// The calls whose effects exist.
    pub done: Vec<String>,
    pub notes: Vec<Note>,
    /// The runs of each conversation, in order, with requests that were not accepted, and its stored history.
    pub threads: HashMap<String, (Vec<Script>, Transcript)>,
    /// The id of a run's request, the id of its storage, its status, and whether its lease is held.
    pub rows: Vec<(String, String, String, Option<bool>)>,
    /// The questions of each reply that was sent, and its answer.
    pub replies: Vec<(String, Option<Answer>)>,
}

#[derive(Debug, Default)]
pub struct Figures {
    runs: usize,
    /// Runs that ended with an error.
    failed: BTreeMap<String, usize>,
    steps: usize,
    takeovers: usize,
    effects: usize,
    denied: usize,
    unknown: usize,
    replies: usize,
    /// From the death of a process until another one has claimed each of its runs.
    resumed: Vec<Duration>,
}

impl Figures {
    /// The time until runs of a killed process were resumed, which was not exceeded in `n` of 100 cases.
    pub fn percentile(&self, n: usize) -> Duration {
        let at = (self.resumed.len() * n).div_ceil(100).max(1) - 1;
        self.resumed.get(at).copied().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs, {} steps, {} takeovers, {} effects, {} calls denied, {} unknown outcomes \
             settled by a person, {} replies; runs that failed, by their errors: {:?}",
            self.runs,
            self.steps,
            self.takeovers,
            self.effects,
            self.denied,
            self.unknown,
            self.replies,
            self.failed
        )?;
        write!(
            f,
            "{} runs of killed processes were resumed, after {:?} (p50), {:?} (p99)",
            self.resumed.len(),
            self.percentile(50),
            self.percentile(99)
        )
    }
}

/// Checks all; the violations are in the message of the panic.
pub fn check(outcome: &Outcome) -> Figures {
    let mut faults = Vec::new();
    let mut figures = Figures::default();
    let found = &mut faults;
    rows(outcome, found);
    fences(outcome, found, &mut figures);
    effects(outcome, found, &mut figures);
    decisions(outcome, found, &mut figures);
    for (thread, (scripts, history)) in &outcome.threads {
        conversation(outcome, thread, scripts, history, found, &mut figures);
    }
    resumed(outcome, &mut figures);
    figures.steps = outcome
        .notes
        .iter()
        .filter(|note| note.what == What::Step)
        .count();
    let n = faults.len();
    assert!(
        faults.is_empty(),
        "{n} violations: {:#?}; {figures}",
        &faults[..n.min(20)]
    );
    figures
}

/// Every run that was accepted has one row, which has ended and holds no lease.
fn rows(outcome: &Outcome, found: &mut Vec<String>) {
    let mut stored: BTreeMap<&str, &str> = BTreeMap::new();
    let mut clients = BTreeSet::new();
    for (client, run, status, held) in &outcome.rows {
        stored.insert(run, status);
        if !clients.insert(client) {
            found.push(format!("{client} has several runs"));
        }
        if status != "ended" || *held != Some(false) {
            found.push(format!("{client} is {status}, and its lease {held:?}"));
        }
    }
    for note in &outcome.notes {
        if let What::Begun { run, client, .. } = &note.what
            && !stored.contains_key(run.as_str())
        {
            found.push(format!("{client} was accepted and is lost"));
        }
    }
}

/// No two processes have the same claim of a run, and at most one ends it.
fn fences(outcome: &Outcome, found: &mut Vec<String>, figures: &mut Figures) {
    let mut claims = BTreeSet::new();
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut finished: BTreeMap<&str, usize> = BTreeMap::new();
    for note in &outcome.notes {
        match &note.what {
            What::Begun { run, fence, .. } | What::Claimed { run, fence, .. } => {
                if !claims.insert((run, fence)) {
                    found.push(format!("{run} has the claim {fence} twice"));
                }
                let newest = newest.entry(run).or_default();
                *newest = (*newest).max(*fence);
                if matches!(
                    note.what,
                    What::Claimed {
                        is_abandoned: true,
                        ..
                    }
                ) {
                    figures.takeovers += 1;
                }
            }
            What::Ended { run, fence } => ends.entry(run).or_default().push(*fence),
            What::Finished {
                client, outcome, ..
            } if outcome != "Interrupted" => *finished.entry(client).or_default() += 1,
            _ => {}
        }
    }
    for (run, ends) in ends {
        let is_newest = ends.iter().all(|fence| *fence >= newest[run]);
        if !is_newest || ends.len() != 1 {
            found.push(format!("{run} ended by {ends:?} of {}", newest[run]));
        }
    }
    for (client, n) in finished {
        if n > 1 {
            found.push(format!("{client} has {n} outcomes"));
        }
    }
}

/// Keyed effects are done once; others are begun and done at most once, under one key.
fn effects(outcome: &Outcome, found: &mut Vec<String>, figures: &mut Figures) {
    let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut dids: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &outcome.entries {
        match entry {
            Entry::Started {
                call, class, key, ..
            } => {
                if *class != Class::ReadOnly {
                    keys.entry(call).or_default().insert(key);
                }
                if *class == Class::AtMostOnce {
                    *starts.entry(call).or_default() += 1;
                }
            }
            Entry::Effect { call, key, did } => {
                assert_eq!(call_of(key), call);
                if *did && starts.contains_key(&**call) {
                    *dids.entry(call).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    for (call, keys) in keys {
        if keys.len() > 1 {
            found.push(format!("{call} has several keys: {keys:?}"));
        }
    }
    for (call, n) in starts.iter().chain(&dids) {
        if *n > 1 {
            found.push(format!("{call} was done {n} times"));
        }
    }
    let distinct: BTreeSet<_> = outcome.done.iter().collect();
    if distinct.len() != outcome.done.len() {
        found.push("an effect exists twice".to_owned());
    }
    figures.effects = distinct.len();
}

/// Nothing is done without a decision or against it, and each reply is used at most once.
fn decisions(outcome: &Outcome, found: &mut Vec<String>, figures: &mut Figures) {
    let mut accepted: BTreeMap<(u64, &str), bool> = BTreeMap::new();
    let mut denied = BTreeSet::new();
    for note in &outcome.notes {
        let What::Claimed { fence, replies, .. } = &note.what else {
            continue;
        };
        for (question, reply) in replies {
            if question.ends_with(".wire") {
                let is_approved = reply.contains("\"approved\":true");
                accepted.insert((*fence, call_of(question)), is_approved);
                if !is_approved {
                    denied.insert(call_of(question));
                }
            }
        }
    }
    // Calls that have started, and not notifications, which are repeated if the store fails.
    for entry in &outcome.entries {
        if let Entry::Started { call, fence, .. } = entry
            && call.ends_with(".wire")
        {
            let decision = accepted.get(&(*fence, &**call));
            if decision != Some(&true) {
                found.push(format!("{call} ran, and its decision is {decision:?}"));
            }
        }
    }
    figures.denied = denied.len();
    let mut finished: BTreeMap<&str, usize> = BTreeMap::new();
    for (question, answer) in &outcome.replies {
        figures.replies += 1;
        if matches!(answer, Some(Answer::Finished { .. })) {
            *finished.entry(question).or_default() += 1;
        }
    }
    for (question, n) in finished {
        if n > 1 {
            found.push(format!("{n} replies to {question} were consumed"));
        }
    }
}

/// The history of a conversation is that of its runs, one after the other.
fn conversation(
    outcome: &Outcome,
    thread: &str,
    scripts: &[Script],
    history: &Transcript,
    found: &mut Vec<String>,
    figures: &mut Figures,
) {
    let mut turns = history.iter().peekable();
    for script in scripts {
        let about = &script.run;
        let is_accepted = outcome.rows.iter().any(|(client, ..)| client == about);
        figures.runs += usize::from(is_accepted);
        let begins = turns.next_if(|turn| {
            let message = turn.as_message();
            message.role == Role::User && message.text() == script.text()
        });
        if begins.is_none() {
            if !is_accepted {
                continue;
            }
            found.push(format!("{thread}: {about} does not begin where it should"));
            return;
        }
        let mut is_completed = false;
        for step in 0.. {
            let Some(turn) = turns.next_if(|turn| turn.as_message().role != Role::User) else {
                break;
            };
            let message = turn.as_message();
            let calls = script.calls(step);
            if calls.is_empty() {
                is_completed = message.text() == script.answer();
                if turns
                    .peek()
                    .is_some_and(|it| it.as_message().role != Role::User)
                {
                    found.push(format!("{about} continues after its answer"));
                }
                break;
            }
            let made: Vec<_> = message.tool_calls().map(|call| call.id.as_str()).collect();
            let wanted: Vec<_> = calls.iter().map(|(_, id)| id.as_str()).collect();
            if made != wanted {
                found.push(format!("{about}: the calls of step {step} are {made:?}"));
                break;
            }
            for ((tool, id), result) in calls.iter().zip(turn.results()) {
                assert_eq!(result.call_id.as_str(), id);
                let ToolContent::Text(text) = &result.outcome.content else {
                    panic!("{result:?}");
                };
                call(
                    outcome,
                    tool,
                    id,
                    result.outcome.status,
                    text,
                    found,
                    figures,
                );
            }
        }
        if !is_completed {
            failed(outcome, about, found, figures);
        }
    }
    if turns.next().is_some() {
        found.push(format!("{thread} has more turns than its runs"));
    }
}

/// The result of a call agrees with what was done.
fn call(
    outcome: &Outcome,
    tool: &str,
    id: &str,
    status: ToolStatus,
    text: &str,
    found: &mut Vec<String>,
    figures: &mut Figures,
) {
    let is_done = outcome
        .done
        .binary_search_by(|done| (**done).cmp(id))
        .is_ok();
    let by_person = text.strip_prefix("A person supplied this result, not the tool:\n");
    let says = by_person.unwrap_or(text).strip_prefix(id);
    let asked = || {
        outcome.entries.iter().any(|entry| {
            matches!(entry, Entry::Asked { reason, call, .. }
                if interrupt::UNKNOWN_EFFECT == reason.as_str() && call == id)
        })
    };
    let class = class_of(tool);
    let is_right = match (status, says) {
        (ToolStatus::Done, Some(": done")) => is_done || class == Class::ReadOnly,
        // A person has looked.
        (_, Some(": seen done")) => is_done && asked() && class == Class::AtMostOnce,
        (_, Some(": seen not done")) => !is_done && asked() && class == Class::AtMostOnce,
        (ToolStatus::Failed, Some(": not done, it was given up")) => !is_done && asked(),
        // It may or may not be done, and the reader knows that.
        (ToolStatus::Unknown, _) => true,
        (ToolStatus::Denied | ToolStatus::Cancelled, _) => !is_done,
        _ => false,
    };
    if by_person.is_some() {
        figures.unknown += 1;
    }
    if !is_right {
        found.push(format!("{id} is {status:?}, {text}, and done: {is_done}"));
    }
}

/// A run without an answer has ended with an error that its client received.
fn failed(outcome: &Outcome, run: &str, found: &mut Vec<String>, figures: &mut Figures) {
    let mut errors = outcome.notes.iter().filter_map(|note| match &note.what {
        What::Failed {
            client,
            code,
            error,
            ..
        } if client == run && ends_a_run(code, error) => Some((code, error)),
        _ => None,
    });
    match errors.next_back() {
        Some((code, error)) => {
            println!("{run} failed: {error}");
            *figures.failed.entry(code.clone()).or_default() += 1;
        }
        None => found.push(format!("{run} has no answer, and no error")),
    }
}

/// Whether an error is the end of a run: it may also be that another process has the run.
fn ends_a_run(code: &str, error: &str) -> bool {
    let elsewhere = [
        "stale_claim",
        "already_resumed",
        "run_live",
        "run_ended",
        "run_taken",
    ];
    !elsewhere.contains(&code) && !error.contains("lease has expired")
}

/// How long it took until the runs of killed processes were claimed by others.
fn resumed(outcome: &Outcome, figures: &mut Figures) {
    let mut notes: Vec<_> = outcome.notes.iter().collect();
    notes.sort_by_key(|note| note.micros);
    let mut drives: HashMap<&str, (usize, u32)> = HashMap::new();
    let mut died: HashMap<(usize, u32), Duration> = HashMap::new();
    for note in notes {
        match &note.what {
            What::Fault(fault) if fault == "kill" => {
                died.insert(note.worker, note.at());
            }
            What::Begun { run, .. } => {
                drives.insert(run, note.worker);
            }
            What::Claimed { run, .. } => {
                let before = drives.insert(run, note.worker);
                if let Some(dead) = before.and_then(|worker| died.get(&worker)) {
                    figures.resumed.push(note.at().saturating_sub(*dead));
                }
            }
            What::Suspended { run, .. } | What::Ended { run, .. } => {
                drives.remove(run.as_str());
            }
            _ => {}
        }
    }
    figures.resumed.sort();
}
