//! Which skills are active: what the history says.

use concentric_core::{Str, ToolResult, ToolStatus, Transcript, Turn};
use serde::Deserialize;

/// The arguments of `load_skill`.
#[derive(Deserialize)]
pub(super) struct Load {
    pub(super) name: Str,
}

/// The skills that were loaded by the tool `load`, in the order in which they were.
pub(super) fn active(transcript: &Transcript, load: &str) -> Vec<Str> {
    let mut active: Vec<Str> = Vec::new();
    for turn in transcript {
        for name in loaded(turn, load) {
            if !active.contains(&name) {
                active.push(name);
            }
        }
    }
    active
}

/// Whether `skill` was loaded by the tool `load`.
pub(super) fn is_active(transcript: &Transcript, load: &str, skill: &str) -> bool {
    let mut turns = transcript.rev();
    turns.any(|turn| loaded(turn, load).any(|name| name == *skill))
}

/// The skills that a round has loaded. A load by an agent in the model's place, which is no result
/// of the round, is that agent's own.
fn loaded<'a>(turn: &'a Turn, load: &'a str) -> impl Iterator<Item = Str> + 'a {
    let results = turn.results().iter();
    results
        .filter(move |result| result.name == *load && result.outcome.status == ToolStatus::Done)
        .filter_map(|result| name_of(turn, result))
}

/// The skill that a call has loaded: by its data, or, in a history that came without it, by its
/// arguments.
fn name_of(turn: &Turn, result: &ToolResult) -> Option<Str> {
    let data = result
        .outcome
        .data
        .as_ref()
        .and_then(|data| data.get("skill"));
    if let Some(name) = data.and_then(|name| name.as_str()) {
        return Some(name.into());
    }
    let mut calls = turn.as_message().tool_calls();
    let call = calls.find(|call| call.id == result.call_id)?;
    let load: Load = serde_json::from_str(call.arguments.as_str()).ok()?;
    Some(load.name)
}
