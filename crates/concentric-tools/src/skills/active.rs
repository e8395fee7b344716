//! The active skills: those that were loaded in this process, stored in slots of the conversation.
//! Loads in the history are ignored, since a client may have written it.

use concentric_core::{
    Context, Str,
    state::{Durable, Scope, Slot, SlotError, Transient},
};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The arguments of `load_skill`.
#[derive(Deserialize)]
pub(super) struct Load {
    pub(super) name: Str,
}

/// The loaded skills in load order, by the name of the load tool.
type Loaded = BTreeMap<Str, Vec<Str>>;

/// The skills that a conversation has loaded.
struct ThreadSkills;

impl Slot for ThreadSkills {
    type Value = Loaded;
    type Keep = Durable;
    const NAME: &'static str = "concentric-tools/skills";
    const SCOPE: Scope = Scope::Thread;
}

/// The skills that the run of a nested agent has loaded, whose conversation is its run.
struct RunSkills;

impl Slot for RunSkills {
    type Value = Loaded;
    type Keep = Durable;
    const NAME: &'static str = "concentric-tools/skills-of-run";
    const SCOPE: Scope = Scope::Run;
}

/// The skills that were loaded in this round: the step of the round did not offer their tools.
struct RoundSkills;

impl Slot for RoundSkills {
    type Value = BTreeSet<(Str, Str)>;
    type Keep = Transient;
    const NAME: &'static str = "concentric-tools/skills-of-round";
    const SCOPE: Scope = Scope::Round;
}

/// Returns the skills that were loaded by the tool `load`, in load order. Returns an error if the
/// stored slot cannot be read.
pub(super) fn active(context: &Context, load: &str) -> Result<Vec<Str>, SlotError> {
    let loaded = match context.parent() {
        Some(_) => context.state::<RunSkills>()?,
        None => context.state::<ThreadSkills>()?,
    };
    Ok(loaded.get(load).cloned().unwrap_or_default())
}

/// Activates `skill`, loaded by the tool `load`; returns whether it was inactive when the round
/// began. Returns an error if the stored slot cannot be read.
pub(super) fn activate(context: &Context, load: &Str, skill: &Str) -> Result<bool, SlotError> {
    let mut is_new = false;
    let add = |loaded: &Loaded| {
        let mut loaded = loaded.clone();
        let skills = loaded.entry(load.clone()).or_default();
        is_new = !skills.contains(skill);
        if is_new {
            skills.push(skill.clone());
        }
        loaded
    };
    match context.parent() {
        Some(_) => context.update_state::<RunSkills>(add)?,
        None => context.update_state::<ThreadSkills>(add)?,
    };
    let of_round = (load.clone(), skill.clone());
    if is_new {
        // Outside of a round there is no earlier activation to distinguish.
        let _ = context.update_state::<RoundSkills>(|fresh| {
            let mut fresh = fresh.clone();
            fresh.insert(of_round.clone());
            fresh
        });
        return Ok(true);
    }
    Ok(context
        .state::<RoundSkills>()
        .is_ok_and(|fresh| fresh.contains(&of_round)))
}

/// Whether one of `skills` was active when the round of `context` began. Returns an error if the
/// stored slot cannot be read.
pub(super) fn was_active(context: &Context, load: &Str, skills: &[Str]) -> Result<bool, SlotError> {
    let active = active(context, load)?;
    let fresh = context.state::<RoundSkills>().unwrap_or_default();
    let is_fresh = |skill: &Str| fresh.contains(&(load.clone(), skill.clone()));
    let mut skills = skills.iter();
    Ok(skills.any(|skill| active.contains(skill) && !is_fresh(skill)))
}
