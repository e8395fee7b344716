//! The histories of the conversations: each is that of its runs, one after the other.

use super::{
    Outcome,
    runs::{Run, Runs, is_approved},
};
use crate::small::{
    agent::{Script, class_of},
    history::End,
    outside::Class,
    store::outline,
};
use concentric_core::{Role, ToolContent, ToolStatus, Transcript, Turn};
use std::collections::BTreeMap;

/// The part of a run in the history of its conversation.
#[derive(Default)]
struct Part {
    rounds: usize,
    answers: usize,
    last: usize,
    is_split: bool,
}

pub(super) fn check(outcome: &Outcome<'_>, runs: &Runs<'_>, found: &mut Vec<String>) {
    for (thread, (scripts, history)) in &outcome.threads {
        let before = found.len();
        let mut wrong = |what: String| found.push(format!("{thread}: {what}"));
        let parts = read(runs, scripts, history, &mut wrong);
        for script in scripts {
            let tag = &script.tag;
            let run = runs.runs.values().find(|run| run.tag == *tag);
            let part = parts.get(tag.as_str());
            match run {
                Some(run) => whole(script, run, part, &mut wrong),
                None if part.is_some_and(|part| part.rounds > 0) => {
                    wrong(format!("{tag} has rounds, and was never stored"));
                }
                None => {}
            }
        }
        if found.len() > before {
            let outline: Vec<_> = history.iter().map(outline).collect();
            found.push(format!("{thread} is {outline:?}"));
        }
    }
}

/// Reads the history of a conversation, and the part of each run in it.
fn read<'a>(
    runs: &Runs<'_>,
    scripts: &'a [Script],
    history: &Transcript,
    wrong: &mut impl FnMut(String),
) -> BTreeMap<&'a str, Part> {
    let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
    for (at, turn) in history.iter().enumerate() {
        let message = turn.as_message();
        let text = message.text();
        if message.role == Role::User {
            let read = Script::read(&text);
            let Some(script) = scripts.iter().find(|it| Some(*it) == read.as_ref()) else {
                wrong(format!("nobody sent {text}"));
                continue;
            };
            let part = Part {
                last: at,
                ..Part::default()
            };
            if parts.insert(&script.tag, part).is_some() {
                wrong(format!("{} stands in the history twice", script.tag));
            }
            continue;
        }
        let calls: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
        let of = |script: &&Script| match calls.first() {
            Some(call) => call.starts_with(&format!("{}.", script.tag)),
            // The part of an answer that was sent when the run ended.
            None => text.is_empty() || script.answer().starts_with(text.trim_end()),
        };
        let mut owners = scripts.iter().filter(of);
        let owner = owners.find(|it| {
            parts
                .get(it.tag.as_str())
                .is_some_and(|part| !calls.is_empty() || part.answers == 0)
        });
        let Some(script) = owner else {
            wrong(format!("a turn belongs to no run: {calls:?} {text}"));
            continue;
        };
        let Some(part) = parts.get_mut(script.tag.as_str()) else {
            continue;
        };
        part.is_split |= part.last + 1 != at;
        part.last = at;
        if calls.is_empty() {
            part.answers += 1;
            continue;
        }
        let wanted = script.calls(part.rounds);
        if part.answers > 0 || !calls.iter().eq(wanted.iter().map(|(_, id)| id)) {
            wrong(format!(
                "{calls:?} is not the round {} of {}",
                part.rounds, script.tag
            ));
        }
        part.rounds += 1;
        let run = runs.runs.values().find(|run| run.tag == script.tag);
        results(runs, run, turn, &wanted, wrong);
    }
    parts
}

/// The results of a round agree with the effects.
fn results(
    runs: &Runs<'_>,
    run: Option<&Run>,
    turn: &Turn,
    wanted: &[(&'static str, String)],
    wrong: &mut impl FnMut(String),
) {
    let mut count = 0;
    for ((tool, id), result) in wanted.iter().zip(turn.results()) {
        count += 1;
        let ToolContent::Text(text) = &result.outcome.content else {
            wrong(format!("the result of {id} is no text"));
            continue;
        };
        let call = runs.calls.get(id);
        let is_done = call.is_some_and(|call| call.done > 0);
        let is_inquired = call.is_some_and(|call| call.is_inquired);
        let decision = run.and_then(|run| run.decisions.get(id));
        let is_approved = decision.is_some_and(|decision| is_approved(decision));
        let class = class_of(tool);
        let by_person = text.strip_prefix("A person supplied this result, not the tool:\n");
        let states = by_person.unwrap_or(text).strip_prefix(id.as_str());
        let is_right = match (result.outcome.status, states) {
            (ToolStatus::Done, Some(": done")) => is_done || class == Class::ReadOnly,
            // A person has looked.
            (ToolStatus::Done, Some(": seen done")) => {
                is_done && is_inquired && class == Class::AtMostOnce
            }
            (ToolStatus::Done, Some(": seen not done")) => {
                !is_done && is_inquired && class == Class::AtMostOnce
            }
            (ToolStatus::Failed, Some(": not done, it was given up")) => !is_done && is_inquired,
            // It may or may not be done, and the reader knows that.
            (ToolStatus::Unknown, _) => class != Class::ReadOnly,
            (ToolStatus::Denied, _) => !is_done && decision.is_some() && !is_approved,
            (ToolStatus::Cancelled, _) => !is_done,
            _ => false,
        };
        if !is_right {
            let status = result.outcome.status;
            wrong(format!(
                "{id} is {status:?}, {text}, done: {is_done}, and decided as {decision:?}"
            ));
        }
    }
    if count != wanted.len() {
        wrong(format!("{count} of {wanted:?} have results"));
    }
}

/// A completed run is there as a whole, and its turns follow each other unless it has paused.
fn whole(script: &Script, run: &Run, part: Option<&Part>, wrong: &mut impl FnMut(String)) {
    let tag = &script.tag;
    let Some((_, End::Completed, _)) = &run.end else {
        return;
    };
    let Some(part) = part else {
        return wrong(format!("{tag} has completed, and is not in the history"));
    };
    if part.rounds != script.steps || part.answers != 1 {
        let (rounds, answers) = (part.rounds, part.answers);
        wrong(format!(
            "{tag} has completed with {rounds} rounds and {answers} answers"
        ));
    }
    if part.is_split && !run.has_paused {
        wrong(format!("the turns of {tag} are apart"));
    }
}
